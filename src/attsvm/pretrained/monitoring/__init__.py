"""Heads followed while a model trains."""
