"""The answer of a solve, :class:`attsvm.Solution`: above the proofs that check it, below the solvers that make it."""

from attsvm.solution.regularised import RegularisedSolution

__all__ = ["RegularisedSolution"]
