r"""Margins of a shard, block by block, in one read of the tokens and without arrays of their size.

If every query has its own tokens, differences are computed entry by entry as the tokens stream through. If all queries
read the same V tokens (next-token prediction), the scores of a block of queries are one matrix product and margins are
their differences. This takes n V d multiplications but does not store n V d numbers. A difference of scores has a
larger error than a score of differences; its length is taken to be :math:`(|x_\alpha| + |x_t|)|z|`, which covers the
error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numba import float32, float64, int64, types

from attsvm.core.error_free import gamma
from attsvm.core.rounding import lengths_above, row_lengths, squares_of
from attsvm.data.shard_pieces import Shard
from attsvm.platform.kernels import FAST, call, kernel
from attsvm.platform.paging import Pages, rows_in_chunk

# Number of arrays of the size of a block's margins that are held at once, in addition to its tokens.
ARRAYS = 8


@dataclass(frozen=True, eq=False)
class Block:
    """Some queries of a shard, and their margins under one or more W.

    Attributes
    ----------
    margins : ndarray, shape (k, rows, T)
        Margins under each of k matrices.
    lengths : ndarray, shape (rows, T)
        Upper bounds on the lengths of the constraints.
    fixed : ndarray of bool, shape (rows, T)
        Constraints whose margin is zero under every W.
    rejected, tied : ndarray of bool, shape (rows, T)
    reference : ndarray, shape (rows,)
    tokens : ndarray, shape (rows, T, d), or (T, d)
        float64 or float32; (T, d) if all queries read the same tokens.
    queries : ndarray, shape (rows, dz)
    """

    rows: slice
    margins: np.ndarray
    lengths: np.ndarray
    fixed: np.ndarray
    rejected: np.ndarray
    tied: np.ndarray
    reference: np.ndarray
    tokens: np.ndarray
    queries: np.ndarray

    def pick(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Return the tokens at (row, column), each (k,): (k, d) float64."""
        x = self.tokens[column] if self.tokens.ndim == 2 else self.tokens[row, column]
        return x.astype(np.float64)

    def adjoint(self, marks: np.ndarray) -> np.ndarray:
        """Sum of delta_it z_i^T over the marked constraints, (d, dz)."""
        weights = marks.astype(float)
        if self.tokens.ndim == 2:
            references = weights.sum(axis=1)[:, None] * self.tokens[self.reference]  # (rows, d)
            return references.T @ self.queries - self.tokens.T @ (weights.T @ self.queries)
        return np.matmul(weights[:, None, :], _differences(self.tokens, self.reference))[:, 0].T @ self.queries


def blocks(shard: Shard, matrices: np.ndarray) -> Iterator[Block]:
    """Evaluate a shard under matrices (k, d, dz); k may be zero. Raises ValueError if tokens are not finite."""
    _, T, d = shard.tokens.shape
    dz = shard.queries.shape[1]
    row_bytes = 8 * ARRAYS * T if shard.shared else T * max(8 * ARRAYS, shard.tokens.dtype.itemsize * d)
    step = rows_in_chunk(row_bytes)
    words = _real(shard.tokens[:1])[0].astype(np.float64) if shard.shared else None
    kinds = np.zeros(0) if words is None else np.unique(words, axis=0, return_inverse=True)[1].ravel()
    word_lengths = None if words is None else row_lengths(words) * (1 + gamma(d + 8))
    for start in range(0, max(len(shard.queries), 1), step):
        rows = slice(start, min(start + step, len(shard.queries)))
        queries = shard.queries[rows]
        selection, visible = shard.selection(rows), shard.visible(rows)
        reference = selection.argmax(axis=1)
        hidden = (selection & ~visible).any(axis=1)
        if hidden.any():
            row = shard.start + start + int(hidden.argmax())
            raise ValueError(
                f"selected of {shard.name} has a token hidden by mask in row {row}; a visible one was expected."
            )
        u = np.matmul(queries, np.swapaxes(matrices, 1, 2))  # (k, rows, d)
        if words is None or word_lengths is None:
            tokens = _real(shard.tokens[_places(shard.sequence[rows])])
            margins, squares = np.empty((len(u), *selection.shape)), np.empty(selection.shape)
            call(_margins, float(tokens.size) * (2 + len(u)), tokens, reference, u, margins, squares)
            fixed = squares == 0.0
            row, column = np.nonzero(fixed)  # squares of the smallest differences vanish as well
            fixed[row, column] = (tokens[row, reference[row]] == tokens[row, column]).all(axis=1)
            with np.errstate(over="ignore", invalid="ignore"):
                lengths = lengths_above(squares, squares_of(queries), d + dz)
            if lengths is None:
                delta = _differences(tokens, reference)
                lengths = row_lengths(delta) * row_lengths(queries)[:, None] * (1.0 + 1e-12)
            if isinstance(shard.tokens, np.ndarray):
                Pages(shard.tokens).release()
        else:
            tokens = words
            scores = np.matmul(u, words.T)  # (k, rows, V)
            margins = np.take_along_axis(scores, reference[None, :, None], axis=2) - scores
            fixed = kinds[reference][:, None] == kinds
            longest = row_lengths(queries) * (1 + gamma(dz + 8))
            lengths = (word_lengths[reference][:, None] + word_lengths) * longest[:, None] * (1 + gamma(8))
        if not (np.isfinite(lengths).all() or np.isfinite(tokens).all()):
            wrong = int((~np.isfinite(tokens)).any(axis=-1).ravel().argmax())
            # A row of the file is a word, a query's tokens, or a sequence that queries name.
            row = wrong if words is not None else shard.token_row(start + wrong // tokens.shape[1])
            raise ValueError(f"tokens of {shard.name} has NaN or infinity in row {row}; finite numbers were expected.")
        tied = selection & (np.arange(selection.shape[1]) != reference[:, None])
        fixed |= ~queries.any(axis=1, keepdims=True)
        yield Block(rows, margins, lengths, fixed, visible & ~selection, tied, reference, tokens, queries)


def _places(sequence: np.ndarray) -> slice | np.ndarray:
    """Turn consecutive sequences into a slice, which copies nothing."""
    consecutive = bool(len(sequence)) and bool((np.diff(sequence) == 1).all())
    return slice(int(sequence[0]), int(sequence[-1]) + 1) if consecutive else sequence


def _real(tokens: np.ndarray) -> np.ndarray:
    """Return single and double precision unchanged, other dtypes as double, contiguous."""
    plain = np.asarray(tokens)
    return np.ascontiguousarray(plain if plain.dtype in (np.float32, np.float64) else plain.astype(np.float64))


def _differences(tokens: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Subtract every token from its reference, (rows, T, d) float64."""
    x = tokens.astype(np.float64, copy=False)
    return x[np.arange(len(x)), reference][:, None] - x


def _margins_plain(
    tokens: np.ndarray, reference: np.ndarray, u: np.ndarray, margins: np.ndarray, squares: np.ndarray
) -> None:
    delta = _differences(tokens, reference)
    margins[:] = np.matmul(delta[None], u[..., None])[..., 0]
    squares[:] = squares_of(delta)


# Single or double precision, in an array or in a file that is mapped.
@kernel(
    *(
        (
            types.Array(real, 3, "C", readonly=is_mapped),
            int64[::1],
            float64[:, :, ::1],
            float64[:, :, ::1],
            float64[:, ::1],
        )
        for real in (float32, float64)
        for is_mapped in (False, True)
    ),
    fastmath=FAST,
    plain=_margins_plain,
)
def _margins(
    tokens: np.ndarray, reference: np.ndarray, u: np.ndarray, margins: np.ndarray, squares: np.ndarray
) -> None:
    """Margins (k, rows, T) of tokens (rows, T, d) under u = W z (k, rows, d), and squared lengths of differences."""
    rows, T, d = tokens.shape
    k = len(u)
    for i in range(rows):
        best = reference[i]
        for t in range(T):
            square = 0.0
            for m in range(k):
                total = 0.0
                for j in range(d):
                    total += (np.float64(tokens[i, best, j]) - np.float64(tokens[i, t, j])) * u[m, i, j]
                margins[m, i, t] = total
            for j in range(d):
                gap = np.float64(tokens[i, best, j]) - np.float64(tokens[i, t, j])
                square += gap * gap
            squares[i, t] = square
