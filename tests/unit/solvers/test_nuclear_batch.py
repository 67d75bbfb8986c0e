"""The compiled nuclear batch: its parts beside the ones they restate, and what it leaves to the general solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from attsvm import ProblemBatch, SelectionProblem, Status, solve, solve_batch
from attsvm.core.norms import NUCLEAR, nuclear, spectral
from attsvm.platform.kernels import compiled_first, interpreted
from attsvm.solvers.batching import CompiledCall
from attsvm.solvers.nuclear.face import Face, newton_step
from attsvm.solvers.nuclear.face_newton import COMPILED_CONSTRAINTS, fits
from attsvm.solvers.nuclear.matrices import ORTHOGONAL, eigenvectors, in_basis, right_singular, rotate, singular_values
from attsvm.solvers.nuclear.steps import _shorten_few, _shorten_many
from problems import FAMILIES, NAMED

EPS = float(np.finfo(float).eps)
COMPILED = "batched first order + face Newton"


@pytest.fixture(autouse=True)
def _compiled_at_once() -> Iterator[None]:
    """Whatever ran before in this process, stacks are not left to the interpreter."""
    with compiled_first():
        yield


def planted(count: int, size: tuple[int, int, int]) -> list[SelectionProblem]:
    return [FAMILIES["planted"].draw(*size, seed=seed) for seed in range(count)]


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (3, 5), (8, 8), (20, 6)])
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_rotations_find_singular_values(shape: tuple[int, int], rank: int) -> None:
    rng = np.random.default_rng([*shape, rank])
    matrix = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
    basis = np.eye(min(shape))
    rows = in_basis(basis, matrix)
    lengths = rotate(rows, basis, ORTHOGONAL)
    # Backward stable: every value is off by some eps of the largest, times a small multiple of the size.
    np.testing.assert_allclose(
        np.sort(lengths)[::-1],
        np.linalg.svd(matrix, compute_uv=False),
        rtol=0,
        atol=20 * max(shape) * EPS * spectral(matrix),
    )
    np.testing.assert_allclose(basis @ basis.T, np.eye(min(shape)), atol=20 * max(shape) * EPS)


def test_rotations_begin_where_the_last_ended() -> None:
    rng = np.random.default_rng(0)
    matrix, nearby = rng.standard_normal((9, 5)), 1e-3 * rng.standard_normal((9, 5))
    basis = np.eye(5)
    rotate(in_basis(basis, matrix), basis, ORTHOGONAL)
    rows = in_basis(basis, matrix + nearby)
    lengths = rotate(rows, basis, ORTHOGONAL)
    np.testing.assert_allclose(rows.T @ basis, matrix + nearby, atol=1e-13)
    np.testing.assert_allclose(np.sort(lengths), np.linalg.svd(matrix + nearby, compute_uv=False)[::-1], atol=1e-13)


@pytest.mark.parametrize("function", [right_singular, interpreted(right_singular)], ids=["loops", "LAPACK"])
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_singular_vectors_are_sorted_and_complete(shape: tuple[int, int], function: Callable[..., Any]) -> None:
    matrix = np.random.default_rng(3).standard_normal(shape)
    vectors, images, lengths = function(matrix)
    assert (np.diff(lengths) <= 0).all()
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(shape[1]), atol=1e-13)
    np.testing.assert_allclose(images.T, matrix @ vectors.T, atol=1e-13)
    np.testing.assert_allclose(lengths, np.linalg.norm(images, axis=1), atol=1e-13)


@pytest.mark.parametrize("function", [eigenvectors.py_func, interpreted(eigenvectors)], ids=["loops", "LAPACK"])
def test_eigenvectors_are_in_the_order_of_their_eigenvalues(function: Callable[..., Any]) -> None:
    root = np.random.default_rng(3).standard_normal((5, 5))
    matrix = root + root.T
    vectors, values = function(matrix)
    assert (np.diff(values) <= 0).all()
    np.testing.assert_allclose(vectors.T * values @ vectors, matrix, atol=1e-13)


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_a_matrix_out_of_range_has_singular_values_that_are_no_numbers(shape: tuple[int, int], value: float) -> None:
    """LAPACK would raise an error, where the loops go on."""
    matrix = np.random.default_rng(3).standard_normal(shape)
    matrix[1, 2] = value
    answers = [interpreted(right_singular)(matrix), interpreted(eigenvectors)(matrix @ matrix.T)]
    for parts, size in zip(answers, (shape[1], shape[0]), strict=True):
        assert np.isnan(parts[-1]).all()
        assert parts[-1].shape == (size,)
        assert parts[0].shape == (size, size)
    assert answers[0][1].shape == shape[::-1]
    values = interpreted(singular_values)(matrix)
    assert np.isnan(values).all()
    assert values.shape == (4,)
    short = np.zeros(shape)
    interpreted(_shorten_few)(matrix, 1.0, np.eye(4), short)
    assert np.isnan(short).all()


@pytest.mark.parametrize(
    "shorten",
    [
        lambda Y, tau, out: interpreted(_shorten_few)(Y, tau, np.eye(min(Y.shape)), out),
        lambda Y, tau, out: _shorten_few.py_func(Y, tau, np.eye(min(Y.shape)), out),
        _shorten_many.py_func,
    ],
    ids=["LAPACK", "loops", "squares"],
)
@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_what_is_cut_off_the_singular_values_is_the_nearest_matrix_with_such_a_spectral_norm(
    shape: tuple[int, int], shorten: Callable[..., None]
) -> None:
    """Of the inner products with matrices of this norm, that with what is left is then the largest."""
    Y, out = np.random.default_rng(3).standard_normal(shape), np.zeros(shape)
    lengths = np.linalg.svd(Y, compute_uv=False)
    tau = float(lengths[1:3].mean())
    shorten(Y, tau, out)
    assert np.linalg.matrix_rank(out, tol=1e-6) == 2
    assert spectral(Y - out) == pytest.approx(tau, rel=1e-8)
    assert float(((Y - out) * out).sum()) == pytest.approx(tau * nuclear(out), rel=1e-8)


def dense_newton_step(
    delta: np.ndarray, queries: np.ndarray, cost: np.ndarray, M: np.ndarray, K: np.ndarray, Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Newton on MQ = K, M^T K = Q, a_j(KQ^T) = c_j with every entry of K and Q an unknown, the shortest step."""
    (p, k), r, active = K.shape, len(Q), len(cost)
    rows = []
    for unit in np.eye((p + r) * k + active):
        dK, dQ = unit[: p * k].reshape(p, k), unit[p * k : (p + r) * k].reshape(r, k)
        dM = delta.T @ (unit[(p + r) * k :, None] * queries)
        margins = np.einsum("jp,pr,jr->j", delta, dK @ Q.T + K @ dQ.T, queries)
        rows.append(np.concatenate([(dK - M @ dQ - dM @ Q).ravel(), (dQ - M.T @ dK - dM.T @ K).ravel(), margins]))
    lacking = cost - np.einsum("jp,pr,jr->j", delta, K @ Q.T, queries)
    target = np.concatenate([(M @ Q - K).ravel(), (M.T @ K - Q).ravel(), lacking])
    step = np.linalg.lstsq(np.array(rows).T, target, rcond=1e-12)[0]
    dK, dQ = step[: p * k].reshape(p, k), step[p * k : (p + r) * k].reshape(r, k)
    return (K + dK) @ (Q + dQ).T, step[(p + r) * k :]


@pytest.mark.parametrize(("p", "r", "k", "active"), [(7, 5, 2, 6), (4, 6, 3, 8), (5, 5, 1, 4)])
def test_a_newton_step_is_that_of_the_dense_system(p: int, r: int, k: int, active: int) -> None:
    rng = np.random.default_rng([p, r, k])
    n = 5
    delta, queries = rng.standard_normal((active, p)), rng.standard_normal((n, r))
    of, cost = np.sort(rng.integers(0, n, active)), (rng.random(active) < 0.8).astype(float)
    lam, singular = rng.random(active), np.sort(rng.random(k) + 0.5)[::-1].copy()
    U, sigma, Vt = np.linalg.svd(delta.T @ (lam[:, None] * queries[of]))
    # On the face the leading values are one; elsewhere both steps differ by what Newton itself leaves out.
    sigma = np.r_[np.ones(k), np.sort(0.9 * rng.random(len(sigma) - k))[::-1]]
    root, M = np.sqrt(singular), (U[:, : len(sigma)] * sigma) @ Vt[: len(sigma)]
    expected = dense_newton_step(delta, queries[of], cost, M, U[:, :k] * root, Vt[:k].T * root)
    vectors, images, tail = Vt, Vt @ M.T, np.zeros(r)
    tail[: len(sigma)] = sigma
    face = Face(
        images[:k].copy(),
        vectors[:k].copy(),
        images[k:].copy(),
        vectors[k:].copy(),
        tail[k:],
        singular,
        np.zeros((k, k)),
    )
    has_step, W, change = interpreted(newton_step)(delta, of, queries, cost, lam, np.zeros(active), face, 1e-13)
    assert has_step
    # Both solve the same well-conditioned system of at most fifty unknowns.
    np.testing.assert_allclose(change, expected[1], rtol=1e-8, atol=1e-10 * np.abs(expected[1]).max())
    np.testing.assert_allclose(W, expected[0], rtol=1e-8, atol=1e-10 * np.abs(expected[0]).max())


@pytest.mark.parametrize("size", [(6, 8, 10), (12, 6, 6), (1, 6, 3)])
def test_answers_are_polished_and_their_rank_is_clean(size: tuple[int, int, int]) -> None:
    problems = planted(8, size)
    batch = solve_batch(problems, "nuclear")
    for b, solution in enumerate(batch):
        assert solution.status is Status.OPTIMAL
        assert solution.method == COMPILED
        # Newton converges quadratically: a step past the gap asked for is at rounding.
        assert solution.gap <= 1e-12
        sigma = np.linalg.svd(batch.W[b], compute_uv=False)
        assert (sigma[solution.rank :] <= 1e-12 * sigma[0]).all()
        assert batch.objective[b] == pytest.approx(nuclear(batch.W[b]), rel=1e-12)
        # The compiled evaluation and the certificate sum the same numbers in another order.
        assert batch.gap[b] == pytest.approx(solution.gap, abs=1e-12)
        np.testing.assert_allclose(batch.margins[b], solution.margins, rtol=0, atol=1e-11)
        np.testing.assert_allclose(batch.dual[b], solution.dual, rtol=0, atol=1e-12 * solution.dual.max())


def test_known_answers() -> None:
    compiled = 0
    for name, make in NAMED.items():
        instance = make()
        solution = solve_batch([instance.problem], "nuclear")[0]
        assert (solution.status is Status.OPTIMAL) == instance.feasible, name
        if instance.nuclear is not None:
            assert solution.objective == pytest.approx(instance.nuclear, rel=2e-9), name
            compiled += solution.method == COMPILED
    assert compiled > 20


@pytest.mark.parametrize(("n", "T", "d", "dz"), [(2, 2, 9, 12), (3, 4, 5, 1), (9, 3, 2, 7), (6, 5, 1, 4)])
def test_tokens_and_queries_of_other_dimensions(n: int, T: int, d: int, dz: int) -> None:
    rng = np.random.default_rng([n, T, d, dz])
    tokens, queries = rng.standard_normal((10, n, T, d)), rng.standard_normal((10, n, dz))
    reference = rng.standard_normal((10, d, dz))
    selected = np.einsum("bntd,bde,bne->bnt", tokens, reference, queries).argmax(axis=2)
    batch = ProblemBatch(tokens, queries, selected)
    for problem, together in zip(batch, solve_batch(batch, "nuclear"), strict=True):
        solution = solve(problem, "nuclear")
        assert together.status is solution.status is Status.OPTIMAL
        assert together.objective == pytest.approx(solution.objective, rel=2e-9)


def test_scale_changes_nothing() -> None:
    problems = planted(4, (6, 8, 10))
    batch = solve_batch(problems, "nuclear")
    scaled_batch = solve_batch(
        [SelectionProblem(p.tokens * 2.0**-300, p.queries * 2.0**40, p.selected) for p in problems], "nuclear"
    )
    np.testing.assert_array_equal(scaled_batch.W, batch.W * 2.0**260)
    np.testing.assert_array_equal(scaled_batch.gap, batch.gap)


def test_repeated_tokens_and_sequences_are_merged() -> None:
    problems = planted(4, (6, 8, 10))
    twice = np.r_[0:6, 0:6]
    doubling = []
    for p in problems:
        unselected = np.zeros((6, 1), dtype=bool)
        last = np.where(p.selected[:, -1:], p.tokens.shape[1] - 2, p.tokens.shape[1] - 1)
        repeats = np.take_along_axis(p.tokens, last[:, :, None], axis=1)
        tokens, selected = np.concatenate([p.tokens, repeats], axis=1), np.hstack([p.selected, unselected])
        doubling.append(SelectionProblem(tokens[twice], p.queries[twice], selected[twice]))
    for solutions, together in zip(solve_batch(problems, "nuclear"), solve_batch(doubling, "nuclear"), strict=True):
        assert together.method == COMPILED
        assert together.objective == pytest.approx(solutions.objective, rel=2e-9)


@pytest.mark.parametrize(("more", "is_compiled"), [(0, True), (1, False)])
def test_as_many_constraints_as_fit_are_compiled(more: int, is_compiled: bool) -> None:
    """One query rejects all tokens but one."""
    tokens = 1 + COMPILED_CONSTRAINTS + more
    assert (CompiledCall.of(NUCLEAR, 1e-9, (1, tokens, 5, 5)) is not None) == is_compiled


def test_large_instances_go_to_the_general_solver() -> None:
    size = (16, 18, 10)
    assert size[0] * (size[1] - 1) > COMPILED_CONSTRAINTS
    assert not fits(size[0] * (size[1] - 1), min(size[0], size[2]))
    solution = solve_batch(planted(1, size), "nuclear")[0]
    assert solution.status is Status.OPTIMAL
    assert solution.method != COMPILED


def test_correlated_tokens_are_left_open_and_solved() -> None:
    size = FAMILIES["near_duplicates"].sizes[0]
    problems = [FAMILIES["near_duplicates"].draw(*size, seed=seed) for seed in range(3)]
    for problem, solution in zip(problems, solve_batch(problems, "nuclear"), strict=True):
        assert solution.status is solve(problem, "nuclear").status is Status.OPTIMAL
        assert solution.gap <= 1e-9
