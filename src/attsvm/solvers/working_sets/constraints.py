"""Constraints of the working set, and the sum of constraints at their bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.core.error_free import Pair, error_of, gamma, sum_pairs
from attsvm.core.norms import frobenius
from attsvm.core.reduction import constraint_margins
from attsvm.core.rounding import FUNCTION_ROUNDING, row_lengths


@dataclass(frozen=True, eq=False)
class ConstraintTable:
    """Constraints of the working set, with their tokens and queries.

    Attributes
    ----------
    place : ndarray of int, shape (J, 3)
        Shard, query within the shard, and token.
    x, reference : ndarray, shape (J, d)
        The rejected or tied token, and the selected token that it is compared with.
    z : ndarray, shape (J, dz)
    tied : ndarray of bool, shape (J,)
    at_bound : ndarray of bool, shape (J,)
        Whether each constraint was part of a sum.
    key : ndarray, shape (J,)
        Constraints join in the order of their keys, the smallest first.
    """

    place: np.ndarray
    x: np.ndarray
    reference: np.ndarray
    z: np.ndarray
    tied: np.ndarray
    at_bound: np.ndarray
    key: np.ndarray

    def __len__(self) -> int:
        return len(self.place)

    @staticmethod
    def concatenate(parts: Sequence[ConstraintTable]) -> ConstraintTable:
        """Concatenate tables."""
        return ConstraintTable(
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])}
        )

    def where(self, keep: np.ndarray | slice) -> ConstraintTable:
        """Select constraints."""
        return ConstraintTable(**{name: column[keep] for name, column in vars(self).items()})

    def most_urgent(self, room: int) -> ConstraintTable:
        """Select ties and at most ``room`` other constraints of smallest key, the earlier of equal keys."""
        free = np.flatnonzero(~self.tied)
        if len(free) <= room:
            return self
        keep = self.tied.copy()
        keep[free[np.argsort(self.key[free], kind="stable")[:room]]] = True
        return self.where(keep)

    def margins(self, W: np.ndarray) -> np.ndarray:
        """Margins of W (d, dz), (J,)."""
        return constraint_margins(self.reference - self.x, self.z, W)


@dataclass(frozen=True, eq=False)
class Anchor:
    """A linearisation point W, at which constraints of a hinge count as at their bound.

    Attributes
    ----------
    W : ndarray, shape (d, dz)
    band : float
        Shortfall under W above which a constraint is at its bound.
    """

    W: np.ndarray
    band: float


@dataclass(frozen=True, eq=False)
class BoundSum:
    """The sum of the constraints at their bound.

    Attributes
    ----------
    pair : Pair, shape (d, dz)
        Sum of delta z^T.
    error : float
        Largest rounding error of the sum, in the Frobenius norm.
    """

    pair: Pair
    count: int
    error: float

    @property
    def adjoint(self) -> np.ndarray:
        """The sum in floats, (d, dz)."""
        return self.pair.high

    @staticmethod
    def add(parts: Sequence[BoundSum]) -> BoundSum:
        """Add sums."""
        sizes = math.fsum(frobenius(part.adjoint) for part in parts)
        error = (math.fsum(part.error for part in parts) + error_of(len(parts), 0) * sizes) * (1 + FUNCTION_ROUNDING)
        highs, lows = (np.stack([getattr(part.pair, half) for part in parts]) for half in ("high", "low"))
        return BoundSum(sum_pairs(Pair(highs, lows), 0), sum(part.count for part in parts), error)

    def without(self, removals: ConstraintTable) -> BoundSum:
        """Subtract constraints that join the working set."""
        delta = removals.reference - removals.x
        weight = float((row_lengths(delta) * row_lengths(removals.z)).sum())
        error = gamma(len(removals) + 8) * (weight + frobenius(self.adjoint)) + self.error
        pair = self.pair + Pair(-(delta.T @ removals.z), np.zeros(self.adjoint.shape))
        return BoundSum(pair, self.count - len(removals), error)
