"""The reduced coordinates: the same margins, norms and adjoint as the problem, in as few dimensions as it needs."""

from __future__ import annotations

import numpy as np
import pytest

import oracle
from attsvm import SelectionProblem
from attsvm.core import problem as problem_module
from attsvm.core.normal_matrix import NormalMatrix
from attsvm.core.reduction import Reduced, constraint_gram, constraint_rows, reduce
from problems import FAMILIES, NAMED, single

EPS = float(np.finfo(float).eps)
# Margins are sums of at most a few hundred products of numbers of order one in coordinates that were rotated.
CLOSE = 1e-12


def instances() -> list[SelectionProblem]:
    random_problems = [next(family.instances())[1] for family in FAMILIES.values()]
    special = [make().problem for make in NAMED.values()]
    return [problem for problem in random_problems + special if problem.constrained.any()]


def scatter(problem: SelectionProblem, reduced: Reduced, values: np.ndarray) -> np.ndarray:
    """Put values of the rows of `reduced` where rows and columns say, one by one."""
    out = np.zeros(problem.mask.shape)
    for k, i in enumerate(reduced.rows):
        for j, t in enumerate(reduced.columns[k]):
            if reduced.rejected[k, j] or reduced.tied[k, j]:
                out[i, t] = values[k, j]
    return out


def spans(problem: SelectionProblem) -> tuple[int, int]:
    """Dimensions of the span of token differences and of that of the queries that have a constraint, by dense SVD."""
    full = oracle.dense(problem)
    rank = [
        int(np.linalg.matrix_rank(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300), tol=1e-10))
        for rows in (full.left, full.right)
    ]
    return max(rank[0], 1), max(rank[1], 1)


@pytest.mark.parametrize("rotate", [True, False])
def test_margins_adjoint_and_norms_are_those_of_the_problem(rotate: bool) -> None:
    rng = np.random.default_rng(0)
    for problem in instances():
        reduced = reduce(problem, rotate=rotate)
        p, r = reduced.shape
        W = rng.standard_normal((p, r))
        lifted = reduced.lift(W)
        assert lifted.shape == problem.shape[2:]
        expected = oracle.dense(problem)
        size = expected.lengths.max() * np.linalg.norm(lifted) + 1e-300
        whole = np.zeros(problem.mask.shape)
        whole[expected.where] = np.einsum("md,de,me->m", expected.left, lifted, expected.right)
        # A span that was cut off at rounding level leaves margins of that size in the original coordinates.
        assert np.abs(scatter(problem, reduced, reduced.apply(W)) - whole).max() <= CLOSE * size
        assert np.linalg.norm(W) == pytest.approx(reduced.scale * np.linalg.norm(lifted), rel=CLOSE)
        assert np.linalg.norm(W, "nuc") == pytest.approx(reduced.scale * np.linalg.norm(lifted, "nuc"), rel=CLOSE)
        np.testing.assert_allclose(reduced.lower(lifted), W, rtol=0, atol=CLOSE * np.linalg.norm(W))
        dual = np.where(reduced.rejected | reduced.tied, rng.standard_normal(reduced.rejected.shape), 0.0)
        across = float((reduced.apply(W) * dual).sum())
        assert float((reduced.adjoint(dual) * W).sum()) == pytest.approx(
            across, abs=CLOSE * float((reduced.lengths * np.abs(dual)).sum()) * np.linalg.norm(W) + 1e-300
        )
        whole_dual = reduced.lift_dual(dual)
        np.testing.assert_array_equal(whole_dual, scatter(problem, reduced, dual))
        np.testing.assert_array_equal(reduced.gather(whole_dual), dual)


def test_rows_and_columns_list_every_constraint_once() -> None:
    for problem in instances():
        reduced = reduce(problem)
        everywhere = np.ones(reduced.rejected.shape)
        np.testing.assert_array_equal(scatter(problem, reduced, everywhere) != 0, problem.constrained)
        np.testing.assert_array_equal(reduced.gather(problem.rejected.astype(float)) != 0, reduced.rejected)
        np.testing.assert_array_equal(reduced.gather(problem.tied.astype(float)) != 0, reduced.tied)
        np.testing.assert_array_equal(reduced.rows, np.flatnonzero(problem.constrained.any(axis=1)))
        assert reduced.rejected.shape[1] == problem.constrained.sum(axis=1).max()
        # Nothing is gathered from where there is no constraint.
        assert not reduced.gather(np.ones(problem.mask.shape))[~(reduced.rejected | reduced.tied)].any()
        assert not reduced.delta[~(reduced.rejected | reduced.tied)].any()
        assert reduced.size == problem.mask.shape


def test_the_bases_are_orthonormal_and_as_small_as_the_spans() -> None:
    rotated = 0
    for problem in instances():
        reduced = reduce(problem)
        assert reduced.shape == spans(problem), problem
        for basis, size in ((reduced.left, problem.shape[2]), (reduced.right, problem.shape[3])):
            if basis is not None:
                rotated += 1
                assert basis.shape[1] == size > basis.shape[0]
                np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), rtol=0, atol=1e-13)
    assert rotated > 10


def test_without_rotation_only_powers_of_two_change() -> None:
    for problem in instances():
        reduced = reduce(problem, rotate=False)
        assert reduced.left is reduced.right is None
        assert np.frexp(reduced.scale)[0] == 0.5
        full = oracle.dense(problem)
        if full.lengths.max() > 0:
            assert 1 / np.sqrt(2) <= np.abs(reduced.delta).max() <= np.sqrt(2)
            assert 1 / np.sqrt(2) <= np.abs(reduced.queries).max() <= np.sqrt(2)


@pytest.mark.parametrize("exponents", [(10, 0), (0, -7), (-300, 40)])
def test_scaling_data_by_powers_of_two_changes_no_digit(exponents: tuple[int, int]) -> None:
    source = FAMILIES["planted"].make(np.random.default_rng(1), 4, 5, 3)
    factors = 2.0 ** np.array(exponents)
    scaled = SelectionProblem(factors[0] * source.tokens, factors[1] * source.queries, source.reference)
    one, other = reduce(source), reduce(scaled)
    np.testing.assert_array_equal(one.delta, other.delta)
    np.testing.assert_array_equal(one.queries, other.queries)
    assert other.scale == one.scale * factors[0] * factors[1]


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_the_scale_stays_in_the_range_of_floats(scale: float) -> None:
    source = FAMILIES["planted"].make(np.random.default_rng(1), 3, 4, 3)
    reduced = reduce(SelectionProblem(scale * source.tokens, scale * source.queries, source.reference))
    assert 0 < reduced.scale < np.inf
    assert (reduced.scale < 1e-300) if scale < 1 else (reduced.scale > 1e300)


def test_blocks_of_tokens_are_put_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are read a few queries at a time; queries without constraint lie between."""
    problem = FAMILIES["masked"].make(np.random.default_rng(6), 9, 5, 4)
    whole = reduce(problem)
    monkeypatch.setattr(problem_module, "rows_in_chunk", lambda size: 2)
    parts = reduce(problem)
    np.testing.assert_array_equal(whole.delta, parts.delta)
    np.testing.assert_array_equal(whole.rows, parts.rows)


@pytest.mark.parametrize("rotate", [True, False])
def test_coordinates_of_another_norm(rotate: bool) -> None:
    """W = L X R^T: X has the margins of the W it stands for."""
    rng = np.random.default_rng(7)
    problem = FAMILIES["rectangular"].make(rng, 6, 5, 4)
    _, _, d, dz = problem.shape
    L, R = rng.standard_normal((d, d)), rng.standard_normal((dz, dz))
    for transform in ((L, R), (L, None), (None, R)):
        reduced = reduce(problem, rotate=rotate, transform=transform)
        X = rng.standard_normal(reduced.shape)
        W = reduced.lift(X)
        size = float(problem.lengths.max() * np.linalg.norm(W))
        difference = scatter(problem, reduced, reduced.apply(X)) - problem.apply(W)
        assert np.abs(difference).max() <= CLOSE * size * np.linalg.cond(L) * np.linalg.cond(R)
        back = reduced.lower(W)
        # Solving with L and R loses their condition numbers.
        assert np.abs(back - X).max() <= CLOSE * np.linalg.cond(L) * np.linalg.cond(R) * np.abs(X).max()


def test_a_full_span_keeps_its_axes_and_a_lost_direction_is_noticed() -> None:
    """1e-4 of the length in the third direction is a direction; 1e-17 of it is rounding."""
    for size, rank in ((1e-4, 3), (1e-9, 3), (1e-17, 2)):
        deltas = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.3, 0.4, size], [0.6, 0.1, -size]])
        reduced = reduce(single(deltas))
        assert reduced.shape == (rank, 1)
        assert (reduced.left is None) == (rank == 3)


def test_a_direction_within_the_rounding_of_many_rows_is_none() -> None:
    """A sum over m rows is off by up to m roundings: 20 of them in each row are nothing where m = 400."""
    rng = np.random.default_rng(2)
    deltas = rng.uniform(0.5, 1.0, (400, 3)) * rng.choice([-1.0, 1.0], (400, 3))
    deltas[:, 2] *= 40 * EPS
    assert reduce(single(deltas)).shape == (2, 1)
    deltas[:, 2] *= 40
    assert reduce(single(deltas)).shape == (3, 1)


def test_constraints_span_no_more_than_the_product_of_both_ranks() -> None:
    rng = np.random.default_rng(3)
    tokens = rng.standard_normal((7, 6, 3)) @ rng.standard_normal((3, 5))
    queries = rng.standard_normal((7, 2)) @ rng.standard_normal((2, 4))
    problem = SelectionProblem(tokens, queries, [0] * 7)
    assert np.linalg.matrix_rank(oracle.dense(problem).rows) == 3 * 2
    for rotate in (True, False):
        assert reduce(problem, rotate=rotate).constraint_rank == 3 * 2


def test_tokens_that_do_not_differ_leave_one_dimension() -> None:
    reduced = reduce(NAMED["all_tokens_zero"]().problem)
    assert reduced.shape == (1, 1)
    assert reduced.scale == 1.0
    assert not reduced.delta.any()


# --- margins ---


def test_the_smallest_margin_is_over_inequalities_only() -> None:
    reduced = reduce(NAMED["tie_forces_a_detour"]().problem)
    margins = np.where(reduced.rejected, 3.0, np.where(reduced.tied, -5.0, -9.0))
    assert reduced.min_margin(margins) == 3.0


# --- products of constraints ---


def test_products_of_constraints_are_those_of_their_rows() -> None:
    rng = np.random.default_rng(9)
    delta, queries = rng.standard_normal((6, 3)), rng.standard_normal((6, 2))
    rows = np.array([np.outer(x, z).ravel() for x, z in zip(delta, queries, strict=True)])
    np.testing.assert_allclose(constraint_rows(delta, queries), rows, rtol=1e-15)
    np.testing.assert_allclose(constraint_gram(delta, queries), rows @ rows.T, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("n", "p", "r"), [(300, 3, 2), (5, 3, 1), (2, 600, 2)])
def test_a_normal_matrix_is_the_weighted_product_of_the_constraints(n: int, p: int, r: int) -> None:
    """In few dimensions queries are taken in chunks of many, in many dimensions as many as there are."""
    rng = np.random.default_rng(10)
    problem = SelectionProblem(rng.standard_normal((n, 3, p)), rng.standard_normal((n, r)), [0] * n)
    reduced, theta = reduce(problem, rotate=False), rng.random((n, 2))
    rows, columns = np.indices(theta.shape).reshape(2, -1)
    A = reduced.constraint_rows(rows, columns)
    expected = (A * theta.ravel()[:, None]).T @ A
    np.testing.assert_allclose(NormalMatrix(reduced).form(theta), expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_padding_adds_no_work_to_few_differences_of_many_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only as many differences as dimensions or more pay for the (d, d) Gram matrix and its factor."""

    factorised = []
    cholesky = np.linalg.cholesky
    monkeypatch.setattr(np.linalg, "cholesky", lambda matrix: factorised.append(len(matrix)) or cholesky(matrix))
    rng = np.random.default_rng(5)
    tokens, mask = rng.standard_normal((4, 20, 30)), np.arange(20) < np.array([[20], [2], [3], [2]])
    problem = SelectionProblem(tokens, np.ones((4, 1)), [0] * 4, mask=mask)
    reduced = reduce(problem)
    assert reduced.shape == (23, 1)  # 19 + 1 + 2 + 1 differences
    assert factorised == [1]  # the queries'
    W = rng.standard_normal((23, 1))
    np.testing.assert_allclose(
        scatter(problem, reduced, reduced.apply(W)),
        np.where(problem.constrained, problem.margins(reduced.lift(W)), 0.0),
        rtol=0,
        atol=CLOSE * np.abs(tokens).max() * 30,
    )
