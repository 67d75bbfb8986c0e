r"""Primal-dual hybrid gradient for the nuclear norm: many cheap steps towards the face that holds the solution.

The saddle point of :math:`\|W\|_* + \lambda^\top(c - A(W))` over W and multipliers (nonnegative on inequalities) is
approached by the steps of Chambolle and Pock (J. Math. Imaging Vis. 40, 2011),

.. math:: \bar W = \mathrm{SVT}_\tau(W + \tau A^\top\lambda), \qquad
   \bar\lambda = [\lambda + \sigma(c - A(2\bar W - W))]_+.

Both are over-relaxed: :math:`W \leftarrow W + \rho(\bar W - W)`, with the same formula for the multipliers (Condat, J.
Optim. Theory Appl. 158, 2013). :math:`\mathrm{SVT}_\tau` shortens the singular values by :math:`\tau`, with :math:`\tau
= 1/(\omega\|A\|)` and :math:`\sigma = \omega/\|A\|`. Steps restart from their average if it is nearer to the solution.
The primal weight :math:`\omega` is then set to the ratio of the distances that multipliers and W have moved (Applegate
et al., NeurIPS 2021, for linear programs). Only constraints of a working set take part. Fewer constraints make
:math:`\|A\|` smaller, so that fewer steps are needed, and each step is cheaper.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import boolean, float64, int64, types

from attsvm.core.gap import relative_gap
from attsvm.core.reduction import Reduced
from attsvm.platform.kernels import FAST, interpreted, kernel
from attsvm.solvers.nuclear.matrices import in_basis, outer, products, rotate, singular_values
from attsvm.solvers.schedule import FEW_PRODUCTS, ROTATION_ROWS

RELAXATION = 1.9
# Number of steps between tests of the gap.
STEPS_PER_TEST = 10
# Fall of the error, and share of all steps since the last restart, at which steps restart.
RESTART_FALL, RESTART_SHARE = 0.2, 0.36
# Largest number of power steps for the norm of A, relative gain below which they end, and factor of the result.
POWER_STEPS, GAIN, SAFETY = 30, 3e-4, 1.02
# Cosine that rotations leave between singular vectors; the error of a step is of this size, far below the target gaps.
TURN = 1e-9
# Rows and entries of the result of :func:`begin`.
CURRENT, SUM, RESTART, BEST = range(4)
NORM, WEIGHT, ERROR, SINCE, STEP_COUNT, GAP = range(6)

_gap_of = kernel(inner=True, fastmath=FAST)(relative_gap)


class StepConstraints(NamedTuple):
    """Constraints delta_k . W z = or >= c, listed query by query.

    Attributes
    ----------
    delta : ndarray, shape (m, p)
    of : ndarray of int, shape (m,)
        Query z of each constraint.
    queries : ndarray, shape (n, r)
    free : ndarray of bool, shape (m,)
        Whether the constraint is an equality with c = 0; otherwise c = 1.
    lengths : ndarray, shape (m,)
        |delta_k||z|.
    """

    delta: np.ndarray
    of: np.ndarray
    queries: np.ndarray
    free: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of_reduced(cls, reduced: Reduced, place: tuple[np.ndarray, ...]) -> StepConstraints:
        """List the constraints at rows and columns ``place`` of a reduced problem."""
        # Numba compiles once more for arrays that are read-only or not contiguous.
        of, queries = np.ascontiguousarray(place[0]), np.require(reduced.queries, requirements="W")
        return cls(reduced.delta[place], of, queries, reduced.tied[place], reduced.lengths[place])


class Memory(NamedTuple):
    """The arrays that steps update.

    Attributes
    ----------
    pairs : ndarray, shape (4, p r + m)
        W and multipliers, side by side: current, summed since the last restart, at the last restart, and the best.
    basis : ndarray, shape (s, s)
        Singular vectors, in rows, of the shorter side of W.
    state : ndarray, shape (6,)
        Norm of A, primal weight, error at the last restart, steps since then, number of all steps, and last gap.
    """

    pairs: np.ndarray
    basis: np.ndarray
    state: np.ndarray


NUCLEAR_CONSTRAINTS = types.NamedTuple(
    (float64[:, ::1], int64[::1], float64[:, ::1], boolean[::1], float64[::1]), StepConstraints
)
NUCLEAR_MEMORY = types.NamedTuple((float64[:, ::1], float64[:, ::1], float64[::1]), Memory)


def _margins_of(constraints, W, out):
    out[:] = np.vecdot(constraints.delta, (constraints.queries @ W.T)[constraints.of])


def _adjoint_of(constraints, dual, out):
    out[:] = constraints.delta.T @ (dual[:, None] * constraints.queries[constraints.of])


def _shorten(Y, tau, basis, out):
    if not np.isfinite(Y).all():
        out[:] = np.nan  # the compiled rotations return NaN, where LAPACK would raise an error
        return
    U, lengths, Vt = np.linalg.svd(Y, full_matrices=False)
    out[:] = (U * np.maximum(lengths - tau, 0.0)) @ Vt


def _copy(source, target):
    target[:] = source


@kernel(inner=True, fastmath=FAST, plain=_copy)
def copy(source, target):
    """Set a vector to another; a loop, since numba takes a second to compile an assignment to a slice."""
    for k in range(len(source)):
        target[k] = source[k]


@kernel(inner=True, fastmath=FAST, plain=_margins_of)
def margins_of(constraints, W, out):
    """Margin delta_k . W z of every constraint."""
    n, r = constraints.queries.shape
    p = len(W)
    projections = np.dot(constraints.queries, W.T) if n * p * r > FEW_PRODUCTS else products(constraints.queries, W)
    for k in range(len(constraints.of)):
        i = constraints.of[k]
        value = 0.0
        for a in range(p):
            value += constraints.delta[k, a] * projections[i, a]
        out[k] = value


@kernel(inner=True, fastmath=FAST, plain=_adjoint_of)
def apply_adjoint(constraints, dual, out):
    """A^T dual, (p, r)."""
    n, r = constraints.queries.shape
    p = constraints.delta.shape[1]
    sums = np.zeros((n, p))
    for k in range(len(constraints.of)):
        if dual[k] != 0.0:
            i = constraints.of[k]
            for a in range(p):
                sums[i, a] += dual[k] * constraints.delta[k, a]
    if n * p * r > FEW_PRODUCTS:
        np.dot(sums.T, constraints.queries, out)
    else:
        copy(outer(sums, constraints.queries).reshape(p * r), out.reshape(p * r))


@kernel(inner=True, fastmath=FAST)
def _distance(one, other):
    """Length of the difference of two vectors."""
    value = 0.0
    for k in range(len(one)):
        value += (one[k] - other[k]) ** 2
    return np.sqrt(value)


@kernel(inner=True, inline="always", fastmath=FAST)
def _norm_of(constraints, start):
    """Bound the norm of A from below by power iteration on A^T A from W (p, r)."""
    W = start.copy()
    flat = W.reshape(W.size)
    zero = np.zeros(W.size)
    margins = np.empty(len(constraints.of))
    value = np.inf
    for _ in range(POWER_STEPS):
        length = _distance(flat, zero)
        for k in range(len(flat)):
            flat[k] /= length
        margins_of(constraints, W, margins)
        apply_adjoint(constraints, margins, W)
        before, value = value, _distance(flat, zero)
        if abs(value - before) <= GAIN * value:
            break
    return np.sqrt(value)


@kernel(inner=True, inline="always", fastmath=FAST, plain=_shorten)
def _shorten_few(Y, tau, basis, out):
    """Shorten the singular values of Y by tau, and rotate ``basis``, of a nearby matrix, into the basis of Y."""
    p, r = Y.shape
    rows = in_basis(basis, Y)
    lengths = rotate(rows, basis, TURN)
    for a in range(p):
        for c in range(r):
            out[a, c] = 0.0
    for i in range(len(lengths)):
        if lengths[i] <= tau:
            continue
        left, right = (basis[i], rows[i]) if p < r else (rows[i], basis[i])
        for a in range(p):
            factor = (1.0 - tau / lengths[i]) * left[a]
            for c in range(r):
                out[a, c] += factor * right[c]


@kernel(inner=True, inline="always", fastmath=FAST)
def _shorten_many(Y, tau, out):
    """Shorten the singular values of Y by tau, through the eigenvectors of the smaller Gram matrix."""
    wide = Y.shape[0] < Y.shape[1]
    gram = np.dot(Y, Y.T) if wide else np.dot(Y.T, Y)
    values, vectors = np.linalg.eigh(gram)
    size = len(values)
    first = size
    while first > 0 and values[first - 1] > tau * tau:
        first -= 1
    leading = np.ascontiguousarray(vectors[:, first:])
    scaled = np.empty((size - first, size))
    for j in range(size - first):
        factor = 1.0 - tau / np.sqrt(values[first + j])
        for a in range(size):
            scaled[j, a] = factor * leading[a, j]
    projector = np.dot(leading, scaled)
    if wide:
        np.dot(projector, Y, out)
    else:
        np.dot(Y, projector, out)


@kernel(inner=True, fastmath=FAST, plain=lambda matrix, basis: interpreted(singular_values)(matrix))
def _spectrum(matrix, basis):
    """Compute singular values, unordered; of large matrices to the root of rounding, which suffices for target gaps."""
    if len(basis) > ROTATION_ROWS:
        wide = matrix.shape[0] < matrix.shape[1]
        gram = np.dot(matrix, matrix.T) if wide else np.dot(matrix.T, matrix)
        lengths = np.linalg.eigh(gram)[0]
        for k in range(len(lengths)):
            lengths[k] = np.sqrt(max(lengths[k], 0.0))
        return lengths
    nearby = basis.copy()
    return rotate(in_basis(nearby, matrix), nearby, TURN)


@kernel(inner=True, fastmath=FAST)
def _value(constraints, pair, basis):
    """Certified gap of a pair on the working set, and the size of its optimality residuals."""
    m, p, r = len(constraints.of), constraints.delta.shape[1], constraints.queries.shape[1]
    W, dual = pair[: p * r].reshape(p, r), pair[p * r :]
    margins = np.empty(m)
    margins_of(constraints, W, margins)
    smallest, short, total, count = np.inf, 0.0, 0.0, 0
    for k in range(m):
        if constraints.free[k]:
            short += margins[k] ** 2
        else:
            smallest = min(smallest, margins[k])
            short += max(0.0, 1.0 - margins[k]) ** 2
            total += dual[k]
            count += 1
    nuclear, spectral = 0.0, 0.0
    for value in _spectrum(W, basis):
        nuclear += value
    adjoint = np.empty((p, r))
    apply_adjoint(constraints, dual, adjoint)
    for value in _spectrum(adjoint, basis):
        spectral = max(spectral, value)
    gap = _gap_of(total / spectral, nuclear / smallest) if smallest > 0 and spectral > 0 else np.inf
    mismatch = (nuclear - total) / (1.0 + nuclear + abs(total))
    return gap, np.sqrt(short / count + max(0.0, spectral - 1.0) ** 2 + mismatch**2)


@kernel((NUCLEAR_CONSTRAINTS, float64[:, ::1], float64[::1], float64), seconds=4.0, fastmath=FAST)
def begin(constraints, W, dual, weight):
    """Set up the :class:`Memory` that :func:`advance` updates, from a pair and a primal weight."""
    size = W.size
    pairs = np.zeros((4, size + len(dual)))
    copy(W.reshape(size), pairs[CURRENT, :size])
    copy(dual, pairs[CURRENT, size:])
    copy(pairs[CURRENT], pairs[RESTART])
    copy(pairs[CURRENT], pairs[BEST])
    basis = np.eye(min(W.shape[0], W.shape[1]))
    norm = SAFETY * _norm_of(constraints, W)
    gap, error = _value(constraints, pairs[CURRENT], basis)
    state = np.zeros(6)
    state[NORM], state[WEIGHT], state[ERROR], state[GAP] = norm, weight, error, gap
    return Memory(pairs, basis, state)


@kernel((NUCLEAR_CONSTRAINTS, NUCLEAR_MEMORY, float64, int64), seconds=4.0, fastmath=FAST)
def advance(constraints, memory, target, limit):
    """Make at most ``limit`` steps, until the gap on the working set is below the target.

    Update the memory, and return the number of steps.
    """
    pairs, basis, state = memory
    m, p, r = len(constraints.of), constraints.delta.shape[1], constraints.queries.shape[1]
    size = p * r
    current, sums, restart, best = pairs[CURRENT], pairs[SUM], pairs[RESTART], pairs[BEST]
    norm, weight = state[NORM], state[WEIGHT]
    margins, extrapolation, following = np.empty(m), np.empty((p, r)), np.empty(size + m)
    flat, W = extrapolation.reshape(size), following[:size].reshape(p, r)
    for count in range(1, limit + 1):
        tau, sigma = 1.0 / (weight * norm), weight / norm
        apply_adjoint(constraints, current[size:], extrapolation)
        for k in range(size):
            flat[k] = current[k] + tau * flat[k]
        if len(basis) <= ROTATION_ROWS:
            _shorten_few(extrapolation, tau, basis, W)
        else:
            _shorten_many(extrapolation, tau, W)
        for k in range(size):
            flat[k] = 2.0 * following[k] - current[k]
        margins_of(constraints, extrapolation, margins)
        for k in range(m):
            if constraints.free[k]:
                following[size + k] = current[size + k] - sigma * margins[k]
            else:
                following[size + k] = max(0.0, current[size + k] + sigma * (1.0 - margins[k]))
        for k in range(size + m):
            current[k] += RELAXATION * (following[k] - current[k])
            sums[k] += following[k]
        state[SINCE] += 1.0
        state[STEP_COUNT] += 1.0
        if state[STEP_COUNT] % STEPS_PER_TEST != 0.0:
            continue
        state[GAP], error = _value(constraints, following, basis)
        for k in range(size + m):
            best[k] = sums[k] / state[SINCE]
        gap, mean_error = _value(constraints, best, basis)
        if mean_error < error:
            state[GAP], error = gap, mean_error
        else:
            copy(following, best)
        if error < RESTART_FALL * state[ERROR] or state[SINCE] > RESTART_SHARE * state[STEP_COUNT]:
            W_distance, dual_distance = _distance(best[:size], restart[:size]), _distance(best[size:], restart[size:])
            if W_distance > 0.0 and dual_distance > 0.0:
                weight = np.sqrt(weight * dual_distance / W_distance)
            copy(best, current)
            copy(best, restart)
            for k in range(size + m):
                sums[k] = 0.0
            state[WEIGHT], state[ERROR], state[SINCE] = weight, error, 0.0
        if state[GAP] < target:
            return count
    return limit
