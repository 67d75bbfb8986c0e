"""Measures of a trial that the experiments of this section share."""

from __future__ import annotations

import numpy as np

from attsvm.solution.solution import Solution


def margin_share(solution: Solution, W: np.ndarray) -> float:
    """Return the margin of W for the tokens of an SVM, per norm, as a share of the largest margin.

    It is 1 for the solution itself, negative where W scores another token higher; NaN for an infeasible SVM.
    """
    rejected = solution.problem.rejected
    length = float(np.linalg.norm(W))
    if not np.isfinite(solution.objective) or not rejected.any() or length == 0:
        return float("nan")
    return float(solution.problem.apply(W)[rejected].min()) / length * solution.objective


def finite_or_none(number: float) -> float | None:
    """Return a number for a row, None if it is not finite."""
    return float(number) if np.isfinite(number) else None
