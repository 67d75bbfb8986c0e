r"""The sum of two norms, and the larger of the two.

For a sum the unit ball of the dual is the sum of the parts' dual balls, for the larger of the two it is their convex
hull (Rockafellar, *Convex Analysis*, theorem 16.4 and corollary 16.4.1):

.. math:: \|M\|_{(a+b)*} = \min_{M_1+M_2=M} \max(\|M_1\|_{a*}, \|M_2\|_{b*}), \qquad
   \|M\|_{\max(a,b)*} = \min_{M_1+M_2=M} \|M_1\|_{a*} + \|M_2\|_{b*}.

Any split bounds the dual norm from above, which is what a certificate needs; :mod:`attsvm.core.norms.splitting` finds
one that is optimal to some 1e-11.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Hashable
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

import numpy as np

from attsvm.core.norms.lookup import get_norm
from attsvm.core.norms.norm import Exact, Norm, Smooth, fractions
from attsvm.core.norms.smoothing import largest_smoothing
from attsvm.core.norms.splitting import optimal_split

Number = TypeVar("Number", float, Fraction)


class _Composite(Norm):
    """Two norms together.

    Parameters
    ----------
    a, b : Norm, str or float
    """

    def __init__(self, a: Norm | str | float, b: Norm | str | float) -> None:
        self.a, self.b = get_norm(a), get_norm(b)
        self.name = f"{self._word} of {self.a.name} and {self.b.name}"
        self.invariant = self.a.invariant and self.b.invariant

    _word = ""
    dual_resolution = 1e-11

    @abstractmethod
    def _combined(self, first: Number, second: Number) -> Number:
        """Combine the parts' values."""

    @abstractmethod
    def _dual_combined(self, first: Number, second: Number) -> Number:
        """Combine the dual norms of the two parts of a split."""

    def value(self, M: np.ndarray) -> float:
        """Evaluate the norm."""
        return self._combined(self.a.value(M), self.b.value(M))

    def split(self, M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Split M (d, dz) into two matrices that show how small the dual norm is."""
        profile = self.profile
        if profile is not None and min(M.shape) > 1:
            U, sigma, Vt = np.linalg.svd(M, full_matrices=False)
            assert isinstance(profile, _Composite)
            part = (U * optimal_split(profile, sigma[None], profile._dual_of)[0]) @ Vt
        else:
            part = optimal_split(self, M, self._dual_of)
        return part, M - part

    def _dual_of(self, first: np.ndarray, second: np.ndarray) -> float:
        return self._dual_combined(self.a.dual(first), self.b.dual(second))

    def dual(self, M: np.ndarray) -> float:
        """Bound the dual norm from above by a split that is optimal but for rounding."""
        if not M.any():
            return 0.0
        first, second = self.split(M)
        return self._dual_of(first, second)

    def dual_after(self, M: np.ndarray, smooth: Smooth, step: np.ndarray) -> float:
        """Split M as the gradient of the smoothing is: a bound that costs next to nothing, and optimal in the limit."""
        parts = [part + (bent @ step.ravel()).reshape(M.shape) for part, bent in smooth.parts]
        return min(self._dual_of(parts[0], M - parts[0]), self._dual_of(M - parts[1], parts[1]))

    def growth(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Combine the parts' bounds; one part alone is a split."""
        first, second = self.a.growth(shape, dual), self.b.growth(shape, dual)
        return min(first, second) if dual else self._combined(first, second)

    def exact_bound(self, M: np.ndarray, exact: Exact, dual: bool = False) -> Fraction | None:
        """Combine exact bounds of the parts; for the dual those of a split in floats, whose second part is exact."""
        if not dual:
            return self._combined(exact.norm(self.a, M, False), exact.norm(self.b, M, False))
        first = fractions(self.split(M.astype(np.float64))[0])
        return self._dual_combined(exact.norm(self.a, first, True), exact.norm(self.b, M - first, True))

    def roundings(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Add to the larger of the parts' one sum, and for the dual the rounding of the second part of a split."""
        larger = max(self.a.roundings(shape, dual), self.b.roundings(shape, dual))
        return larger + 1 + (math.prod(shape) if dual else 0)

    def mismatch(self, shape: tuple[int, int]) -> str | None:
        """Compare the arrays of both norms with the shape of W."""
        return self.a.mismatch(shape) or self.b.mismatch(shape)

    @cached_property
    def profile(self) -> Norm | None:
        """For two invariant norms: the same composition of their profiles."""
        first, second = self.a.profile, self.b.profile
        return None if first is None or second is None else type(self)(first, second)

    @cached_property
    def _key(self) -> Hashable:
        return self._word, self.a, self.b


class Sum(_Composite):
    """The sum of two norms.

    Parameters
    ----------
    a, b : Norm, str or float
        What :func:`attsvm.solve` takes as ``norm``.

    Examples
    --------
    >>> from attsvm import SelectionProblem, norms, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[1.0, 0.0]], [0])
    >>> round(solve(problem, norms.Sum("frobenius", "nuclear")).objective, 6)
    0.4
    """

    _word = "sum"

    def _combined(self, first: Number, second: Number) -> Number:
        return first + second

    def _dual_combined(self, first: Number, second: Number) -> Number:
        return max(first, second)

    def smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        """Smooth the norm; see :class:`attsvm.core.norms.norm.Norm`."""
        first, second = self.a.smoothing(V, mu), self.b.smoothing(V, mu)
        return Smooth(
            first.value + second.value,
            first.gradient + second.gradient,
            first.hessian + second.hessian,
            ((first.gradient, first.hessian), (second.gradient, second.hessian)),
        )


class Largest(_Composite):
    """The larger of two norms.

    Parameters
    ----------
    a, b : Norm, str or float
        What :func:`attsvm.solve` takes as ``norm``.

    Examples
    --------
    >>> from attsvm import SelectionProblem, norms, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[1.0, 0.0]], [0])
    >>> round(solve(problem, norms.Largest("frobenius", 1)).objective, 6)
    0.25
    """

    _word = "largest"

    def _combined(self, first: Number, second: Number) -> Number:
        return max(first, second)

    def _dual_combined(self, first: Number, second: Number) -> Number:
        return first + second

    def smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        """Smooth the norm; see :class:`attsvm.core.norms.norm.Norm`."""
        return largest_smoothing(self.a.smoothing(V, mu), self.b.smoothing(V, mu), mu)
