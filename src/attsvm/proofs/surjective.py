r"""Rigorous floating-point proof that a linear system has a solution, and how large it is.

Let M be a wide matrix and Y an approximate right inverse with :math:`\|I - MY\|_\infty = \eta < 1`. The system
:math:`Mx = b` then has the solution :math:`x = Y(MY)^{-1}b`, and :math:`\|(MY)^{-1}b\|_\infty \le \|b\|_\infty / (1 -
\eta)`. Each entry of M is known to a few roundings. Errors of products are at most :math:`\gamma_k |M||Y|` for every
order of summation (Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.core.error_free import UNIT, gamma

# Magnitude below which products may underflow, so that relative error bounds fail.
TINY = 1e-250
# Defect of a right inverse, or relative change of multipliers, up to which a proof is accepted.
SURE_DEFECT = 0.5


@dataclass(frozen=True, eq=False)
class RightInverse:
    """A matrix M (N, J) of full row rank, with rows scaled by powers of two, and an approximate right inverse Y.

    Attributes
    ----------
    M : ndarray, shape (N, J)
    scale : ndarray, shape (N,)
        The powers of two.
    Y : ndarray, shape (J, N)
    defect : float
        Bound on the largest absolute row sum of I - M Y.
    error : float
        The error of a product of M with a vector v is at most ``error`` times |M||v|.
    """

    M: np.ndarray
    scale: np.ndarray
    Y: np.ndarray
    defect: float
    error: float

    def multiplier(self, largest: float) -> float:
        """Bound the entries of c, where x = Y c solves M x = b and entries of b are at most ``largest``."""
        return largest / (1.0 - self.defect) * (1 + 8 * UNIT)


def right_inverse(M: np.ndarray, roundings: int) -> RightInverse | None:
    """Prove that M has full row rank; None if the proof fails.

    M (N, J) has no zero rows; its entries lie within ``roundings`` units of the exact ones, relatively.
    """
    equations, count = M.shape
    if count < equations or equations == 0 or not np.isfinite(M).all():
        return None
    scale = 2.0 ** -np.round(np.log2(np.abs(M).max(axis=1)))
    M = M * scale[:, None]
    try:
        Y = np.linalg.pinv(M)
    except np.linalg.LinAlgError:
        return None
    if not np.isfinite(Y).all():
        return None
    entry = (roundings + 1) * UNIT
    error = (gamma(count) + entry) * (1 + entry) * (1 + gamma(count))
    miss = np.abs(np.eye(equations) - M @ Y) * (1 + 2 * UNIT) + error * (np.abs(M) @ np.abs(Y)) + UNIT
    defect = float(miss.sum(axis=1).max()) * (1 + gamma(equations))
    return RightInverse(M, scale, Y, defect, error) if defect < SURE_DEFECT else None
