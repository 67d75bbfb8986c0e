"""Training runs: set-up, engines, records."""
