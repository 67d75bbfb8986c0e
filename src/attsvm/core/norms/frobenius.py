"""The Frobenius norm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attsvm.core.norms.exponents import vector_norm
from attsvm.core.norms.norm import Norm
from attsvm.core.norms.smoothing import Smooth, entrywise_smoothing, power_gauge

# A sum of squares between this and its inverse has lost no digits to underflow or overflow.
SAFE_SUM = 1e-200


def frobenius(M: np.ndarray) -> float:
    """Square root of the sum of squares, with no overflow or underflow of the squares."""
    square = float(np.vdot(M, M))
    if SAFE_SUM < square < 1.0 / SAFE_SUM:
        return math.sqrt(square)
    top = np.abs(M).max(initial=0.0)
    return float(top * np.linalg.norm(M / top)) if top > 0 else 0.0


class Frobenius(Norm, families={"frobenius": ""}):
    """The Euclidean length of the entries, its own dual."""

    name = "frobenius"
    invariant = True
    smooth = True
    euclidean = True

    def value(self, M: np.ndarray) -> float:
        """Evaluate the norm."""
        return frobenius(M)

    def dual(self, M: np.ndarray) -> float:
        """Evaluate the norm, which is its own dual."""
        return frobenius(M)

    def smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        """Smooth the norm; see :class:`attsvm.core.norms.norm.Norm`."""
        return entrywise_smoothing(power_gauge(2.0), V, mu)

    def growth(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Return 1: the bound compares the norm with itself."""
        return 1.0

    def of_tensor(self, W: Any) -> Any:
        """Evaluate the length of a tensor's entries."""
        return vector_norm(W, 2.0, (-2, -1))

    @classmethod
    def from_words(cls, word: str, *parts: Any) -> Norm:
        """Return :data:`FROBENIUS`, the only instance."""
        return FROBENIUS

    def words(self) -> list[Any]:
        """Name the norm."""
        return ["frobenius"]

    def roundings(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Count the roundings of squares and their sum, halved by the root."""
        return 0.5 * math.prod(shape) + 8

    @property
    def profile(self) -> Norm:
        """The norm itself: the length of the singular values."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _frobenius_norm, ()


FROBENIUS = Frobenius()


def _frobenius_norm() -> Frobenius:
    return FROBENIUS
