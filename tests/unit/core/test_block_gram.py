"""The Gram matrix of constraints between shared one-hot tokens, in blocks: against the dense matrix."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import LinAlgError

from attsvm import SelectionProblem
from attsvm.core import block_gram
from attsvm.core.block_gram import SOLUTION_ERROR, BlockGram
from attsvm.core.error_free import EPS
from attsvm.core.reduction import Reduced, reduce


def words(n: int, V: int, r: int, supports: int, *, seed: int = 0, tokens: np.ndarray | None = None) -> Reduced:
    """Contexts of r dimensions, each followed by some of V words."""
    rng = np.random.default_rng([seed, n, V])
    selected = rng.random((n, V)).argsort(axis=1) < supports
    embeddings = np.eye(V) if tokens is None else tokens
    return reduce(SelectionProblem.from_contexts(rng.standard_normal((n, r)), selected, embeddings=embeddings))


def pair(reduced: Reduced, *, seed: int = 0, shift: float = 0.0) -> tuple[np.ndarray, BlockGram]:
    """A third of the constraints: dense and in blocks."""
    rng = np.random.default_rng(seed)
    rows, columns = np.nonzero((reduced.rejected | reduced.tied) & (rng.random(reduced.tied.shape) < 1 / 3))
    diagonal = shift * rng.random(len(rows))
    blocks = reduced.block_gram(rows, columns, diagonal)
    assert blocks is not None
    return reduced.gram(rows, columns) + np.diag(diagonal), blocks


INSTANCES = {
    "as many contexts as dimensions": words(8, 9, 8, 2),
    "more contexts than dimensions": words(14, 40, 12, 3),
    "one word selected": words(6, 12, 6, 1),
    "entries of several lengths and signs": words(12, 10, 12, 3, tokens=np.diag([1.0, -2.0, 0.5, 3.0, -1.0] * 2)),
}


@pytest.mark.parametrize("name", INSTANCES)
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_products_and_parts_are_those_of_the_dense_matrix(name: str, shift: float) -> None:
    dense, blocks = pair(INSTANCES[name], shift=shift)
    rng = np.random.default_rng(1)
    x, chosen = rng.standard_normal(len(dense)), rng.random(len(dense)) < 0.5
    # Inner products of rotated rows have some roundings of their dimensions, and sums J of them.
    noise = 8 * len(dense) * EPS * np.abs(dense).max()
    np.testing.assert_allclose(blocks @ x, dense @ x, rtol=0, atol=noise * np.abs(x).max())
    np.testing.assert_allclose(
        blocks.part(chosen) @ x[chosen], dense[np.ix_(chosen, chosen)] @ x[chosen], rtol=0, atol=noise * np.abs(x).max()
    )


@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("name", INSTANCES)
def test_systems_are_solved(name: str, shift: float) -> None:
    dense, blocks = pair(INSTANCES[name], shift=shift)
    np.testing.assert_allclose(blocks.dense(), dense, rtol=0, atol=64 * EPS * np.abs(dense).max())
    right = dense @ np.random.default_rng(2).standard_normal(len(dense))
    assert np.abs(dense @ blocks.solve(right) - right).max() <= SOLUTION_ERROR * np.abs(right).max()


def test_short_contexts_are_solved() -> None:
    """A ridge that did not shrink with the contexts would hide their products."""
    reduced, length = INSTANCES["as many contexts as dimensions"], 2.0**-14
    rows, columns = np.nonzero(reduced.rejected)
    assert reduced.vocabulary is not None
    blocks = BlockGram(
        reduced.vocabulary, reduced.queries * length, rows, reduced.columns[rows, columns], np.zeros(len(rows))
    )
    right = reduced.gram(rows, columns) @ np.random.default_rng(7).standard_normal(len(rows)) * length**2
    assert np.abs(blocks @ blocks.solve(right) - right).max() <= SOLUTION_ERROR * np.abs(right).max()


def test_every_proximal_step_divides_what_the_ridge_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_gram, "RELATIVE_RIDGE", 1e-5)
    dense, blocks = pair(INSTANCES["as many contexts as dimensions"])
    x = np.random.default_rng(9).standard_normal(len(dense))
    errors = [float(np.abs(blocks.solve(dense @ x, steps=steps) - x).max()) for steps in (1, 2, 3)]
    assert errors[2] < 0.1 * errors[1] < 0.01 * errors[0]


@pytest.mark.parametrize("size", [2.0**-30, 2.0**30])
def test_a_power_of_two_changes_no_bit_of_a_solution(size: float) -> None:
    dense, blocks = pair(INSTANCES["more contexts than dimensions"])
    right = dense @ np.random.default_rng(8).standard_normal(len(dense))
    np.testing.assert_array_equal(blocks.solve(right * size, steps=1), blocks.solve(right, steps=1) * size)


def test_blocks_larger_than_the_rank_are_not_offered_and_repeated_queries_refused() -> None:
    """Of 40 contexts in 6 dimensions some 20 share a word; twice the same context makes its blocks singular."""
    crowded = words(40, 4, 6, 1)
    rows, columns = np.nonzero(crowded.rejected)
    assert crowded.block_gram(rows, columns, np.zeros(len(rows))) is None
    contexts = np.random.default_rng(5).standard_normal((3, 6))
    supports = np.tile([True, True, False, False], (6, 1))
    twins = reduce(SelectionProblem.from_contexts(np.concatenate([contexts, contexts]), supports))
    rows, columns = np.nonzero(twins.rejected)
    assert twins.vocabulary is not None
    blocks = BlockGram(twins.vocabulary, twins.queries, rows, twins.columns[rows, columns], np.zeros(len(rows)))
    with pytest.raises(LinAlgError):
        blocks.solve(np.random.default_rng(6).standard_normal(len(rows)))


def test_a_solution_is_that_of_a_dense_factor() -> None:
    dense, blocks = pair(INSTANCES["as many contexts as dimensions"], shift=1.0)
    right = np.random.default_rng(3).standard_normal(len(dense))
    exact = np.linalg.solve(dense, right)
    # Proximal steps leave the rounding of the solution times the condition of the matrix.
    error = 64 * EPS * len(dense) * np.linalg.cond(dense)
    np.testing.assert_allclose(blocks.solve(right), exact, rtol=0, atol=error * np.abs(exact).max())


def test_blocks_are_counted_by_their_sizes() -> None:
    """Three queries select word 0 of three and reject both others: blocks of 3, 3 and 3, and a coupling of 3."""
    reduced = reduce(SelectionProblem.from_contexts(np.eye(3), np.tile([True, False, False], (3, 1))))
    rows, columns = np.nonzero(reduced.rejected)
    few = reduced.block_gram(rows, columns, np.zeros(len(rows)))
    fewer = reduced.block_gram(rows[:2], columns[:2], np.zeros(2))
    assert few is not None
    assert fewer is not None
    assert (few.sizes.tolist(), few.coupling) == ([3, 3, 3], (3, 3))
    assert (fewer.sizes.tolist(), fewer.coupling) == ([1, 1, 1], (1, 3))


def test_other_tokens_have_no_blocks() -> None:
    rng = np.random.default_rng(4)
    dense = reduce(
        SelectionProblem(rng.standard_normal((1, 4, 3)), rng.standard_normal((2, 2)), [0, 1], sequence=[0, 0])
    )
    assert dense.vocabulary is None
    assert dense.block_gram(np.array([0]), np.array([0]), np.zeros(1)) is None
