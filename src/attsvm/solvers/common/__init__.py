"""Code that all methods share: limits, terms of the problem, ties, factorisations, evaluation."""
