"""The schedule strands no instance: mid-size problems, contradictions and clocks of the Frobenius norm."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import problems
from attsvm import SelectionProblem, Status, solve
from attsvm.core.norms import FROBENIUS, Entrywise, Norm
from attsvm.core.reduction import reduce
from attsvm.platform import kernels
from attsvm.proofs.objective import Regularisation
from attsvm.solvers import in_memory
from attsvm.solvers.common import farkas
from attsvm.solvers.common.contradictions import _hashes, _parallel_queries, opposite_demands
from attsvm.solvers.common.control import Control, IterationState
from attsvm.solvers.common.diagonal_normal import DiagonalNormal
from attsvm.solvers.compiled import frobenius
from attsvm.solvers.frobenius import portfolio
from attsvm.solvers.frobenius.coordinate_descent import DualCoordinateDescent
from attsvm.solvers.frobenius.portfolio import FROBENIUS_METHODS
from attsvm.solvers.interior_point.engine import CENTRE
from attsvm.solvers.interior_point.euclidean import work_of_a_step
from attsvm.solvers.schedule import (
    ACTIVE_SET_TURN,
    BLAS_RATE,
    BUDGET_GROWTH,
    CROWD_RATIO,
    EARLY_ROUNDS,
    EXCHANGE_ROUNDS,
    FIRST_TURN,
    INTERIOR_STEPS,
    INTERIOR_TURN,
    LATE_ROUNDS,
    LINEAR_ROUNDS,
    NEWTON_GAP,
    SECOND_TURN,
    SMOOTH_ROUNDS,
    UNCOMPILED_SHARE,
    Steps,
    Turn,
    beside_rounds,
    finish,
    nuclear_first_order_work,
    nuclear_interior_work,
    take_turns,
)
from settings import setting_of


@pytest.mark.parametrize("seed", range(5, 10))
def test_many_ties_at_mid_size_are_decided(seed: int) -> None:
    """A penalty on the ties left three of these five undecided; one is infeasible."""
    problem = problems.several(np.random.default_rng([seed, 100, 32, 24]), 100, 32, 24)
    solution = solve(problem, time_limit=60)
    assert solution.status in (Status.OPTIMAL, Status.INFEASIBLE)
    if solution.status is Status.OPTIMAL:
        other = solve(problem, method="active_set")
        assert solution.objective == pytest.approx(other.objective, rel=2e-9)


@pytest.mark.parametrize("seed", range(5))
def test_the_published_generator_at_mid_size_is_infeasible(seed: int) -> None:
    problem = problems.published(np.random.default_rng([seed, 200, 32, 24]), 200, 32, 24)
    solution = solve(problem, time_limit=60)
    assert solution.status is Status.INFEASIBLE
    assert solution.certificate is not None
    assert solution.certificate.verify()


@pytest.mark.parametrize("name", problems.FAMILIES)
def test_every_family_at_mid_size_is_decided(name: str) -> None:
    problem = problems.FAMILIES[name].draw(100, 32, 24)
    assert solve(problem, time_limit=60).status in (Status.OPTIMAL, Status.INFEASIBLE)


def multiclass(classes: int, inputs: int, d: int) -> SelectionProblem:
    """Class vectors as tokens, inputs as queries, the label selected: more constraints than W has entries."""
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((inputs, d))
    labels = (queries @ rng.standard_normal((d, classes))).argmax(axis=1)
    return SelectionProblem(np.eye(classes)[None], queries, labels, sequence=np.zeros(inputs, dtype=int))


def test_multiclass_corner() -> None:
    problem = multiclass(15, 750, 25)
    solution, other = solve(problem), solve(problem, method="interior_point")
    assert solution.status is other.status is Status.OPTIMAL
    assert solution.objective == pytest.approx(other.objective, rel=2e-9)


def test_a_compiled_answer_that_fails_certification_is_not_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled call's own gap is no certificate: an answer that does not hold goes on to the other methods."""
    problem = problems.planted(np.random.default_rng(0), 6, 8, 10)
    expected = solve(problem)
    # Whatever has been compiled so far.
    monkeypatch.setattr("attsvm.solvers.solving.avoids_compiling", lambda problem: False)
    wrong, nothing = -expected.W, np.zeros(problem.mask.shape)
    monkeypatch.setattr(
        "attsvm.solvers.solving.solve_compiled",
        lambda problem, tol: (True, wrong, wrong, nothing, problem.apply(wrong)),
    )
    solution = solve(problem)
    assert solution.status is Status.OPTIMAL
    assert solution.objective == pytest.approx(expected.objective, rel=2e-9)
    assert solution.method.startswith("one-call active set, ")


def test_small_problems_avoid_a_kernel_until_that_costs_what_compiling_does(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problems.planted(np.random.default_rng(0), 6, 8, 10)
    limit = kernels.KERNELS[frobenius.solve_each].seconds
    for at_hand, lost, avoids in ((False, 0.0, True), (False, limit, False), (True, 0.0, False)):
        for module in (kernels, frobenius):
            monkeypatch.setattr(module, "at_hand", lambda function, at_hand=at_hand: at_hand)
        monkeypatch.setitem(kernels._WITHOUT, frobenius.solve_each, lost)
        assert frobenius.avoids_compiling(problem) == avoids


def test_the_interpreter_solves_a_small_problem_as_machine_code_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """W e_1 = (1, 3) and the multipliers 7 and 3 are worked out beside the problem."""
    monkeypatch.setattr(kernels, "at_hand", lambda function: False)
    monkeypatch.setitem(kernels._WITHOUT, frobenius.solve_each, 0.0)
    expected = problems.counterexample()
    assert expected.W is not None
    solved, W, adjoint, dual, margins = frobenius.solve_compiled(expected.problem, 1e-9)
    assert solved
    np.testing.assert_allclose(W, expected.W, atol=1e-14)
    np.testing.assert_allclose(adjoint, expected.W, atol=1e-14)
    np.testing.assert_allclose(dual, [[0.0, 7.0], [0.0, 3.0]], atol=1e-14)
    np.testing.assert_allclose(margins, [[0.0, 1.0], [0.0, 1.0]], atol=1e-14)


@pytest.mark.parametrize("C", [1e-2, 1.0, 1e2, 1e5])
@pytest.mark.parametrize("make", [problems.published, problems.planted])
def test_soft_margins_from_small_to_large_C_are_decided(make: Callable[..., SelectionProblem], C: float) -> None:
    """Separable or not: a minute at C = 100 where Newton meets more multipliers than W has entries."""
    solution = solve(make(np.random.default_rng([0, 200, 10, 8]), 200, 10, 8), C=C)
    assert solution.status is Status.OPTIMAL
    assert solution.iterations < 400  # passes count one each; every limit of a method is beyond this


# --- the outer loop beside a method on the whole problem ---


@pytest.mark.parametrize("norm", ["frobenius", "spectral"])
@pytest.mark.slow
def test_many_constraints_for_few_entries_are_left_to_working_sets(norm: str) -> None:
    """The method on all of them takes four times as long."""
    problem = problems.planted(np.random.default_rng(11), 10_000, 8, 6)
    solution = solve(problem, norm)
    assert solution.status is Status.OPTIMAL
    assert "working sets" in solution.method
    assert solution.objective == pytest.approx(solve(problem, norm, method="streamed").objective, rel=2e-9)


@pytest.mark.parametrize("p", [1.5, 3])
def test_working_sets_come_first_where_constraints_span_few_dimensions(p: float) -> None:
    """Tokens in a plane have four active constraints at most, of 6200: the barrier on all took three times as long."""
    problem = problems.subspace(np.random.default_rng([3, 200, 32, 24]), 200, 32, 24)
    solution = solve(problem, p)
    assert solution.status is Status.OPTIMAL
    assert solution.method == "working sets"
    assert solution.objective == pytest.approx(solve(problem, p, method="streamed").objective, rel=2e-9)


@pytest.mark.parametrize("norm", [1, 1.5, "max"])
def test_working_sets_come_first_where_constraints_and_entries_are_many(norm: str | float) -> None:
    """Of 1860 constraints some 200 are active at the end: the whole problem took five to ten times as long."""
    problem = problems.correlated(np.random.default_rng([7, 60, 32, 40]), 60, 32, 40)
    solution = solve(problem, norm)
    assert solution.status is Status.OPTIMAL
    assert solution.method == "working sets"
    assert solution.objective == pytest.approx(solve(problem, norm, method="auto").objective, rel=2e-9)


@pytest.mark.parametrize(("size", "is_few"), [((30, 8, 15), True), ((25, 10, 15), False), ((30, 9, 15), False)])
def test_steps_of_entrywise_norms_solve_for_the_fewer_of_constraints_and_entries(size, is_few) -> None:
    """210, 225 or 240 constraints beside 225 entries of W."""
    problem = problems.planted(np.random.default_rng(3), *size)
    assert DiagonalNormal(reduce(problem, rotate=False)).few == is_few


@pytest.mark.parametrize(
    ("norm", "shape", "rows", "span", "hard", "shares"),
    [
        # Neither many constraints nor costly systems: no outer loop.
        (FROBENIUS, (30, 30), (500, 9), 900, True, None),
        (FROBENIUS, (30, 30), (799, 9), 900, True, None),
        (FROBENIUS, (30, 30), (800, 9), 900, True, LATE_ROUNDS),
        (FROBENIUS, (10, 10), (5_000, 1), 100, True, LATE_ROUNDS),
        # Many constraints of a hard margin: early.
        (FROBENIUS, (10, 10), (50_000, 1), 100, True, EXCHANGE_ROUNDS),
        (FROBENIUS, (10, 10), (49_999, 1), 100, True, LATE_ROUNDS),
        (FROBENIUS, (10, 10), (50_000, 1), 100, False, LATE_ROUNDS),
        (FROBENIUS, (30, 30), (50_000, 1), 900, True, EARLY_ROUNDS),
        (FROBENIUS, (60, 60), (50_000, 1), 3600, True, LATE_ROUNDS),
        # Entrywise norms: first where the smaller of constraints and entries is large, also beside the queries.
        (Entrywise(1), (30, 30), (50, 18), 900, True, LINEAR_ROUNDS),
        (Entrywise(1.5), (30, 30), (50, 18), 900, True, SMOOTH_ROUNDS),
        (Entrywise(1), (30, 30), (76, 12), 900, True, None),
        (Entrywise(1), (20, 30), (50, 14), 600, True, None),
        # In smooth ones first where the constraints span few dimensions, too.
        (Entrywise(1.5), (20, 20), (50, 14), 25, True, EARLY_ROUNDS),
        (Entrywise(1.5), (20, 20), (50, 14), 26, True, None),
        (Entrywise(1.5), (19, 21), (50, 14), 24, True, None),
        (Entrywise(1), (20, 20), (50, 14), 25, True, None),
    ],
)
def test_the_outer_loop_takes_part_where_constraints_are_many_or_systems_costly(
    norm: Norm,
    shape: tuple[int, int],
    rows: tuple[int, int],
    span: int,
    hard: bool,
    shares: tuple[float, float] | None,
) -> None:
    """As the sentences in the table of choices say; budgets are in units of the interior point's expected work."""
    terms = SimpleNamespace(norm=norm, hard=hard, rejected=np.broadcast_to(np.True_, rows))
    reduced = SimpleNamespace(shape=shape, constraint_rank=span)
    setting: Any = SimpleNamespace(terms=terms, reduced=reduced, plain=hard)
    whole, rounds = Turn("whole", working(1.0, []), np.inf), Turn("rounds", working(1.0, []), np.inf)
    turns = beside_rounds(setting, 0.25, whole, rounds)
    if shares is None:
        assert turns == [whole]
        assert whole.budget == np.inf
        return
    assert turns == ([rounds, whole] if norm is not FROBENIUS else [whole, rounds])
    assert (whole.budget, rounds.budget) == tuple(share * INTERIOR_STEPS * 0.25 for share in shares)


def test_the_work_of_a_large_step_is_that_of_its_factor() -> None:
    """Of the matrix over the constraints, within a factor of three from a thousand constraints on."""
    assert nuclear_first_order_work((30, 30), 4000) > nuclear_first_order_work((30, 30), 1000) > 0
    for count in (1000, 4000):
        work = nuclear_interior_work((30, 30), count)
        assert 1.0 < work / (count**3 / 3.0 / BLAS_RATE) < 3.0


@pytest.mark.parametrize("work", [nuclear_first_order_work, nuclear_interior_work])
@pytest.mark.parametrize(("p", "r", "m"), [(10, 10, 10), (10, 100, 1), (10, 1, 100_000), (100, 100, 1)])
def test_a_larger_step_is_more_work(work: Callable[..., float], p: int, r: int, m: int) -> None:
    steps = [work((p, r), m), work((2 * p, r), m), work((2 * p, 2 * r), m), work((2 * p, 2 * r), 2 * m)]
    assert steps[0] > 0.0
    assert (np.diff(steps) > 0.0).all()


def test_a_gap_that_the_whole_problem_leaves_open_is_closed_on_working_sets() -> None:
    """The spectral norm's interior point on all tokens and its path end undecided, after 25 seconds."""
    problem = problems.low_rank(np.random.default_rng(7), 5000, 16, 14)
    assert solve(problem, "spectral", time_limit=60).status is Status.OPTIMAL


def test_a_second_run_on_thousands_of_constraints_is_left_to_the_path() -> None:
    """In the nuclear norm each of its steps factors a matrix over the constraints; 20 seconds were not enough."""
    problem = problems.published(np.random.default_rng(5), 300, 16, 4)
    assert solve(problem, "nuclear", C=1000.0, time_limit=60).iterations < 600


@pytest.fixture
def rounds_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_memory, "beside_rounds", lambda setting, work, whole, rounds: [rounds, whole])
    monkeypatch.setattr("attsvm.solvers.solving.avoids_compiling", lambda problem: True)


@pytest.mark.usefixtures("rounds_first")
@pytest.mark.parametrize("norm", ["frobenius", "nuclear", 1, 1.5])
@pytest.mark.parametrize("options", [{}, {"C": 2.0}, {"C": 2.0, "loss": "squared_hinge"}, {"prior": 0.1}], ids=str)
def test_what_working_sets_find_is_the_answer(norm: str | float, options: dict[str, Any]) -> None:
    """The pair of the outer loop, brought to the coordinates of the whole problem, ends the run there."""
    problem = problems.several(np.random.default_rng([3, 8, 8, 6]), 8, 8, 6)
    options_of_problem = (
        dict(options, prior=np.full(problem.shape[2:], options["prior"])) if "prior" in options else options
    )
    solution, other = (
        solve(problem, norm, **options_of_problem),
        solve(problem, norm, **options_of_problem, method="streamed"),
    )
    assert solution.status is other.status is Status.OPTIMAL
    assert solution.method == "working sets"
    assert solution.objective == pytest.approx(other.objective, rel=1e-4)
    assert solution.verify().proven


@pytest.mark.usefixtures("rounds_first")
@pytest.mark.parametrize("norm", ["frobenius", "max"])
def test_working_sets_prove_infeasibility_beside_the_whole(norm: str) -> None:
    solution = solve(problems.published(np.random.default_rng(0), 60, 12, 4), norm)
    assert solution.status is Status.INFEASIBLE
    assert solution.method == "working sets"
    assert solution.certificate is not None
    assert solution.certificate.verify()


@pytest.mark.usefixtures("rounds_first")
def test_limits_and_callbacks_bind_working_sets_beside_the_whole() -> None:
    problem = problems.planted(np.random.default_rng(3), 900, 12, 6)
    states: list[int] = []
    cancelled = solve(problem, "max", callback=lambda state: bool(states.append(state.iteration) or len(states) > 2))
    assert cancelled.status is Status.CANCELLED
    assert states == sorted(states)
    assert cancelled.iterations == states[-1]
    # The best pair of the rounds is reported though they were not at their end.
    assert cancelled.lower_bound > 0
    assert solve(problem, "max", max_iter=5).status is Status.MAX_ITERATIONS


def test_a_callback_counts_every_step_of_working_sets_once() -> None:
    nothing: Any = None
    control, rounds = Control(1e-9), Control(1e-9)
    in_memory._OuterLoop(nothing, 1.0, control, nothing, rounds)
    assert rounds.callback is not None
    counts = []
    for iteration in (3, 4, 9):
        rounds.callback(IterationState(iteration, np.inf, 0.0, 0.0, ""))
        counts.append(control.iterations)
    assert counts == [3, 4, 9]


def test_reports_count_the_steps_of_working_sets_since_the_last_one() -> None:
    setting = setting_of(problems.planted(np.random.default_rng(0), 4, 3, 3))
    control, rounds = Control(1e-9), Control(1e-9)
    W, dual = np.zeros((3, 3)), np.zeros((4, 3))
    loop: Any = SimpleNamespace(run=lambda: iter(()), outcome=(None, W, dual))
    outer = in_memory._OuterLoop(setting, 1.0, control, loop, rounds)
    rounds.iterations = 4
    finish(outer.run())
    counts = [control.iterations]
    for rounds.iterations in (4, 9):
        outer.report()
        counts.append(control.iterations)
    assert counts == [4, 4, 9]


@pytest.mark.parametrize("unit", [0.25, 1.0])
def test_multipliers_of_working_sets_are_brought_to_the_coordinates_of_the_whole(unit: float) -> None:
    """A multiplier below the price of a hinge stays below it, and is not cut off there."""
    setting = setting_of(
        problems.planted(np.random.default_rng(0), 4, 3, 3), regularisation=Regularisation(1.0, "hinge", None)
    )
    reduced, terms, control = setting.reduced, setting.terms, Control(1e-9)
    multipliers = np.where(reduced.rejected, np.random.default_rng(1).uniform(0.1, 0.9, (4, 2)) * terms.upper, 0.0)
    outcome = (None, np.zeros((3, 3)), reduced.lift_dual(multipliers / unit))
    loop: Any = SimpleNamespace(run=lambda: iter(()), outcome=outcome)
    finish(in_memory._OuterLoop(setting, unit, control, loop, Control(1e-9)).run())
    scale, bound = terms.bound(multipliers, reduced.adjoint(multipliers))
    assert control.state.lower_bound == pytest.approx(bound, rel=1e-12)
    assert control.dual is not None
    np.testing.assert_allclose(control.dual, scale * multipliers, rtol=1e-12)


@pytest.mark.parametrize("copies", [1, 3])
def test_copies_of_the_selected_token_share_a_multiplier_of_one(copies: int) -> None:
    tokens = np.vstack([np.zeros((1 + copies, 2)), [[-1.0, 0.0]]])
    solution = solve(SelectionProblem(tokens[None], np.ones((1, 1)), [0]), "nuclear")
    assert solution.status is Status.INFEASIBLE
    assert solution.certificate is not None
    np.testing.assert_allclose(solution.certificate.dual, [[0.0, *[1.0 / copies] * copies, 0.0]], rtol=1e-15)


# --- the methods of the Frobenius norm ---


@pytest.mark.parametrize(("most", "is_tried"), [(700, True), (0, False)])
def test_passes_lead_to_newton_on_few_multipliers_only(
    most: int, is_tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    monkeypatch.setattr(portfolio, "newton", lambda *_, **options: tried.append(None) or iter(()))
    monkeypatch.setattr(portfolio, "SMALL_FACTOR", most)
    monkeypatch.setattr(portfolio, "FREE_RATIO", 0)
    monkeypatch.setattr(portfolio, "MAX_PASSES", 300)
    setting = setting_of(problems.planted(np.random.default_rng(0), 12, 6, 6))
    finish(portfolio.coordinate_newton(setting, Control(0.0), np.zeros(setting.terms.cost.shape)))
    assert bool(tried) == is_tried


@pytest.mark.parametrize("make", [problems.planted, problems.published])
def test_the_interior_point_looks_for_a_certificate_where_the_bound_is_large(
    make: Callable[..., SelectionProblem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan has a W, whose norm is below that; the published choice has none, and the bound grows."""
    bounds: list[float] = []
    setting, control = setting_of(make(np.random.default_rng(0), 20, 8, 4)), Control(1e-9)
    monkeypatch.setattr(farkas, "certificate", lambda *_: bounds.append(control.state.lower_bound))
    monkeypatch.setattr(portfolio, "newton", lambda *_, **options: iter(()))
    finish(portfolio.interior_point(setting, control, np.zeros(setting.terms.cost.shape)))
    assert control.solved == (make is problems.planted)
    if control.solved:
        assert not bounds
    else:
        assert min(bounds) > portfolio.SUSPICIOUS_NORM**2


@pytest.mark.parametrize(
    ("is_uncompiled", "few", "first", "expected"),
    [
        (False, 1000, ACTIVE_SET_TURN, ["coordinate descent + Newton", "interior point", "active set"]),
        (False, 0, FIRST_TURN, ["active set", "interior point", "coordinate descent + Newton"]),
        (True, 0, (UNCOMPILED_SHARE, 0), ["coordinate descent + Newton", "active set", "interior point"]),
    ],
)
def test_the_order_of_the_methods_follows_the_number_of_supports_and_the_machine_code(
    is_uncompiled: bool,
    few: int,
    first: tuple[float, int],
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of them comes last in later rounds, since it is the only one that does not wait."""
    given: list[Turn] = []
    monkeypatch.setattr(portfolio, "take_turns", lambda turns, *_: given.extend(turns) or iter(()))
    monkeypatch.setattr(portfolio, "spares", lambda *_: is_uncompiled)
    monkeypatch.setattr(portfolio, "FEW_SUPPORTS", few)
    monkeypatch.setattr(portfolio, "FEW_W_ENTRIES", few)
    setting = setting_of(problems.planted(np.random.default_rng(0), 12, 6, 6))
    assert finish(portfolio.solve_setting(setting, Control(1e-9), None)) is None
    assert [turn.name for turn in given] == expected
    *others, last = given
    shares = [INTERIOR_TURN if turn.name == "interior point" else SECOND_TURN for turn in others]
    work = INTERIOR_STEPS * work_of_a_step(setting.reduced)
    assert [(turn.budget, turn.delay) for turn in given] == [(share * work, wait) for share, wait in [*shares, first]]
    assert last.delay == 0


@pytest.mark.parametrize("is_large", [False, True])
def test_twice_as_many_supports_are_few_where_the_bound_is_large(
    is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portfolio, "FEW_SUPPORTS", 4)
    monkeypatch.setattr(portfolio, "FEW_W_ENTRIES", 0)
    setting = setting_of(problems.planted(np.random.default_rng(0), 12, 6, 6))
    for count, suits in ((4, True), (5, is_large), (8, is_large), (9, False)):
        dual = np.zeros(setting.terms.cost.shape)
        dual[tuple(part[:count] for part in np.nonzero(setting.terms.rejected))] = 1.0
        bound = setting.terms.bound(dual, setting.reduced.adjoint(dual))[1]
        monkeypatch.setattr(portfolio, "SUSPICIOUS_NORM", bound / 2 if is_large else 2 * bound)
        assert portfolio._suits_exchanges(setting, dual) == suits


@pytest.mark.parametrize("method", ["active_set", "coordinate_newton"])
@pytest.mark.parametrize("is_given", [False, True])
def test_passes_make_a_guess_only_where_none_is_given(
    method: str, is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    run = DualCoordinateDescent.run

    def recorded(descent: DualCoordinateDescent, count: int, *rest: Any) -> float:
        passes.append(count)
        return run(descent, count, *rest)

    monkeypatch.setattr(DualCoordinateDescent, "run", recorded)
    problem = problems.planted(np.random.default_rng(0), 12, 6, 6)
    setting, control = setting_of(problem), Control(1e-6)
    start = is_given * setting.reduced.gather(solve(problem).dual) * setting.unit
    assert not (setting.terms.rejected & (start > 0)).all()
    assert finish(FROBENIUS_METHODS[method][1](setting, control, start)) is None
    assert control.solved
    assert bool(passes) != is_given


def test_passes_leave_tokens_that_are_not_there_without_a_multiplier() -> None:
    rng = np.random.default_rng(0)
    mask = np.arange(5) < np.array([5, 3, 2, 4])[:, None]
    problem = SelectionProblem(rng.standard_normal((4, 5, 6)), rng.standard_normal((4, 6)), np.zeros(4, int), mask=mask)
    setting = setting_of(problem)
    dual = np.zeros(setting.terms.cost.shape)
    DualCoordinateDescent(setting, dual).run(10)
    assert not setting.terms.rejected.all()
    assert np.isfinite(dual).all()
    assert (dual[setting.terms.rejected] > 0).any()
    assert not dual[~setting.terms.rejected].any()


@pytest.mark.parametrize(("most", "is_early"), [(700, True), (0, False)])
def test_newton_waits_for_a_smaller_gap_where_supports_are_many(
    most: int, is_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps: list[float] = []
    setting, control = setting_of(problems.planted(np.random.default_rng(0), 12, 6, 6)), Control(1e-9)
    monkeypatch.setattr(portfolio, "newton", lambda *_, **options: gaps.append(control.state.gap) or iter(()))
    monkeypatch.setattr(portfolio, "SMALL_FACTOR", most)
    monkeypatch.setattr(portfolio, "FREE_RATIO", 10)
    monkeypatch.setattr(portfolio, "SLOW", np.inf)
    finish(portfolio.coordinate_newton(setting, control, np.zeros(setting.terms.cost.shape)))
    assert gaps
    assert (max(gaps) > NEWTON_GAP) == is_early


@pytest.mark.parametrize("method", ["coordinate_newton", "interior_point"])
def test_a_search_for_a_certificate_that_fails_is_not_the_last(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, asked = setting_of(problems.published(np.random.default_rng(0), 20, 8, 4)), []
    nothing = np.zeros(setting.terms.cost.shape)
    proof = np.ones(nothing.shape)
    monkeypatch.setattr(farkas, "certificate", lambda *_: asked.append(None) or (proof if len(asked) == 2 else None))
    assert finish(FROBENIUS_METHODS[method][1](setting, Control(1e-9), nothing)) is proof
    assert len(asked) == 2


@pytest.mark.parametrize("is_given", [False, True])
def test_the_interior_point_starts_near_the_bounds_from_a_solution_only(
    is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StartedError(Exception):
        pass

    starts: list[tuple[bool, float]] = []

    def started(setting: Any, V: np.ndarray | None, centre: float) -> None:
        starts.append((V is not None, centre))
        raise StartedError

    monkeypatch.setattr(portfolio, "FrobeniusInteriorPoint", started)
    problem = problems.published(np.random.default_rng(0), 20, 8, 4)
    setting, control = setting_of(problem, regularisation=Regularisation(1.0, "hinge", None)), Control(1e-9)
    dual = setting.reduced.gather(solve(problem, C=1.0).dual) * setting.unit
    if is_given:
        setting.report(setting.reduced.adjoint(dual), dual, control)
    with pytest.raises(StartedError):
        finish(portfolio.interior_point(setting, control, dual))
    assert starts == [(is_given, portfolio.NEAR_CENTRE if is_given else CENTRE)]


def test_the_interior_point_goes_on_while_it_comes_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "STALLED_STEPS", 1)
    monkeypatch.setattr(portfolio, "newton", lambda *_, **options: iter(()))
    setting, control = setting_of(problems.planted(np.random.default_rng(0), 20, 8, 4)), Control(1e-9)
    finish(portfolio.interior_point(setting, control, np.zeros(setting.terms.cost.shape)))
    assert control.solved


# --- the schedule itself ---


STEP = 0.01


def working(total: float, log: list[float], answer: np.ndarray | None = None) -> Steps:
    """A method that needs so much work, in steps of a hundredth."""
    for _ in range(round(total / STEP)):
        log.append(STEP)
        yield STEP
    return answer


def schedule_bound(turns: list[Turn], k: int, budget: float) -> float:
    """F_k + c_k x of the schedule's docstring, and a step of each."""
    before, after, waits = turns[:k], turns[k + 1 :], turns[k].delay
    first = sum(turn.budget * BUDGET_GROWTH**waits for turn in before if turn.delay <= waits)
    first += sum(turn.budget * BUDGET_GROWTH ** (waits - 1) for turn in after if turn.delay < waits)
    others = BUDGET_GROWTH * sum(turn.budget for turn in before) + sum(turn.budget for turn in after)
    return first + (1.0 + others / turns[k].budget) * budget + STEP * len(turns)


@pytest.mark.parametrize("least_work", [0.02, 0.2, 0.5, 1.0, 1.3, 6.0, 45.0])
@pytest.mark.parametrize("best", range(3))
@pytest.mark.parametrize(
    "shares", [(SECOND_TURN, INTERIOR_TURN, FIRST_TURN), ((0.2, 0), (0.2, 0), (0.2, 0)), ((1.0, 2), (0.1, 0), (0.3, 1))]
)
def test_all_work_together_is_bounded_by_the_work_of_the_best_method(
    shares: tuple[tuple[float, int], ...], best: int, least_work: float
) -> None:
    answer, log = np.ones((1, 1)), []
    turns = [
        Turn(str(k), working(least_work, log, answer) if k == best else working(1e6, log), budget, waits)
        for k, (budget, waits) in enumerate(shares)
    ]
    limit = schedule_bound(turns, best, least_work)
    assert finish(take_turns(turns, Control(1e-9))) is answer
    assert least_work - STEP < sum(log) <= limit + 1e-9


@pytest.mark.parametrize("budget", [0.75, 1.0, 1.45])
def test_where_the_interior_point_is_the_best_method_the_others_cost_little_more_than_itself(budget: float) -> None:
    """In units of its expected work, which it needs .75 to 1.5 times: the others have had .4 and .6 before it."""
    answer, log = np.ones((1, 1)), []
    turns = [
        Turn("second", working(1e6, log), *SECOND_TURN),
        Turn("interior", working(budget, log, answer), *INTERIOR_TURN),
    ]
    assert finish(take_turns([*turns, Turn("first", working(1e6, log), *FIRST_TURN)], Control(1e-9))) is answer
    assert sum(log) <= 2.4 * budget + 3 * STEP


def test_a_method_that_ends_leaves_its_turn_to_the_others_and_the_clock_binds() -> None:
    control = Control(1e-9, time_limit=0.2)
    log: list[float] = []
    waits = 0

    def waiting() -> Steps:
        nonlocal waits
        while True:
            waits += 1
            time.sleep(0.01)
            yield 1.0

    assert finish(take_turns([Turn("short", working(3, log), np.inf), Turn("long", waiting(), 1.0)], control)) is None
    assert control.stopped is Status.TIME_LIMIT
    assert 0 < waits <= 21  # none is shorter than .01, and the limit is asked after each
    assert control.method == "short, long"


@pytest.mark.parametrize("method", FROBENIUS_METHODS)
def test_method_names_what_ran_and_nothing_else(method: str) -> None:
    problem = problems.planted(np.random.default_rng(0), 60, 20, 16)
    assert solve(problem, method=method).method == FROBENIUS_METHODS[method][0]


def test_a_method_that_is_no_more_is_refused_by_a_sentence_with_its_new_word() -> None:
    with pytest.raises(ValueError, match=r"^method is 'sharded'; .*'streamed' was expected for the frobenius norm\.$"):
        solve(problems.planted(np.random.default_rng(0), 3, 3, 3), method="sharded")


@pytest.mark.parametrize(("loss", "crowds"), [("squared_hinge", True), ("hinge", False)])
def test_a_warm_start_is_crowded_by_more_than_four_multipliers_an_entry(
    loss: str, crowds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portfolio, "CROWD", 10)
    problem = problems.planted(np.random.default_rng(0), 30, 8, 6)
    setting = setting_of(problem, regularisation=Regularisation(1.0, loss, None))
    most = CROWD_RATIO * setting.reduced.shape[0] * setting.reduced.shape[1]
    for count in (most, most + 1):
        dual = np.zeros(setting.terms.cost.shape)
        dual[tuple(part[:count] for part in np.nonzero(setting.terms.rejected))] = 1.0
        assert np.count_nonzero(dual) == count
        assert portfolio._is_crowded(setting, dual) == (crowds and count > most)


# --- opposite demands ---


def cyclic(length: int, n: int = 40, T: int = 12, d: int = 96, *, signs: bool = False) -> SelectionProblem:
    """``length`` of n queries are one query, possibly times a factor, and prefer tokens in a circle."""
    rng = np.random.default_rng(length)
    tokens, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    selected = rng.integers(T, size=n)
    mask = np.ones((n, T), dtype=bool)
    rows = rng.permutation(n)[:length]
    tokens[rows], queries[rows] = tokens[rows[0]], queries[rows[0]]
    for k, row in enumerate(rows):
        mask[row] = False
        mask[row, [k, (k + 1) % length]] = True
        # The negative of a query turns its preference round.
        factor = -2.0 if signs and k % 2 else 1.0
        queries[row] *= factor
        selected[row] = (k + 1) % length if factor < 0 else k
    return SelectionProblem(tokens, queries, selected, mask=mask)


@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize("length", [2, 3, 7])
@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_opposite_demands_are_found_before_any_iteration(norm: str, length: int, signs: bool) -> None:
    problem = cyclic(length, signs=signs)
    solution = solve(problem, norm)
    assert solution.status is Status.INFEASIBLE
    assert solution.method == "opposite demands"
    assert solution.iterations == 0
    assert solution.certificate is not None
    assert np.count_nonzero(solution.certificate.dual) == length
    assert solution.certificate.verify()


@pytest.mark.parametrize(("upper", "lower"), [(1, 0), (0, 1)], ids=["along the tie", "against the tie"])
def test_a_cycle_through_ties_has_signed_multipliers(upper: int, lower: int) -> None:
    """a = b by one query; by its double one of them is above c, and by its negative c is above the other."""
    rng = np.random.default_rng(0)
    tokens, query = rng.standard_normal((1, 3, 5)), rng.standard_normal(4)
    ends = np.eye(3, dtype=bool)
    selected = np.array([ends[0] | ends[1], ends[upper], ends[lower]])
    mask = np.array([ends[0] | ends[1], ends[upper] | ends[2], ends[lower] | ends[2]])
    problem = SelectionProblem(tokens, np.array([query, 2 * query, -query]), selected, mask=mask, sequence=[0, 0, 0])
    dual = opposite_demands(problem)
    assert dual is not None
    np.testing.assert_allclose(problem.adjoint(dual), 0.0, atol=1e-15)
    assert (dual[problem.rejected] >= 0).all()
    assert (dual[problem.tied] > 0).all() == (upper == 1)


def test_queries_along_an_axis_may_contradict_each_other() -> None:
    """Queries are compared by their largest entries; the smallest of these are zero."""
    problem = cyclic(3, signs=True)
    queries = problem.queries * (np.arange(problem.queries.shape[1]) == 5)
    dual = opposite_demands(SelectionProblem(problem.tokens, queries, problem.selected, mask=problem.mask))
    assert dual is not None
    assert np.count_nonzero(dual) == 3


def test_two_queries_alone_may_contradict_each_other() -> None:
    problem = cyclic(2, n=2)
    dual = opposite_demands(problem)
    assert dual is not None
    assert np.count_nonzero(dual) == 2
    np.testing.assert_allclose(problem.adjoint(dual), 0.0, atol=1e-15)


def test_many_queries_of_two_tokens_may_contradict_each_other() -> None:
    """The queries y, 2y, 3y and 4y of one text: the first two select the one token, the others the other."""
    tokens, query = np.random.default_rng(0).standard_normal((1, 2, 5)), np.ones(3)
    queries = np.outer([1.0, 2.0, 3.0, 4.0], query)
    problem = SelectionProblem(tokens, queries, [0, 0, 1, 1], sequence=[0, 0, 0, 0])
    dual = opposite_demands(problem)
    assert dual is not None
    np.testing.assert_allclose(problem.adjoint(dual), 0.0, atol=1e-15)
    assert dual[problem.rejected].sum() == pytest.approx(1.0, rel=1e-15)


def test_a_query_alone_is_no_group() -> None:
    """Two multiples of a direction are, and a third query and one of zeros are not."""
    queries = np.array([[1.0, 2.0], [0.0, 0.0], [1.0, -1.0], [-3.0, -6.0]])
    ((rows, factors),) = _parallel_queries(queries)
    np.testing.assert_array_equal(rows, [0, 3])
    np.testing.assert_array_equal(factors, [2.0, -6.0])


def test_rows_that_differ_in_one_entry_have_different_hashes() -> None:
    """Numbers whose sign and 32nd bit differ are a highest bit apart once mixed, which an odd factor keeps."""
    sign, low = np.uint64(1 << 63), np.uint64(1 << 31)
    row = np.random.default_rng(0).uniform(1.0, 2.0, 16).view(np.uint64)
    rows = np.tile(row, (17, 1))
    rows[np.arange(16), np.arange(16)] = row ^ sign ^ low
    *changed, unchanged = _hashes(rows.view(np.float64))
    assert unchanged not in changed


def test_consistent_repetition_is_no_contradiction() -> None:
    problem = problems.shared(np.random.default_rng(0), 60, 6, 8)
    twice = SelectionProblem(
        problem.tokens, np.vstack([problem.queries, 3 * problem.queries]), np.vstack([problem.selected] * 2),
        sequence=np.concatenate([problem.sequence] * 2),
    )  # fmt: skip
    assert opposite_demands(twice) is None
    assert solve(twice).objective == pytest.approx(solve(problem).objective, rel=2e-9)


def test_where_rounding_keeps_the_gap_open_no_further_method_is_tried() -> None:
    """Margins up to 1e4 beside one: W in floats leaves 1e-13 of the gap, which another method cannot close either."""
    problem = problems.planted(np.random.default_rng([0, 3000, 16, 4]), 3000, 16, 4)
    solution = solve(problem, tol=1e-14)
    assert "Newton" not in solution.method
    assert "interior point" not in solution.method
    assert solution.gap < 1e-12


@pytest.mark.slow
def test_no_matrix_over_a_quarter_of_a_million_entries_is_formed() -> None:
    """Where l_1 on the constraints lacks the last digits, a run on the entries would need 129 GiB."""
    problem = problems.planted(np.random.default_rng(1), 20, 8, 512)
    solution = solve(problem, 1.0)
    assert solution.status in (Status.OPTIMAL, Status.UNDECIDED)
    assert solution.gap < 1e-3
