r"""Small Frobenius problems: an active-set method on the Gram matrix that decides feasibility by itself.

The least-distance problem min ||W|| s.t. a_k . W >= 1 is a nonnegative least-squares problem in disguise (Lawson and
Hanson,
*Solving Least Squares Problems*, ch. 23): with :math:`c_k = 1` on inequalities and 0 on equalities, minimise

.. math:: \tfrac12\|A^\top\lambda\|^2 + \tfrac12(1 - c^\top\lambda)^2, \quad \lambda_k \ge 0 \text{ on inequalities.}

It always has a solution. With :math:`\rho = 1 - c^\top\lambda` its optimality conditions read
:math:`a_k\cdot A^\top\lambda \ge \rho`, so :math:`W = A^\top\lambda/\rho` solves the problem when :math:`\rho > 0`, and
:math:`\rho = 0` makes :math:`\lambda` a Farkas certificate. The Cholesky factor of the passive set's Gram matrix grows
by a row when a constraint enters and is repaired by Givens rotations when one leaves.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from attsvm.solvers.dual_coordinate import FAST

# A constraint whose Cholesky pivot falls below this part of its diagonal depends on the passive set to rounding.
DEPENDENT = 1e-13


@njit(cache=True, nogil=True, fastmath=FAST)
def _append(L, size, gram, index, k):
    """Add constraint k to the factor; False when it depends on the passive set."""
    for a in range(size):
        value = gram[index[a], k]
        for b in range(a):
            value -= L[a, b] * L[size, b]
        L[size, a] = value / L[a, a]
    pivot = gram[k, k]
    for a in range(size):
        pivot -= L[size, a] * L[size, a]
    if pivot <= DEPENDENT * gram[k, k]:
        return False
    L[size, size] = np.sqrt(pivot)
    index[size] = k
    return True


@njit(cache=True, nogil=True, fastmath=FAST)
def _remove(L, size, index, position):
    """Delete a row of the factor and restore its triangle."""
    for a in range(position, size - 1):
        index[a] = index[a + 1]
        for b in range(a + 2):
            L[a, b] = L[a + 1, b]
    for a in range(position, size - 1):
        x, y = L[a, a], L[a, a + 1]
        r = np.hypot(x, y)
        c, s = x / r, y / r
        for b in range(a, size - 1):
            u, v = L[b, a], L[b, a + 1]
            L[b, a] = c * u + s * v
            L[b, a + 1] = c * v - s * u
        L[a, a + 1] = 0.0


@njit(cache=True, nogil=True, fastmath=FAST)
def _solve(L, size, rhs, out):
    """Solve L L^T out = rhs."""
    for a in range(size):
        value = rhs[a]
        for b in range(a):
            value -= L[a, b] * out[b]
        out[a] = value / L[a, a]
    for a in range(size - 1, -1, -1):
        value = out[a]
        for b in range(a + 1, size):
            value -= L[b, a] * out[b]
        out[a] = value / L[a, a]


@njit(cache=True, nogil=True, fastmath=FAST)
def nonnegative_least_squares(gram, cost, free, start, tol, max_iter):
    """Solve the disguised problem for its multipliers.

    Parameters
    ----------
    gram : ndarray, shape (m, m)
        Inner products of the constraints plus ``cost cost^T``.
    cost : ndarray, shape (m,)
        c above.
    free : ndarray of bool, shape (m,)
        Equalities.
    start : ndarray, shape (m,)
        A guess; its support opens the passive set.
    tol : float
        Largest tolerated violation of an optimality condition.
    max_iter : int

    Returns
    -------
    dual : ndarray, shape (m,)
    index : ndarray of int
        The passive set.
    iterations : int
        Negative when max_iter was reached.
    """
    m = len(cost)
    dual = np.zeros(m)
    passive = np.zeros(m, dtype=np.bool_)
    blocked = np.zeros(m, dtype=np.bool_)
    index = np.empty(m, dtype=np.int64)
    L = np.zeros((m, m))
    target = np.empty(m)
    trial = np.empty(m)
    slope = np.empty(m)
    size = 0
    for k in range(m):
        if free[k] and _append(L, size, gram, index, k):
            passive[k] = True
            dual[k] = start[k]
            size += 1
    for k in range(m):
        if not free[k] and start[k] > 0 and _append(L, size, gram, index, k):
            passive[k] = True
            dual[k] = start[k]
            size += 1
    entered = -1
    for iteration in range(max_iter):
        for a in range(size):
            target[a] = cost[index[a]]
        _solve(L, size, target, trial)
        step = 1.0
        for a in range(size):
            k = index[a]
            if not free[k] and trial[a] <= 0:
                step = min(step, dual[k] / (dual[k] - trial[a]) if dual[k] > trial[a] else 0.0)
        if step < 1.0:
            if entered >= 0 and step == 0.0 and dual[entered] == 0.0:
                blocked[entered] = True
            for a in range(size):
                dual[index[a]] += step * (trial[a] - dual[index[a]])
            a = 0
            dropped = False
            worst, place = np.inf, -1
            while a < size:
                k = index[a]
                if not free[k] and trial[a] <= 0 and dual[k] < worst:
                    worst, place = dual[k], a
                if not free[k] and trial[a] <= 0 and dual[k] <= 1e-15 * (1.0 + abs(trial[a])):
                    dual[k] = 0.0
                    passive[k] = False
                    _remove(L, size, index, a)
                    for b in range(a, size - 1):
                        trial[b] = trial[b + 1]
                    size -= 1
                    dropped = True
                else:
                    a += 1
            if not dropped and place >= 0:
                k = index[place]
                dual[k] = 0.0
                passive[k] = False
                _remove(L, size, index, place)
                size -= 1
            continue
        for a in range(size):
            dual[index[a]] = trial[a]
        if entered >= 0:
            blocked[:] = False
            entered = -1
        for k in range(m):
            slope[k] = cost[k]
        for a in range(size):
            weight = dual[index[a]]
            row = gram[index[a]]
            for k in range(m):
                slope[k] -= weight * row[k]
        entering = False
        while not entering:
            best, entered = tol, -1
            for k in range(m):
                if not passive[k] and not free[k] and not blocked[k] and slope[k] > best:
                    best, entered = slope[k], k
            if entered < 0:
                return dual, index[:size].copy(), iteration + 1
            if _append(L, size, gram, index, entered):
                passive[entered] = True
                dual[entered] = 0.0
                size += 1
                entering = True
            else:
                blocked[entered] = True
    return dual, index[:size].copy(), -max_iter
