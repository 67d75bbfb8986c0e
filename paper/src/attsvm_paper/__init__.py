"""Published experiments, reproduced or corrected, and new ones: one module per experiment, one engine for all."""
