"""Run a training: set-up, engines and records."""
