"""Experiments nobody has published: phase diagrams, rates, ranks, layers, real tokens."""
