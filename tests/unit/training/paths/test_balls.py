"""Balls as free variables, against the norms themselves, difference quotients and closed forms."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attsvm.core.norms import Sum, get_norm
from attsvm.training.paths.balls import Ball, ball_of
from attsvm.training.paths.minimize import minimize

D, DZ, RADIUS = 4, 3, 2.5
SMOOTH = ("frobenius", 1.75, 3)
NORMS = (*SMOOTH, "nuclear", "spectral", "max", 1)
# Roundings of a product, a singular value decomposition and a norm of a few entries near one.
CLOSE = 1e-13


def ball(norm: str | float, rank: int | None = None) -> Ball:
    return ball_of(get_norm(norm), D, DZ, rank)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


def least(one: Ball, G: Tensor, start: Tensor) -> Tensor:
    """Return the W of least <G, W> in the ball found from a start."""

    def inner_product(V: Tensor) -> tuple[float, Tensor, float]:
        slope, share = one.pull_back(V, G, RADIUS)
        return float((G * one.decode(V, RADIUS)).sum()), slope, share

    return one.decode(minimize(inner_product, start, 1e-9, 1000), RADIUS)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_variable_keeps_the_direction_and_is_near_the_sphere(norm: str | float, scale: float) -> None:
    W, one = draw(D, DZ), ball(norm)
    back = one.decode(one.encode(scale * W), RADIUS)
    share = one.size(back) / RADIUS
    torch.testing.assert_close(back, W * (share * RADIUS / one.size(W)), rtol=0, atol=CLOSE)
    # Entries and singular values start off their bounds; the other spheres have no bounds.
    assert share == pytest.approx(1, rel=CLOSE) if norm in (*SMOOTH, "nuclear") else 0.9 - CLOSE <= share < 0.96


@pytest.mark.parametrize("norm", ["spectral", "max", 1])
def test_no_direction_is_the_centre_of_a_ball_with_corners(norm: str | float) -> None:
    one, nothing = ball(norm), torch.zeros(D, DZ, dtype=torch.float64)
    assert torch.equal(one.decode(one.encode(nothing), RADIUS), nothing)


@pytest.mark.parametrize("norm", NORMS)
def test_a_variable_keeps_a_direction_with_zeros(norm: str | float) -> None:
    W, one = torch.diag(torch.tensor([2.0, -1.0, 0.5, 1.0], dtype=torch.float64))[:, :DZ], ball(norm)
    back = one.decode(one.encode(W), RADIUS)
    torch.testing.assert_close(back, W * (one.size(back) / one.size(W)), rtol=0, atol=CLOSE)


@pytest.mark.parametrize("norm", NORMS)
def test_the_variable_of_no_direction_is_finite(norm: str | float) -> None:
    assert ball(norm).encode(torch.zeros(D, DZ, dtype=torch.float64)).isfinite().all()


@pytest.mark.parametrize("norm", NORMS)
def test_the_share_across_does_not_depend_on_the_size_of_the_gradient(norm: str | float) -> None:
    one, G = ball(norm), draw(D, DZ, seed=1)
    V = one.encode(draw(D, DZ))
    slope, share = one.pull_back(V, G, RADIUS)
    large_slope, large_share = one.pull_back(V, 1000 * G, RADIUS)
    assert 0 < share < 1 + CLOSE
    assert large_share == pytest.approx(share, rel=CLOSE)
    torch.testing.assert_close(large_slope, 1000 * slope, rtol=0, atol=1000 * CLOSE * float(slope.norm()))


@pytest.mark.parametrize("norm", NORMS)
def test_every_variable_is_in_the_ball(norm: str | float) -> None:
    one = ball(norm)
    shape = one.encode(draw(D, DZ)).shape
    for seed in range(5):
        for scale in (0.01, 1.0, 30.0):
            size = one.size(one.decode(scale * draw(*shape, seed=seed), RADIUS))
            assert size <= RADIUS * (1 + CLOSE)
            if norm in SMOOTH:
                assert size == pytest.approx(RADIUS, rel=CLOSE)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("equal", [False, True])
def test_the_gradient_in_the_variable_is_a_difference_quotient(norm: str | float, equal: bool) -> None:
    """Also at a variable that is not of length one, and at equal entries and singular values."""
    one, G, h = ball(norm), draw(D, DZ, seed=1), 1e-5
    V = 1.7 * one.encode(torch.eye(D, DZ, dtype=torch.float64) if equal else draw(D, DZ))
    move = draw(*V.shape, seed=2)
    slope, _ = one.pull_back(V, G, RADIUS)
    if norm == 1.75 and equal:
        move = move * (V != 0)  # at an entry of zero the second derivative is infinite
    change = one.decode(V + h * move, RADIUS) - one.decode(V - h * move, RADIUS)
    # A symmetric quotient is off by its third derivatives times h^2, and by roundings over h.
    assert float((slope * move).sum()) == pytest.approx(float((G * change).sum()) / (2 * h), rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("norm", NORMS)
def test_the_least_inner_product_over_a_ball_is_minus_the_dual_norm(norm: str | float) -> None:
    one, G = ball(norm), draw(D, DZ, seed=3)
    W = least(one, G, one.release(one.encode(draw(D, DZ)), G))
    assert float((G * W).sum()) == pytest.approx(-RADIUS * one.norm.dual(G.numpy()), rel=1e-12)
    assert abs(one.stationarity(W, G)) <= 1e-12


def stationary_for_the_variable_only(norm: str | float) -> Tensor:
    """Variables with no slope of 1 W_11 + 2 W_22, which is least at a negative W_22."""
    V = torch.zeros({"nuclear": (D + DZ, 3), 1: (2 * D, DZ)}.get(norm, (D, DZ)), dtype=torch.float64)
    if norm == "nuclear":  # the second factors are zero
        V[0, 0], V[D, 0] = -1.0, 1.0
    elif norm == 1:  # W_22 is zero in both parts
        V[D, 0] = 1.0
    else:  # quarter turns of the wrong sign
        V[:2, :2] = math.pi / 2 * torch.eye(2, dtype=torch.float64)
    return V


@pytest.mark.parametrize("norm", ["nuclear", "spectral", "max", 1])
def test_a_release_leaves_a_point_that_is_stationary_for_the_variable_only(norm: str | float) -> None:
    one, G, V = ball(norm), torch.zeros(D, DZ, dtype=torch.float64), stationary_for_the_variable_only(norm)
    G[0, 0], G[1, 1] = 1.0, 2.0
    assert one.pull_back(V, G, RADIUS)[1] <= 1e-15
    assert one.stationarity(one.decode(V, RADIUS), G) >= 0.5 - CLOSE
    released = one.release(V, G)
    assert one.size(one.decode(released, RADIUS)) <= RADIUS * (1 + CLOSE)
    assert float((G * least(one, G, released)).sum()) == pytest.approx(-RADIUS * one.norm.dual(G.numpy()), rel=1e-12)


def test_the_measure_of_stationarity_is_one_minus_a_cosine() -> None:
    one, W = ball("frobenius"), draw(D, DZ)
    across = draw(D, DZ, seed=1)
    across = across - W * ((across * W).sum() / W.square().sum())
    across = across * (W.norm() / across.norm())
    nothing = torch.zeros_like(W)
    cases = [(-3 * W, 0.0), (across, 1.0), (2 * W, 2.0), (across - W, 1 - math.sqrt(0.5)), (nothing, 0.0)]
    for gradient, expected in cases:
        assert one.stationarity(W, gradient) == pytest.approx(expected, abs=CLOSE)
    assert one.stationarity(nothing, W) == 0


@pytest.mark.parametrize(("rank", "width"), [(None, DZ), (1, 1), (2, 2), (5, 5)])
def test_factors_have_the_width_of_the_rank_and_keep_the_largest_singular_values(rank: int | None, width: int) -> None:
    W, one = draw(D, DZ), ball("nuclear", rank)
    V = one.encode(W)
    assert V.shape == (D + DZ, width)
    torch.testing.assert_close(V[:D].mT @ V[:D], V[D:].mT @ V[D:], rtol=0, atol=CLOSE)  # balanced
    U, S, Vh = torch.linalg.svd(W, full_matrices=False)
    nearest = (U * S * (torch.arange(len(S)) < width)) @ Vh
    torch.testing.assert_close(one.decode(V, one.size(nearest)), nearest, rtol=0, atol=10 * CLOSE)


@pytest.mark.parametrize(
    ("norm", "rank"), [("frobenius", 2), ("nuclear", 0), ("nuclear", True), ("nuclear", 1.5), ("nuclear", "two")]
)
def test_a_rank_that_has_no_meaning_is_named(norm: str, rank: Any) -> None:
    with pytest.raises(ValueError, match=f"rank is {rank!r} for norm='{norm}'; a positive integer"):
        ball(norm, rank)


def test_a_norm_without_a_variable_is_named() -> None:
    with pytest.raises(ValueError, match="a named norm or an exponent"):
        ball_of(Sum("frobenius", 1), D, DZ, None)
