"""What runs an experiment: its cells, seeds, batches, stored rows and workers."""
