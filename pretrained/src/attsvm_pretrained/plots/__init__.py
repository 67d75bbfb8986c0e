"""Pictures of heads; `attsvm.plots` has the public names."""
