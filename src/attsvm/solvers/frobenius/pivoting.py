r"""Nonnegative multipliers of a positive definite Gram matrix, many exchanged at once.

:math:`\max c^\top\lambda - \tfrac12\lambda^\top G\lambda` over :math:`\lambda \ge 0` asks for a passive set P with
:math:`\lambda_P = G_{PP}^{-1} c_P \ge 0` and no slope :math:`c - G\lambda` above zero outside. Every index on the wrong
side changes sides at once, each step one factorisation by LAPACK (block principal pivoting: Portugal, Judice and
Vicente, Math. Comp. 63, 1994; Kim and Park, SIAM J. Sci. Comput. 33, 2011). Where most constraints are supports that
is five steps or so, from whatever set it begins with. It may cycle, and a dependent set has no factor: then there is
no answer here, and one exchange at a time, :mod:`attsvm.solvers.frobenius.active_set`, has to do.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cho_solve

from attsvm.solvers.common.cholesky import lower_factor

# Steps in which the number on the wrong side may fail to fall.
PATIENCE = 5


def block_pivoting(gram: np.ndarray, cost: np.ndarray, tol: float) -> np.ndarray | None:
    """Solve for the multipliers; None where exchanging many at once does not end.

    Parameters
    ----------
    gram : ndarray, shape (m, m)
    cost : ndarray, shape (m,)
    tol : float
        Largest slope of a multiplier that stays zero.

    Returns
    -------
    ndarray, shape (m,), or None
    """
    passive = np.ones(len(cost), dtype=bool)
    fewest, patience = len(cost) + 1, PATIENCE
    while True:
        members = np.flatnonzero(passive)
        try:
            factor = lower_factor(gram[np.ix_(members, members)])
        except LinAlgError:
            return None
        values = cho_solve(factor, cost[members], check_finite=False)
        wrong = cost - np.take(gram, members, axis=1) @ values > tol
        wrong[members] = values < 0.0
        count = int(wrong.sum())
        if count == 0:
            out = np.zeros(len(cost))
            out[members] = values
            return out
        fewest, patience = (count, PATIENCE) if count < fewest else (fewest, patience - 1)
        if patience == 0:
            return None
        passive ^= wrong
