"""Squared hinges over one-hot tokens (classes or words) and many entries of W: Newton, and splitting."""
