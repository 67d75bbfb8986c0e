"""Load models, make their inputs and extract their attention heads."""
