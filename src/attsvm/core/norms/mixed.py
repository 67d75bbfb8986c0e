r"""Mixed norms: the l_q norm of the l_p norms of the rows, or of the columns.

The norm is :math:`\|W\|_{p,q} = \bigl\|(\|W_{1\cdot}\|_p, \ldots, \|W_{d\cdot}\|_p)\bigr\|_q`. The exponents (2, 1)
give the group lasso (Yuan and Lin, J. R. Stat. Soc. B 68, 2006), which sets all entries of some token coordinates to
zero. The dual norm has the conjugate exponents (Hoelder's inequality twice).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attsvm.core.norms.entrywise import entrywise, entrywise_norm, power_roundings
from attsvm.core.norms.exponents import conjugate, exponent, vector_norm
from attsvm.core.norms.faces import entries_face, orthonormal
from attsvm.core.norms.norm import Norm
from attsvm.core.norms.smoothing import Smooth, compose, entrywise_smoothing, norm_gauge

AXES = ("rows", "columns")


class Mixed(Norm, families={"rows": "p:q", "columns": "p:q"}):
    """The l_q norm of the l_p norms of the rows or columns.

    Parameters
    ----------
    p, q : float
        In [1, inf]: p within a row, q across rows.
    axis : {"rows", "columns"}
        Rows of W belong to coordinates of the tokens, columns to coordinates of the queries.

    Raises
    ------
    ValueError
        If an exponent is below one or the axis is neither.

    Examples
    --------
    >>> from attsvm import SelectionProblem, norms, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[1.0, 0.0]], [0])
    >>> solve(problem, norms.Mixed(2, 1)).W.round(6)
    array([[0.  , 0.  ],
           [0.25, 0.  ]])
    """

    def __init__(self, p: float, q: float, axis: str = "rows") -> None:
        self.p, self.q = exponent("p", p), exponent("q", q)
        if axis not in AXES:
            raise ValueError(f"axis is {axis!r}; one of {', '.join(map(repr, AXES))} was expected.")
        self.axis = axis
        self.name = f"l_{self.p:.17g},{self.q:.17g} of {axis}"
        self.smooth = 1 < self.p < np.inf and 1 < self.q < np.inf

    def _measure(self, M: np.ndarray, p: float, q: float) -> float:
        rows = M if self.axis == "rows" else M.T
        top = np.abs(rows).max(axis=1, initial=0.0)
        if np.isinf(p):
            return entrywise(top, q)
        parts = rows / np.where(top > 0, top, 1.0)[:, None]
        return entrywise(top * (np.abs(parts) ** p).sum(axis=1) ** (1.0 / p), q)

    def value(self, M: np.ndarray) -> float:
        """Evaluate the norm."""
        return self._measure(M, self.p, self.q)

    def dual(self, M: np.ndarray) -> float:
        """Evaluate the norm of the conjugate exponents."""
        return self._measure(M, conjugate(self.p), conjugate(self.q))

    def smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        """Smooth the norm; see :class:`attsvm.core.norms.norm.Norm`."""
        places = np.arange(V.size).reshape(V.shape)
        groups = places if self.axis == "rows" else places.T
        within, flat = norm_gauge(self.p), V.ravel()
        inner = [(group, entrywise_smoothing(within, flat[group][None], mu)) for group in groups]
        return compose(norm_gauge(self.q), inner, V.shape, mu)

    def roundings(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Count the roundings of l_p of a row, whose norm is one entry of the outer l_q norm."""
        count, length = shape if self.axis == "rows" else shape[::-1]
        p, q = (conjugate(self.p), conjugate(self.q)) if dual else (self.p, self.q)
        return power_roundings(length, p) + power_roundings(count, q) + 2

    def _corner(self, G: np.ndarray, tolerance: float, dual: bool, point: np.ndarray | None) -> np.ndarray:
        p, q = (conjugate(self.p), conjugate(self.q)) if dual else (self.p, self.q)
        rows = _rows_face(G if self.axis == "rows" else G.T, p, q, tolerance)
        return (rows if self.axis == "rows" else rows.swapaxes(1, 2)).reshape(-1, G.size)

    def of_tensor(self, W: Any) -> Any:
        """Evaluate the norm of a tensor's rows or columns."""
        return vector_norm(vector_norm(W if self.axis == "rows" else W.mT, self.p, -1), self.q, -1)

    @classmethod
    def from_words(cls, word: str, *parts: Any) -> Norm:
        """Return the norm of the numbers p and q; the word is the axis."""
        p, q = parts
        return cls(p, q, word)

    def words(self) -> list[Any]:
        """Name the axis and the exponents."""
        return [self.axis, self.p, self.q]

    @property
    def canonical(self) -> Norm:
        """The entrywise norm for p = q."""
        return entrywise_norm(self.p) if self.p == self.q else self


def _rows_face(G: np.ndarray, p: float, q: float, tolerance: float) -> np.ndarray:
    """Directions of the face that G (a, b) exposes in the ball of the mixed norm of its rows, (k, a, b)."""
    heights = np.array([entrywise(row, conjugate(p)) for row in G])
    zero = heights <= tolerance * heights.max()
    full = heights >= (1 - tolerance) * heights.max() if q == 1 else ~zero
    parts = [(r, part) for r in np.flatnonzero(full) for part in entries_face(G[r], p, tolerance)]
    if math.isinf(q):
        parts += [(r, part) for r in np.flatnonzero(zero) for part in np.eye(G.shape[1])]
    out = np.zeros((len(parts), *G.shape))
    for k, (r, part) in enumerate(parts):
        out[k, r] = part
    if q > 1:
        return out
    # Lengths of the rows with the largest dual norm sum to one; each row is its length times a point of the l_p ball.
    points = np.zeros((np.count_nonzero(full), *G.shape))
    for k, r in enumerate(np.flatnonzero(full)):
        points[k, r] = _dual_face(G[r], p)
    steps = (points[1:] - points[:1]).reshape(-1, G.size)
    return orthonormal(np.concatenate([out.reshape(-1, G.size), steps])).reshape(-1, *G.shape)


def _dual_face(g: np.ndarray, p: float) -> np.ndarray:
    """Return a point of the l_p ball with the largest product with g (m,)."""
    if math.isinf(p):
        return np.sign(g)
    if p == 1:
        return np.sign(g) * (np.arange(g.size) == np.abs(g).argmax())
    point = np.sign(g) * (np.abs(g) / np.abs(g).max()) ** (1.0 / (p - 1.0))
    return point / entrywise(point, p)
