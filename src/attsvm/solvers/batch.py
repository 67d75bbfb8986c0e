r"""Many small Frobenius problems in one compiled call.

Each instance is solved by itself, start to certificate: its Gram matrix, a few passes of coordinate descent on it to
guess the support, the active-set method of :mod:`attsvm.solvers.active_set` (where that matrix would be large, the same
by :mod:`attsvm.solvers.structured_active_set`), and the gap from W and the multipliers. The instances are spread over
the cores; one that ends without its certificate is left to the general solver.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from attsvm.problem import SelectionProblem
from attsvm.solvers.active_set import nonnegative_least_squares
from attsvm.solvers.dual_coordinate import FAST
from attsvm.solvers.structured_active_set import least_multipliers_by_prices

PASSES = 10
GRAM_LIMIT = 350  # constraints up to which their Gram matrix is formed
OPEN, SOLVED = 0, 1
VANISHED = 1e-12  # 1 - c.lam, on the way to zero where no W is
# Data are not scaled here; squares nearer the ends of the floating-point range are left to the general solver.
SMALLEST_SQUARE = 1e-100


@njit(cache=True, nogil=True)
def _guess(gram, cost, free, passes):
    """Coordinate descent on the dual, gradients kept up to date through the Gram matrix."""
    m = len(cost)
    dual = np.zeros(m)
    slope = cost.copy()
    for _ in range(passes):
        for k in range(m):
            new = dual[k] + slope[k] / gram[k, k]
            if not free[k] and new < 0.0:
                new = 0.0
            step = new - dual[k]
            if step != 0.0:
                dual[k] = new
                for j in range(m):
                    slope[j] -= step * gram[k, j]
    return dual


@njit(cache=True, nogil=True, fastmath=FAST)
def _gram(delta, queries, row):
    """Inner products of the constraints; written out because a threaded BLAS inside threads stalls."""
    m, d = delta.shape
    n, dz = queries.shape
    outer = np.empty((n, n))
    for i in range(n):
        for j in range(i + 1):
            value = 0.0
            for c in range(dz):
                value += queries[i, c] * queries[j, c]
            outer[i, j] = outer[j, i] = value
    gram = np.empty((m, m))
    for k in range(m):
        for j in range(k + 1):
            value = 0.0
            for a in range(d):
                value += delta[k, a] * delta[j, a]
            gram[k, j] = gram[j, k] = value * outer[row[k], row[j]]
    return gram


@njit(cache=True, nogil=True)
def gather(tokens, selected, mask, dual, margins):
    """List the constraints of one instance, and clear its multipliers and margins.

    Returns
    -------
    delta : ndarray, shape (m, d)
        Token differences.
    row, column : ndarray of int, shape (m,)
        Query and token of each.
    free : ndarray of bool, shape (m,)
        Equalities.
    cost : ndarray, shape (m,)
        Margins asked for.
    """
    n, T, d = tokens.shape
    m = 0
    for i in range(n):
        for t in range(T):
            if mask[i, t]:
                m += 1
    m -= n
    delta = np.empty((m, d))
    row = np.empty(m, dtype=np.int64)
    column = np.empty(m, dtype=np.int64)
    free = np.empty(m, dtype=np.bool_)
    cost = np.empty(m)
    k = 0
    for i in range(n):
        reference = 0
        while not selected[i, reference]:
            reference += 1
        for t in range(T):
            margins[i, t] = 0.0 if mask[i, t] else np.inf
            dual[i, t] = 0.0
            if mask[i, t] and t != reference:
                row[k], column[k], free[k] = i, t, selected[i, t]
                cost[k] = 0.0 if free[k] else 1.0
                for a in range(d):
                    delta[k, a] = tokens[i, reference, a] - tokens[i, t, a]
                k += 1
    return delta, row, column, free, cost


@njit(cache=True, nogil=True)
def least_multipliers(gram, cost, free):
    """Multipliers of the smallest W in the Frobenius norm, from the constraints' Gram matrix (largest entry one).

    Returns (found, vanished, multipliers); with W = A^T dual its smallest margin is one. They have vanished when there
    is no W, or one so long that rounding hides it: what is returned then is nearly a certificate of that.
    """
    m = len(cost)
    guess = _guess(gram, cost, free, PASSES)
    weight = max(1.0, guess.sum())
    system = gram * weight
    for k in range(m):
        for j in range(m):
            system[k, j] += cost[k] * cost[j]
    values, steps = nonnegative_least_squares(system, cost, free, guess, 1e-14, 10 * m + 100)
    rho = 1.0 - (cost * values).sum()
    if steps < 0 or rho <= VANISHED:
        return False, steps >= 0, values
    return True, False, values * (weight / rho)


@njit(cache=True, nogil=True)
def solve_one(tokens, queries, selected, mask, tol, W, dual, margins):
    """Solve one instance into W, dual and margins; returns (solved, norm, gap). Arguments as in :func:`solve_stack`.

    Of an instance that is not solved dual is zero, or else it may be a certificate of infeasibility.
    """
    n, T, d = tokens.shape
    dz = queries.shape[1]
    delta, row, column, free, cost = gather(tokens, selected, mask, dual, margins)
    m = len(cost)
    W[:] = 0.0
    if cost.sum() == 0.0:
        return True, 0.0, 0.0
    largest, smallest = 0.0, np.inf
    for k in range(m):
        left, right = 0.0, 0.0
        for a in range(d):
            left += delta[k, a] * delta[k, a]
        for c in range(dz):
            right += queries[row[k], c] * queries[row[k], c]
        largest, smallest = max(largest, left * right), min(smallest, left * right)
    if not (SMALLEST_SQUARE < largest < 1.0 / SMALLEST_SQUARE and smallest > 0.0):
        return False, np.inf, np.inf
    if m <= GRAM_LIMIT:
        found, vanished, values = least_multipliers(_gram(delta, queries, row) / largest, cost, free)
    else:
        found, vanished, values = least_multipliers_by_prices(
            delta / np.sqrt(largest), queries, row, column, free, T, PASSES
        )
    if not found:
        if vanished:
            for k in range(m):
                dual[row[k], column[k]] = values[k]
        return False, np.inf, np.inf
    pulled = np.zeros((n, d))
    total = 0.0
    for k in range(m):
        value = values[k] / largest
        dual[row[k], column[k]] = value
        total += value * cost[k]
        if value != 0.0:
            for a in range(d):
                pulled[row[k], a] += value * delta[k, a]
    for i in range(n):
        for a in range(d):
            for c in range(dz):
                W[a, c] += pulled[i, a] * queries[i, c]
    u = np.zeros((n, d))
    for i in range(n):
        for a in range(d):
            for c in range(dz):
                u[i, a] += W[a, c] * queries[i, c]
    smallest = np.inf
    tied = 0.0
    for k in range(m):
        margin = 0.0
        for a in range(d):
            margin += delta[k, a] * u[row[k], a]
        margins[row[k], column[k]] = margin
        if free[k]:
            tied = max(tied, abs(margin))
        else:
            smallest = min(smallest, margin)
    length = 0.0
    for a in range(d):
        for c in range(dz):
            length += W[a, c] * W[a, c]
    length = np.sqrt(length)
    if not (smallest > 0.0 and total > 0.0 and tied <= 1e-10 * smallest):
        dual[:] = 0.0
        return False, np.inf, np.inf
    gap = length / smallest * (length / total) - 1.0
    scale = total / (length * length)
    for i in range(n):
        for t in range(T):
            dual[i, t] *= scale
            if mask[i, t]:
                margins[i, t] /= smallest
    W /= smallest
    return gap <= tol, length / smallest, gap


@njit(cache=True, parallel=True)
def solve_stack(tokens, queries, selected, mask, tol, W, dual, margins, objective, gap, state):
    """Solve a stack of instances into the given arrays.

    Parameters
    ----------
    tokens : ndarray, shape (B, n, T, d)
    queries : ndarray, shape (B, n, dz)
    selected, mask : ndarray of bool, shape (B, n, T)
    tol : float
    W : ndarray, shape (B, d, dz)
    dual, margins : ndarray, shape (B, n, T)
    objective, gap : ndarray, shape (B,)
    state : ndarray of int, shape (B,)
        Receives SOLVED or OPEN.
    """
    for b in prange(len(tokens)):
        solved, objective[b], gap[b] = solve_one(
            tokens[b], queries[b], selected[b], mask[b], tol, W[b], dual[b], margins[b]
        )
        state[b] = SOLVED if solved else OPEN


def solve_compiled(problem: SelectionProblem, tol: float) -> tuple[bool, np.ndarray, np.ndarray]:
    """Solve one small problem by the same compiled call.

    Returns
    -------
    solved : bool
    W : ndarray, shape (d, dz)
    dual : ndarray, shape (n, T)
        Multipliers; when not solved zero, or else what may be a certificate of infeasibility.
    """
    n, T, d, dz = problem.shape
    W, dual, margins = np.empty((d, dz)), np.empty((n, T)), np.empty((n, T))
    # Copies, since numba compiles once more for arrays that are read-only or not float64.
    solved, _, _ = solve_one(
        problem.tokens[problem.sequence].astype(np.float64, copy=False),
        problem.queries.copy(),
        problem.selected.copy(),
        problem.mask.copy(),
        tol,
        W,
        dual,
        margins,
    )
    return solved, W, dual
