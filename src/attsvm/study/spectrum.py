"""Singular values, and the rank at a certified accuracy."""

from __future__ import annotations

import numpy as np

from attsvm.core.error_free import EPS
from attsvm.solution.solution import Solution


def singular_values(W: np.ndarray) -> np.ndarray:
    """Singular values divided by the largest, descending; zeros for a zero matrix."""
    values = np.linalg.svd(np.asarray(W, dtype=float), compute_uv=False)
    return values / (values[0] or 1.0)


def certified_rank(solution: Solution) -> int:
    r"""Count the singular values that exceed the error of the solution.

    A Frobenius solution with relative gap g lies within ||W|| sqrt(2 g) of the exact one, and a singular value changes
    by at most this distance (Weyl). For the nuclear norm the same number is an estimate. An absolute cut at 1e-7, as in
    the published code, counts the noise of a solver that is only accurate to 1e-5.
    """
    values = singular_values(solution.W)
    error = float(np.linalg.norm(values)) * np.sqrt(2 * max(solution.gap, 4 * EPS))
    return int((values > error).sum())
