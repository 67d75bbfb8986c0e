"""Entrywise norms, the largest entry and the spectral norm: certificates recomputed, answers against Clarabel."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import cvxpy as cp
import numpy as np
import pytest

import oracle
from attsvm import SelectionProblem, Solution, Status, solve
from attsvm.core.norms import FROBENIUS, get_norm
from problems import FAMILIES, NAMED

Name = str | float
NORMS: tuple[Name, ...] = (1, 1.5, 3, "max", "spectral")
EXTREME = (1.05, 1.2, 6, 20)
TOL = 1e-9
# Bounds are sums of at most 1e3 products at these sizes, without cancellation.
ROUNDING = 1e3 * oracle.EPS


def length(M: np.ndarray, norm: Name, *, dual: bool = False) -> float:
    """The norm or its dual by numpy alone."""
    if norm == "spectral":
        return float(np.linalg.norm(M, "nuc" if dual else 2))
    p = np.inf if norm == "max" else float(norm)
    if dual:
        p = np.inf if p == 1 else 1.0 if np.isinf(p) else p / (p - 1)
    top = float(np.abs(M).max())
    return top * float(np.linalg.norm(M.ravel() / top, p)) if top > 0 else 0.0


def interval(full: oracle.Dense, W: np.ndarray, dual: np.ndarray, norm: Name) -> tuple[float, float]:
    """Proven bounds on the optimal norm from any W and any multipliers; see oracle.bounds."""
    if full.tied.any():
        ties = full.rows[full.tied]
        W = W - (np.linalg.pinv(ties, rcond=1e-13) @ (ties @ W.ravel())).reshape(W.shape)
    smallest = float((full.rows[~full.tied] @ W.ravel()).min())
    upper = length(W, norm) / smallest if smallest > 0 else np.inf
    dual = np.where(full.tied, dual, np.maximum(dual, 0.0))
    adjoint = length((full.left * dual[:, None]).T @ full.right, norm, dual=True)
    return (float(dual[~full.tied].sum()) / adjoint if adjoint > 0 else 0.0), upper


def clarabel(full: oracle.Dense, norm: Name) -> tuple[float, float]:
    """Model the problem naively in the original coordinates, rows scaled to length one."""
    keep = full.lengths > 0
    tied, lengths = full.tied[keep], full.lengths[keep]
    rows = full.rows[keep] / lengths[:, None]
    need = np.where(tied, 0.0, 1.0 / lengths)
    scale = float(need.max())
    W = cp.Variable((full.left.shape[1], full.right.shape[1]))
    flat = cp.vec(W, order="C")
    constraints: list[cp.Constraint] = [rows[~tied] @ flat >= need[~tied] / scale]
    if tied.any():
        constraints.append(rows[tied] @ flat == 0)
    measures = {"spectral": cp.sigma_max, "max": lambda W: cp.norm(cp.vec(W, order="C"), "inf")}
    measure = measures.get(norm) if isinstance(norm, str) else lambda W: cp.pnorm(cp.vec(W, order="C"), norm)
    assert measure is not None
    program = cp.Problem(cp.Minimize(measure(W)), constraints)
    with warnings.catch_warnings():
        # Accuracy it does not reach widens the interval, and no more.
        warnings.filterwarnings("ignore", message="Solution may be inaccurate")
        warnings.filterwarnings("ignore", message="Power atom")
        warnings.filterwarnings("ignore", message="pnorm")
        program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    dual, part = np.zeros(len(full.rows)), np.zeros(len(rows))
    part[~tied] = constraints[0].dual_value
    if tied.any():
        part[tied] = -np.asarray(constraints[1].dual_value)
    dual[keep] = part / lengths
    return interval(full, np.asarray(W.value) * scale, dual, norm)


def check_optimal(problem: SelectionProblem, norm: Name, solution: Solution) -> None:
    """Recompute feasibility, conventions and the gap from W and the multipliers by dense algebra."""
    assert solution.status is Status.OPTIMAL, solution
    full = oracle.dense(problem)
    W, dual = np.asarray(solution.W), np.asarray(solution.dual)[full.where]
    inequality = ~full.tied
    if not inequality.any():
        assert solution.objective == 0
        return
    margins = full.rows @ W.ravel()
    noise = (W.size + 4) * oracle.EPS * float((full.lengths * np.linalg.norm(W)).max())
    assert abs(margins[inequality].min() - 1) <= noise
    assert np.abs(margins[full.tied]).max(initial=0.0) <= TOL + noise
    assert (dual[inequality] >= 0).all()
    value = length(W, norm)
    adjoint = length(np.einsum("m,md,me->de", dual, full.left, full.right), norm, dual=True)
    bound = float(dual[inequality].sum()) / adjoint
    assert solution.objective == pytest.approx(value, rel=ROUNDING)
    assert value / bound - 1 <= TOL + ROUNDING
    assert solution.gap == pytest.approx(value / bound - 1, abs=ROUNDING + noise)
    # The convention of every norm but Frobenius: a unit pull, so that the multipliers sum to the bound.
    assert adjoint == pytest.approx(1.0, rel=ROUNDING)


def check(problem: SelectionProblem, norm: Name, is_feasible: bool | None, *, compare: bool) -> None:
    """Solve and compare with what is known of feasibility and, if asked, with Clarabel's interval."""
    solution = solve(problem, norm, tol=TOL)
    if solution.status is Status.INFEASIBLE:
        assert is_feasible is not True
        assert solution.certificate is not None
        assert solution.certificate.verify()
        full = oracle.dense(problem)
        assert oracle.farkas_ratio(full, np.asarray(solution.certificate.dual)[full.where]) < 1
        return
    assert is_feasible is not False
    check_optimal(problem, norm, solution)
    if compare and solution.objective > 0:
        lower, upper = clarabel(oracle.dense(problem), norm)
        assert solution.objective <= upper * (1 + TOL + ROUNDING)
        assert solution.objective >= lower * (1 - TOL - ROUNDING)


def failures(name: str, norms: tuple[Name, ...], seeds: Iterable[int], *, compare: bool) -> list[str]:
    out = []
    for size in FAMILIES[name].sizes:
        for seed in seeds:
            problem = FAMILIES[name].draw(*size, seed=seed)
            is_feasible = oracle.reference(problem, "frobenius").feasible  # no norm changes feasibility
            for norm in norms:
                try:
                    check(problem, norm, is_feasible, compare=compare)
                except AssertionError as error:
                    out.append(f"{norm} {name}{size} seed {seed}: {str(error).splitlines()[:1]}")
    return out


@pytest.mark.parametrize("name", FAMILIES)
def test_family_agrees_with_clarabel(name: str) -> None:
    errors = failures(name, NORMS, [0], compare=True)  # and certified
    assert not errors, "\n".join(errors)


@pytest.mark.parametrize("name", FAMILIES)
def test_family_is_certified(name: str) -> None:
    errors = failures(name, NORMS, [1, 2], compare=False) + failures(name, EXTREME, [0], compare=False)
    assert not errors, "\n".join(errors)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", NAMED)
def test_named_problem(name: str, norm: Name) -> None:
    instance = NAMED[name]()
    solution = solve(instance.problem, norm, tol=TOL)
    if instance.feasible:
        check_optimal(instance.problem, norm, solution)
    else:
        assert solution.status is Status.INFEASIBLE
        assert solution.certificate is not None
        assert solution.certificate.verify()


@pytest.mark.parametrize("norm", [*NORMS, *EXTREME])
def test_one_constraint_is_the_dual_norm(norm: Name) -> None:
    """Minimising a norm under <W, delta z^T> = 1 is the definition of its dual: the answer is 1/||delta z^T||_*."""
    solution = solve(NAMED["one_constraint"]().problem, norm)
    outer = np.outer([3.0, 4.0], [0.0, 2.0, 0.0])
    assert solution.objective == pytest.approx(1 / length(outer, norm, dual=True), rel=TOL)


@pytest.mark.parametrize("p", [1.0, *EXTREME, 1.5, 3.0, 50.0, "max"])
def test_simplex_in_closed_form(p: Name) -> None:
    """One of five orthonormal tokens: a on the selected, -b on the others, a + b = 1, a^p + 4 b^p smallest."""
    if p == "max":
        expected = 0.5
    elif p == 1.0:
        expected = 1.0  # b = 0
    else:
        ratio = 4.0 ** (1 / (float(p) - 1))  # a/b, from a^(p-1) = 4 b^(p-1)
        b = 1 / (1 + ratio)
        expected = b * (ratio ** float(p) + 4) ** (1 / float(p))
    assert solve(NAMED["simplex"]().problem, p).objective == pytest.approx(expected, rel=2 * TOL)


@pytest.mark.parametrize(("norm", "expected"), [("spectral", 1.0), ("max", 0.5), (1, 6.0)])
def test_permutation(norm: Name, expected: float) -> None:
    """W = I - J/6 is a projection: spectral norm one, and equal multipliers pull along it with nuclear norm five.

    The columns decouple for entrywise norms: 1/2 each for the largest entry, e_i each for l_1.
    """
    assert solve(NAMED["permutation"]().problem, norm).objective == pytest.approx(expected, rel=2 * TOL)


def test_powers_form_a_chain() -> None:
    """||W||_p falls with p, hence the optimum does; between neighbours it falls by no more than N^(1/p - 1/q)."""
    problem = FAMILIES["planted"].make(np.random.default_rng(3), 6, 8, 10)
    powers = [1, 1.01, 1.1, 1.75, 2, 4, 10, 40]
    values = [solve(problem, p).raise_for_status().objective for p in powers]
    values.append(solve(problem, "max").raise_for_status().objective)
    reciprocals = [1 / p for p in powers] + [0.0]
    size = problem.shape[2] * problem.shape[3]
    for k in range(len(values) - 1):
        assert values[k + 1] <= values[k] * (1 + TOL)
        assert values[k] <= values[k + 1] * size ** (reciprocals[k] - reciprocals[k + 1]) * (1 + TOL)


def test_two_is_frobenius_and_infinity_is_max() -> None:
    assert get_norm(2) is FROBENIUS
    assert get_norm("2.0") is FROBENIUS
    assert get_norm(np.inf) == get_norm("max")
    assert get_norm(1.5) == get_norm("1.5")


@pytest.mark.parametrize("norm", ["euclid", "sum:1:2", "frobenius:1", "ky-fan", 0.5, float("nan"), True, None, -3])
def test_unknown_norm_is_refused_in_one_sentence(norm: Name) -> None:
    with pytest.raises(ValueError, match=r"^norm is .*; one of 'frobenius', .* or a number p >= 1 was expected\.$"):
        solve(NAMED["simplex"]().problem, norm)


@pytest.mark.parametrize("norm", NORMS)
def test_limits_and_callback(norm: Name) -> None:
    problem = FAMILIES["planted"].make(np.random.default_rng(3), 6, 8, 10)
    limit_run = solve(problem, norm, max_iter=5)
    assert limit_run.status is Status.MAX_ITERATIONS
    assert np.isfinite(limit_run.gap)
    calls = []
    cancelled = solve(problem, norm, callback=lambda state: calls.append(state.gap) or len(calls) == 3)
    assert cancelled.status is Status.CANCELLED
    assert len(calls) == 3


def test_warm_start_of_a_power() -> None:
    problem = FAMILIES["planted"].make(np.random.default_rng(3), 6, 8, 10)
    first = solve(problem, 1.5, tol=1e-12)
    second = solve(problem, 1.5, tol=1e-9, warm_start=first)
    assert second.status is Status.OPTIMAL
    assert second.iterations <= 2


@pytest.mark.parametrize("p", [1.2, 1.5, 3, 6])
def test_margins_stay_within_their_tolerance_of_the_solution(p: float) -> None:
    """The tolerance follows from the gap: a loose solution must not differ from a sharp one by more than both allow."""
    for name in ("planted", "several", "dominated"):
        problem = FAMILIES[name].make(np.random.default_rng(5), 5, 6, 6)
        sharp, loose = (solve(problem, p, tol=tol) for tol in (1e-12, 1e-3))
        sensitive = problem.mask & (sharp.margin_tolerance > 0)
        shift = np.abs(np.asarray(sharp.margins)[sensitive] - np.asarray(loose.margins)[sensitive])
        assert (shift <= sharp.margin_tolerance[sensitive] + loose.margin_tolerance[sensitive]).all()
        assert shift.max() > 1e-9  # the loose one is loose
        active = np.asarray(sharp.dual) > 1e-6 * np.asarray(sharp.dual).max()
        assert np.asarray(loose.support)[active & problem.rejected].all()


@pytest.mark.parametrize("p", [8.0, 20.0])
@pytest.mark.parametrize("family", ["planted", "several", "near_duplicates"])
def test_large_powers_do_not_stall_where_entries_change_sign(family: str, p: float) -> None:
    """Few constraints on many entries: entries of W that cross zero have no curvature, steps no limit there."""
    size = (10, 5, 30)
    for seed in range(2):
        problem = FAMILIES[family].draw(*size, seed=seed)
        solution = solve(problem, p, max_iter=150)
        assert solution.status is Status.OPTIMAL
