"""The parts that run an experiment: its cells, seeds, batches, stored rows and workers."""
