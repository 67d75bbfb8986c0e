"""A temperature for each query: settings, rows by another route, verdicts and curves from rows made by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, Status
from attsvm.plots.style import FIRST, NARROW, SECOND, WIDE
from attsvm.theory.temperature import temperature_saving
from attsvm_paper.beyond.predictions import predictions
from attsvm_paper.beyond.query_temperature import FIELDS, Config, figure, slopes, specificity, sweep, trials, verdicts
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.instances import draw
from drawn import curves, panel_height, place, ticks


def test_both_norms_have_three_numbers_of_queries_and_pairs_four_angles() -> None:
    """Findings, "A temperature for each query": 40 instances, 3 to 12 queries, 0.3 to 0.01 radians."""
    for found, count in ((sweep("full"), 40), (sweep("quick"), 8)):
        cells = [Config("budget", norm, 0.1, 10, n, 8, count) for norm in ("frobenius", "nuclear") for n in (3, 6, 12)]
        cells += [Config("specificity", "frobenius", angle, 10, 6, 8, count) for angle in (0.3, 0.1, 0.03, 0.01)]
        assert found == cells


LEAST = {"setting": "specificity", "n": 2, "T": 2, "d": 2}


@pytest.mark.parametrize(
    "fields",
    [
        LEAST,
        LEAST | {"n": 4},
        LEAST | {"T": 3},
        LEAST | {"T": 3, "n": 8, "d": 4},
        LEAST | {"angle": 1.57},
        {"setting": "budget", "n": 1, "T": 1, "d": 1},
        {"setting": "budget", "n": 20, "T": 3, "d": 2},
    ],
)
def test_sizes_whose_margins_can_be_met_are_taken(fields: dict[str, Any]) -> None:
    assert Config(**fields).trials == 40


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"setting": "other"}, "setting is 'other'; 'budget' or 'specificity' was expected"),
        (LEAST | {"n": 5}, r"n \(T - 1\) is 5; at most d\^2 = 4 margins were expected"),
        (LEAST | {"T": 4}, r"n \(T - 1\) is 6; at most d\^2 = 4 margins"),
        (LEAST | {"T": 1}, r"n \(T - 1\) is 0; at most"),
        (LEAST | {"n": 1}, r"n \(T - 1\) is 1; at most"),
        (LEAST | {"n": 1, "T": 3}, "n, T and d are 1, 3 and 2; at least 2 of each"),
        (LEAST | {"d": 1}, r"at most d\^2 = 1 margins"),
        (LEAST | {"angle": 0.0}, "angle is 0.0; an angle between 0 and pi / 2 was expected"),
        (LEAST | {"angle": math.pi / 2}, "angle is 1.57"),
        ({"setting": "budget", "angle": -0.1}, "angle is -0.1"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**fields)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_a_saving_is_that_of_the_best_tokens(norm: str) -> None:
    rows = trials(Config("budget", norm, d=3, n=2, T=3), np.array([3, 4]))
    for b, row in enumerate(rows):
        instances = draw([3 + b], 2, 3, 3)
        tokens, queries = instances.data.tokens[0], instances.data.queries[0]
        best = (np.asarray(instances.data.labels)[0, :, None] * (tokens @ instances.v[0])).argmax(-1)
        saving = temperature_saving(SelectionProblem(tokens, queries, best), norm)
        spread = max(saving.temperatures) / min(saving.temperatures)
        expected = {"seed": 3 + b, "saving_low": saving.low, "saving_high": saving.high, "spread": spread}
        assert row == pytest.approx(expected | {"plain": None, "own": None})


def test_an_instance_that_no_matrix_solves_has_no_saving() -> None:
    instances = draw([0], 2, 3, 1)
    assert instances.solve(instances.optimal).status[0] is Status.INFEASIBLE
    assert trials(Config("budget", n=2, T=3, d=1), [0]) == [{"seed": 0} | dict.fromkeys(FIELDS)]


def test_norms_of_two_pairs_are_the_least_for_their_margins() -> None:
    """The least-norm solution of A w = m has the squared norm m^T (A A^T)^-1 m."""
    config = Config("specificity", angle=0.2, d=4, n=4, T=3)
    (row,) = trials(config, [5])
    assert row == {"seed": 5} | dict.fromkeys(FIELDS) | specificity(config, 5)
    rng = np.random.default_rng(5)
    constraints = []
    for _ in range(2):
        tokens = rng.standard_normal((3, 4)) / 2
        first, second = np.linalg.qr(rng.standard_normal((4, 2)))[0].T
        for query in (first, math.cos(0.2) * first + math.sin(0.2) * second):
            constraints += [np.outer(tokens[0] - tokens[t], query).ravel() for t in (1, 2)]
    A = np.array(constraints)
    for field, sharper in (("plain", 5.0), ("own", 1.0)):
        margins = np.array([1.0, 1.0, sharper, sharper] * 2)
        assert row[field] == pytest.approx(np.sqrt(margins @ np.linalg.solve(A @ A.T, margins)), rel=1e-9)


def pair(trial: int, angle: float, plain: float | None, own: float | None) -> Row:
    sizes = {"setting": "specificity", "norm": "frobenius", "n": 6, "T": 8, "d": 10, "seed": trial, "trial": trial}
    return sizes | {"angle": angle} | dict.fromkeys(FIELDS) | {"plain": plain, "own": own}


def whole(
    trial: int, n: int, low: float | None, high: float | None, spread: float | None, norm: str = "nuclear"
) -> Row:
    sizes = {"setting": "budget", "norm": norm, "n": n, "T": 8, "d": 10, "seed": trial, "trial": trial, "angle": 0.1}
    return sizes | dict.fromkeys(FIELDS) | {"saving_low": low, "saving_high": high, "spread": spread}


# One seed's norm falls like the square of the angle, the other's like its root.
PAIRS = [
    pair(0, 0.1, 100.0, 2.0), pair(0, 0.01, 1e4, 2.0), pair(1, 0.1, 10.0, 5.0), pair(1, 0.01, 10**1.5, 5.0),
    pair(2, 0.1, 30.0, 3.0),
]  # fmt: skip
WHOLE = [
    whole(0, 3, 0.1, 0.12, 2.0), whole(1, 3, 0.2, 0.21, 3.0), whole(2, 3, None, None, None),
    whole(0, 6, 0.3, 0.3, 1.5), whole(1, 6, 0.2, 0.2, 1.5), whole(0, 12, None, None, None),
    whole(0, 3, 0.02, 0.04, 1.25, "frobenius"),
]  # fmt: skip


def test_a_slope_is_of_each_seed_with_several_angles() -> None:
    assert slopes(PAIRS, "plain") == pytest.approx([-2, -0.5])
    assert slopes(PAIRS, "own") == pytest.approx([0, 0], abs=1e-12)
    assert slopes([*PAIRS, pair(3, 0.1, 1.0, 1.0), pair(3, 0.1, 2.0, 1.0)], "plain") == pytest.approx([-2, -0.5])


def prediction(name: str, outcome: str) -> str:
    foreseen = predictions()["query-temperature"][name]
    return f"Predicted by {foreseen.basis}: {foreseen.low:g} to {foreseen.high:g}, {outcome}. {foreseen.reason}"


@pytest.mark.parametrize(
    ("size", "values", "count", "infeasible", "note"),
    [
        ("nuclear norm, n=3", [0.11, 0.205], 3, 1,
         "Certified to 0.02. The largest temperature is 2.50 times the smallest. " + prediction("saving", "hit")),
        ("nuclear norm, n=6", [0.3, 0.2], 2, 0,
         "Certified to 0. The largest temperature is 1.50 times the smallest. " + prediction("saving", "hit")),
        ("frobenius norm, n=3", [0.03], 1, 0,
         "Certified to 0.02. The largest temperature is 1.25 times the smallest. " + prediction("saving", "undecided")),
    ],
)  # fmt: skip
def test_a_certified_saving_is_the_middle_of_its_bounds(
    size: str, values: list[float], count: int, infeasible: int, note: str
) -> None:
    found = {one.quantity: one for one in verdicts(WHOLE)}
    # An instance that no W solves alone says nothing.
    assert len(found) == 3
    one = found[f"share of the norm saved by temperatures of mean one, {size}, T=8, d=10"]
    middle = estimate(values, "bootstrap")
    assert (one.measured, one.low, one.high) == pytest.approx((middle.value, middle.low, middle.high))
    assert (one.experiment, one.trials, one.infeasible, one.note) == ("query-temperature", count, infeasible, note)


def test_slopes_and_ratios_of_pairs_are_reported() -> None:
    found = {one.quantity: one for one in verdicts([*WHOLE, *PAIRS])}
    words = "slope of log norm over log angle of two queries"
    plain, own = found[f"{words}, one temperature for both queries"], found[f"{words}, a temperature for each"]
    middle = estimate(slopes(PAIRS, "plain"), "bootstrap")
    assert (plain.measured, plain.low, plain.high) == (middle.value, middle.low, middle.high)
    assert plain.measured == pytest.approx(-1.25)
    assert plain.note == prediction("slope-plain", "undecided")
    assert own.measured == pytest.approx(0, abs=1e-12)
    assert own.note == prediction("slope-own", "hit")
    near = found["norm without temperatures over the norm with them, angle=0.1, n=6, T=8, d=10"]
    middle = estimate([50.0, 2.0, 10.0], "bootstrap")
    assert (near.measured, near.low, near.high, near.trials) == (middle.value, middle.low, middle.high, 3)
    nearer = found["norm without temperatures over the norm with them, angle=0.01, n=6, T=8, d=10"]
    assert nearer.measured == pytest.approx((5000 + 10**1.5 / 5) / 2)
    assert len(found) == 3 + 2 + 2


@pytest.mark.parametrize(("plain", "own"), [(None, 2.0), (2.0, None), (None, None)])
def test_a_ratio_needs_both_norms(plain: float | None, own: float | None) -> None:
    (one,) = (one for one in verdicts([pair(0, 0.1, plain, own)]) if "over the norm" in one.quantity)
    assert math.isnan(one.measured)
    assert one.trials == 0


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_savings_are_drawn_against_queries_and_norms_against_the_angle(width: float) -> None:
    drawing = figure([*WHOLE, *PAIRS], width)
    saving, near = drawing.axes
    assert (saving.get_title(loc="left"), near.get_title(loc="left")) == (
        "mean temperature one", "two queries, one 5 times as sharp",
    )  # fmt: skip
    assert (saving.get_xlabel(), saving.get_ylabel()) == ("queries n", "share of the norm saved")
    assert (near.get_xlabel(), near.get_ylabel()) == ("angle of the two queries", "least norm of W")
    assert (saving.get_yscale(), saving.get_ylim()[0], near.get_yscale()) == ("linear", 0, "log")
    assert ticks(saving.xaxis) == {3: "3", 6: "6", 12: "12"}
    assert ticks(near.xaxis) == {0.01: "0.01", 0.1: "0.1"}
    drawn = curves(saving)
    assert list(drawn) == ["frobenius norm", "nuclear norm"]
    assert drawn["frobenius norm"].y == pytest.approx([0.03])
    assert drawn["nuclear norm"].y == pytest.approx([0.1575, 0.25])
    # The two norms stand apart at a number of queries.
    first, second = (drawn[f"{norm} norm"].x for norm in ("frobenius", "nuclear"))
    assert first == pytest.approx([3], rel=0.05)
    assert second == pytest.approx([3, 6], rel=0.05)
    assert second[0] / first[0] > 1.01
    drawn = curves(near)
    assert list(drawn) == ["one temperature", "one for each query"]
    middle = estimate([100.0, 10.0, 30.0], "mean")
    assert drawn["one temperature"].x == [0.01, 0.1]
    assert drawn["one temperature"].y == pytest.approx([(1e4 + 10**1.5) / 2, middle.value])
    assert drawn["one temperature"].high[1] == pytest.approx(middle.high)
    assert drawn["one for each query"].y == pytest.approx([3.5, 10 / 3])
    for ax in (saving, near):
        legend = ax.get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == list(curves(ax))
        # Blue and orange differ under every kind of colour blindness.
        assert {one.color for one in curves(ax).values()} == {FIRST, SECOND}
    assert 1.3 < panel_height(drawing) < 5
    assert {place(ax)[:2] for ax in drawing.axes} == {(1, 2) if width == WIDE else (2, 1)}


@pytest.mark.parametrize(("rows", "left", "right"), [(WHOLE[:1], ["nuclear norm"], []), (PAIRS[:1], [], 2)])
def test_a_setting_that_did_not_run_leaves_its_panel_empty(rows: list[Row], left: list[str], right: Any) -> None:
    saving, near = figure(rows).axes
    assert list(curves(saving)) == left
    assert len(curves(near)) == (right or 0)
    assert (saving.get_legend() is None, near.get_legend() is None) == (not left, not right)
    assert saving.get_title(loc="left") == "mean temperature one"
