"""What the options of solve do: limits, callback, warm start, and the answer when nothing was solved."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import SelectionProblem, Status, UnsolvedError, solve
from problems import FAMILIES, NAMED

NORMS = ("frobenius", "nuclear")


def hard(norm: str) -> SelectionProblem:
    """A problem that takes some iterations in either norm."""
    rng = np.random.default_rng(0)
    return FAMILIES["planted"].make(rng, *((100, 24, 24) if norm == "frobenius" else (8, 6, 6)))


def within(problem: SelectionProblem, solution, optimum: float) -> bool:
    """Whatever an early stop returns, its two bounds enclose the optimum and its W has the margins it claims."""
    margins = problem.margins(solution.W)[problem.rejected]
    feasible = not np.isfinite(solution.objective) or margins.min() >= 1 - 1e-9
    return bool(feasible and solution.lower_bound <= optimum * (1 + 1e-9) <= solution.objective * (1 + 2e-9))


@pytest.mark.parametrize("norm", NORMS)
def test_an_iteration_limit_leaves_valid_bounds(norm: str) -> None:
    problem = hard(norm)
    optimum = solve(problem, norm, tol=1e-9).objective
    stopped = [solve(problem, norm, max_iter=k) for k in (1, 2, 5, 10)]
    assert stopped[0].status is Status.MAX_ITERATIONS
    assert all(s.status in (Status.MAX_ITERATIONS, Status.OPTIMAL) for s in stopped)
    assert all(within(problem, s, optimum) for s in stopped)


@pytest.mark.parametrize("norm", NORMS)
def test_a_time_limit_leaves_valid_bounds(norm: str) -> None:
    problem = hard(norm)
    optimum = solve(problem, norm).objective
    stopped = solve(problem, norm, time_limit=1e-9)
    assert stopped.status is Status.TIME_LIMIT
    assert within(problem, stopped, optimum)


@pytest.mark.parametrize("norm", NORMS)
def test_a_callback_sees_the_bounds_close_and_can_stop(norm: str) -> None:
    problem = hard(norm)
    optimum = solve(problem, norm).objective
    seen = []
    stopped = solve(problem, norm, callback=lambda state: seen.append(state) or len(seen) == 2)
    assert stopped.status is Status.CANCELLED
    assert len(seen) == 2
    assert within(problem, stopped, optimum)
    seen.clear()
    assert solve(problem, norm, callback=seen.append).status is Status.OPTIMAL
    iterations = [state.iteration for state in seen]
    assert iterations == sorted(iterations)
    assert all(state.lower_bound <= optimum * (1 + 1e-9) for state in seen)
    assert all(state.objective >= optimum * (1 - 1e-9) for state in seen)


@pytest.mark.parametrize("norm", NORMS)
def test_a_start_from_the_answer_is_no_slower(norm: str) -> None:
    problem = hard(norm)
    first = solve(problem, norm)
    again = solve(problem, norm, warm_start=first)
    assert again.status is Status.OPTIMAL
    assert again.objective == pytest.approx(first.objective, rel=2e-9)
    assert again.iterations <= first.iterations


@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("norm", NORMS)
def test_the_gap_asked_for_is_the_gap_delivered(norm: str, tol: float) -> None:
    solution = solve(hard(norm), norm, tol=tol)
    assert solution.status is Status.OPTIMAL
    assert solution.gap <= tol


def test_an_unsolved_answer_raises_only_when_asked() -> None:
    solution = solve(NAMED["midpoint"]().problem)
    assert np.isnan(solution.W).all()
    assert solution.objective == solution.lower_bound == np.inf
    assert not solution.support.any()
    with pytest.raises(UnsolvedError) as caught:
        solution.raise_for_status()
    assert str(caught.value) == Status.INFEASIBLE.sentence
    assert caught.value.solution is solution
    solved = solve(NAMED["simplex"]().problem)
    assert solved.raise_for_status() is solved


def test_every_status_is_a_sentence() -> None:
    for status in Status:
        assert status.sentence[0].isupper()
        assert status.sentence.endswith(".")
