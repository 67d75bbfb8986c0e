"""Compiled sums of squared hinges over margins: one pass each, where NumPy takes a dozen.

Margins of ten thousand words do not fit into a processor's cache, so the cost of a step is passes over memory.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, float32, float64, int32, int64

from attsvm.platform.kernels import FAST, kernel, read_only


def _loss_plain(margins, rejected, prices, dual, active):
    short = np.maximum(1.0 - margins, 0.0) * rejected
    np.multiply(short, prices[:, None], out=dual)
    np.greater(short, 0.0, out=active)
    return 0.5 * float(np.vdot(dual, short))


def _slope_plain(margins, change, rejected, prices, length):
    short = np.maximum(1.0 - margins - length * change, 0.0) * rejected
    slope = -prices @ np.einsum("ij,ij->i", short, change)
    return float(slope), float(prices @ np.einsum("ij,ij->i", change * (short > 0), change))


def _moves_plain(scores, chosen, active):
    np.subtract(chosen[:, None], scores, out=scores)
    np.multiply(scores, active, out=scores)


def _curvature_plain(places, pointers, S, queries, reference, prices, out):
    rows = np.repeat(np.arange(len(queries)), np.diff(pointers))
    chosen, z = np.vecdot(S[reference], queries), queries[rows]
    moves = (prices[rows] * (chosen[rows] - np.vecdot(S[places], z)))[:, None] * z
    np.subtract.at(out, places, moves)
    np.add.at(out, reference[rows], moves)


@kernel(
    (float64[:, ::1], read_only(boolean, 2), float64[::1], float64[:, ::1], boolean[:, ::1]),
    fastmath=FAST,
    plain=_loss_plain,
)
def loss_of(margins, rejected, prices, dual, active):
    """Half the sum of prices times squared shortfalls; sets multipliers and whether margins fall short (all m, T)."""
    loss = 0.0
    for i in range(margins.shape[0]):
        total = 0.0
        for t in range(margins.shape[1]):
            short = 1.0 - margins[i, t] if rejected[i, t] else 0.0
            # NaN stays NaN.
            short = 0.0 if short <= 0.0 else short
            active[i, t] = short > 0.0
            dual[i, t] = prices[i] * short
            total += short * short
        loss += 0.5 * prices[i] * total
    return loss


@kernel(
    (float64[:, ::1], float64[:, ::1], read_only(boolean, 2), float64[::1], float64),
    fastmath=FAST,
    plain=_slope_plain,
)
def slope_of(margins, change, rejected, prices, length):
    """Slope and curvature of the losses where margins (m, T) have changed by ``length`` times a change."""
    slope = curvature = 0.0
    for i in range(margins.shape[0]):
        first = second = 0.0
        for t in range(margins.shape[1]):
            move = change[i, t]
            short = 1.0 - margins[i, t] - length * move if rejected[i, t] else 0.0
            first += (0.0 if short <= 0.0 else short) * move
            second += move * move if short > 0.0 else 0.0
        slope -= prices[i] * first
        curvature += prices[i] * second
    return slope, curvature


@kernel((float32[:, ::1], float32[::1], boolean[:, ::1]), fastmath=FAST, plain=_moves_plain)
def subtract_active(scores, chosen, active):
    """Replace scores (m, T) by the chosen token's score (m,) minus them where margins fall short, elsewhere by zero."""
    for i in range(scores.shape[0]):
        for t in range(scores.shape[1]):
            scores[i, t] = chosen[i] - scores[i, t] if active[i, t] else np.float32(0.0)


@kernel(
    (
        int32[::1], int64[::1], float64[:, ::1], read_only(float64, 2), read_only(int64, 1), float64[::1],
        float64[:, ::1],
    ),
    fastmath=FAST,
    plain=_curvature_plain,
)  # fmt: skip
def add_curvature(places, pointers, S, queries, reference, prices, out):
    """Add the product of the losses' curvature and S (T, dz), given the tokens whose margins fall short for a query.

    These are ``places[pointers[i] : pointers[i + 1]]`` for query i.
    """
    dz = queries.shape[1]
    for i in range(len(queries)):
        chosen, total = 0.0, 0.0
        for c in range(dz):
            chosen += S[reference[i], c] * queries[i, c]
        for k in range(pointers[i], pointers[i + 1]):
            t, score = places[k], 0.0
            for c in range(dz):
                score += S[t, c] * queries[i, c]
            move = prices[i] * (chosen - score)
            total += move
            for c in range(dz):
                out[t, c] -= move * queries[i, c]
        for c in range(dz):
            out[reference[i], c] += total * queries[i, c]
