"""Paths from the answer of a similar problem."""
