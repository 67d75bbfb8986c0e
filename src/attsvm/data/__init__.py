"""Data sets: the published random instances and real ones."""
