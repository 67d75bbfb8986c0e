"""Figures, one question a file, drawn with matplotlib and without its global state."""
