"""The training loop for small trials, compiled: one trial after the other, all of it in cache.

It computes what :mod:`attsvm.training.gradient` computes, scalar by scalar. Weights are plain numbers unless the
largest of a trial is near underflow, and logarithms only then: that spares a second exponential in almost every step.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

LOSS_CODES = {"logistic": 0, "exponential": 1, "correlation": 2}
GD, NORMALIZED, MOMENTUM, SIGN, MIRROR = range(5)
RULE_CODES = {"gd": GD, "normalized_gd": NORMALIZED, "momentum": MOMENTUM, "sign": SIGN, "mirror": MIRROR}

# Past e^+-200 the squares of gradient entries approach the ends of the float64 range: weights become logarithms.
_LOG_FAR = 200.0
# Inner products may be reordered, to use vector instructions. Nothing else may: the compiler would turn gap - drop into
# margin - gamma, two equal numbers, and undo what this file is for.
_FAST: Any = {"reassoc", "contract", "nsz"}


@njit(cache=True)
def _tied_drop(relative, gamma, mask, top, nearest):
    """e^-nearest sum_{t != top} s_t (gamma_top - gamma_t): what a token that ties with the top is pushed by."""
    if nearest == -np.inf:
        return 0.0
    total = 0.0
    tail = 0.0
    for t in range(gamma.shape[0]):
        if mask[t] and t != top:
            gap = gamma[top] - gamma[t]
            tail += math.exp(relative[t])
            if gap != 0.0:
                total += math.exp(relative[t] - nearest) * gap
    return total / (1.0 + tail)


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
def _logit_weights(weights, gamma, mask, loss, masses, rows):
    """Replace logits (n, T) by e^-c g and return c; `masses` (n, T) and `rows` (n, 5) are work space."""
    n, length = weights.shape
    largest = -np.inf
    for i in range(n):
        top = -1
        highest = -np.inf
        for t in range(length):
            if mask[i, t] and (top < 0 or weights[i, t] > highest):
                top = t
                highest = weights[i, t]
        gamma_top = gamma[i, top]
        tail = 0.0
        drop = 0.0
        nearest = -np.inf
        ties = 0
        for t in range(length):
            if mask[i, t] and t != top:
                relative = weights[i, t] - highest
                weights[i, t] = relative
                mass = math.exp(relative)
                masses[i, t] = mass
                gap = gamma_top - gamma[i, t]
                tail += mass
                drop += mass * gap
                if gap == 0.0:
                    ties += 1
                elif relative > nearest:
                    nearest = relative
        drop /= 1.0 + tail
        margin = gamma_top - drop
        if loss == 0:
            log_slope = -math.log1p(math.exp(margin)) if margin < 0.0 else -margin - math.log1p(math.exp(-margin))
        elif loss == 1:
            log_slope = -margin
        else:
            log_slope = 0.0
        shift = log_slope - math.log1p(tail)
        rows[i, 0] = top
        rows[i, 1] = drop
        rows[i, 2] = shift
        rows[i, 3] = nearest
        rows[i, 4] = ties
        largest = max(largest, nearest + shift)
    far = abs(largest) > _LOG_FAR and largest > -np.inf
    scale = largest if far else 0.0
    for i in range(n):
        top = int(rows[i, 0])
        drop = rows[i, 1]
        shift = rows[i, 2] - scale
        nearest = rows[i, 3]
        mantissa = _tied_drop(weights[i], gamma[i], mask[i], top, nearest) if far and rows[i, 4] > 0.0 else 0.0
        factor = 0.0 if far else math.exp(shift)
        rest = 0.0
        for t in range(length):
            weight = 0.0
            if mask[i, t] and t != top:
                gap = gamma[i, top] - gamma[i, t]
                if not far:
                    weight = (gap - drop) * masses[i, t] * factor
                elif gap != 0.0:
                    weight = (gap - drop) * math.exp(weights[i, t] + shift)
                elif mantissa != 0.0:
                    weight = -mantissa * math.exp(weights[i, t] + nearest + shift)
                rest += weight
            weights[i, t] = weight
        weights[i, top] = -rest
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
def _pull_back(weights, tokens, queries, combined, grad):
    """Grad = sum_it g_it x_it z_i^T and its squared Frobenius norm."""
    n, length, dim = tokens.shape
    grad[:] = 0.0
    for i in range(n):
        combined[:] = 0.0
        for t in range(length):
            weight = weights[i, t]
            if weight != 0.0:
                for j in range(dim):
                    combined[j] += weight * tokens[i, t, j]
        for j in range(dim):
            for k in range(queries.shape[1]):
                grad[j, k] += combined[j] * queries[i, k]
    total = 0.0
    for j in range(dim):
        for k in range(queries.shape[1]):
            total += grad[j, k] * grad[j, k]
    return total


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
    masses = np.empty((n, length))
    rows = np.empty((n, 5))
    rotated = np.empty((n, dim))
    combined = np.empty(dim)
    grad = np.empty((W.shape[1], W.shape[2]))
    for b in range(trials):
        for step in range(sizes.shape[0]):
            _rotate(W[b], queries[b], rotated)
            _logits(tokens[b], rotated, weights)
            scale = _logit_weights(weights, gamma[b], mask[b], loss, masses, rows)
            squared = _pull_back(weights, tokens[b], queries[b], combined, grad)
            _update_W(rule, W[b], grad, squared, scale - math.log(n), first + step, sizes[step], power, state[b])


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
    masses = np.empty((n, length))
    rows = np.empty((n, 5))
    rotated = np.empty((n, dim))
    combined = np.empty(dim)
    grad = np.empty((dim, queries.shape[2]))
    W = np.empty((dim, queries.shape[2]))
    for b in range(trials):
        for step in range(sizes.shape[0]):
            np.dot(K[b], Q[b].T, W)
            _rotate(W, queries[b], rotated)
            _logits(tokens[b], rotated, weights)
            scale = _logit_weights(weights, gamma[b], mask[b], loss, masses, rows)
            if _pull_back(weights, tokens[b], queries[b], combined, grad) == 0.0:
                continue
            grad_K = grad @ Q[b]
            grad_Q = grad.T @ K[b]
            squared = (grad_K * grad_K).sum() + (grad_Q * grad_Q).sum()
            if squared == 0.0:
                continue
            factor = sizes[step] / math.sqrt(squared) if rule == NORMALIZED else sizes[step] * math.exp(scale) / n
            if relative:
                factor *= math.sqrt((K[b] * K[b]).sum() + (Q[b] * Q[b]).sum())
            K[b] -= factor * grad_K
            Q[b] -= factor * grad_Q
