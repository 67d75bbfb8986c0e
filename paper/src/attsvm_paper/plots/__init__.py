"""Drawing functions that the figures of the experiments share."""
