"""Warm starts along paths of slightly changed tokens, in the norms whose cold method is an interior point."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from attsvm import SelectionProblem, Solution, Status, solve
from problems import FAMILIES

NORMS = ("spectral", "max", 1, 1.5, 1.75, 3)
SIZES = ((20, 10, 8), (60, 20, 16))
STEPS = 4
# Two certified answers may differ by both their gaps.
AGREE = 2.5e-9


def moved(problem: SelectionProblem, change: float, seed: int = 9) -> SelectionProblem:
    """The same problem with every entry of its tokens changed a little."""
    tokens = np.asarray(problem.tokens)
    tokens = tokens * (1.0 + change * np.random.default_rng(seed).standard_normal(tokens.shape))
    return SelectionProblem(
        tokens, problem.queries, problem.selected, mask=problem.mask, sequence=np.asarray(problem.sequence)
    )


def timed(run: Callable[[], Solution]) -> tuple[float, Solution]:
    """Least process time of two runs, which other processes do not enter."""
    best, solution = np.inf, run()
    for _ in range(2):
        start = time.process_time()
        solution = run()
        best = min(best, time.process_time() - start)
    return best, solution


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("change", [1e-3, 1e-4])
def test_a_path_of_changed_tokens_gains(norm: str | float, sizes: tuple[int, int, int], change: float) -> None:
    """benchmarks/warm_paths.py measures 6 to 30 times; half of the promised 3 is asked for here, and iterations."""
    problem = FAMILIES["planted"].make(np.random.default_rng([1, *sizes]), *sizes)
    before = solve(problem, norm)
    seconds = np.zeros(2)
    iterations = np.zeros(2)
    for step in range(STEPS):
        problem = moved(problem, change, step)
        slow, cold = timed(lambda problem=problem: solve(problem, norm))
        fast, warm = timed(lambda problem=problem, before=before: solve(problem, norm, warm_start=before))
        assert warm.status is Status.OPTIMAL
        assert warm.method.startswith("warm")
        assert warm.objective == pytest.approx(cold.objective, rel=AGREE)
        seconds += slow, fast
        iterations += cold.iterations, warm.iterations
        before = warm
    assert seconds[0] >= 1.5 * seconds[1]
    assert iterations[0] >= 2 * iterations[1]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "contradicted"])
@pytest.mark.parametrize("change", [1e-4, 1e-2])
def test_every_family_ends_where_it_does_without_a_start(name: str, norm: str | float, change: float) -> None:
    """Degenerate, tied, badly scaled: the start may be of no use, but the answer is the same."""
    sizes = FAMILIES[name].sizes[-1]
    problem = FAMILIES[name].make(np.random.default_rng([0, *sizes]), *sizes)
    other = moved(problem, change)
    cold = solve(other, norm)
    warm = solve(other, norm, warm_start=solve(problem, norm))
    assert warm.status is cold.status
    if cold.status is Status.OPTIMAL:
        assert warm.objective == pytest.approx(cold.objective, rel=AGREE)


@pytest.mark.parametrize("norm", NORMS)
def test_equal_scores_survive_a_warm_start(norm: str | float) -> None:
    """Moved tokens break the ties of the earlier W, which the first step restores."""
    problem = FAMILIES["several"].make(np.random.default_rng([1, 5, 6, 6]), 5, 6, 6)
    other = moved(problem, 1e-4)
    warm = solve(other, norm, warm_start=solve(problem, norm))
    assert warm.method.startswith("warm")
    assert warm.status is Status.OPTIMAL
    assert warm.certified.tie_residual <= 1e-9


@pytest.mark.parametrize("norm", NORMS)
def test_an_unrelated_start_costs_little(norm: str | float) -> None:
    sizes = (20, 10, 8)
    one, other = (FAMILIES["planted"].make(np.random.default_rng([seed, *sizes]), *sizes) for seed in (1, 2))
    before = solve(one, norm)
    cold, warm = solve(other, norm), solve(other, norm, warm_start=before)
    assert warm.objective == pytest.approx(cold.objective, rel=AGREE)
    assert warm.iterations <= cold.iterations + 10


@pytest.mark.parametrize("norm", [1, "max"])
def test_simplex_exchanges_follow_a_larger_change(norm: str | float) -> None:
    """A change of one per cent turns over several constraints: as many exchanges, and a vertex at rounding level."""
    followed = 0
    for seed in range(6):
        problem = FAMILIES["planted"].make(np.random.default_rng([seed, 20, 10, 8]), 20, 10, 8)
        other = moved(problem, 5e-3)
        warm = solve(other, norm, warm_start=solve(problem, norm))
        if warm.method == "warm simplex" and warm.iterations > 2:
            followed += 1
            # A linear system of some 40 unknowns, solved once; its condition is what the rounding is multiplied with.
            assert warm.gap <= 1e-11
    assert followed >= 3


def test_a_limit_holds_during_the_warm_start() -> None:
    problem = FAMILIES["planted"].make(np.random.default_rng([1, 60, 20, 16]), 60, 20, 16)
    before = solve(problem, 1.5)
    limited = solve(moved(problem, 1e-3), 1.5, warm_start=before, max_iter=2)
    assert limited.status is Status.MAX_ITERATIONS
    assert limited.iterations == 2
    assert np.isfinite(limited.gap)
