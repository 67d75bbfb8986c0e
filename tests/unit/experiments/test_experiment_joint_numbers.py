"""The joint test of a figure: every number that it states, recomputed from the law of its statistic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attsvm_paper.judging import joint
from attsvm_paper.judging.joint import AGREEMENT, DRAWS, LEVEL, JointTest, joint_test
from attsvm_paper.judging.null_law import null_law
from attsvm_paper.judging.points import Point, by_key
from attsvm_paper.published.ledger import LedgerNumber


def point(name: str, values: Any, value: float = 0.0, trials: int = 40, margin: float = 0.5) -> Point:
    """A point whose trials have the seeds 0, 1, 2, ..."""
    return Point(LedgerNumber(name, value, trials, 0.0), dict(enumerate(map(float, values))), margin)


def standard(count: int = 60, length: int = 4, shift: float = 0.2, **more: Any) -> list[Point]:
    """Points of whole curves; their numbers are off by `shift`."""
    rng = np.random.default_rng(3)
    table = (rng.standard_normal((count, length)).cumsum(1) * np.linspace(0.4, 0.8, length)).T
    return [point(f"p{i}", row, row.mean() + shift, **more) for i, row in enumerate(table)]


def joint_of(points: Sequence[Point], **more: Any) -> JointTest:
    test = joint_test("e", "Fig. 0", points, **more)
    assert test is not None
    return test


def test_a_joint_test_states_its_statistic_and_its_tail() -> None:
    points = standard()
    test = joint_of(points, reading="as printed", note="N.")
    variances = np.diag(null_law(points).covariance)
    scaled = [(one.mean - one.reference) ** 2 / own for one, own in zip(points, variances, strict=True)]
    assert (test.experiment, test.figure, test.reading, test.note) == ("e", "Fig. 0", "as printed", "N.")
    assert (test.values, test.left_out, test.level, test.searched, test.agreeing) == (4, 0, 0.05 / 20, 1, None)
    assert test.statistic == pytest.approx(np.mean(scaled), rel=1e-9)
    law = null_law(points)
    assert test.freedom == law.freedom
    assert test.p == pytest.approx(stats.f.sf(np.mean(scaled), law.freedom, law.error_freedom), rel=1e-9)
    shrunk: Any = 0.9 * law.covariance + 0.1 * np.diag(np.diag(law.covariance))
    assert test.log_likelihood == pytest.approx(stats.multivariate_normal(np.zeros(4), shrunk).logpdf([-0.2] * 4))


def test_points_with_too_few_trials_and_repeated_keys_are_left_out() -> None:
    first, second, *_ = standard()
    few = point("few", [1.0, 2.0] * 4)
    again = point("p0", [9.0, 8.0] * 10, 100.0)
    test = joint_of([first, few, second, again])
    assert (test.values, test.left_out) == (2, 1)
    both = joint_of([first, second])
    assert [test.statistic, test.freedom, test.p, test.distance] == pytest.approx(
        [both.statistic, both.freedom, both.p, both.distance], rel=1e-12
    )
    assert joint_test("e", "f", [few]) is None
    assert joint_test("e", "f", []) is None


def test_the_distance_is_in_margins_and_its_bound_that_of_a_normal_error() -> None:
    """For one point: 95 % of |x + error| lie below the bound."""
    values = 2.0 + np.array([-1.0, 1.0] * 50)
    test = joint_of([point("p", values, 1.7, 100, margin=0.6)])
    assert test.distance == pytest.approx(0.5)
    spread = math.sqrt(100 / 99 * (1 / 100 + 1 / 100))

    def below(bound: float) -> float:
        return float(stats.norm.cdf((bound - 0.3) / spread) - stats.norm.cdf((-bound - 0.3) / spread))

    # Three standard errors of ten thousand draws.
    assert below(0.6 * test.bound) == pytest.approx(0.95, abs=3 * math.sqrt(0.05 * 0.95 / DRAWS))
    assert test.chance == pytest.approx(1 - below(0.6), abs=3 * math.sqrt(0.02 * 0.98 / DRAWS))


def test_distances_add_by_squares_over_points() -> None:
    constants = [point(f"p{i}", [1.0] * 20, 1.0 + x, margin=m) for i, (x, m) in enumerate(((0.3, 0.1), (0.4, 0.4)))]
    test = joint_of(constants)
    assert test.distance == pytest.approx(math.sqrt((3.0**2 + 1.0**2) / 2))
    assert test.bound == pytest.approx(test.distance, rel=1e-6)
    assert test.chance == 1.0


def test_no_draw_past_the_margin_is_one_in_ten_thousand_and_one() -> None:
    test = joint_of([point("p", [1.0] * 20, 1.0)])
    assert test.chance == 1 / (1 + DRAWS)
    assert (test.verdict, test.distance) == ("agrees", 0.0)


@pytest.mark.parametrize(
    ("p", "chance", "verdict"),
    [
        (LEVEL, 0.0, "agrees"),
        (math.nextafter(LEVEL, 0), 0.0, "differs"),
        (1.0, AGREEMENT, "too weak to tell"),
        (1.0, math.nextafter(AGREEMENT, 0), "agrees"),
    ],
)
def test_the_level_and_the_chance_decide(p: float, chance: float, verdict: str) -> None:
    assert joint._verdict(p, chance) == verdict


def test_a_search_multiplies_the_chance_of_one_setting() -> None:
    one = replace(joint_of(standard(shift=0.0)), chance=0.02, p=1.0)
    three = one.after_search(3, 2)
    assert (three.chance, three.searched, three.agreeing, three.verdict) == (0.06, 3, 2, "too weak to tell")
    two = three.after_search(2)
    assert (two.chance, two.searched, two.agreeing, two.verdict) == (pytest.approx(0.04), 2, None, "agrees")
    assert one.after_search(90).chance == 1.0
    assert replace(one, p=LEVEL / 2).after_search(1).verdict == "differs"


def moved(points: Sequence[Point], by: float, trials: Sequence[int] | None = None) -> list[Point]:
    """Our points, or some of their trials, under a protocol that adds a constant."""
    seeds = trials or range(1000)
    return [replace(one, values={at: value + by for at, value in one.values.items() if at in seeds}) for one in points]


def power(points: Sequence[Point], other: Sequence[Point]) -> float:
    (one,) = joint_of(points, alternatives={"other": by_key(other)}).powers
    assert one.alternative == "other"
    return one.power


def test_power_is_the_share_of_errors_that_are_rejected() -> None:
    """The same instances moved by a constant: the difference has no error, so the law is a noncentral chi-square."""
    values = np.array([-1.0, 1.0] * 50)
    one = point("p", values, trials=100)
    spread = math.sqrt(100 / 99 * 2 / 100)
    law = null_law([one])
    expected = stats.ncx2.sf(law.critical(LEVEL), 1, (0.4 / spread) ** 2)
    assert 0.3 < expected < 0.7
    assert power([one], moved([one], 0.4)) == pytest.approx(expected, abs=3 * math.sqrt(0.25 / DRAWS))


def test_an_alternative_that_was_not_run_is_no_power() -> None:
    points = standard()
    assert joint_of(points).powers == ()
    assert joint_of(points, alternatives={"none": {}, "one": by_key(moved(points, 3.0, [0]))}).powers == ()
    assert joint_of(points, alternatives={"foreign": {"x": points[0]}}).powers == ()
    both = {"first": by_key(moved(points, 3.0)), "second": by_key(moved(points, 3.0, [0, 1]))}
    assert [one.alternative for one in joint_of(points, alternatives=both).powers] == ["first", "second"]
    # A point of one trial is ours: only the others move.
    assert power(points, [*moved(points[:1], 9.0), *moved(points[1:], 9.0, [0])]) == power(
        points, moved(points[:1], 9.0)
    )


def test_a_shift_loses_the_variance_of_its_means() -> None:
    """Two points with other seeds: the mean square in units of the scale, less the errors of both means."""
    ours = [point("p", [1.0, 3.0] * 10), point("q", [0.0, 1.0] * 10)]
    theirs = [
        replace(one, values={100 + at: value + shift for at, value in enumerate(list(one.values.values())[:10])})
        for one, shift in zip(ours, (1.0, -2.0), strict=True)
    ]
    scale = np.array([0.5, 2.0])
    size = (1.0**2 / 0.5 + 2.0**2 / 2.0) / 2
    error = (1.0 * (1 / 20 + 1 / 10) / 0.5 + 0.25 * (1 / 20 + 1 / 10) / 2.0) / 2
    expected = np.array([-1.0, 2.0]) * math.sqrt(1 - error / size)
    np.testing.assert_allclose(joint._shifts(ours, by_key(theirs), scale), expected, rtol=1e-12)
    # An error larger than the difference leaves nothing of it.
    near = [replace(one, values={at: value - 0.9 for at, value in one.values.items()}) for one in theirs[:1]]
    np.testing.assert_array_equal(joint._shifts(ours, by_key(near), scale), [0.0, 0.0])
    np.testing.assert_array_equal(joint._shifts(ours, {}, scale), [0.0, 0.0])


def test_the_variance_of_a_difference_knows_the_shared_instances() -> None:
    rng = np.random.default_rng(1)
    values, gain = rng.standard_normal(20), rng.standard_normal(20)
    one = point("p", values)
    same = point("p", values + gain)
    assert joint._variance(one, same) == pytest.approx(gain.var() / 20)
    assert joint._variance(one, one) == pytest.approx(0.0, abs=1e-15)
    apart = replace(same, values={50 + seed: value for seed, value in same.values.items()})
    assert joint._variance(one, apart) == pytest.approx((values.var() + (values + gain).var()) / 20)
    # Five of ten seeds are shared.
    half = replace(same, values={seed + 15: value for seed, value in list(same.values.items())[:10]})
    first, second = values - values.mean(), (values + gain)[:10] - (values + gain)[:10].mean()
    shared = float(np.dot(first[15:], second[:5]))
    expected = values.var() / 20 + (values + gain)[:10].var() / 10 - 2 * shared / 200
    assert joint._variance(one, half) == pytest.approx(expected)
