"""The search for the settings of a printed figure: which cells run, and how readings are tested, weighed and ranked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attsvm_paper.engine.compute import compute, cut, task_of
from attsvm_paper.engine.experiment import Experiment
from attsvm_paper.engine.explain import explain
from attsvm_paper.judging.joint import joint_test
from attsvm_paper.judging.points import FEWEST, Point
from attsvm_paper.judging.readings import Reading
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.ledger import LedgerNumber
from tiny_experiment import EXPERIMENT, Config

NUMBERS = [LedgerNumber(f"tiny: {k}", value, 500, 0.0) for k, value in enumerate((1.0, 1.4))]
NARROW, WIDE, FEW = Config(trials=40), Config(scale=1.3, trials=40), Config(trials=FEWEST - 1)


def squares(rows: Sequence[Row]) -> list[Point]:
    """The squares of both coordinates of every row."""
    return [Point(one, {row["seed"]: row["x"][k] ** 2 for row in rows}, 1.0) for k, one in enumerate(NUMBERS)]


def first_only(rows: Sequence[Row]) -> list[Point]:
    first, second = squares(rows)
    return [first, replace(second, values={})]


def stating(*readings: Reading) -> Experiment:
    return replace(EXPERIMENT, readings=lambda: list(readings))


def rows_of(cell: Config, seed: int = 0) -> list[Row]:
    return compute(task_of(EXPERIMENT, seed, cut([cell], EXPERIMENT.batch)), math.inf).rows


READINGS = (
    Reading("Fig. 1", {"scale": "1.3"}, (WIDE,), squares),
    Reading("Fig. 2", {"scale": "1"}, (NARROW,), squares),
    Reading("Fig. 1", {"scale": "1", "points": "one"}, (NARROW,), first_only),
    Reading("Fig. 1", {"scale": "1"}, (NARROW, NARROW), squares),
    Reading("Fig. 1", {"trials": "few"}, (FEW,), squares),
    Reading("Fig. 1", {"scale": "both"}, (NARROW, WIDE), squares),
)


def expected_test(reading: Reading, searched: int, seed: int = 0) -> Any:
    rows = [row for cell in dict.fromkeys(reading.cells) for row in rows_of(cell, seed)]
    points = [one for one in reading.points(rows) if len(one.values) >= FEWEST]
    test = joint_test("tiny", reading.figure, points, reading=reading.name)
    return None if test is None else test.after_search(searched)


@pytest.mark.parametrize("seed", [0, 3])
def test_readings_of_a_figure_are_weighed_by_their_likelihood(seed: int) -> None:
    entries = explain(stating(*READINGS), seed)
    tests = {id(one.factors): expected_test(one, 1 if one.figure == "Fig. 2" else 5, seed) for one in READINGS}
    for entry in entries:
        assert entry.test == tests[id(entry.factors)]
    assert [entry.figure for entry in entries] == ["Fig. 1"] * 5 + ["Fig. 2"]
    # Readings that give every point have a likelihood; the others follow, in the order they are stated.
    whole = [READINGS[at] for at in (0, 3, 5)]
    height = {one.name: tests[id(one.factors)].log_likelihood for one in whole}
    likelihoods = np.exp([height[name] - max(height.values()) for name in height])
    weights = dict(zip(height, likelihoods / likelihoods.sum(), strict=True))
    ranking = sorted(whole, key=lambda one: -height[one.name])
    assert [entry.factors for entry in entries[:3]] == [one.factors for one in ranking]
    for entry, one in zip(entries, ranking, strict=False):
        assert entry.weight == pytest.approx(weights[one.name], rel=1e-9)
    assert [entry.factors for entry in entries[3:5]] == [READINGS[2].factors, READINGS[4].factors]
    assert [(entry.points, entry.total) for entry in entries] == [(2, 2)] * 3 + [(1, 2), (0, 2), (2, 2)]
    assert [entry.weight for entry in entries[3:]] == [0.0, 0.0, 1.0]
    assert [entry.test is None for entry in entries] == [False] * 4 + [True, False]


def test_a_figure_that_no_reading_gives_has_no_weights() -> None:
    few = Reading("Fig. 1", {"trials": "few"}, (FEW,), squares)
    assert [(entry.weight, entry.points, entry.test) for entry in explain(stating(few))] == [(0.0, 0, None)]


def far(rows: Sequence[Row]) -> list[Point]:
    return [replace(one, values={seed: 100 + value for seed, value in one.values.items()}) for one in squares(rows)]


def test_the_least_likely_reading_still_has_a_weight() -> None:
    """Its density is no positive number of a computer."""
    (alone,) = explain(stating(Reading("Fig. 1", {"far": "yes"}, (NARROW,), far)))
    assert alone.test is not None
    assert alone.test.log_likelihood < -2000
    assert alone.weight == 1.0
    names = {"some": first_only, "far": far, "near": squares}
    ranking = explain(stating(*(Reading("Fig. 1", {name: ""}, (NARROW,), points) for name, points in names.items())))
    assert [(*one.factors, one.weight) for one in ranking] == [("near", 1.0), ("far", 0.0), ("some", 0.0)]


def test_ten_trials_are_enough_for_a_reading() -> None:
    (ten,) = explain(stating(Reading("Fig. 1", {"trials": "ten"}, (Config(trials=FEWEST),), squares)))
    assert (ten.points, ten.total, ten.weight) == (2, 2, 1.0)


def test_each_cell_runs_once_and_progress_counts_cells() -> None:
    calls: list[Config] = []

    def trials(config: Config, seeds: Any) -> list[Row]:
        calls.append(config)
        return EXPERIMENT.trials(config, seeds)

    told: list[tuple[str, float]] = []
    experiment = replace(stating(*READINGS), trials=trials)
    entries = explain(experiment, progress=lambda text, share: told.append((text, share)))
    assert calls == [batch.config for batch in cut([WIDE, NARROW, FEW], EXPERIMENT.batch)]
    assert told == [(f"tiny: reading {k + 1} of 3 cells", pytest.approx(k / 3)) for k in range(3)]
    assert [entry.weight for entry in entries] == [entry.weight for entry in explain(stating(*READINGS))]


def test_an_experiment_without_readings_is_named() -> None:
    with pytest.raises(ValueError, match=r"^tiny has no readings of its protocol; an experiment that lists some was"):
        explain(EXPERIMENT)
