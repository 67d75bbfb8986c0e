"""Sentences on what is guaranteed about the instances that a classifier of bags selects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attsvm.core.status import Status
from attsvm.platform.summary import counted
from attsvm.study.bag_training import BagSelection
from attsvm.study.words import small_text

# Number of bags that a sentence names.
NAMED = 5


def guarantee(selection: BagSelection, covered: np.ndarray | None = None, names: Sequence[str] | None = None) -> str:
    """Say whether one W selects all instances, by what margin, and which bags have the smallest margins.

    Parameters
    ----------
    covered : ndarray of bool, optional
        For each held-out bag, whether the score of its selected instance leads by the margin of the training bags.
    names : sequence of str, optional
        Names of the training bags; their numbers by default.
    """
    margins, solution, hard = selection.margins, selection.solution, selection.hard
    bags = counted(len(margins), "bag")
    sentences = []
    if np.isfinite(hard.objective):
        proof = (
            f"no W of the same norm has a larger one, to a relative gap of {small_text(max(hard.gap, 0.0))}"
            if hard.status is Status.OPTIMAL
            else "whether a larger one exists was not decided in time"
        )
        sentences.append(
            f"One W selects the deciding instance of all {bags}: at norm one its smallest margin is "
            f"{1.0 / hard.objective if hard.objective > 0 else np.inf:.3g}, and {proof}."
        )
    else:
        rows = selection.contradiction
        why = (
            f"a certificate proves it from the demands of {counted(len(rows), 'bag')} ({_listed(rows, names)}), which "
            "contradict each other"
            if len(rows)
            else "none was found in time"
        )
        met = int((margins > 0).sum())
        sentences.append(
            f"No W selects the deciding instance of all {bags}: {why}. The certified soft margin selects it in {met}, "
            f"to a relative gap of {small_text(max(solution.gap, 0.0))}."
        )
    finite = np.flatnonzero(np.isfinite(margins))
    if len(finite):
        median = np.median(margins[finite])
        # The support bags have the same margin up to rounding, and keep their order.
        order = finite[np.argsort(np.round(margins[finite] / (np.abs(margins[finite]).max() or 1.0), 6), kind="stable")]
        first = f"{_listed(order[:NAMED], names)}, the first at margin {margins[order[0]]:.3g}"
        sentences.append(f"The selections nearest to a change are those of bags {first}; the median is {median:.3g}.")
    if covered is not None:
        sentences.append(
            f"{int(covered.sum())} of {counted(len(covered), 'bag')} held out are covered: their selected instance "
            "leads by at least the margin of the training bags."
        )
    return " ".join(sentences)


def _listed(rows: np.ndarray, names: Sequence[str] | None) -> str:
    shown = ", ".join(str(row) if names is None else str(names[row]) for row in rows[:NAMED])
    return shown if len(rows) <= NAMED else f"{shown} and {len(rows) - NAMED} more"
