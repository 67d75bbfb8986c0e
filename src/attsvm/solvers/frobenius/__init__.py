"""Methods for the Frobenius norm only."""
