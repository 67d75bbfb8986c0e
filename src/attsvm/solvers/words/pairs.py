"""Pairs of a query and a token whose margins fall short, and compiled sums over them.

For ten thousand words, 0.4 % of the margins fall short after some steps. A step that visits only these margins takes a
fifth of the time of a step over all margins.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, float64, int32, int64

from attsvm.platform.kernels import FAST, call, kernel, read_only
from attsvm.solvers.words.margins import Words

QUERIES = read_only(float64, 2), read_only(int64, 1)
LISTED = int32[::1], int64[::1], float64[::1], float64[::1]


def _advance_plain(V, queries, reference, prices, rows, tokens, relaxation, places, pointers, offsets, taken):
    row = np.repeat(np.arange(len(queries)), np.diff(pointers))
    margins = np.vecdot(V[reference[row]] - V[places], queries[row])
    offsets += relaxation * (taken - offsets)
    price = prices[row]
    shares = price / (rows[row] * tokens[places] + price)
    np.multiply(shares, np.minimum(margins + offsets - 1.0, 0.0), out=taken)


def _add_plain(queries, reference, rows, tokens, first, second, places, pointers, offsets, taken, out):
    row = np.repeat(np.arange(len(queries)), np.diff(pointers))
    values = (rows[row] * tokens[places] * (first * offsets + second * taken))[:, None] * queries[row]
    np.subtract.at(out, places, values)
    np.add.at(out, reference[row], values)


def _list_plain(
    scores, chosen, rejected, prices, rows, tokens, places, pointers, offsets, taken, new_places, new_pointers,
    new_offsets, new_taken,
):  # fmt: skip
    margins, listed = chosen[:, None] - scores, slice(pointers[0], pointers[-1])
    old = np.repeat(np.arange(len(chosen)), np.diff(pointers)), places[listed]
    offset, take = np.zeros_like(margins), np.zeros_like(margins)
    offset[old], take[old] = offsets[listed], taken[listed]
    short = np.where(rejected, np.maximum(1.0 - margins, 0.0), 0.0)
    kept = rejected & ((take < 0.0) | (margins - np.abs(offset) < 1.0))
    fresh = kept.copy()
    fresh[old] = False
    take = np.where(fresh, -prices[:, None] / (rows[:, None] * tokens + prices[:, None]) * short, take)
    ends = np.cumsum(kept.sum(axis=1))
    new_pointers[:], size = ends, ends[-1]
    new_places[:size], new_offsets[:size], new_taken[:size] = np.nonzero(kept)[1], offset[kept], take[kept]
    return 0.5 * float(prices @ np.vecdot(short, short))


@kernel(
    (float64[:, ::1], *QUERIES, float64[::1], float64[::1], float64[::1], float64, *LISTED),
    fastmath=FAST,
    plain=_advance_plain,
)
def advance_pairs(V, queries, reference, prices, rows, tokens, relaxation, places, pointers, offsets, taken):
    """Set offsets and what the proximal steps take off anew, after V (T, dz) has moved."""
    for i in range(len(queries)):
        z, row, chosen = queries[i], V[reference[i]], 0.0
        for c in range(len(z)):
            chosen += row[c] * z[c]
        for k in range(pointers[i], pointers[i + 1]):
            row, score = V[places[k]], 0.0
            for c in range(len(z)):
                score += row[c] * z[c]
            offsets[k] += relaxation * (taken[k] - offsets[k])
            share = prices[i] / (rows[i] * tokens[places[k]] + prices[i])
            taken[k] = share * min(chosen - score + offsets[k] - 1.0, 0.0)


@kernel(
    (*QUERIES, float64[::1], float64[::1], float64, float64, *LISTED, float64[:, ::1]),
    fastmath=FAST,
    plain=_add_plain,
)
def add_pairs(queries, reference, rows, tokens, first, second, places, pointers, offsets, taken, out):
    """Add the sum over pairs of weight times (first * offset + second * taken) times a_it to ``out`` (T, dz)."""
    for i in range(len(queries)):
        total, z = 0.0, queries[i]
        for k in range(pointers[i], pointers[i + 1]):
            value = rows[i] * tokens[places[k]] * (first * offsets[k] + second * taken[k])
            total += value
            # A view of the row, without which the sum is not vectorised.
            row = out[places[k]]
            for c in range(len(z)):
                row[c] -= value * z[c]
        row = out[reference[i]]
        for c in range(len(z)):
            row[c] += total * z[c]


@kernel(
    (
        float64[:, ::1], float64[::1], read_only(boolean, 2), float64[::1], float64[::1], float64[::1], *LISTED,
        int32[::1], int64[::1], float64[::1], float64[::1],
    ),
    fastmath=FAST,
    plain=_list_plain,
)  # fmt: skip
def list_pairs(
    scores, chosen, rejected, prices, rows, tokens, places, pointers, offsets, taken, new_places, new_pointers,
    new_offsets, new_taken,
):  # fmt: skip
    """Half the sum of prices times squared shortfalls, given all scores (m, T) and scores of selected tokens (m,).

    Lists anew the pairs that fall short. A listed pair stays while its step takes a part off or its offset matters.
    """
    size, loss = 0, 0.0
    for i in range(scores.shape[0]):
        k, end, total = pointers[i], pointers[i + 1], 0.0
        for t in range(scores.shape[1]):
            offset = take = 0.0
            is_listed = k < end and places[k] == t
            if is_listed:
                offset, take = offsets[k], taken[k]
                k += 1
            short = 1.0 - (chosen[i] - scores[i, t])
            if rejected[i, t] and (short > -abs(offset) or take < 0.0):
                shortfall = max(short, 0.0)
                total += shortfall * shortfall
                if not is_listed:
                    take = -prices[i] / (rows[i] * tokens[t] + prices[i]) * shortfall
                new_places[size], new_offsets[size], new_taken[size] = t, offset, take
                size += 1
        new_pointers[i] = size
        loss += 0.5 * prices[i] * total
    return loss


class Pairs:
    r"""The margins that fall short for a matrix V, and what their proximal steps take off.

    The splitting has a state for each margin: the margin plus what its last proximal step took off. As long as nothing
    is taken off, the state is linear in the steps, so it is the margin of a matrix V that is averaged as the states
    are. The other states differ from it by an offset.

    Attributes
    ----------
    rows : ndarray, shape (n,)
        Weights of the queries.
    tokens : ndarray, shape (T,)
        Weights of the tokens; the weight of a pair is the product.
    """

    def __init__(self, words: Words, rows: np.ndarray, tokens: np.ndarray) -> None:
        self._words, self.rows, self.tokens = words, rows, tokens
        self._pointers = np.zeros(len(rows) + 1, dtype=np.int64)
        self._places, self._offsets, self._taken = np.empty(0, dtype=np.int32), np.empty(0), np.empty(0)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def _listed(self) -> tuple[np.ndarray, ...]:
        return self._places, self._pointers, self._offsets, self._taken

    def renew(self, V: np.ndarray) -> float:
        """List anew the pairs that fall short for V (T, dz); return the loss."""
        words, (_, T) = self._words, self._words.rejected.shape
        size = max(rows.stop - rows.start for rows in words.chunks) * T
        scores, new = np.empty(size), (np.empty(size, dtype=np.int32), np.empty(size), np.empty(size))
        loss, parts, counts = 0.0, [], []
        for rows in words.chunks:
            queries, m = words.queries[rows], rows.stop - rows.start
            part = np.matmul(queries, V.T, out=scores[: m * T].reshape(m, T))
            chosen, ends = np.vecdot(V[words.reference[rows]], queries), np.empty(m, dtype=np.int64)
            arrays = part, chosen, words.rejected[rows], words.prices[rows], self.rows[rows], self.tokens
            old = self._places, self._pointers[rows.start : rows.stop + 1], self._offsets, self._taken
            loss += call(list_pairs, 5 * part.size, *arrays, *old, new[0], ends, *new[1:])
            parts.append([values[: ends[-1]].copy() for values in new])
            counts.append(np.diff(ends, prepend=0))
        self._places, self._offsets, self._taken = (np.concatenate(each) for each in zip(*parts, strict=True))
        np.cumsum(np.concatenate(counts), out=self._pointers[1:])
        return loss

    def advance(self, V: np.ndarray, relaxation: float) -> None:
        """Take the proximal steps after V (T, dz) has moved."""
        words = self._words
        arrays = V, words.queries, words.reference, words.prices, self.rows, self.tokens, relaxation
        call(advance_pairs, (3 * len(self) + len(self.rows)) * V.shape[1], *arrays, *self._listed)

    def _sum(self, first: float, second: float) -> np.ndarray:
        words, out = self._words, np.zeros(self._words.shape)
        arrays = words.queries, words.reference, self.rows, self.tokens, first, second
        call(add_pairs, (3 * len(self) + len(self.rows)) * out.shape[1], *arrays, *self._listed, out)
        return out

    def right_side(self) -> np.ndarray:
        """Return what states and steps add to the right-hand side of the next V, (T, dz)."""
        return self._sum(1.0, -2.0)

    def adjoint(self) -> np.ndarray:
        """Return A^T of the multipliers, rows over the entries of their tokens (T, dz)."""
        return self._sum(0.0, -1.0)

    def per_row(self, values: np.ndarray) -> np.ndarray:
        """Repeat a value of each query (n,) for each of its pairs."""
        return np.repeat(values, np.diff(self._pointers))

    def values(self) -> np.ndarray:
        """Return the multiplier of each pair."""
        return -self._weights() * self._taken

    def _weights(self) -> np.ndarray:
        return self.per_row(self.rows) * self.tokens[self._places]

    def reweigh(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """Change the weights, not the margins and the multipliers."""
        multipliers = self.values()
        self.rows, self.tokens = rows, tokens
        taken = -multipliers / self._weights()
        self._offsets += taken - self._taken
        self._taken = taken

    def per_token(self, values: np.ndarray) -> np.ndarray:
        """Add up a value of each pair for each token, (T,)."""
        return np.bincount(self._places, values, len(self.tokens))

    def multipliers(self) -> np.ndarray:
        """Return the multipliers (n, T)."""
        out = np.zeros(self._words.rejected.shape)
        out[self.per_row(np.arange(len(self.rows))), self._places] = self.values()
        return out
