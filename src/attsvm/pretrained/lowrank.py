r"""Fewer query-key coordinates a head, with its attention kept as well as may be.

A head scores by r = d_h coordinates, :math:`W = KQ^\top`. Three ways to leave fewer:

* **svd**: the best approximation of W itself (Eckart-Young).
* **whitened**: the best approximation of the *scores*: with C_x the covariance of tokens around the mean of what their
  query sees (a constant added to a query's scores changes nothing) and C_z the second moment of queries,
  :math:`\|C_x^{1/2}(W - W_r)C_z^{1/2}\|_F` is smallest for the truncated SVD of :math:`C_x^{1/2} W C_z^{1/2}`. In
  factors that is an SVD of a d_h x d_h matrix, :math:`R_x R_z^\top` of the QR decompositions.
* **distilled**: from there, the factors that minimise the mean KL divergence from the model's attention (L-BFGS),
  adjoint towards the start and kept only where they hold on sequences they were not fitted to.

Rotary heads turn pairs of coordinates, which no rotation of the factors may mix; of them the pairs with the most energy
are kept (of the weights, or of keys and queries), and distilled in the same way. Query heads that share keys are
treated together: one K, several Q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from attsvm.core.summary import Listed
from attsvm.pretrained.head import AttentionHead, Turns, by_sequence

Method = Literal["svd", "whitened", "distilled"]
METHODS = ("svd", "whitened", "distilled")
# L-BFGS works in coordinates in which data vary alike, down to this part of their largest variance: directions that
# tokens hardly take would otherwise collect large weights from rounding alone.
FLOOR = 1e-3
DISTILL_QUERIES, DISTILL_STEPS = 4000, 60
# One sequence in this many judges a distillation; PULL is the price of moving the factors by their own length.
VALIDATION, PULL = 5, 0.3


@dataclass(frozen=True, eq=False, repr=False)
class CompressedHead(Listed):
    """A head with fewer query-key coordinates.

    Attributes
    ----------
    head : AttentionHead
        With the new factors; its probabilities are still the model's own.
    rank : int
    method : {"svd", "whitened", "distilled"}
    kl : float
        Mean divergence KL(model's attention || compressed attention) over queries, in nats.
    top1 : float
        Share of queries whose token attended to most is the same.

    Examples
    --------
    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from attsvm import pretrained
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
    >>> inputs = {"input_ids": torch.arange(24).reshape(4, 6)}
    >>> head = pretrained.extract_head(model, 0, 1, inputs)
    >>> compressed = pretrained.compress_head(head, rank=8)
    >>> compressed.rank, abs(compressed.kl) < 1e-3, compressed.top1
    (8, True, 1.0)
    """

    head: AttentionHead
    rank: int
    method: Method
    kl: float
    top1: float


def compress_head(head: AttentionHead, rank: int, method: Method = "whitened") -> CompressedHead:
    """Reduce the rank of a head's W.

    Parameters
    ----------
    head : AttentionHead
    rank : int
        Query-key coordinates to keep; even for rotary heads.
    method : {"svd", "whitened", "distilled"}

    Returns
    -------
    CompressedHead
        Measured on the head's own inputs; measure on others with :func:`divergence`.

    Raises
    ------
    ValueError
        If `rank` is out of range or `method` unknown.

    Examples
    --------
    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from attsvm import pretrained
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
    >>> inputs = {"input_ids": torch.arange(24).reshape(4, 6)}
    >>> head = pretrained.extract_head(model, 0, 1, inputs)
    >>> compressed = pretrained.compress_head(head, rank=4)
    >>> compressed.head.K.shape, compressed.kl >= 0
    ((16, 4), True)
    """
    (compressed,) = compress_group([head], rank, method)
    kl, top1 = divergence(compressed)
    return CompressedHead(compressed, rank, method, kl, top1)


def compress_group(heads: Sequence[AttentionHead], rank: int, method: Method) -> list[AttentionHead]:
    """Reduce heads that share their keys; otherwise as :func:`compress_head`."""
    width = heads[0].K.shape[1]
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; one of {', '.join(map(repr, METHODS))} was expected.")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= width:
        raise ValueError(f"rank is {rank!r}; an integer from 1 to {width}, the width of the head, was expected.")
    if heads[0].rotary:
        if rank % 2:
            raise ValueError(
                f"rank is {rank}; an even number was expected for a rotary head, whose coordinates come in pairs."
            )
        reduced = _keep_coordinates(heads, rank, method)
    else:
        reduced = _truncate(heads, rank, method)
    return _distill(reduced) if method == "distilled" else reduced


def divergence(head: AttentionHead, attention: np.ndarray | None = None) -> tuple[float, float]:
    """Mean KL(the model's own attention || other attention), and the share of queries with the same top token.

    Parameters
    ----------
    head : AttentionHead
    attention : ndarray, shape (n, T), optional
        Default: what the head's factors give.
    """
    probability, own = head.probabilities, head.attention() if attention is None else attention
    tiny = np.finfo(np.float32).tiny
    terms = np.where(probability > 0, probability * np.log(np.maximum(probability, tiny) / np.maximum(own, tiny)), 0)
    same = np.where(head.mask, own, -1.0).argmax(axis=1) == head.selected
    return float(terms.sum(axis=1).mean()), float(same.mean())


def token_root(head: AttentionHead) -> np.ndarray:
    """Return a matrix A (m, d) with A^T A the mean covariance of tokens around the mean of what their query sees."""
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


def triangle(matrix: np.ndarray) -> np.ndarray:
    """Return R of a QR decomposition."""
    return np.asarray(np.linalg.qr(matrix, mode="r"))


def _root(moment: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(moment)
    return np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T


def _with_floor(root: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Raise a root's small singular values; return it and its inverse."""
    left, sigma, right = np.linalg.svd(root)
    floor = np.maximum(sigma, np.sqrt(FLOOR) * max(sigma[0], np.finfo(float).tiny))
    return torch.from_numpy((left * floor) @ right), torch.from_numpy((right.T / floor) @ left.T).float()


def _truncate(heads: Sequence[AttentionHead], rank: int, method: Method) -> list[AttentionHead]:
    K = heads[0].K
    keys, query_factors = K, [head.Q for head in heads]
    if method != "svd":
        keys = token_root(heads[0]) @ K
        query_factors = [query_root(head) @ head.Q for head in heads]
    Rx, Rz = triangle(keys), triangle(np.concatenate(query_factors))
    left, sigma, right = np.linalg.svd(Rx @ Rz.T)
    root = np.sqrt(sigma[:rank])
    # K_r = K M with R_x M = U_r sqrt(S): the least-squares solution is exact where R_x has full rank.
    mix = np.linalg.lstsq(Rx, left[:, :rank] * root, rcond=None)[0]
    unmix = np.linalg.lstsq(Rz, right[:rank].T * root, rcond=None)[0]
    return [replace(head, K=K @ mix, Q=head.Q @ unmix) for head in heads]


def _keep_coordinates(heads: Sequence[AttentionHead], rank: int, method: Method) -> list[AttentionHead]:
    """Keep the pairs, and unturned coordinates, with the most energy per coordinate."""
    turns = heads[0].turns
    assert turns is not None
    width = heads[0].K.shape[1]
    loose = np.setdiff1d(np.arange(width), turns.pairs)
    energy = coordinate_energy(heads, method)  # (dh,)
    units = [tuple(pair) for pair in turns.pairs.tolist()] + [(int(c), None) for c in loose]
    worth = [float(np.mean([energy[c] for c in unit if c is not None])) for unit in units]
    kept_pairs: list[int] = []
    selection: list[int] = []
    for u in np.argsort(-np.asarray(worth), kind="stable").tolist():
        coordinates = [c for c in units[u] if c is not None]
        if len(selection) + len(coordinates) <= rank:
            selection += coordinates
            if len(coordinates) == 2:
                kept_pairs.append(u)
    kept_pairs.sort()
    columns = np.array(sorted(selection))
    pairs = np.searchsorted(columns, turns.pairs[kept_pairs])
    out = []
    for head in heads:
        assert head.turns is not None
        fewer = Turns(pairs, head.turns.tokens[..., kept_pairs], head.turns.queries[:, kept_pairs])
        out.append(replace(head, K=head.K[:, columns], Q=head.Q[:, columns], turns=fewer, columns=columns))
    return out


def coordinate_energy(heads: Sequence[AttentionHead], method: Method) -> np.ndarray:
    """Product of the mean squares of each coordinate of keys and queries, or of the weights, (dh,); pairs share it."""
    if method == "svd":
        return pair_energy(heads[0], heads[0].K, *(head.Q for head in heads))
    root = token_root(heads[0])
    return pair_energy(heads[0], root @ heads[0].K, *(query_root(head) @ head.Q for head in heads))


def pair_energy(head: AttentionHead, keys: np.ndarray, *queries: np.ndarray) -> np.ndarray:
    """Multiply the squared lengths of the columns of keys and of all queries, (dh,); turned pairs share their mean."""
    assert head.turns is not None
    energies = np.square(keys).sum(axis=0), np.sum([np.square(one).sum(axis=0) for one in queries], axis=0)
    for values in energies:
        values[head.turns.pairs] = values[head.turns.pairs].mean(axis=1, keepdims=True)
    return energies[0] * energies[1]


def _distill(heads: list[AttentionHead]) -> list[AttentionHead]:
    """Minimise the mean divergence over all factors by L-BFGS, and keep the result if it holds on other sequences.

    A pull towards the start keeps directions that the sample says nothing about where they were.
    """
    rng = np.random.default_rng(0)
    sequences = rng.permutation(np.unique(heads[0].sequence))
    validation = np.isin(heads[0].sequence, sequences[: len(sequences) // VALIDATION])
    samples = [_Sample(head.take(~validation), rng) for head in heads]
    scales = [_with_floor(token_root(heads[0])), *(_with_floor(query_root(head)) for head in heads)]
    factors = [torch.from_numpy(heads[0].K), *(torch.from_numpy(head.Q) for head in heads)]
    whitened = [(root @ factor).float().requires_grad_() for (root, _), factor in zip(scales, factors, strict=True)]
    starts = [factor.detach().clone() for factor in whitened]
    pull = [PULL / float(start.square().sum().clamp_min(1e-30)) for start in starts]
    back = [inverse for _, inverse in scales]
    optimizer = torch.optim.LBFGS(whitened, max_iter=DISTILL_STEPS, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        K, *Q = (inverse @ factor for inverse, factor in zip(back, whitened, strict=True))
        total = torch.stack([sample.cross_entropy(K, own) for sample, own in zip(samples, Q, strict=True)]).mean()
        for weight, factor, start in zip(pull, whitened, starts, strict=True):
            total = total + weight * (factor - start).square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    K, *Q = ((inverse @ factor).detach().double().numpy() for inverse, factor in zip(back, whitened, strict=True))
    fitted = [replace(head, K=K, Q=own) for head, own in zip(heads, Q, strict=True)]
    rows = validation if validation.any() else ~validation
    before, after = (sum(divergence(head.take(rows))[0] for head in these) for these in (heads, fitted))
    return fitted if after < before else heads


class _Sample:
    """Some queries of a head as float32 tensors, and the cross-entropy of attention under given factors."""

    def __init__(self, head: AttentionHead, rng: np.random.Generator) -> None:
        if len(head.queries) > DISTILL_QUERIES:
            head = head.take(np.sort(rng.choice(len(head.queries), DISTILL_QUERIES, replace=False)))
        self._tokens = torch.from_numpy(head.tokens).float()
        self._queries = torch.from_numpy(head.queries).float()
        self._sequence = torch.from_numpy(head.sequence)
        self._target = torch.from_numpy(head.probabilities).float()
        self._hidden = torch.from_numpy(~head.mask)
        self._bias = 0.0 if head.bias is None else torch.from_numpy(head.bias).float()
        self._turns = head.turns

    def cross_entropy(self, K: torch.Tensor, Q: torch.Tensor) -> torch.Tensor:
        keys, query_products = self._tokens @ K, self._queries @ Q  # (b, T, r), (n, r)
        if self._turns is not None:
            keys, query_products = (
                _turned(vectors, self._turns.pairs, turns)
                for vectors, turns in ((keys, self._turns.tokens), (query_products, self._turns.queries))
            )
        scores = torch.einsum("ntr,nr->nt", keys[self._sequence], query_products) + self._bias
        logs = torch.log_softmax(scores.masked_fill(self._hidden, -torch.inf), dim=1)
        return -(self._target * logs.masked_fill(self._hidden, 0.0)).sum(dim=1).mean()


def _turned(vectors: torch.Tensor, pairs: np.ndarray, turns: np.ndarray) -> torch.Tensor:
    first, second = torch.from_numpy(pairs[:, 0]), torch.from_numpy(pairs[:, 1])
    cos, sin = (torch.from_numpy(np.ascontiguousarray(part)).float() for part in (np.real(turns), np.imag(turns)))
    a, b = vectors[..., first], vectors[..., second]
    rest = [c for c in range(vectors.shape[-1]) if c not in set(pairs.ravel().tolist())]
    parts = torch.cat([a * cos - b * sin, b * cos + a * sin, vectors[..., rest]], dim=-1)
    order = torch.cat([first, second, torch.tensor(rest, dtype=torch.long)])
    return parts[..., torch.argsort(order)]
