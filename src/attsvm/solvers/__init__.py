"""Solvers: one method a file, each on :class:`attsvm.reduction.Reduced`, none trusted with its own verdict."""
