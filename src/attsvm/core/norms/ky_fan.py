r"""Ky Fan norms: the sum of the k largest singular values.

The dual norm is :math:`\max(\sigma_1, \tfrac1k\sum\sigma_i)` (Bhatia, *Matrix Analysis*, section IV.2).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.core.norms.entrywise import LargestEntries
from attsvm.core.norms.faces import nuclear_face, orthonormal, spectral_face, symmetric_directions
from attsvm.core.norms.norm import Norm
from attsvm.core.norms.schatten import SPECTRAL, SingularValueNorm


class KyFan(SingularValueNorm, families={"ky-fan": "k"}):
    """The sum of the k largest singular values.

    Parameters
    ----------
    k : int
        1 gives the spectral norm; min(d, dz) or more gives the nuclear norm.

    Raises
    ------
    ValueError
        If k is not a positive integer.

    Examples
    --------
    >>> from attsvm import SelectionProblem, norms, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[1.0, 0.0]], [0])
    >>> round(solve(problem, norms.KyFan(2)).objective, 6)
    0.2
    """

    def __init__(self, k: int) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"k is {k!r}; a positive integer was expected.")
        self.k = k
        super().__init__(f"ky-fan-{k}", LargestEntries(k))

    def _corner(self, G: np.ndarray, tolerance: float, dual: bool, point: np.ndarray | None) -> np.ndarray:
        k = min(self.k, *G.shape)
        U, sigma, Vt = np.linalg.svd(G)
        room = tolerance * sigma[0]
        if dual:
            if sigma[k - 1] <= room:
                return spectral_face(G, tolerance)
            same = np.flatnonzero(np.abs(sigma - sigma[k - 1]) <= room)
            return symmetric_directions(U[:, same], Vt[same]) if same[-1] >= k else np.empty((0, G.size))
        excess = sigma[0] - sigma.sum() / k
        parts = [nuclear_face(G, tolerance)] if excess >= -room else []
        parts += [spectral_face(G, tolerance)] if excess <= room else []
        if len(parts) == 2:
            step = np.outer(U[:, 0], Vt[0]) - U[:, : len(sigma)] @ Vt[: len(sigma)] / k
            parts.append(step.reshape(1, -1))
        return orthonormal(np.concatenate(parts))

    @classmethod
    def from_words(cls, word: str, *parts: Any) -> Norm:
        """Return the norm of a number k."""
        (k,) = parts
        return cls(int(k) if k.is_integer() else k)

    def words(self) -> list[Any]:
        """Name the norm and its number of singular values."""
        return ["ky-fan", self.k]

    @property
    def canonical(self) -> Norm:
        """The spectral norm for k = 1."""
        return SPECTRAL if self.k == 1 else self
