r"""Norms in other coordinates: :math:`\|A^{1/2} W B^{1/2}\|`.

With :math:`X = A^{1/2} W B^{1/2}` margins are :math:`(A^{-1/2}\delta)^\top X (B^{-1/2}z)`: the problem is the base
norm's own with transformed tokens and queries, whatever method solves that. A and B may be inverse covariances, so that
the norm does not depend on the coordinates of the data. The dual norm of M is the base's of
:math:`A^{-1/2} M B^{-1/2}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

import numpy as np

from attsvm.core.interop import to_numpy
from attsvm.core.norms.exponents import fractions
from attsvm.core.norms.faces import orthonormal
from attsvm.core.norms.norm import Exact, Norm, Smooth

# An eigenvalue below this part of the largest is rounding: the form is not definite.
DEFINITE = 1e-14


class Mahalanobis(Norm):
    """A norm of A^(1/2) W B^(1/2).

    Parameters
    ----------
    A : array_like, shape (d, d), or None
        Symmetric positive definite; None for the identity.
    B : array_like, shape (dz, dz), or None
        The same for the queries.
    base : Norm, str or float
        The norm that is taken; default Frobenius.

    Raises
    ------
    ValueError
        If a matrix is not symmetric positive definite, or the base is no norm.

    Examples
    --------
    >>> from attsvm import SelectionProblem, norms, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[1.0, 0.0]], [0])
    >>> solution = solve(problem, norms.Mahalanobis(A=[[1.0, 0.0], [0.0, 4.0]]))
    >>> solution.W.round(6)
    array([[0.230769, 0.      ],
           [0.076923, 0.      ]])
    """

    def __init__(self, A: object = None, B: object = None, base: Norm | str | float = "frobenius") -> None:
        from attsvm.core.norms.lookup import get_norm

        self._left, self._left_inverse = (None, None) if A is None else _roots("A", A)
        self._right, self._right_inverse = (None, None) if B is None else _roots("B", B)
        self._set_base(get_norm(base))

    def _set_base(self, base: Norm) -> None:
        self._base = base
        self.name = f"mahalanobis {self._base.name}"
        self.smooth, self.euclidean = self._base.smooth, self._base.euclidean
        self.dual_resolution, self.leaves = self._base.dual_resolution, self._base.leaves

    @classmethod
    def from_roots(cls, left: np.ndarray | None, right: np.ndarray | None, base: Norm) -> Mahalanobis:
        """Make a norm from A^(1/2) and B^(1/2) themselves, as :attr:`roots` has them.

        Parameters
        ----------
        left : ndarray, shape (d, d), or None
        right : ndarray, shape (dz, dz), or None
        base : Norm

        Examples
        --------
        >>> from attsvm import norms
        >>> norm = norms.Mahalanobis(A=[[1.0, 0.0], [0.0, 4.0]])
        >>> norms.Mahalanobis.from_roots(*norm.roots, norm.inner) == norm
        True
        """
        norm = cls.__new__(cls)
        norm._left, norm._left_inverse = left, None if left is None else np.linalg.inv(left)
        norm._right, norm._right_inverse = right, None if right is None else np.linalg.inv(right)
        norm._set_base(base)
        return norm

    @property
    def roots(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """A^(1/2) and B^(1/2), each None for the identity."""
        return self._left, self._right

    @property
    def inner(self) -> Norm:
        """The norm that is taken of A^(1/2) W B^(1/2), which may be one in other coordinates again."""
        return self._base

    def seen(self, M: np.ndarray, *, dual: bool = False) -> np.ndarray:
        """Return M (d, dz) as the inner norm sees it: A^(1/2) M B^(1/2), with inverse roots for the dual.

        Examples
        --------
        >>> from attsvm import norms
        >>> norms.Mahalanobis(A=[[4.0]]).seen([[1.0]], dual=True)
        array([[0.5]])
        """
        left, right = (self._left_inverse, self._right_inverse) if dual else (self._left, self._right)
        return _times(left, M, right)

    def value(self, M: np.ndarray) -> float:
        """Evaluate the base norm of A^(1/2) M B^(1/2)."""
        return self._base.value(self.seen(M))

    def dual(self, M: np.ndarray) -> float:
        """Evaluate the base's dual norm of A^(-1/2) M B^(-1/2)."""
        return self._base.dual(self.seen(M, dual=True))

    def dual_of_parts(self, parts: Sequence[np.ndarray]) -> float:
        """Bound the base's dual norm by the parts in its coordinates."""
        return self._base.dual_of_parts([self.seen(part, dual=True) for part in parts])

    def growth(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Multiply the base's bound by what the matrices stretch."""
        roots = (self._left_inverse, self._right_inverse) if dual else (self._left, self._right)
        stretch = math.prod(float(np.linalg.norm(root, 2)) for root in roots if root is not None)
        return stretch * self._base.growth(shape, dual)

    def smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        """Smooth the norm; see :class:`attsvm.core.norms.norm.Norm`."""
        p, r = V.shape
        left = np.eye(p) if self._left is None else self._left
        right = np.eye(r) if self._right is None else self._right
        inner = self._base.smoothing(left @ V @ right, mu)
        both = np.kron(left, right)
        parts = tuple((left @ part @ right, partial(_congruent, both, derivative)) for part, derivative in inner.parts)
        return Smooth(inner.value, left @ inner.gradient @ right, lambda: both @ inner.hessian @ both, parts)

    def roundings(self, shape: tuple[int, int], dual: bool = False) -> float:
        r"""Add to those of the base what the products with two matrices round.

        :math:`|fl(LM) - LM| \le \gamma_d |L||M|`, so each moves the product by :math:`\gamma_d\sqrt d\,\|L\|
        \|L^{-1}\|` times its length; the base makes of a length at most its growth and of that, in proportion to the
        norm itself, its growth times the dual's (Higham, chapter 3).
        """
        stretch = math.prod(
            float(np.linalg.norm(root, 2) * np.linalg.norm(inverse, 2))
            for root, inverse in ((self._left, self._left_inverse), (self._right, self._right_inverse))
            if root is not None and inverse is not None
        )
        # Roots and their inverses are rounded as well, to about as much.
        error = 4.0 * (sum(shape) + 8) * math.sqrt(max(shape)) * stretch
        spread = self._base.growth(shape) * self._base.growth(shape, True)
        return self._base.roundings(shape, dual) + error * spread

    def exact_bound(self, M: np.ndarray, exact: Exact, dual: bool = False) -> Fraction | None:
        r"""Multiply exactly; L and R are the floats that the roots are.

        The dual norm takes :math:`L^{-\top} M R^{-\top}`, while the floats for the inverses have :math:`L^\top L' =
        I - E` with a small E: :math:`L^{-\top} = L'(I - E)^{-1}`, so that they miss by at most
        :math:`\|L'\|\|M\|\|R'\|(\tfrac{1}{(1-e)(1-f)} - 1)` in length, which the base's growth turns into its norm.
        """
        roots = (self._left_inverse, self._right_inverse) if dual else (self._left, self._right)
        left, right = (None if root is None else fractions(root) for root in roots)
        bound = exact.norm(self._base, _times(left, M, right), dual)
        if not dual:
            return bound
        missing, room = exact.power([abs(a) for a in M.ravel().tolist()], 2.0), Fraction(1)
        for root, inverse in ((self._left, self._left_inverse), (self._right, self._right_inverse)):
            if root is not None and inverse is not None:
                close = fractions(root).T @ fractions(inverse) - np.eye(len(root), dtype=int)
                room *= 1 - sum((abs(a) for a in close.ravel().tolist()), Fraction(0))
                missing *= exact.power([abs(a) for a in fractions(inverse).ravel().tolist()], 2.0)
        if room <= 0:
            return None
        return bound + missing * (1 / room - 1) * Fraction(2.0 * self._base.growth(M.shape, True))

    def _corner(self, G: np.ndarray, tolerance: float, dual: bool, point: np.ndarray | None) -> np.ndarray:
        inner = None if point is None else self.seen(point)
        rows = self._base.face(self.seen(G, dual=not dual), tolerance, dual=dual, point=inner)
        images = [self.seen(row.reshape(G.shape), dual=not dual).ravel() for row in rows]
        return orthonormal(np.array(images).reshape(-1, G.size))

    def dual_on_face(self, G: np.ndarray, V: np.ndarray, tolerance: float) -> float:
        """Bound the base's dual norm."""
        return self._base.dual_on_face(self.seen(G, dual=True), self.seen(V), tolerance)

    def of_tensor(self, W: Any) -> Any:
        """Evaluate the base norm of the tensor in the other coordinates."""
        left, right = (None if root is None else W.new_tensor(root) for root in self.roots)
        return self._base.of_tensor(_times(left, W, right))

    def words(self) -> list[Any]:
        """Name the roots and the base, as far as they are not the identity."""
        words: Any = self._base.words()
        for side, root in (("right", self._right), ("left", self._left)):
            words = words if root is None else [side, root, words]
        return words

    def evidence(self, M: np.ndarray, *, dual: bool = False) -> list[Any] | None:
        """Return the base's, in its coordinates."""
        return self._base.evidence(self.seen(M, dual=dual), dual=dual)

    def mismatch(self, shape: tuple[int, int]) -> str | None:
        """Compare the shapes of A and B with that of W."""
        for name, root, size in (("A", self._left, shape[0]), ("B", self._right, shape[1])):
            if root is not None and len(root) != size:
                return f"{name} has shape {root.shape}; {(size, size)} was expected for W of shape {shape}."
        return self._base.mismatch(shape)

    @property
    def base(self) -> Norm:
        """The norm of A^(1/2) W B^(1/2)."""
        return self._base.base

    @cached_property
    def transform(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """A^(-1/2) and B^(-1/2), each None for the identity, then what the base itself transforms."""
        inner = self._base.transform
        return _product(self._left_inverse, inner[0]), _product(self._right_inverse, inner[1])

    @cached_property
    def _key(self) -> Hashable:
        roots = (None if root is None else root.tobytes() for root in (self._left, self._right))
        return (self.name, self._base, *roots)


def _roots(name: str, matrix: object) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric square root and its inverse."""
    array = to_numpy(name, matrix).astype(np.float64)
    square = array.ndim == 2 and array.shape[0] == array.shape[1] and bool(np.isfinite(array).all())
    symmetric = square and bool(np.abs(array - array.T).max() <= 1e-10 * np.abs(array).max())
    values, vectors = np.linalg.eigh(0.5 * (array + array.T)) if symmetric else (np.zeros(1), np.eye(1))
    if not values[0] > DEFINITE * values[-1]:
        raise ValueError(f"{name} has shape {array.shape}; a symmetric positive definite matrix was expected.")
    root = np.sqrt(values)
    return (vectors * root) @ vectors.T, (vectors / root) @ vectors.T


def _congruent(both: np.ndarray, derivative: Callable[[np.ndarray], np.ndarray], step: np.ndarray) -> np.ndarray:
    return both @ derivative(both @ step)


def _times(left: Any, M: Any, right: Any) -> Any:
    M = M if left is None else left @ M
    return M if right is None else M @ right


def _product(outer: np.ndarray | None, inner: np.ndarray | None) -> np.ndarray | None:
    """Product of two matrices, None standing for the identity."""
    if outer is None or inner is None:
        return inner if outer is None else outer
    return outer @ inner
