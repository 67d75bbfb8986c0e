"""How far a matrix is from the set of solutions, where there are several: by hand and by a conic program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attsvm import SelectionProblem, Solution, Status, solve
from attsvm.core.norms import Mahalanobis, get_norm
from attsvm.core.norms.entrywise import _onto_simplex
from attsvm.proofs.certified import certify
from attsvm.proofs.program import Program
from attsvm.solution.solution_set import distance_to_solutions
from problems import FAMILIES, NAMED, single

SEVERAL = ("nuclear", "spectral", "max", 1)


def by_program(W: np.ndarray, solution: Solution, slack: float) -> float:
    """The nearest matrix of norm one with margins 1/norm, by Clarabel."""
    import cvxpy as cp

    import oracle

    full = oracle.dense(solution.problem)
    X = cp.Variable(W.shape)
    norms = {"nuclear": lambda Y: cp.normNuc(Y), "spectral": lambda Y: cp.sigma_max(Y),
             "max": lambda Y: cp.max(cp.abs(Y)), "l_1": lambda Y: cp.sum(cp.abs(Y))}  # fmt: skip
    margins = full.rows @ cp.vec(X, order="C")
    unit = W / solution.norm.value(W)
    constraints = [norms[solution.norm.name](X) <= 1, margins[~full.tied] >= (1 - slack) / solution.objective]
    if full.tied.any():
        constraints.append(margins[full.tied] == 0)
    program = cp.Problem(cp.Minimize(cp.sum_squares(X - unit)), constraints)
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    assert X.value is not None
    return float(np.linalg.norm(X.value - unit))


@pytest.mark.parametrize("norm", SEVERAL)
def test_distances_against_a_conic_program(norm: str | float) -> None:
    rng = np.random.default_rng(0)
    for name in ("planted", "several"):
        problem = FAMILIES[name].make(np.random.default_rng(1), 2, 3, 3)
        solution = solve(problem, norm)
        if not np.isfinite(solution.objective):
            continue
        for size in (0.0, 0.1, 1.0):
            W = 3.0 * (solution.certified.W + size * solution.objective * rng.standard_normal(problem.shape[2:]))
            # With a slack the set has an interior. Squares to 1e-9 are distances to the root of that.
            assert distance_to_solutions(W, solution, 0.01) == pytest.approx(by_program(W, solution, 0.01), abs=5e-5)


def test_the_largest_entry_leaves_a_set_by_hand() -> None:
    """w_1 >= 1 is all that is asked: every w with |w_2| <= 1 is a solution of max-norm one."""
    problem = single([[1.0, 0.0]])
    solution = solve(problem, "max")
    assert solution.objective == pytest.approx(1.0, rel=1e-8)
    for w_2 in (-1.0, 0.0, 0.7):
        assert distance_to_solutions(np.array([[1.0], [w_2]]), solution) < 1e-7
    # (1/2, 1): both in the box; w_1 is half a unit short of one. (-1, 1): two units.
    assert distance_to_solutions(np.array([[0.5], [1.0]]), solution) == pytest.approx(0.5, abs=1e-6)
    assert distance_to_solutions(np.array([[-3.0], [3.0]]), solution) == pytest.approx(2.0, abs=1e-6)


def test_a_tie_holds_in_the_set() -> None:
    """Selected (0, 0) and (1, 1): w_1 = -w_2; with w_1 >= 1 the set is (1, -1) alone."""
    solution = solve(NAMED["tie_forces_a_detour"]().problem, "max")
    assert distance_to_solutions(np.array([[1.0], [-1.0]]), solution) < 1e-6
    assert distance_to_solutions(np.array([[1.0], [1.0]]), solution) == pytest.approx(2.0, abs=1e-5)


def test_slack_widens_the_set() -> None:
    """Margins may fall short by the slack: (1 - s, 0) is a solution to within s, and (1/2, 1) nearer by s."""
    solution = solve(single([[1.0, 0.0]]), "max")
    W = np.array([[0.5], [1.0]])
    for slack in (0.1, 0.3):
        assert distance_to_solutions(W, solution, slack) == pytest.approx(0.5 - slack, abs=1e-6)
    rough = replace(solution, certified=replace(solution.certified, lower_bound=0.95 * solution.lower_bound))
    assert rough.gap == pytest.approx(1 / 0.95 - 1, rel=1e-6)
    assert distance_to_solutions(W, rough) == pytest.approx(0.5 - 2 * rough.gap, abs=1e-6)


@pytest.mark.parametrize("miss", [3e-12, 1e-9])
def test_a_matrix_next_to_the_set_is_at_a_distance(miss: float) -> None:
    """(1 - t, 1) is t short of w_1 = 1, less the slack of twice the gap."""
    problem, norm = single([[1.0, 0.0]]), get_norm("max")
    pair = certify(Program(problem, norm), np.array([[1.0], [0.0]]), np.array([[0.0, 1.0]]), sharp=True)
    solution = Solution(problem, norm, Status.OPTIMAL, pair, 3, 0.5, "by hand")
    assert solution.gap < 1e-14
    assert distance_to_solutions(np.array([[1.0 - miss], [1.0]]), solution, 0.0) == pytest.approx(miss, abs=3e-14)


@pytest.mark.parametrize("norm", ["frobenius", 1.5, 3])
def test_a_unique_solution_is_compared_directly(norm: str | float) -> None:
    problem = FAMILIES["planted"].make(np.random.default_rng(2), 3, 3, 3)
    solution = solve(problem, norm)
    W = np.random.default_rng(3).standard_normal((3, 3))
    expected = np.linalg.norm(W / get_norm(norm).value(W) - solution.W / solution.objective)
    assert distance_to_solutions(W, solution) == pytest.approx(float(expected), rel=1e-12)
    assert distance_to_solutions(5 * solution.W, solution) < 1e-15


def test_what_has_no_distance() -> None:
    solution = solve(NAMED["counterexample"]().problem, "nuclear")
    for W in (np.zeros((2, 2)), np.ones((3, 2)), np.array([[1.0, np.nan], [0.0, 1.0]])):
        with pytest.raises(ValueError, match=r"^W has shape .*\.$"):
            distance_to_solutions(W, solution)
    for name in ("midpoint", "one_token"):
        unsolved = solve(NAMED[name]().problem, "nuclear")
        with pytest.raises(ValueError, match=r"^solution has status .*\.$"):
            distance_to_solutions(np.ones(unsolved.certified.W.shape), unsolved)
    other = Mahalanobis(np.eye(2), None, "nuclear")
    skew = replace(solution, norm=other)
    assert skew.status is Status.OPTIMAL
    with pytest.raises(ValueError, match=r"^solution has norm .*\.$"):
        distance_to_solutions(np.ones((2, 2)), skew)


# --- projections ---


def test_projections_are_nearest_points() -> None:
    """X is nearest in a convex set iff <M - X, Y - X> <= 0 for all Y in it; the corners and random points try."""
    rng = np.random.default_rng(4)
    for name in ("nuclear", "spectral", "max", "l_1"):
        measure = get_norm(1 if name == "l_1" else name)
        for scale in (0.1, 1.0, 10.0):
            M = scale * rng.standard_normal((4, 3))
            X = measure.nearest(M)
            size = measure.value(X)
            assert size <= 1 + 1e-12
            if measure.value(M) <= 1:
                np.testing.assert_allclose(X, M, atol=1e-14)
            else:
                assert size == pytest.approx(1.0, rel=1e-12)
            for _ in range(40):
                Y = rng.standard_normal((4, 3)) * (rng.random((4, 3)) < 0.3)
                Y = Y / max(measure.value(Y), 1e-12)
                assert ((M - X) * (Y - X)).sum() <= 1e-10 * scale
            if measure.value(M) <= 1:
                continue
            U, _, Vt = np.linalg.svd(M - X, full_matrices=False)
            extreme = {"nuclear": np.outer(U[:, 0], Vt[0]), "spectral": U @ Vt, "max": np.sign(M - X),
                       "l_1": np.where(np.abs(M - X) == np.abs(M - X).max(), np.sign(M - X), 0.0)}[name]  # fmt: skip
            assert ((M - X) * (extreme / measure.value(extreme) - X)).sum() <= 1e-10 * scale


def test_the_simplex_by_hand() -> None:
    np.testing.assert_allclose(_onto_simplex(np.array([0.2, 0.3])), [0.2, 0.3])
    np.testing.assert_allclose(_onto_simplex(np.array([0.5, 0.5])), [0.5, 0.5])
    np.testing.assert_allclose(_onto_simplex(np.array([2.0, 0.5, 1.8])), [0.6, 0.0, 0.4])
    np.testing.assert_allclose(_onto_simplex(np.array([3.0, 0.1])), [1.0, 0.0])


def test_the_problem_of_a_solution_is_left_alone() -> None:
    source = FAMILIES["planted"].make(np.random.default_rng(5), 3, 3, 3)
    solution = solve(SelectionProblem(source.tokens, source.queries, source.reference), "nuclear")
    W = solution.certified.W + 1.0
    before = W.copy()
    distance_to_solutions(W, solution)
    np.testing.assert_array_equal(W, before)
