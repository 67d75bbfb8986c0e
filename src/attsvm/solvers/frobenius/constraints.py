"""Constraints as a list that compiled methods read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import boolean, float64, int64, types

from attsvm.core.reduction import Reduced


class Constraints(NamedTuple):
    """A list of constraints delta_k z_of(k)^T; the constraints of a query are consecutive.

    Attributes
    ----------
    delta : ndarray, shape (m, p)
    queries : ndarray, shape (n, r)
    of : ndarray of int, shape (m,)
        Query of each constraint.
    first : ndarray of int, shape (n + 1,)
        Index of each query's first constraint, and m.
    rejected, tied : ndarray of bool, shape (m,)
        Inequalities and equalities; other entries are ignored.
    gram : ndarray, shape (m, m) or (0, 0)
        Inner products of the constraints, which replace their vectors; p is then zero.
    """

    delta: np.ndarray
    queries: np.ndarray
    of: np.ndarray
    first: np.ndarray
    rejected: np.ndarray
    tied: np.ndarray
    gram: np.ndarray

    @classmethod
    def of_reduced(cls, reduced: Reduced) -> Constraints:
        """List all entries of a reduced problem, empty ones included."""
        n, T, p = reduced.delta.shape
        delta, of, first = reduced.delta.reshape(n * T, p), np.repeat(np.arange(n), T), np.arange(0, n * T + 1, T)
        ends = reduced.rejected.ravel(), reduced.tied.ravel(), np.empty((0, 0))
        # Numba compiles once more for arrays that are read-only.
        return cls(delta, np.require(reduced.queries, requirements="W"), of, first, *ends)


CONSTRAINTS = types.NamedTuple(
    (float64[:, ::1], float64[:, ::1], int64[::1], int64[::1], boolean[::1], boolean[::1], float64[:, ::1]), Constraints
)
