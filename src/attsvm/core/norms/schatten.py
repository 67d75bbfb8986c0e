r"""Norms of the singular values: Schatten-p, from the nuclear (p = 1) to the spectral norm (p = infinity).

The dual of a symmetric gauge of the singular values is the dual gauge of the singular values (von Neumann; Bhatia,
*Matrix Analysis*, theorem IV.2.11). Schatten-p and Schatten-q are therefore dual for 1/p + 1/q = 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attsvm.core.norms.entrywise import Entrywise
from attsvm.core.norms.exponents import exponent
from attsvm.core.norms.faces import nuclear_face, spectral_face
from attsvm.core.norms.frobenius import FROBENIUS
from attsvm.core.norms.norm import Norm
from attsvm.core.norms.smoothing import Smooth, spectral_smoothing


def singular_values(M: np.ndarray) -> np.ndarray:
    """Singular values (min(d, dz),) of M (d, dz); infinite if an entry is not finite."""
    return np.linalg.svd(M, compute_uv=False) if np.isfinite(M).all() else np.full(min(M.shape), math.inf)


def nuclear(M: np.ndarray) -> float:
    """Sum of the singular values."""
    return float(singular_values(M).sum())


def spectral(M: np.ndarray) -> float:
    """Largest singular value."""
    return float(singular_values(M)[0])


class SingularValueNorm(Norm):
    """A symmetric entrywise norm of the singular values.

    ``profile`` is the entrywise norm.
    """

    invariant = True

    def __init__(self, name: str, profile: Norm) -> None:
        self.name, self._profile = name, profile
        self.smooth = profile.smooth

    @property
    def profile(self) -> Norm:
        """The entrywise norm of the singular values, as a row."""
        return self._profile

    def value(self, M: np.ndarray) -> float:
        """Evaluate the norm of the singular values."""
        return self._profile.value(singular_values(M)[None])

    def dual(self, M: np.ndarray) -> float:
        """Evaluate the dual norm of the singular values."""
        return self._profile.dual(singular_values(M)[None])

    def growth(self, shape: tuple[int, int], dual: bool = False) -> float:
        """Compare the norm of the singular values with their l_2 norm."""
        return self._profile.growth((1, min(shape)), dual)

    def smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        """Smooth the norm; see :class:`attsvm.core.norms.norm.Norm`."""
        return spectral_smoothing(self._profile.smoothing, V, mu)

    def _corner(self, G: np.ndarray, tolerance: float, dual: bool, point: np.ndarray | None) -> np.ndarray:
        return (nuclear_face if (self._profile.power == 1) != dual else spectral_face)(G, tolerance)

    def nearest(self, X: np.ndarray) -> np.ndarray | None:
        """Project the singular values."""
        U, sigma, Vt = np.linalg.svd(X, full_matrices=False)
        nearest = self._profile.nearest(sigma[None])
        return None if nearest is None else (U * nearest) @ Vt

    def of_tensor(self, W: Any) -> Any:
        """Evaluate the norm of a tensor's singular values."""
        return self._profile.of_tensor(_of_tensor(W).unsqueeze(-2))

    def words(self) -> list[Any]:
        """Name the exponent of the singular values' norm."""
        return ["schatten", self._profile.power]

    def evidence(self, M: np.ndarray, *, dual: bool = False) -> list[Any]:
        """Return the singular vectors, as two matrices (d, d) and (dz, dz) of columns."""
        U, _, Vt = np.linalg.svd(M)
        return [U, Vt.T]


def _of_tensor(W: Any) -> Any:
    from torch import linalg

    return linalg.svdvals(W)


class _NamedNorm(SingularValueNorm):
    """A norm with a name; only one instance exists."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _singular_norm, (self.name,)


NUCLEAR = _NamedNorm("nuclear", Entrywise(1.0))
SPECTRAL = _NamedNorm("spectral", Entrywise(math.inf))


def _singular_norm(name: str) -> Norm:
    return NUCLEAR if name == NUCLEAR.name else SPECTRAL


class Schatten(SingularValueNorm, families={"schatten": "p"}):
    """The l_p norm of the singular values.

    Parameters
    ----------
    p : float
        In [1, inf]: 1 is the nuclear norm, 2 the Frobenius norm, infinity the spectral norm.

    Raises
    ------
    ValueError
        If p is below one.

    Examples
    --------
    >>> from attsvm import SelectionProblem, norms, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[1.0, 0.0]], [0])
    >>> round(solve(problem, norms.Schatten(1.5)).objective, 6)
    0.2
    """

    def __init__(self, p: float) -> None:
        self.p = exponent("p", p)
        super().__init__(f"schatten-{self.p:.17g}", Entrywise(self.p))

    @property
    def canonical(self) -> Norm:
        """The named norm for p = 1, 2 and infinity."""
        return {1.0: NUCLEAR, 2.0: FROBENIUS, math.inf: SPECTRAL}.get(self.p, self)
