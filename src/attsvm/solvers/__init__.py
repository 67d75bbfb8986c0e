"""Solvers: one method a file, each on :class:`attsvm.core.reduction.Reduced`; answers are certified elsewhere."""
