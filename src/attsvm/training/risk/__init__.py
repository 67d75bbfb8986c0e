"""The training risk, its parameters and its exact gradient."""
