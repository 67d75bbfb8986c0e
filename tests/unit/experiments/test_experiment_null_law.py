"""The law of a figure's statistic, recomputed by loops over the formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attsvm_paper.judging import null_law
from attsvm_paper.judging.null_law import TAIL, NullLaw
from attsvm_paper.judging.points import Point
from attsvm_paper.published.ledger import LedgerNumber

EPSILON = float(np.finfo(float).eps)


def point(
    name: str, values: Any, value: float = 0.0, trials: int | None = 40, error: float = 0.0, **more: Any
) -> Point:
    """A point whose trials have the seeds 0, 1, 2, ...; a value that is None does not count."""
    counted = {seed: float(one) for seed, one in enumerate(values) if one is not None}
    return Point(LedgerNumber(name, value, trials, error), counted, more.pop("margin", 0.5), **more)


def draw(count: int, length: int, seed: int = 0) -> np.ndarray:
    """Points that move together and have different variances, (length, count)."""
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((count, length)).cumsum(1) * np.linspace(1, 2, length)
    return table.T


def covariance_of(points: Sequence[Point]) -> np.ndarray:
    """The covariance of the module's formula, entry by entry, before it is made one where trials are missing."""
    k = len(points)
    matrix = np.zeros((k, k))
    for i, j in product(range(k), repeat=2):
        one, other = points[i], points[j]
        shared = one.values.keys() & other.values.keys()
        moment = sum(one.deviations[seed] * other.deviations[seed] for seed in shared) / max(len(shared) - 1, 1)
        both = len(shared) / (len(one.values) * len(other.values))
        matrix[i, j] = moment * (both + (1 / math.sqrt(one.theirs * other.theirs) if shared else 0.0))
    return matrix


def test_the_covariance_of_whole_curves_is_that_of_two_means() -> None:
    table = draw(30, 4)
    points = [point(f"p{i}", row, trials=40, error=0.01 * i) for i, row in enumerate(table)]
    expected = np.cov(table) * (1 / 30 + 1 / 40) + np.diag([0.0, 1e-4, 4e-4, 9e-4])
    law = null_law.null_law(points)
    np.testing.assert_allclose(law.covariance, expected, rtol=1e-12)
    assert law.trials.tolist() == [30] * 4
    assert law.stretch == 1.0


def test_points_of_different_published_trials_share_their_geometric_mean() -> None:
    table = draw(30, 3)
    points = [
        point(f"p{i}", row, trials=trials) for i, (row, trials) in enumerate(zip(table, (10, 40, None), strict=True))
    ]
    theirs = np.array([10, 40, np.inf])
    expected = np.cov(table) * (1 / 30 + 1 / np.sqrt(np.outer(theirs, theirs)))
    np.testing.assert_allclose(null_law.null_law(points).covariance, expected, rtol=1e-12)


def test_constant_points_have_the_variance_of_a_rounding() -> None:
    law = null_law.null_law([point("p", [1.0] * 12), point("q", [2.0] * 12)])
    np.testing.assert_array_equal(law.covariance, EPSILON * np.eye(2))
    assert law.freedom == 2.0


def test_a_least_variance_scales_the_correlated_entries_too() -> None:
    """A share of 1 in 12 has less variance than with half a success in each sample; the correlation stays."""
    hits = [1.0] + [0.0] * 11
    ranks = [3.0, 1.0] * 6
    points = [point("p", hits, 0.5, 40, kind="share"), point("q", ranks), point("r", [0.0] * 12, 0.0, 40, kind="share")]
    law = null_law.null_law(points)
    pooled = (1 + 0.5 + 20) / 53
    floors = [pooled * (1 - pooled), 0.0, 0.5 / 53 * (52.5 / 53)]
    own = [np.var(hits, ddof=1), np.var(ranks, ddof=1), 0.0]
    weight = 1 / 12 + 1 / 40
    np.testing.assert_allclose(np.diag(law.covariance), weight * np.maximum(own, floors), rtol=1e-12)
    correlation = law.covariance / np.sqrt(np.outer(np.diag(law.covariance), np.diag(law.covariance)))
    assert floors[0] > own[0]
    assert correlation[0, 1] == pytest.approx(np.corrcoef(hits, ranks)[0, 1])
    assert correlation[0, 2] == correlation[1, 2] == 0.0


def test_missing_trials_are_weighed_by_the_seeds_that_points_share() -> None:
    """Enough trials are shared that the matrix is a covariance already."""
    table: Any = draw(40, 3).tolist()
    table[0][30:] = [None] * 10
    table[1][:4] = [None] * 4
    points = [point(f"p{i}", row, trials=20) for i, row in enumerate(table)]
    expected = covariance_of(points)
    assert np.linalg.eigvalsh(expected).min() > 0
    np.testing.assert_allclose(null_law.null_law(points).covariance, expected, rtol=1e-10, atol=1e-15)


def test_points_that_share_no_seed_are_independent_and_one_seed_is_no_division_by_zero() -> None:
    table = draw(24, 2)
    one = point("p", [*table[0][:12], *[None] * 12])
    apart = point("q", [*[None] * 12, *table[1][12:]])
    touching = point("r", [*[None] * 11, *table[1][11:]])
    assert null_law.null_law([one, apart]).covariance[0, 1] == 0.0
    covariance = null_law.null_law([one, touching]).covariance
    expected = one.deviations[11] * touching.deviations[11] * (1 / (12 * 13) + 1 / 40)
    assert covariance[0, 1] == pytest.approx(expected, rel=1e-10)


def test_what_is_no_covariance_is_replaced_by_the_nearest_with_no_smaller_variance() -> None:
    """Three points of which each pair shares other seeds, with correlations 1, 1 and -1."""
    steps = [(-1.0) ** k for k in range(20)]
    none: list[Any] = [None] * 20
    points = [
        point("p", [*steps, *steps, *none]),
        point("q", [*steps, *none, *steps]),
        point("r", [*none, *steps, *(-np.array(steps))]),
    ]
    raw = covariance_of(points)
    values, vectors = np.linalg.eigh(raw)
    assert values[0] < -0.01
    parts = [value * np.outer(vector, vector) for value, vector in zip(values, vectors.T, strict=True) if value > 0]
    nearest = np.sum(parts, axis=0)
    expected = nearest.copy()
    np.fill_diagonal(expected, np.maximum(np.diag(raw), np.diag(nearest)))
    covariance = null_law.null_law(points).covariance
    np.testing.assert_allclose(covariance, expected, rtol=1e-10)
    assert np.linalg.eigvalsh(covariance).min() > -1e-12


def law_of_three() -> NullLaw:
    return NullLaw(np.array([[4.0, 1.0, 0.0], [1.0, 1.0, 0.2], [0.0, 0.2, 2.0]]), np.array([10, 40, 100]), 1.5)


def test_the_degrees_of_freedom_follow_from_correlations_and_trials() -> None:
    law = law_of_three()
    squares = 3 + 2 * (0.5**2 + 0.2**2 / 2)
    assert law.freedom == pytest.approx(9 / squares, rel=1e-12)
    mean = (9 / 7 + 39 / 37 + 99 / 97) / 3
    assert law.error_freedom == pytest.approx(2 * mean / (mean - 1), rel=1e-12)
    # F has this mean.
    assert stats.f.mean(law.freedom, law.error_freedom) == pytest.approx(mean, rel=1e-12)


def test_the_statistic_is_the_mean_square_in_units_of_variance_over_the_stretch() -> None:
    differences = np.array([[2.0, -3.0, 1.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(law_of_three().statistic(differences), [(1.0 + 9.0 + 0.5) / 3 / 1.5, 0.0], rtol=1e-14)
    assert law_of_three().statistic(differences[0]) == pytest.approx(10.5 / 3 / 1.5)


def test_the_tail_is_that_of_f() -> None:
    law = law_of_three()
    expected = stats.f(law.freedom, law.error_freedom)
    assert law.tail(2.5) == pytest.approx(expected.sf(2.5), rel=1e-10)
    assert law.critical(0.01) == pytest.approx(expected.isf(0.01), rel=1e-8)


def stretch_of(points: Sequence[Point], law: NullLaw, draws: int) -> float:
    """The stretch, point by point: two weighted samples a draw, of all trials and of as many as theirs."""
    rng = np.random.default_rng(0)
    seeds = sorted(set().union(*(one.values for one in points)))
    ratios = []
    for _ in range(draws):
        samples = []
        for both in (False, True):
            poisson, uniform = rng.poisson(1.0, len(seeds)), rng.random((len(seeds), 1))[:, 0]
            sample = []
            for one in points:
                rate = min(one.theirs / len(one.values), 1.0) if both else 1.0
                weights, values = [], []
                for seed, weight, chance in zip(seeds, poisson, uniform, strict=True):
                    if seed in one.values:
                        deviation = one.deviations[seed]
                        weights.append(weight * (chance < rate))
                        values.append(1 + deviation if one.kind == "log" else deviation)
                total = max(sum(weights), 1)
                mean = np.dot(weights, values) / total
                spread = np.dot(weights, (np.array(values) - mean) ** 2) / total
                sample.append((math.log(mean) if one.kind == "log" else mean, spread))
            samples.append(sample)
        squares = []
        for i, one in enumerate(points):
            error = samples[0][i][1] * (1 / len(one.values) + 1 / one.theirs)
            difference = samples[0][i][0] - samples[1][i][0]
            squares.append(difference**2 / max(error, 1e-3 * law.covariance[i, i]))
        ratios.append(np.mean(squares))
    nominal = float(stats.f.isf(1 - TAIL, law.freedom, law.error_freedom))
    return max(1.0, float(np.quantile(ratios, TAIL)) / nominal)


def skewed() -> list[Point]:
    """One run of forty is thirty times the mean of the rest; at one point eight runs are missing."""
    runs: Any = np.exp(0.5 * np.random.default_rng(2).standard_normal((3, 40)))
    runs[0, 7] = 30.0
    rows: Any = runs.tolist()
    rows[1][:8] = [None] * 8
    return [
        point("p", rows[0], 1.0, 20, kind="log"),
        point("q", rows[1], 1.0, None, kind="log"),
        point("r", rows[2], 1.0, 100, kind="mean"),
    ]


def few() -> list[Point]:
    """Theirs is often a single run."""
    rows = np.random.default_rng(4).standard_normal((2, 30))
    rows[1, :2] = -10.0, 10.0
    return [point("p", 1 + 1e-6 * rows[0], 1.0, 50, kind="log"), point("q", rows[1], 0.0, 1)]


def nearly_constant() -> list[Point]:
    """Without its one large run a sample has hardly any variance: a thousandth of ours is the least."""
    values = 1 + 1e-4 * np.random.default_rng(5).standard_normal(30)
    values[3] = 20.0
    return [point("p", values, 1.0, 100, kind="log")]


@pytest.mark.parametrize("points", [skewed(), few(), nearly_constant()], ids=["skewed", "few", "nearly constant"])
def test_a_skewed_distance_stretches_the_statistic(monkeypatch: pytest.MonkeyPatch, points: list[Point]) -> None:
    monkeypatch.setattr(null_law, "BOOTSTRAPS", 60)
    law = null_law.null_law(points)
    assert law.stretch > 1
    assert law.stretch == pytest.approx(stretch_of(points, replace(law, stretch=1.0), 60), rel=1e-6)


def test_equal_distances_take_the_variance_of_theirs() -> None:
    """However large: of ten runs of ours and forty of theirs, a deviation of three times the mean."""
    one = point("p", [1.0] * 10, 1.0, 40, kind="log", deviation=3.0)
    covariance = null_law.null_law([one, point("q", [1.0, 2.0] * 5)]).covariance
    assert covariance[0, 0] == pytest.approx(9.0 * 40 / 50 * (1 / 10 + 1 / 40))
    assert covariance[0, 1] == 0.0


def test_means_on_a_linear_axis_are_not_stretched() -> None:
    rows = np.exp(2 * np.random.default_rng(0).standard_normal((2, 30)))
    assert null_law.null_law([point(f"p{i}", row, 1.0) for i, row in enumerate(rows)]).stretch == 1.0


def test_a_stretch_is_no_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal trials have no error at all."""
    monkeypatch.setattr(null_law, "BOOTSTRAPS", 20)
    assert null_law.null_law([point("p", [2.0] * 20, 2.0, 50, kind="log")]).stretch == 1.0
