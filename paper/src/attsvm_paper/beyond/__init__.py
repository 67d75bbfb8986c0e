"""Experiments without a published counterpart: phase diagrams, rates, ranks, layers, real tokens."""
