"""Projected Newton on multipliers within bounds: its answers, against one exchange at a time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from attsvm.platform.kernels import call
from attsvm.solvers import gram as by_products
from attsvm.solvers.compiled.frobenius import PASSES, guess_by_gram
from attsvm.solvers.frobenius import newton
from attsvm.solvers.frobenius.active_set import by_gram, least_multipliers
from attsvm.solvers.frobenius.newton import ascend
from attsvm.solvers.schedule import finish


@pytest.mark.parametrize(("size", "width", "seed"), [(1, 3, 0), (40, 60, 1), (120, 130, 2), (120, 400, 3)])
def test_multipliers_are_those_of_one_exchange_at_a_time(size: int, width: int, seed: int) -> None:
    """From nearly dependent rows, few of which are supports, to nearly orthogonal ones, most of which are."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((size, width)) + rng.standard_normal(width)
    cost = 1.0 + rng.random(size)
    gram = rows @ rows.T / width / np.outer(cost, cost)
    ties = np.zeros(size, dtype=bool)
    guess = guess_by_gram(gram, ties, PASSES)
    values = finish(ascend(gram, 1.0 - gram @ guess, guess, ties, np.inf, 1e-12))
    assert (values >= 0).all()
    slope = 1.0 - gram @ values
    # A solve is off by the rounding of the matrix, 1e-16 times its condition number of 1e5 at most.
    np.testing.assert_allclose(slope[values > 0], 0.0, atol=1e-11)
    assert slope.max() <= 1e-11
    _, one_by_one = least_multipliers(by_gram(gram, ties), np.zeros(size), size, np.empty((0, 0)))
    np.testing.assert_allclose(values, one_by_one, atol=1e-10 * values.max())


@pytest.mark.parametrize("upper", [0.5, 1.0])
def test_bounds_hold_and_slopes_point_out_of_them(upper: float) -> None:
    """What stationarity asks in a box: slope zero inside, none upwards at zero, none downwards at the upper bound."""
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((60, 90))
    gram = rows @ rows.T / 90
    free = np.arange(60) < 3
    start = np.where(free, 0.0, rng.uniform(0.0, upper, 60))
    values = finish(ascend(gram, 1.0 - gram @ start, start, free, upper, 1e-12))
    slope = 1.0 - gram @ values
    inside = free | ((values > 0) & (values < upper))
    assert ((values >= 0) & (values <= upper) | free).all()
    assert (values == upper).any()
    # 60 rows in 90 dimensions: the matrix has a condition number of 1e2, and is solved with to rounding.
    np.testing.assert_allclose(slope[inside], 0.0, atol=1e-11)
    assert slope[~free & (values == 0)].max(initial=0.0) <= 1e-11
    assert slope[~free & (values == upper)].min() >= -1e-11


def test_a_step_onto_a_bound_without_a_slope_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The maximum of e_1 + e_2 / 2 - |e|^2 / 2 is (1, 1/2); a second factorisation would find no ascent."""
    monkeypatch.setattr(newton, "_solve", lambda gram, slope: slope)  # which is exact
    slope = np.array([1.0, 0.5])
    run = ascend(np.eye(2), slope, np.zeros(2), np.zeros(2, dtype=bool), 1.0, 1e-12)
    assert len(list(run)) == 1
    run = ascend(np.eye(2), slope, np.zeros(2), np.zeros(2, dtype=bool), 1.0, 1e-12)
    np.testing.assert_array_equal(finish(run), slope)


class Counted:
    """A matrix that counts its products."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix, self.products = matrix, 0

    def __matmul__(self, change: np.ndarray) -> np.ndarray:
        self.products += 1
        return self.matrix @ change


@pytest.mark.parametrize(("upper", "products"), [(np.inf, 1), (2.0, 2)])
def test_shorter_steps_are_tried_where_a_bound_cuts_the_whole_one(upper: float, products: int) -> None:
    """The whole step reaches (3, 1) from (1, 1/2); where two is the bound, half of it reaches (2, 3/4), less far up."""
    gram: Any = Counted(np.diag([0.5, 1.0]))
    value, target = np.array([1.0, 0.5]), np.array([3.0, 1.0])
    slope = gram.matrix @ (target - value)
    best, image = newton._longest_ascent(gram, slope, value, target, np.zeros(2, dtype=bool), upper)
    assert best is not None
    assert gram.products == products
    np.testing.assert_array_equal(best, np.minimum(target, upper))
    np.testing.assert_array_equal(image, gram.matrix @ (best - value))


def at_once(answer: np.ndarray) -> Generator[float, None, np.ndarray]:
    """A method without steps."""
    yield from ()
    return answer


@pytest.mark.parametrize("is_newton_lost", [False, True])
@pytest.mark.parametrize("C", [None, 0.3, 30.0])
def test_inner_products_alone_give_multipliers_that_are_stationary(
    C: float | None, is_newton_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Active-set updates take over where Newton does not converge."""
    if is_newton_lost:
        monkeypatch.setattr(by_products, "ascend", lambda gram, slope, start, *_: at_once(np.ones(len(start))))
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((30, 40)) + 0.5 * rng.standard_normal(40)
    gram = rows @ rows.T
    values = by_products.multipliers_of(gram, np.zeros(30), C)
    assert values is not None
    # The squared hinge is a hard margin with 1 / (2 C) more in its diagonal.
    slope = 1.0 - gram @ values - (0.0 if C is None else values / (2.0 * C))
    assert (values >= 0).all()
    # The matrix has a condition number of 1e3, and is solved with to rounding.
    np.testing.assert_allclose(slope[values > 0], 0.0, atol=1e-11)
    assert slope.max() <= 1e-11


def test_inner_products_that_newton_solves_need_no_active_set(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr(by_products, "call", lambda function, *_: called.append(function) or call(function, *_))
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((30, 40)) + 0.5 * rng.standard_normal(40)
    values = by_products.multipliers_of(rows @ rows.T, np.zeros(30), None)
    assert values is not None
    assert 0 < np.count_nonzero(values) < 30
    assert called == [guess_by_gram]


def test_contradictory_inner_products_have_no_multipliers() -> None:
    assert by_products.multipliers_of(np.array([[1.0, -1.0], [-1.0, 1.0]]), np.zeros(2), None) is None
    assert by_products.multipliers_of(np.zeros((2, 2)), np.zeros(2), None) is None


def test_a_long_solution_is_found_from_a_short_guess() -> None:
    """Orthogonal rows of lengths 1 and h: multipliers 1 and 1 / h^2, of which a first run leaves half the digits."""
    gram = np.diag([1.0, 1e-9])
    values = by_products.multipliers_of(gram, np.zeros(2), None)
    assert values is not None
    np.testing.assert_allclose(gram @ values, 1.0, rtol=1e-12)
