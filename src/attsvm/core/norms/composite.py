r"""The sum of two norms, and the maximum of two norms.

The unit ball of the dual is the sum of the two dual balls for a sum, and their convex hull for a maximum (Rockafellar,
*Convex Analysis*, theorem 16.4 and corollary 16.4.1):

.. math:: \|M\|_{(a+b)*} = \min_{M_1+M_2=M} \max(\|M_1\|_{a*}, \|M_2\|_{b*}), \qquad
   \|M\|_{\max(a,b)*} = \min_{M_1+M_2=M} \|M_1\|_{a*} + \|M_2\|_{b*}.

Any split bounds the dual norm from above, as a certificate needs. :mod:`attsvm.core.norms.splitting` finds a split that
is optimal to about 1e-11, for nested compositions in one minimisation.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from attsvm.core.error_free import UNIT
from attsvm.core.norms.faces import common_span, orthonormal
from attsvm.core.norms.lookup import get_norm
from attsvm.core.norms.norm import Norm
from attsvm.core.norms.smoothing import Smooth, largest_smoothing
from attsvm.core.norms.splitting import Splits, keep, optimal_split, rough_split, split_after

# Largest relative distance of the computed split from an optimal one.
SPLIT = 1e-5
# Relative difference of the bounds from two runs: rounding hides which of several nearby faces W lies on.
BOUND_RESOLUTION = 1e-9


class _Composite(Norm):
    """A composition of two norms."""

    def __init__(self, a: Norm | str | float, b: Norm | str | float) -> None:
        self.a, self.b = get_norm(a), get_norm(b)
        self.leaves = self.a.leaves + self.b.leaves
        self.dual_resolution = BOUND_RESOLUTION
        self.name = f"{self._word} of {self.a.name} and {self.b.name}"
        self.invariant = self.a.invariant and self.b.invariant

    _word = ""

    @abstractmethod
    def _combine(self, first: float, second: float) -> float:
        """Combine the parts' values."""

    @abstractmethod
    def _combine_dual(self, first: float, second: float) -> float:
        """Combine the dual norms of the two parts of a split."""

    def value(self, M: np.ndarray) -> float:
        """Evaluate the norm."""
        return self._combine(self.a.value(M), self.b.value(M))

    def split(self, M: np.ndarray, slack: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Split M (d, dz) into two matrices that bound the dual norm from above, to a relative ``slack``."""
        if not M.any():
            return M, M
        first = sum(optimal_split(self, M, self.profile, slack=slack)[: self.a.leaves], np.zeros(M.shape))
        return first, M - first

    def dual_of_parts(self, parts: Sequence[np.ndarray]) -> float:
        """Combine the bounds of both norms, each from the matrices of its leaves."""
        count = self.a.leaves
        return self._combine_dual(self.a.dual_of_parts(parts[:count]), self.b.dual_of_parts(parts[count:]))

    def dual(self, M: np.ndarray) -> float:
        """Bound the dual norm from above by a split: optimal up to rounding, or the best found when time ran out."""

        def split() -> Splits:
            parts = optimal_split(self, M, self.profile)
            keep(self, parts)
            return parts

        return self._dual_by(M, split)

    def dual_near(self, M: np.ndarray, V: np.ndarray) -> float:
        """Bound the dual norm by a split from the gradients of smoothings at V."""
        return self._dual_by(M, lambda: rough_split(self, M, V))

    def dual_after(self, M: np.ndarray, smooth: Smooth, step: np.ndarray) -> float:
        """Bound the dual norm by splitting M as the smoothing's gradient splits: cheap, and optimal in the limit."""
        parts = [part + derivative(step.ravel()).reshape(M.shape) for part, derivative in smooth.leaves]
        return self._dual_by(M, lambda: split_after(self, M, parts))

    def _dual_by(self, M: np.ndarray, split: Callable[[], Sequence[np.ndarray]]) -> float:
        if not M.any():
            return 0.0
        return self.dual_of_parts(split()) if np.isfinite(M).all() else math.inf

    def growth(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Combine the bounds of both norms; giving all of M to one norm is a split."""
        first, second = self.a.growth(shape, dual), self.b.growth(shape, dual)
        return min(first, second) if dual else self._combine(first, second)

    def roundings(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Take the larger count of the two norms plus one sum; the dual adds the rounding of the split."""
        larger = max(self.a.roundings(shape, dual), self.b.roundings(shape, dual))
        return larger + 1 + (math.prod(shape) if dual else 0)

    def mismatch(self, shape: tuple[int, int]) -> str | None:
        """Check the arrays of both norms against the shape of W."""
        return self.a.mismatch(shape) or self.b.mismatch(shape)

    @abstractmethod
    def _dual_face(self, parts: list[np.ndarray], V: np.ndarray, tolerance: float) -> np.ndarray:
        """Directions of a face of the dual ball that V exposes, from the directions of both norms."""

    @abstractmethod
    def _common_face(self, G: np.ndarray, shares: list[np.ndarray], V: np.ndarray, room: float) -> np.ndarray:
        """Directions of the face of G that contains V, from the matrices of a split."""

    @abstractmethod
    def _hull(self, anchor: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Point and directions of the affine set of one matrix of a split, from a subdifferential."""

    def _one_face(self, G: np.ndarray, V: np.ndarray, tolerance: float) -> np.ndarray | None:
        """Directions of the face if one norm alone determines it; otherwise None."""
        return None

    def _corner(self, G: np.ndarray, tolerance: float, dual: bool, point: np.ndarray | None) -> np.ndarray:
        if dual:
            return self._dual_face([part.face(G, tolerance, dual=True) for part in (self.a, self.b)], G, tolerance)
        if point is None:
            raise ValueError(f"point is None for norm {self.name!r}; a point of the face was expected.")
        G, V = G * (self.value(point) / float((G * point).sum())), point / self.value(point)
        face = self._one_face(G, V, tolerance)
        if face is not None:
            return face
        shares = self._shares(G, V, tolerance)
        error = float(np.linalg.norm(G - shares[0] - shares[1]) / np.linalg.norm(G))
        if error > SPLIT:
            raise ValueError(
                f"point misses the faces that G exposes by {error:.1e}; at most {SPLIT}, as at a small gap, was "
                "expected."
            )
        return self._common_face(G, shares, V, max(tolerance, SPLIT))

    def _shares(self, G: np.ndarray, V: np.ndarray, tolerance: float) -> list[np.ndarray]:
        """Split G between multiples of the affine hulls of both subdifferentials at V, as the minimisation does."""
        shares, hulls = [], []
        for part, guess in zip((self.a, self.b), self.split(G, BOUND_RESOLUTION), strict=True):
            gradient = part.smoothing(V, UNIT * np.abs(V).max()).gradient.reshape(1, -1)
            anchor, hull = self._hull(gradient, part.face(V, tolerance, dual=True))
            hulls.append(hull)
            shares.append(anchor + (guess.reshape(1, -1) - anchor) @ hull.T @ hull)
        system = np.concatenate(hulls)
        missing = (G.reshape(1, -1) - shares[0] - shares[1])[0]
        weights = np.linalg.lstsq(system.T, missing, rcond=SPLIT)[0]
        first = shares[0] + weights[: len(hulls[0])] @ hulls[0]
        second = shares[1] + weights[len(hulls[0]) :] @ hulls[1]
        return [first.reshape(G.shape), second.reshape(G.shape)]

    def dual_on_face(self, G: np.ndarray, V: np.ndarray, tolerance: float) -> float:
        """Bound the dual norm by the split that V determines."""
        scale = self.value(V) / float((G * V).sum())
        first, _ = self._shares(G * scale, V / self.value(V), tolerance)
        sizes = self.a.dual_on_face(first, V, tolerance), self.b.dual_on_face(G * scale - first, V, tolerance)
        return self._combine_dual(*sizes) / scale

    def words(self) -> list[Any]:
        """Name the composition and both norms."""
        return [self._word, self.a, self.b]

    def evidence(self, M: np.ndarray, *, dual: bool = False) -> list[Any]:
        """Return the first matrix of a split, for the dual, and the evidence of both norms."""
        first, second = self.split(M) if dual else (M, M)
        return [first if dual else None, self.a.evidence(first, dual=dual), self.b.evidence(second, dual=dual)]

    @cached_property
    def profile(self) -> Norm | None:
        """The same composition of the profiles if both norms are invariant."""
        first, second = self.a.profile, self.b.profile
        return None if first is None or second is None else type(self)(first, second)

    @cached_property
    def _key(self) -> Hashable:
        return self._word, self.a, self.b


class Sum(_Composite, families={"sum": ""}):
    """The sum of two norms.

    Parameters
    ----------
    a, b : Norm, str or float
        Accepted as ``norm`` by :func:`attsvm.solve`.

    Examples
    --------
    >>> from attsvm import SelectionProblem, norms, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[1.0, 0.0]], [0])
    >>> round(solve(problem, norms.Sum("frobenius", "nuclear")).objective, 6)
    0.4
    """

    _word = "sum"

    def _combine(self, first: float, second: float) -> float:
        return first + second

    def _combine_dual(self, first: float, second: float) -> float:
        return max(first, second)

    def of_tensor(self, W: Any) -> Any:
        """Add the norms of a tensor."""
        return self.a.of_tensor(W) + self.b.of_tensor(W)

    def _dual_face(self, parts: list[np.ndarray], V: np.ndarray, tolerance: float) -> np.ndarray:
        return orthonormal(np.concatenate(parts))

    def _hull(self, anchor: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return anchor, directions

    def _one_face(self, G: np.ndarray, V: np.ndarray, tolerance: float) -> np.ndarray | None:
        return np.empty((0, G.size)) if self.a.smooth or self.b.smooth else None

    def _common_face(self, G: np.ndarray, shares: list[np.ndarray], V: np.ndarray, room: float) -> np.ndarray:
        spans = [part.face(share, room, point=V) for part, share in zip((self.a, self.b), shares, strict=True)]
        first, second = (orthonormal(np.concatenate([V.reshape(1, -1), span])) for span in spans)
        cone = common_span(first, second, room)
        return np.linalg.svd((cone @ G.ravel()).reshape(1, -1))[2][1:] @ cone

    def smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        """Smooth the norm; see :class:`attsvm.core.norms.norm.Norm`."""
        first, second = self.a.smoothing(V, mu), self.b.smoothing(V, mu)
        gradient = first.gradient + second.gradient
        return Smooth(
            first.value + second.value, gradient, lambda: first.hessian + second.hessian, first.leaves + second.leaves
        )


class Largest(_Composite, families={"largest": ""}):
    """The maximum of two norms.

    Parameters
    ----------
    a, b : Norm, str or float
        Accepted as ``norm`` by :func:`attsvm.solve`.

    Examples
    --------
    >>> from attsvm import SelectionProblem, norms, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[1.0, 0.0]], [0])
    >>> round(solve(problem, norms.Largest("frobenius", 1)).objective, 6)
    0.25
    """

    _word = "largest"

    def _combine(self, first: float, second: float) -> float:
        return max(first, second)

    def _combine_dual(self, first: float, second: float) -> float:
        return first + second

    def of_tensor(self, W: Any) -> Any:
        """Maximum of the norms of a tensor."""
        return self.a.of_tensor(W).maximum(self.b.of_tensor(W))

    def _dual_face(self, parts: list[np.ndarray], V: np.ndarray, tolerance: float) -> np.ndarray:
        sizes = self.a.value(V), self.b.value(V)
        if abs(sizes[0] - sizes[1]) > tolerance * max(sizes):
            return parts[0] if sizes[0] > sizes[1] else parts[1]
        # The gradient of a smoothing lies in the dual ball, and in the limit on the face.
        first, second = (part.smoothing(V, tolerance**2 * np.abs(V).max()).gradient for part in (self.a, self.b))
        return orthonormal(np.concatenate([*parts, (first - second).reshape(1, -1)]))

    def _hull(self, anchor: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # For a maximum, any multiple of the subdifferential is allowed.
        return np.zeros_like(anchor), orthonormal(np.concatenate([directions, anchor]))

    def _one_face(self, G: np.ndarray, V: np.ndarray, tolerance: float) -> np.ndarray | None:
        sizes = self.a.value(V), self.b.value(V)
        if min(sizes) >= 1 - tolerance:
            return None
        return (self.a if sizes[0] >= sizes[1] else self.b).face(G, tolerance, point=V)

    def _common_face(self, G: np.ndarray, shares: list[np.ndarray], V: np.ndarray, room: float) -> np.ndarray:
        spans = [
            part.face(share, room, point=V)
            for part, share in zip((self.a, self.b), shares, strict=True)
            if float((share * V).sum()) > room
        ]
        return spans[0] if len(spans) == 1 else common_span(spans[0], spans[1], room)

    def smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        """Smooth the norm; see :class:`attsvm.core.norms.norm.Norm`."""
        return largest_smoothing(self.a.smoothing(V, mu), self.b.smoothing(V, mu), mu)
