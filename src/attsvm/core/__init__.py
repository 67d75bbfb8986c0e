"""The problem and the norms, on which solving, training and drawing build."""
