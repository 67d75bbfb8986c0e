"""Inspect all heads of a model together."""
