"""L-BFGS on functions with known minima, and where its line search must fail or end."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attsvm.training.paths.minimize import _HALVINGS, _POLISH, minimize

Function = Callable[[Tensor], tuple[float, Tensor, float]]


def point(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


def with_gradient(value: Callable[[Tensor], Tensor]) -> Function:
    """Return value, gradient by autograd, and its length as the measure of stationarity."""

    def function(x: Tensor) -> tuple[float, Tensor, float]:
        x = x.detach().requires_grad_()
        y = value(x)
        (gradient,) = torch.autograd.grad(y, x)
        return float(y.detach()), gradient, float(gradient.norm())

    return function


def counted(function: Function) -> tuple[Function, list[Tensor]]:
    points: list[Tensor] = []

    def counting(x: Tensor) -> tuple[float, Tensor, float]:
        points.append(x)
        return function(x)

    return counting, points


def scripted(*answers: tuple[float, Tensor]) -> tuple[Function, list[Tensor]]:
    """A function of these values and gradients in the order of its calls; the last one stays."""
    left = list(answers)

    def function(x: Tensor) -> tuple[float, Tensor, float]:
        value, gradient = left.pop(0) if len(left) > 1 else left[0]
        return value, gradient, 1.0

    return counted(function)


def test_an_ill_conditioned_quadratic_is_minimised_to_its_centre() -> None:
    centre, curvatures = point(1.0, -2.0, 0.5, 3.0), point(1.0, 10.0, 100.0, 1e4)
    function = with_gradient(lambda x: (curvatures * (x - centre) ** 2).sum() / 2 + 7)
    end = minimize(function, torch.zeros(4, dtype=torch.float64), 1e-9, 1000)
    assert float((end - centre).norm()) <= 1e-9  # the least curvature is one


def test_a_curved_valley_is_followed_to_its_end() -> None:
    function = with_gradient(lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2)
    end = minimize(function, point(-1.2, 1.0), 1e-9, 1000)
    # The least eigenvalue of the Hessian [[802, -400], [-400, 200]] at (1, 1) is above 0.39.
    assert float((end - 1).norm()) <= 1e-9 / 0.39


def test_a_step_is_halved_until_it_is_inside() -> None:
    """From 1e-3 the first step, of length 0.1, must be halved seven times before the function is finite."""
    barrier = with_gradient(lambda x: (x - 1e-6 * x.log()).sum())

    def function(x: Tensor) -> tuple[float, Tensor, float]:
        return barrier(x) if bool((x > 0).all()) else (math.inf, x, math.inf)

    # The minimum is at 1e-6, where the second derivative is 1e6.
    assert float(minimize(function, point(1e-3), 1e-9, 1000)) == pytest.approx(1e-6, abs=2e-15)


def test_a_search_that_fails_with_pairs_goes_on_along_the_gradient() -> None:
    """The first step, along e_1, ends at 0, where the value is 0 and the gradient (0.9, -0.1).

    By hand the pair (-0.1, 0), (-0.1, -0.1) gives the direction (-1.4, 0.5). It leads behind a wall x_2 > -0.2 x_1,
    minus the gradient does not.
    """
    quadratic = with_gradient(lambda x: 0.9 * x[0] - 0.1 * x[1] + (x[0] ** 2 + 2 * x[0] * x[1] + 2 * x[1] ** 2) / 2)

    def function(x: Tensor) -> tuple[float, Tensor, float]:
        return (math.inf, x, math.inf) if x[0] < 0 and x[1] > -0.2 * x[0] else quadratic(x)

    first = minimize(function, point(0.1, 0.0), 0.0, 1)
    assert torch.equal(first, point(0.0, 0.0))
    second = minimize(function, point(0.1, 0.0), 0.0, 3)
    torch.testing.assert_close(second, -0.1 * point(0.9, -0.1) / math.sqrt(0.82), rtol=1e-14, atol=0)


@pytest.mark.parametrize(("curvature", "kept"), [(5e-13, False), (2e-12, True)])
def test_a_pair_counts_from_a_cosine_on(curvature: float, kept: bool) -> None:
    """The first step is (-0.1, 0), after which the gradient has changed by (-c, 1) with c the cosine of both.

    By hand the pair turns the next direction from minus the gradient into (-0.2 / c, -0.1), up to a share of c.
    """
    second = point(1.0 - curvature, 1.0)
    function, points = scripted((0.0, point(1.0, 0.0)), (-1.0, second), (-math.inf, second))
    minimize(function, point(0.0, 0.0), 0.0, 2)
    expected = point(-0.2 / curvature, -0.1) if kept else -0.1 * second / second.norm()
    torch.testing.assert_close(points[2] - points[1], expected, rtol=1e-3, atol=0)


def test_a_slope_that_does_not_change_gives_no_pair() -> None:
    """Every step along a line is the first one, of length 0.1."""
    assert minimize(with_gradient(lambda x: 2 * x.sum()), point(0.0), 0.0, 4).item() == pytest.approx(-0.4, rel=1e-14)


def test_a_direction_that_rounding_turned_uphill_is_replaced_by_the_gradient() -> None:
    """Steps of 1e-7 between gradients of 1000 leave a pair whose direction rounding decides."""
    third = point(999.9999999997, 1000.0)
    answers = [(0.0, point(1e-7, -1e-7)), (-1.0, point(1000.0, 1000.0)), (-2.0, third), (-1e3, third)]
    function, points = scripted(*answers)
    minimize(function, point(0.0, 0.0), 0.0, 3)
    torch.testing.assert_close(points[3] - points[2], -0.1 * third / third.norm(), rtol=1e-9, atol=0)


def test_a_search_that_fails_along_the_gradient_is_the_last() -> None:
    """No step from the end of the range at zero is too short to leave it."""
    function, points = counted(lambda x: (float(x) if x >= 0 else math.inf, torch.ones_like(x), 1.0))
    assert minimize(function, point(0.0), 1e-9, 10).item() == 0.0
    assert len(points) == 1 + _HALVINGS


def test_last_steps_shorten_the_gradient_and_are_few() -> None:
    """Next to a minimum of fourth order every step shortens the gradient, by a factor only."""
    function, points = counted(with_gradient(lambda x: (x**4).sum()))
    end = minimize(function, point(1e-6), 0.0, 1000)
    assert 0 < float(end) < 1e-6
    assert len(points) == 1 + _POLISH


def test_nothing_is_done_where_nothing_can_be() -> None:
    function, points = counted(with_gradient(lambda x: (x**2).sum()))
    start = point(0.5)
    assert minimize(function, start, 1.0, 1000) is start  # as stationary as asked for
    assert minimize(function, start, 0.0, 0) is start
    assert len(points) == 2
    assert minimize(lambda x: (math.inf, x, math.inf), start, 0.0, 1000) is start


def test_a_step_that_rounds_to_nothing_is_the_last() -> None:
    """At the end of its range every step of x is forbidden, until a step is too short to be one."""
    function, points = counted(lambda x: (float(x) if x >= 1.0 else math.inf, torch.ones_like(x), 1.0))
    assert minimize(function, point(1.0), 1e-9, 100).item() == 1.0
    assert len(points) < 70
