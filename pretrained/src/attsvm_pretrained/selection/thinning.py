"""Draw fewer tokens per query, so that the cost of an SVM does not grow with the length of the texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attsvm_pretrained.heads.head import AttentionHead


def choices(mask: np.ndarray, most: int, sample: int) -> int | None:
    """Return the number of tokens per query that limits the constraints; None if they are few already.

    Parameters
    ----------
    mask : ndarray of bool, shape (n, T)
    most : int
        Number of constraints above which tokens are drawn.
    sample : int
        Approximate number of constraints to draw then.
    """
    return None if int(mask.sum()) - len(mask) <= most else max(2, sample // len(mask) + 1)


def drawn_tokens(
    mask: np.ndarray, count: int, rng: np.random.Generator, certain: Sequence[np.ndarray] = ()
) -> np.ndarray:
    """Draw some of the tokens that each query sees, without regard to attention.

    Parameters
    ----------
    mask : ndarray of bool, shape (n, T)
    certain : sequence of ndarray of int, shape (n,)
        Tokens of each query that are always included; fewer than count.

    Returns
    -------
    ndarray of int, shape (n, count)
        Indices in the order of the text; hidden tokens come last if a query sees fewer.
    """
    rank = np.where(mask, rng.random(mask.shape), np.inf)
    for tokens in certain:
        rank[np.arange(len(mask)), tokens] = -1.0
    keep = np.zeros_like(mask)
    np.put_along_axis(keep, rank.argsort(axis=1)[:, :count], values=True, axis=1)
    return np.argsort(~(keep & mask), axis=1, kind="stable")[:, :count]


def thin(head: AttentionHead, columns: np.ndarray) -> AttentionHead:
    """Restrict each query to some of its tokens, as a separate sequence, with normalised attention.

    The columns (n, count) are those of :func:`drawn_tokens`. The query's own token follows, hidden, so that its
    position is known.
    """
    mask = np.take_along_axis(head.mask, columns, axis=1)
    position = head.position
    if head.self_attention:
        columns = np.concatenate([columns, head.position[:, None]], axis=1)
        mask = np.concatenate([mask, np.zeros((len(mask), 1), dtype=bool)], axis=1)
        position = np.full(len(mask), mask.shape[1] - 1)
    where = head.sequence[:, None], columns

    def select(values: np.ndarray) -> np.ndarray:
        return np.where(mask, np.take_along_axis(values, columns, axis=1), 0.0)

    probability = select(head.probabilities)
    total = np.maximum(probability.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    turns = head.turns
    return replace(
        head,
        tokens=head.tokens[where],
        sequence=np.arange(len(mask)),
        position=position,
        text_place=head.text_place[where],
        mask=mask,
        turns=None if turns is None else replace(turns, tokens=turns.tokens[where]),
        bias=None if head.bias is None else select(head.bias),
        relative=tuple(replace(form, index=np.take_along_axis(form.index, columns, axis=1)) for form in head.relative),
        probabilities=probability / total,
        ids=None if head.ids is None else head.ids[where],
        texts=None,
        special=None if head.special is None else head.special[where],
    )
