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
from scipy.linalg import LinAlgError, cho_solve, solve

from attsvm.solvers.common.cholesky import lower_factor

# Steps in which the number on the wrong side may fail to fall.
PATIENCE = 5
# A factor of k^3 / 3 products serves a set without r of its k members by r solves of 2 k^2.
COLUMNS = 6


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
    passive, factored = np.ones(len(cost), dtype=bool), np.zeros(len(cost), dtype=bool)
    lower, solved = (np.zeros((0, 0)), True), np.zeros(0)
    fewest, patience = len(cost) + 1, PATIENCE
    while True:
        members, out = np.flatnonzero(passive), factored & ~passive
        values, slope = np.zeros(len(cost)), cost
        precise = not (passive & ~factored).any() and COLUMNS * out.sum() <= factored.sum()
        if precise:
            values[factored] = _without(lower, solved, out[factored])
            slope = cost - gram @ values
            precise = bool((np.abs(slope[members]) <= tol).all())
        if not precise:
            try:
                lower = lower_factor(gram[np.ix_(members, members)])
            except LinAlgError:
                return None
            factored[:] = passive
            solved = cho_solve(lower, cost[members], check_finite=False)
            values[:] = 0.0
            values[members] = solved
            slope = cost - gram @ values
        wrong = np.where(passive, values < 0.0, slope > tol)
        count = int(wrong.sum())
        if count == 0:
            return values
        fewest, patience = (count, PATIENCE) if count < fewest else (fewest, patience - 1)
        if patience == 0:
            return None
        passive ^= wrong


def _without(lower: tuple[np.ndarray, bool], solved: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Solve for the multipliers of a factored set (k,) of which some are to be zero."""
    columns = np.flatnonzero(out)
    if not len(columns):
        return solved
    units = np.zeros((len(solved), len(columns)))
    units[columns, np.arange(len(columns))] = 1.0
    inverse = cho_solve(lower, units, check_finite=False)
    values = solved - inverse @ solve(inverse[columns], solved[columns], assume_a="pos", check_finite=False)
    values[columns] = 0.0
    return values
