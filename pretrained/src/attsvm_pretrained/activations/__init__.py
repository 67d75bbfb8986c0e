"""Record a model's forward pass, and find the linear maps behind its queries and keys."""
