"""Data at the ends of the floating-point range, exact in binary, so that the right answer is known without rounding."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import SelectionProblem, Status, solve
from problems import NAMED

NORMS = ("frobenius", "nuclear")


def never_wrong(problem: SelectionProblem, norm: str, expected: float) -> Status:
    """A feasible problem may be left undecided, but is never called infeasible, and an answer is the right one."""
    solution = solve(problem, norm)
    assert solution.status in (Status.OPTIMAL, Status.UNDECIDED)
    assert solution.lower_bound <= expected * (1 + 1e-9)
    if solution.status is Status.OPTIMAL:
        assert solution.objective == pytest.approx(expected, rel=1e-9)
        assert np.isfinite(solution.W).all()
    return solution.status


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("exponent", [30, 40, 46, 50, 51, 52, 53, 60, 100, 300])
def test_between_two_tokens_to_the_last_bit(exponent: int, norm: str) -> None:
    """Differences (1, h) and (-1, h): the answer is (0, 1/h), however small h is."""
    h = 2.0**-exponent
    problem = SelectionProblem(np.array([[[0.0, 0.0], [-1.0, -h], [1.0, -h]]]), np.ones((1, 1)), [0])
    never_wrong(problem, norm, 1 / h)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("exponent", [20, 40, 60, 200, 500])
def test_a_near_duplicate_of_any_distance(exponent: int, norm: str) -> None:
    """Differences (h, 0) and (-1, 1): w = (1/h, 1 + 1/h), both constraints tight."""
    h = 2.0**-exponent
    problem = SelectionProblem(np.array([[[0.0, 0.0], [-h, 0.0], [1.0, -1.0]]]), np.ones((1, 1)), [0])
    never_wrong(problem, norm, float(np.hypot(1 / h, 1 + 1 / h)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("part", ["tokens", "queries"])
@pytest.mark.parametrize("exponent", [-900, -400, -100, 100, 400, 900])
def test_uniform_scale_of_any_size(exponent: int, part: str, norm: str) -> None:
    """Scaling by a power of two is exact: the norm is sqrt(10) over it. Multipliers, its square, may overflow."""
    instance = NAMED["counterexample"]().problem
    tokens = instance.tokens * (2.0**exponent if part == "tokens" else 1.0)
    queries = instance.queries * (2.0**exponent if part == "queries" else 1.0)
    status = never_wrong(SelectionProblem(tokens, queries, [0, 0]), norm, np.sqrt(10) / 2.0**exponent)
    if abs(exponent) <= 400:
        assert status is Status.OPTIMAL


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("exponent", [-10, -30, -60, -300, -700])
def test_one_query_much_shorter_than_the_others(exponent: int, norm: str) -> None:
    """The counterexample with z_2 = c e_1: w_1 >= 1 and -2 w_1 + w_2 >= 1/c, both tight: w = (1, 2 + 1/c)."""
    c = 2.0**exponent
    instance = NAMED["counterexample"]().problem
    queries = instance.queries * np.array([[1.0], [c]])
    never_wrong(SelectionProblem(instance.tokens, queries, [0, 0]), norm, float(np.hypot(1, 2 + 1 / c)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("exponent", [-900, 0, 900])
def test_a_contradiction_of_any_size(exponent: int, norm: str) -> None:
    """The midpoint of two rejected tokens stays infeasible at any scale."""
    instance = NAMED["midpoint"]().problem
    solution = solve(SelectionProblem(instance.tokens * 2.0**exponent, instance.queries, [0]), norm)
    assert solution.status is Status.INFEASIBLE
    assert solution.certificate is not None
    assert solution.certificate.verify()
