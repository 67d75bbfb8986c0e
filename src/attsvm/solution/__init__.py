"""What a solve returns: :class:`attsvm.Solution`, above the proofs that check it and below the solvers that make it."""

from attsvm.solution.regularised import RegularisedSolution

__all__ = ["RegularisedSolution"]
