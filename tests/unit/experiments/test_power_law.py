"""Exponents and thresholds: powers that are known, points that determine nothing, and shares that fall on the way."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attsvm_paper.beyond.power_law import crossing, exponents

FIRST, SECOND = np.array([1.0, 2.0, 3.0, 5.0]), np.array([4.0, 1.0, 7.0, 2.0])


def test_the_exponents_of_a_product_of_powers_are_found() -> None:
    np.testing.assert_allclose(exponents(3 * FIRST**2 / np.sqrt(SECOND), FIRST, SECOND), [2, -0.5], rtol=1e-12)
    # Two points determine a power and its factor.
    np.testing.assert_allclose(exponents([8.0, 2.0], [1.0, 4.0]), [-1], rtol=1e-12)


def test_of_points_off_the_power_the_squares_of_the_logarithms_are_least() -> None:
    y = [1.0, 9.0, 2.0, 7.0]
    slope = np.polyfit(np.log(FIRST), np.log(y), 1)[0]
    np.testing.assert_allclose(exponents(y, FIRST), [slope], rtol=1e-12)


@pytest.mark.parametrize(
    "factors",
    [
        ([2.0, 3.0], [5.0, 1.0]),  # two points for three unknowns
        ([2.0, 3.0, 4.0, 5.0], [4.0, 9.0, 16.0, 25.0]),  # one factor is the square of the other
        ([2.0, 2.0, 2.0],),  # a constant factor
    ],
)
def test_points_that_do_not_determine_the_exponents_give_none(factors: tuple[list[float], ...]) -> None:
    result = exponents(np.arange(1.0, len(factors[0]) + 1), *factors)
    assert result.shape == (len(factors),)
    assert np.isnan(result).all()


def test_a_share_crosses_its_level_on_a_line_over_the_logarithm() -> None:
    # A quarter of the way from 1 to 16 is 2.
    assert crossing([0.5, 1, 16, 32], [0.0, 0.4, 0.8, 1.0]) == pytest.approx(2)
    assert crossing([0.5, 1, 16, 32], [0.0, 0.4, 0.8, 1.0], 0.9) == pytest.approx(16 * math.sqrt(2))
    assert crossing([1, 100], [0.0, 1.0], 0.25) == pytest.approx(math.sqrt(10))


def test_a_share_that_is_the_level_crosses_there() -> None:
    assert crossing([1, 3, 9], [0.1, 0.5, 0.9]) == pytest.approx(3)
    assert crossing([1, 3], [0.1, 0.5]) == pytest.approx(3)


def test_falling_shares_are_replaced_by_their_mean() -> None:
    # Of 0.6 and 0.2 comes 0.4 at both; half of the way from 4 to 16 is 8.
    assert crossing([1, 2, 4, 16], [0.0, 0.6, 0.2, 0.6]) == pytest.approx(8)


@pytest.mark.parametrize("share", [[0.5, 0.6, 0.9], [0.6, 0.7, 0.8], [0.1, 0.2, 0.4]])
def test_shares_on_one_side_of_the_level_do_not_cross_it(share: list[float]) -> None:
    assert math.isnan(crossing([1, 2, 4], share))
