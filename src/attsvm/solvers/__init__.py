"""Solvers: one method a file, each on :class:`attsvm.core.reduction.Reduced`, none trusted with its own verdict."""
