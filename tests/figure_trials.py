"""Small runs of experiments through the engine's own computation, and what every figure and verdict must be."""

from __future__ import annotations

import io
import math

from attsvm_paper import registry
from attsvm_paper.engine.compute import compute, cut, task_of


def run(name, *configs):
    """Compute the cells and return their rows."""
    experiment = registry.get(name)
    return compute(task_of(experiment, 0, cut(configs, experiment.batch)), math.inf).rows


def check_report(name, rows):
    """Check that every panel has labels and that verdicts are whole; return the verdicts by quantity."""
    experiment = registry.get(name)
    figure = experiment.figure(rows)
    figure.savefig(io.BytesIO(), format="png", dpi=40)
    for ax in figure.axes:
        assert ax.get_xlabel(), ax.get_title()
        assert ax.get_ylabel(), ax.get_title()
    verdicts = experiment.verdicts(rows)
    assert all(v.experiment == name for v in verdicts)
    by_quantity = {v.quantity: v for v in verdicts}
    assert len(by_quantity) == len(verdicts)
    for v in verdicts:
        if not math.isnan(v.measured):
            assert v.low <= v.measured <= v.high, v
        assert (v.verdict == "measured") == (v.published is None or math.isnan(v.tolerance)), v
    return by_quantity
