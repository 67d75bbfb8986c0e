"""The findings of an inspection about one head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attsvm_pretrained.heads.extract import RefusedHead
from attsvm_pretrained.heads.head import AttentionHead, text_of
from attsvm_pretrained.heads.media import Media, Parts
from attsvm_pretrained.selection.audit import MarginAudit, margin_audit
from attsvm_pretrained.selection.null import Standing
from attsvm_pretrained.selection.probe import SelectionProbe, fit_selection
from attsvm_pretrained.selection.rank import HeadRank, Roots
from attsvm_pretrained.selection.rules import Rules
from attsvm_pretrained.selection.selectivity import QueryNumbers, SelectionReport, has_choice, query_numbers
from attsvm_pretrained.selection.types import HeadTypes, head_types

# Number of example queries per head.
EXAMPLES = 6
# Time limit of one SVM in seconds; an unsolved SVM is reported as undecided.
TIME_LIMIT = 4.0
# Number of heads with re-drawn weights; each needs an SVM.
DRAWS = 12


@dataclass(frozen=True)
class Example:
    """One query with its attention.

    Attributes
    ----------
    query : int or None
        Index of the query among the tokens; None for cross-attention.
    sequence : int
        Number of the text, image or sound.
    """

    tokens: tuple[str, ...]
    attention: tuple[float, ...]
    query: int | None
    sequence: int = 0


@dataclass(frozen=True, eq=False)
class NextTokens:
    """The effects of a head on the next tokens of a few texts, measured in the model.

    Attributes
    ----------
    before : float
        Mean log-probability of the next tokens in the unchanged model.
    direct : float or None
        Direct effect of the head on the logit of the last token minus the logit of its best rival, mean over texts;
        None if the head does not add to the state from which the logits are made.
    losses : dict of str to Standing
        Mean loss of log-probability after each replacement of the head's attention, compared with heads with re-drawn
        weights; keys as in `HeadEffects.changes`.
    rule : str
        Name of the rule of the replacement "rule".
    """

    tokens: int
    before: float
    direct: float | None
    losses: dict[str, Standing]
    rule: str


@dataclass(frozen=True, eq=False)
class HeadFinding:
    """The findings about one head.

    `shows` are queries that show the type that names the head; `examples` are drawn at random; `parts` locates its
    tokens in an image or a sound; `effects` are measured on request.
    """

    layer: int
    head: int
    name: str
    error: float
    types: HeadTypes
    report: SelectionReport
    audit: MarginAudit
    probe: SelectionProbe | None
    rank: HeadRank
    shows: tuple[Example, ...]
    examples: tuple[Example, ...]
    parts: Parts | None = None
    effects: NextTokens | None = None

    def named(self, types: HeadTypes) -> HeadFinding:
        """Return the finding with the types of a joint judgement; if the name changes, it shows no queries."""
        return replace(self, types=types, shows=self.shows if types.name == self.types.name else ())


@dataclass(frozen=True)
class Reports:
    """The settings with which heads are inspected.

    Attributes
    ----------
    roots : Roots
        Roots of moments, which the heads of a layer share.
    media : Media or None
        Images or sounds that are read in place of texts.
    rules : mapping of str to rule, or None
        Other types, as for :func:`attsvm.pretrained.head_types`.
    """

    queries: int
    seed: int
    roots: Roots
    media: Media | None = None
    rules: Rules | None = None

    def of(self, head: AttentionHead | RefusedHead, others: Sequence[QueryNumbers]) -> HeadFinding | RefusedHead:
        """Inspect a head; an error becomes a refused head, so that the inspection of other heads goes on.

        ``others`` are the numbers of its queries in the texts that are not kept.
        """
        if isinstance(head, RefusedHead):
            return head
        try:
            if self.media is None:
                return self._finding(head, others)
            return replace(self._finding(self.media.labelled(head), others), parts=self.media.parts_of(head))
        except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
            return RefusedHead(head.layer, head.head, head.name, str(error))

    def _finding(self, head: AttentionHead, others: Sequence[QueryNumbers]) -> HeadFinding:
        queries, seed = self.queries, self.seed
        probe = None
        if len(np.unique(head.sequence[has_choice(head)])) > 1:
            probe = fit_selection(head, queries=2 * queries, seed=seed, time_limit=TIME_LIMIT)
        types = head_types(head, seed=seed, rules=self.rules)
        return HeadFinding(
            layer=head.layer,
            head=head.head,
            name=head.name,
            error=head.error,
            types=types,
            report=query_numbers(head).with_others(others).report(),
            audit=margin_audit(head, queries=queries, norms=(), draws=DRAWS, seed=seed, time_limit=TIME_LIMIT),
            probe=probe,
            rank=self.roots.rank(head),
            shows=_examples(head, types.shows),
            examples=_examples(head, _example_queries(head, seed)),
        )


def _example_queries(head: AttentionHead, seed: int) -> np.ndarray:
    """Draw queries of different sequences, without special tokens if there are others."""
    eligible = head.mask.sum(axis=1) > 1
    if head.special is not None and head.self_attention:
        ordinary = eligible & ~head.special[head.sequence, head.position]
        eligible = ordinary if ordinary.any() else eligible
    rng = np.random.default_rng((seed, 1))
    rows = rng.permutation(np.flatnonzero(eligible))
    _, first = np.unique(head.sequence[rows], return_index=True)
    return rows[np.sort(first)[:EXAMPLES]]


def _examples(head: AttentionHead, rows: np.ndarray) -> tuple[Example, ...]:
    """Make examples of queries; none if the head has no text."""
    examples = []
    for i in rows if head.texts is not None else ():
        words = text_of(head, int(head.sequence[i]))
        query = int(head.query_place[i]) if head.self_attention else None
        attention = np.zeros(len(words))
        attention[head.text_place[head.sequence[i], head.mask[i]]] = head.probabilities[i, head.mask[i]]
        length = int(max(np.flatnonzero(attention).max(initial=0), query or 0)) + 1
        examples.append(
            Example(words[:length], tuple(attention[:length].round(4).tolist()), query, int(head.sequence[i]))
        )
    return tuple(examples)
