"""Published experiments, reproduced or corrected, and our own: one module an experiment, one engine for all."""
