"""The smallest matrix with prescribed score differences: by hand, by conic programs, and where its path stops early."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import oracle
from attsvm import SelectionProblem
from attsvm.theory.finite_part import finite_part


def random_problem(seed: int, n: int = 3, T: int = 4, d: int = 4, dz: int = 3) -> tuple[SelectionProblem, np.ndarray]:
    """Ties in general position, and differences that some matrix has."""
    rng = np.random.default_rng([seed, 41])
    selected = rng.random((n, T)).argsort(axis=1) < rng.integers(2, 4, (n, 1))
    problem = SelectionProblem(rng.standard_normal((n, T, d)), rng.standard_normal((n, dz)), selected)
    return problem, problem.apply(rng.standard_normal((d, dz)))


def smallest(problem: SelectionProblem, target: np.ndarray) -> float:
    full = oracle.dense(problem)
    X = cp.Variable(problem.shape[2:])
    equations = full.rows[full.tied] @ cp.vec(X, order="C") == target[full.where][full.tied]
    program = cp.Problem(cp.Minimize(cp.normNuc(X)), [equations])
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    return float(program.value)


@pytest.mark.parametrize("seed", range(4))
def test_both_norms_against_dense_answers(seed: int) -> None:
    problem, target = random_problem(seed)
    full = oracle.dense(problem)
    rows = full.rows[full.tied]
    frobenius = finite_part(problem, target)
    expected = np.linalg.pinv(rows) @ target[full.where][full.tied]
    np.testing.assert_allclose(frobenius.W.ravel(), expected, rtol=0, atol=1e-12 * np.linalg.norm(expected))
    assert frobenius.gap == 0.0
    nuclear = finite_part(problem, target, "nuclear")
    assert nuclear.gap <= 1e-12
    for part in (frobenius, nuclear):
        np.testing.assert_allclose(rows @ part.W.ravel(), target[full.where][full.tied], atol=1e-11)
        assert part.residual <= 1e-11
    assert np.linalg.norm(nuclear.W, "nuc") == pytest.approx(smallest(problem, target), rel=1e-6)
    assert np.linalg.norm(nuclear.W, "nuc") < np.linalg.norm(frobenius.W, "nuc") * (1 - 1e-4)


def test_faces_of_every_rank_are_met() -> None:
    ranks = set()
    for seed in range(10):
        problem, target = random_problem(seed, n=2 + seed % 3, d=3 + seed % 3, dz=2 + seed % 4)
        part = finite_part(problem, target, "nuclear")
        assert abs(part.gap) <= 1e-11
        sigma = np.linalg.svd(part.W, compute_uv=False)
        ranks.add(int((sigma > 1e-7 * sigma[0]).sum()))
    assert {1, 2} <= ranks


def test_the_nuclear_norm_merges_directions() -> None:
    """Unit differences 60 degrees apart, orthogonal queries, both scores one: the bisector, of norm 2 / sqrt(1.5)."""
    second = np.array([0.5, np.sqrt(0.75)])
    tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [second, [0.0, 0.0]]])
    problem = SelectionProblem(tokens, np.eye(2), np.ones((2, 2), dtype=bool))
    target = np.array([[0.0, 1.0], [0.0, 1.0]])
    part = finite_part(problem, target, "nuclear")
    assert np.linalg.norm(part.W, "nuc") == pytest.approx(2 / np.sqrt(1.5), rel=1e-11)
    assert np.linalg.norm(finite_part(problem, target).W) == pytest.approx(np.sqrt(2.0), rel=1e-13)


def test_one_equation_has_one_answer_in_both_norms() -> None:
    """delta = (3, 4), z = (0, 2): W = r delta z^T / 100."""
    problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0], [9.0, 9.0]]], [[0.0, 2.0]], [[True, True, False]])
    for norm in ("frobenius", "nuclear"):
        part = finite_part(problem, np.array([[0.0, -7.0, 0.0]]), norm)
        np.testing.assert_allclose(part.W, -7 * np.outer([3.0, 4.0], [0.0, 2.0]) / 100, atol=1e-14)
        assert abs(part.gap) < 1e-12
        nothing = finite_part(problem, np.zeros((1, 3)), norm)
        assert not nothing.W.any()
        assert nothing.gap == nothing.residual == 0.0
    free = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[0.0, 2.0]], [0])
    nothing = finite_part(free, np.zeros((1, 2)), "nuclear")
    np.testing.assert_array_equal(nothing.W, np.zeros((2, 2)))
    assert nothing.gap == nothing.residual == 0.0


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_repeated_and_contradictory_equations(norm: str) -> None:
    """w = 1 and 2 w = 1 by least squares: w = 3/5, which misses them by 2/5 and 1/5."""
    problem = SelectionProblem([[[1.0, 0.0], [0.0, 0.0]]], [[1.0], [2.0]], np.ones((2, 2), dtype=bool), sequence=[0, 0])
    part = finite_part(problem, np.array([[0.0, 1.0], [0.0, 1.0]]), norm)
    np.testing.assert_allclose(part.W, [[0.6], [0.0]], atol=1e-12)
    assert part.residual == pytest.approx(0.4, rel=1e-9)
    with pytest.raises(ValueError, match=r"^norm is"):
        finite_part(problem, np.zeros((2, 2)), "max")
