"""Intervals cover as often as they say, and verdicts call a difference no oftener than they say."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from attsvm_paper.judging.comparison import (
    LEVEL,
    correction,
    count_deviation,
    mean_verdict,
    share_tolerance,
    share_verdict,
    value_verdict,
)
from attsvm_paper.judging.estimates import Measure, Statistic, along, estimates_by
from attsvm_paper.judging.grouping import having
from attsvm_paper.judging.statistics import bootstrap_interval, mean_interval, wilson_interval
from attsvm_paper.judging.verdict import Verdict
from attsvm_paper.plots.experiments import curve_of, draw_curve
from attsvm_paper.published.ledger import LedgerNumber


def exact_coverage(p: float, trials: int) -> float:
    inside = [low <= p <= high for low, high in (wilson_interval(k, trials) for k in range(trials + 1))]
    return float(stats.binom.pmf(np.arange(trials + 1), trials, p) @ inside)


def test_wilson_is_the_score_test_inverted() -> None:
    low, high = wilson_interval(37, 120)
    for bound in (low, high):
        score = abs(37 / 120 - bound) / math.sqrt(bound * (1 - bound) / 120)
        assert score == pytest.approx(stats.norm.ppf(0.975), rel=1e-9)
    assert wilson_interval(0, 10)[0] == 0
    assert wilson_interval(10, 10)[1] == 1
    assert wilson_interval(0, 0) == (0, 1)


def test_wilson_covers_on_average_what_it_promises() -> None:
    """Averaged over shares it covers 95 %; at single shares the lattice of counts moves it, never below 0.83."""
    shares = np.linspace(0.02, 0.98, 193)
    for trials in (20, 100, 500):
        coverage = [exact_coverage(p, trials) for p in shares]
        assert abs(np.mean(coverage) - 0.95) < 0.01
        assert min(coverage) > 0.83
    # The same by simulation: of 4,000 intervals the number that covers is binomial; five standard deviations.
    rng = np.random.default_rng(0)
    counts = rng.binomial(100, 0.3, size=4000)
    mean_coverage = np.mean([low <= 0.3 <= high for low, high in (wilson_interval(int(k), 100) for k in counts)])
    expected = exact_coverage(0.3, 100)
    assert abs(mean_coverage - expected) < 5 * math.sqrt(expected * (1 - expected) / 4000)


@pytest.mark.parametrize("interval", [mean_interval, lambda x: bootstrap_interval(x, resamples=300)])
def test_intervals_of_means_cover(interval) -> None:
    rng = np.random.default_rng(1)
    repeats, size = 400, 60
    hits = sum(low <= 2.0 <= high for low, high in (interval(rng.normal(2.0, 3.0, size)) for _ in range(repeats)))
    # Binomial error, five standard deviations, and 0.02 for the percentile bootstrap at 60 values.
    assert abs(hits / repeats - 0.95) < 5 * math.sqrt(0.95 * 0.05 / repeats) + 0.02


def test_little_data_has_wide_intervals() -> None:
    assert mean_interval([1.0]) == (-math.inf, math.inf)
    assert bootstrap_interval([1.0]) == (-math.inf, math.inf)
    assert (
        value_verdict("e", "q", 1.0, -math.inf, math.inf, published=ledger_number(2.0), tolerance=math.inf).verdict
        == "measured"
    )
    assert bootstrap_interval(np.arange(9.0), np.median) == bootstrap_interval(np.arange(9.0), np.median)


@pytest.mark.parametrize("statistic", [np.mean, np.median])
@pytest.mark.parametrize("shape", [(7,), (300,), (40, 3)])
def test_resamples_taken_together_are_those_taken_one_by_one(statistic, shape: tuple[int, ...]) -> None:
    def one_by_one(sample, axis: int):
        values = statistic(sample, axis=axis)
        return values if values.ndim == 0 else values[0]

    sample = np.random.default_rng(3).lognormal(size=shape)
    single = bootstrap_interval(sample, one_by_one)
    together = bootstrap_interval(sample[:, 0] if sample.ndim > 1 else sample, statistic)
    # Sums in another order: a few roundings.
    np.testing.assert_allclose(together, single, rtol=1e-14)


def test_counts_vary_at_least_as_integers_of_their_mean_must() -> None:
    assert count_deviation(9.5, [9, 10, 9, 10]) == pytest.approx(math.sqrt(1 / 3), rel=1e-12)
    assert count_deviation(9.5, [10, 10, 10]) == 0.5
    assert count_deviation(10.0, [10]) == 0.0


@pytest.mark.parametrize(("p", "ours", "theirs"), [(0.5, 100, 500), (0.05, 40, 100), (0.98, 500, 500), (1.0, 50, 100)])
def test_true_shares_are_called_different_no_oftener_than_promised(p: float, ours: int, theirs: int) -> None:
    """The exact probability of "differs" over both binomials, against the level: within an order, as counts are few."""
    k, m = np.arange(ours + 1), np.arange(theirs + 1)
    weights = np.outer(stats.binom.pmf(k, ours, p), stats.binom.pmf(m, theirs, p))
    differs = np.zeros_like(weights, dtype=bool)
    for j in m[stats.binom.pmf(m, theirs, p) > 1e-9]:
        for i in k[stats.binom.pmf(k, ours, p) > 1e-9]:
            differs[i, j] = (
                share_verdict("e", "q", int(i), ours, published=ledger_number(j / theirs, theirs)).verdict == "differs"
            )
    assert weights[differs].sum() < 10 * LEVEL


def test_the_tolerance_of_a_share_is_the_edge_of_the_two_sample_score_test() -> None:
    for published, ours, theirs, above in ((0.3, 100, 500, True), (1.0, 50, 100, False), (0.004, 30, 500, True)):
        edge = published + (1 if above else -1) * share_tolerance(published, ours, theirs, above)
        pooled = (published * theirs + edge * ours) / (theirs + ours)
        score = abs(edge - published) / math.sqrt(pooled * (1 - pooled) * (1 / ours + 1 / theirs))
        assert score == pytest.approx(stats.norm.isf(LEVEL / 2), rel=1e-9)


def ledger_number(value: float, trials: int | None = None, error: float = 0.0) -> LedgerNumber:
    return LedgerNumber(f"test: {value}", value, trials, error)


def test_real_differences_are_found() -> None:
    assert share_verdict("e", "q", 70, 100, published=ledger_number(0.3, 500)).verdict == "differs"
    rng = np.random.default_rng(0)
    for value, verdict in ((4.0, "differs"), (3.1, "agrees")):
        document = mean_verdict("e", "q", rng.normal(3, 1, 100), published=ledger_number(value, 100), margin=0.6)
        assert document.verdict == verdict
        assert document.key == f"test: {value}"


def test_few_trials_are_too_weak_to_agree() -> None:
    """What is not rejected has not been shown to be the same: at 12 trials a share of a half could be anything."""
    few = share_verdict("e", "q", 6, 12, published=ledger_number(0.5, 500))
    many = share_verdict("e", "q", 600, 1200, published=ledger_number(0.5, 5000))
    assert (few.verdict, many.verdict) == ("too weak to tell", "agrees")
    assert few.power < 0.01 < 0.9 < many.power
    assert (
        share_verdict("e", "q", 600, 1200, published=ledger_number(0.5, 5000), margin=0.02).verdict
        == "too weak to tell"
    )


@pytest.mark.parametrize("p", [0.3, 0.9])
def test_a_share_at_the_margin_agrees_no_oftener_than_five_in_a_hundred(p: float) -> None:
    ours, theirs, margin = 400, 500, 0.1
    k = np.arange(ours + 1)
    weights = stats.binom.pmf(k, ours, p)
    # Theirs is at the edge of the margin exactly: the error of ours alone is tested, on top of what theirs is allowed.
    agrees = [
        share_verdict("e", "q", int(i), ours, published=ledger_number(p - margin, theirs), margin=margin).verdict
        == "agrees"
        for i in k
    ]
    assert weights[np.array(agrees)].sum() <= 0.05


def test_power_is_the_chance_of_noticing_the_margin() -> None:
    rng = np.random.default_rng(1)
    m, n, margin, repeats = 120, 200, 0.45, 400
    theirs = margin + rng.standard_normal(repeats) / math.sqrt(n)
    result = [
        mean_verdict("e", "q", rng.normal(0, 1, m), published=ledger_number(value, n), margin=margin)
        for value in theirs
    ]
    power, claims = np.mean([one.verdict == "differs" for one in result]), np.mean([one.power for one in result])
    # Four standard errors of a share.
    assert abs(power - claims) < 4 * math.sqrt(0.25 / repeats)


def test_the_power_of_a_share_knows_the_errors_of_both_samples() -> None:
    ours, theirs, margin = 400, 150, 0.2
    verdict = share_verdict("e", "q", 160, ours, published=ledger_number(0.4, theirs), margin=margin)
    error = math.sqrt(0.4 * 0.6 * (1 / ours + 1 / theirs))
    # Half a success more of 550 trials.
    assert verdict.power == pytest.approx(stats.norm.cdf((margin - verdict.tolerance) / error), rel=1e-3)
    assert 0.6 < verdict.power < 0.95


def test_the_tolerance_shrinks_with_trials_and_takes_the_reading_error() -> None:
    few, many = (share_verdict("e", "q", k, 2 * k, published=ledger_number(0.5, 500)).tolerance for k in (20, 2000))
    assert few > many > share_verdict("e", "q", 2000, 4000, published=ledger_number(0.5)).tolerance
    wide, exact = (
        mean_verdict("e", "q", [1, 2, 3], published=ledger_number(2, 9, e), margin=1).tolerance for e in (0.25, 0)
    )
    assert wide - exact == pytest.approx(0.25)
    assert (
        value_verdict("e", "q", 1.4, 1, 2, published=ledger_number(1.0), tolerance=0.5, margin=1.0).verdict == "agrees"
    )
    assert (
        value_verdict("e", "q", 1.6, 1, 2, published=ledger_number(1.0), tolerance=0.5, margin=1.0).verdict == "differs"
    )


def test_corrected_is_earned_by_two_tests() -> None:
    def mean(value: float) -> Verdict:
        sample = value + np.linspace(-1, 1, 200)
        return mean_verdict("e", "q", sample, published=ledger_number(2.0, 100), margin=0.5)

    truth, restoration, other = mean(1.0), mean(2.0), mean(3.0)
    assert [one.verdict for one in (truth, restoration, other)] == ["differs", "agrees", "differs"]
    result = correction(truth, restoration, "It counts noise.")
    assert (result.verdict, result.measured) == ("corrected", pytest.approx(1.0))
    assert "It counts noise. With that put back 2" in result.note
    # An artefact that does not give the printed number explains nothing, and what does not differ needs none.
    assert correction(truth, other, "It counts noise.").verdict == "differs"
    assert correction(restoration, other, "It counts noise.") == restoration


def test_measured_and_empty() -> None:
    measured = share_verdict("e", "q", 3, 10, discarded=2, infeasible=1)
    assert (measured.verdict, measured.trials, measured.published, measured.key) == ("measured", 12, None, "")
    empty = share_verdict("e", "q", 0, 0, published=ledger_number(0.5, 100), trials=40, discarded=40)
    assert (empty.verdict, empty.trials) == ("measured", 40)
    assert math.isnan(empty.measured)
    assert mean_verdict("e", "q", [1.0], published=ledger_number(1.0), margin=1.0).verdict == "measured"
    assert mean_verdict("e", "q", [], published=ledger_number(1.0), margin=1.0, trials=3).trials == 3


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: wilson_interval(3, 2), "hits"),
        (lambda: share_verdict("e", "q", 1, 2, published=ledger_number(40.0)), "published"),
        (lambda: share_verdict("e", "q", 1, 2, published=cast(Any, 0.4)), "of the ledger"),
        (lambda: mean_verdict("e", "q", [1, 2], published=cast(Any, 0.4), margin=1.0), "of the ledger"),
        (lambda: value_verdict("e", "q", 1, 1, 1, published=cast(Any, 0.4)), "of the ledger"),
        (lambda: mean_verdict("e", "q", [1, 2], published=ledger_number(0.4)), "margin"),
        (lambda: mean_verdict("e", "q", [1.0, math.nan]), "values"),
    ],
)
def test_bad_numbers_are_named(call, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        call()


@pytest.mark.parametrize("statistic", ["mean", "bootstrap", "median"])
def test_one_trial_is_a_point_without_an_interval(statistic: Statistic) -> None:
    cells = {1.0: [{"error": 0.25}], 2.0: [{"error": None}], 3.0: [{"error": 0.5}, {"error": 0.75}]}
    ax = Figure().subplots()
    draw_curve(ax, curve_of(along(cells, Measure("error", "error", statistic)), "", 0))
    points, *_ = ax.lines
    np.testing.assert_array_equal(points.get_xydata(), [[1.0, 0.25], [3.0, 0.625]])
    (bars,) = ax.collections
    (bar,) = (segment for segment in map(np.asarray, bars.get_segments()) if segment.size)
    assert bar[0].tolist() <= [3.0, 0.5 + 1e-12]
    assert bar[1].tolist() >= [3.0, 0.75 - 1e-12]


def test_cells_that_differ_in_another_field_are_estimated_together() -> None:
    rows = [{"n": n, "d": d, "x": 10.0 * n + d + k} for n in (1, 2) for d in (3, 5) for k in (-1, 1)]
    estimates = estimates_by(("n", "d"), {"x": Measure("x", "x", "mean")})
    table = estimates(rows)
    assert {n: (one.value, one.count) for n, one in table.along("n", "x").items()} == {1: (14, 4), 2: (24, 4)}
    assert {n: (one.value, one.count) for n, one in table.along("n", "x", d=5).items()} == {1: (15, 2), 2: (25, 2)}
    assert estimates(rows) is table  # what verdicts have estimated, figures do not estimate again
    assert estimates(rows[:2]).cells.keys() == {(1, 3)}


def test_rows_are_chosen_by_every_field_that_is_given() -> None:
    rows = [{"a": a, "b": b} for a in (1, 2) for b in (1, 2)]
    assert having(rows, a=1, b=2) == [{"a": 1, "b": 2}]
