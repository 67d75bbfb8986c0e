"""The smallest matrix with prescribed score differences: by hand, by conic programs, and where its path stops early."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import oracle
from attsvm import SelectionProblem
from attsvm.core.reduction import reduce
from attsvm.theory import finite_part as module
from attsvm.theory.finite_part import finite_part


def drawn(seed: int, n: int = 3, T: int = 4, d: int = 4, dz: int = 3) -> tuple[SelectionProblem, np.ndarray]:
    """Ties in general position, and differences that some matrix has."""
    rng = np.random.default_rng([seed, 41])
    selected = rng.random((n, T)).argsort(axis=1) < rng.integers(2, 4, (n, 1))
    problem = SelectionProblem(rng.standard_normal((n, T, d)), rng.standard_normal((n, dz)), selected)
    return problem, problem.apply(rng.standard_normal((d, dz)))


def smallest(problem: SelectionProblem, wanted: np.ndarray) -> float:
    full = oracle.dense(problem)
    X = cp.Variable(problem.shape[2:])
    equations = full.rows[full.tied] @ cp.vec(X, order="C") == wanted[full.where][full.tied]
    program = cp.Problem(cp.Minimize(cp.normNuc(X)), [equations])
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    return float(program.value)


@pytest.mark.parametrize("seed", range(4))
def test_both_norms_against_dense_answers(seed: int) -> None:
    problem, wanted = drawn(seed)
    full = oracle.dense(problem)
    rows = full.rows[full.tied]
    frobenius = finite_part(problem, wanted)
    expected = np.linalg.pinv(rows) @ wanted[full.where][full.tied]
    np.testing.assert_allclose(frobenius.W.ravel(), expected, rtol=0, atol=1e-12 * np.linalg.norm(expected))
    assert frobenius.gap == 0.0
    nuclear = finite_part(problem, wanted, "nuclear")
    assert nuclear.gap <= 1e-12
    for part in (frobenius, nuclear):
        np.testing.assert_allclose(rows @ part.W.ravel(), wanted[full.where][full.tied], atol=1e-11)
        assert part.residual <= 1e-11
    assert np.linalg.norm(nuclear.W, "nuc") == pytest.approx(smallest(problem, wanted), rel=1e-6)
    assert np.linalg.norm(nuclear.W, "nuc") < np.linalg.norm(frobenius.W, "nuc") * (1 - 1e-4)


def test_faces_of_every_rank_are_met() -> None:
    ranks = set()
    for seed in range(10):
        problem, wanted = drawn(seed, n=2 + seed % 3, d=3 + seed % 3, dz=2 + seed % 4)
        found = finite_part(problem, wanted, "nuclear")
        assert abs(found.gap) <= 1e-11
        sigma = np.linalg.svd(found.W, compute_uv=False)
        ranks.add(int((sigma > 1e-7 * sigma[0]).sum()))
    assert {1, 2} <= ranks


def test_the_nuclear_norm_merges_directions() -> None:
    """Unit differences 60 degrees apart, orthogonal queries, both scores one: the bisector, of norm 2 / sqrt(1.5)."""
    second = np.array([0.5, np.sqrt(0.75)])
    tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [second, [0.0, 0.0]]])
    problem = SelectionProblem(tokens, np.eye(2), np.ones((2, 2), dtype=bool))
    wanted = np.array([[0.0, 1.0], [0.0, 1.0]])
    found = finite_part(problem, wanted, "nuclear")
    assert np.linalg.norm(found.W, "nuc") == pytest.approx(2 / np.sqrt(1.5), rel=1e-11)
    assert np.linalg.norm(finite_part(problem, wanted).W) == pytest.approx(np.sqrt(2.0), rel=1e-13)


def test_one_equation_has_one_answer_in_both_norms() -> None:
    """delta = (3, 4), z = (0, 2): W = r delta z^T / 100."""
    problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0], [9.0, 9.0]]], [[0.0, 2.0]], [[True, True, False]])
    for norm in ("frobenius", "nuclear"):
        found = finite_part(problem, np.array([[0.0, -7.0, 0.0]]), norm)
        np.testing.assert_allclose(found.W, -7 * np.outer([3.0, 4.0], [0.0, 2.0]) / 100, atol=1e-14)
        assert abs(found.gap) < 1e-12
        nothing = finite_part(problem, np.zeros((1, 3)), norm)
        assert not nothing.W.any()
        assert nothing.gap == nothing.residual == 0.0
    free = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[0.0, 2.0]], [0])
    assert finite_part(free, np.zeros((1, 2)), "nuclear").W.shape == (2, 2)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_repeated_and_contradictory_equations(norm: str) -> None:
    """w = 1 and 2 w = 1 by least squares: w = 3/5, which misses them by 2/5 and 1/5."""
    problem = SelectionProblem([[[1.0, 0.0], [0.0, 0.0]]], [[1.0], [2.0]], np.ones((2, 2), dtype=bool), sequence=[0, 0])
    found = finite_part(problem, np.array([[0.0, 1.0], [0.0, 1.0]]), norm)
    np.testing.assert_allclose(found.W, [[0.6], [0.0]], atol=1e-12)
    assert found.residual == pytest.approx(0.4, rel=1e-9)
    with pytest.raises(ValueError, match=r"^norm is"):
        finite_part(problem, np.zeros((2, 2)), "max")


@pytest.mark.parametrize("last", [1.0, 100.0, 1e4])
def test_the_gap_is_a_bound_wherever_the_path_stops(last: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the central path the norm exceeds the dual value by 2 min(p, r) / t at most, and the gap says by how much."""
    monkeypatch.setattr(module, "POLISH", 0)
    for seed in range(3):
        problem, wanted = drawn(seed)
        with monkeypatch.context() as inner:
            inner.setattr(module, "POLISH", 8)
            best = float(np.linalg.norm(finite_part(problem, wanted, "nuclear").W, "nuc"))
            scale = float(np.linalg.norm(finite_part(problem, wanted).W))
        with monkeypatch.context() as inner:
            inner.setattr(module, "LAST", last)
            found = finite_part(problem, wanted, "nuclear")
        excess = float(np.linalg.norm(found.W, "nuc")) / best - 1
        assert -1e-12 <= excess <= found.gap
        assert found.residual <= 1e-10
        # Scaled to differences of length one, as the path is; the dual value is what the excess is added to.
        size = 2 * min(reduce(problem).shape) / last / (best / scale)
        dual = found.gap / (1 + found.gap) * (1 + excess)
        assert dual <= size * 1.02
        assert found.gap > 1e-3 / last


def test_the_barrier_has_the_derivatives_of_its_value() -> None:
    """-log det(I - M^T M) along given matrices, for M of more rows, of more columns, and square."""
    rng = np.random.default_rng(0)
    for p, r in ((4, 2), (2, 4), (3, 3)):
        rows = rng.standard_normal((3, p, r))
        M = rng.standard_normal((p, r))
        M *= 0.7 / np.linalg.norm(M, 2)

        def value(u: np.ndarray, M: np.ndarray = M, rows: np.ndarray = rows) -> float:
            moved = M + np.tensordot(u, rows, axes=1)
            return -float(np.linalg.slogdet(np.eye(moved.shape[1]) - moved.T @ moved)[1])

        def gradient(u: np.ndarray, M: np.ndarray = M, rows: np.ndarray = rows) -> np.ndarray:
            barrier = module._Barrier(M + np.tensordot(u, rows, axes=1), rows)
            return 2.0 * np.tensordot(rows, barrier.gradient_matrix, axes=2)

        h = 1e-6
        steps = h * np.eye(3)
        slope = np.array([(value(s) - value(-s)) / (2 * h) for s in steps])
        curvature = np.array([(gradient(s) - gradient(-s)) / (2 * h) for s in steps])
        # Central differences of step 1e-6: 1e-12 of third derivatives and 1e-10 of rounding.
        np.testing.assert_allclose(gradient(np.zeros(3)), slope, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(module._Barrier(M, rows).hessian, curvature, rtol=1e-6, atol=1e-6)


def test_newton_on_a_face_converges_quadratically(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a thousandth away every step squares the error, up to a factor, until rounding is reached."""
    for seed in range(20):
        problem, wanted = drawn(seed)
        if np.linalg.matrix_rank(finite_part(problem, wanted, "nuclear").W, tol=1e-7) > 1:
            break
    reduced = reduce(SelectionProblem(problem.tokens, problem.queries, problem.selected, mask=problem.selected))
    where = np.nonzero(reduced.tied)
    system = (reduced.delta[where][:, :, None] * reduced.queries[where[0]][:, None, :]).reshape(len(where[0]), -1)
    right = np.linalg.svd(system, full_matrices=False)[2]
    p, r = reduced.shape
    rows = right.reshape(-1, p, r)
    exact = reduced.lower(finite_part(problem, wanted, "nuclear").W)
    target = right @ exact.ravel()
    U, sigma, Vt = np.linalg.svd(exact)
    rank = int((sigma > 1e-8 * sigma[0]).sum())
    assert rank > 1
    # Multipliers of the face: M is the sign of W on it, least squares give them.
    dual = np.linalg.lstsq(rows.reshape(len(rows), -1).T, (U[:, :rank] @ Vt[:rank]).ravel(), rcond=None)[0]
    rng = np.random.default_rng(0)
    near = exact + 1e-3 * np.linalg.norm(exact) * (U[:, :rank] @ rng.standard_normal((rank, rank)) @ Vt[:rank])
    errors = []
    for steps in (1, 2, 4):
        monkeypatch.setattr(module, "POLISH", steps)
        errors.append(float(np.linalg.norm(module._on_face(near, dual, rows, target)[0] - exact)))
    assert errors[0] < 1e-4 * np.linalg.norm(exact)
    assert errors[2] < 1e-11 * np.linalg.norm(exact)
