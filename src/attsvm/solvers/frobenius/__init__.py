"""Methods of the Frobenius norm alone."""
