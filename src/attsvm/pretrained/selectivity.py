r"""What a head selects, and how sharply, from its attention alone.

Hardness is measured by the median over queries of the largest probability, and by the size of the smallest set of
tokens that holds 99 % of the attention. Whether a head attends to content or to a place is read from the offset of the
token attended to most (place relative to the query), from how often it is the same place in its text, and from the
share of attention on tokens that the tokenizer adds ([CLS], [SEP]), beside the share uniform attention would give them.
Queries that see one token only say nothing and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.core.summary import Worded
from attsvm.pretrained.head import AttentionHead

MASS = 0.99
# A head whose median largest probability is this or more selects; one whose median set of 99 % holds this part of the
# visible tokens or more averages.
HARD, SOFT = 0.9, 0.5
# Most queries choose by a rule: this share of them agrees with it.
MOSTLY = 0.6


@dataclass(frozen=True, eq=False, repr=False)
class SelectionReport(Worded):
    """How a head attends.

    Attributes
    ----------
    queries : int
        Queries that see at least two tokens.
    top1 : float
        Median of the largest probability.
    set99 : float
        Median size of the smallest set of tokens with 99 % of the attention.
    visible : float
        Median number of tokens a query sees.
    special : float or None
        Share of attention on special tokens; None where they are not known.
    special_uniform : float or None
        The share uniform attention would give them.
    offsets : ndarray of int, shape (m,)
        Place of the token attended to most less the place of the query; empty for cross-attention.
    offset_shares : ndarray, shape (m,)
        Share of queries with that offset.
    place : int
        The most common place in its text of the token attended to most.
    place_share : float
    verdict : {"hard", "soft", "between"}

    Examples
    --------
    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from attsvm import pretrained
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
    >>> inputs = {"input_ids": torch.arange(24).reshape(4, 6)}
    >>> head = pretrained.extract_head(model, 0, 1, inputs)
    >>> report = pretrained.selection_report(head)
    >>> report.special, report.offsets.shape == report.offset_shares.shape
    (None, True)
    """

    queries: int
    top1: float
    set99: float
    visible: float
    special: float | None
    special_uniform: float | None
    offsets: np.ndarray
    offset_shares: np.ndarray
    place: int
    place_share: float
    verdict: str

    @property
    def offset(self) -> tuple[int, float] | None:
        """The most common offset and its share."""
        if not len(self.offsets):
            return None
        best = int(self.offset_shares.argmax())
        return int(self.offsets[best]), float(self.offset_shares[best])

    @property
    def sentence(self) -> str:
        """Say it in one sentence."""
        how = {
            "hard": f"Hard: the token that a query attends to most has {100 * self.top1:.0f} % of its attention "
            "(median)",
            "soft": f"Soft: 99 % of a query's attention takes {self.set99:.0f} of {self.visible:.0f} tokens (median)",
            "between": f"Neither hard nor soft: the token that a query attends to most has {100 * self.top1:.0f} % of "
            f"its attention, and 99 % takes {self.set99:.0f} of {self.visible:.0f} tokens (medians)",
        }[self.verdict]
        return f"{how}; {self.rule}."

    @property
    def rule(self) -> str:
        """Say by what rule most queries choose, if by one of place."""
        if self.offset is not None and self.offset[1] >= MOSTLY:
            offset, share = self.offset
            where = {-1: "the token before", 0: "itself", 1: "the token after"}.get(offset, f"the token at {offset:+d}")
            return f"{100 * share:.0f} % of queries attend most to {where}"
        if self.special is not None and self.special >= MOSTLY:
            return f"{100 * self.special:.0f} % of the attention lies on special tokens"
        if self.place_share >= MOSTLY:
            where = "the first token of the text" if self.place == 0 else f"place {self.place} of the text"
            return f"{100 * self.place_share:.0f} % of queries attend most to {where}"
        return "no rule of place covers most queries"


def selection_report(head: AttentionHead) -> SelectionReport:
    """Measure what a head attends to.

    Parameters
    ----------
    head : AttentionHead

    Returns
    -------
    SelectionReport

    Raises
    ------
    ValueError
        If no query sees two tokens.

    Examples
    --------
    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from attsvm import pretrained
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
    >>> inputs = {"input_ids": torch.arange(24).reshape(4, 6)}
    >>> head = pretrained.extract_head(model, 0, 1, inputs)
    >>> report = pretrained.selection_report(head)
    >>> report.queries, report.visible, report.verdict
    (24, 6.0, 'soft')
    """
    head = asking_heads_queries(head)
    probability = np.where(head.mask, head.probabilities, 0.0)
    n = len(probability)
    visible = head.mask.sum(axis=1)
    falling = np.cumsum(-np.sort(-probability, axis=1), axis=1)
    # Float32 probabilities add up to one within a few roundings; the last token must not be needed for those.
    set99 = (falling < MASS * falling[:, -1:]).sum(axis=1) + 1
    top = probability.max(axis=1)
    special = uniform = None
    if head.special is not None:
        special_tokens = head.special[head.sequence] & head.mask
        special = float((probability * special_tokens).sum(axis=1).mean())
        uniform = float((special_tokens.sum(axis=1) / visible).mean())
    offsets, shares = np.zeros(0, dtype=int), np.zeros(0)
    if head.self_attention:
        offsets, counts = np.unique(head.selected_place - head.query_place, return_counts=True)
        shares = counts / n
    places, counts = np.unique(head.selected_place, return_counts=True)
    median_top, median_set = float(np.median(top)), float(np.median(set99))
    hard, soft = median_top >= HARD, float(np.median(set99 / visible)) >= SOFT
    return SelectionReport(
        queries=n,
        top1=median_top,
        set99=median_set,
        visible=float(np.median(visible)),
        special=special,
        special_uniform=uniform,
        offsets=offsets,
        offset_shares=shares,
        place=int(places[counts.argmax()]),
        place_share=float(counts.max() / n),
        verdict="hard" if hard else "soft" if soft else "between",
    )


def asking_heads_queries(head: AttentionHead) -> AttentionHead:
    """Keep the queries that see at least two tokens.

    Raises
    ------
    ValueError
        If there is none.
    """
    several = head.mask.sum(axis=1) > 1
    if not several.any():
        raise ValueError(
            f"layer {head.layer}, head {head.head} of {head.model} has {len(several)} queries that see one token each; "
            "a query that sees at least two was expected."
        )
    return head if several.all() else head.take(several)
