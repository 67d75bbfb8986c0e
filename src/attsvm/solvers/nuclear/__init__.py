"""Methods for the nuclear norm only."""
