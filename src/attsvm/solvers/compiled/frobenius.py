r"""Many small Frobenius problems in one compiled call.

Each instance is solved by itself, from start to certificate: the Gram matrix, a few passes of coordinate descent that
guess the support, the active-set method (:mod:`attsvm.solvers.frobenius.active_set`), and the gap from W and the
multipliers. A large Gram matrix is not formed. An instance that ends without its certificate is left to the general
solver. Kernels are written with loops, since array expressions take seconds to compile.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, float64, int64

from attsvm.core.gap import relative_gap
from attsvm.core.problem import SelectionProblem
from attsvm.platform.kernels import FAST, at_hand, call, frozen, kernel, read_only, spares
from attsvm.solvers.frobenius.active_set import CONTRADICTION, OPEN, SOLVED, by_gram, least_multipliers
from attsvm.solvers.frobenius.constraints import Constraints
from attsvm.solvers.frobenius.coordinate_descent import INNER_SWEEPS, Dual, sweeps
from attsvm.solvers.interior_point.euclidean import work_at
from attsvm.solvers.nuclear.steps import apply_adjoint, margins_of
from attsvm.solvers.schedule import FEW_ROWS, FEW_SUPPORTS, FEW_W_ENTRIES, GRAM_LIMIT, GRAM_RATIO, INTERIOR_STEPS

# Number of passes for a guess, number of passes after which its support is counted, and ratio of that count to the
# largest possible support above which no further passes are made.
PASSES, FEW_PASSES, FAR_MORE = 10, 3, 4
# Squared length below which, or above whose inverse, an instance is left to the general solver; data are not scaled.
SMALLEST_SQUARE = 1e-100

gap_of = kernel(inner=True, fastmath=FAST)(relative_gap)


@kernel((float64[:, ::1], boolean[::1], int64), fastmath=FAST)
def guess_by_gram(gram, tied, passes):
    """Coordinate descent on the dual that updates gradients through the Gram matrix."""
    m = len(gram)
    dual, slope, inverse = np.zeros(m), np.empty(m), np.empty(m)
    for k in range(m):
        slope[k], inverse[k] = 0.0 if tied[k] else 1.0, 1.0 / gram[k, k]
    for _ in range(passes):
        for k in range(m):
            new = dual[k] + slope[k] * inverse[k]
            if not tied[k] and new < 0.0:
                new = 0.0
            step = new - dual[k]
            if step != 0.0:
                dual[k] = new
                for j in range(m):
                    slope[j] -= step * gram[k, j]
    return dual


@kernel(inner=True, inline="always", fastmath=FAST)
def _guess(constraints, most):
    """Coordinate descent by passes over the constraints; fewer passes if they leave more than ``most`` multipliers."""
    delta, queries, tied = constraints.delta, constraints.queries, constraints.tied
    m, n = len(delta), len(queries)
    squares, cost, active = np.zeros(m), np.empty(m), np.zeros(m, dtype=np.bool_)
    for k in range(m):
        cost[k] = 0.0 if tied[k] else 1.0
        for a in range(delta.shape[1]):
            squares[k] += delta[k, a] * delta[k, a]
    orders = np.empty((PASSES, n), dtype=np.int64)
    for k in range(PASSES):
        for i in range(n):
            orders[k, i] = i
    dual, W = np.zeros(m), np.zeros((delta.shape[1], queries.shape[1]))
    problem = Dual(constraints, squares, cost, np.inf, 0.0)
    supports = m
    for passes in (FEW_PASSES, PASSES - FEW_PASSES):
        if passes == FEW_PASSES or supports <= most:
            sweeps(problem, dual, W, orders[:passes], active, np.int64(INNER_SWEEPS))
        supports = 0
        for k in range(m):
            supports += dual[k] != 0.0
    return dual, supports


@kernel(inner=True, inline="always", fastmath=FAST)
def _gram(delta, queries, of):
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
            gram[k, j] = gram[j, k] = value * outer[of[k], of[j]]
    return gram


@kernel(inner=True, fastmath=FAST)
def constraints_of(tokens, queries, selected, mask):
    """List the constraints of one instance, with the token of each constraint, (m,)."""
    n, T, d = tokens.shape
    m = 0
    for i in range(n):
        for t in range(T):
            if mask[i, t]:
                m += 1
    m -= n
    delta = np.empty((m, d))
    of, column, first = np.empty(m, dtype=np.int64), np.empty(m, dtype=np.int64), np.empty(n + 1, dtype=np.int64)
    rejected, tied = np.empty(m, dtype=np.bool_), np.empty(m, dtype=np.bool_)
    k = 0
    writable = np.empty(queries.shape)  # a problem's arrays are read-only, which is another type
    for i in range(n):
        for c in range(queries.shape[1]):
            writable[i, c] = queries[i, c]
        first[i], reference = k, 0
        while not selected[i, reference]:
            reference += 1
        for t in range(T):
            if mask[i, t] and t != reference:
                of[k], column[k], tied[k], rejected[k] = i, t, selected[i, t], not selected[i, t]
                for a in range(d):
                    delta[k, a] = tokens[i, reference, a] - tokens[i, t, a]
                k += 1
    first[n] = m
    return Constraints(delta, writable, of, first, rejected, tied, np.empty((0, 0))), column


@kernel(inner=True, inline="always", fastmath=FAST)
def scale(constraints):
    """Divide the constraints by a power of two near their largest length, and return it.

    Return zero and divide nothing if a constraint has length zero or its square leaves the range of floats.
    """
    delta, queries = constraints.delta, constraints.queries
    largest, smallest = 0.0, np.inf
    for i in range(len(queries)):
        right = 0.0
        for c in range(queries.shape[1]):
            right += queries[i, c] * queries[i, c]
        for k in range(constraints.first[i], constraints.first[i + 1]):
            left = 0.0
            for a in range(delta.shape[1]):
                left += delta[k, a] * delta[k, a]
            largest, smallest = max(largest, left * right), min(smallest, left * right)
    if not (SMALLEST_SQUARE < largest < 1.0 / SMALLEST_SQUARE and smallest > 0.0):
        return 0.0
    unit = 2.0 ** np.floor(0.5 * np.log2(largest))
    for k in range(len(delta)):
        for a in range(delta.shape[1]):
            delta[k, a] /= unit
    return unit


@kernel(inner=True, inline="always", fastmath=FAST)
def finish(constraints, column, values, is_refined, unit, tol, rescale, W, adjoint, dual, margins):
    """Compute W, margins and gap from multipliers (m,) of constraints divided by ``unit``; return (state, norm, gap).

    W stays if ``is_refined`` and otherwise becomes A^T dual, which ``adjoint`` receives. ``rescale`` scales W to
    smallest margin one, and the multipliers accordingly.
    """
    of, rejected, (d, dz) = constraints.of, constraints.rejected, W.shape
    total, constraint_margins = 0.0, np.empty(len(of))
    for k in range(len(of)):
        values[k] = max(values[k], 0.0) if rejected[k] else values[k]
        total += values[k] if rejected[k] else 0.0
    apply_adjoint(constraints, values, adjoint)
    length, dual_length = 0.0, 0.0
    for a in range(d):
        for c in range(dz):
            W[a, c] = W[a, c] if is_refined else adjoint[a, c]
            length += W[a, c] * W[a, c]
            dual_length += adjoint[a, c] * adjoint[a, c]
    margins_of(constraints, W, constraint_margins)
    smallest, off = np.inf, 0.0
    for k in range(len(of)):
        if rejected[k]:
            smallest = min(smallest, constraint_margins[k])
        else:
            off = max(off, abs(constraint_margins[k]))
    solvable = smallest > 0.0 and total > 0.0 and off <= 1e-10 * smallest
    length, dual_length = np.sqrt(length), np.sqrt(dual_length)
    gap = gap_of(total / dual_length, length / smallest) if solvable else np.inf
    shrink = smallest if solvable and rescale else 1.0
    stretch = 0.0 if not solvable else total / dual_length**2 if rescale else 1.0
    for a in range(d):
        for c in range(dz):
            W[a, c] /= shrink * unit
            adjoint[a, c] /= unit
    for k in range(len(of)):
        dual[of[k], column[k]] = values[k] * stretch / (unit * unit)
        margins[of[k], column[k]] = constraint_margins[k] / shrink
    return SOLVED if gap <= tol else OPEN, length / (smallest * unit) if solvable else np.inf, gap


@kernel(inner=True, fastmath=FAST)
def clear(dual, margins):
    """Set the multipliers (n, T) and margins of an instance to zero."""
    for i in range(dual.shape[0]):
        for t in range(dual.shape[1]):
            margins[i, t] = dual[i, t] = 0.0


@kernel(inner=True, fastmath=FAST)
def scatter(values, of, column, tied, dual):
    """Write multipliers (m,) of a contradiction to dual (n, T), summing to one over the inequalities."""
    demand = 0.0
    for k in range(len(values)):
        demand += 0.0 if tied[k] else values[k]
    for k in range(len(values)):
        dual[of[k], column[k]] = values[k] / demand if demand > 0.0 else values[k]


@kernel(inner=True, inline="always", fastmath=FAST)
def solve_one(tokens, queries, selected, mask, tol, rescale, W, adjoint, dual, margins):
    """Solve one instance, through the Gram matrix of its constraints if this is small.

    Return (state, norm, gap). Arguments are as for :func:`solve_each`.
    """
    constraints, column = constraints_of(tokens, queries, selected, mask)
    clear(dual, margins)
    demand, entries = 0, W.size
    for k in range(len(column)):
        demand += constraints.rejected[k]
    if demand == 0:
        for a in range(W.shape[0]):
            for c in range(W.shape[1]):
                adjoint[a, c] = W[a, c] = 0.0
        return SOLVED, 0.0, 0.0
    unit = scale(constraints)
    if unit == 0.0:
        return OPEN, np.inf, np.inf
    has_gram = mask.size <= GRAM_LIMIT and (len(column) <= FEW_ROWS or len(column) < GRAM_RATIO * entries)
    if has_gram:
        gram = _gram(constraints.delta, constraints.queries, constraints.of)
        guess = guess_by_gram(gram, constraints.tied, np.int64(PASSES))
        state, values = least_multipliers(by_gram(gram, constraints.tied), guess, len(column), np.empty((0, 0)))
    else:
        guess, supports = _guess(constraints, FAR_MORE * entries)
        if supports > FEW_SUPPORTS and entries > FEW_W_ENTRIES:
            return OPEN, np.inf, np.inf
        state, values = least_multipliers(constraints, guess, min(len(column), entries + 1), W)
    if state == CONTRADICTION:
        scatter(values, constraints.of, column, constraints.tied, dual)
        return CONTRADICTION, np.inf, np.inf
    return finish(constraints, column, values, not has_gram, unit, tol, rescale, W, adjoint, dual, margins)


@kernel(
    (
        read_only(float64, 4), read_only(float64, 3), read_only(boolean, 3), read_only(boolean, 3), float64, boolean,
        float64[:, :, ::1], float64[:, :, ::1], float64[:, :, ::1], float64[::1], float64[::1], int64[::1],
        float64[:, ::1],
    ),
    seconds=6.0, fastmath=FAST,
)  # fmt: skip
def solve_each(tokens, queries, selected, mask, tol, rescale, W, dual, margins, objective, gap, state, adjoint):
    """Solve a stack of instances into the given arrays, on the calling thread without Python's lock.

    Parameters
    ----------
    tokens : ndarray, shape (B, n, T, d)
    queries : ndarray, shape (B, n, dz)
    selected, mask : ndarray of bool, shape (B, n, T)
    tol : float
    rescale : bool
        Whether to scale W to smallest margin one exactly; otherwise W is A^T dual.
    W : ndarray, shape (B, d, dz)
    dual, margins : ndarray, shape (B, n, T)
    objective, gap : ndarray, shape (B,)
    state : ndarray of int, shape (B,)
        Receives SOLVED, CONTRADICTION (dual may be a certificate of infeasibility) or OPEN.
    adjoint : ndarray, shape (d, dz)
        Receives A^T dual of the last instance.
    """
    for b in range(len(tokens)):
        state[b], objective[b], gap[b] = solve_one(
            tokens[b], queries[b], selected[b], mask[b], tol, rescale, W[b], adjoint, dual[b], margins[b]
        )


def solve_stack(tokens, queries, selected, mask, tol, rescale, W, *answers):
    """Solve a stack of instances as :func:`solve_each` does, without its ``adjoint``."""
    solve_each(tokens, queries, selected, mask, tol, rescale, W, *answers, np.empty(W.shape[1:]))


def work(n: int, T: int, d: int, dz: int) -> float:
    """Estimate the multiplications of an instance: the Gram matrix and ten passes, or passes and margins."""
    m = n * T
    return m * m * (d / 2 + 12) if m <= GRAM_LIMIT else 100 * m * d + 60 * n * d * dz


def interior_work(n: int, T: int, d: int, dz: int) -> float:
    """Estimate the seconds of an instance in the interior point, which needs no kernel."""
    return INTERIOR_STEPS * work_at((n, T, min(d, n * T), min(dz, n)), n * (T - 1), 0)


def avoids_compiling(problem: SelectionProblem) -> bool:
    """Tell whether methods that need no compiling should solve the problem; see :func:`spares`, which counts it."""
    shape = problem.shape
    return not at_hand(solve_each) and spares(solve_each, work(*shape), interior_work(*shape))


def solve_compiled(
    problem: SelectionProblem, tol: float
) -> tuple[bool, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Solve one small problem by :func:`solve_each`.

    Returns
    -------
    solved : bool
    W : ndarray, shape (d, dz)
    adjoint : ndarray, shape (d, dz)
        A^T dual, which differs from W by the rounding of the multipliers.
    dual : ndarray, shape (n, T)
        Multipliers. If the problem is not solved, zero or multipliers that may be a certificate of infeasibility.
    margins : ndarray, shape (n, T)
        Margins of W, zero for other entries.
    """
    n, T, d, dz = problem.shape
    W, adjoint, dual, margins = np.empty((1, d, dz)), np.empty((d, dz)), np.empty((1, n, T)), np.empty((1, n, T))
    state, norm_and_gap = np.empty(1, dtype=np.int64), np.empty(2)
    tokens = problem.tokens_of(slice(None)).astype(np.float64, copy=False)
    data = [frozen(array[None]) for array in (tokens, problem.queries, problem.selected, problem.mask)]
    answers = W, dual, margins, norm_and_gap[:1], norm_and_gap[1:], state, adjoint
    call(solve_each, work(n, T, d, dz), *data, tol, False, *answers)
    return bool(state[0] == SOLVED), W[0], adjoint, dual[0], margins[0]
