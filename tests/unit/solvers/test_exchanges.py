"""The active-set method on instances worked out by hand, and where as many constraints are held as W has entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, ShardedProblem, Status, solve
from attsvm.platform.kernels import call, interpreted
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius import exchanges, portfolio
from attsvm.solvers.frobenius.active_set import CONTRADICTION, SOLVED, by_gram, exchange, least_multipliers
from attsvm.solvers.frobenius.constraints import Constraints
from attsvm.solvers.frobenius.passive_set import empty_set, settle
from attsvm.solvers.schedule import finish
from attsvm.solvers.working_sets import rounds
from oracle import reference
from problems import FAMILIES, single
from settings import setting_of

TOL = 1e-9


def answer(A: np.ndarray, guess: list[float], tied: np.ndarray, *, gram: bool) -> tuple[int, np.ndarray, np.ndarray]:
    """State, multipliers and W of the rows of A, each asked by a query of its own, the number one."""
    m, p = A.shape
    rows, none = np.arange(m), np.empty((0, 0))
    constraints = Constraints(A, np.ones((m, 1)), rows, np.arange(m + 1), ~tied, tied, none)
    W = np.empty((p, 1))
    if gram:
        constraints = by_gram(A @ A.T, tied)
    state, dual = least_multipliers(constraints, np.array(guess), p + 1, none if gram else W)
    return state, dual, A.T @ dual if gram else W[:, 0]


@pytest.mark.parametrize("gram", [False, True])
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
    third: tuple[float, float], expected: tuple[float, float], gram: bool
) -> None:
    A = np.array([(1.0, 0.0), (0.0, 1.0), third])
    state, dual, W = answer(A, [1.0, 1.0, 0.0], np.zeros(3, dtype=bool), gram=gram)
    assert state == SOLVED
    assert (dual >= 0).all()
    np.testing.assert_allclose(W, expected, rtol=1e-13)


@pytest.mark.parametrize("gram", [False, True])
def test_contradictory_constraints_vanish_and_ties_are_not_exchanged(gram: bool) -> None:
    # x >= 1, y >= 1 and x + y <= -1.
    A = np.array([(1.0, 0.0), (0.0, 1.0), (-1.0, -1.0)])
    state, dual, _ = answer(A, [1.0, 1.0, 0.0], np.zeros(3, dtype=bool), gram=gram)
    assert state == CONTRADICTION
    np.testing.assert_allclose(A.T @ dual, 0.0, atol=1e-12 * dual.sum())
    # x = 0 as a tie, y >= 1, and x + y >= 4, which y alone can meet.
    A, tied = np.array([(1.0, 0.0), (0.0, 1.0), (0.25, 0.25)]), np.array([True, False, False])
    state, dual, W = answer(A, [0.0, 1.0, 0.0], tied, gram=gram)
    assert state == SOLVED
    assert np.flatnonzero(dual).tolist() == [0, 2]
    np.testing.assert_allclose(W, (0.0, 4.0), atol=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_exchanges_end_at_full_sets_whatever_the_rounding(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PROXIMAL_ENTRIES", 1)
    monkeypatch.setattr(portfolio, "FEW_SUPPORTS", 0)
    monkeypatch.setattr(portfolio, "FEW_W_ENTRIES", 0)
    others = []
    monkeypatch.setattr(exchanges, "newton", lambda *arguments, **options: others.append(arguments) or iter(()))
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


def nearly_one_direction(seed: int) -> SelectionProblem:
    """Tokens of rank one but for rounding to float32: nearly every constraint depends on every other."""
    rng = np.random.default_rng(seed)
    tokens = (rng.normal(size=(4, 3, 1)) * rng.normal(size=3)).astype("f4")
    return SelectionProblem(tokens, np.full((4, 1), 0.938), rng.integers(0, 3, 4))


@pytest.mark.parametrize("seed", range(15))
def test_the_active_set_does_not_cycle_where_rounding_decides_what_is_dependent(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluations = []

    def run(function: object, _: float, *arguments: object) -> tuple[object, ...]:
        answer = interpreted(function)(*arguments)
        if function is exchange:
            evaluations.append(answer[3])
            # Three attempts at eight constraints; a cycle takes them all without end.
            assert sum(evaluations) < 300
        return answer

    monkeypatch.setattr(exchanges, "call", run)
    monkeypatch.setattr(exchanges, "LEAST_STEPS", 400)
    solution = solve(nearly_one_direction(seed), method="active_set")
    # What HiGHS proves; where neither proves anything the margins are rounding.
    feasible = reference(solution.problem, "frobenius").feasible
    contrary = {True: Status.INFEASIBLE, False: Status.OPTIMAL}
    assert feasible is None or solution.status is not contrary[feasible]


def test_settling_ends_with_numbers_out_of_range() -> None:
    passive = interpreted(empty_set)(3)
    passive.factor[:] = np.eye(3)
    passive.free[:], passive.members[:] = False, range(3)
    passive.solved[:], passive.values[:] = -1.0, np.nan
    assert interpreted(settle)(passive, 3) == 0


def test_a_weight_far_below_the_squared_norm_grows_to_it() -> None:
    """x >= 1 and h y >= 1 + x: y = 2 / h, whose square hides rho in rounding at the first weight, one."""
    h = 1e-6
    setting, control = setting_of(single([[1.0, 0.0], [-1.0, h]])), Control(1e-9)
    assert finish(exchanges.solve_by_exchanges(setting, control, np.zeros(setting.reduced.rejected.shape))) is None
    assert control.solved
    assert control.state.objective / setting.reduced.scale == pytest.approx(np.hypot(1.0, 2.0 / h), rel=2e-9)


@pytest.mark.parametrize("size", [(12, 6, 6), (3, 3, 6)])
def test_a_passive_set_has_room_for_no_more_constraints_than_can_be_held(
    size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, or one more than W has entries: a constraint and its c are so many numbers."""
    rooms: list[int] = []
    first_set = exchanges._first_set

    def recorded(reduced: Any, constraints: Any, guess: Any, weight: float, capacity: int, most: int) -> Any:
        rooms.append(capacity)
        return first_set(reduced, constraints, guess, weight, capacity, most)

    monkeypatch.setattr(exchanges, "_first_set", recorded)
    setting, control = setting_of(FAMILIES["planted"].draw(*size)), Control(1e-9)
    finish(exchanges.solve_by_exchanges(setting, control, np.zeros(setting.reduced.rejected.shape)))
    assert control.solved
    rejected, entries = int(setting.reduced.rejected.sum()), int(np.prod(setting.reduced.shape))
    assert rooms == [min(rejected, entries + 1)]


@pytest.mark.parametrize(("small", "is_factored"), [(4, True), (5, False)])
def test_the_first_passive_set_takes_the_multipliers_of_the_longest_parts(
    small: int, is_factored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A multiplier times the length of its constraint is the length of its part of W; LAPACK factors the larger set."""
    factored: list[np.ndarray] = []
    factor = exchanges._factor

    def recorded(reduced: Any, constraints: Any, passive: Any, members: Any, weight: float) -> bool:
        factored.append(members)
        return factor(reduced, constraints, passive, members, weight)

    monkeypatch.setattr(exchanges, "_factor", recorded)
    monkeypatch.setattr(exchanges, "SMALL_SET", small)
    reduced = setting_of(FAMILIES["planted"].draw(12, 6, 6)).reduced
    guess = np.where(reduced.rejected, np.random.default_rng(0).random(reduced.rejected.shape), 0.0).ravel()
    passive, size = exchanges._first_set(reduced, Constraints.of_reduced(reduced), guess, 2.0, 37, 5)
    longest = np.argsort(guess * reduced.lengths.ravel())[-5:]
    members = passive.members[:size]
    assert sorted(members) == sorted(longest)
    assert bool(factored) == is_factored
    np.testing.assert_allclose(passive.values[:size], guess[members] / 2.0, rtol=1e-15)
    # The factor is that of w a_j.a_k + c_j c_k, where c is one.
    rows = reduced.constraint_rows(*np.divmod(members, reduced.delta.shape[1]))
    lower = np.tril(passive.factor[:size, :size])
    np.testing.assert_allclose(lower @ lower.T, 2.0 * rows @ rows.T + 1.0, rtol=1e-13, atol=1e-15)


def test_the_active_set_goes_on_after_a_pause_and_counts_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []

    def recorded(function: Any, *arguments: Any) -> Any:
        answer = call(function, *arguments)
        if function is exchange:
            steps.append(answer[3])
        return answer

    monkeypatch.setattr(exchanges, "call", recorded)
    monkeypatch.setattr(exchanges, "compiles", lambda *_: False)
    monkeypatch.setattr(exchanges, "ATTEMPTS", 1)
    monkeypatch.setattr(exchanges, "newton", lambda *_, **options: iter(()))
    setting, control = setting_of(FAMILIES["planted"].draw(30, 8, 6)), Control(1e-9)
    finish(exchanges.solve_by_exchanges(setting, control, np.zeros(setting.reduced.rejected.shape)))
    assert control.solved
    assert len(steps) > 1
    assert max(steps) <= exchanges.LEAST_STEPS
    assert control.iterations == sum(steps)


def test_multipliers_of_the_active_set_have_a_matrix_of_margin_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refinement starts from it, and takes no matrix whose margins are far from one."""
    given: list[np.ndarray] = []
    monkeypatch.setattr(exchanges, "refine", lambda setting, V, *_: given.append(V) or True)
    setting = setting_of(FAMILIES["planted"].draw(12, 6, 6))
    reduced = setting.reduced
    # No gap is below -1.
    assert finish(exchanges.solve_by_exchanges(setting, Control(-1.0), np.zeros(reduced.rejected.shape))) is None
    (V,) = given
    assert reduced.min_margin(reduced.apply(V)) == pytest.approx(1.0, rel=1e-9)


def test_the_weight_of_another_attempt_is_no_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the solution's multipliers weigh more than its squared norm, which calls for no more."""
    weights: list[float] = []
    first_set = exchanges._first_set

    def recorded(reduced: Any, constraints: Any, guess: Any, weight: float, *rest: Any) -> Any:
        weights.append(weight)
        return first_set(reduced, constraints, guess, weight, *rest)

    monkeypatch.setattr(exchanges, "_first_set", recorded)
    monkeypatch.setattr(exchanges, "refine", lambda *_: False)
    monkeypatch.setattr(exchanges, "newton", lambda *_, **options: iter(()))
    monkeypatch.setattr(Setting, "ends_in_rounding", lambda *_: False)
    problem = FAMILIES["planted"].draw(12, 6, 6)
    setting = setting_of(problem)
    start = 10.0 * setting.reduced.gather(solve(problem).dual) * setting.unit
    finish(exchanges.solve_by_exchanges(setting, Control(-1.0), start))
    assert len(weights) == exchanges.ATTEMPTS
    np.testing.assert_allclose(weights, start.sum(), rtol=1e-12)
