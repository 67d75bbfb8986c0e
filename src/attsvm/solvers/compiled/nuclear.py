r"""Many small nuclear problems in one compiled call.

Each instance is solved by itself, from start to certificate, in the order of :mod:`attsvm.solvers.nuclear.portfolio`.
First-order steps start from the Frobenius solution, which the Gram matrix gives. Newton on the face is tried at falling
gaps until one run converges. An instance that ends without its certificate is left to the general solver, which has
more methods (interior point, degenerate faces, proofs of infeasibility).
"""

from __future__ import annotations

import numpy as np
from numba import boolean, float64

from attsvm.core.reduction import TIE_PRECISION
from attsvm.platform.kernels import FAST, kernel, read_only
from attsvm.solvers.compiled.frobenius import PASSES, clear, constraints_of, gap_of, guess_by_gram, scatter
from attsvm.solvers.frobenius.active_set import CONTRADICTION, OPEN, SOLVED, by_gram, least_multipliers
from attsvm.solvers.nuclear.face import CUTOFFS, matrix_of
from attsvm.solvers.nuclear.face_newton import FACE_STEPS as STEPS_ON_FACE
from attsvm.solvers.nuclear.face_newton import Demand, move, read
from attsvm.solvers.nuclear.first_order import WEIGHT_FACTOR
from attsvm.solvers.nuclear.matrices import combination, outer, products, right_singular, singular_values
from attsvm.solvers.nuclear.steps import (
    BEST,
    GAP,
    NORM,
    StepConstraints,
    advance,
    apply_adjoint,
    begin,
    copy,
    margins_of,
)
from attsvm.solvers.schedule import PATIENCE, STEPS_TO_FACE

# Gaps at which Newton is tried.
NEWTON_GAPS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6, 1e-7)
# Largest number of first-order steps; instances that need more are ill-conditioned, and the interior point is faster.
FIRST_ORDER_STEPS = 1000
# Gap at which Newton ends once it has reached the requested gap; convergence is quadratic, so this takes one more step.
FINAL_GAP = 1e-13
# Scale of the data below which, or above whose inverse, an instance is left open; entries are scaled to largest one.
SMALLEST_SCALE = 1e-100
# Singular value, over the largest, below which vectors count as dependent.
SINGULAR_CUT = 1e-13


def work(n: int, T: int, d: int, dz: int) -> float:
    """Estimate the multiplications of an instance: a hundred first-order steps and a few Newton steps."""
    return 200.0 * (n * T * d + n * d * dz + min(d, dz) ** 2 * max(d, dz)) + (n * T) ** 2 * 12


@kernel(inner=True, fastmath=FAST)
def _basis(vectors):
    """Orthonormal basis, in rows, of the span of vectors (m, q); the identity when m >= q."""
    m, q = vectors.shape
    if m >= q:
        return np.eye(q)
    basis, _, lengths = right_singular(vectors)
    rank = 1
    while rank < m and lengths[rank] > SINGULAR_CUT * lengths[0]:
        rank += 1
    return basis[:rank]


@kernel(inner=True, fastmath=FAST)
def _same(one, other):
    """Tell whether two vectors are equal, entry by entry."""
    equal = 0
    while equal < len(one) and one[equal] == other[equal]:
        equal += 1
    return equal == len(one)


@kernel(inner=True, inline="always", fastmath=FAST)
def _merge(delta, queries, row, column, free):
    """Move the constraints that differ from all before them to the front, and return their number.

    Multipliers of repeated constraints would not be unique.
    """
    count = np.int64(0)
    for k in range(len(row)):
        is_repeat = False
        for j in range(count):
            if free[k] == free[j] and _same(delta[k], delta[j]) and _same(queries[row[k]], queries[row[j]]):
                is_repeat = True
                break
        if not is_repeat:
            copy(delta[k], delta[count])
            row[count], column[count], free[count] = row[k], column[k], free[k]
            count += 1
    return count


@kernel(inner=True, fastmath=FAST)
def _divide(vector, divisor):
    """Divide a vector in place."""
    for k in range(len(vector)):
        vector[k] /= divisor


@kernel(inner=True, fastmath=FAST)
def _unit_margin(constraints, W, margins, precision):
    """Scale W to smallest margin one, write its margins (m,), and return the smallest margin before.

    Return zero and scale nothing if W is not feasible. Equalities hold up to ``precision`` times the smallest margin.
    """
    margins_of(constraints, W, margins)
    smallest, off = np.inf, 0.0
    for k in range(len(margins)):
        if constraints.free[k]:
            off = max(off, abs(margins[k]))
        else:
            smallest = min(smallest, margins[k])
    if not (smallest > 0.0 and (off <= precision * smallest or off == 0.0)):
        return 0.0
    _divide(margins, smallest)
    _divide(W.reshape(W.size), smallest)
    return smallest


@kernel(inner=True, fastmath=FAST)
def _unit_adjoint(constraints, dual, size):
    """Scale multipliers to |A^T dual| = 1, and return its size before, which is computed if ``size`` is zero."""
    if size == 0.0:
        M = np.empty((constraints.delta.shape[1], constraints.queries.shape[1]))
        apply_adjoint(constraints, dual, M)
        size = singular_values(M)[0]
    _divide(dual, size)
    return size


@kernel(inner=True, inline="always", fastmath=FAST)
def _evaluate(constraints, face, size, dual, on_face, signed):
    """Scale the pair on a face to smallest margin one and |A^T signed| = 1; return its gap, infinite if infeasible."""
    amount, nuclear, margins = 0.0, 0.0, np.empty(len(dual))
    for k in range(len(dual)):
        signed[k] = dual[k]
        if not constraints.free[k]:
            if dual[k] < 0.0:
                signed[k], size = 0.0, 0.0
            amount += signed[k]
    for value in face.singular:
        nuclear += abs(value)
    smallest = _unit_margin(constraints, on_face, margins, TIE_PRECISION)
    if not (smallest > 0.0 and amount > 0.0):
        return np.inf
    return nuclear / smallest * _unit_adjoint(constraints, signed, size) / amount - 1.0


@kernel(
    (
        read_only(float64, 3), read_only(float64, 2), read_only(boolean, 2), read_only(boolean, 2), float64,
        float64[:, ::1], float64[:, ::1], float64[:, ::1],
    ),
    seconds=20.0, fastmath=FAST,
)  # fmt: skip
def solve_one(tokens, queries, selected, mask, tol, W, dual, margins):
    """Solve one instance into W, dual and margins; return (state, norm, gap). Arguments as for :func:`solve_stack`."""
    n, dz = queries.shape
    d = tokens.shape[2]
    table, column = constraints_of(tokens, queries, selected, mask)
    delta, row, free, cost = table.delta, table.of, table.tied, np.empty(len(column))
    clear(dual, margins)
    for a in range(d):
        for c in range(dz):
            W[a, c] = 0.0
    longest_token, longest_query, inequalities = 0.0, 0.0, 0.0
    for k in range(len(row)):
        inequalities += 0.0 if free[k] else 1.0
        for a in range(d):
            longest_token = max(longest_token, abs(delta[k, a]))
    if inequalities == 0.0:
        return SOLVED, 0.0, 0.0
    for i in range(n):
        for c in range(dz):
            longest_query = max(longest_query, abs(queries[i, c]))
    if not (
        SMALLEST_SCALE < longest_token < 1.0 / SMALLEST_SCALE and SMALLEST_SCALE < longest_query < 1.0 / SMALLEST_SCALE
    ):
        return OPEN, np.inf, np.inf
    m = _merge(delta, table.queries, row, column, free)
    delta, of, free = delta[:m], row[:m], free[:m]
    for k in range(m):
        cost[k] = 0.0 if free[k] else 1.0
        for a in range(d):
            delta[k, a] /= longest_token
    scaled = table.queries / longest_query
    left, right = _basis(delta), _basis(scaled)
    tokens_in, queries_in = products(delta, left), products(scaled, right)
    p, r = len(left), len(right)

    token_gram, query_gram = products(tokens_in, tokens_in), products(queries_in, queries_in)
    gram, lengths, largest = np.empty((m, m)), np.empty(m), 0.0
    for k in range(m):
        square = token_gram[k, k] * query_gram[of[k], of[k]]
        if not square > SMALLEST_SCALE:
            return OPEN, np.inf, np.inf
        lengths[k] = np.sqrt(square)
        largest = max(largest, square)
    for k in range(m):
        for j in range(m):
            gram[k, j] = token_gram[k, j] * query_gram[of[k], of[j]] / largest
    guess = guess_by_gram(gram, free, np.int64(PASSES))
    state, values = least_multipliers(by_gram(gram, free), guess, m, np.empty((0, 0)))
    if state == CONTRADICTION:
        scatter(values, of, column, free, dual)
    if state != SOLVED:
        return state, np.inf, np.inf
    constraints, demand = StepConstraints(tokens_in, of, queries_in, free, lengths), Demand(cost[:m], np.inf, 0.0)
    inner = np.empty((p, r))
    apply_adjoint(constraints, values, inner)
    spectral = singular_values(inner)[0]
    square, length, supports = 0.0, 0.0, 0
    for k in range(m):
        square += values[k] ** 2
        supports += values[k] != 0.0
        values[k] /= spectral
    for a in range(p):
        for c in range(r):
            length += inner[a, c] ** 2
            inner[a, c] /= largest
    weight = WEIGHT_FACTOR * largest / spectral * np.sqrt(square / length)
    memory = begin(constraints, inner, values, weight)
    if STEPS_TO_FACE * memory.state[NORM] * np.sqrt(np.sqrt(square / supports) / largest) > PATIENCE:
        return OPEN, np.inf, np.inf
    best, best_W, best_dual = np.inf, np.empty((p, r)), np.empty(m)
    signed, margin = np.empty(m), np.empty(m)
    steps = 0
    for target in NEWTON_GAPS:
        if memory.state[GAP] >= target:
            steps += advance(constraints, memory, target, FIRST_ORDER_STEPS - steps)
        if memory.state[GAP] >= target:
            break
        copy(memory.pairs[BEST, : p * r], inner.reshape(p * r))
        copy(memory.pairs[BEST, p * r :], values)
        if not _unit_margin(constraints, inner, margin, np.inf) > 0.0:
            continue
        _unit_adjoint(constraints, values, 0.0)
        active = np.zeros(m, dtype=np.bool_)
        for _ in range(STEPS_ON_FACE):
            sound, index, face, size = read(constraints, demand, inner, values, active)
            if not sound:
                break
            on_face = matrix_of(face)
            candidate = _evaluate(constraints, face, size, values, on_face, signed)
            goal = np.inf if best <= tol else FINAL_GAP
            if candidate < best:
                best = candidate
                copy(on_face.reshape(p * r), best_W.reshape(p * r))
                copy(signed, best_dual)
            if candidate <= goal or not move(constraints, demand, inner, values, index, face, CUTOFFS[0]):
                break
        if best <= tol:
            break
    if not best <= tol:
        return OPEN, np.inf, np.inf

    unit = longest_token * longest_query
    nuclear, total = 0.0, 0.0
    for k in range(m):
        dual[of[k], column[k]] = best_dual[k] / unit
        total += 0.0 if free[k] else best_dual[k]
    for value in singular_values(best_W):
        nuclear += value
    copy(outer(left, combination(best_W, right)).reshape(W.size), W.reshape(W.size))
    table, column = constraints_of(tokens, queries, selected, mask)
    row, values = table.of, np.empty(len(column))
    everything = StepConstraints(table.delta, row, table.queries, table.tied, values)  # lengths are not needed
    smallest = _unit_margin(everything, W, values, TIE_PRECISION)
    if smallest <= 0.0:
        return OPEN, np.inf, np.inf
    for k in range(len(row)):
        margins[row[k], column[k]] = values[k]
    objective = nuclear / smallest
    gap = gap_of(total / unit, objective)
    return SOLVED if gap <= tol else OPEN, objective, gap


def solve_stack(tokens, queries, selected, mask, tol, W, dual, margins, objective, gap, state):
    """Solve a stack of instances as :func:`attsvm.solvers.compiled.frobenius.solve_stack` does, in the nuclear norm."""
    for b in range(len(tokens)):
        state[b], objective[b], gap[b] = solve_one(
            tokens[b], queries[b], selected[b], mask[b], tol, W[b], dual[b], margins[b]
        )
