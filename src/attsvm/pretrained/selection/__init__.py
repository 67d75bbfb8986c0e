"""Selections of heads: how selective they are, their types, and the SVMs they are compared with."""
