r"""Named types of heads, by where most of the attention lies.

A type assigns to each query a set of tokens by a rule; its score is the mean share of attention on that set, over the
queries with a nonempty set. The types are: the token before (*previous*); the token at one other offset (*offset*);
other tokens of the same word (*duplicate*); tokens that follow another occurrence of the query's word (*induction*,
Elhage et al. 2021, Olsson et al., arXiv 2209.11895); the first token of the text (*first*, a sink); punctuation and the
tokens that the tokenizer adds (*delimiter*); the null token of attention sinks (*null*). *Content* is the attention
that no rule of place explains: the total variation between a query's attention and the mean attention by offset or by
position, whichever is nearer.

Uniform attention also gives every set a share, and heads with re-drawn weights
(:mod:`attsvm_pretrained.selection.null`) give it more or less. A head is named by the set with the largest excess over
both, if its score stands out among the re-drawn heads and is at least :data:`NAME_SHARE`. Otherwise it is named
"content" if content stands out, or has no name. User-defined rules (:mod:`attsvm_pretrained.selection.rules`) are
scored with the same null and can name a head.

More rules and heads lead to more names by chance. The chances are therefore corrected by Benjamini and Hochberg's
procedure, over the rules of one head (:func:`head_types`) or over all rules of all heads (:func:`judge_heads`). If all
of these heads are untrained, the probability that any is named is at most :data:`NAME_LEVEL`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attsvm.platform.summary import Listed, Worded, counted
from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.heads.sequences import by_sequence
from attsvm_pretrained.selection.null import Standing, redrawn
from attsvm_pretrained.selection.rules import Rules, rule_sets
from attsvm_pretrained.selection.selectivity import has_choice
from attsvm_pretrained.selection.type_sets import type_scores, type_sets, visible_offsets

# Share of attention below which a set does not name a head.
NAME_SHARE = 0.3
# Probability that any of the heads that are judged together is named if all are untrained.
NAME_LEVEL = 0.05
# Largest number of queries that show the name of a head.
MOST_TYPES = 6
# Number of queries times tokens per text above which a type is scored on fewer queries, but at least a quarter.
MOST_ENTRIES = 1 << 19
_PHRASES = {
    "previous": "the token before",
    "duplicate": "other occurrences of the same token",
    "induction": "tokens that followed the same token elsewhere",
    "first": "the first token of the text",
    "delimiter": "punctuation and special tokens",
    "null": "no token of the text (the null token)",
}


@dataclass(frozen=True, eq=False, repr=False)
class TypeScore(Listed):
    """How much of a head's attention one rule explains.

    Attributes
    ----------
    queries : int
        Number of queries with a nonempty set.
    uniform : float
        Score of uniform attention.
    standing : Standing
        The score, and the scores of heads with re-drawn weights.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head()
    >>> score = next(iter(pretrained.head_types(head, draws=2).scores.values()))
    >>> 0 <= score.uniform <= 1
    True
    """

    queries: int
    uniform: float
    standing: Standing

    @property
    def score(self) -> float:
        """Mean share of attention (content: mean total variation)."""
        return self.standing.trained

    @property
    def excess(self) -> float:
        """Score minus the score of uniform attention or of the median rotated head, whichever is larger."""
        return self.score - max(self.uniform, self.standing.median)


@dataclass(frozen=True, eq=False, repr=False)
class HeadTypes(Worded):
    """The scores of a head's types, and its name.

    Attributes
    ----------
    scores : dict of str to TypeScore
        Scores by type, without types that the inputs do not define (no token ids; offsets of cross-attention).
    offset : int or None
        The offset of the type "offset".
    name : str or None
        The type that names the head.
    shows : ndarray of int
        Queries of the head (rows), of different sequences, with the largest attention on the set that names it.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head()
    >>> types = pretrained.head_types(head, draws=2)
    >>> len(types.scores) > 0
    True
    """

    scores: dict[str, TypeScore]
    offset: int | None
    name: str | None
    shows: np.ndarray

    @property
    def foremost(self) -> str:
        """The type whose score exceeds its null most, whether or not it names the head."""
        return max(self.scores, key=lambda name: self.scores[name].excess)

    @property
    def label(self) -> str:
        """The name in words; a dash without one."""
        return f"offset {self.offset:+d}" if self.name == "offset" else self.name or "–"

    @property
    def sentence(self) -> str:
        """State the result in one sentence."""
        if self.name is None:
            return (
                "No named type: no rule has a large share of the attention that exceeds the share of heads with rotated"
                " weights by more than chance."
            )
        one = self.scores[self.name]
        draws = counted(len(one.standing.draws), "head")
        null = f"uniform attention would pay {_percent(one.uniform)}, {draws} with rotated weights pay"
        null += f" {_percent(one.standing.median)} (median), {_percent(float(one.standing.draws.max()))} at most"
        if self.name == "content":
            return (
                f"Content head: {_percent(one.score)} of its attention is not where its mean by place would put it; of "
                f"{draws} with rotated weights {_percent(one.standing.median)} (median)."
            )
        what = _PHRASES.get(self.name, f"the tokens of the rule {self.name!r}")
        what = f"the token at {self.offset:+d}" if self.name == "offset" else what
        queries = counted(one.queries, "query", "queries")
        return (
            f"{self.label.capitalize()} head: {queries} pay {_percent(one.score)} of their attention to {what}; {null}."
        )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def head_types(
    head: AttentionHead, *, draws: int = 30, queries: int = 1000, seed: int = 0, rules: Rules | None = None
) -> HeadTypes:
    """Score a head's types and name it.

    Parameters
    ----------
    head : AttentionHead
        With token ids (from texts or `input_ids`) for duplicates and induction, and texts for delimiters.
    draws : int
        Number of heads with re-drawn weights in the null.
    queries : int
        Approximate number of queries, drawn sequence by sequence. For texts of more than 500 tokens it falls, at most
        to a quarter. The standard error of a score over q queries is at most 1 / (2 sqrt q), 3 % for 250.
    seed : int
    rules : mapping of str to rule, optional
        Other types by name. A rule is a function of the head that returns booleans (n, T), True for the tokens that a
        query should attend to; or these booleans; or a pair of regular expressions, for the text of a query and of its
        tokens. A function is called with some of the head's queries.

    Returns
    -------
    HeadTypes

    Raises
    ------
    ValueError
        If no query sees two tokens, there are fewer than two draws, or a rule does not fit the head.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head()
    >>> types = pretrained.head_types(head, draws=2)
    >>> types.name is None or types.name in types.scores
    True
    """
    if draws < 2:
        raise ValueError(f"draws is {draws}; at least 2 were expected.")
    rng = np.random.default_rng((seed, 2))
    rows = _sample(head, has_choice(head), queries, rng)
    sample = head.take(rows)
    sets, offsets = type_sets(sample), visible_offsets(sample)
    if rules is not None:
        other_sets = rule_sets(rules, head, rows, (*_PHRASES, "offset", "content"))
        sets |= {name: tokens & sample.mask for name, tokens in other_sets.items() if (tokens & sample.mask).any()}
    trained, offset = type_scores(sample, sets, offsets)
    null: dict[str, dict[str, list[float]]] = {name: {"rotated": [], "permuted": []} for name in trained}
    for kind, fresh in redrawn(sample, draws, rng):
        for name, score in type_scores(fresh, sets, offsets)[0].items():
            null[name][kind].append(score)
    visible = sample.mask.sum(axis=1)
    scores = {}
    for name, score in trained.items():
        uniform, count = (1.0 / visible).mean() if name == "offset" else 0.0, len(visible)
        if name in sets:
            has = sets[name].any(axis=1)
            uniform, count = float((sets[name].sum(axis=1) / visible)[has].mean()), int(has.sum())
        standing = Standing(score, *(np.array(null[name][kind]) for kind in ("rotated", "permuted")))
        scores[name] = TypeScore(count, float(uniform), standing)
    name = _name(scores, _largest_chance(scores.values()))
    return HeadTypes(scores, offset, name, rows[_showing(sample, sets, name, offset)])


def judge_heads(types: Sequence[HeadTypes]) -> list[HeadTypes]:
    """Name the heads of one report together, corrected for the number of heads.

    The chances of all rules of all heads (:attr:`Standing.chance`) are corrected by Benjamini and Hochberg's procedure.
    If all heads are untrained, the probability that any is named is at most 5 %.

    Parameters
    ----------
    types : sequence of HeadTypes
        Of the heads of one report.

    Returns
    -------
    list of HeadTypes
        In the same order. A head whose name changes shows no queries.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> heads = pretrained.extract_heads(model, inputs)
    >>> [one.name for one in pretrained.judge_heads([pretrained.head_types(head) for head in heads])]
    [None, None, None, None]
    """
    largest = _largest_chance(score for one in types for score in one.scores.values())
    names = [_name(one.scores, largest) for one in types]
    return [
        one if name == one.name else replace(one, name=name, shows=one.shows[:0])
        for one, name in zip(types, names, strict=True)
    ]


def named_tokens(head: AttentionHead, types: HeadTypes, rules: Rules | None = None) -> np.ndarray | None:
    """Return the tokens of the rule that names a head, for all of its queries, bool (n, T).

    Parameters
    ----------
    types : HeadTypes
        Of this head, or of the same head on other texts.
    rules : mapping of str to rule, optional
        The user-defined rules with which it was named.

    Returns
    -------
    ndarray or None
        None if the head has no name, or is named "content", which is no rule.
    """
    if types.name is None or types.name == "content":
        return None
    if types.name == "offset":
        return head.mask & (head.text_place[head.sequence] == head.query_place[:, None] + types.offset)
    if rules is not None and types.name in rules:
        every = np.arange(len(head.mask))
        return rule_sets({types.name: rules[types.name]}, head, every, ())[types.name] & head.mask
    return type_sets(head).get(types.name)


def _sample(head: AttentionHead, several: np.ndarray, queries: int, rng: np.random.Generator) -> np.ndarray:
    """Draw sequences until they have enough queries, and some of these if they are too many; ascending."""
    sequences = rng.permutation(np.unique(head.sequence[several]))
    counts = np.bincount(head.sequence[several])[sequences]
    enough = sequences[: int(np.searchsorted(np.cumsum(counts), queries)) + 1]
    rows = several[np.isin(head.sequence[several], enough)]
    most = min(2 * queries, max(queries // 4, MOST_ENTRIES // head.mask.shape[1]))
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))


def _largest_chance(scores: Iterable[TypeScore]) -> float:
    """Return the largest chance that may name a head, by Benjamini and Hochberg's procedure."""
    chances = np.sort([score.standing.chance for score in scores])
    least = chances[chances <= NAME_LEVEL * np.arange(1, len(chances) + 1) / len(chances)]
    return float(least[-1]) if len(least) else -1.0


def _name(scores: dict[str, TypeScore], largest: float) -> str | None:
    """Return the rule with the largest excess among those that stand out with a chance up to ``largest``."""
    standing_out = {
        name: one
        for name, one in scores.items()
        if one.standing.outstanding and one.standing.chance <= largest and one.score >= NAME_SHARE
    }
    rules = {name: one.excess for name, one in standing_out.items() if name != "content" and one.excess > 0}
    if rules:
        return max(rules, key=lambda name: rules[name])
    return "content" if "content" in standing_out else None


def _showing(head: AttentionHead, sets: dict[str, np.ndarray], name: str | None, offset: int | None) -> np.ndarray:
    """Find the queries with the most attention on the set that names the head, one per sequence."""
    if name is None:
        return np.zeros(0, dtype=int)
    attention = np.where(head.mask, head.probabilities, 0.0)
    if name == "content":
        mass = attention.max(axis=1)
    else:
        there = head.text_place[head.sequence] == head.query_place[:, None] + offset if name == "offset" else sets[name]
        mass = (attention * there).sum(axis=1)
    best = [rows[mass[rows].argmax()] for _, rows in by_sequence(head.sequence)]
    return np.array(sorted(best, key=lambda i: -mass[i])[:MOST_TYPES])
