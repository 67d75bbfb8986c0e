"""What every method shares: limits, the problem's terms, ties, factorisations, evaluation."""
