"""What must hold of a batch whatever is in it: each instance is answered as if it were alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm import ProblemBatch, Status, solve, solve_batch

NORMS = st.sampled_from(["frobenius", "nuclear"])
EPS = float(np.finfo(float).eps)


@st.composite
def batches(draw: st.DrawFn) -> ProblemBatch:
    """Random instances of one small shape: masked, with repeated and zero tokens, and several selected ones."""
    B, n, T, d, dz = draw(st.tuples(*(st.integers(1, most) for most in (5, 5, 5, 6, 6))))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    tokens, queries = rng.standard_normal((B, n, T, d)), rng.standard_normal((B, n, dz))
    selected = np.zeros((B, n, T), dtype=bool)
    selected[..., 0] = True
    if draw(st.booleans()):
        tokens[..., -1, :] = tokens[..., T // 2, :]
    if draw(st.booleans()):
        tokens[rng.random((B, n, T)) < 0.1] = 0.0
    if draw(st.booleans()):
        selected |= rng.random((B, n, T)) < 0.2
    mask = selected | (rng.random((B, n, T)) < 0.8)
    return ProblemBatch(tokens, queries, selected, mask)


@given(batches(), NORMS)
def test_a_batch_is_a_loop(batch: ProblemBatch, norm: str) -> None:
    solutions = solve_batch(batch, norm)
    for b, problem in enumerate(batch):
        single, together = solve(problem, norm), solutions[b]
        assert together.status is solutions.status[b] is single.status
        if single.status is not Status.OPTIMAL:
            continue
        # Two certified values of one optimum differ by the larger of their gaps at most, and by rounding of margins,
        # which are sums of numbers of size |x| |z| |W|.
        lengths = np.linalg.norm(problem.tokens, axis=2).max() * np.linalg.norm(problem.queries, axis=1).max()
        slack = max(single.gap, together.gap, 0.0) + 100 * EPS * (1.0 + lengths * single.objective)
        assert together.objective == pytest.approx(single.objective, rel=slack)
        assert solutions.objective[b] == pytest.approx(together.objective, rel=slack)


@given(batches(), NORMS, st.integers(0, 10_000))
def test_order_does_not_matter(batch: ProblemBatch, norm: str, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(batch))
    shuffled = ProblemBatch(batch.tokens[order], batch.queries[order], batch.selected[order], batch.mask[order])
    solutions, reverse = solve_batch(batch, norm), solve_batch(shuffled, norm)
    np.testing.assert_array_equal(reverse.W, solutions.W[order])
    np.testing.assert_array_equal(reverse.dual, solutions.dual[order])
    assert (reverse.status == solutions.status[order]).all()
