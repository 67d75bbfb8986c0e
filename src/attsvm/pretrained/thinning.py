"""Fewer tokens for each query to choose among: the cost of an SVM then does not grow with the length of the texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attsvm.pretrained.head import AttentionHead


def choices(mask: np.ndarray, most: int, sample: int) -> int | None:
    """Return among how many tokens each query may choose so that the constraints stay few; None when all may stay.

    Parameters
    ----------
    mask : ndarray of bool, shape (n, T)
    most : int
        Constraints that are few enough as they are.
    sample : int
        About how many are drawn where there are more.
    """
    return None if int(mask.sum()) - len(mask) <= most else max(2, sample // len(mask) + 1)


def drawn_tokens(
    mask: np.ndarray, count: int, rng: np.random.Generator, certain: Sequence[np.ndarray] = ()
) -> np.ndarray:
    """Draw some of the tokens that each query sees, without regard to attention.

    Parameters
    ----------
    mask : ndarray of bool, shape (n, T)
    count : int
    rng : Generator
    certain : sequence of ndarray of int, shape (n,)
        Tokens of each query that are among them in any case; fewer than count.

    Returns
    -------
    ndarray of int, shape (n, count)
        In the order of the text; hidden tokens stand last, where a query sees fewer.
    """
    rank = np.where(mask, rng.random(mask.shape), np.inf)
    for tokens in certain:
        rank[np.arange(len(mask)), tokens] = -1.0
    keep = np.zeros_like(mask)
    np.put_along_axis(keep, rank.argsort(axis=1)[:, :count], values=True, axis=1)
    return np.argsort(~(keep & mask), axis=1, kind="stable")[:, :count]


def thin(head: AttentionHead, columns: np.ndarray) -> AttentionHead:
    """Leave each query a few of its tokens, as a sequence of its own, and the share of attention it pays them.

    Parameters
    ----------
    head : AttentionHead
    columns : ndarray of int, shape (n, count)
        As :func:`drawn_tokens` returns them. The query's own token follows, hidden, so that its place is known.
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
