"""All heads of a model, examined together."""
