"""The method of multipliers on a working set."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq

from attsvm.core.reduction import constraint_margins, constraint_sum
from attsvm.solvers.frobenius.multipliers import _conjugate_gradients, _line_search, proximal_step
from problems import FAMILIES
from settings import setting_of


@pytest.mark.parametrize("patience", [0, 1, 5, 40])
def test_a_step_ends_where_time_is_over(patience: int) -> None:
    problem = FAMILIES["planted"].make(np.random.default_rng(0), 40, 8, 6)
    setting = setting_of(problem)
    asked = 0

    def is_over() -> bool:
        nonlocal asked
        asked += 1
        return asked > patience

    start, dual = np.zeros(setting.reduced.shape), np.zeros(setting.reduced.rejected.shape)
    V, values, products = proximal_step(setting, start, dual, 100.0, 1e-12, is_over)
    # Every product is asked for, as is every system; nothing is computed once the answer is yes.
    assert products <= patience
    assert asked <= patience + 2
    assert np.isfinite(V).all()
    assert np.isfinite(values).all()
    assert (values[setting.reduced.rejected] >= 0).all()
    # A step minimises: each of its parts leaves less than there was at V = 0.
    price = (
        0.5 * np.vdot(V, V)
        + 50.0 * (np.maximum(1.0 - setting.reduced.apply(V), 0.0)[setting.reduced.rejected] ** 2).sum()
    )
    assert price <= 50.0 * setting.reduced.rejected.sum()


@pytest.mark.parametrize("family", ["planted", "several"])
def test_a_step_ends_where_its_gradient_vanishes(family: str) -> None:
    """V = A^T mu, where mu is the weight times what the margins at V lack of c plus the last multipliers' share."""
    setting = setting_of(FAMILIES[family].make(np.random.default_rng(0), 20, 8, 6))
    reduced, terms, weight = setting.reduced, setting.terms, 100.0
    start = np.where(reduced.rejected, np.random.default_rng(1).random(reduced.rejected.shape), 0.0)
    V, values, _ = proximal_step(setting, np.zeros(reduced.shape), start, weight, 1e-12, lambda: False)
    lacking = weight * (terms.cost - reduced.apply(V)) + start
    expected = np.where(terms.rejected, np.maximum(lacking, 0.0), np.where(terms.tied, lacking, 0.0))
    # Margins err by the rounding of V, times the weight.
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-11 * weight * float(np.linalg.norm(V)))
    np.testing.assert_allclose(V, reduced.adjoint(values), rtol=0, atol=1e-11 * float(np.linalg.norm(V)))


def test_conjugate_gradients_leave_the_residual_that_was_asked_for() -> None:
    rng = np.random.default_rng(2)
    delta, queries, rhs = rng.standard_normal((50, 6)), rng.standard_normal((50, 5)), rng.standard_normal((6, 5))
    goal = 1e-8 * float(np.linalg.norm(rhs))
    X, products = _conjugate_gradients(delta, queries, 10.0, rhs, goal, lambda: False)
    image = X + 10.0 * constraint_sum(delta, queries, constraint_margins(delta, queries, X))
    # The residual is updated and not computed, so that the true one has some roundings of the image more.
    assert np.linalg.norm(rhs - image) <= 1.01 * goal
    # In exact arithmetic as many products as unknowns are enough.
    assert 0 < products <= 2 * rhs.size


@pytest.mark.parametrize("seed", range(20))
def test_a_line_search_ends_where_the_derivative_vanishes(seed: int) -> None:
    """Some constraints fall short from a length on and others up to one: the derivative bends both ways."""
    rng = np.random.default_rng(seed)
    weight, curvature = 10.0 ** rng.uniform(-3, 1), 10.0 ** rng.uniform(-4, -1)
    image, lacking = rng.standard_normal((2, 12)) * 10.0 ** rng.uniform(-1, 1, (2, 12))
    free = rng.random(12) < 0.1
    pull = weight * float(np.where(free, lacking, np.maximum(lacking, 0.0)) @ image)
    slope = pull - 10.0 ** rng.uniform(-2, 1)

    def derivative(length: float) -> float:
        residual = np.where(free, lacking - length * image, np.maximum(lacking - length * image, 0.0))
        return slope + length * curvature - weight * float(residual @ image)

    # The derivative grows by the curvature at least, so that it has one zero.
    end = (pull - slope) / curvature
    expected = brentq(derivative, 0.0, end, xtol=1e-300)
    assert _line_search(lacking, image, free, weight, slope, curvature) == pytest.approx(expected, rel=1e-9)


def test_a_line_search_doubles_a_length_at_which_the_derivative_overflows() -> None:
    """One constraint falls short up to 1.5: the derivative is beyond floats before, and positive after."""
    lacking, image = np.array([1.5e200]), np.array([1e200])
    with np.errstate(over="ignore", invalid="ignore"):
        length = _line_search(lacking, image, np.array([False]), 1.0, 0.0, 1.0)
    assert length == pytest.approx(1.5, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_a_line_search_ends_to_rounding(seed: int) -> None:
    """Its last step is Newton's where the derivative is linear; halving a bracket would leave ten digits."""
    rng = np.random.default_rng(seed)
    image, lacking = rng.standard_normal((2, 12))
    slope, curvature, free = -5.0 - rng.random(), 1.0 + rng.random(), np.zeros(12, dtype=bool)
    length = _line_search(lacking, image, free, 1.0, slope, curvature)
    residual = np.maximum(lacking - length * image, 0.0)
    # A few roundings of terms of size ten.
    assert slope + length * curvature - float(residual @ image) == pytest.approx(0.0, abs=1e-13)
