r"""Norms in other coordinates: :math:`\|A^{1/2} W B^{1/2}\|`.

Let :math:`X = A^{1/2} W B^{1/2}`. Margins are :math:`(A^{-1/2}\delta)^\top X (B^{-1/2}z)`, so every method solves the
base norm's problem with transformed tokens and queries. If A and B are inverse covariances, the norm does not depend on
the coordinates of the data. The dual norm of M is the base's dual norm of :math:`A^{-1/2} M B^{-1/2}`. Methods use the
roots as floats; every bound counts their rounding (:mod:`attsvm.core.norms.square_root`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from attsvm.core.error_free import UNIT, Pair, gamma, product
from attsvm.core.norms.faces import orthonormal
from attsvm.core.norms.norm import Norm
from attsvm.core.norms.smoothing import Smooth
from attsvm.core.norms.square_root import ROOT_DRIFT, SquareRoot


class Mahalanobis(Norm, families={"coordinates": ""}):
    """A norm of A^(1/2) W B^(1/2).

    Parameters
    ----------
    A : array_like, shape (d, d), or None
        Symmetric positive definite; None for the identity.
    B : array_like, shape (dz, dz), or None
        Symmetric positive definite, for the coordinates of the queries; None for the identity.
    base : Norm, str or float
        The norm of A^(1/2) W B^(1/2); default Frobenius.

    Raises
    ------
    ValueError
        If a matrix is not symmetric positive definite, or the base is not a norm.

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

        self._left = None if A is None else SquareRoot.of("A", A)
        self._right = None if B is None else SquareRoot.of("B", B)
        self._base = get_norm(base)
        self.name = f"mahalanobis {self._base.name}"
        self.smooth, self.euclidean = self._base.smooth, self._base.euclidean
        self.dual_resolution, self.leaves = self._base.dual_resolution, self._base.leaves

    @property
    def forms(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """A and B, each None for the identity."""
        return self._left and self._left.form, self._right and self._right.form

    @property
    def inner(self) -> Norm:
        """The norm of A^(1/2) W B^(1/2), which may itself be a norm in other coordinates."""
        return self._base

    def seen(self, M: np.ndarray, *, dual: bool = False) -> np.ndarray:
        """Return M (d, dz) in the inner norm's coordinates: A^(1/2) M B^(1/2), with inverse roots for the dual.

        Examples
        --------
        >>> from attsvm import norms
        >>> norms.Mahalanobis(A=[[4.0]]).seen([[1.0]], dual=True)
        array([[0.5]])
        """
        left, right = self._floats(dual)
        return _times(left, M, right)

    def _floats(self, dual: bool) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Roots, or their inverses, in floats."""
        left, right = (None if side is None else side.factor(dual).high for side in (self._left, self._right))
        return left, right

    def value(self, M: np.ndarray) -> float:
        """Evaluate the base norm of A^(1/2) M B^(1/2)."""
        return self._base.value(self.seen(M))

    def dual(self, M: np.ndarray) -> float:
        """Evaluate the base's dual norm of A^(-1/2) M B^(-1/2)."""
        return self._base.dual(self.seen(M, dual=True))

    def dual_of_parts(self, parts: Sequence[np.ndarray]) -> float:
        """Bound the base's dual norm by the matrices in its coordinates."""
        return self._base.dual_of_parts([self.seen(part, dual=True) for part in parts])

    def growth(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Multiply the base's bound by the spectral norms of the matrices."""
        stretch = math.prod(side.reach(dual) for side in self._sides)
        return stretch * self._base.growth(shape, dual)

    def smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        """Smooth the norm; see :class:`attsvm.core.norms.norm.Norm`."""
        left, right = self._floats(False)
        inner = self._base.smoothing(_times(left, V, right), mu)
        parts = tuple(
            (_times(left, part, right), partial(_seen_derivative, left, right, V.shape, derivative))
            for part, derivative in inner.parts
        )
        return Smooth(
            inner.value,
            _times(left, inner.gradient, right),
            lambda: _congruent(left, inner.hessian, right, V.shape),
            parts,
        )

    @property
    def _sides(self) -> list[SquareRoot]:
        return [side for side in (self._left, self._right) if side is not None]

    def roundings(self, shape: tuple[int, int], dual: bool = False) -> float:
        r"""Add the errors of the floating-point roots and of products with them to the base's roundings.

        Replacing a factor :math:`F` by :math:`F(I + N)`, on either side, changes an image X by at most
        :math:`(1/\prod(1 - \|N\|) - 1)\|X\|`. A product :math:`fl(FM)` has an error of at most :math:`\gamma_d|F||M|`,
        hence at most :math:`\gamma_d\sqrt d\|F\|\|M\|` (Higham, chapter 3). The length of M is at most the length of
        the image times the norms of the inverses. The base turns an error of length l into at most its growth times l;
        relative to the norm itself this is its growth times the dual's growth.
        """
        sides = self._sides
        stretch = math.prod(side.reach(dual) * side.reach(not dual) for side in sides)
        room = math.prod(1.0 - side.drift_of(dual, rounded=True) for side in sides)
        products = sum(gamma(len(side.form) + 2) * math.sqrt(len(side.form)) for side in sides)
        error = (1.0 / room - 1.0 + products * stretch * (1 + ROOT_DRIFT)) / UNIT if room > 0 else math.inf
        spread = self._base.growth(shape) * self._base.growth(shape, True)
        return self._base.roundings(shape, dual) + 2.0 * error * spread

    def image(self, M: np.ndarray, dual: bool) -> tuple[Norm, Pair, float]:
        """Multiply in twice the working precision; see :meth:`attsvm.core.norms.norm.Norm.image`."""
        pair, error, drift = Pair(M, np.zeros(M.shape)), 0.0, 0.0
        for side, is_left in ((self._left, True), (self._right, False)):
            if side is not None:
                factor = side.factor(dual)
                pair, rounding = product(factor, pair) if is_left else product(pair, factor)
                error = (error * side.reach(dual) + rounding) * (1 + ROOT_DRIFT)
                drift += side.drift_of(dual, rounded=False)
        # Drifts a and b are below ROOT_DRIFT, so that 1/((1 - a)(1 - b)) - 1 hardly exceeds their sum.
        error += drift * (1 + 8 * ROOT_DRIFT) * (float(np.linalg.norm(pair.high)) * (1 + ROOT_DRIFT) + error)
        return self._base, pair, float(error)

    def _corner(self, G: np.ndarray, tolerance: float, dual: bool, point: np.ndarray | None) -> np.ndarray:
        inner = None if point is None else self.seen(point)
        rows = self._base.face(self.seen(G, dual=not dual), tolerance, dual=dual, point=inner)
        images = [self.seen(row.reshape(G.shape), dual=not dual).ravel() for row in rows]
        return orthonormal(np.array(images).reshape(-1, G.size))

    def dual_on_face(self, G: np.ndarray, V: np.ndarray, tolerance: float) -> float:
        """Bound the base's dual norm in its coordinates."""
        return self._base.dual_on_face(self.seen(G, dual=True), self.seen(V), tolerance)

    def of_tensor(self, W: Any) -> Any:
        """Evaluate the base norm of the tensor in the other coordinates."""
        left, right = (None if root is None else W.new_tensor(root) for root in self._floats(False))
        return self._base.of_tensor(_times(left, W, right))

    def words(self) -> list[Any]:
        """Name the roots of A and B, and the base."""
        return ["coordinates", self._left, self._right, self._base]

    def evidence(self, M: np.ndarray, *, dual: bool = False) -> list[Any] | None:
        """Return the evidence of the base, in its coordinates."""
        return self._base.evidence(self.image(M, dual)[1].rounded(), dual=dual)

    def mismatch(self, shape: tuple[int, int]) -> str | None:
        """Compare the shapes of A and B with the shape of W."""
        for name, form, size in zip("AB", self.forms, shape, strict=True):
            if form is not None and len(form) != size:
                return f"{name} has shape {form.shape}; {(size, size)} was expected for W of shape {shape}."
        return self._base.mismatch(shape)

    @property
    def base(self) -> Norm:
        """The norm of A^(1/2) W B^(1/2)."""
        return self._base.base

    @cached_property
    def transform(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """A^(-1/2) and B^(-1/2), each None for the identity, times the transform of the base."""
        (left, right), inner = self._floats(True), self._base.transform
        return _product(left, inner[0]), _product(right, inner[1])

    @cached_property
    def _key(self) -> Hashable:
        forms = (None if form is None else form.tobytes() for form in self.forms)
        return (self.name, self._base, *forms)


def _seen_derivative(
    left: np.ndarray | None,
    right: np.ndarray | None,
    shape: tuple[int, int],
    derivative: Callable[[np.ndarray], np.ndarray],
    step: np.ndarray,
) -> np.ndarray:
    """Differentiate in the base's coordinates along a step (p r,)."""
    seen = derivative(_times(left, step.reshape(shape), right).ravel())
    return _times(left, seen.reshape(shape), right).ravel()


def _congruent(
    left: np.ndarray | None, hessian: np.ndarray, right: np.ndarray | None, shape: tuple[int, int]
) -> np.ndarray:
    """Multiply a Hessian (p r, p r) by the symmetric Kronecker product of left and right on both sides.

    One factor at a time costs :math:`(p r)^2 (p + r)`; the product itself costs :math:`(p r)^3`.
    """
    for _ in range(2):
        hessian = _times(left, hessian.T.reshape(shape[0], -1), None)
        hessian = hessian.reshape(*shape, -1)
        hessian = (hessian if right is None else right @ hessian).reshape(len(hessian) * shape[1], -1)
    return hessian


def _times(left: Any, M: Any, right: Any) -> Any:
    M = M if left is None else left @ M
    return M if right is None else M @ right


def _product(outer: np.ndarray | None, inner: np.ndarray | None) -> np.ndarray | None:
    """Product of two matrices, None standing for the identity."""
    if outer is None or inner is None:
        return inner if outer is None else outer
    return outer @ inner
