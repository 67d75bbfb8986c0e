"""Constraints that were brought here, and those that are known by their sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.core.error_free import Pair, error_of, sum_pairs
from attsvm.core.norms import frobenius
from attsvm.core.rounding import FEW, gamma, row_lengths


@dataclass(frozen=True, eq=False)
class Constraints:
    """Constraints that were brought here, with the numbers they are made of.

    Attributes
    ----------
    place : ndarray of int, shape (J, 3)
        Shard, query within the shard, and token.
    x, reference : ndarray, shape (J, d)
        The token that is to lose, or to tie, and the one it is compared with.
    z : ndarray, shape (J, dz)
    tied : ndarray of bool, shape (J,)
    settled : ndarray of bool, shape (J,)
        Whether the constraint was one of a sum.
    key : ndarray, shape (J,)
        The smaller, the more urgent.
    """

    place: np.ndarray
    x: np.ndarray
    reference: np.ndarray
    z: np.ndarray
    tied: np.ndarray
    settled: np.ndarray
    key: np.ndarray

    def __len__(self) -> int:
        return len(self.place)

    @staticmethod
    def joined(parts: Sequence[Constraints]) -> Constraints:
        """Put several tables below one another."""
        return Constraints(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])})

    def where(self, keep: np.ndarray | slice) -> Constraints:
        """Keep some of them."""
        return Constraints(**{name: column[keep] for name, column in vars(self).items()})

    def most_urgent(self, room: int) -> Constraints:
        """Keep ties, and of the others at most ``room``; first come, first served where keys are equal."""
        free = np.flatnonzero(~self.tied)
        if len(free) <= room:
            return self
        keep = self.tied.copy()
        keep[free[np.argsort(self.key[free], kind="stable")[:room]]] = True
        return self.where(keep)

    def margins(self, W: np.ndarray) -> np.ndarray:
        """Margins of W (d, dz), (J,)."""
        return np.vecdot((self.reference - self.x) @ W, self.z)


@dataclass(frozen=True, eq=False)
class Anchor:
    """A W whose margins tell which constraints are settled.

    Attributes
    ----------
    W : ndarray, shape (d, dz)
    band : float
        Margins there below one by more than this are.
    """

    W: np.ndarray
    band: float


@dataclass(frozen=True, eq=False)
class Settled:
    """Constraints that enter as a sum.

    Attributes
    ----------
    total : Pair, shape (d, dz)
        Sum of delta z^T.
    count : int
    error : float
        What rounding did to the sum at most, in the Frobenius norm.
    """

    total: Pair
    count: int
    error: float

    @property
    def pull(self) -> np.ndarray:
        """The sum in floats, (d, dz)."""
        return self.total.high

    @staticmethod
    def joined(parts: Sequence[Settled]) -> Settled:
        """Add sums up."""
        sizes = math.fsum(frobenius(part.pull) for part in parts)
        error = (math.fsum(part.error for part in parts) + error_of(len(parts), 0) * sizes) * (1 + FEW)
        highs, lows = (np.stack([getattr(part.total, half) for part in parts]) for half in ("high", "low"))
        return Settled(sum_pairs(Pair(highs, lows), 0), sum(part.count for part in parts), error)

    def without(self, gone: Constraints) -> Settled:
        """Take constraints out that stand for themselves from now on."""
        delta = gone.reference - gone.x
        weight = float((row_lengths(delta) * row_lengths(gone.z)).sum())
        error = gamma(len(gone) + 8) * (weight + frobenius(self.pull)) + self.error
        total = self.total + Pair(-(delta.T @ gone.z), np.zeros(self.pull.shape))
        return Settled(total, self.count - len(gone), error)
