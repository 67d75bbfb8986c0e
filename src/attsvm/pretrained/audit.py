r"""Whether a trained head is near the max-margin selector of what it selects.

The attention SVM of the tokens that a head attends to most has the largest margin a W of its norm can have. The audit
asks how much of that margin the trained W has, and whether it points the same way, both inside the span of the data. A
cosine means nothing by itself, so it is held against controls: SVMs of the same queries with their selections permuted,
SVMs of what other heads of the layer select from the same tokens, and the Hebbian direction, the sum of (selected token
- mean of the others) z^T, which needs no optimisation. The verdict is "no better than chance" unless the trained W is
nearer its own SVM than all permuted and foreign ones by more than noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.extras import drawing, frame
from attsvm.core.summary import Worded
from attsvm.pretrained.head import AttentionHead
from attsvm.pretrained.selectivity import MASS, asking_heads_queries
from attsvm.pretrained.span import Direction, span
from attsvm.study.controls import shuffle

# Cosines of independent directions in D dimensions have standard deviation 1/sqrt(D); three of them is noise.
NOISE = 3.0
# A permutation that leaves more of the selections as they were than this is no other selection.
UNCHANGED = 0.7
NORMS = ("frobenius", "nuclear", "gen")


@dataclass(frozen=True, eq=False, repr=False)
class MarginAudit(Worded):
    """A trained W beside the SVM of its selection.

    Attributes
    ----------
    queries : int
    efficiency : float or None
        Trained margin over the largest possible at the same norm, at most 1; None where no W makes the selection.
    directions : dict of str to Direction
        "frobenius", "nuclear", and "gen": the Gen-SVM of the smallest sets with 99 % of the attention. For rotary heads
        the first only.
    shuffled : tuple of Direction
        Frobenius SVMs of permuted selections.
    unchanged : tuple of float
        Share of queries whose selection each permutation left as it was.
    others : tuple of Direction
        Frobenius SVMs of what other heads select.
    hebbian : float
        Cosine with the Hebbian direction.
    noise : float
        What counts as noise in a cosine here.

    Examples
    --------
    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from attsvm import pretrained
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
    >>> inputs = {"input_ids": torch.arange(24).reshape(4, 6)}
    >>> head = pretrained.extract_head(model, 0, 1, inputs)
    >>> audit = pretrained.margin_audit(head, queries=8, norms=("frobenius",), shuffles=1)
    >>> len(audit.shuffled), audit.noise > 0
    (1, True)
    """

    queries: int
    efficiency: float | None
    directions: dict[str, Direction]
    shuffled: tuple[Direction, ...]
    unchanged: tuple[float, ...]
    others: tuple[Direction, ...]
    hebbian: float
    noise: float

    @property
    def cosine(self) -> float:
        """With the Frobenius SVM of its own selection."""
        return self.directions["frobenius"].cosine

    @property
    def chance(self) -> float:
        """The largest cosine with an SVM that is not its own."""
        return max((direction.cosine for direction in (*self.shuffled, *self.others)), default=0.0)

    @property
    def tellable(self) -> bool:
        """Whether the controls are other selections at all."""
        distinct = [
            direction for direction, same in zip(self.shuffled, self.unchanged, strict=True) if same <= UNCHANGED
        ]
        return bool(distinct or self.others)

    @property
    def better_than_chance(self) -> bool:
        """Whether the trained W is nearer its own SVM than every control SVM, by more than noise."""
        return self.tellable and self.cosine > self.chance + self.noise

    @property
    def margin_ratio(self) -> float | None:
        """Largest margin of the real selection over the largest of a permuted one (median); None if either is none."""
        own = self.directions["frobenius"].objective
        objectives = [direction.objective for direction in self.shuffled]
        if not np.isfinite(own) or own == 0 or not objectives:
            return None
        ratio = float(np.median(objectives)) / own
        return ratio if np.isfinite(ratio) else None

    @property
    def sentence(self) -> str:
        """Say it in a sentence or two."""
        own = self.directions["frobenius"]
        if own.soft:
            begun = "No one W makes this selection for all queries (or none was found in time). "
        else:
            assert self.efficiency is not None
            begun = f"The trained W has {_percent(self.efficiency)} of the largest margin of its norm. "
        if not self.tellable:
            return begun + "Permuting the selection hardly changes it, so a cosine with its SVM says nothing."
        nearest = (
            f"its cosine with the SVM of its own selection is {own.cosine:.3f}, with that of another {self.chance:.3f}"
        )
        if not self.better_than_chance:
            return f"{begun}It points to the SVM no better than chance: {nearest}."
        hebbian = "nearer" if self.hebbian > own.cosine else "less near"
        return (
            f"{begun}It points towards the SVM more than chance would: {nearest}; the Hebbian direction is {hebbian}, "
            f"{self.hebbian:.3f}."
        )

    def to_frame(self) -> Any:
        """List the directions that the trained W is compared with.

        Returns
        -------
        pandas.DataFrame
            With columns direction and cosine.

        Raises
        ------
        ImportError
            Without pandas.
        """
        rows = [*self.directions.items(), *(("permuted", one) for one in self.shuffled)]
        rows += [("another head", one) for one in self.others]
        columns = {
            "direction": [*(name for name, _ in rows), "hebbian"],
            "cosine": [*(one.cosine for _, one in rows), self.hebbian],
        }
        return frame("MarginAudit.to_frame", columns)

    def plot(self, ax: Any = None) -> Any:
        """Draw the cosines with the SVM of its own selection and with the controls; see :func:`attsvm.plots.controls`.

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
        """
        return drawing("MarginAudit.plot").controls(self, ax)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if abs(share) >= 0.001 else "less than 0.1 %"


def margin_audit(
    head: AttentionHead,
    *,
    queries: int = 96,
    norms: Sequence[str] = NORMS,
    others: Sequence[AttentionHead] = (),
    shuffles: int = 3,
    seed: int = 0,
    time_limit: float | None = 10.0,
) -> MarginAudit:
    """Hold a trained head against the SVM of its selection.

    Parameters
    ----------
    head : AttentionHead
    queries : int
        How many are drawn at random from those that see at least two tokens.
    norms : sequence of {"frobenius", "nuclear", "gen"}
        Directions besides the Frobenius SVM, which is always solved; of a rotary head there is no other.
    others : sequence of AttentionHead
        Heads with the same tokens and queries (of the same layer and inputs) as controls.
    shuffles : int
        Permuted selections among the controls.
    seed : int
    time_limit : float, optional
        Seconds that one SVM may take.

    Returns
    -------
    MarginAudit

    Raises
    ------
    ValueError
        If no query sees two tokens, an option is unknown, or another head has other queries.

    Examples
    --------
    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from attsvm import pretrained
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
    >>> inputs = {"input_ids": torch.arange(24).reshape(4, 6)}
    >>> head = pretrained.extract_head(model, 0, 1, inputs)
    >>> audit = pretrained.margin_audit(head, queries=8, norms=("frobenius",), shuffles=1)
    >>> audit.queries, sorted(audit.directions)
    (8, ['frobenius'])
    """
    unknown = set(norms) - set(NORMS)
    if unknown:
        raise ValueError(
            f"norms has {', '.join(map(repr, sorted(unknown)))}; names among {', '.join(NORMS)} were expected."
        )
    rng = np.random.default_rng(seed)
    several = np.flatnonzero(head.mask.sum(axis=1) > 1)
    if not len(several):
        asking_heads_queries(head)
    rows = np.sort(rng.choice(several, min(queries, len(several)), replace=False))
    sample = head.take(rows)
    space = span(sample)
    directions = {"frobenius": space.svm(sample.selected, "frobenius", time_limit)}
    if not head.rotary:
        if "nuclear" in norms:
            directions["nuclear"] = space.svm(sample.selected, "nuclear", time_limit)
        if "gen" in norms:
            directions["gen"] = space.svm(holding(sample, MASS), "frobenius", time_limit)
    shuffled, unchanged = [], []
    for _ in range(shuffles):
        permuted = shuffle(sample.selected, sample.mask, rng)
        if permuted is None:
            break
        shuffled.append(space.svm(permuted, "frobenius", time_limit))
        unchanged.append(float((permuted == sample.selected).mean()))
    foreign = []
    for other in others:
        if other.mask.shape != head.mask.shape or other.layer != head.layer:
            raise ValueError(
                f"others has a head of layer {other.layer} with mask {other.mask.shape}; the queries of layer "
                f"{head.layer}, mask {head.mask.shape}, were expected."
            )
        if other.head != head.head:
            foreign.append(space.svm(other.selected[rows], "frobenius", time_limit))
    own = directions["frobenius"]
    efficiency = None if own.soft else space.trained_margin() * own.objective
    noise = NOISE / float(np.sqrt(space.size))
    return MarginAudit(
        len(rows), efficiency, directions, tuple(shuffled), tuple(unchanged), tuple(foreign), space.hebbian(), noise
    )


def holding(head: AttentionHead, mass: float) -> np.ndarray:
    """Mark the smallest set of tokens of each query that holds that share of its attention, bool (n, T)."""
    probability = np.where(head.mask, head.probabilities, 0.0)
    order = np.argsort(-probability, axis=1, kind="stable")
    falling = np.cumsum(np.take_along_axis(probability, order, axis=1), axis=1)
    count = (falling < mass * falling[:, -1:]).sum(axis=1) + 1
    selection = np.zeros(head.mask.shape, dtype=bool)
    np.put_along_axis(selection, order, np.arange(head.mask.shape[1]) < count[:, None], axis=1)
    return selection & head.mask
