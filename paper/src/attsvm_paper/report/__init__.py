"""The report of a reproduction: one page of all experiments, one page of each, and the errata."""
