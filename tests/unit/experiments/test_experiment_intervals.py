"""Intervals and estimates equal those of scipy, or of a loop over the definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attsvm_paper.judging import statistics
from attsvm_paper.judging.estimates import (
    Estimates,
    Measure,
    along,
    at_records,
    estimate,
    estimates_by,
    share_estimate,
)
from attsvm_paper.judging.grouping import by, column, panels_of
from attsvm_paper.judging.statistics import (
    bootstrap_interval,
    check_share,
    mean_interval,
    normal_quantile,
    student_quantile,
    vector,
    wilson_interval,
)

SAMPLE = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_the_interval_of_a_share_is_that_of_scipy(count: int, level: float) -> None:
    for hits in range(count + 1):
        expected = stats.binomtest(hits, count).proportion_ci(level, method="wilson")
        np.testing.assert_allclose(wilson_interval(hits, count, level), expected, rtol=1e-12, atol=1e-15)


def test_the_interval_of_no_or_every_success_has_an_exact_end() -> None:
    intervals = [(wilson_interval(0, count)[0], wilson_interval(count, count)[1]) for count in range(1, 300)]
    assert set(intervals) == {(0.0, 1.0)}
    assert all(wilson_interval(1, count)[0] > 0 and wilson_interval(count - 1, count)[1] < 1 for count in range(2, 300))


def test_the_default_level_of_every_interval_is_95_percent() -> None:
    assert wilson_interval(3, 8) == wilson_interval(3, 8, 0.95)
    assert mean_interval(SAMPLE) == mean_interval(SAMPLE, 0.95)
    assert bootstrap_interval(SAMPLE) == bootstrap_interval(SAMPLE, np.mean, 0.95, 2000, 0)


@pytest.mark.parametrize("sample", [SAMPLE[:2], SAMPLE[:3], SAMPLE])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_interval_of_a_mean_is_that_of_student(sample: list[float], level: float) -> None:
    expected = stats.t.interval(level, len(sample) - 1, np.mean(sample), stats.sem(sample))
    np.testing.assert_allclose(mean_interval(sample, level), expected, rtol=1e-12)


@pytest.mark.parametrize("statistic", [np.mean, np.median, np.max])
@pytest.mark.parametrize(
    ("sample", "resamples", "level", "seed"),
    [(SAMPLE, 137, 0.9, 3), (SAMPLE[:2], 50, 0.95, 0), (list(np.geomspace(1, 90, 700)), 201, 0.5, 1)],
)
def test_the_bootstrap_takes_quantiles_over_resamples(
    statistic: Callable[..., Any], sample: list[float], resamples: int, level: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    draws = [statistic([sample[i] for i in rng.integers(len(sample), size=len(sample))]) for _ in range(resamples)]
    expected = [np.quantile(draws, (1 + sign * level) / 2) for sign in (-1, 1)]
    interval = bootstrap_interval(sample, lambda x, axis: statistic(x, axis=axis), level, resamples, seed)
    np.testing.assert_allclose(interval, expected, rtol=1e-14)
    np.testing.assert_allclose(bootstrap_interval(sample, statistic, level, resamples, seed), expected, rtol=1e-13)


@pytest.mark.parametrize("at_once", [1, 6, 13, 1 << 16])
def test_the_memory_of_a_bootstrap_does_not_change_it(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    whole = bootstrap_interval(SAMPLE, resamples=25)
    monkeypatch.setattr(statistics, "_AT_ONCE", at_once)
    sizes: list[int] = []

    def mean(sample: np.ndarray, axis: int) -> np.ndarray:
        sizes.append(sample.size)
        return np.add.reduce(sample, axis=axis) / len(sample)

    monkeypatch.setattr("numpy.mean", mean)
    np.testing.assert_allclose(bootstrap_interval(SAMPLE, mean, resamples=25), whole, rtol=1e-14)
    assert sum(sizes) == 25 * len(SAMPLE)
    # One resample at least, and no more numbers than allowed beyond it.
    assert max(sizes) == min(max(at_once // 6, 1), 25) * 6


@pytest.mark.parametrize("level", [0.0, 0.5, 0.95, 1 - 1e-9])
def test_quantiles_have_their_probability_on_both_sides_of_zero(level: float) -> None:
    assert stats.norm.cdf(normal_quantile(level)) - stats.norm.cdf(-normal_quantile(level)) == pytest.approx(level)
    for freedom in (1, 4, 99):
        t = student_quantile(level, freedom)
        assert stats.t.cdf(t, freedom) - stats.t.cdf(-t, freedom) == pytest.approx(level)


@pytest.mark.parametrize("values", [[[1.0]], 1.0, [1.0, math.inf], [math.nan]])
def test_what_is_no_finite_vector_is_refused(values: Any) -> None:
    with pytest.raises(ValueError, match=r"values has shape .*; a vector of finite numbers, one per trial"):
        vector(values)


def test_a_vector_is_of_floats() -> None:
    assert vector([True, 2]).dtype == np.float64
    assert vector([]).shape == (0,)


@pytest.mark.parametrize(("hits", "count"), [(-1, 3), (4, 3), (1, 0)])
def test_no_more_successes_than_trials(hits: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"hits is {hits} of {count}; "):
        check_share(hits, count)
    for fine in (0, 3):
        check_share(fine, 3)


def test_an_estimated_share_has_the_interval_of_its_counts() -> None:
    one = estimate([True, 0, 1, 1.0, False], "share")
    assert (one.value, one.low, one.high) == (0.6, *wilson_interval(3, 5))
    assert (one.count, one.hits, one.values.tolist()) == (5, 3, [])
    empty = share_estimate(0, 0)
    assert math.isnan(empty.value)
    assert (empty.low, empty.high, empty.count, empty.hits) == (0.0, 1.0, 0, 0)


def test_each_statistic_has_its_value_and_its_interval() -> None:
    mean, bootstrap, median = (estimate(SAMPLE, name, 100) for name in ("mean", "bootstrap", "median"))
    assert (mean.low, mean.high) == mean_interval(SAMPLE)
    assert (bootstrap.low, bootstrap.high) == bootstrap_interval(SAMPLE, np.mean, resamples=100)
    assert (median.low, median.high) == bootstrap_interval(SAMPLE, np.median, resamples=100)
    assert mean.value == bootstrap.value == np.mean(SAMPLE)
    assert median.value == 2.8
    for one in (mean, bootstrap, median):
        assert (one.count, one.hits, one.values.tolist()) == (6, None, SAMPLE)


@pytest.mark.parametrize("statistic", ["mean", "bootstrap", "median"])
def test_no_trial_has_no_mean_and_every_interval(statistic: Any) -> None:
    one = estimate([], statistic)
    assert math.isnan(one.value)
    assert (one.low, one.high, one.count) == (-math.inf, math.inf, 0)


def test_a_record_has_the_values_of_all_trials_at_its_step() -> None:
    table = [[1, 5], [2, 7], [6, 9]]
    result = at_records((10, 20), table, "bootstrap", 60)
    assert list(result) == [10, 20]
    assert (result[10].value, result[20].value) == (3.0, 7.0)
    assert (result[20].low, result[20].high) == bootstrap_interval([5.0, 7.0, 9.0], resamples=60)
    with pytest.raises(ValueError, match="zip"):
        at_records((10,), table, "mean")


def test_a_measure_reads_a_field_or_calls_and_leaves_out_none() -> None:
    rows = [{"x": 1.0, "y": 5.0}, {"x": None, "y": 6.0}, {"x": 0.0, "y": 7.0}]
    assert Measure("x", "x").values(rows) == [1.0, 0.0]
    assert Measure("y", lambda row: row["y"] if row["x"] else None).values(rows) == [5.0]


def test_estimates_along_x_leave_out_what_has_no_trial() -> None:
    cells = {(1,): [{"x": 2.0}], 2: [{"x": 3.0}, {"x": None}], (3,): [{"x": None}], 4: []}
    assert {x: (one.value, one.count) for x, one in along(cells, Measure("x", "x", "mean")).items()} == {
        1: (2.0, 1),
        2: (3.0, 1),
    }


def test_a_measure_is_estimated_once_in_a_cell() -> None:
    calls: list[Any] = []

    def value(row: dict[str, Any]) -> float:
        calls.append(row)
        return row["x"]

    rows = [{"n": n, "T": 3, "x": float(10 * n + k)} for n in (2, 1) for k in (0, 1)]
    table = Estimates(rows, ["n", "T"], {"x": Measure("x", value, "mean"), "n": Measure("n", "n", "median")})
    assert table.keys == ("n", "T")
    assert list(table.cells) == [(1, 3), (2, 3)]
    assert table.of((2, 3), "x") is table.of((2, 3), "x") is table.along("n", "x")[2]
    assert calls == rows[:2] + rows[2:]
    assert (table.of((2, 3), "x").value, table.of((2, 3), "n").value) == (20.5, 2.0)
    assert table.along("n", "x", T=4) == {}
    assert table.along("T", "x", n=1)[3].value == 10.5


def test_only_the_chosen_rows_are_estimated() -> None:
    chosen = estimates_by(["n"], {"x": Measure("x", "x", "mean")}, lambda rows: [row for row in rows if row["x"] > 1])
    rows = [{"n": 1, "x": 0.0}, {"n": 1, "x": 2.0}]
    assert chosen(rows).of((1,), "x").value == 2.0
    assert chosen(list(rows)) is not chosen(rows)


def test_rows_are_grouped_in_the_order_of_their_values() -> None:
    rows = [{"n": n, "d": d} for n, d in ((3, 1), (1, 2), (3, 1), (1, 1))]
    groups = by(rows, "n", "d")
    assert list(groups) == [(1, 1), (1, 2), (3, 1)]
    assert groups[3, 1] == [rows[0], rows[2]]
    assert all(first < second for first, second in pairwise(groups))


def test_a_size_that_no_panel_shows_gets_a_panel() -> None:
    panels = (("left", ((1, 2), (3, 4))), ("right", ((5, 6),)))

    def rows(*sizes: tuple[int, int]) -> list[dict[str, Any]]:
        return [{"n": n, "T": T} for n, T in sizes]

    assert panels_of(rows((3, 4), (5, 6)), panels) is panels
    assert panels_of(rows((3, 4), (2, 9)), panels) == (("n = 2, T = 9, n = 3, T = 4", ((2, 9), (3, 4))),)
    three = panels_of(rows((3, 4), (2, 9), (7, 7)), panels)
    assert three == (("n = 2, T = 9, n = 3, T = 4", ((2, 9), (3, 4), (7, 7))),)


def test_a_column_is_of_floats_and_leaves_out_none() -> None:
    values = column([{"x": 1}, {"x": None}, {"x": True}, {"x": 2.5}], "x")
    assert values.dtype == np.float64
    assert values.tolist() == [1.0, 1.0, 2.5]
