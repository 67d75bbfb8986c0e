"""A printed number with our trials: its mean, its variance, and the points of a protocol with one change."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from attsvm_paper.judging.points import FEWEST, LARGEST_ERROR, Point, by_key, curve_points, next_values, swap
from attsvm_paper.judging.readings import Explanation, Reading
from attsvm_paper.published.ledger import LedgerNumber, PrintedCurve

TINY = float(np.finfo(float).tiny)


def point(values: Any, value: float = 2.0, trials: int | None = 25, error: float = 0.0, **more: Any) -> Point:
    """A point whose trials have the seeds 3, 4, 5, ..."""
    return Point(LedgerNumber(f"p: {value}", value, trials, error), dict(enumerate(values, 3)), 0.5, **more)


def test_a_point_needs_a_published_number_and_a_margin() -> None:
    with pytest.raises(ValueError, match=r"^published is None for \('c', 4\); a number of the ledger was expected\.$"):
        Point(None, {}, 1.0, place=("c", 4))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^margin is 0 for p; a positive number was expected\.$"):
        Point(LedgerNumber("p", 1.0, 9, 0.0), {}, 0)


def test_their_trials_are_the_ledgers_or_the_stated_or_without_end() -> None:
    assert point([1.0], trials=25).theirs == 25.0
    assert Point(LedgerNumber("p", 1.0, 25, 0.0), {}, 1.0, trials=7).theirs == 25.0
    assert Point(LedgerNumber("p", 1.0, None, 0.0), {}, 1.0, trials=7).theirs == 7.0
    assert point([1.0], trials=None).theirs == math.inf


@pytest.mark.parametrize("kind", ["share", "count", "mean"])
def test_a_mean_and_its_deviations_are_in_the_unit_of_the_number(kind: Any) -> None:
    one = point([1.0, 0.0, 0.0, 1.0, 1.0], 0.5, error=0.1, kind=kind)
    assert (one.mean, one.reference, one.reading) == (pytest.approx(0.6), 0.5, 0.1)
    assert one.deviations == pytest.approx({3: 0.4, 4: -0.6, 5: -0.6, 6: 0.4, 7: 0.4})


def test_a_logarithm_is_that_of_the_mean_and_its_deviations_are_relative() -> None:
    one = point([1.0, 2.0, 6.0], 2.0, error=0.1, kind="log")
    assert (one.mean, one.reference) == (pytest.approx(math.log(3)), pytest.approx(math.log(2)))
    assert one.reading == pytest.approx(0.05)
    assert one.deviations == pytest.approx({3: -2 / 3, 4: -1 / 3, 5: 1.0})
    # In first order: a trial moves the logarithm of the mean by its share of the deviation.
    moved = point([1.0, 2.0, 6.0 + 3e-6], kind="log")
    assert moved.mean - one.mean == pytest.approx(3e-6 / (3 * 3.0), rel=1e-5)


def test_the_logarithm_of_zero_is_that_of_the_least_number() -> None:
    zero = point([0.0, 0.0], kind="log")
    assert zero.mean == math.log(TINY)
    assert zero.deviations == {3: 0.0, 4: 0.0}


@pytest.mark.parametrize("kind", ["share", "count", "mean"])
def test_ten_trials_determine_a_point(kind: Any) -> None:
    assert FEWEST == 10
    many = [0.0, 1.0] * 10
    assert [point(many[:count], kind=kind).is_determinate for count in (0, 9, 10, 11)] == [False, False, True, True]


def test_a_skewed_mean_is_determined_up_to_three_tenths_of_itself() -> None:
    """One trial of `large` among ten of 1: mean and standard deviation by hand."""

    def relative_error(large: float) -> float:
        mean = (9 + large) / 10
        return math.sqrt((9 * (1 - mean) ** 2 + (large - mean) ** 2) / 10) / mean / math.sqrt(10)

    assert LARGEST_ERROR == 0.3
    assert 0.28 < relative_error(5.4) < 0.3 < relative_error(5.8) < 0.32
    assert point([1.0] * 9 + [5.4], kind="log").is_determinate
    assert not point([1.0] * 9 + [5.8], kind="log").is_determinate
    assert not point([1.0] * 9, kind="log").is_determinate
    assert point([1.0] * 9 + [100.0], kind="mean").is_determinate


@pytest.mark.parametrize(("theirs", "hits", "total"), [(25, 2 + 0.5 + 0.4 * 25, 4 + 1 + 25), (None, 2.5, 5)])
def test_the_least_variance_of_a_share_pools_both_samples(theirs: int | None, hits: float, total: float) -> None:
    share = point([1.0, 1.0, 0.0, 0.0], 0.4, theirs, kind="share")
    assert share.floor == pytest.approx(hits / total * (1 - hits / total), rel=1e-12)


@pytest.mark.parametrize(("value", "variance"), [(5.25, 0.25 * 0.75), (5.8, 0.2 * 0.8), (5.0, 0.1 * 0.9)])
def test_the_least_variance_of_a_count_is_that_of_integers(value: float, variance: float) -> None:
    """Of four trials and half a trial that differs: a tenth."""
    assert point([5.0] * 4, value, kind="count").floor == pytest.approx(variance, rel=1e-12)


@pytest.mark.parametrize("kind", ["mean", "log"])
def test_a_mean_has_no_least_variance_unless_theirs_is_known(kind: Any) -> None:
    assert point([1.0, 3.0], kind=kind).floor == 0.0
    assert point([1.0, 3.0], trials=None, kind=kind, deviation=1.5).floor == 0.0


def test_a_known_deviation_is_pooled_with_ours() -> None:
    """Deviations are relative to the mean: 1/2 twice of ours, 0.3/2 of theirs, weighted by trials."""
    one = point([1.0, 3.0], 2.0, 25, kind="log", deviation=0.3)
    assert one.floor == pytest.approx((2 * 0.5**2 + 25 * 0.15**2) / 27, rel=1e-12)
    assert point([2.0, 2.0], 2.0, None, kind="log", deviation=0.3).floor == 0.0
    stated = Point(LedgerNumber("p", 2.0, None, 0.0), {3: 1.0, 4: 3.0}, 0.5, "log", trials=7, deviation=0.3)
    assert stated.floor == pytest.approx((2 * 0.5**2 + 7 * 0.15**2) / 9, rel=1e-12)


CURVE = PrintedCurve(
    "Fig. 0: a", "0", "", "a", 1, "n", "share", (2, 4, 8, 16), (0.1, 0.2, 0.3, 0.4), 50, "", None, 0.01
)


def test_a_curve_is_paired_with_the_rows_at_its_grid_values() -> None:
    cells = {
        4: [{"seed": 11, "hit": True}, {"seed": 12, "hit": None}, {"seed": 13, "hit": False}],
        16: [{"seed": 11, "hit": None}],
        3: [{"seed": 11, "hit": True}],
    }
    points = curve_points(CURVE, cells, lambda row: row["hit"], 0.1, "share", 60, 0.3)
    assert [(one.place, one.values) for one in points] == [
        (("Fig. 0: a", 1), {11: 1.0, 13: 0.0}),
        (("Fig. 0: a", 3), {}),
    ]
    assert all(type(value) is float for value in points[0].values.values())
    for one, number in zip(points, (CURVE.at(4), CURVE.at(16)), strict=True):
        assert one.published is number
        assert (one.margin, one.kind, one.trials, one.deviation) == (0.1, "share", 60, 0.3)


def grid(key: str, *means: float) -> list[Point]:
    return [
        Point(LedgerNumber(f"{key} @ {at}", 0.0, 9, 0.0), {0: mean}, 1.0, place=(key, at))
        for at, mean in enumerate(means)
    ]


def means(points: dict[str, Point]) -> dict[str, float]:
    return {key: one.mean for key, one in points.items()}


def test_points_are_named_by_their_published_number() -> None:
    assert means(by_key(grid("a", 5.0, 7.0))) == {"a @ 0": 5.0, "a @ 1": 7.0}


@pytest.mark.parametrize(
    ("by", "moved"), [({}, [7, 9, 9, 2, 2]), ({"by": 2}, [9, 7, 9, 1, 2]), ({"by": -1}, [5, 5, 7, 1, 1])]
)
def test_the_next_value_is_that_of_the_same_curve(by: dict[str, int], moved: list[float]) -> None:
    points = [*grid("a", 5.0, 7.0, 9.0), *grid("b", 1.0, 2.0)]
    expected = dict(zip(("a @ 0", "a @ 1", "a @ 2", "b @ 0", "b @ 1"), moved, strict=True))
    assert means(next_values(points, **by)) == expected


def test_exchanged_curves_keep_what_has_no_partner() -> None:
    points = [*grid("a", 5.0, 7.0), *grid("b", 1.0), *grid("c", 3.0)]
    exchanged = means(swap(points, {"a": "b", "b": "a"}))
    assert exchanged == {"a @ 0": 1.0, "a @ 1": 7.0, "b @ 0": 5.0, "c @ 0": 3.0}


def test_a_reading_is_named_by_its_choices() -> None:
    reading = Reading("Fig. 0", {"score gap": "0.1", "filter": "none"}, (), lambda rows: [])
    assert reading.name == "score gap 0.1, filter none"
    explanation = Explanation("Fig. 0", reading.factors, 1, 2, None, 0.5)
    assert (explanation.points, explanation.total, explanation.weight) == (1, 2, 0.5)
