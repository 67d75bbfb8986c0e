r"""The compiled training loop for small trials: one trial after the other, so that each stays in cache.

It computes the same as :mod:`attsvm.training.risk.gradient`, scalar by scalar and with few exponentials. Let `second`
be the highest token of a row whose score differs from the top token's score. Let `near` be its logit minus the top
logit. Every factor that vanishes with saturation goes into one exponent per row,

.. math:: s_t\,|l'(u)| = e^{r_t - near}\ \frac{1}{1 + tail}\ \rho\; e^{near - \max(u, 0)},
   \qquad |l'(u)| = \rho\, e^{-\max(u, 0)},\quad \rho = \frac{1}{1 + e^{-|u|}} \text{ (logistic)},

and the largest exponent over the rows of a trial is factored out: nothing overflows, nothing cancels, and no logarithm
is taken.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import boolean, float64, int64

from attsvm.platform.kernels import kernel

LOSS_CODES = {"logistic": 0, "exponential": 1, "correlation": 2}
GD, NORMALIZED, APART, MOMENTUM, SIGN, MIRROR = range(6)
W_RULES = {"gd": GD, "normalized_gd": NORMALIZED, "momentum": MOMENTUM, "sign": SIGN, "mirror": MIRROR}
KQ_RULES = {"gd": GD, "normalized_gd": NORMALIZED, "separately_normalized_gd": APART}

# Only inner products may be reordered, to use vector instructions. Elsewhere the compiler would rewrite gap - drop as
# margin - gamma, the difference of two equal numbers that this module avoids.
_FAST: Any = {"reassoc", "contract", "nsz"}

# Tokens, transposed tokens, queries, transposed queries, scores, mask, and the codes of loss and rule.
TRIALS = (
    float64[:, :, :, ::1], float64[:, :, :, ::1], float64[:, :, ::1], float64[:, :, ::1],
    float64[:, :, ::1], boolean[:, :, ::1], int64, int64,
)  # fmt: skip


@kernel(inner=True, fastmath=_FAST)
def _products(matrices, vectors, result):
    """Set result_i = M_i y_i for matrices (n, p, q) and vectors (n, q): logits, and their adjoint."""
    for i in range(matrices.shape[0]):
        for j in range(matrices.shape[1]):
            total = 0.0
            for k in range(matrices.shape[2]):
                total += matrices[i, j, k] * vectors[i, k]
            result[i, j] = total


@kernel(inner=True, fastmath=_FAST)
def _product(left, right, result):
    """Set result = left right^T for (p, q) and (r, q): sums run along contiguous rows, which vectorise."""
    for i in range(left.shape[0]):
        for j in range(right.shape[0]):
            total = 0.0
            for k in range(left.shape[1]):
                total += left[i, k] * right[j, k]
            result[i, j] = total


@kernel(inner=True)
def _transpose(matrix, result):
    """Set result = matrix^T."""
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            result[j, i] = matrix[i, j]


@kernel(inner=True)
def _logit_weights(weights, gamma, mask, loss, rows):
    """Replace logits (n, T) by e^-c g and return c; `rows` (n, 2) is workspace."""
    n, length = weights.shape
    scale = -np.inf
    for i in range(n):
        top = -1
        highest = -np.inf
        for t in range(length):
            if mask[i, t] and (top < 0 or weights[i, t] > highest):
                top = t
                highest = weights[i, t]
        gamma_top = gamma[i, top]
        second = -np.inf
        for t in range(length):
            if mask[i, t] and t != top and weights[i, t] > second and gamma[i, t] != gamma_top:
                second = weights[i, t]
        near = second - highest
        share = math.exp(near)
        rest = 0.0
        push = 0.0
        tied = 0.0
        for t in range(length):
            mass = 0.0
            if mask[i, t] and t != top:
                gap = gamma_top - gamma[i, t]
                if gap != 0.0:
                    mass = math.exp(weights[i, t] - second)
                    rest += mass
                    push += mass * gap
                else:
                    mass = math.exp(weights[i, t] - highest)
                    tied += mass
            weights[i, t] = mass
        total = 1.0 + share * rest + tied
        push /= total
        drop = share * push
        margin = gamma_top - drop
        factor = 1.0 / total
        exponent = near
        if loss == 0:
            factor /= 1.0 + math.exp(-abs(margin))
            exponent -= max(margin, 0.0)
        elif loss == 1:
            exponent -= margin
        for t in range(length):
            gap = gamma_top - gamma[i, t]
            weights[i, t] *= factor * (gap - drop if gap != 0.0 else -push)
        rows[i, 0] = top
        rows[i, 1] = exponent
        scale = max(scale, exponent)
    if scale == -np.inf:
        scale = 0.0
    for i in range(n):
        factor = math.exp(rows[i, 1] - scale)
        rest = 0.0
        for t in range(length):
            weights[i, t] *= factor
            rest += weights[i, t]
        weights[i, int(rows[i, 0])] = -rest
    return scale


@kernel(inner=True, fastmath=_FAST)
def _squares(matrix):
    """Return the sum of the squares of the entries."""
    total = 0.0
    for j in range(matrix.shape[0]):
        for k in range(matrix.shape[1]):
            total += matrix[j, k] * matrix[j, k]
    return total


@kernel(inner=True, fastmath=_FAST)
def _subtract(factor, step, matrix):
    """Subtract factor * step from `matrix`."""
    for j in range(matrix.shape[0]):
        for k in range(matrix.shape[1]):
            matrix[j, k] -= factor * step[j, k]


@kernel(inner=True)
def _normalized_step(size, relative, grad, matrix):
    """Make one step along the normalised gradient, in place; a zero gradient leaves the matrix unchanged."""
    squared = _squares(grad)
    if squared > 0.0:
        _subtract(size * (math.sqrt(_squares(matrix)) if relative else 1.0) / math.sqrt(squared), grad, matrix)


@kernel(inner=True, inline="always")
def _update_W(rule, W, grad, squared, log_scale, step, size, power, state):
    """Make one step on W in place, by a rule of :mod:`attsvm.training.optimisers`."""
    factor = 1.0 / math.sqrt(squared) if squared > 0.0 else 1.0
    if rule == GD:
        factor = math.exp(log_scale)
    elif rule == MIRROR:
        conjugate = power / (power - 1.0)
        total = 0.0
        for j in range(W.shape[0]):
            for k in range(W.shape[1]):
                total += abs(grad[j, k] * factor) ** conjugate
        factor *= total ** (-1.0 / conjugate) if total > 0.0 else 1.0
    beta = step / (step + 1.0)
    for j in range(W.shape[0]):
        for k in range(W.shape[1]):
            entry = grad[j, k]
            if rule == SIGN:
                W[j, k] -= size * np.sign(entry)
            elif rule == MOMENTUM:
                direction = entry * factor
                state[j, k] = beta * (state[j, k] + direction)
                W[j, k] -= size * (state[j, k] + direction)
            elif rule == MIRROR:
                state[j, k] -= size * entry * factor
                W[j, k] = np.sign(state[j, k]) * abs(state[j, k]) ** (1.0 / (power - 1.0))
            else:
                W[j, k] -= size * entry * factor


@kernel((*TRIALS, float64[::1], int64, float64, float64[:, :, ::1], float64[:, :, ::1]))
def advance_W(tokens, columns, queries, key_columns, gamma, mask, loss, rule, sizes, first, power, W, state):
    """Run len(sizes) steps on every trial, in place.

    Parameters
    ----------
    tokens, queries, gamma, mask : arrays (B, n, T, d), (B, n, dz), (B, n, T), (B, n, T) bool
    columns, key_columns : arrays (B, n, d, T), (B, dz, n)
        Tokens and queries transposed.
    loss, rule : int
        Values of LOSS_CODES and W_RULES.
    sizes : array (steps,)
        Step sizes.
    first : int
        Number of earlier steps.
    power : float
        Exponent p of mirror descent.
    W, state : arrays (B, d, dz)
        Updated in place; `state` is the momentum, or the mirror image of W.
    """
    trials, n, length, dim = tokens.shape
    weights = np.empty((n, length))
    rows = np.empty((n, 2))
    rotated = np.empty((n, dim))
    average = np.empty((n, dim))
    across = np.empty((dim, n))
    grad = np.empty((W.shape[1], W.shape[2]))
    for b in range(trials):
        for step in range(sizes.shape[0]):
            _product(queries[b], W[b], rotated)
            _products(tokens[b], rotated, weights)
            scale = _logit_weights(weights, gamma[b], mask[b], loss, rows)
            _products(columns[b], weights, average)
            _transpose(average, across)
            _product(across, key_columns[b], grad)
            _update_W(rule, W[b], grad, _squares(grad), scale - math.log(n), first + step, sizes[step], power, state[b])


@kernel((*TRIALS, boolean, float64[::1], float64[:, :, ::1], float64[:, :, ::1]))
def advance_KQ(tokens, columns, queries, key_columns, gamma, mask, loss, rule, relative, sizes, K, Q):
    """Run len(sizes) steps on the factors of W = K Q^T, in place: plain, jointly or separately normalised.

    Parameters
    ----------
    tokens, columns, queries, key_columns, gamma, mask, loss, rule, sizes
        As for :func:`advance_W`, with a rule of KQ_RULES.
    relative : bool
        Whether a step is also multiplied by a Frobenius norm: of (K, Q), or of each factor if normalised separately.
    K, Q : arrays (B, d, m), (B, dz, m)
        Updated in place.
    """
    trials, n, length, dim = tokens.shape
    rank = K.shape[2]
    weights = np.empty((n, length))
    rows = np.empty((n, 2))
    query_products = np.empty((n, rank))
    query_products_across = np.empty((rank, n))
    rotated = np.empty((n, dim))
    average = np.empty((n, dim))
    across = np.empty((dim, n))
    key_average_across = np.empty((rank, n))
    K_across = np.empty((rank, dim))
    Q_across = np.empty((rank, Q.shape[1]))
    grad_K = np.empty(K.shape[1:])
    grad_Q = np.empty(Q.shape[1:])
    for b in range(trials):
        for step in range(sizes.shape[0]):
            _transpose(Q[b], Q_across)
            _transpose(K[b], K_across)
            _product(queries[b], Q_across, query_products)
            _product(query_products, K[b], rotated)
            _products(tokens[b], rotated, weights)
            scale = _logit_weights(weights, gamma[b], mask[b], loss, rows)
            _products(columns[b], weights, average)
            _transpose(average, across)
            _transpose(query_products, query_products_across)
            _product(K_across, average, key_average_across)
            _product(across, query_products_across, grad_K)
            _product(key_columns[b], key_average_across, grad_Q)
            if rule == APART:
                _normalized_step(sizes[step], relative, grad_K, K[b])
                _normalized_step(sizes[step], relative, grad_Q, Q[b])
                continue
            squared = _squares(grad_K) + _squares(grad_Q)
            if squared == 0.0:
                continue
            factor = sizes[step] / math.sqrt(squared) if rule == NORMALIZED else sizes[step] * math.exp(scale) / n
            if relative:
                factor *= math.sqrt(_squares(K[b]) + _squares(Q[b]))
            _subtract(factor, grad_K, K[b])
            _subtract(factor, grad_Q, Q[b])
