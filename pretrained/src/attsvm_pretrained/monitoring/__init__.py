"""Follow heads while a model trains."""
