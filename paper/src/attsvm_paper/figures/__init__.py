"""The published experiments, one module per figure (arXiv 2308.16898, 2306.13596 and 2410.14581)."""
