"""Selections of heads: their hardness, their types, and the SVMs that they are compared with."""
