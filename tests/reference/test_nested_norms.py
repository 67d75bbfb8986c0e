"""Norms composed of composed norms: answers equal to Clarabel's models, and clocks that bind; large Ky Fan norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import oracle
from attsvm import SelectionProblem, Status, norms, solve
from attsvm.core.norms import Norm
from attsvm.core.norms.splitting import evaluations_within
from clocks import least_seconds
from problems import FAMILIES

# Clarabel is asked for 1e-8 in its own scaling of the model, which is not the relative gap of the value.
PEER = 1e-6
ROOT = np.linspace(1.0, 2.0, 4)


def nuclear(W: Any) -> Any:
    return cp.normNuc(W)


def spectral(W: Any) -> Any:
    return cp.sigma_max(W)


def largest(W: Any) -> Any:
    return cp.max(cp.abs(W))


def power(W: Any, p: Any) -> Any:
    return cp.pnorm(cp.vec(W, order="C"), p)


def ky_fan(W: Any) -> Any:
    d, dz = W.shape
    return cp.lambda_sum_largest(cp.bmat([[np.zeros((d, d)), W], [W.T, np.zeros((dz, dz))]]), 2)


def rows(W: Any) -> Any:
    return cp.sum(cp.norm(W, 2, axis=1))


def in_coordinates(base: Norm, size: int) -> Norm:
    return norms.Mahalanobis(A=np.diag(np.resize(ROOT, size) ** 2), base=base)


def weighted(size: int) -> Norm:
    return norms.Weighted(np.broadcast_to(np.resize(ROOT, size)[:, None], (size, size)), 1)


# Of each: the norm for W (d, d), and cvxpy's model of it for d = 4.
NESTED: dict[str, tuple[Callable[[int], Norm], Callable[[Any], Any]]] = {
    "largest(sum(nuclear, spectral), max)": (
        lambda d: norms.Largest(norms.Sum("nuclear", "spectral"), "max"),
        lambda W: cp.maximum(nuclear(W) + spectral(W), largest(W)),
    ),
    "sum(frobenius, nuclear)": (
        lambda d: norms.Sum("frobenius", "nuclear"),
        lambda W: power(W, 2) + nuclear(W),
    ),
    "sum(largest(1, max), spectral)": (
        lambda d: norms.Sum(norms.Largest(1, "max"), "spectral"),
        lambda W: cp.maximum(power(W, 1), largest(W)) + spectral(W),
    ),
    "largest(sum(frobenius, 1), largest(nuclear, max))": (
        lambda d: norms.Largest(norms.Sum("frobenius", 1), norms.Largest("nuclear", "max")),
        lambda W: cp.maximum(power(W, 2) + power(W, 1), nuclear(W), largest(W)),
    ),
    "sum(mahalanobis(sum(nuclear, spectral)), 1)": (
        lambda d: norms.Sum(in_coordinates(norms.Sum("nuclear", "spectral"), d), 1),
        lambda W: nuclear(np.diag(ROOT) @ W) + spectral(np.diag(ROOT) @ W) + power(W, 1),
    ),
    "mahalanobis(largest(sum(1, 2), max))": (
        lambda d: in_coordinates(norms.Largest(norms.Sum(1, 2), "max"), d),
        lambda W: cp.maximum(power(np.diag(ROOT) @ W, 1) + power(np.diag(ROOT) @ W, 2), largest(np.diag(ROOT) @ W)),
    ),
    "sum(sum(1, max), sum(nuclear, spectral))": (
        lambda d: norms.Sum(norms.Sum(1, "max"), norms.Sum("nuclear", "spectral")),
        lambda W: power(W, 1) + largest(W) + nuclear(W) + spectral(W),
    ),
    "largest(ky fan 2, sum(3, 1.5))": (
        lambda d: norms.Largest(norms.KyFan(2), norms.Sum(3, 1.5)),
        lambda W: cp.maximum(ky_fan(W), power(W, 3) + power(W, 1.5)),
    ),
    "sum(weighted 1, largest(rows, spectral))": (
        lambda d: norms.Sum(weighted(d), norms.Largest(norms.Mixed(2, 1), "spectral")),
        lambda W: cp.sum(cp.abs(np.diag(ROOT) @ W)) + cp.maximum(rows(W), spectral(W)),
    ),
    "largest(largest(largest(1, 2), 3), nuclear)": (
        lambda d: norms.Largest(norms.Largest(norms.Largest(1, 2), 3), "nuclear"),
        lambda W: cp.maximum(power(W, 1), power(W, 2), power(W, 3), nuclear(W)),
    ),
    "sum(largest(ky fan 2, rows), 1.5)": (
        lambda d: norms.Sum(norms.Largest(norms.KyFan(2), norms.Mixed(2, 1)), 1.5),
        lambda W: cp.maximum(ky_fan(W), rows(W)) + power(W, 1.5),
    ),
    "largest(mahalanobis(largest(1, nuclear)), sum(max, ky fan 2))": (
        lambda d: norms.Largest(in_coordinates(norms.Largest(1, "nuclear"), d), norms.Sum("max", norms.KyFan(2))),
        lambda W: cp.maximum(power(np.diag(ROOT) @ W, 1), nuclear(np.diag(ROOT) @ W), largest(W) + ky_fan(W)),
    ),
}
KINDS: dict[str, dict[str, Any]] = {"hard": {}, "soft": {"C": 0.5}, "prior": {"prior": 0.2}}


def planted(n: int, T: int, d: int) -> SelectionProblem:
    return FAMILIES["planted"].draw(n, T, d, seed=28)


def options(kind: str, d: int) -> dict[str, Any]:
    return {key: value * np.eye(d) if key == "prior" else value for key, value in KINDS[kind].items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NESTED)
def test_answers_agree_with_clarabel(name: str) -> None:
    make, model = NESTED[name]
    problem, W = planted(6, 5, 4), cp.Variable((4, 4))
    margins = oracle.dense(problem).rows @ cp.vec(W, order="C")
    for kind in KINDS:
        asked = options(kind, 4)
        solution: Any = solve(problem, make(4), time_limit=60.0, **asked)
        assert solution.status is Status.OPTIMAL
        assert solution.verify()
        size = model(W - asked.get("prior", np.zeros((4, 4))))
        loss, limits = (0.5 * cp.sum(cp.pos(1.0 - margins)), []) if "C" in asked else (0.0, [margins >= 1.0])
        value = cp.Problem(cp.Minimize(size + loss), limits).solve(solver=cp.CLARABEL)
        found = solution.objective if kind == "hard" else solution.primal
        assert found == pytest.approx(value, rel=PEER)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NESTED)
def test_time_limits_hold(name: str, kind: str) -> None:
    limit = 0.3
    # The first Newton step over 1024 entries, whose time is not known, may be under way when time is over: .1 s on an
    # idle core, and a busy machine is allowed four times that.
    allowed = 1.1 * limit + 0.4
    problem, norm, asked = planted(60, 16, 32), NESTED[name][0](32), options(kind, 32)
    seconds, solution = least_seconds(lambda: solve(problem, norm, time_limit=limit, **asked), allowed)
    assert solution.status in (Status.OPTIMAL, Status.TIME_LIMIT)
    assert seconds <= allowed


@pytest.mark.parametrize("name", NESTED)
def test_a_dual_norm_that_is_cut_short_is_a_bound(name: str) -> None:
    norm, M = NESTED[name][0](4), np.random.default_rng(5).standard_normal((4, 4))
    exact = norm.dual(M)
    with evaluations_within(lambda: True):
        # Splits are bounds but for rounding of their sums, and of all of M for one norm the best is at most so far off.
        assert exact * (1 - 1e-12) <= norm.dual(M) <= 4 * exact
        smooth = norm.base.smoothing(M, 1e-3)
        first = norm.base.dual_after(smooth.gradient, smooth, np.zeros((4, 4)))
        # What the solve has met is not lost.
        assert norm.base.dual(3.0 * smooth.gradient) <= 3.0 * first * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("norm", [norms.KyFan(2), norms.KyFan(3), norms.Schatten(3)], ids=lambda norm: norm.name)
def test_norms_of_singular_values_at_a_thousand_entries(norm: Norm) -> None:
    assert "hessian" not in vars(norm.smoothing(np.eye(3), 1e-3))
    problem, tol = planted(60, 16, 32), 1e-6
    solution = solve(problem, norm, tol=tol)
    assert solution.status is Status.OPTIMAL
    full = oracle.dense(problem)
    W, dual = solution.W, solution.dual[full.where]
    sigma = np.linalg.svd((full.left * dual[:, None]).T @ full.right, compute_uv=False)
    tau = np.linalg.svd(W, compute_uv=False)
    k = getattr(norm, "k", None)
    # Bhatia, Matrix Analysis, section IV.2, and Hoelder's inequality for 1/3 + 1/1.5 = 1.
    size = max(sigma[0], sigma.sum() / k) if k else np.linalg.norm(sigma, 1.5)
    value = tau[:k].sum() if k else np.linalg.norm(tau, 3)
    lower, upper = dual.sum() / size, value / float((full.rows @ W.ravel()).min())
    # Rounding of 1024 products a margin is far below what is asked for.
    assert upper / lower - 1 <= 2 * tol
