"""Search for the settings that explain a printed figure, as in ``attsvm reproduce NAME --explain``.

Every reading of the protocol is compared with all points together by the test of :mod:`attsvm_paper.judging.joint`, and
weighted by its likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from attsvm_paper.engine.compute import compute, cut, task_of
from attsvm_paper.engine.experiment import Experiment
from attsvm_paper.judging.joint import JointTest, joint_test
from attsvm_paper.judging.points import FEWEST
from attsvm_paper.judging.readings import Explanation, Reading
from attsvm_paper.judging.verdict import Row

Progress = Callable[[str, float], object]


def explain(experiment: Experiment, seed: int = 0, progress: Progress | None = None) -> list[Explanation]:
    """Compare every reading of an experiment's protocol with the printed figure.

    Parameters
    ----------
    experiment : Experiment
    seed : int
        Seed of all random numbers.
    progress : callable, optional
        ``progress(sentence, fraction done)``.

    Returns
    -------
    list of Explanation
        Grouped by figure, the likeliest first.

    Raises
    ------
    ValueError
        If the experiment states no readings.
    """
    if experiment.readings is None:
        raise ValueError(
            f"{experiment.name} has no readings of its protocol; an experiment that lists some was expected."
        )
    readings = experiment.readings()
    rows = _run(experiment, [cell for reading in readings for cell in reading.cells], seed, progress)
    results: list[tuple[Reading, int, int, JointTest | None]] = []
    for reading in readings:
        points = reading.points([row for cell in dict.fromkeys(reading.cells) for row in rows[cell]])
        there = [one for one in points if len(one.values) >= FEWEST]
        test = joint_test(experiment.name, reading.figure, there, reading=reading.name)
        if test is not None:
            test = test.after_search(sum(one.figure == reading.figure for one in readings))
        results.append((reading, len(there), len(points), test))
    fits = []
    for figure in dict.fromkeys(reading.figure for reading in readings):
        own = [entry for entry in results if entry[0].figure == figure]
        heights = [
            test.log_likelihood if test is not None and there == count else -math.inf for _, there, count, test in own
        ]
        top = max(heights)
        parts = [math.exp(height - top) if math.isfinite(height) else 0.0 for height in heights]
        total = sum(parts) or 1.0
        ranking = sorted(zip(own, heights, parts, strict=True), key=lambda entry: -entry[1])
        fits += [
            Explanation(reading.figure, reading.factors, there, count, test, part / total)
            for (reading, there, count, test), _, part in ranking
        ]
    return fits


def _run(experiment: Experiment, cells: Sequence[Any], seed: int, progress: Progress | None) -> dict[Any, list[Row]]:
    """Run every cell once."""
    rows: dict[Any, list[Row]] = {}
    distinct = list(dict.fromkeys(cells))
    for at, cell in enumerate(distinct):
        if progress is not None:
            progress(f"{experiment.name}: reading {at + 1} of {len(distinct)} cells", at / len(distinct))
        rows[cell] = compute(task_of(experiment, seed, cut([cell], experiment.batch)), math.inf).rows
    return rows
