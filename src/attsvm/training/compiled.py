r"""The training loop for small trials, compiled: one trial after the other, all of it in cache.

It computes what :mod:`attsvm.training.gradient` computes, scalar by scalar and with few exponentials. Let `second` be
the highest token of a row whose score differs from the top's, and `near` its logit less the top's. Every factor that
vanishes with saturation is put into one exponent a row,

.. math:: s_t\,|l'(u)| = e^{r_t - near}\ \frac{1}{1 + tail}\ \rho\; e^{near - \max(u, 0)},
   \qquad |l'(u)| = \rho\, e^{-\max(u, 0)},\quad \rho = \frac{1}{1 + e^{-|u|}} \text{ (logistic)},

and the largest of these exponents over the rows of a trial is factored out: nothing overflows, nothing cancels, and no
logarithm is taken.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

LOSS_CODES = {"logistic": 0, "exponential": 1, "correlation": 2}
GD, NORMALIZED, MOMENTUM, SIGN, MIRROR = range(5)
RULE_CODES = {"gd": GD, "normalized_gd": NORMALIZED, "momentum": MOMENTUM, "sign": SIGN, "mirror": MIRROR}

# Inner products may be reordered, to use vector instructions. Nothing else may: the compiler would turn gap - drop into
# margin - gamma, two equal numbers, and undo what this file is for.
_FAST: Any = {"reassoc", "contract", "nsz"}


@njit(cache=True, fastmath=_FAST)
def _logits(tokens, rotated, logits):
    """logits_it = x_it^T rotated_i, shape (n, T)."""
    for i in range(tokens.shape[0]):
        for t in range(tokens.shape[1]):
            total = 0.0
            for j in range(tokens.shape[2]):
                total += tokens[i, t, j] * rotated[i, j]
            logits[i, t] = total


@njit(cache=True)
def _logit_weights(weights, gamma, mask, loss, rows):
    """Replace logits (n, T) by e^-c g and return c; `rows` (n, 2) is work space."""
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


@njit(cache=True, fastmath=_FAST)
def _rotate(W, queries, rotated):
    """rotated_i = W z_i, shape (n, d)."""
    for i in range(queries.shape[0]):
        for j in range(W.shape[0]):
            total = 0.0
            for k in range(W.shape[1]):
                total += W[j, k] * queries[i, k]
            rotated[i, j] = total


@njit(cache=True, fastmath=_FAST)
def _rotate_back(W, vectors, rotated):
    """rotated_i = W^T y_i, shape (n, dz)."""
    rotated[:] = 0.0
    for i in range(vectors.shape[0]):
        for j in range(W.shape[0]):
            for k in range(W.shape[1]):
                rotated[i, k] += W[j, k] * vectors[i, j]


@njit(cache=True, fastmath=_FAST)
def _combine(weights, tokens, combined):
    """Set combined = sum_t g_t x_t, shape (d,)."""
    combined[:] = 0.0
    for t in range(tokens.shape[0]):
        for j in range(tokens.shape[1]):
            combined[j] += weights[t] * tokens[t, j]


@njit(cache=True, fastmath=_FAST)
def _add_outer(left, right, total):
    """Add left right^T to `total`."""
    for j in range(left.shape[0]):
        for k in range(right.shape[0]):
            total[j, k] += left[j] * right[k]


@njit(cache=True, fastmath=_FAST)
def _squares(matrix):
    """Sum of the squares of the entries."""
    total = 0.0
    for j in range(matrix.shape[0]):
        for k in range(matrix.shape[1]):
            total += matrix[j, k] * matrix[j, k]
    return total


@njit(cache=True, fastmath=_FAST)
def _subtract(factor, step, matrix):
    """Subtract factor * step from `matrix`."""
    for j in range(matrix.shape[0]):
        for k in range(matrix.shape[1]):
            matrix[j, k] -= factor * step[j, k]


@njit(cache=True)
def _pull_back(weights, tokens, queries, combined, grad):
    """Grad = sum_it g_it x_it z_i^T."""
    grad[:] = 0.0
    for i in range(tokens.shape[0]):
        _combine(weights[i], tokens[i], combined)
        _add_outer(combined, queries[i], grad)


@njit(cache=True)
def _update_W(rule, W, grad, squared, log_scale, made, size, power, state):
    """Make one step on W in place; see :mod:`attsvm.training.descent` and :mod:`attsvm.training.steepest`."""
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
    beta = made / (made + 1.0)
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


@njit(cache=True, nogil=True)
def advance_W(tokens, queries, gamma, mask, loss, rule, sizes, first, power, W, state):
    """Run len(sizes) steps on every trial, in place.

    Parameters
    ----------
    tokens, queries, gamma, mask : arrays (B, n, T, d), (B, n, dz), (B, n, T), (B, n, T) bool
    loss, rule : int
        Values of LOSS_CODES and RULE_CODES.
    sizes : array (steps,)
        Step sizes.
    first : int
        Number of steps already made.
    power : float
        p of mirror descent.
    W, state : arrays (B, d, dz)
        Updated in place; `state` is the momentum, or the mirror image of W.
    """
    trials, n, length, dim = tokens.shape
    weights = np.empty((n, length))
    rows = np.empty((n, 2))
    rotated = np.empty((n, dim))
    combined = np.empty(dim)
    grad = np.empty((W.shape[1], W.shape[2]))
    for b in range(trials):
        for step in range(sizes.shape[0]):
            _rotate(W[b], queries[b], rotated)
            _logits(tokens[b], rotated, weights)
            scale = _logit_weights(weights, gamma[b], mask[b], loss, rows)
            _pull_back(weights, tokens[b], queries[b], combined, grad)
            _update_W(rule, W[b], grad, _squares(grad), scale - math.log(n), first + step, sizes[step], power, state[b])


@njit(cache=True, nogil=True)
def advance_KQ(tokens, queries, gamma, mask, loss, rule, relative, sizes, K, Q):
    """Run len(sizes) steps on the factors of W = K Q^T, in place, normalised jointly or plain.

    Parameters
    ----------
    tokens, queries, gamma, mask, loss, rule, sizes
        As for :func:`advance_W`, with rules "gd" and "normalized_gd".
    relative : bool
        Whether a step is also multiplied by the Frobenius norm of (K, Q).
    K, Q : arrays (B, d, m), (B, dz, m)
        Updated in place.
    """
    trials, n, length, dim = tokens.shape
    weights = np.empty((n, length))
    rows = np.empty((n, 2))
    asked = np.empty((n, K.shape[2]))
    rotated = np.empty((n, dim))
    combined = np.empty(dim)
    pulled = np.empty((1, K.shape[2]))
    grad_K = np.empty(K.shape[1:])
    grad_Q = np.empty(Q.shape[1:])
    for b in range(trials):
        for step in range(sizes.shape[0]):
            _rotate_back(Q[b], queries[b], asked)
            _rotate(K[b], asked, rotated)
            _logits(tokens[b], rotated, weights)
            scale = _logit_weights(weights, gamma[b], mask[b], loss, rows)
            grad_K[:] = 0.0
            grad_Q[:] = 0.0
            for i in range(n):
                _combine(weights[i], tokens[b, i], combined)
                _rotate_back(K[b], combined.reshape(1, dim), pulled)
                _add_outer(combined, asked[i], grad_K)
                _add_outer(queries[b, i], pulled[0], grad_Q)
            squared = _squares(grad_K) + _squares(grad_Q)
            if squared == 0.0:
                continue
            factor = sizes[step] / math.sqrt(squared) if rule == NORMALIZED else sizes[step] * math.exp(scale) / n
            if relative:
                factor *= math.sqrt(_squares(K[b]) + _squares(Q[b]))
            _subtract(factor, grad_K, K[b])
            _subtract(factor, grad_Q, Q[b])
