r"""Primal-dual hybrid gradient for the nuclear norm: many cheap steps towards the face that holds the solution.

The saddle point of :math:`\|W\|_* + \lambda^\top(c - A(W))` over W and multipliers (nonnegative on inequalities) is
approached by the steps of Chambolle and Pock (J. Math. Imaging Vis. 40, 2011),

.. math:: \bar W = \mathrm{SVT}_\tau(W + \tau A^\top\lambda), \qquad
   \bar\lambda = [\lambda + \sigma(c - A(2\bar W - W))]_+,

over-relaxed: :math:`W \leftarrow W + \rho(\bar W - W)`, likewise the multipliers (Condat, J. Optim. Theory Appl. 158,
2013). :math:`\mathrm{SVT}_\tau` shortens the singular values by :math:`\tau`; :math:`\tau = 1/(\omega\|A\|)` and
:math:`\sigma = \omega/\|A\|`. Steps are restarted from their average where that is nearer to the solution, and the
primal weight :math:`\omega` is then set to the ratio of the distances that multipliers and W have moved (Applegate et
al., NeurIPS 2021; there for linear programs). Only constraints of a working set take part: fewer rows make
:math:`\|A\|`, hence the number of steps, smaller as well as the steps cheaper.

Tried on the benchmark instances: without over-relaxation 1.6 to 1.8 times the steps; restarted Halpern steps (Lu and
Yang, arXiv 2407.16144) as many to twice as many; all constraints instead of a working set mostly 1.5 to 2.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.kernels import FAST, kernel
from attsvm.solvers.nuclear.rotations import FEW, rotate, turned

RELAXATION = 1.9
LOOK = 10  # steps between looks at the gap
# Restart when the error has fallen by this factor, or this part of all steps has passed since the last restart.
FALL, LONG = 0.2, 0.36
# The norm of A comes from at most so many power steps, fewer once a step gains less than this.
POWER_STEPS, GAIN, SAFETY = 30, 3e-4, 1.02
# Products of at most this many multiplications are written out: calls of BLAS cost more, and wait for each other in
# threads.
FEW_PRODUCTS = 4000
# Cosines that rotations leave between singular vectors: a step errs by as much, the gaps aimed at are far above.
TURN = 1e-9
# Rows of what :func:`begin` returns.
CURRENT, SUM, RESTART, BEST = range(4)
NORM, WEIGHT, ERROR, SINCE, STEPS, GAP = range(6)


def _margins_of(delta, of, queries, W, out):
    out[:] = np.einsum("ka,ka->k", delta, (queries @ W.T)[of])


def _pull(delta, of, dual, queries, out):
    out[:] = delta.T @ (dual[:, None] * queries[of])


def _shorten(Y, tau, basis, out):
    if not np.isfinite(Y).all():
        out[:] = np.nan  # as the compiled rotations leave it; LAPACK would raise
        return
    U, lengths, Vt = np.linalg.svd(Y, full_matrices=False)
    out[:] = (U * np.maximum(lengths - tau, 0.0)) @ Vt


def _singular_values(matrix, basis):
    if not np.isfinite(matrix).all():
        return np.full(min(matrix.shape), np.nan)
    return np.linalg.svd(matrix, compute_uv=False)


def _copy(source, target):
    target[:] = source


@kernel(inner=True)
def clear(matrix):
    """Set the entries of a matrix to zero."""
    for a in range(matrix.shape[0]):
        for c in range(matrix.shape[1]):
            matrix[a, c] = 0.0


@kernel(inner=True, plain=_copy)
def copy(source, target):
    """Set a vector to another; a loop, since numba takes a second to compile an assignment to a slice."""
    for k in range(len(source)):
        target[k] = source[k]


@kernel(inner=True, fastmath=FAST, plain=_margins_of)
def margins_of(delta, of, queries, W, out):
    """Margin delta_k . W z of every constraint, z the query ``of[k]``."""
    n, r = queries.shape
    p = len(W)
    if n * p * r > FEW_PRODUCTS:
        projected = np.dot(queries, W.T)
    else:
        projected = np.empty((n, p))
        for i in range(n):
            for a in range(p):
                value = 0.0
                for c in range(r):
                    value += queries[i, c] * W[a, c]
                projected[i, a] = value
    for k in range(len(of)):
        i = of[k]
        value = 0.0
        for a in range(p):
            value += delta[k, a] * projected[i, a]
        out[k] = value


@kernel(inner=True, fastmath=FAST, plain=_pull)
def apply_adjoint(delta, of, dual, queries, out):
    """A^T dual, (p, r)."""
    n, r = queries.shape
    p = delta.shape[1]
    gathered = np.zeros((n, p))
    for k in range(len(of)):
        if dual[k] != 0.0:
            i = of[k]
            for a in range(p):
                gathered[i, a] += dual[k] * delta[k, a]
    if n * p * r > FEW_PRODUCTS:
        np.dot(gathered.T, queries, out)
        return
    clear(out)
    for i in range(n):
        for a in range(p):
            factor = gathered[i, a]
            for c in range(r):
                out[a, c] += factor * queries[i, c]


@kernel(inner=True, fastmath=FAST)
def distance(one, other):
    """Length of the difference of two vectors."""
    value = 0.0
    for k in range(len(one)):
        value += (one[k] - other[k]) ** 2
    return np.sqrt(value)


@kernel(inner=True)
def norm_of(delta, of, queries, start, steps):
    """Power iteration on A^T A from W (p, r): the norm of A, from below."""
    W = start.copy()
    flat = W.reshape(W.size)
    zero = np.zeros(W.size)
    margins = np.empty(len(of))
    value = np.inf
    for _ in range(steps):
        length = distance(flat, zero)
        for k in range(len(flat)):
            flat[k] /= length
        margins_of(delta, of, queries, W, margins)
        apply_adjoint(delta, of, margins, queries, W)
        before, value = value, distance(flat, zero)
        if abs(value - before) <= GAIN * value:
            break
    return np.sqrt(value)


@kernel(inner=True, fastmath=FAST, plain=_shorten)
def _shorten_few(Y, tau, basis, out):
    """Shorten the singular values of Y by tau, turning ``basis`` from that of a nearby matrix to that of Y."""
    p, r = Y.shape
    rows = turned(basis, Y)
    lengths = rotate(rows, basis, TURN)
    clear(out)
    for i in range(len(lengths)):
        if lengths[i] <= tau:
            continue
        left, right = (basis[i], rows[i]) if p < r else (rows[i], basis[i])
        for a in range(p):
            factor = (1.0 - tau / lengths[i]) * left[a]
            for c in range(r):
                out[a, c] += factor * right[c]


@kernel(inner=True)
def _shorten_many(Y, tau, out):
    """Shorten the singular values of Y by tau, through the eigenvectors of the smaller Gram matrix."""
    wide = Y.shape[0] < Y.shape[1]
    gram = np.dot(Y, Y.T) if wide else np.dot(Y.T, Y)
    values, vectors = np.linalg.eigh(gram)
    size = len(values)
    first = size
    while first > 0 and values[first - 1] > tau * tau:
        first -= 1
    kept = np.ascontiguousarray(vectors[:, first:])
    scaled = np.empty((size - first, size))
    for j in range(size - first):
        factor = 1.0 - tau / np.sqrt(values[first + j])
        for a in range(size):
            scaled[j, a] = factor * kept[a, j]
    projector = np.dot(kept, scaled)
    if wide:
        np.dot(projector, Y, out)
    else:
        np.dot(Y, projector, out)


@kernel(inner=True, plain=_singular_values)
def _spectrum(matrix, basis):
    """Singular values, in no order."""
    if len(basis) > FEW:
        return np.linalg.svd(matrix)[1]
    nearby = basis.copy()
    return rotate(turned(nearby, matrix), nearby, TURN)


@kernel(inner=True)
def _value(delta, of, queries, free, pair, basis):
    """Certified gap of a pair on the working set, and the size of its optimality residuals."""
    m, p, r = len(of), delta.shape[1], queries.shape[1]
    W, dual = pair[: p * r].reshape(p, r), pair[p * r :]
    margins = np.empty(m)
    margins_of(delta, of, queries, W, margins)
    smallest, short, total, count = np.inf, 0.0, 0.0, 0
    for k in range(m):
        if free[k]:
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
    apply_adjoint(delta, of, dual, queries, adjoint)
    for value in _spectrum(adjoint, basis):
        spectral = max(spectral, value)
    gap = nuclear / smallest * spectral / total - 1.0 if smallest > 0 and total > 0 else np.inf
    apart = (nuclear - total) / (1.0 + nuclear + abs(total))
    return gap, np.sqrt(short / count + max(0.0, spectral - 1.0) ** 2 + apart**2)


@kernel()
def begin(delta, of, queries, free, W, dual, weight):
    """Set up what :func:`advance` updates, from a pair and a primal weight.

    Returns
    -------
    pairs : ndarray, shape (4, p r + m)
        W and multipliers, side by side: current, summed since the last restart, at the last restart, and the best.
    basis : ndarray, shape (s, s)
        Singular vectors, in rows, of the shorter side of W.
    state : ndarray, shape (6,)
        Norm of A, weight, error at the last restart, steps since, steps in all, last gap.
    """
    size = W.size
    pairs = np.zeros((4, size + len(dual)))
    copy(W.reshape(size), pairs[CURRENT, :size])
    copy(dual, pairs[CURRENT, size:])
    copy(pairs[CURRENT], pairs[RESTART])
    copy(pairs[CURRENT], pairs[BEST])
    basis = np.eye(min(W.shape[0], W.shape[1]))
    norm = SAFETY * norm_of(delta, of, queries, W, POWER_STEPS)
    gap, error = _value(delta, of, queries, free, pairs[CURRENT], basis)
    state = np.zeros(6)
    state[NORM], state[WEIGHT], state[ERROR], state[GAP] = norm, weight, error, gap
    return pairs, basis, state


@kernel()
def advance(delta, of, queries, free, pairs, basis, state, target, limit):
    """Make steps until the gap on the working set falls below the target, or ``limit`` steps.

    Updates what :func:`begin` returned. Returns the steps made.
    """
    m, p, r = len(of), delta.shape[1], queries.shape[1]
    size = p * r
    current, sums, restart, best = pairs[CURRENT], pairs[SUM], pairs[RESTART], pairs[BEST]
    norm, weight = state[NORM], state[WEIGHT]
    margins, ahead, following = np.empty(m), np.empty((p, r)), np.empty(size + m)
    flat, W = ahead.reshape(size), following[:size].reshape(p, r)
    for made in range(1, limit + 1):
        tau, sigma = 1.0 / (weight * norm), weight / norm
        apply_adjoint(delta, of, current[size:], queries, ahead)
        for k in range(size):
            flat[k] = current[k] + tau * flat[k]
        if len(basis) <= FEW:
            _shorten_few(ahead, tau, basis, W)
        else:
            _shorten_many(ahead, tau, W)
        for k in range(size):
            flat[k] = 2.0 * following[k] - current[k]
        margins_of(delta, of, queries, ahead, margins)
        for k in range(m):
            if free[k]:
                following[size + k] = current[size + k] - sigma * margins[k]
            else:
                following[size + k] = max(0.0, current[size + k] + sigma * (1.0 - margins[k]))
        for k in range(size + m):
            current[k] += RELAXATION * (following[k] - current[k])
            sums[k] += following[k]
        state[SINCE] += 1.0
        state[STEPS] += 1.0
        if state[STEPS] % LOOK != 0.0:
            continue
        state[GAP], error = _value(delta, of, queries, free, following, basis)
        for k in range(size + m):
            best[k] = sums[k] / state[SINCE]
        gap, mean_error = _value(delta, of, queries, free, best, basis)
        if mean_error < error:
            state[GAP], error = gap, mean_error
        else:
            copy(following, best)
        if error < FALL * state[ERROR] or state[SINCE] > LONG * state[STEPS]:
            far_W, far_dual = distance(best[:size], restart[:size]), distance(best[size:], restart[size:])
            if far_W > 0.0 and far_dual > 0.0:
                weight = np.sqrt(weight * far_dual / far_W)
            copy(best, current)
            copy(best, restart)
            for k in range(size + m):
                sums[k] = 0.0
            state[WEIGHT], state[ERROR], state[SINCE] = weight, error, 0.0
        if state[GAP] < target:
            return made
    return limit
