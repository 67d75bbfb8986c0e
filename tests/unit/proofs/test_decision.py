"""Feasibility decided over the rationals: against linear programs, and the multipliers against their definition."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog

import oracle
from attsvm import SelectionProblem
from attsvm.proofs import decision, linear
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.decision import contradiction, decidable
from problems import NAMED, integers, single


def largest_margin(problem: SelectionProblem) -> float:
    """The largest margin of a W with entries up to one, by HiGHS; integers as data leave no doubt about zero."""
    full = oracle.dense(problem)
    size = full.rows.shape[1]
    wins = ~full.tied
    upper = np.hstack([-full.rows[wins], np.ones((int(wins.sum()), 1))])
    equal = np.hstack([full.rows[full.tied], np.zeros((int(full.tied.sum()), 1))])
    program = linprog(
        np.r_[np.zeros(size), -1.0], A_ub=upper, b_ub=np.zeros(len(upper)),
        A_eq=equal if len(equal) else None, b_eq=np.zeros(len(equal)) if len(equal) else None,
        bounds=[(-1.0, 1.0)] * size + [(None, 1.0)],
    )  # fmt: skip
    return -float(program.fun)


def random_problem(seed: int) -> SelectionProblem:
    """Integers in the plane, one to three selected tokens a query: of both kinds, degenerate more often than not."""
    rng = np.random.default_rng([seed, 31])
    n, T, d = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(1, 4))
    if seed % 3 == 0:
        return integers(rng, n, T, d)
    selected = rng.random((n, T)).argsort(axis=1) < rng.integers(1, min(3, T) + 1, (n, 1))
    return SelectionProblem(rng.integers(-2, 3, (n, T, d)), rng.integers(-2, 3, (n, 1 + seed % 2)), selected)


def test_a_problem_has_a_w_or_multipliers_that_cancel_exactly() -> None:
    kinds = {True: 0, False: 0}
    for seed in range(120):
        problem = random_problem(seed)
        if not problem.rejected.any():
            continue
        dual = contradiction(problem)
        feasible = largest_margin(problem) > 1e-7
        kinds[feasible] += 1
        assert (dual is None) == feasible, seed
        if dual is None:
            continue
        assert (dual[problem.rejected] >= 0).all()
        assert not dual[~problem.constrained].any()
        assert dual[problem.rejected].sum() == pytest.approx(1.0, rel=1e-15)
        # Multipliers are rationals of small integers, rounded once.
        assert np.abs(problem.adjoint(dual)).max() <= 1e-14 * np.abs(dual).max()
        assert FarkasCertificate(problem, dual).exact
    assert min(kinds.values()) > 20


@pytest.mark.parametrize("name", [name for name, make in NAMED.items() if make().problem.has_rejected])
def test_named_problems_are_decided_as_they_are_known(name: str) -> None:
    instance = NAMED[name]()
    if decidable(instance.problem):
        assert (contradiction(instance.problem) is None) == instance.feasible


def test_multipliers_of_the_triangle() -> None:
    """The selected token is the mean of three with weights 1, 1, 2 of 4."""
    dual = contradiction(NAMED["inside_the_triangle"]().problem)
    assert dual is not None
    np.testing.assert_allclose(dual, [[0.0, 0.25, 0.25, 0.5]], rtol=1e-15)


def test_a_tie_enters_with_either_sign() -> None:
    """Differences 1 (rejected) and +-2 (tied) on a line cancel with the weight -+1/2 of the tie."""
    for tied in (2.0, -2.0):
        problem = SelectionProblem([[[0.0], [-1.0], [-tied]]], [[1.0]], np.array([[True, False, True]]))
        dual = contradiction(problem)
        assert dual is not None
        np.testing.assert_array_equal(dual, [[0.0, 1.0, -1.0 / tied]])


def test_what_is_small_enough_to_be_decided() -> None:
    """d dz times the constraints are at most 400, and these times the bits between two entries 102,400."""
    rng = np.random.default_rng(0)
    for count, fine in ((20, True), (21, False)):
        problem = SelectionProblem(rng.standard_normal((1, count + 1, 4)), rng.standard_normal((1, 5)), [0])
        assert problem.constrained.sum() * 20 == count * 20
        assert decidable(problem) == fine
    for entries, tokens, queries, fine in ((400, 256, 0, True), (400, 257, 0, False), (400, 0, 256, True),
                                           (400, 128, 129, False), (100, 1024, 0, True), (100, 1024, 1, False),
                                           (4, 1023, 1023, True)):  # fmt: skip
        rejected = np.zeros((entries // 4, 2))
        rejected[0, 1] = 1.0
        problem = SelectionProblem([[[1.0, 2.0**-tokens], *rejected]], [[1.0, 2.0**queries]], [0])
        assert decidable(problem) == fine, (entries, tokens, queries)
    assert decidable(SelectionProblem(np.zeros((1, 2, 1)), np.zeros((1, 1)), [0]))
    assert decision._spread(np.array([-8.0, 3.0, 0.0])) == 2


def test_data_of_any_scale_are_decided_alike() -> None:
    for scale in (2.0**-900, 3e-200, 1.0, 1e200):
        feasible = single(scale * np.array([[1.0, 2.0**-50], [-1.0, 2.0**-50]]))
        infeasible = single(scale * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]))
        assert contradiction(feasible) is None
        assert contradiction(infeasible) is not None


# --- systems over the integers ---


def exact(matrix: np.ndarray) -> list[list[Fraction]]:
    return [[Fraction(int(a)) for a in row] for row in matrix]


def rank_of(matrix: np.ndarray) -> int:
    rows, rank = exact(matrix), 0
    for column in range(matrix.shape[1]):
        pivot = next((r for r in range(rank, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for r in range(rank + 1, len(rows)):
            factor = rows[r][column] / rows[rank][column]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[rank], strict=True)]
        rank += 1
    return rank


@pytest.mark.parametrize("seed", range(12))
def test_a_kernel_that_is_a_line_is_found_exactly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 7))
    rank = m - 1 if seed % 3 else int(rng.integers(0, m + 1))
    matrix = (rng.integers(-5, 6, (m + 2, rank)) @ rng.integers(-5, 6, (rank, m))).astype(object)
    matrix = matrix * 2 ** int(rng.integers(0, 80))
    result = linear.kernel_vector(matrix)
    assert (result is not None) == (rank_of(matrix) == m - 1)
    if result is not None:
        assert any(result)
        assert not np.dot(matrix, np.array(result, dtype=object)).any()


def test_a_kernel_larger_than_is_solved_for_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = np.array([[1, -1, 0], [0, 1, -1]], dtype=object)
    monkeypatch.setattr(linear, "ELIMINATION_ROWS", 2)
    assert linear.kernel_vector(matrix) is not None
    monkeypatch.setattr(linear, "ELIMINATION_ROWS", 1)
    assert linear.kernel_vector(matrix) is None


def test_a_kernel_modulo_the_prime_is_checked_exactly() -> None:
    """The second row vanishes modulo the prime, and only there."""
    assert linear.kernel_vector(np.array([[1, -1], [0, linear.PRIME]], dtype=object)) is None
    assert linear.kernel_vector(np.array([[1, -1], [0, 0]], dtype=object)) is not None


def test_zero_pivots_are_passed_over() -> None:
    """Elimination starts with a zero in the corner; the solution is that of Cramer's rule."""
    matrix = np.array([[0, 2, 1], [3, 0, -1], [1, 1, 0]], dtype=object)
    result = linear.solve(matrix, np.array([5, 7, 11], dtype=object))
    assert result is not None
    expected = np.linalg.solve(matrix.astype(float), [5.0, 7.0, 11.0])
    np.testing.assert_allclose([a / result[1] for a in result[0]], expected, rtol=1e-12)
    # A multiple of the prime is zero modulo it, and no pivot.
    rows, columns = linear.independent(np.array([[linear.PRIME, 0], [0, 1]], dtype=object))
    assert (rows.tolist(), columns.tolist()) == ([1], [1])
