"""Intervals of one curve's limit on curves that took no part in choosing the constants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attsvm.theory.limits import (
    LIMIT_FLOOR,
    LIMIT_RECORDS,
    STEEPEST,
    TRUSTED,
    bounds_of_limits,
    equal_records,
    limit_of_curve,
)

SLOW: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "1/log k": lambda k: 1 / np.log(k),
    "log log k / log k": lambda k: np.log(np.log(k)) / np.log(k),
    "1/log(100 k)": lambda k: 1 / np.log(100 * k),
    "1/log log k": lambda k: 0.3 / np.log(np.log(k)),
}
FAST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "20/k": lambda k: 20 / k,
    "k^-1/2": lambda k: 3 / np.sqrt(k),
    "k^-1/3": lambda k: 2 * k ** (-1 / 3),
    "log k / sqrt k": lambda k: np.log(k) / np.sqrt(k),
    "1/log^2 k": lambda k: 1 / np.log(k) ** 2,
    "60/log^3 k": lambda k: 60 / np.log(k) ** 3,
}
STEPS = {
    "half decades": 10.0 ** np.arange(2, 4.1, 0.5),
    "quarter decades": 10.0 ** np.arange(1.5, 4.1, 0.25),
    "powers of two": 2.0 ** np.arange(5, 14),
    "decades": 10.0 ** np.arange(1, 4.1),
    "a thousand steps": 10.0 ** np.arange(1.5, 3.1, 0.25),
}
DRAWS = 40


@pytest.mark.parametrize("spacing", STEPS)
@pytest.mark.parametrize("rate", SLOW | FAST)
def test_the_interval_of_a_curve_holds_its_limit(rate: str, spacing: str) -> None:
    rng = np.random.default_rng(17)
    steps = np.round(STEPS[spacing])
    for limit in (1.0, 0.95, 0.8):
        bounds = []
        for factor in np.exp(rng.normal(-0.5, 0.7, DRAWS)):
            marks, shares = equal_records(steps, limit - factor * (SLOW | FAST)[rate](steps))
            bounds.append(limit_of_curve(marks, shares))
        hits = sum(low <= limit <= high for low, high in bounds)
        # At a coverage of 95 % fewer than 35 of 40 come out once in 200.
        assert hits >= 35
        if rate in SLOW and limit == 1.0:
            assert all(high == 1.0 for _, high in bounds)


@pytest.mark.parametrize("noise", [1e-4, 1e-3])
@pytest.mark.parametrize("rate", SLOW)
def test_noise_on_a_slow_curve_does_not_make_its_limit_less_than_one(rate: str, noise: float) -> None:
    rng = np.random.default_rng(31)
    hits = []
    for steps in STEPS.values():
        for factor in np.exp(rng.normal(-0.5, 0.7, DRAWS)):
            shares = 1.0 - factor * SLOW[rate](steps) + noise * rng.standard_normal(len(steps))
            low, high = limit_of_curve(*equal_records(steps, shares))
            assert high >= LIMIT_FLOOR  # never "stays below"
            hits.append(low <= 1.0 <= high)
    assert np.mean(hits) >= 0.95


@pytest.mark.parametrize("limit", [1.0, 0.95, 0.8])
def test_limits_at_fast_rates_are_told_from_one(limit: float) -> None:
    steps = 10.0 ** np.arange(3, 5.1, 0.5)
    low, high = limit_of_curve(steps, limit - FAST["20/k"](steps))
    assert (low >= 0.99) is (limit == 1.0)
    assert (high < 0.99) is (limit < 1.0)


def test_a_logarithm_under_a_transient_is_not_called_a_power() -> None:
    """Frobenius shares of gradient descent on wine: ratios of gains are those of k^-1/2, and the limit is 1."""
    steps, shares = 10.0 ** np.arange(2, 4.1, 0.5), np.array([0.1599, 0.4838, 0.6699, 0.7705, 0.8271])
    assert limit_of_curve(steps, shares)[1] == 1.0
    # Shares of sign descent fall at the end, and a theorem says that they tend to 1.
    assert limit_of_curve(steps, np.array([0.8302, 0.8922, 0.9145, 0.9134, 0.9092]))[1] == 1.0


def test_a_share_that_gains_ever_more_is_not_extrapolated() -> None:
    low, high = limit_of_curve(10.0 ** np.arange(2, 4.1, 0.5), np.array([0.4, 0.42, 0.45, 0.5, 0.6]))
    assert (low, high) == (0.6, 1.0)


@pytest.mark.parametrize("decades", [3.0, 8.0])
def test_a_ratio_is_trusted_below_that_of_a_logarithm_and_of_the_slowest_power(decades: float) -> None:
    """At a thousand steps the logarithm is the faster of the two, and at 10^8 steps the power."""
    steps = 10.0 ** (decades - np.arange(1.5, -0.1, -0.5))
    second, third = np.diff(1 / np.log(steps))[1:]
    logarithm = TRUSTED * third / second
    assert (logarithm < STEEPEST) == (decades == 3.0)
    for ratio, trusted in ((0.95 * min(logarithm, STEEPEST), True), (0.5 * (logarithm + STEEPEST), False)):
        shares = 0.5 + np.cumsum(0.05 * ratio ** np.arange(4))
        low, _ = limit_of_curve(steps, shares)
        assert (low > shares[-1]) == trusted


@pytest.mark.parametrize(("ratios", "wide"), [((0.6, 0.55), False), ((0.55, 0.6), True)])
def test_a_drift_from_the_last_ratio_to_that_of_a_logarithm_widens_the_bound(
    ratios: tuple[float, float], wide: bool
) -> None:
    """Of both curves the ratios drift by 0.05: 0.55 + 0.15 is below the slowest trusted ratio 0.72, 0.6 + 0.15 not."""
    gains = 1e-3 * np.cumprod([1.0, *ratios])
    last = 0.8
    _, high = limit_of_curve(10.0 ** np.arange(4.5, 6.1, 0.5), last - np.append(np.cumsum(gains[::-1])[::-1], 0.0))
    # Fifty times the mean gain of the last record, or of the last three, rounded upwards to three digits.
    bound = last + 50 * (gains.mean() if wide else gains[-1])
    assert bound <= high < bound + 1e-3


def test_a_share_at_rest_stays_and_a_turn_may_begin_a_slow_rise() -> None:
    steps = STEPS["half decades"]
    assert limit_of_curve(steps, np.full(len(steps), 0.6)) == (0.6, 0.6)
    low, high = limit_of_curve(steps, np.array([0.7, 0.66, 0.64, 0.63, 0.65]))
    assert low < 0.65
    assert high == 1.0


def test_records_are_the_given_ones_or_two_per_decade() -> None:
    for name in ("half decades", "decades"):
        marks, shares = equal_records(STEPS[name], STEPS[name] ** -0.5)
        np.testing.assert_array_equal(marks, STEPS[name])
        np.testing.assert_array_equal(shares, STEPS[name] ** -0.5)
    # Steps are whole numbers, so half decades are not quite equal.
    whole = np.round(STEPS["half decades"])
    np.testing.assert_array_equal(equal_records(whole, whole**-0.5)[0], whole)
    steps = STEPS["powers of two"]
    marks, shares = equal_records(steps, steps**-0.5)
    assert marks[-1] == pytest.approx(steps[-1], rel=1e-12)
    np.testing.assert_allclose(np.diff(np.log10(marks)), 0.5)
    # Linear interpolation in log k over factors of two, h = log 2, would be off by h^2/32 = 1.5 %.
    np.testing.assert_allclose(shares, marks**-0.5, rtol=2e-3)
    # Linear steps leave gaps of more than half a decade, before which nothing is interpolated.
    marks, _ = equal_records(np.arange(500.0, 10_001, 500), np.linspace(0.5, 0.9, 20))
    assert len(marks) < LIMIT_RECORDS


@pytest.mark.parametrize("ratio", [0.25, 0.5, -0.5])
def test_gains_of_a_constant_ratio_have_one_limit_unless_they_change_sign(ratio: float) -> None:
    low, high = bounds_of_limits(1 - ratio ** np.arange(4.0)[None], steepest=0.6)
    last, gain = 1 - ratio**3, ratio**2 * (1 - ratio)
    # Gains that change sign: 0.6 / (1 - 0.6) = 1.5 times the larger of the last two, which is the first of them.
    reach = 0.0 if ratio > 0 else 1.5 * abs(gain / ratio)
    middle = 1.0 if ratio > 0 else last
    np.testing.assert_allclose([low[0], high[0]], [middle - reach, middle + reach], rtol=0, atol=1e-12)


@pytest.mark.parametrize("decades", [0.5, 1.0])
def test_a_curve_like_a_power_may_rise_by_fifty_gains_of_half_a_decade(decades: float) -> None:
    """Gains fall by a half per record. The last is 0.001, and as much is left of a power."""
    steps, shares = 10.0 ** (3 + decades * np.arange(4)), 0.5005 + np.array([0.0, 0.004, 0.006, 0.007])
    low, high = limit_of_curve(steps, shares)
    most = 0.5075 + 0.001 * 50 / (2 * decades)
    # Bounds are rounded outwards to three digits, here by half a unit.
    assert (low, high) == pytest.approx((0.5085 - 0.0005, most + 0.0005))
