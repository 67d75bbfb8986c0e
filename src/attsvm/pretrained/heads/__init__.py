"""Heads read out of models: loading, inputs, extraction."""
