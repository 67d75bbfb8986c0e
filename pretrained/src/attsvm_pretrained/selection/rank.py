r"""The number of query-key coordinates that the heads of a model use.

Two spectra of a head are measured: the singular values of W, and the singular values of
:math:`C_x^{1/2} W C_z^{1/2}`, which describe its scores. C_x is the covariance of tokens around the mean of the tokens
that their query sees, since a constant added to a query's scores changes nothing. C_z is the second moment of queries.
The effective rank is the exponential of the entropy of the normalised singular values (Roy and Vetterli, EUSIPCO 2007).
The second number counts the singular values with 99 % of the squared sum. The spectrum of the scores is the relevant
one: W may have directions that no token has. For rotary heads, whose pairs may not be mixed, the spectrum consists of
the coordinates' energies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.platform.summary import Listed
from attsvm_pretrained.heads.extract import extract_heads
from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.heads.sequences import by_sequence

# Share of the squared sum that the counted singular values have.
ENERGY = 0.99


@dataclass(frozen=True, eq=False, repr=False)
class HeadRank(Listed):
    """The spectrum of one head.

    Attributes
    ----------
    layer, head, width : int
        Width is the number of query-key coordinates.
    weights, scores : float
        Effective ranks of W and of the scores.
    weights99, scores99 : int
        Numbers of singular values with 99 % of the squared sum.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model()
    >>> rank = pretrained.rank_profile(model, inputs)[0]
    >>> 1 <= rank.weights99 <= rank.width, 1 <= rank.scores <= rank.width
    (True, True)
    """

    layer: int
    head: int
    width: int
    weights: float
    scores: float
    weights99: int
    scores99: int


def rank_profile(
    model: Any, inputs: Mapping[str, Any] | Sequence[str], *, layers: Iterable[int] | None = None, tokenizer: Any = None
) -> list[HeadRank]:
    """Measure the ranks of a model's heads on given inputs.

    Parameters
    ----------
    model, inputs, layers, tokenizer
        As for :func:`attsvm.pretrained.extract_heads`.

    Returns
    -------
    list of HeadRank

    Examples
    --------
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model()
    >>> [(rank.head, rank.width) for rank in pretrained.rank_profile(model, inputs)]
    [(0, 8), (1, 8)]
    """
    return list(head_ranks(extract_heads(model, inputs, layers=layers, tokenizer=tokenizer)))


def head_ranks(heads: Iterable[AttentionHead]) -> Iterator[HeadRank]:
    """Yield the ranks of heads; consecutive heads of a layer share the roots of their moments."""
    roots = Roots()
    for head in heads:
        yield roots.rank(head)


class Roots:
    """Roots of the second moments of tokens and queries, computed once for consecutive heads that share both."""

    def __init__(self) -> None:
        self._tokens = self._queries = np.zeros(0)
        self._roots = np.zeros(0), np.zeros(0)
        self._lock = threading.Lock()

    def of(self, head: AttentionHead) -> tuple[np.ndarray, np.ndarray]:
        """Return the roots for a head's tokens and queries."""
        with self._lock:
            if head.tokens is not self._tokens or head.queries is not self._queries:
                self._tokens, self._queries = head.tokens, head.queries
                self._roots = token_root(head), query_root(head)
            return self._roots

    def rank(self, head: AttentionHead) -> HeadRank:
        """Measure the ranks of a head."""
        of_tokens, of_queries = self.of(head)
        if head.rotary:
            weights = np.sqrt(coordinate_energy(head, head.K, head.Q))
            scores = np.sqrt(coordinate_energy(head, of_tokens @ head.K, of_queries @ head.Q))
        else:
            weights = _singular(head.K, head.Q)
            scores = _singular(of_tokens @ head.K, of_queries @ head.Q)
        return HeadRank(
            head.layer,
            head.head,
            head.K.shape[1],
            effective_rank(weights),
            effective_rank(scores),
            _carrying(weights),
            _carrying(scores),
        )


def effective_rank(values: np.ndarray) -> float:
    """Return the exponential of the entropy of nonnegative values over their sum; 0 if all are zero."""
    total = float(values.sum())
    if total <= 0:
        return 0.0
    shares = values[values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def token_root(head: AttentionHead) -> np.ndarray:
    """Return A (m, d) with A^T A the mean covariance of tokens around the mean of their query's visible tokens."""
    total = np.zeros((head.tokens.shape[2],) * 2)
    for j, rows in by_sequence(head.sequence):
        weight = head.mask[rows].astype(float)  # (queries, T)
        count = weight.sum(axis=1)
        # Sum over queries of sum_t (x_t - mean)(x_t - mean)^T, for all queries of a sequence in two products.
        means = (weight @ head.tokens[j]) / count[:, None]
        x = head.tokens[j]
        total += (x * weight.sum(axis=0)[:, None]).T @ x - (means * count[:, None]).T @ means
    return _root(total / max(int(head.mask.sum()), 1))


def query_root(head: AttentionHead) -> np.ndarray:
    """Return a matrix A with A^T A the second moment of the queries."""
    return _root(head.queries.T @ head.queries / len(head.queries))


def coordinate_energy(head: AttentionHead, K: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """Return products of squared column norms of two factors (., dh) of a rotary head; norms are means over pairs."""
    assert head.turns is not None
    energies = [np.square(factor).sum(axis=0) for factor in (K, Q)]
    for values in energies:
        values[head.turns.pairs] = values[head.turns.pairs].mean(axis=1, keepdims=True)
    return energies[0] * energies[1]


def _root(moment: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(moment)
    return np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T


def _singular(K: np.ndarray, Q: np.ndarray) -> np.ndarray:
    triangles = [np.asarray(np.linalg.qr(factor, mode="r")) for factor in (K, Q)]
    return np.linalg.svd(triangles[0] @ triangles[1].T, compute_uv=False)


def _carrying(values: np.ndarray) -> int:
    cumulative = np.cumsum(np.sort(np.square(values))[::-1])
    return int(np.searchsorted(cumulative, ENERGY * cumulative[-1]) + 1) if cumulative[-1] > 0 else 0
