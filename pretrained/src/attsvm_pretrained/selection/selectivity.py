r"""Measure the selection of a head and its hardness, from its attention alone.

Hardness is measured by the median over queries of the largest probability, and by the size of the smallest set of
tokens with 99 % of the attention. Three numbers distinguish attention to content from attention to a position: the most
common offset of the token attended to most (position relative to the query), the share of queries whose token has the
most common position in its text, and the share of attention on tokens that the tokenizer adds ([CLS], [SEP]). The last
share is compared with uniform attention. Queries that see only one token are omitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from attsvm.platform.summary import Worded
from attsvm_pretrained.heads.head import AttentionHead

# Share of the attention that the smallest counted set of tokens has.
MASS = 0.99
# Median largest probability from which a head is hard.
HARD = 0.9
# Median share of visible tokens with 99 % of the attention from which a head is soft.
SOFT = 0.5
# Share of queries, or of the attention, from which a rule describes a head.
MOSTLY = 0.6


@dataclass(frozen=True, eq=False, repr=False)
class SelectionReport(Worded):
    """How a head attends.

    Attributes
    ----------
    queries : int
        Number of queries that see at least two tokens.
    top1 : float
        Median of the largest probability.
    set99 : float
        Median size of the smallest set of tokens with 99 % of the attention.
    visible : float
        Median number of tokens a query sees.
    special : float or None
        Share of attention on special tokens; None if they are unknown.
    special_uniform : float or None
        Share of the special tokens under uniform attention.
    offsets : ndarray of int, shape (m,)
        Position of the token attended to most minus the position of the query; empty for cross-attention.
    offset_shares : ndarray, shape (m,)
        Share of queries with that offset.
    place : int
        Most common position in its text of the token attended to most; -1 is a null token before the text.
    place_share : float
    verdict : {"hard", "soft", "between"}

    Examples
    --------
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head()
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
        """State the result in one sentence."""
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
        """Describe the rule of place by which most queries select, if there is one."""
        if self.offset is not None and self.offset[1] >= MOSTLY:
            offset, share = self.offset
            where = {-1: "the token before", 0: "itself", 1: "the token after"}.get(offset, f"the token at {offset:+d}")
            return f"{100 * share:.0f} % of queries attend most to {where}"
        if self.special is not None and self.special >= MOSTLY:
            return f"{100 * self.special:.0f} % of the attention lies on special tokens"
        if self.place_share >= MOSTLY:
            titles = {0: "the first token of the text", -1: "the null token before the text"}
            where = titles.get(self.place, f"place {self.place} of the text")
            return f"{100 * self.place_share:.0f} % of queries attend most to {where}"
        return "no rule of place covers most queries"


def selection_report(head: AttentionHead) -> SelectionReport:
    """Measure a head's attention.

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
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head()
    >>> report = pretrained.selection_report(head)
    >>> report.queries, report.visible, report.verdict
    (24, 6.0, 'soft')
    """
    return query_numbers(head).report()


@dataclass(frozen=True, eq=False)
class QueryNumbers:
    """Numbers per query that a report needs, (n,) each; a survey of many texts stores nothing else.

    Attributes
    ----------
    top1 : ndarray
        Largest probability of the query.
    set99, visible : ndarray of int
        Numbers of tokens with 99 % of its attention, and of tokens it sees.
    place : ndarray of int
        Position in its text of the token it attends to most.
    offset : ndarray of int
        This position minus the query's position; empty for cross-attention.
    special, uniform : ndarray
        Share of its attention on special tokens, and share of its visible tokens that are special; empty if special
        tokens are unknown.
    """

    top1: np.ndarray
    set99: np.ndarray
    visible: np.ndarray
    place: np.ndarray
    offset: np.ndarray
    special: np.ndarray
    uniform: np.ndarray

    def with_others(self, others: Sequence[QueryNumbers]) -> QueryNumbers:
        """Append the numbers of other queries."""
        return QueryNumbers(
            *(np.concatenate([getattr(one, field.name) for one in (self, *others)]) for field in fields(self))
        )

    def report(self) -> SelectionReport:
        """Summarise the numbers."""
        offsets, offset_counts = np.unique(self.offset, return_counts=True)
        places, counts = np.unique(self.place, return_counts=True)
        n, median_top = len(self.top1), float(np.median(self.top1))
        soft = float(np.median(self.set99 / self.visible)) >= SOFT
        return SelectionReport(
            queries=n,
            top1=median_top,
            set99=float(np.median(self.set99)),
            visible=float(np.median(self.visible)),
            special=float(self.special.mean()) if len(self.special) else None,
            special_uniform=float(self.uniform.mean()) if len(self.uniform) else None,
            offsets=offsets,
            offset_shares=offset_counts / n,
            place=int(places[counts.argmax()]),
            place_share=float(counts.max() / n),
            verdict="hard" if median_top >= HARD else "soft" if soft else "between",
        )


def query_numbers(head: AttentionHead) -> QueryNumbers:
    """Measure each query that sees at least two tokens; raise ValueError if there is none."""
    rows = has_choice(head)
    sequence = head.sequence[rows]
    special = None if head.special is None else head.special[sequence]
    query_places = head.query_place[rows] - head.first_place if head.self_attention else None
    places = head.text_place[sequence] - head.first_place
    return numbers_of(head.probabilities[rows], head.mask[rows], places, query_places, special)


def numbers_of(
    probabilities: np.ndarray,
    mask: np.ndarray,
    places: np.ndarray,
    query_places: np.ndarray | None,
    special: np.ndarray | None,
) -> QueryNumbers:
    """Measure queries by their attention.

    Parameters
    ----------
    probabilities : ndarray, shape (n, T)
    mask : ndarray of bool, shape (n, T)
        With two tokens or more in each row.
    places : ndarray of int, shape (n, T)
        Positions of the tokens in their texts.
    query_places : ndarray of int, shape (n,), or None
        Positions of the queries, under self-attention.
    special : ndarray of bool, shape (n, T), or None
    """
    probability = np.where(mask, probabilities, 0.0)
    visible = mask.sum(axis=1)
    cumulative = np.cumsum(-np.sort(-probability, axis=1), axis=1)
    # Float32 probabilities do not add up to exactly one, so the attention is compared with their sum.
    set99 = (cumulative < MASS * cumulative[:, -1:]).sum(axis=1) + 1
    selected = np.where(mask, probabilities, -1.0).argmax(axis=1)
    place = places[np.arange(len(places)), selected]
    shares = uniform = np.zeros(0)
    if special is not None:
        special = special & mask
        shares, uniform = (probability * special).sum(axis=1), special.sum(axis=1) / visible
    offset = np.zeros(0, dtype=int) if query_places is None else place - query_places
    return QueryNumbers(probability.max(axis=1), set99, visible, place, offset, shares, uniform)


def has_choice(head: AttentionHead) -> np.ndarray:
    """Return the queries that see at least two tokens, int (m,); raise ValueError if there is none."""
    rows = np.flatnonzero(head.mask.sum(axis=1) > 1)
    if not len(rows):
        raise ValueError(
            f"layer {head.layer}, head {head.head} of {head.model} has {len(head.mask)} queries that see one token "
            "each; a query that sees at least two was expected."
        )
    return rows
