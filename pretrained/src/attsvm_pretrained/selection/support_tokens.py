"""The support tokens of a fitted selection, with their texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm_pretrained.heads.head import AttentionHead, text_of

# Largest number of support tokens listed.
MOST_LINES = 20
# Number of tokens shown before and after the query of a support token.
AROUND = 4


@dataclass(frozen=True)
class SupportToken:
    """A rejected token with a multiplier of the SVM.

    Attributes
    ----------
    multiplier : float
        Share of the sum of all multipliers.
    sequence : int
        Number of the sequence in the head's inputs.
    query, selected, token : int
        Positions in the text: of the query, of the token that it attends to most, and of the support token.
    texts : tuple of str
        Texts of these three tokens; empty if the head has none.
    context : tuple of str
        Tokens around the query.
    """

    multiplier: float
    sequence: int
    query: int
    selected: int
    token: int
    texts: tuple[str, ...]
    context: tuple[str, ...]


def support_tokens(
    head: AttentionHead, rows: np.ndarray, train: AttentionHead, dual: np.ndarray
) -> tuple[SupportToken, ...]:
    """List the rejected tokens with the largest multipliers (k, T) of a fit on ``train``, rows (k,) of the head."""
    total = float(dual.sum()) or 1.0
    tokens = []
    for flat in np.argsort(-dual.ravel(), kind="stable")[:MOST_LINES]:
        i, t = np.unravel_index(flat, dual.shape)
        if dual[i, t] <= 0:
            break
        share = float(dual[i, t] / total)
        sequence, q, s = int(head.sequence[rows[i]]), int(train.position[i]), int(train.selected[i])
        in_text = head.text_place[sequence]
        words = None if head.texts is None else text_of(head, sequence)
        q, s, t = int(in_text[q]) if head.self_attention else q, int(in_text[s]), int(in_text[t])
        texts = () if words is None else ((words[q] if head.self_attention else ""), words[s], words[t])
        context = () if words is None or not head.self_attention else words[max(0, q - AROUND) : q + AROUND + 1]
        tokens.append(SupportToken(share, sequence, q, s, t, texts, tuple(context)))
    return tuple(tokens)
