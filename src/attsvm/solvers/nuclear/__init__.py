"""Methods of the nuclear norm alone."""
