"""Rules that turn gradients into steps."""
