"""The training risk, its trained parameters and its exact gradient."""
