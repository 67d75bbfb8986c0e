"""Parts of the regularisation path, against their definitions; the limits are in tests/reference."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.special import expit, log_softmax
from torch import Tensor

from attsvm import TokenData, regularization_path, solve
from attsvm.core.norms import get_norm
from attsvm.core.types import AnyNorm
from attsvm.data.synthetic import random_data
from attsvm.training.paths.balls import ball_of
from attsvm.training.paths.path import _ESCAPES, _Sphere, _TrialPath
from attsvm.training.risk.objective import Objective

N, T, D = 3, 4, 5
DATA, V = random_data(None, N, T, D, gap=0.1, seed=6)
SCORES = DATA.labels[:, None] * (DATA.tokens @ V)
BEST = SCORES.argmax(-1)
OBJECTIVE = Objective.from_data(DATA, V)
CORNERS = ("nuclear", "spectral", "max", 1)
ONE = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1.0]))


def log_attention(W: Tensor) -> np.ndarray:
    return log_softmax(np.einsum("ntd,de,ne->nt", DATA.tokens, W.numpy(), DATA.queries), axis=-1)


def risk(margin: np.ndarray) -> float:
    return float(np.log1p(np.exp(-margin)).mean())


@pytest.mark.parametrize("norm", ["frobenius", 3, "nuclear", "spectral", "max", 1])
@pytest.mark.parametrize("init", [None, "zero"])
def test_one_score_has_all_of_the_ball(norm: AnyNorm, init: str | None) -> None:
    """Only W_11 moves attention, and it is at most the radius in all these norms."""
    radii = np.array([0.5, 3.0, 20.0])
    path = regularization_path(ONE, np.array([1.0, 0.0]), radii, norm=norm, init=init)
    W = np.asarray(path.W)
    # The search stops at a sine of sqrt(2e-10); in l_3, the flattest, W_11 misses a third of its power 3/2, below 2e-8.
    np.testing.assert_allclose(W[:, 0, 0], radii, rtol=1e-7)
    np.testing.assert_allclose(path.loss, np.log1p(np.exp(-expit(W[:, 0, 0]))), rtol=1e-14)
    assert np.max(path.stationarity) <= 1e-7


@pytest.mark.parametrize("norm", ["frobenius", 3, "nuclear", "spectral", "max", 1])
def test_a_risk_without_slope_is_stationary_everywhere(norm: AnyNorm) -> None:
    path = regularization_path(ONE, np.array([0.0, 1.0]), [1.0, 10.0], norm=norm)
    np.testing.assert_allclose(path.loss, math.log(2), rtol=1e-15)
    assert (np.asarray(path.stationarity) == 0).all()
    assert np.isfinite(path.W).all()


@pytest.mark.parametrize(("largest", "radius"), [(0.5, 1.0), (5.0, 8.0), (8.0, 8.0)])
def test_a_local_path_starts_from_its_guide_at_the_power_of_two_above_the_radii(largest: float, radius: float) -> None:
    ball = ball_of(get_norm("frobenius"), D, D, None)
    path = _TrialPath(OBJECTIVE, ball, torch.as_tensor(BEST)[None], 1e-3, 1e-10, 1000)
    start = path.start(-OBJECTIVE.gradient(torch.zeros(1, D, D, dtype=torch.float64)).W[0], largest, given=False)
    W = ball.decode(start, radius)
    missing = np.exp(log_attention(W)) - np.eye(T)[BEST]  # the slope of -log attention in the logits
    gradient = np.einsum("nt,ntd,ne->de", missing, DATA.tokens, DATA.queries)
    # The search stops at a squared sine of 1e-10, half of which is one minus the cosine.
    assert ball.stationarity(W, torch.as_tensor(gradient)) <= 2e-10


@pytest.mark.parametrize(("norm", "searches"), [("frobenius", 1), (3, 1), *((one, _ESCAPES) for one in CORNERS)])
def test_only_a_released_point_is_searched_again(
    norm: str | float, searches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[Tensor] = []

    def minimize(function: object, start: Tensor, tol: float, max_iter: int) -> Tensor:
        starts.append(start)
        return start

    monkeypatch.setattr("attsvm.training.paths.path.minimize", minimize)
    ball = ball_of(get_norm(norm), D, D, None)
    V_far = ball.encode(torch.as_tensor(np.random.default_rng(1).standard_normal((D, D))))
    _Sphere(OBJECTIVE, ball, None, 0.0).minimize(V_far, 10.0, 1e-10, 1000)
    assert len(starts) == searches
    assert all(not torch.equal(one, other) for one, other in pairwise(starts))


@pytest.mark.parametrize("linear", [True, False])
def test_the_slope_of_a_value_is_a_difference_quotient(linear: bool) -> None:
    """The value is log(n (L - L*)) for a linear head, otherwise L."""
    ball, h, radius = ball_of(get_norm("frobenius"), D, D, None), 1e-5, 4.0
    objective = OBJECTIVE if linear else Objective.from_data(DATA, lambda x: torch.tanh(x).sum(-1))
    sphere = _Sphere(objective, ball, None, 0.0)
    rng = np.random.default_rng(2)
    V, move = (torch.as_tensor(rng.standard_normal((D, D))) for _ in range(2))
    ahead, behind = (sphere.value(V + step * move, radius)[0] for step in (h, -h))
    value, slope, _ = sphere.value(V, radius)
    # A symmetric quotient is off by third derivatives times h^2, and by roundings over h.
    assert float((slope * move).sum()) == pytest.approx((ahead - behind) / (2 * h), rel=1e-7, abs=1e-9)
    if linear:
        margin = (np.exp(log_attention(ball.decode(V, radius))) * SCORES).sum(-1)
        assert value == pytest.approx(math.log(N * (risk(margin) - risk(SCORES.max(-1)))), rel=1e-12)


def test_ranks_are_logarithms_of_the_excess_risk() -> None:
    ball = ball_of(get_norm("frobenius"), D, D, None)
    sphere = _Sphere(OBJECTIVE, ball, None, 0.0)
    for seed in range(3):
        V = torch.as_tensor(np.random.default_rng(seed).standard_normal((D, D)))
        margin = (np.exp(log_attention(ball.decode(V, 4.0))) * SCORES).sum(-1)
        positive, log_excess = sphere.rank_of(V, 4.0)
        assert positive
        assert log_excess == pytest.approx(math.log(N * (risk(margin) - risk(SCORES.max(-1)))), rel=1e-12)


def test_ranks_order_risks_that_underflow() -> None:
    ball = ball_of(get_norm("frobenius"), D, D, None)
    V = ball.encode(torch.as_tensor(np.asarray(solve(DATA.problem(BEST)).W)))
    ranks = [_Sphere(OBJECTIVE, ball, None, 0.0).rank_of(V, radius) for radius in (10.0, 1e4, 1e5, 1e6)]
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[-1][1] < math.log(5e-324)


def test_attention_to_better_tokens_has_the_least_rank() -> None:
    ball = ball_of(get_norm("frobenius"), D, D, None)
    worst = torch.as_tensor(SCORES.argmin(-1))[None]
    sphere = _Sphere(OBJECTIVE, ball, worst, 1e-3)
    better = ball.encode(torch.as_tensor(np.asarray(solve(DATA.problem(BEST)).W)))
    positive, excess = sphere.rank_of(better, 50.0)
    assert not positive
    assert excess < 0
