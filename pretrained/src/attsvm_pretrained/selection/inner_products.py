r"""Inner products of lifted tokens, and their scores, without the lifted vectors.

The scores under W are summed query by query, :math:`\sum_j \langle z_i,z_j\rangle\langle\phi_{it},v_j\rangle` with
:math:`v_j` the part of W that query j contributes. n queries that see T tokens of width d with F positional features
need n^2 F d + n T F d multiplications, for any number of constraints that support W. If many selections of the same few
tokens are solved, :class:`TokenProducts` stores all inner products, and scores cost one matrix-vector product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.selection.rope import position_features

# Number of entries above which the queries' parts of W are made in chunks.
HELD_ENTRIES = 32_000_000
# Number of entries above which a temporary array is made in blocks: the allocator reuses blocks up to 16 MB.
TEMPORARY_ENTRIES = 2_000_000


@dataclass(frozen=True, eq=False)
class Features:
    """Factors of feature vectors phi = (rho kron x, c), and the query z of each.

    Shapes are (S, F), (S, d), (S, dz) and (S,); c is None if the head has no additive term.
    """

    rho: np.ndarray
    x: np.ndarray
    z: np.ndarray
    c: np.ndarray | None


class Kernel(Protocol):
    """Inner products of the tokens that the queries of a head see."""

    def gram(self, rows: np.ndarray, winners: np.ndarray, losers: np.ndarray) -> np.ndarray:
        """Return the inner products of the constraints (phi_winner - phi_loser) z^T of some queries, (S, S)."""
        ...

    def scores(self, signed: np.ndarray) -> np.ndarray:
        """Return the scores of all tokens under W = sum of signed phi z^T, (n, T)."""
        ...


class Factored:
    """Inner products computed on request."""

    def __init__(self, head: AttentionHead) -> None:
        self._head = head

    def gram(self, rows: np.ndarray, winners: np.ndarray, losers: np.ndarray) -> np.ndarray:
        """See :class:`Kernel`."""
        ups, downs = features(self._head, rows, winners), features(self._head, rows, losers)
        cross = _between(ups, downs)
        return (_between(ups, ups) - cross - cross.T + _between(downs, downs)) * (ups.z @ ups.z.T)

    def scores(self, signed: np.ndarray) -> np.ndarray:
        """See :class:`Kernel`."""
        return scores_under(self._head, self._head, signed)


class TokenProducts:
    """Stored inner products of the M tokens that the queries see; they do not depend on the head's weights.

    Parameters
    ----------
    unweighted : bool
        Whether to store ``tokens``, which doubles the memory.

    Attributes
    ----------
    rows, columns : ndarray of int, shape (M,)
        Query and index of each token.
    tokens : ndarray, shape (M, M)
        Inner products of the lifted tokens, without the inner products of their queries.
    """

    def __init__(self, head: AttentionHead, *, unweighted: bool = True) -> None:
        self._mask = head.mask
        self._queries = head.asking_vectors()
        self.rows, self.columns = np.nonzero(head.mask)
        self._place = np.full(head.mask.shape, -1)
        self._place[head.mask] = np.arange(len(self.rows))
        everything = features(head, self.rows, self.columns)
        self.tokens = _between(everything, everything)
        if not unweighted:
            self._whole = self._weighted(self.tokens)
            del self.tokens

    @cached_property
    def _whole(self) -> np.ndarray:
        return self._weighted(self.tokens.copy())

    def _weighted(self, products: np.ndarray) -> np.ndarray:
        """Multiply by the inner products of the queries, in place."""
        of_queries = (self._queries @ self._queries.T)[:, self.rows]
        for row, query in enumerate(self.rows):
            products[row] *= of_queries[query]
        return products

    def rotate(self, head: AttentionHead) -> None:
        """Multiply products of tokens without positions by the products of a rotary head's positional features."""
        rho = position_features(head, self.rows, self.columns)
        _multiply(self._whole, rho, rho)

    def at(self, columns: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the indices among the M tokens of one token per query, or of one token for each query in ``rows``."""
        return self._place[np.arange(len(self._place)) if rows is None else rows, columns]

    def gram(self, rows: np.ndarray, winners: np.ndarray, losers: np.ndarray) -> np.ndarray:
        """See :class:`Kernel`."""
        ups, downs = self.at(winners, rows), self.at(losers, rows)
        half = self._whole[ups] - self._whole[downs]
        return np.take(half, ups, axis=1) - np.take(half, downs, axis=1)  # in row-major order, for the compiled solver

    def scores(self, signed: np.ndarray) -> np.ndarray:
        """See :class:`Kernel`."""
        out = np.zeros(self._mask.shape)
        out[self._mask] = self._whole @ signed[self._mask]
        return out


def hebbian_scores(train: AttentionHead, test: AttentionHead) -> np.ndarray:
    """Return scores (n, T) of test queries under the training queries' sum of (selected - mean of the others) z^T."""
    rejected = train.mask.copy()
    rejected[np.arange(len(rejected)), train.selected] = False
    weights = rejected / np.maximum(rejected.sum(axis=1, keepdims=True), 1)
    return np.where(test.mask, scores_under(test, train, token_weights(weights, train.selected)), -np.inf)


def features(head: AttentionHead, rows: np.ndarray, columns: np.ndarray) -> Features:
    """Return the factors of the features of tokens (rows, columns)."""
    return Features(
        position_features(head, rows, columns),
        head.tokens[head.sequence[rows], columns],
        head.asking_vectors()[rows],
        None if head.bias is None else head.bias[rows, columns],
    )


def _between(a: Features, b: Features) -> np.ndarray:
    """Return inner products of lifted tokens, without the inner products of their queries."""
    products = a.x @ b.x.T
    if a.rho.shape[1] > 1:  # a single feature is 1
        _multiply(products, a.rho, b.rho)
    return products if a.c is None or b.c is None else products + np.outer(a.c, b.c)


def _multiply(products: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Multiply by the inner products of two sets of rows, in place and block by block."""
    step = max(1, TEMPORARY_ENTRIES // len(b))
    for start in range(0, len(a), step):
        products[start : start + step] *= a[start : start + step] @ b.T


def token_weights(dual: np.ndarray, selected: np.ndarray) -> np.ndarray:
    """Return the weights of the tokens' phi z^T in W = sum dual (phi_selected - phi) z^T, (n, T)."""
    signed = -dual
    signed[np.arange(len(dual)), selected] += dual.sum(axis=1)
    return signed


def scores_under(head: AttentionHead, source: AttentionHead, signed: np.ndarray) -> np.ndarray:
    """Return the scores of a head's visible tokens under W = sum of signed phi z^T over the source's tokens, (n, T)."""
    out = np.zeros(head.mask.shape)
    holders = np.flatnonzero(signed.any(axis=1))
    if not len(holders):
        return out
    size = position_features(source, np.zeros(1, int), np.zeros(1, int)).shape[1] * source.tokens.shape[2]
    step, most = max(1, TEMPORARY_ENTRIES // size), max(1, HELD_ENTRIES // size)
    chunks = [holders[start : start + most] for start in range(0, len(holders), most)]
    first = _part_of(source, signed, chunks[0])
    products = head.asking_vectors() @ source.asking_vectors().T
    if head.bias is not None and source.bias is not None:
        out += head.bias * (products @ (signed * source.bias).sum(axis=1))[:, None]
    for start in range(0, len(out), step):
        rows = slice(start, start + step)
        W = products[rows, chunks[0]] @ first.reshape(len(first), -1)
        for chunk in chunks[1:]:
            W += products[rows, chunk] @ _part_of(source, signed, chunk).reshape(len(chunk), -1)
        for i, map_of_query in enumerate(W.reshape(len(W), *first.shape[1:]), start):
            visible = np.flatnonzero(head.mask[i])
            rho = position_features(head, np.full(len(visible), i), visible)
            keys = head.tokens[head.sequence[i], visible] @ map_of_query.T  # (seen, F)
            out[i, visible] += np.einsum("tf,tf->t", rho, keys)
    return out


def _part_of(source: AttentionHead, signed: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the part of W that each of some queries contributes, sum_t signed rho x^T, (rows, F, d)."""
    width = position_features(source, np.zeros(1, int), np.zeros(1, int)).shape[1]
    out = np.empty((len(rows), width, source.tokens.shape[2]))
    for part, i in zip(out, rows, strict=True):
        columns = np.flatnonzero(signed[i])
        rho = position_features(source, np.full(len(columns), i), columns)
        np.matmul((rho * signed[i, columns, None]).T, source.tokens[source.sequence[i], columns], out=part)
    return out
