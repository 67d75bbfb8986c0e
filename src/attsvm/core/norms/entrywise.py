r"""Norms of the entries: l_p, weighted l_p, and the sum of the k largest.

By Hoelder's inequality the dual of :math:`\|w \circ W\|_p` is :math:`\|M / w\|_q`, 1/p + 1/q = 1.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import cached_property
from typing import Any

import numpy as np

from attsvm.core.norms.exponents import conjugate, exponent, vector_norm
from attsvm.core.norms.faces import entries_face, orthonormal
from attsvm.core.norms.frobenius import FROBENIUS
from attsvm.core.norms.norm import Norm
from attsvm.core.norms.smoothing import Smooth, entrywise_smoothing, norm_gauge, top_gauge
from attsvm.platform.interop import to_numpy


def entrywise(M: np.ndarray, power: float) -> float:
    """Norm l_p of the entries, p = ``power`` in [1, inf], computed with no overflow or underflow of the powers."""
    size = np.abs(M)
    top = float(size.max(initial=0.0))
    if top == 0.0 or math.isinf(power):
        return top
    return top * float(((size / top) ** power).sum()) ** (1.0 / power)


def _onto_simplex(sizes: np.ndarray) -> np.ndarray:
    """Nearest nonnegative vector whose sum is at most one (Duchi et al. 2008, Figure 1)."""
    if sizes.sum() <= 1:
        return sizes
    order_statistics = np.sort(sizes)[::-1]
    excess = np.cumsum(order_statistics) - 1.0
    size = int((order_statistics * np.arange(1, len(order_statistics) + 1) > excess).sum())
    return np.maximum(sizes - excess[size - 1] / size, 0.0)


def power_roundings(entries: int, p: float) -> float:
    """Count the roundings of l_p of ``entries`` numbers.

    A power is exact to p units, their sum to one unit per entry; the p-th root divides both by p.
    """
    return 0.0 if math.isinf(p) else entries / p + 32 + 4 * math.log(entries)


class Entrywise(Norm, families={"entrywise": ""}):
    """The l_p norm of the entries.

    Parameters
    ----------
    p : float
        In [1, inf]; infinity gives the largest entry.

    Examples
    --------
    >>> from attsvm import SelectionProblem, norms, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[1.0, 0.0]], [0])
    >>> solve(problem, norms.Entrywise(1)).W.round(6)
    array([[0.  , 0.  ],
           [0.25, 0.  ]])
    """

    def __init__(self, p: float) -> None:
        self.p = self.power = exponent("p", p)
        self.q = conjugate(self.p)
        self.name = "max" if math.isinf(self.p) else f"l_{self.p:.17g}"
        self.smooth = 1 < self.p < math.inf

    def value(self, M: np.ndarray) -> float:
        """Evaluate l_p."""
        return entrywise(M, self.p)

    def dual(self, M: np.ndarray) -> float:
        """Evaluate l_q, 1/p + 1/q = 1."""
        return entrywise(M, self.q)

    def smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        """Smooth the norm; see :class:`attsvm.core.norms.norm.Norm`."""
        return entrywise_smoothing(norm_gauge(self.p), V, mu)

    def growth(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Compare l_p with l_2 of the same number of entries (Hoelder's inequality)."""
        p = self.q if dual else self.p
        return 1.0 if p >= 2 else math.prod(shape) ** (1.0 / p - 0.5)

    def roundings(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Count the roundings of l_p."""
        return power_roundings(math.prod(shape), self.q if dual else self.p)

    def distance_bound(self, gap: float) -> tuple[float, float]:
        r"""Bound the distance to the solution W*, relative to the norm of W.

        For 1 < p <= 2, :math:`\tfrac{1}{2}\|\cdot\|_p^2` is strongly convex with constant p - 1 (Ball, Carlen and Lieb,
        Invent. Math. 115, 1994), so :math:`\|W - W^*\|_p \le \|W\|_p \sqrt{2\,\mathrm{gap}/(p-1)}`. For p > 2,
        Clarkson's inequality at the midpoint, which is feasible, gives :math:`2\|W\|_p (p\,\mathrm{gap}/2)^{1/p}`.
        """
        if not self.smooth:
            return super().distance_bound(gap)
        if self.p < 2:
            return math.sqrt(2.0 * gap / (self.p - 1.0)), self.p
        return 2.0 * (0.5 * self.p * gap) ** (1.0 / self.p), self.p

    def _corner(self, G: np.ndarray, tolerance: float, dual: bool, point: np.ndarray | None) -> np.ndarray:
        return entries_face(G.ravel(), self.q if dual else self.p, tolerance)

    def nearest(self, X: np.ndarray) -> np.ndarray | None:
        """Project on the unit ball: clip entries for p = infinity, shrink them by one amount for p = 1."""
        if math.isinf(self.p):
            return np.clip(X, -1.0, 1.0)
        return np.sign(X) * _onto_simplex(np.abs(X).ravel()).reshape(X.shape) if self.p == 1 else None

    def of_tensor(self, W: Any) -> Any:
        """Evaluate l_p of a tensor's entries."""
        return vector_norm(W, self.p, (-2, -1))

    def words(self) -> list[Any]:
        """Name the norm, and its exponent."""
        return ["entrywise", self.p]

    @property
    def canonical(self) -> Norm:
        """The Frobenius norm for p = 2."""
        return FROBENIUS if self.p == 2 else self


class Weighted(Norm, families={"weighted": ""}):
    """The l_p norm of the entries times positive weights.

    Parameters
    ----------
    weights : array_like, shape (d, dz)
        Positive and finite; a large weight penalises its entry.
    p : float
        In [1, inf].

    Raises
    ------
    ValueError
        If the weights are not a positive matrix or p is below one.

    Examples
    --------
    >>> from attsvm import SelectionProblem, norms, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[1.0, 0.0]], [0])
    >>> weights = [[1.0, 1.0], [10.0, 1.0]]
    >>> solve(problem, norms.Weighted(weights, p=1)).W.round(6)
    array([[0.333333, 0.      ],
           [0.      , 0.      ]])
    """

    def __init__(self, weights: object, p: float = 2.0) -> None:
        self.weights = to_numpy("weights", weights).astype(np.float64)
        if self.weights.ndim != 2 or not (np.isfinite(self.weights).all() and (self.weights > 0).all()):
            raise ValueError(
                f"weights has shape {self.weights.shape}; a matrix (d, dz) of positive, finite numbers was expected."
            )
        self.p = exponent("p", p)
        self.q = conjugate(self.p)
        self.name = f"weighted l_{self.p:.17g}"
        self.smooth = 1 < self.p < math.inf

    def value(self, M: np.ndarray) -> float:
        """Evaluate l_p of the weighted entries."""
        return entrywise(self.weights * M, self.p)

    def dual(self, M: np.ndarray) -> float:
        """Evaluate l_q of the entries divided by the weights."""
        return entrywise(M / self.weights, self.q)

    def smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        """Smooth the norm; see :class:`attsvm.core.norms.norm.Norm`."""
        return entrywise_smoothing(norm_gauge(self.p), V, mu, self.weights)

    def roundings(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Count the roundings of l_p and of multiplying by a weight."""
        return power_roundings(math.prod(shape), self.q if dual else self.p) + 1

    def mismatch(self, shape: tuple[int, int]) -> str | None:
        """Compare the shape of the weights with the shape of W."""
        if self.weights.shape == shape:
            return None
        return f"weights has shape {self.weights.shape}; the shape of W, (d, dz) = {shape}, was expected."

    def _corner(self, G: np.ndarray, tolerance: float, dual: bool, point: np.ndarray | None) -> np.ndarray:
        scale = self.weights if dual else 1.0 / self.weights
        return orthonormal(Entrywise(self.p).face(scale * G, tolerance, dual=dual) * scale.ravel())

    def of_tensor(self, W: Any) -> Any:
        """Evaluate l_p of a tensor's weighted entries."""
        return vector_norm(W * W.new_tensor(self.weights), self.p, (-2, -1))

    @classmethod
    def from_words(cls, word: str, *parts: Any) -> Norm:
        """Return the norm of weights and an entrywise norm."""
        weights, inner = parts
        return cls(weights, inner.p)

    def words(self) -> list[Any]:
        """Name the weights and the weighted norm."""
        return ["weighted", self.weights, ["entrywise", self.p]]

    @cached_property
    def _key(self) -> Hashable:
        return self.name, self.weights.shape, self.weights.tobytes()


class LargestEntries(Norm):
    """The sum of the k largest absolute entries, the entrywise analogue of a Ky Fan norm."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.name = f"sum of the {k} largest entries"

    def value(self, M: np.ndarray) -> float:
        """Sum the k largest absolute entries."""
        return float(np.sort(np.abs(M), axis=None)[::-1][: self.k].sum())

    def dual(self, M: np.ndarray) -> float:
        """Maximum of the largest absolute entry and the sum of all divided by k."""
        size = np.abs(M)
        return max(float(size.max(initial=0.0)), float(size.sum()) / min(self.k, size.size))

    def growth(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Compare the sum of k entries, or all, with their l_2 norm (Cauchy and Schwarz)."""
        entries = math.prod(shape)
        k = min(self.k, entries)
        return max(1.0, math.sqrt(entries) / k) if dual else math.sqrt(k)

    def roundings(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Count the additions, and the division by k."""
        return math.prod(shape) + 1 if dual else min(self.k, math.prod(shape))

    def smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        """Smooth the norm; see :class:`attsvm.core.norms.norm.Norm`."""
        return entrywise_smoothing(top_gauge(self.k), V, mu)

    def of_tensor(self, W: Any) -> Any:
        """Sum the k largest absolute entries of a tensor."""
        size = W.abs().flatten(-2)
        return size.topk(min(self.k, size.shape[-1]), -1).values.sum(-1)


MAX = Entrywise(math.inf)


def entrywise_norm(p: float) -> Norm:
    """Return the entrywise l_p norm; p = 2 is the Frobenius norm, p = inf the largest entry."""
    return MAX if math.isinf(p) else Entrywise(p).canonical
