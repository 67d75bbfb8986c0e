r"""Comparison of a trained head with the max-margin selector of the tokens that it selects.

The attention SVM of the tokens that a head attends to most has the largest margin among all W of its norm. The audit
measures the trained W's share of that margin and its cosine with the SVM, both inside the span of the data. A cosine
alone means nothing: W made the selection itself, so every W has a positive cosine with its own SVM. It is compared with
heads with re-drawn weights and their own selections (:mod:`attsvm_pretrained.selection.null`), and with the Hebbian
direction, the sum of (selected token - mean of the others) z^T, which needs no optimisation. SVMs of the selections of
other heads of the layer, on the same tokens, show whether the direction belongs to this head's selection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.platform.extras import drawing, frame
from attsvm.platform.summary import Worded
from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.selection.null import Standing, redrawn
from attsvm_pretrained.selection.selectivity import MASS, has_choice
from attsvm_pretrained.selection.span import Direction, Space, span
from attsvm_pretrained.selection.thinning import choices, drawn_tokens, thin

AUDIT_NORMS = ("frobenius", "nuclear", "gen")
# Number of constraints of an SVM above which each query chooses among randomly drawn tokens.
MOST_CONSTRAINTS = 2048
# Number of constraints that are then drawn for all queries together.
DRAWN_CONSTRAINTS = 1024
MEASURES = ("cosine", "efficiency", "hebbian", "top1")


@dataclass(frozen=True, eq=False, repr=False)
class MarginAudit(Worded):
    """A trained W compared with the SVM of its selection.

    Attributes
    ----------
    queries : int
    among : int or None
        Number of tokens, drawn at random, among which each query chooses; None for all visible tokens.
    efficiency : float or None
        Trained margin over the largest margin at the same norm, at most 1. None if no W makes the selection; negative
        if the trained W does not make it because rounding decides a near tie.
    directions : dict of str to Direction
        "frobenius", "nuclear", and "gen": the Gen-SVM of the smallest sets with 99 % of the attention. Rotary heads
        have the first only.
    null : dict of str to Standing
        The trained head compared with heads with re-drawn weights, by "cosine", "efficiency", "hebbian" (cosine with
        the Hebbian direction) and "top1" (median of the largest probability).
    others : tuple of Direction
        Frobenius SVMs of the selections of other heads.
    hebbian : float
        Cosine with the Hebbian direction.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head()
    >>> audit = pretrained.margin_audit(head, queries=8, norms=("frobenius",), draws=4)
    >>> len(audit.null["cosine"].draws), type(audit.better_than_null).__name__
    (2, 'bool')
    """

    queries: int
    among: int | None
    efficiency: float | None
    directions: dict[str, Direction]
    null: dict[str, Standing]
    others: tuple[Direction, ...]
    hebbian: float

    @property
    def cosine(self) -> float:
        """Cosine with the Frobenius SVM of the head's selection."""
        return self.directions["frobenius"].cosine

    @property
    def better_than_null(self) -> bool:
        """Whether the cosine exceeds the cosine of every rotated head, by more than these vary."""
        return self.null["cosine"].outstanding

    @property
    def sentence(self) -> str:
        """State the result in one or two sentences."""
        direction = self.directions["frobenius"]
        if direction.soft:
            opening = "No one W makes this selection for all queries (or none was found in time). "
        else:
            assert self.efficiency is not None
            opening = (
                f"The trained W has {_percent(self.efficiency)} of the largest margin of its norm. "
                if self.efficiency > 0
                else "The trained W does not make this selection: in a near tie another token wins. "
            )
        standing = self.null["cosine"]
        if len(standing.draws) < 2:
            return f"{opening}Its cosine with the SVM of its selection is {direction.cosine:.3f}; no null was drawn."
        draws = f"{len(standing.draws)} heads with rotated weights"
        hebbian = "nearer" if self.hebbian > direction.cosine else "less near"
        if not self.better_than_null:
            return (
                f"{opening}It points to the SVM of its selection no more than an untrained head does: cosine "
                f"{direction.cosine:.3f}, and {standing.median:.3f} (median) for {draws}."
            )
        return (
            f"{opening}It points to the SVM of its selection more than an untrained head does: cosine "
            f"{direction.cosine:.3f}, above all {draws}; training added {standing.added:.3f} to their median. "
            f"The Hebbian direction is {hebbian}, {self.hebbian:.3f}."
        )

    def to_frame(self) -> Any:
        """List cosines of the trained W with other directions, and cosines of the null's heads with their own SVMs.

        Returns
        -------
        pandas.DataFrame
            Columns direction and cosine.

        Raises
        ------
        ImportError
            Without pandas.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> head = pretrained.example_head()
        >>> audit = pretrained.margin_audit(head, queries=8, norms=("frobenius",), draws=4)
        >>> list(audit.to_frame().columns)
        ['direction', 'cosine']
        """
        rows = [*self.directions.items(), *(("another head", one) for one in self.others)]
        null = self.null["cosine"]
        redrawn_rows = [(f"{kind} weights", one) for kind in ("rotated", "permuted") for one in getattr(null, kind)]
        names, cosines = zip(*((name, one.cosine) for name, one in rows), strict=True)
        columns = {
            "direction": [*names, "hebbian", *(name for name, _ in redrawn_rows)],
            "cosine": [*cosines, self.hebbian, *(value for _, value in redrawn_rows)],
        }
        return frame("MarginAudit.to_frame", columns)

    def plot(self, ax: Any = None) -> Any:
        """Draw the cosines with the head's own SVM and with the controls; see :func:`attsvm.plots.controls`.

        Parameters
        ----------
        ax : matplotlib Axes, optional

        Returns
        -------
        Axes

        Raises
        ------
        ImportError
            Without matplotlib.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> head = pretrained.example_head()
        >>> audit = pretrained.margin_audit(head, queries=8, norms=("frobenius",), draws=4)
        >>> audit.plot().get_xlabel()
        'cosine with the trained W'
        """
        return drawing("MarginAudit.plot").controls(self, ax)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 else "less than 0.1 %"


def margin_audit(
    head: AttentionHead,
    *,
    queries: int = 96,
    norms: Sequence[str] = AUDIT_NORMS,
    others: Sequence[AttentionHead] = (),
    draws: int = 40,
    seed: int = 0,
    time_limit: float | None = 10.0,
) -> MarginAudit:
    """Compare a trained head with the SVM of its selection.

    Parameters
    ----------
    head : AttentionHead
    queries : int
        Number of queries, drawn at random among the queries that see at least two tokens. If they see more than 2048
        tokens together, about 1024 tokens are drawn at random, and each query chooses among its drawn tokens; the time
        then does not grow with the length of the texts. All numbers, including the null's, refer to these choices.
    norms : sequence of {"frobenius", "nuclear", "gen"}
        Directions to compare with. The Frobenius SVM is always solved; a rotary head has no other.
    others : sequence of AttentionHead
        Heads with the same tokens and queries (same layer and inputs), for the SVMs of their selections.
    draws : int
        Number of heads with re-drawn weights in the null; each needs an SVM.
    seed : int
    time_limit : float, optional
        Time limit of one SVM, in seconds.

    Returns
    -------
    MarginAudit

    Raises
    ------
    ValueError
        If no query sees two tokens, an option is unknown, or another head has different queries.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head()
    >>> audit = pretrained.margin_audit(head, queries=8, norms=("frobenius",), draws=0)
    >>> audit.queries, sorted(audit.directions)
    (8, ['frobenius'])
    """
    strangers = set(norms) - set(AUDIT_NORMS)
    if strangers:
        raise ValueError(
            f"norms has {', '.join(map(repr, sorted(strangers)))}; names among {', '.join(AUDIT_NORMS)} were expected."
        )
    rng = np.random.default_rng(seed)
    rows, few, sample = sampled(head, queries, rng)
    space = span(sample)
    directions = {"frobenius": space.svm(sample.selected, "frobenius", time_limit)}
    if not head.rotary:
        if "nuclear" in norms:
            directions["nuclear"] = space.svm(sample.selected, "nuclear", time_limit)
        if "gen" in norms:
            directions["gen"] = space.svm(holding(sample, MASS), "frobenius", time_limit)
    foreign = []
    for other in others:
        if other.mask.shape != head.mask.shape or other.layer != head.layer:
            raise ValueError(
                f"others has a head of layer {other.layer} with mask {other.mask.shape}; the queries of layer "
                f"{head.layer}, mask {head.mask.shape}, were expected."
            )
        if other.head != head.head:
            part = other.take(rows) if few is None else thin(other.take(rows), few)
            foreign.append(space.svm(part.selected, "frobenius", time_limit))
    trained = _numbers(space, directions["frobenius"])
    null = _null(space, trained, draws, rng, time_limit)
    efficiency = None if directions["frobenius"].soft else trained["efficiency"]
    among = None if few is None else few.shape[1]
    return MarginAudit(len(rows), among, efficiency, directions, null, tuple(foreign), trained["hebbian"])


def sampled(
    head: AttentionHead, queries: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray | None, AttentionHead]:
    """Draw queries and, if they see many tokens, tokens to choose among: rows, drawn tokens (or None) and the head."""
    several = has_choice(head)
    rows = np.sort(rng.choice(several, min(queries, len(several)), replace=False))
    sample = head.take(rows)
    among = choices(sample.mask, MOST_CONSTRAINTS, DRAWN_CONSTRAINTS)
    few = None if among is None else drawn_tokens(sample.mask, among, rng)
    return rows, few, sample if few is None else thin(sample, few)


def _numbers(space: Space, direction: Direction) -> dict[str, float]:
    """Return the numbers by which a head is compared with its null."""
    head = space.head
    return {
        "cosine": direction.cosine,
        "efficiency": np.nan if direction.soft else space.trained_margin() * direction.objective,
        "hebbian": space.hebbian(),
        "top1": float(np.median(np.where(head.mask, head.probabilities, 0.0).max(axis=1))),
    }


def _null(
    space: Space, trained: dict[str, float], draws: int, rng: np.random.Generator, time_limit: float | None
) -> dict[str, Standing]:
    """Draw the null and compare the trained numbers with it."""
    numbers: dict[str, list[dict[str, float]]] = {"rotated": [], "permuted": []}
    for kind, head in redrawn(space.head, draws, rng):
        fresh = space.redrawn(head)
        numbers[kind].append(_numbers(fresh, fresh.svm(head.selected, "frobenius", time_limit)))
    return {
        name: Standing(trained[name], *(np.array([one[name] for one in draw]) for draw in numbers.values()))
        for name in MEASURES
    }


def holding(head: AttentionHead, mass: float) -> np.ndarray:
    """Mark each query's smallest set of tokens with a given share of its attention, bool (n, T)."""
    probability = np.where(head.mask, head.probabilities, 0.0)
    order = np.argsort(-probability, axis=1, kind="stable")
    cumulative = np.cumsum(np.take_along_axis(probability, order, axis=1), axis=1)
    count = (cumulative < mass * cumulative[:, -1:]).sum(axis=1) + 1
    selection = np.zeros(head.mask.shape, dtype=bool)
    np.put_along_axis(selection, order, np.arange(head.mask.shape[1]) < count[:, None], axis=1)
    return selection & head.mask
