"""Warm starts along paths of slightly changed tokens, in the norms whose cold method is an interior point."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from attsvm import SelectionProblem, Solution, Status, solve
from problems import FAMILIES

NORMS = ("spectral", "max", 1, 1.5, 1.75, 3)
SIZES = ((20, 10, 8), (60, 20, 16))
STEPS = 4
# Two certified answers may differ by both their gaps.
AGREE = 2.5e-9


def shift(problem: SelectionProblem, change: float, seed: int = 9) -> SelectionProblem:
    """The same problem with every entry of its tokens changed a little."""
    tokens = np.asarray(problem.tokens)
    tokens = tokens * (1.0 + change * np.random.default_rng(seed).standard_normal(tokens.shape))
    return SelectionProblem(
        tokens, problem.queries, problem.selected, mask=problem.mask, sequence=np.asarray(problem.sequence)
    )


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("sizes", SIZES)
def test_a_refit_is_judged_and_not_solved(norm: str | float, sizes: tuple[int, int, int]) -> None:
    problem = FAMILIES["planted"].draw(*sizes, seed=1)
    before = solve(problem, norm)
    solution = solve(problem, norm, warm_start=before)
    assert solution.status is Status.OPTIMAL
    assert solution.method == "warm start"
    assert solution.iterations <= 2


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("change", [1e-3, 1e-4])
def test_a_path_of_changed_tokens_starts_from_the_earlier_answer(norm: str | float, change: float) -> None:
    """The earlier W is feasible for tokens that hardly moved, and replaces the Frobenius solution."""
    sizes = SIZES[0]
    problem = FAMILIES["planted"].draw(*sizes, seed=1)
    before = solve(problem, norm)
    for step in range(2):
        problem = shift(problem, change, step)
        cold, warm = solve(problem, norm), solve(problem, norm, warm_start=before)
        assert warm.status is Status.OPTIMAL
        assert warm.method.startswith("warm")
        assert warm.objective == pytest.approx(cold.objective, rel=AGREE)
        before = warm


@cache
def first_answer(name: str, norm: str | float) -> Solution:
    """Solution of a family's first problem of its last size."""
    sizes = FAMILIES[name].sizes[-1]
    return solve(FAMILIES[name].draw(*sizes), norm)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "contradicted"])
@pytest.mark.parametrize("change", [1e-4, 1e-2])
def test_every_family_ends_where_it_does_without_a_start(name: str, norm: str | float, change: float) -> None:
    """Degenerate, tied, badly scaled: the start may be of no use, but the answer is the same."""
    start = first_answer(name, norm)
    other = shift(start.problem, change)
    cold, warm = solve(other, norm), solve(other, norm, warm_start=start)
    assert warm.status is cold.status
    if cold.status is Status.OPTIMAL:
        assert warm.objective == pytest.approx(cold.objective, rel=AGREE)


@pytest.mark.parametrize("norm", NORMS)
def test_equal_scores_survive_a_warm_start(norm: str | float) -> None:
    """Moved tokens break the ties of the earlier W, which the first step restores."""
    problem = FAMILIES["several"].draw(5, 6, 6, seed=1)
    other = shift(problem, 1e-4)
    warm = solve(other, norm, warm_start=solve(problem, norm))
    assert warm.status is Status.OPTIMAL
    assert warm.certified.tie_residual <= 1e-9


@pytest.mark.parametrize("norm", NORMS)
def test_an_unrelated_start_costs_little(norm: str | float) -> None:
    sizes = (20, 10, 8)
    one, other = (FAMILIES["planted"].draw(*sizes, seed=seed) for seed in (1, 2))
    before = solve(one, norm)
    cold, warm = solve(other, norm), solve(other, norm, warm_start=before)
    assert warm.objective == pytest.approx(cold.objective, rel=AGREE)
    assert warm.iterations <= cold.iterations + 10


def test_a_limit_holds_during_the_warm_start() -> None:
    problem = FAMILIES["planted"].draw(60, 20, 16, seed=1)
    before = solve(problem, 1.5)
    solution = solve(shift(problem, 1e-3), 1.5, warm_start=before, max_iter=2)
    assert solution.status is Status.MAX_ITERATIONS
    assert solution.iterations == 2
    assert np.isfinite(solution.gap)
