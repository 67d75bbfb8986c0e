r"""Dual coordinate descent, one block a query.

The dual of the Frobenius problem, :math:`\max_\lambda c^\top\lambda - \tfrac12\|A^\top\lambda\|_F^2`, is solved one
multiplier at a time in closed form, :math:`\lambda_{it} \leftarrow [\lambda_{it} + (1 - \delta_{it}\cdot
u)/(|\delta_{it}|^2|z_i|^2)]_+` with :math:`u = W z_i` (Hsieh et al., ICML 2008, for the linear SVM). All multipliers
of a query share z_i, so u is formed once a block and kept up to date, and W receives one rank-one update a block.
Equalities have target 0 and no sign.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def sweep(delta, queries, rejected, tied, dual, W, order, repeats):
    """Pass once over all queries, updating ``dual`` (n, T) and W = A^T dual (p, r) in place.

    Parameters
    ----------
    delta : ndarray, shape (n, T, p)
    queries : ndarray, shape (n, r)
    rejected, tied : ndarray of bool, shape (n, T)
    order : ndarray of int, shape (n,)
        In which order queries are visited.
    repeats : int
        Inner passes over a query's multipliers.

    Returns
    -------
    float
        Largest violation met: of a margin below one, or above one where the multiplier is positive.
    """
    _, T, p = delta.shape
    r = queries.shape[1]
    u = np.empty(p)
    change = np.empty(p)
    worst = 0.0
    for i in order:
        zz = 0.0
        for c in range(r):
            zz += queries[i, c] * queries[i, c]
        for a in range(p):
            value = 0.0
            for c in range(r):
                value += W[a, c] * queries[i, c]
            u[a] = value
            change[a] = 0.0
        moved = False
        for repeat in range(repeats):
            for t in range(T):
                if not (rejected[i, t] or tied[i, t]):
                    continue
                length = 0.0
                margin = 0.0
                for a in range(p):
                    length += delta[i, t, a] * delta[i, t, a]
                    margin += delta[i, t, a] * u[a]
                slope = (1.0 if rejected[i, t] else 0.0) - margin
                old = dual[i, t]
                new = old + slope / (length * zz) if length * zz > 0 else old
                if rejected[i, t] and new < 0.0:
                    new = 0.0
                if repeat == 0 and (slope > 0 or old > 0 or tied[i, t]):
                    worst = max(worst, abs(slope))
                step = new - old
                if step != 0.0:
                    moved = True
                    dual[i, t] = new
                    for a in range(p):
                        u[a] += step * zz * delta[i, t, a]
                        change[a] += step * delta[i, t, a]
        if moved:
            for a in range(p):
                for c in range(r):
                    W[a, c] += change[a] * queries[i, c]
    return worst
