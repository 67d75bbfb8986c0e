"""Constraints that were brought here, and those that are known by their sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.core.norms import frobenius
from attsvm.core.rounding import FEW, gamma


@dataclass(frozen=True, eq=False)
class Constraints:
    """Constraints that were brought here, with the numbers they are made of.

    Attributes
    ----------
    shard, query, token : ndarray of int, shape (J,)
        Where they are from; queries are counted within their shard.
    x : ndarray, shape (J, d)
        The token that is to lose, or to tie.
    tied : ndarray of bool, shape (J,)
    settled : ndarray of bool, shape (J,)
        Whether the constraint was one of a sum.
    key : ndarray, shape (J,)
        The smaller, the more urgent.
    owner : ndarray of int, shape (J,)
        The constraint's row in the next three.
    asking : ndarray of int, shape (m, 3)
        Shard, query and reference token.
    z, reference : ndarray, shapes (m, dz) and (m, d)
    """

    shard: np.ndarray
    query: np.ndarray
    token: np.ndarray
    x: np.ndarray
    tied: np.ndarray
    settled: np.ndarray
    key: np.ndarray
    owner: np.ndarray
    asking: np.ndarray
    z: np.ndarray
    reference: np.ndarray

    def __len__(self) -> int:
        return len(self.token)

    @staticmethod
    def none(d: int, dz: int) -> Constraints:
        """Make an empty table."""
        whole, marks = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
        rows = {"asking": np.zeros((0, 3), dtype=np.int64), "z": np.zeros((0, dz)), "reference": np.zeros((0, d))}
        return Constraints(whole, whole, whole, np.zeros((0, d)), marks, marks, np.zeros(0), whole, **rows)

    @staticmethod
    def joined(parts: Sequence[Constraints]) -> Constraints:
        """Put several tables below one another."""
        offsets = np.cumsum([0, *(len(part.asking) for part in parts)])
        owner = np.concatenate([part.owner + offset for part, offset in zip(parts, offsets, strict=False)])
        own = ("shard", "query", "token", "x", "tied", "settled", "key")
        values = {name: np.concatenate([getattr(part, name) for part in parts]) for name in own}
        rows = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("asking", "z", "reference")}
        return Constraints(**values, owner=owner, **rows)

    def where(self, keep: np.ndarray) -> Constraints:
        """Keep some of them, and the queries these need."""
        used, owner = np.unique(self.owner[keep], return_inverse=True)
        own = ("shard", "query", "token", "x", "tied", "settled", "key")
        values = {name: getattr(self, name)[keep] for name in own}
        return Constraints(
            **values, owner=owner, asking=self.asking[used], z=self.z[used], reference=self.reference[used]
        )

    def most_urgent(self, room: int) -> Constraints:
        """Keep ties, and of the others at most ``room``; first come, first served where keys are equal."""
        free = np.flatnonzero(~self.tied)
        if len(free) <= room:
            return self
        keep = self.tied.copy()
        keep[free[np.argsort(self.key[free], kind="stable")[:room]]] = True
        return self.where(keep)


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
    pull : ndarray, shape (d, dz)
        Sum of delta z^T.
    count : int
    error : float
        What rounding did to the pull at most, in the Frobenius norm.
    """

    pull: np.ndarray
    count: int
    error: float

    @staticmethod
    def joined(parts: Sequence[Settled]) -> Settled:
        """Add sums up."""
        sizes = math.fsum(frobenius(part.pull) for part in parts)
        error = math.fsum(part.error for part in parts) * (1 + FEW) + gamma(len(parts)) * sizes * (1 + FEW)
        return Settled(added([part.pull for part in parts]), sum(part.count for part in parts), error)


def added(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Sum arrays in their order."""
    return np.sum(parts, axis=0)
