"""Norms as objects: dual to each other, derivatives right, answers certified and equal to Clarabel's models."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import oracle
from attsvm import SelectionProblem, Solution, Status, norms, solve
from attsvm.core.norms import FROBENIUS, MAX, NUCLEAR, SPECTRAL, Norm, get_norm
from problems import FAMILIES, NAMED

TOL = 1e-9
# Composed norms are judged by a split of A^T lam that is itself the answer to a convex problem.
COMPOSED_TOL = 1e-7
# Clarabel is asked for 1e-8 in its own scaling of the model, which is not the relative gap of the value.
PEER = 1e-6


@dataclass(frozen=True)
class Case:
    """A norm, its cvxpy model, and its dual norm by numpy alone (None: only bounded through the model)."""

    make: Callable[[int, int], Norm]
    model: Callable[[Any], Any]
    dual: Callable[[np.ndarray], float] | None


def sigma(M: np.ndarray) -> np.ndarray:
    return np.linalg.svd(M, compute_uv=False)


def vector(x: np.ndarray, p: float) -> float:
    return float(np.linalg.norm(np.ravel(x), p))


def rows(M: np.ndarray, p: float, q: float) -> float:
    return vector(np.array([vector(row, p) for row in M]), q)


def weights(d: int, dz: int) -> np.ndarray:
    return np.random.default_rng([d, dz]).uniform(0.3, 3.0, (d, dz))


def definite(size: int, seed: int) -> np.ndarray:
    root = np.random.default_rng([size, seed]).normal(size=(size, size))
    return root @ root.T + 0.3 * np.eye(size)


def root_of(matrix: np.ndarray, power: float) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * values**power) @ vectors.T


def entries(W: Any) -> Any:
    return cp.vec(W, order="C")


def dilation(W: Any) -> Any:
    d, dz = W.shape
    return cp.bmat([[np.zeros((d, d)), W], [W.T, np.zeros((dz, dz))]])


def mahalanobis(W: Any, seed: int = 1) -> Any:
    d, dz = W.shape
    return root_of(definite(d, seed), 0.5) @ W @ root_of(definite(dz, seed + 1), 0.5)


def mahalanobis_inverse(M: np.ndarray, seed: int = 1) -> np.ndarray:
    d, dz = M.shape
    return root_of(definite(d, seed), -0.5) @ M @ root_of(definite(dz, seed + 1), -0.5)


def form(base: Norm | str | float) -> Callable[[int, int], Norm]:
    return lambda d, dz: norms.Mahalanobis(definite(d, 1), definite(dz, 2), base)


CASES: dict[str, Case] = {
    "ky-fan-2": Case(
        lambda d, dz: norms.KyFan(2),
        lambda W: cp.lambda_sum_largest(dilation(W), 2),
        lambda M: max(float(sigma(M)[0]), float(sigma(M).sum()) / min(2, len(sigma(M)))),
    ),
    "group lasso": Case(
        lambda d, dz: norms.Mixed(2, 1), lambda W: cp.sum(cp.norm(W, 2, axis=1)), lambda M: rows(M, 2, np.inf)
    ),
    "rows 2 inf": Case(
        lambda d, dz: norms.Mixed(2, np.inf), lambda W: cp.max(cp.norm(W, 2, axis=1)), lambda M: rows(M, 2, 1)
    ),
    "rows 1 inf": Case(
        lambda d, dz: norms.Mixed(1, np.inf), lambda W: cp.max(cp.norm(W, 1, axis=1)), lambda M: rows(M, np.inf, 1)
    ),
    "columns inf 1": Case(
        lambda d, dz: norms.Mixed(np.inf, 1, "columns"),
        lambda W: cp.sum(cp.norm(W, "inf", axis=0)),
        lambda M: rows(M.T, 1, np.inf),
    ),
    "columns 1.5 3": Case(
        lambda d, dz: norms.Mixed(1.5, 3, "columns"),
        lambda W: cp.pnorm(cp.hstack([cp.pnorm(W[:, k], 1.5) for k in range(W.shape[1])]), 3),
        lambda M: rows(M.T, 3, 1.5),
    ),
    "weighted 1": Case(
        lambda d, dz: norms.Weighted(weights(d, dz), 1),
        lambda W: cp.sum(cp.abs(cp.multiply(weights(*W.shape), W))),
        lambda M: vector(M / weights(*M.shape), np.inf),
    ),
    "weighted 1.5": Case(
        lambda d, dz: norms.Weighted(weights(d, dz), 1.5),
        lambda W: cp.pnorm(entries(cp.multiply(weights(*W.shape), W)), 1.5),
        lambda M: vector(M / weights(*M.shape), 3),
    ),
    "weighted max": Case(
        lambda d, dz: norms.Weighted(weights(d, dz), np.inf),
        lambda W: cp.max(cp.abs(cp.multiply(weights(*W.shape), W))),
        lambda M: vector(M / weights(*M.shape), 1),
    ),
    "mahalanobis": Case(
        form("frobenius"), lambda W: cp.norm(mahalanobis(W), "fro"), lambda M: vector(mahalanobis_inverse(M), 2)
    ),
    "mahalanobis nuclear": Case(
        form("nuclear"), lambda W: cp.normNuc(mahalanobis(W)), lambda M: float(sigma(mahalanobis_inverse(M))[0])
    ),
    "mahalanobis group lasso": Case(
        form(norms.Mixed(2, 1)),
        lambda W: cp.sum(cp.norm(mahalanobis(W), 2, axis=1)),
        lambda M: rows(mahalanobis_inverse(M), 2, np.inf),
    ),
    "frobenius + nuclear": Case(
        lambda d, dz: norms.Sum("frobenius", "nuclear"), lambda W: cp.norm(W, "fro") + cp.normNuc(W), None
    ),
    "nuclear + l_1": Case(lambda d, dz: norms.Sum("nuclear", 1), lambda W: cp.normNuc(W) + cp.sum(cp.abs(W)), None),
    "max of spectral, rows 2 1": Case(
        lambda d, dz: norms.Largest("spectral", norms.Mixed(2, 1)),
        lambda W: cp.maximum(cp.sigma_max(W), cp.sum(cp.norm(W, 2, axis=1))),
        None,
    ),
    "max of frobenius, ky-fan-2": Case(
        lambda d, dz: norms.Largest("frobenius", norms.KyFan(2)),
        lambda W: cp.maximum(cp.norm(W, "fro"), cp.lambda_sum_largest(dilation(W), 2)),
        None,
    ),
}
# Families for norms that are slow to judge.
FEW = ("several", "near_duplicates", "contradicted")
# Exponents without a model that cvxpy knows: judged by the dual norm of numpy alone.
POWERS = (1.1, 1.5, 3.0, 8.0)


def schatten(p: float) -> Case:
    q = p / (p - 1)
    return Case(lambda d, dz: norms.Schatten(p), lambda W: None, lambda M: vector(sigma(M), q))


EVERY = CASES | {f"schatten-{p:g}": schatten(p) for p in POWERS}


def tolerance(name: str) -> float:
    return COMPOSED_TOL if EVERY[name].dual is None else TOL


def model(problem: SelectionProblem, case: Case, C: float | None, loss: str, prior: np.ndarray | None) -> float:
    """The optimal value of a naive model, rows scaled to length one."""
    full = oracle.dense(problem)
    d, dz = full.left.shape[1], full.right.shape[1]
    W = cp.Variable((d, dz))
    margins = full.rows @ entries(W)
    objective = case.model(W if prior is None else W - prior)
    lengths = np.where(full.lengths > 0, full.lengths, 1.0)[~full.tied]
    short = 1 - margins[np.flatnonzero(~full.tied)]
    constraints: list[Any] = [margins[np.flatnonzero(full.tied)] == 0] if full.tied.any() else []
    if C is None:
        constraints.append(cp.multiply(short, 1.0 / lengths) <= 0)
    else:
        objective = objective + C * (cp.sum(cp.pos(short)) if loss == "hinge" else cp.sum_squares(cp.pos(short)))
    program = cp.Problem(cp.Minimize(objective), constraints)
    with warnings.catch_warnings():
        for message in ("Solution may be inaccurate", "Power atom", "pnorm"):
            warnings.filterwarnings("ignore", message=message)
        try:
            options = {"tol_gap_abs": 1e-8, "tol_gap_rel": 1e-8, "tol_feas": 1e-8}
            return float(program.solve(solver=cp.CLARABEL, use_quad_obj=False, **options))
        except cp.SolverError:  # it gives some badly scaled semidefinite models up
            return float(program.solve(solver=cp.SCS, eps_abs=1e-9, eps_rel=1e-9, max_iters=100_000))


def check_optimal(problem: SelectionProblem, case: Case, solution: Solution) -> None:
    """Recompute feasibility and the gap from W and the multipliers by dense algebra."""
    assert solution.status is Status.OPTIMAL, solution
    full = oracle.dense(problem)
    inequality = ~full.tied
    if not inequality.any():
        assert solution.objective == 0
        return
    W, dual = np.asarray(solution.W), np.asarray(solution.dual)[full.where]
    noise = (W.size + 4) * oracle.EPS * float((full.lengths * np.linalg.norm(W)).max())
    margins = full.rows @ W.ravel()
    assert abs(margins[inequality].min() - 1) <= noise
    assert np.abs(margins[full.tied]).max(initial=0.0) <= TOL + noise
    assert (dual[inequality] >= 0).all()
    if case.dual is not None:
        bound = float(dual[inequality].sum()) / case.dual((full.left * dual[:, None]).T @ full.right)
        assert solution.norm.value(W) / bound - 1 <= TOL + 1e3 * oracle.EPS


def instance(name: str, which: int, seed: int = 0) -> SelectionProblem:
    size = FAMILIES[name].sizes[which]
    return FAMILIES[name].draw(*size, seed=seed)


@cache
def feasibility(family: str, which: int) -> bool | None:
    """No norm changes it."""
    return oracle.reference(instance(family, which), "frobenius").feasible


@pytest.mark.parametrize("name", EVERY)
def test_norm_and_dual_norm_are_dual(name: str) -> None:
    rng = np.random.default_rng(3)
    for d, dz in ((4, 3), (2, 5)):
        norm = EVERY[name].make(d, dz)
        A, B, M = rng.normal(size=(3, d, dz))
        assert norm.value(A + B) <= (norm.value(A) + norm.value(B)) * (1 + 1e-14)
        assert norm.value(-4 * A) == pytest.approx(4 * norm.value(A), rel=1e-14)
        assert abs((A * M).sum()) <= norm.value(A) * norm.dual(M) * (1 + 1e-14)
        # Attained at the gradient: the smoothing is off by mu an entry, the rest is rounding that mu magnifies.
        slope = norm.smoothing(A, 1e-10).gradient
        assert (A * slope).sum() == pytest.approx(norm.value(A) * norm.dual(slope), rel=1e-7)
        dual = EVERY[name].dual
        if dual is not None:
            assert norm.dual(M) == pytest.approx(dual(M), rel=1e-13)


@pytest.mark.parametrize("name", EVERY)
def test_smoothing_has_the_derivatives_it_says(name: str) -> None:
    """Central differences of step h err by h^2 and eps / h, relative to derivatives of order one: 1e-7 at h = 1e-5."""
    rng = np.random.default_rng(4)
    for d, dz in ((4, 3), (2, 5)):
        norm = EVERY[name].make(d, dz)
        V, D = rng.normal(size=(2, d, dz))
        here, up, down = (norm.smoothing(V + step * D, 0.1) for step in (0.0, 1e-5, -1e-5))
        assert (up.value - down.value) / 2e-5 == pytest.approx(float((here.gradient * D).sum()), rel=1e-6, abs=1e-7)
        change = (up.gradient - down.gradient).ravel() / 2e-5
        assert here.hessian @ D.ravel() == pytest.approx(change, rel=1e-6, abs=1e-6)
        assert np.linalg.eigvalsh(here.hessian)[0] >= -1e-13
        assert norm.dual(here.gradient) <= 1 + 1e-9
        # The gradient depends on V / mu only.
        assert norm.smoothing(3 * V, 0.3).gradient == pytest.approx(here.gradient, rel=1e-12, abs=1e-13)
        if here.parts:
            assert sum(part for part, _ in here.parts) == pytest.approx(here.gradient, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.slow
def test_every_family_is_certified(name: str) -> None:
    failures = []
    for family in FAMILIES if EVERY[name].dual is not None else FEW:
        which = 0 if EVERY[name].dual is None else 1
        problem, feasible = instance(family, which), feasibility(family, which)
        solution = solve(problem, EVERY[name].make(*problem.shape[2:]), tol=tolerance(name))
        try:
            if solution.status is Status.INFEASIBLE:
                assert feasible is not True
                assert solution.certificate is not None
                assert solution.certificate.verify()
            else:
                assert feasible is not False
                check_optimal(problem, EVERY[name], solution)
        except AssertionError as error:
            failures.append(f"{family}: {solution} {str(error).splitlines()[:1]}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_answers_agree_with_clarabel(name: str) -> None:
    """Hard and soft margins, both losses, a prior, ties."""
    case = CASES[name]
    for family in ("planted", "several"):
        problem = instance(family, 0 if case.dual is None and family == "several" else 1)
        prior = np.random.default_rng(5).normal(size=problem.shape[2:])
        cases: list[dict[str, Any]] = [{}, {"prior": prior, "C": 2.0}]
        if case.dual is not None:
            cases += [{"C": 1.0}, {"C": 3.0, "loss": "squared_hinge"}, {"prior": prior}]
        for options in cases:
            solution = solve(problem, case.make(*problem.shape[2:]), tol=tolerance(name), **options)
            assert solution.status is Status.OPTIMAL, (family, options, solution)
            options = {"C": None, "loss": "hinge", "prior": None} | options
            value = getattr(solution, "primal", solution.objective)
            if solution.norm.euclidean and options["C"] is not None:
                continue  # half the square is charged: compared below
            assert value == pytest.approx(model(problem, case, **options), rel=PEER), (family, options)


def test_euclidean_soft_margins_are_those_of_transformed_data() -> None:
    """A Mahalanobis norm is the Frobenius norm of the problem in other coordinates."""
    problem = instance("planted", 2)
    _, _, d, dz = problem.shape
    A, B = definite(d, 1), definite(dz, 2)
    scaled_problem = SelectionProblem(
        problem.tokens @ root_of(A, -0.5), problem.queries @ root_of(B, -0.5), problem.selected, mask=problem.mask
    )
    for options in ({}, {"C": 1.0}, {"C": 1.0, "loss": "squared_hinge"}):
        here, there = solve(problem, norms.Mahalanobis(A, B), **options), solve(scaled_problem, **options)
        assert here.status is there.status is Status.OPTIMAL
        assert here.objective == pytest.approx(there.objective, rel=1e-8)
        W = root_of(A, -0.5) @ np.asarray(there.W) @ root_of(B, -0.5)
        # Strong convexity: the direction is off by the root of twice the gap, 1e-9, of either.
        assert np.linalg.norm(np.asarray(here.W) - W) <= 2e-4 * np.linalg.norm(W)


@pytest.mark.parametrize("name", EVERY)
def test_infeasible_problems_and_one_constraint(name: str) -> None:
    for case in ("midpoint", "opposite_queries"):
        problem = NAMED[case]().problem
        solution = solve(problem, EVERY[name].make(*problem.shape[2:]))
        assert solution.status is Status.INFEASIBLE
        assert solution.certificate is not None
        assert solution.certificate.verify()
    problem = NAMED["one_constraint"]().problem
    norm = EVERY[name].make(*problem.shape[2:])
    outer = np.outer([3.0, 4.0], [0.0, 2.0, 0.0])
    assert solve(problem, norm).objective == pytest.approx(1 / norm.dual(outer), rel=2 * TOL)


def test_a_solution_is_its_own_warm_start_and_limits_hold() -> None:
    problem = instance("planted", 2)
    for norm in (norms.KyFan(2), norms.Mixed(2, 1), norms.Mahalanobis(definite(problem.shape[2], 1))):
        assert solve(problem, norm, warm_start=solve(problem, norm)).iterations <= 2
    assert solve(problem, norms.KyFan(2), callback=lambda state: True).status is Status.CANCELLED
    assert solve(problem, norms.KyFan(2), max_iter=3).status is Status.MAX_ITERATIONS


class Rotated(Norm):
    """The largest entry of W T, T orthogonal: all that one's own norm has to say."""

    def __init__(self, T: np.ndarray) -> None:
        self.T, self.name = T, "largest entry, turned"

    def value(self, M: np.ndarray) -> float:
        return MAX.value(M @ self.T)

    def dual(self, M: np.ndarray) -> float:
        return MAX.dual(M @ self.T)

    def smoothing(self, V: np.ndarray, mu: float) -> norms.Smooth:
        inner, turn = MAX.smoothing(V @ self.T, mu), np.kron(np.eye(len(V)), self.T)
        return norms.Smooth(inner.value, inner.gradient @ self.T.T, turn @ inner.hessian @ turn.T)


def test_a_norm_of_ones_own() -> None:
    problem = instance("planted", 2)
    T = np.linalg.qr(np.random.default_rng(6).normal(size=(problem.shape[3],) * 2))[0]
    rotation = SelectionProblem(problem.tokens, problem.queries @ T, problem.selected, mask=problem.mask)
    for options in ({}, {"C": 0.5}):
        here, there = solve(problem, Rotated(T), **options), solve(rotation, "max", **options)
        assert here.status is there.status is Status.OPTIMAL
        assert here.objective == pytest.approx(there.objective, rel=1e-6)


def test_names_and_special_cases() -> None:
    assert get_norm("schatten:1") is get_norm(norms.Schatten(1)) is NUCLEAR
    assert get_norm("schatten:inf") is get_norm("ky-fan:1") is SPECTRAL
    assert get_norm("schatten:2") is get_norm("rows:2:2") is FROBENIUS
    assert get_norm("columns:inf:inf") == MAX
    assert get_norm("rows:2:1") == norms.Mixed(2, 1) != norms.Mixed(2, 1, "columns")
    assert norms.Weighted(np.ones((2, 2)), 1) != norms.Weighted(np.full((2, 2), 2.0), 1)
    assert norms.Sum("nuclear", 1) == norms.Sum("nuclear", norms.Entrywise(1)) != norms.Sum(1, "nuclear")
    assert hash(norms.Mahalanobis(np.eye(2))) == hash(norms.Mahalanobis(np.eye(2)))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: norms.Schatten(0.5), r"^p is 0\.5; a number p >= 1 was expected\.$"),
        (lambda: norms.KyFan(0), r"^k is 0; a positive integer was expected\.$"),
        (lambda: norms.Mixed(2, 1, "diagonals"), r"^axis is 'diagonals'; one of 'rows', 'columns' was expected\.$"),
        (lambda: norms.Weighted([[1.0, 0.0]]), r"^weights has shape \(1, 2\); a matrix .* positive, finite .*\.$"),
        (lambda: norms.Mahalanobis([[1.0, 0.0], [0.0, -1.0]]), r"^A has shape \(2, 2\); .* definite .*\.$"),
        (lambda: norms.Mahalanobis(None, [[1.0, 2.0]]), r"^B has shape \(1, 2\); .* definite .*\.$"),
        (lambda: norms.Sum("nuclear", "euclid"), r"^norm is 'euclid'; one of 'frobenius', .* was expected\.$"),
    ],
)
def test_bad_parameters_are_refused_in_one_sentence(make: Callable[[], Norm], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize("norm", [norms.Weighted(np.ones((2, 2))), norms.Mahalanobis(np.eye(7))])
def test_arrays_that_do_not_fit_the_problem_are_refused(norm: Norm) -> None:
    with pytest.raises(ValueError, match=r"^(weights|A) has shape .* was expected.*\.$"):
        solve(NAMED["one_constraint"]().problem, norms.Sum("max", norm))
