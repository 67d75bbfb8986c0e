"""The test of a whole figure: how often it is wrong, what it notices, and what it says of weak data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from attsvm_paper.judging.joint import LEVEL, SHRINKAGE, joint_test, log_likelihood
from attsvm_paper.judging.points import FEWEST, Point, by_key, curve_points, next_values, swap
from attsvm_paper.published.ledger import LedgerNumber, curve


def walks(rng: np.random.Generator, trials: int, length: int = 8) -> np.ndarray:
    """Curves whose points move together, as those of training do: random walks around a ramp, (trials, length)."""
    return np.linspace(0, 1, length) + 0.3 * rng.standard_normal((trials, length)).cumsum(1)


def points_of(
    ours: np.ndarray, reference: np.ndarray, trials: int = 100, margin: float = 0.5, **more: Any
) -> list[Point]:
    return [
        Point(LedgerNumber(f"p @ {i}", y, trials, 0.0), dict(enumerate(column)), margin, place=("p", i), **more)
        for i, (column, y) in enumerate(zip(ours.T.tolist(), reference.tolist(), strict=True))
    ]


def rejected(make: Any, repeats: int, level: float) -> float:
    """Share of repeats in which the figure is rejected at a level."""
    rng = np.random.default_rng(0)
    tests = [joint_test("e", "f", make(rng)) for _ in range(repeats)]
    return float(np.mean([test is not None and test.p < level for test in tests]))


def test_correlated_points_are_rejected_as_often_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attsvm_paper.judging.joint.DRAWS", 10)
    share = rejected(lambda rng: points_of(walks(rng, 80), walks(rng, 100).mean(0)), 300, 0.05)
    # Three standard errors of a share of 5 % in 300, about one hundredth each.
    assert 0.01 < share < 0.09


def test_shares_are_rejected_no_oftener_than_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attsvm_paper.judging.joint.DRAWS", 10)

    def make(rng: np.random.Generator) -> list[Point]:
        p = np.array([0.1, 0.5, 0.9, 0.98, 1.0])
        ours = (rng.random((60, 5)) < p).astype(float)
        theirs = (rng.random((500, 5)) < p).mean(0)
        return points_of(ours, theirs, 500, kind="share")

    assert rejected(make, 200, 0.05) < 0.09


def test_independent_seeds_are_told_from_shared_ones() -> None:
    rng = np.random.default_rng(1)
    ours, output = walks(rng, 100), walks(rng, 100).mean(0)
    shared = points_of(ours, output)
    separate_points = [
        Point(one.published, {100 * i + seed: v for seed, v in one.values.items()}, one.margin)
        for i, one in enumerate(shared)
    ]
    together, single = joint_test("e", "f", shared), joint_test("e", "f", separate_points)
    assert together is not None
    assert single is not None
    assert together.statistic == pytest.approx(single.statistic)
    assert single.freedom == pytest.approx(8)
    # Walks of eight steps: R_ij = sqrt(min/max), for which 64 over the sum of squares is 1.7.
    i = np.arange(1, 9)
    expected = 64 / np.sum(np.minimum.outer(i, i) / np.maximum.outer(i, i))
    assert together.freedom == pytest.approx(expected, rel=0.25)


def test_what_differs_is_called_so_and_the_power_says_how_surely() -> None:
    rng = np.random.default_rng(2)
    ours = walks(rng, 100)
    right = points_of(ours, walks(rng, 100).mean(0))
    ahead = next_values(right)
    test = joint_test("e", "f", right, {"the next value": ahead})
    assert test is not None
    assert test.verdict == "agrees"
    (power,) = test.powers
    mutant = joint_test("e", "f", points_of(ours + 0.5, walks(rng, 100).mean(0)))
    assert mutant is not None
    assert mutant.verdict == "differs"
    # The stated power is the share of figures printed from the alternative that are rejected.
    shift = np.array([ahead[one.published.key].mean - one.mean for one in right])
    tests = [joint_test("e", "f", points_of(walks(rng, 100), shift + walks(rng, 100).mean(0))) for _ in range(60)]
    share = np.mean([one is not None and one.p < LEVEL for one in tests])
    assert abs(share - power.power) < 4 * math.sqrt(0.25 / 60)


def test_few_trials_are_too_weak_to_tell() -> None:
    rng = np.random.default_rng(3)
    test = joint_test("e", "f", points_of(walks(rng, 12), walks(rng, 100).mean(0), margin=0.2))
    assert test is not None
    assert test.verdict == "too weak to tell"
    assert joint_test("e", "f", points_of(walks(rng, FEWEST - 1), walks(rng, 100).mean(0))) is None


def ragged(rng: np.random.Generator, counts: tuple[int, ...], shift: float = 0.0) -> list[Point]:
    """Points of so many trials each, over the same seeds, as where the other instances have no solution."""
    ours, output = walks(rng, max(counts), len(counts)), shift + walks(rng, 100, len(counts)).mean(0)
    points = points_of(ours, output)
    return [
        Point(one.published, {seed: v for seed, v in one.values.items() if seed < count}, one.margin, place=one.place)
        for one, count in zip(points, counts, strict=True)
    ]


@pytest.mark.parametrize("counts", [(100,) * 7 + (10,), (10, 10, 10, 100, 100, 100), (10,) * 6])
def test_points_of_few_trials_are_rejected_as_often_as_stated(
    monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...]
) -> None:
    monkeypatch.setattr("attsvm_paper.judging.joint.DRAWS", 10)
    share = rejected(lambda rng: ragged(rng, counts), 300, 0.05)
    # Three standard errors of a share of 5 % in 300, about one hundredth each. The degrees of freedom of the point with
    # the fewest trials, for all of them, would reject less than 1 % of the first kind.
    assert 0.01 < share < 0.09


def test_two_trials_do_not_decide_the_degrees_of_freedom() -> None:
    """Ranks of 100 instances a point, all far from the printed ones, and one point where two are feasible."""
    rng = np.random.default_rng(7)
    far = [
        Point(
            LedgerNumber(f"p @ {i}", 9.5, 100, 0.0),
            dict(enumerate(rng.integers(3, 5, 100).astype(float))),
            0.5,
            "count",
        )
        for i in range(5)
    ]
    two = Point(LedgerNumber("q", 1.0, 100, 0.0), {0: 3.0, 1: 3.0}, 0.5, "count")
    test, without = joint_test("e", "f", [*far, two]), joint_test("e", "f", far)
    assert test is not None
    assert without is not None
    assert (test.verdict, test.values, test.left_out) == ("differs", 5, 1)
    assert test.p == without.p < 1e-20


def test_power_is_right_where_some_points_have_few_trials() -> None:
    rng = np.random.default_rng(8)
    counts = (100,) * 6 + (12, 12)
    powers = []
    for _ in range(10):
        right = ragged(rng, counts)
        alternatives = {
            one.published.key: Point(one.published, {s: v + 0.25 for s, v in one.values.items()}, one.margin)
            for one in right
        }
        test = joint_test("e", "f", right, {"moved": alternatives})
        assert test is not None
        powers.append(test.powers[0].power)
    share = np.mean(
        [(test := joint_test("e", "f", ragged(rng, counts, 0.25))) is not None and test.p < LEVEL for _ in range(100)]
    )
    # Three standard errors of either, where neither 0 nor 1 is told.
    assert 0.2 < share < 0.98
    assert abs(share - np.mean(powers)) < 3 * math.sqrt(0.25 / 100) + 3 * float(np.std(powers)) / math.sqrt(10)


def test_no_variance_is_no_certainty() -> None:
    """All of ours are 5, theirs have mean 5.02: two integers of a hundred differ from the rest."""
    five = Point(LedgerNumber("p", 5.02, 100, 0.0), dict.fromkeys(range(100), 5.0), 0.5, "count")
    all_global = Point(LedgerNumber("q", 0.998, 500, 0.0), dict.fromkeys(range(500), 1.0), 0.1, "share")
    for one in (five, all_global):
        test = joint_test("e", "f", [one])
        assert test is not None
        assert test.verdict == "agrees"


@pytest.mark.parametrize("hits", [0, 30, 40])
def test_the_least_variance_of_a_share_is_that_with_half_a_trial_of_either_kind(hits: int) -> None:
    share = Point(LedgerNumber("p", 0.25, 20, 0.0), {i: float(i < hits) for i in range(40)}, 0.1, "share")
    # Twice the trials, of which half a success is one.
    sample = np.arange(2 * (40 + 20 + 1)) < 2 * (hits + 5) + 1
    assert share.floor == pytest.approx(sample.var(), rel=1e-12)


def test_the_least_variance_of_a_count_is_that_with_half_a_trial_that_differs_by_one() -> None:
    count = Point(LedgerNumber("p", 5.0, 20, 0.0), dict.fromkeys(range(40), 5.0), 0.5, "count")
    assert count.floor == pytest.approx(np.array([6.0] + [5.0] * 81).var(), rel=1e-12)


def test_a_reading_error_is_a_standard_deviation_of_the_difference() -> None:
    constant = Point(LedgerNumber("p", 1.2, 100, 0.1), dict.fromkeys(range(20), 1.0), 0.5)
    test = joint_test("e", "f", [constant])
    assert test is not None
    assert test.statistic == pytest.approx((0.2 / 0.1) ** 2, rel=1e-9)


@pytest.mark.slow
def test_skewed_distances_are_compared_as_logarithms_with_their_tail() -> None:
    rng = np.random.default_rng(4)

    def sample(trials: int) -> np.ndarray:
        return np.exp(1.2 * rng.standard_normal((trials, 1)) + 0.3 * rng.standard_normal((trials, 3)))

    share = np.mean([
        (test := joint_test("e", "f", points_of(sample(100), sample(100).mean(0), kind="log"))) is not None
        and test.p < 0.05
        for _ in range(40)
    ])  # fmt: skip
    # Three standard errors of a share of 5 % in 40.
    assert share <= 0.16
    doubling = joint_test("e", "f", points_of(3 * sample(400), sample(400).mean(0), 400, kind="log"))
    assert doubling is not None
    assert doubling.verdict == "differs"


def test_a_number_that_two_panels_show_counts_once() -> None:
    rows = [{"seed": seed, "global": seed % 2 == 0} for seed in range(40)]
    both = [
        one
        for key in ("Fig. 6a: W, n=5", "Fig. 6b: W, T=5")
        for one in curve_points(curve(key), {5: rows}, lambda row: row["global"], 0.1, "share")
    ]
    test = joint_test("e", "f", both)
    assert len(both) == 2
    assert test is not None
    assert test.values == 1


def test_alternatives_move_and_exchange_curves() -> None:
    a = points_of(np.tile([0.0, 1.0, 2.0], (3, 1)), np.zeros(3))
    assert [one.mean for one in next_values(a).values()] == [1, 2, 2]
    b = [Point(LedgerNumber(f"b @ {i}", 0.0, 9, 0.0), {0: 7.0, 1: 7.0}, 1.0, place=("b", i)) for i in range(3)]
    assert [one.mean for one in swap([*a, *b], {"p": "b"}).values()] == [7] * 6


def test_sampling_error_of_an_alternative_is_no_power() -> None:
    """Runs of the same protocol with other seeds differ by their errors, which no test would notice in the paper."""
    rng = np.random.default_rng(5)
    powers = []
    for _ in range(40):
        right = points_of(walks(rng, 100), walks(rng, 100).mean(0))
        second = points_of(walks(rng, 25), np.zeros(8))
        second = [
            Point(one.published, {1000 + seed: v for seed, v in other.values.items()}, 1.0)
            for one, other in zip(right, second, strict=True)
        ]
        test = joint_test("e", "f", right, {"none": by_key(second)})
        assert test is not None
        powers.append(test.powers[0].power)
    # A quarter of the trials has four times the variance: taken at its word such a mean would be noticed often.
    assert np.median(powers) < 0.05


def test_an_alternative_far_beyond_its_error_is_power_however_few_its_trials() -> None:
    rng = np.random.default_rng(10)
    right = points_of(rng.standard_normal((100, 1)), np.zeros(1))
    # Ten standard errors away from ours, known to four.
    few = Point(right[0].published, {100 + i: 1.5 + x for i, x in enumerate(rng.standard_normal(12))}, 1.0)
    test = joint_test("e", "f", right, {"moved": by_key([few])})
    assert test is not None
    assert test.powers[0].power > 0.95


def test_an_alternative_on_the_same_instances_is_known_as_well_as_its_difference() -> None:
    """What all trials gain alike is exact, however much they vary."""
    rng = np.random.default_rng(6)
    ours = 10 * walks(rng, 30)
    right = points_of(ours, ours.mean(0))
    higher = points_of(ours + 3.0, ours.mean(0))
    difference = [Point(one.published, {99 + seed: v for seed, v in one.values.items()}, 1.0) for one in higher]
    tests = [joint_test("e", "f", right, {"higher": by_key(points)}) for points in (higher, difference)]
    same, other = (test.powers[0].power for test in tests if test is not None)
    assert same > other


def test_an_alternative_with_our_own_numbers_is_told_as_often_as_they_are_rejected() -> None:
    rng = np.random.default_rng(9)
    right = points_of(walks(rng, 100), walks(rng, 100).mean(0))
    test = joint_test("e", "f", right, {"nothing": by_key(right)})
    assert test is not None
    # The level is 0.0025, of ten thousand draws; Box's approximation of the tail may be off by a factor.
    assert test.powers[0].power < 0.02


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan])
def test_a_margin_is_stated(margin: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        Point(LedgerNumber("p", 1.0, 9, 0.0), {}, margin)


def test_the_likelihood_that_weighs_readings_is_that_of_a_gaussian() -> None:
    covariance = np.array([[1.0, 0.6], [0.6, 2.0]])
    shrunk = np.array([[1.0, 0.6 * (1 - SHRINKAGE)], [0.6 * (1 - SHRINKAGE), 2.0]])
    differences = np.array([[0.0, 0.0], [1.0, -2.0], [-0.3, 0.7]])
    expected = multivariate_normal(np.zeros(2), shrunk).logpdf(differences)
    np.testing.assert_allclose(log_likelihood(covariance, differences), expected, rtol=1e-12)
    assert log_likelihood(covariance, differences[1]) == pytest.approx(expected[1], rel=1e-12)


def test_agreement_of_the_nearest_of_many_readings_asks_for_more() -> None:
    """What is off by the margin is called in agreement no oftener than stated, however many readings are tried."""
    rng = np.random.default_rng(5)
    agreed = 0
    for _ in range(60):
        reference = rng.standard_normal((100, 4)).mean(0)
        tests = [joint_test("e", "f", points_of(0.5 + rng.standard_normal((100, 4)), reference)) for _ in range(6)]
        agreed += any(test.after_search(6).verdict == "agrees" for test in tests if test is not None)
    # Three standard errors of a share of 5 % in sixty.
    assert agreed / 60 < 0.05 + 3 * 0.028


def test_a_search_multiplies_the_chance_and_may_take_the_verdict() -> None:
    rng = np.random.default_rng(6)
    test = joint_test(
        "e", "f", points_of(rng.standard_normal((100, 3)), rng.standard_normal((100, 3)).mean(0), margin=0.35)
    )
    assert test is not None
    assert test.verdict == "agrees"
    assert test.after_search(4).chance == pytest.approx(4 * test.chance)
    assert test.after_search(4).after_search(4) == test.after_search(4)
    assert test.after_search(10_000).verdict == "too weak to tell"
