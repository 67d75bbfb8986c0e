r"""Many small Frobenius problems in one compiled call.

Each instance is solved by itself, start to certificate: its Gram matrix, a few passes of coordinate descent on it to
guess the support, the active-set method of :mod:`attsvm.solvers.frobenius.active_set` (both without that matrix, where
it would be large: :mod:`attsvm.solvers.frobenius.priced_active_set`), and the gap from W and the multipliers. One that
ends without its certificate is left to the general solver. Kernels are written with loops, since array expressions take
seconds to compile.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.gap import relative_gap
from attsvm.core.kernels import FAST, call, kernel, spares
from attsvm.core.problem import SelectionProblem
from attsvm.solvers.frobenius.active_set import nonnegative_least_squares
from attsvm.solvers.frobenius.priced_active_set import OPEN, RESIDUE, SOLVED, VANISHED, least_multipliers_by_prices
from attsvm.solvers.interior_point.euclidean import work_at
from attsvm.solvers.schedule import FEW_ROWS, GRAM_LIMIT, GRAM_RATIO, INTERIOR_STEPS, ONE_CALL_PATIENCE

PASSES = 10
# Data are not scaled here; squares nearer the ends of the floating-point range are left to the general solver.
SMALLEST_SQUARE = 1e-100

gap_of = kernel(inner=True, fastmath=FAST)(relative_gap)


@kernel(inner=True, fastmath=FAST)
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


@kernel(inner=True, fastmath=FAST)
def _gram(delta, queries, row, unit):
    """Inner products of the constraints over ``unit``; written out because a threaded BLAS inside threads stalls."""
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
            gram[k, j] = gram[j, k] = value * outer[row[k], row[j]] / unit
    return gram


@kernel(inner=True, fastmath=FAST)
def constraints_of(tokens, selected, mask):
    """List the constraints of one instance.

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
            if mask[i, t] and t != reference:
                row[k], column[k], free[k] = i, t, selected[i, t]
                cost[k] = 0.0 if free[k] else 1.0
                for a in range(d):
                    delta[k, a] = tokens[i, reference, a] - tokens[i, t, a]
                k += 1
    return delta, row, column, free, cost


@kernel(inner=True, fastmath=FAST)
def least_multipliers(gram, cost, free):
    """Multipliers of the smallest W in the Frobenius norm, from the constraints' Gram matrix (largest entry one).

    Returns (state, multipliers): SOLVED, where the smallest margin of W = A^T dual is one; VANISHED, where there is no
    W or one so long that rounding hides it, and multipliers that are nearly a certificate of that; or OPEN.
    """
    m = len(cost)
    guess = _guess(gram, cost, free, PASSES)
    total = 0.0
    for k in range(m):
        total += guess[k]
    weight = max(1.0, total)
    system = np.empty((m, m))
    for k in range(m):
        for j in range(m):
            system[k, j] = gram[k, j] * weight + cost[k] * cost[j]
    values, steps = nonnegative_least_squares(system, cost, free, guess, 1e-14, 10 * m + 100)
    rho = 1.0
    for k in range(m):
        rho -= cost[k] * values[k]
    if steps < 0 or rho <= RESIDUE:
        return VANISHED if steps >= 0 else OPEN, values
    for k in range(m):
        values[k] *= weight / rho
    return SOLVED, values


@kernel(inner=True, fastmath=FAST)
def largest_square(delta, queries, row):
    """Square of the longest constraint; zero when one has length zero or leaves the range that squares allow."""
    largest, smallest = 0.0, np.inf
    for k in range(len(delta)):
        left, right = 0.0, 0.0
        for a in range(delta.shape[1]):
            left += delta[k, a] * delta[k, a]
        for c in range(queries.shape[1]):
            right += queries[row[k], c] * queries[row[k], c]
        largest, smallest = max(largest, left * right), min(smallest, left * right)
    return largest if SMALLEST_SQUARE < largest < 1.0 / SMALLEST_SQUARE and smallest > 0.0 else 0.0


@kernel(inner=True, fastmath=FAST)
def finish(values, square, delta, queries, row, column, free, tol, rescale, W, dual, margins):
    """Turn multipliers (m,), in units of 1 / square, into W, dual and margins; returns (state, norm, gap).

    W is A^T dual; ``rescale`` makes its smallest margin one, and the multipliers those of the scaled W.
    """
    m, d = delta.shape
    n, dz = queries.shape
    adjoint, u = np.zeros((n, d)), np.zeros(d)
    total = 0.0
    for k in range(m):
        value = values[k] / square
        if not free[k]:
            value = max(value, 0.0)
        dual[row[k], column[k]] = value
        total += 0.0 if free[k] else value
        if value != 0.0:
            for a in range(d):
                adjoint[row[k], a] += value * delta[k, a]
    for a in range(d):
        for c in range(dz):
            W[a, c] = 0.0
    for i in range(n):
        for a in range(d):
            for c in range(dz):
                W[a, c] += adjoint[i, a] * queries[i, c]
    smallest, tied, asking = np.inf, 0.0, -1
    for k in range(m):  # constraints come query by query
        if row[k] != asking:
            asking = row[k]
            for a in range(d):
                u[a] = 0.0
                for c in range(dz):
                    u[a] += W[a, c] * queries[asking, c]
        margin = 0.0
        for a in range(d):
            margin += delta[k, a] * u[a]
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
    solvable = smallest > 0.0 and total > 0.0 and tied <= 1e-10 * smallest
    gap = gap_of(total / length, length / smallest) if solvable else np.inf
    if rescale or not solvable:
        scale = total / (length * length) if solvable else 0.0
        for k in range(m):
            dual[row[k], column[k]] *= scale
            margins[row[k], column[k]] /= smallest if solvable else 1.0
        for a in range(d):
            for c in range(dz):
                W[a, c] /= smallest if solvable else 1.0
    return SOLVED if gap <= tol else OPEN, length / smallest if solvable else np.inf, gap


@kernel(inner=True, fastmath=FAST)
def clear(dual, margins):
    """Set the multipliers (n, T) and margins of an instance to zero."""
    for i in range(dual.shape[0]):
        for t in range(dual.shape[1]):
            margins[i, t] = dual[i, t] = 0.0


@kernel(inner=True, fastmath=FAST)
def scatter(values, row, column, free, dual):
    """Write multipliers (m,) that have vanished to dual (n, T), summing to one over the inequalities."""
    demand = 0.0
    for k in range(len(values)):
        demand += 0.0 if free[k] else values[k]
    for k in range(len(values)):
        dual[row[k], column[k]] = values[k] / demand if demand > 0.0 else values[k]


@kernel(fastmath=FAST)
def solve_stack(tokens, queries, selected, mask, tol, rescale, W, dual, margins, objective, gap, state):
    """Solve a stack of instances into the given arrays, on the calling thread and without Python's lock.

    Parameters
    ----------
    tokens : ndarray, shape (B, n, T, d)
    queries : ndarray, shape (B, n, dz)
    selected, mask : ndarray of bool, shape (B, n, T)
    tol : float
    rescale : bool
        Whether W is to have smallest margin one exactly; else it is A^T dual.
    W : ndarray, shape (B, d, dz)
    dual, margins : ndarray, shape (B, n, T)
    objective, gap : ndarray, shape (B,)
    state : ndarray of int, shape (B,)
        Receives SOLVED, VANISHED (dual may be a certificate of infeasibility) or OPEN.
    """
    for b in range(len(tokens)):
        delta, row, column, free, cost = constraints_of(tokens[b], selected[b], mask[b])
        clear(dual[b], margins[b])
        state[b], objective[b], gap[b] = OPEN, np.inf, np.inf
        demand = 0.0
        for k in range(len(cost)):
            demand += cost[k]
        square = largest_square(delta, queries[b], row)
        if demand == 0.0:
            state[b], objective[b], gap[b] = SOLVED, 0.0, 0.0
            for a in range(W.shape[1]):
                for c in range(W.shape[2]):
                    W[b, a, c] = 0.0
        elif square > 0.0:
            state[b], values = least_multipliers(_gram(delta, queries[b], row, square), cost, free)
            if state[b] == SOLVED:
                state[b], objective[b], gap[b] = finish(
                    values, square, delta, queries[b], row, column, free, tol, rescale, W[b], dual[b], margins[b]
                )
            elif state[b] == VANISHED:
                scatter(values, row, column, free, dual[b])


@kernel(fastmath=FAST)
def solve_by_prices_at_once(tokens, queries, selected, mask, tol, W, dual, margins):
    """Solve one instance without forming the Gram matrix; some constraint must ask for a margin. Returns its state."""
    delta, row, column, free, _ = constraints_of(tokens, selected, mask)
    clear(dual, margins)
    square = largest_square(delta, queries, row)
    if square == 0.0:
        return OPEN
    state, values = least_multipliers_by_prices(delta, queries, row, column, free, tokens.shape[1], square, PASSES)
    if state == SOLVED:
        return finish(values, square, delta, queries, row, column, free, tol, False, W, dual, margins)[0]
    if state == VANISHED:
        scatter(values, row, column, free, dual)
    return state


def work(n: int, T: int, d: int, dz: int) -> float:
    """Estimate of the multiplications that an instance takes: the Gram matrix and ten passes, or passes and prices."""
    m = n * T
    return m * m * (d / 2 + 12) if m <= GRAM_LIMIT else 100 * m * d + 60 * n * d * dz


def work_alone(n: int, T: int, d: int, dz: int) -> float:
    """Estimate the seconds that an instance takes the interior point, which needs no kernel."""
    return INTERIOR_STEPS * work_at((n, T, min(d, n * T), min(dz, n)), n * (T - 1), 0)


def _forms_gram(problem: SelectionProblem) -> bool:
    """Tell whether the Gram matrix of the constraints is worth forming."""
    n, T, d, dz = problem.shape
    count = int(np.count_nonzero(problem.mask)) - n
    return n * T <= GRAM_LIMIT and (count <= FEW_ROWS or count < GRAM_RATIO * d * dz)


def spared(problem: SelectionProblem) -> bool:
    """Tell whether the call is better left to methods that need not be compiled; that is counted."""
    n, T, d, dz = problem.shape
    entry = solve_stack if _forms_gram(problem) else solve_by_prices_at_once
    if entry.overloads:
        return False
    return spares(entry, work(n, T, d, dz), work_alone(n, T, d, dz), ONE_CALL_PATIENCE)


def solve_compiled(problem: SelectionProblem, tol: float) -> tuple[bool, np.ndarray, np.ndarray, np.ndarray]:
    """Solve one small problem by the same compiled call.

    Returns
    -------
    solved : bool
    W : ndarray, shape (d, dz)
        A^T dual.
    dual : ndarray, shape (n, T)
        Multipliers; when not solved zero, or else what may be a certificate of infeasibility.
    margins : ndarray, shape (n, T)
        Of W, zero where unconstrained.
    """
    n, T, d, dz = problem.shape
    W, dual, margins = np.empty((1, d, dz)), np.empty((1, n, T)), np.empty((1, n, T))
    # Copies, since numba compiles once more for arrays that are read-only or not float64.
    tokens = problem.tokens[problem.sequence].astype(np.float64, copy=False)
    data = tokens[None], problem.queries[None].copy(), problem.selected[None].copy(), problem.mask[None].copy()
    if _forms_gram(problem):
        state, norm, gap = np.empty(1, dtype=np.int64), np.empty(1), np.empty(1)
        answers = (W, dual, margins, norm, gap, state)
        call(solve_stack, work(n, T, d, dz), *data, tol, False, *answers, patience=ONE_CALL_PATIENCE)
        return state[0] == SOLVED, W[0], dual[0], margins[0]
    one = (*(array[0] for array in data), tol, W[0], dual[0], margins[0])
    state = call(solve_by_prices_at_once, work(n, T, d, dz), *one, patience=ONE_CALL_PATIENCE)
    return state == SOLVED, W[0], dual[0], margins[0]
