"""The sets of tokens by which heads get types, and the share of attention on them.

:mod:`attsvm_pretrained.selection.types` defines the types, and compares the shares with their null.
"""

from __future__ import annotations

import string

import numpy as np

from attsvm_pretrained.heads.head import AttentionHead

# Largest offset tried for the type "offset".
MOST_OFFSET = 8


def type_sets(head: AttentionHead) -> dict[str, np.ndarray]:
    """Return the sets of tokens of each rule, bool (n, T), without the rules whose sets are all empty."""
    places = head.text_place[head.sequence]  # (n, T)
    sets = {"first": places == head.first_place}
    if head.sink is not None:
        sets["null"] = places == 0
    if head.texts is not None:
        ends = np.array([[_delimits(text) for text in row] for row in head.texts])
        if head.special is not None:
            ends |= head.special
        sets["delimiter"] = ends[head.sequence] & (places > head.first_place)
    if head.self_attention:
        query = head.query_place[:, None]
        sets["first"] &= query > head.first_place
        sets["previous"] = (places == query - 1) & (places >= head.first_place)
        if head.ids is not None:
            # Neighbours are found by position in the text, so that padding between them does not count.
            before = np.full(head.ids.shape, -1)
            for j, row in enumerate(head.text_place):
                tokens = np.flatnonzero(row >= 0)
                before[j, tokens[1:]] = head.ids[j, tokens[:-1]]
            ids = head.ids[head.sequence, head.position][:, None]
            sets["duplicate"] = (head.ids[head.sequence] == ids) & (places != query)
            sets["induction"] = (before[head.sequence] == ids) & (places != query + 1) & (places != query)
    sets = {name: tokens & head.mask for name, tokens in sets.items()}
    return {name: tokens for name, tokens in sets.items() if tokens.any()}


def _delimits(text: str) -> bool:
    bare = text.replace("##", "").strip("Ġ▁Ċ \n\t")
    return not bare or all(character in string.punctuation for character in bare)


def visible_offsets(head: AttentionHead) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return the queries and tokens at each offset, except -1, at which at least half of the queries see a token."""
    if not head.self_attention:
        return {}
    distance = np.where(head.mask, head.text_place[head.sequence] - head.query_place[:, None], MOST_OFFSET + 1)
    out = {}
    for k in range(-MOST_OFFSET, MOST_OFFSET + 1):
        rows, columns = np.nonzero(distance == k)
        if k != -1 and len(rows) >= 0.5 * len(distance):
            out[k] = rows, columns
    return out


def type_scores(
    head: AttentionHead, sets: dict[str, np.ndarray], offsets: dict[int, tuple[np.ndarray, np.ndarray]]
) -> tuple[dict[str, float], int | None]:
    """Return the score of every type, and the best offset."""
    attention = np.where(head.mask, head.probabilities, 0.0)
    scores = {name: float((attention * tokens).sum(axis=1)[tokens.any(axis=1)].mean()) for name, tokens in sets.items()}
    offset = None
    if offsets:
        shares = {k: float(attention[where].mean()) for k, where in offsets.items()}
        offset = max(shares, key=lambda k: shares[k])
        scores["offset"] = shares[offset]
    scores["content"] = _content(head, attention)
    return scores, offset


def _content(head: AttentionHead, attention: np.ndarray) -> float:
    """Return the mean total variation from the mean attention by position or by offset, whichever is nearer."""
    places = head.text_place[head.sequence]
    keys = [places]
    if head.self_attention:
        keys.append(places - head.query_place[:, None])
    distances = []
    for key in keys:
        index = key - key.min()
        total = np.bincount(index[head.mask], weights=attention[head.mask])
        count = np.bincount(index[head.mask])
        mean = np.where(head.mask, (total / np.maximum(count, 1))[np.minimum(index, len(total) - 1)], 0.0)
        mean /= np.maximum(mean.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        distances.append(0.5 * np.abs(attention - mean).sum(axis=1).mean())
    return float(min(distances))
