"""Exchanges from one factor where as many constraints are held as W has entries."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import ShardedProblem, Status, solve
from attsvm.solvers.frobenius import gram_active_set, portfolio
from attsvm.solvers.frobenius.active_set import PassiveSet, exchange_by_gram, exchange_dependent
from attsvm.solvers.working_sets import rounds
from problems import FAMILIES

TOL = 1e-9


def members(A: np.ndarray, held: list[int], free: np.ndarray) -> PassiveSet:
    """Hold constraints (rows of A) at the smallest W that meets them with equality."""
    lower = np.linalg.cholesky(A[held] @ A[held].T)
    solved = np.linalg.solve(lower, np.where(free, 0.0, 1.0)[held])
    values = np.linalg.solve(lower.T, solved)
    return PassiveSet(lower, solved, np.array(held), free[held], values, np.zeros((3, len(held))))


@pytest.mark.parametrize(
    ("third", "expected"),
    [
        # x >= 1, y >= 1 and x + y >= 4: the third alone, after both others have left.
        ((0.25, 0.25), (2.0, 2.0)),
        # 2x + y >= 4: least norm (8/5, 4/5) but for y >= 1, which stays.
        ((0.5, 0.25), (1.5, 1.0)),
    ],
)
def test_a_violated_constraint_takes_the_place_of_one_that_is_held(
    third: tuple[float, float], expected: tuple[float, float]
) -> None:
    A, free = np.array([(1.0, 0.0), (0.0, 1.0), third]), np.zeros(3, dtype=bool)
    gram, cost, passive = A @ A.T, np.ones(3), members(A, [0, 1], free)
    size, _, ended = exchange_by_gram(gram, cost, free, passive, 2, 1e-12, 10)
    assert (size, ended) == (2, True)
    np.testing.assert_allclose(A[:2].T @ passive.values, (1.0, 1.0), rtol=1e-14)
    size, changed = exchange_dependent(gram, cost, free, passive, size, 1e-12)
    assert changed
    size, _, ended = exchange_by_gram(gram, cost, free, passive, size, 1e-12, 10)
    assert ended
    np.testing.assert_allclose(A[passive.members[:size]].T @ passive.values[:size], expected, rtol=1e-14)
    assert exchange_dependent(gram, cost, free, passive, size, 1e-12) == (size, False)


def test_contradictory_constraints_and_ties_are_not_exchanged() -> None:
    # x >= 1, y >= 1 and x + y <= -1.
    A, free = np.array([(1.0, 0.0), (0.0, 1.0), (-1.0, -1.0)]), np.zeros(3, dtype=bool)
    assert exchange_dependent(A @ A.T, np.ones(3), free, members(A, [0, 1], free), 2, 1e-12) == (2, False)
    # x = 0 as a tie, y >= 1, and x + y >= 4, which y alone can meet.
    A, free = np.array([(1.0, 0.0), (0.0, 1.0), (0.25, 0.25)]), np.array([True, False, False])
    gram, cost, passive = A @ A.T, np.where(free, 0.0, 1.0), members(A, [0, 1], free)
    size, changed = exchange_dependent(gram, cost, free, passive, 2, 1e-12)
    assert (size, changed) == (2, True)
    size, *_ = exchange_by_gram(gram, cost, free, passive, size, 1e-12, 10)
    assert sorted(passive.members[:size]) == [0, 2]
    np.testing.assert_allclose(A[passive.members].T @ passive.values, (0.0, 4.0), atol=1e-14)


@pytest.mark.parametrize("seed", range(12))
def test_exchanges_end_at_full_sets_whatever_the_rounding(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MANY_ENTRIES", 1)
    monkeypatch.setattr(portfolio, "FEW_SUPPORTS", 0)
    monkeypatch.setattr(portfolio, "FEW_HELD", 0)
    others = []
    monkeypatch.setattr(gram_active_set, "newton", lambda *given, **named: others.append(given) or iter(()))
    rng = np.random.default_rng([12, seed])
    problem = FAMILIES["planted"].make(rng, 3000, 8, 10)
    objectives = []
    for noise in (0.0, 1e-14):  # as sums in another order, and other numbers of threads
        tokens = problem.tokens * (1.0 + noise * rng.standard_normal(problem.tokens.shape))
        pieces = ShardedProblem.from_arrays(tokens, problem.queries, problem.reference, chunk=3000)
        solution = solve(pieces, tol=TOL)
        assert solution.status is Status.OPTIMAL
        objectives.append(solution.objective)
    assert not others
    # The margin of a token moves by 1e-14 of the lengths, the objective by that times the multipliers.
    assert objectives[1] == pytest.approx(objectives[0], rel=2 * TOL)
