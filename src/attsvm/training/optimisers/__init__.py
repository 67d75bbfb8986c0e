"""Optimisers, which turn gradients into steps."""
