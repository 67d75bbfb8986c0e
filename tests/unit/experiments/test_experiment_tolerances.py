"""Verdicts on single numbers: tolerance, margin and power recomputed from the formulas, and the words of each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from attsvm_paper.judging.comparison import (
    COMPARISONS,
    LEVEL,
    SHARE_MARGIN,
    correction,
    count_deviation,
    estimate_verdict,
    mean_verdict,
    share_tolerance,
    share_verdict,
    value_verdict,
)
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.statistics import bootstrap_interval, mean_interval, wilson_interval
from attsvm_paper.judging.verdict import Verdict, listed
from attsvm_paper.published.ledger import LedgerNumber, ledger

Z = float(stats.norm.isf(LEVEL / 2))
VALUES = [2.0, 3.5, 2.5, 4.0, 3.0]


def printed(value: float, trials: int | None = None, error: float = 0.0, sd: float | None = None) -> LedgerNumber:
    return LedgerNumber(f"test: {value}", value, trials, error, sd)


def edge(p: float, ours: int, theirs: int | None, above: bool) -> float:
    """The largest difference that the two-sample score test accepts, found by its sign changes."""

    def excess(delta: float) -> float:
        if theirs is None:
            return delta**2 - Z**2 * p * (1 - p) / ours
        pooled = (p * theirs + (p + sign * delta) * ours) / (theirs + ours)
        return delta**2 - Z**2 * pooled * (1 - pooled) * (1 / ours + 1 / theirs)

    sign = 1 if above else -1
    # The quadratic is negative up to its root and positive from there.
    root: Any = optimize.brentq(excess, 1e-12, 2.0, xtol=1e-15)
    return root


def test_the_level_is_shared_by_every_number_of_the_ledger() -> None:
    assert LEVEL == 0.05 / COMPARISONS
    assert COMPARISONS - 10 < len(ledger().numbers) <= COMPARISONS
    assert SHARE_MARGIN == 0.1


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize(("p", "ours", "theirs"), [(0.3, 100, 500), (0.5, 12, 7), (0.9, 40, 100), (0.2, 30, None)])
def test_the_tolerance_of_a_share_solves_its_equation(p: float, ours: int, theirs: int | None, above: bool) -> None:
    assert share_tolerance(p, ours, theirs, above) == pytest.approx(edge(p, ours, theirs, above), rel=1e-9)


@pytest.mark.parametrize(
    ("value", "hits", "sides"),
    [(0.4, 28, [True]), (0.4, 8, [False]), (0.4, 20, [True, False]), (0.6, 30, [True, False])],
)
@pytest.mark.parametrize("theirs", [150, None])
def test_the_verdict_of_a_share_follows_the_formulas(
    value: float, hits: int, sides: list[bool], theirs: int | None
) -> None:
    ours, error = 50, 0.01
    one = share_verdict(
        "e", "q", hits, ours, published=printed(value, theirs, error), margin=0.3, discarded=4, infeasible=2, note="N."
    )
    tolerance = error + max(edge(value, ours, theirs, side) for side in sides)
    # Half a success is added to each sample; theirs may be none.
    pooled = (hits + 0.5 + value * theirs) / (ours + 1 + theirs) if theirs else (hits + 0.5) / (ours + 1)
    spread = math.sqrt(pooled * (1 - pooled) * (1 / ours + (1 / theirs if theirs else 0)))
    assert one.tolerance == pytest.approx(tolerance, rel=1e-9)
    assert one.power == pytest.approx(stats.norm.cdf((0.3 - tolerance) / spread), rel=1e-9)
    assert (one.measured, one.low, one.high) == (hits / ours, *wilson_interval(hits, ours))
    assert (one.published, one.key, one.margin) == (value, f"test: {value}", 0.3)
    assert (one.trials, one.discarded, one.infeasible, one.note) == (54, 4, 2, "N.")


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_share_may_be_none_or_all(value: float) -> None:
    one = share_verdict("e", "q", 100 * int(value), 100, published=printed(value, 500))
    assert (one.verdict, one.measured) == ("agrees", value)


@pytest.mark.parametrize("value", [-0.01, 1.01])
def test_what_is_no_share_is_named(value: float) -> None:
    with pytest.raises(ValueError, match=rf"^published is {value} for 'q'; a share in \[0, 1\] was expected\.$"):
        share_verdict("e", "q", 1, 2, published=printed(value))


@pytest.mark.parametrize(
    ("published", "options", "error"),
    [
        (printed(3.2, 40, 0.02), {}, math.sqrt(np.var(VALUES, ddof=1) * (1 / 5 + 1 / 40))),
        (printed(3.2, 40, 0.02, 1.5), {}, math.sqrt(np.var(VALUES, ddof=1) / 5 + 1.5**2 / 40)),
        (
            printed(3.2, 40, 0.02, 1.5),
            {"published_deviation": 2.0},
            math.sqrt(np.var(VALUES, ddof=1) / 5 + 2.0**2 / 40),
        ),
        (printed(3.2, None, 0.02, 1.5), {}, math.sqrt(np.var(VALUES, ddof=1) / 5)),
        (printed(3.2, None, 0.02, 1.5), {"assumed_trials": 9}, math.sqrt(np.var(VALUES, ddof=1) / 5 + 1.5**2 / 9)),
        (printed(3.2, 40, 0.02, 1.5), {"assumed_trials": 9}, math.sqrt(np.var(VALUES, ddof=1) / 5 + 1.5**2 / 40)),
    ],
)
def test_the_verdict_of_a_mean_follows_the_formulas(
    published: LedgerNumber, options: dict[str, Any], error: float
) -> None:
    one = mean_verdict("e", "q", VALUES, published=published, margin=12.0, discarded=3, **options)
    tolerance = 0.02 + stats.t.isf(LEVEL / 2, 4) * error
    assert one.tolerance == pytest.approx(tolerance, rel=1e-9)
    assert one.power == pytest.approx(stats.norm.cdf((12.0 - tolerance) / error), rel=1e-9)
    assert (one.measured, one.low, one.high) == (3.0, *mean_interval(VALUES))
    assert (one.verdict, one.trials, one.discarded) == ("agrees", 8, 3)


def test_two_values_are_enough_for_a_verdict_on_a_mean() -> None:
    assert mean_verdict("e", "q", [1.0, 1.0], published=printed(1.0, 9), margin=0.1).verdict == "agrees"
    one = mean_verdict("e", "q", [1.0], published=printed(1.0, 9), margin=0.1)
    assert one.verdict == "measured"
    assert math.isnan(one.tolerance)
    assert math.isnan(one.power)


def test_the_interval_of_a_mean_may_be_the_bootstraps() -> None:
    one = mean_verdict("e", "q", VALUES, interval="bootstrap")
    assert (one.low, one.high) == bootstrap_interval(VALUES)
    assert (one.measured, one.verdict) == (3.0, "measured")
    assert math.isnan(one.tolerance)
    assert math.isnan(one.margin)


@pytest.mark.parametrize("margin", [math.nan, 0.0, -0.5])
def test_a_mean_needs_a_margin_and_a_share_has_one(margin: float) -> None:
    words = rf"^margin is {margin} for 'q'; a positive number was expected with `published`\.$"
    with pytest.raises(ValueError, match=words):
        estimate_verdict("e", "q", estimate(VALUES, "mean"), published=printed(1.0), margin=margin)
    share = estimate([1] * 500, "share")
    assert estimate_verdict("e", "q", share, published=printed(1.0), margin=margin).verdict == "too weak to tell"
    assert estimate_verdict("e", "q", estimate(VALUES, "mean"), margin=margin).verdict == "measured"


def test_the_number_of_trials_may_be_stated() -> None:
    assert share_verdict("e", "q", 1, 2, discarded=3).trials == 5
    assert share_verdict("e", "q", 1, 2, trials=0, discarded=3).trials == 0


# 0.8 - 0.5 is rounded to more than 0.3.
@pytest.mark.parametrize(
    ("measured", "tolerance", "margin", "verdict"),
    [
        (0.8, 0.3, 0.3, "agrees"),
        (0.2, 0.3, 0.3, "agrees"),
        (0.8, 0.3, 0.29, "too weak to tell"),
        (0.8, 0.3, math.nan, "too weak to tell"),
        (0.8, 0.29, 1.0, "differs"),
        (0.2, 0.29, 1.0, "differs"),
        (math.nan, 0.3, 0.3, "measured"),
        (0.8, math.inf, 0.3, "measured"),
        (0.8, math.nan, 0.3, "measured"),
    ],
)
def test_a_difference_is_held_against_tolerance_and_margin(
    measured: float, tolerance: float, margin: float, verdict: str
) -> None:
    one = value_verdict("e", "q", measured, 0.1, 0.9, published=printed(0.5), tolerance=tolerance, margin=margin)
    assert one.verdict == verdict
    np.testing.assert_equal(
        [one.measured, one.low, one.high, one.tolerance, one.margin], [measured, 0.1, 0.9, tolerance, margin]
    )


@pytest.mark.parametrize(("spread", "error", "verdict"), [
    (0.0, 0.2, "agrees"),
    (0.0, 0.21, "too weak to tell"),
    (0.12, 0.0, "agrees"),
    (0.122, 0.0, "too weak to tell"),
    (0.06, 0.1, "agrees"),
    (0.06, 0.102, "too weak to tell"),
])  # fmt: skip
def test_the_90_percent_interval_lies_within_the_margin(spread: float, error: float, verdict: str) -> None:
    """The bound is 1.645 times the spread, plus the reading error: 0.2 are left of the margin."""
    one = value_verdict(
        "e", "q", 1.3, 1, 2, published=printed(1.0, None, error), tolerance=0.4, spread=spread, margin=0.5
    )
    assert one.verdict == verdict


def test_power_is_that_of_a_normal_difference_or_certain() -> None:
    def power(**options: Any) -> float:
        return value_verdict("e", "q", 1.0, 1, 1, published=printed(1.0), tolerance=0.4, **options).power

    assert power(spread=0.2, margin=0.6) == pytest.approx(stats.norm.cdf(1.0), rel=1e-12)
    assert power(spread=2.0, margin=0.2) == pytest.approx(stats.norm.cdf(-0.1), rel=1e-12)
    assert (power(margin=0.41), power(margin=0.4), power(margin=0.39)) == (1.0, 0.0, 0.0)
    assert math.isnan(value_verdict("e", "q", math.nan, 1, 1, published=printed(1.0), margin=1.0).power)


def test_a_number_that_nobody_published_has_neither_tolerance_nor_margin() -> None:
    one = value_verdict("e", "q", 1.0, 0.5, 1.5, tolerance=0.1, margin=0.3, discarded=2, infeasible=1, note="Ours.")
    assert (one.experiment, one.quantity, one.published, one.key, one.verdict) == ("e", "q", None, "", "measured")
    assert (one.trials, one.discarded, one.infeasible, one.note) == (1, 2, 1, "Ours.")
    assert all(math.isnan(number) for number in (one.tolerance, one.margin, one.power))


def test_published_counts_vary_at_least_as_integers() -> None:
    """Of mean 9.25: a quarter is 10 and the rest 9."""
    assert count_deviation(9.25, [9, 9]) == pytest.approx(np.std([9, 9, 9, 10]))
    assert count_deviation(9.25, [7, 9]) == pytest.approx(math.sqrt(2))
    assert count_deviation(9.25, [3]) == count_deviation(9.25, []) == pytest.approx(np.std([9, 9, 9, 10]))


TRUTH = value_verdict("e", "q", 1.0, 0.9, 1.1, published=printed(2.0), tolerance=0.1, margin=0.5)


@pytest.mark.parametrize("own", ["", "Of 5."])
@pytest.mark.parametrize(
    ("measured", "tolerance", "verdict", "note"),
    [
        (2.00004, 0.1, "corrected", "It rounds. With that put back 2: agrees."),
        (3.0, 0.1, "differs", "Not explained by this: It rounds. With that put back 3: differs."),
        (3.125, 9.0, "differs", "Not shown to be this: It rounds. With that put back 3.125: too weak to tell."),
        (math.nan, 9.0, "differs", "Not shown to be this: It rounds. With that put back nan: measured."),
    ],
)
def test_a_correction_says_what_was_put_back(
    measured: float, tolerance: float, verdict: Any, note: str, own: str
) -> None:
    restored = value_verdict("e", "q", measured, 0, 9, published=printed(2.0), tolerance=tolerance, margin=0.5)
    text = f"{note} {own}" if own else note
    expected = replace(TRUTH, verdict=verdict, note=text)
    assert correction(replace(TRUTH, note=own), restored, "It rounds.") == expected


@pytest.mark.parametrize("verdict", ["agrees", "too weak to tell", "measured"])
def test_what_does_not_differ_is_not_corrected(verdict: Any) -> None:
    """The restoration agrees with the printed number, which shows nothing."""
    truth, restored = replace(TRUTH, verdict=verdict, power=1.0), replace(TRUTH, verdict="agrees")
    assert correction(truth, restored, "It rounds.") is truth


def test_what_yields_verdicts_returns_a_list_under_its_name() -> None:
    @listed
    def verdicts(count: int, *, note: str = "") -> Any:
        for _ in range(count):
            yield replace(TRUTH, note=note)

    assert verdicts(2, note="N.") == [replace(TRUTH, note="N.")] * 2
    assert verdicts.__name__ == "verdicts"
    assert isinstance(verdicts(0), list)


def test_a_verdict_without_a_margin_has_no_power() -> None:
    one = Verdict("e", "q", None, 1.0, 0.0, 2.0, 1, math.nan, "measured")
    assert (one.discarded, one.infeasible, one.note, one.key) == (0, 0, "", "")
    assert math.isnan(one.margin)
    assert math.isnan(one.power)
