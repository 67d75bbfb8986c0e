"""The first-order method for the nuclear norm, Newton that follows the face, and merged duplicates."""

from collections.abc import Generator
from dataclasses import replace

import numpy as np
import pytest

from attsvm import SelectionProblem, Status, solve
from attsvm.core.gap import relative_gap
from attsvm.core.norms import FROBENIUS, NUCLEAR, nuclear, spectral
from attsvm.core.reduction import Reduced
from attsvm.proofs.objective import HARD_MARGIN, Regularisation
from attsvm.solvers.common import phase_one
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.phase_one import FEASIBILITY_TOL, START_GAP, START_STEPS, open_with_frobenius
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.portfolio import solve_setting
from attsvm.solvers.nuclear import first_order, portfolio
from attsvm.solvers.nuclear.face_newton import refine
from attsvm.solvers.nuclear.first_order import PORTION, FirstOrder
from attsvm.solvers.nuclear.portfolio import NUCLEAR_METHODS
from attsvm.solvers.schedule import TARGETS, finish
from problems import FAMILIES
from settings import setting_of


def begin(problem: SelectionProblem) -> tuple[Reduced, FirstOrder]:
    setting = setting_of(problem, NUCLEAR)
    reduced = setting.reduced
    opening = finish(open_with_frobenius(setting, Control(-1.0)))  # a goal that no gap meets
    assert opening.V is not None
    assert opening.dual is not None
    return reduced, FirstOrder(reduced, reduced.rejected | reduced.tied, opening.V, opening.dual)


@pytest.mark.parametrize(
    ("regularisation", "size", "tol", "steps"),
    [
        (HARD_MARGIN, (12, 6, 6), FEASIBILITY_TOL, None),
        (HARD_MARGIN, (1, 6, 6), 1e-12, None),  # one query: the Frobenius optimum is the answer
        (Regularisation(1.0, "hinge", None), (12, 6, 6), START_GAP, START_STEPS),
        (Regularisation(1.0, "squared_hinge", None), (12, 6, 6), START_GAP, START_STEPS),
        (Regularisation(None, "hinge", np.full((6, 6), 0.1)), (12, 6, 6), START_GAP, START_STEPS),
    ],
    ids=["hard margin", "one query", "hinge", "squared hinge", "prior"],
)
def test_phase_one_solves_the_frobenius_problem_as_far_as_it_is_needed(
    regularisation: Regularisation,
    size: tuple[int, int, int],
    tol: float,
    steps: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only where feasibility is known may a number of steps end it."""
    asked = []

    def note(setting: Setting, control: Control, warm: None) -> Generator[float, None, np.ndarray | None]:
        asked.append((control.tol, control.max_iter))
        return (yield from solve_setting(setting, control, warm))

    monkeypatch.setattr(phase_one, "solve_setting", note)
    setting = setting_of(FAMILIES["planted"].draw(*size, seed=3), NUCLEAR, regularisation)
    control = Control(1e-12)
    opening = finish(open_with_frobenius(setting, control))
    assert asked == [(tol, steps)]
    if size[0] == 1:
        assert control.solved
        return
    assert control.iterations < START_STEPS
    assert opening.V is not None
    assert opening.dual is not None
    # Half the square beside a loss, the norm itself without one.
    terms = replace(setting.terms, norm=FROBENIUS, squared=not setting.terms.hard)
    value = terms.size(opening.V) + terms.loss(terms.cost - setting.reduced.apply(opening.V))
    bound = terms.bound(opening.dual, setting.reduced.adjoint(opening.dual))[1]
    assert relative_gap(bound, value) <= tol


@pytest.mark.parametrize(("has_W", "has_dual"), [(True, False), (False, True)])
def test_half_a_pair_does_not_open_a_hard_margin(has_W: bool, has_dual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends for the reason that ended phase one."""

    def stop(setting: Setting, control: Control, warm: None) -> Generator[float, None, None]:
        control.W = np.ones(setting.reduced.shape) if has_W else None
        control.dual = np.ones(setting.terms.cost.shape) if has_dual else None
        control.stopped = Status.TIME_LIMIT
        yield 0.0

    monkeypatch.setattr(phase_one, "solve_setting", stop)
    control = Control(1e-9)
    opening = finish(open_with_frobenius(setting_of(FAMILIES["planted"].draw(6, 5, 4), NUCLEAR), control))
    assert opening.V is opening.dual is opening.certificate is None
    assert control.stopped is Status.TIME_LIMIT


def test_a_hard_margin_opens_with_smallest_margin_one(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = setting_of(FAMILIES["planted"].draw(6, 5, 4), NUCLEAR)
    reduced = setting.reduced
    first = Control(1e-9)
    finish(solve_setting(replace(setting, terms=replace(setting.terms, norm=FROBENIUS)), first, None))
    assert first.W is not None
    longer = 8.0 * first.W

    def scaled(_: Setting, control: Control, warm: None) -> Generator[float, None, None]:
        control.W, control.dual = longer, first.dual
        yield 0.0

    monkeypatch.setattr(phase_one, "solve_setting", scaled)
    opening = finish(open_with_frobenius(setting, Control(-1.0)))  # a goal that no gap meets
    assert opening.V is not None
    assert reduced.min_margin(reduced.apply(opening.V)) == pytest.approx(1.0, rel=1e-12)


def test_losses_open_at_zero_if_phase_one_has_found_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_one, "solve_setting", lambda *_: iter([]))
    setting = setting_of(FAMILIES["planted"].draw(6, 5, 4), NUCLEAR, Regularisation(1.0, "hinge", None))
    opening = finish(open_with_frobenius(setting, Control(1e-9)))
    np.testing.assert_array_equal(opening.V, np.zeros(setting.reduced.shape))
    np.testing.assert_array_equal(opening.dual, np.zeros(setting.terms.cost.shape))


def opened(
    problem: SelectionProblem, share: float = 1.0
) -> tuple[Setting, np.ndarray, np.ndarray, FirstOrder, np.ndarray]:
    """The Frobenius solution, its multipliers, and steps on this share of the queries' constraints."""
    setting = setting_of(problem, NUCLEAR)
    opening = finish(open_with_frobenius(setting, Control(-1.0)))  # a goal that no gap meets
    assert opening.V is not None
    assert opening.dual is not None
    rejected = setting.reduced.rejected
    working = rejected & (np.arange(len(rejected)) < share * len(rejected))[:, None] | setting.reduced.tied
    return setting, opening.V, opening.dual, FirstOrder(setting.reduced, working, opening.V, opening.dual), working


def test_the_expected_number_of_steps_does_not_depend_on_the_units_of_queries() -> None:
    setting, V, dual, one, working = opened(FAMILIES["planted"].draw(12, 6, 6, seed=3))
    longer = replace(setting.reduced, queries=8.0 * setting.reduced.queries)
    other = FirstOrder(longer, working, V / 8.0, dual / 64.0)
    assert other.norm == pytest.approx(8.0 * one.norm, rel=1e-12)
    assert other.expected_steps == pytest.approx(one.expected_steps, rel=1e-12)


def test_steps_begin_alike_from_multipliers_on_any_scale() -> None:
    setting, V, dual, one, working = opened(FAMILIES["planted"].draw(12, 6, 6, seed=3))
    other = FirstOrder(setting.reduced, working, V, 8.0 * dual)
    assert other.expected_steps == pytest.approx(one.expected_steps, rel=1e-12)
    assert other.norm == pytest.approx(one.norm, rel=1e-12)
    assert one.advance(1e-3, 200) == other.advance(1e-3, 200)
    np.testing.assert_allclose(other.W, one.W, rtol=0, atol=1e-10 * float(np.abs(one.W).max()))


@pytest.mark.parametrize("family", ["planted", "several"])
@pytest.mark.parametrize(("most", "tries"), [(1000, len(TARGETS) - 1), (0, len(TARGETS) - 2)])
def test_violated_constraints_join_and_newton_is_tried_at_all_targets_but_the_first(
    family: str, most: int, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not at the second where supports are many."""
    tried, targets, asked, advance = [], [], [], FirstOrder.advance
    monkeypatch.setattr(
        FirstOrder, "advance", lambda self, target, limit: asked.append(target) or advance(self, target, limit)
    )
    monkeypatch.setattr(portfolio, "refine", lambda setting, W, *_: bool(tried.append(W) or targets.append(asked[-1])))
    monkeypatch.setattr(portfolio, "LARGE_SUPPORT", most)
    setting, _, _, method, working = opened(FAMILIES[family].draw(12, 6, 6, seed=3), 0.25)
    reduced, control = setting.reduced, Control(-1.0)
    assert finish(portfolio._first_order(setting, method, control)) is None
    assert targets == list(TARGETS[-tries:])
    assert (method.working & ~working).any()
    # Newton begins where the working set's smallest margin is one.
    assert reduced.apply(tried[-1])[reduced.rejected & method.working].min() == pytest.approx(1.0, rel=1e-12)
    # The last gap is that of all constraints, most of which were not in the first working set.
    assert control.state.gap < 1e-3


def test_first_order_steps_end_after_their_largest_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "MAX_FIRST_ORDER", 120)
    monkeypatch.setattr(portfolio, "TARGETS", (0.0,))  # that no gap is below
    setting, _, _, method, _ = opened(FAMILIES["planted"].draw(12, 6, 6, seed=3))
    control = Control(-1.0, max_iter=1000)
    assert finish(portfolio._first_order(setting, method, control)) is None
    assert control.stopped is None
    assert control.iterations == 3 * portfolio.CHUNK


@pytest.mark.parametrize(("work", "first"), [(0.0, portfolio.FIRST_ORDER), (1.0, portfolio.INTERIOR_POINT)])
def test_the_method_with_less_expected_work_comes_first(
    work: float, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the whole first round, in which it solves this problem."""
    monkeypatch.setattr(portfolio, "nuclear_first_order_work", lambda *_: work)
    monkeypatch.setattr(portfolio, "NUCLEAR_INTERIOR", 100.0)
    setting, control = setting_of(FAMILIES["planted"].draw(12, 6, 6, seed=3), NUCLEAR), Control(1e-9)
    assert finish(portfolio.solve_nuclear(setting, control, None)) is None
    assert control.solved
    assert control.method.endswith(f"), {first}")


def test_a_first_working_set_holds_the_smallest_margins_for_every_support(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or all constraints, if they are few."""
    setting = setting_of(FAMILIES["several"].draw(20, 8, 5, seed=3), NUCLEAR)
    reduced, random = setting.reduced, np.random.default_rng(0)
    rejected, dual = reduced.rejected, np.zeros(reduced.rejected.shape)
    dual[tuple(part[:6] for part in np.nonzero(rejected))] = 1.0
    margins = random.uniform(1.0, 9.0, rejected.shape)
    whole = portfolio._first_working_set(reduced, margins, dual, int(rejected.sum()))
    np.testing.assert_array_equal(whole, rejected | reduced.tied)
    monkeypatch.setattr(portfolio, "WHOLE_SET", 4)
    for room in (2, 3):
        working = portfolio._first_working_set(reduced, margins, dual, room)
        assert working[reduced.tied].all()
        members = working & rejected
        assert room * 6 <= members.sum() <= room * 6 + 1
        assert margins[members].max() < margins[rejected & ~members].min()


def certified_gap(reduced: Reduced, method: FirstOrder) -> float:
    """The gap from its definition; multipliers of inequalities must be nonnegative for it to mean anything."""
    dual = method.scattered_dual()
    assert dual[reduced.rejected].min() >= 0.0
    margin = reduced.min_margin(reduced.apply(method.W))
    return nuclear(method.W) / margin * spectral(reduced.adjoint(dual)) / dual[reduced.rejected].sum() - 1.0


@pytest.mark.parametrize(
    ("family", "size"), [("planted", (12, 6, 6)), ("rectangular", (8, 5, 3)), ("planted", (1, 6, 3))]
)
def test_steps_approach_the_optimum_with_the_gap_they_say(family: str, size: tuple[int, int, int]) -> None:
    problem = FAMILIES[family].draw(*size, seed=3)
    reduced, method = begin(problem)
    results = method.advance(1e-5, 20_000)
    assert results < 20_000
    # Both evaluate the same sums in another order; at this gap they agree to far more than rounding needs.
    assert certified_gap(reduced, method) == pytest.approx(method.gap, rel=1e-6, abs=1e-12)
    assert method.gap < 1e-5
    exact = solve(problem, "nuclear", method="interior_point", tol=1e-10)
    assert nuclear(method.W) / reduced.min_margin(reduced.apply(method.W)) / reduced.scale == pytest.approx(
        exact.objective, rel=2e-5
    )


def test_steps_in_the_interpreter_go_on_from_portion_to_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_order, "compiles", lambda *_: False)
    _, method = begin(FAMILIES["planted"].draw(12, 6, 6, seed=3))
    assert method.advance(1e-4, 1) == 1
    assert method.advance(1e-4, 2 * PORTION + 1) == 2 * PORTION + 1
    assert method.gap > 1e-4
    assert PORTION < method.advance(1e-4, 20_000) < 20_000
    assert method.gap <= 1e-4


def test_equalities_hold_in_the_limit() -> None:
    reduced, method = begin(FAMILIES["several"].draw(5, 6, 6, seed=1))
    assert reduced.tied.any()
    method.advance(1e-6, 50_000)
    # The residual is part of what the restarts judge, but not of the gap: only its order of magnitude is known.
    assert np.abs(reduced.apply(method.W)[reduced.tied]).max() < 1e-2
    assert method.scattered_dual()[reduced.tied].min() < 0.0  # unclipped


def test_norm_of_the_operator_is_bounded_from_above() -> None:
    reduced, method = begin(FAMILIES["planted"].draw(12, 6, 6, seed=5))
    rows, columns = np.nonzero(reduced.rejected | reduced.tied)
    matrix = np.einsum("kp,kr->kpr", reduced.delta[rows, columns], reduced.queries[rows]).reshape(len(rows), -1)
    exact = float(np.linalg.norm(matrix, 2))
    # The power iteration is from below; the steps converge up to sqrt(4/3) of the norm, the safety covers the rest.
    assert exact * 0.99 < method.norm < exact * 1.03


def test_joining_constraints_keep_the_progress() -> None:
    setting = setting_of(FAMILIES["planted"].draw(12, 6, 6, seed=7), NUCLEAR)
    reduced = setting.reduced
    opening = finish(open_with_frobenius(setting, Control(-1.0)))  # a goal that no gap meets
    assert opening.V is not None
    assert opening.dual is not None
    few = opening.dual > 0
    method = FirstOrder(reduced, few, opening.V, opening.dual)
    method.advance(1e-3, 20_000)
    before = method.W.copy()
    method.extend(reduced.rejected & ~few)
    np.testing.assert_array_equal(method.W, before)
    assert method.working.sum() == reduced.rejected.sum()
    method.advance(1e-4, 20_000)
    assert certified_gap(reduced, method) < 1e-4


def test_newton_follows_the_face_from_a_rough_guess() -> None:
    problem = FAMILIES["planted"].draw(12, 6, 6, seed=11)
    reduced, method = begin(problem)
    method.advance(1e-3, 20_000)
    setting, control = setting_of(problem, NUCLEAR), Control(1e-12)
    margins = reduced.apply(method.W)
    assert refine(setting, method.W / reduced.min_margin(margins), method.scattered_dual(), control)
    assert control.state.gap <= 1e-12


def test_newton_gives_up_far_from_the_face() -> None:
    problem = FAMILIES["planted"].draw(12, 6, 6, seed=11)
    reduced, method = begin(problem)
    setting, control = setting_of(problem, NUCLEAR), Control(1e-12)
    margins = reduced.apply(method.W)
    assert not refine(setting, method.W / reduced.min_margin(margins), method.scattered_dual(), control)
    assert control.iterations < 10


@pytest.mark.parametrize("method", [name for name in NUCLEAR_METHODS if name != "auto"])
def test_every_method_can_be_forced_and_says_so(method: str) -> None:
    problem = FAMILIES["planted"].draw(12, 6, 6, seed=13)
    solution = solve(problem, "nuclear", method=method)
    assert solution.status is Status.OPTIMAL
    assert solution.gap <= 1e-9
    other = "interior point" if method == "first_order" else "first order"
    assert other not in solution.method
    # Two certified values of one optimum differ by the sum of their gaps at most.
    assert solution.objective == pytest.approx(solve(problem, "nuclear").objective, rel=2e-9)


def test_unknown_method_is_one_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"one of 'auto', 'first_order', 'interior_point', 'streamed' was expected for the nuc"
    ):
        solve(FAMILIES["planted"].draw(6, 8, 10), "nuclear", method="admm")


@pytest.mark.parametrize("limit", [30, 1])
def test_limits_end_first_order_steps(limit: int) -> None:
    solution = solve(FAMILIES["planted"].draw(12, 6, 6, seed=13), "nuclear", method="first_order", max_iter=limit)
    assert solution.status is Status.MAX_ITERATIONS
    # The opening is not interrupted; whatever W it found is certified for the nuclear norm too.
    assert np.isfinite(solution.gap)


@pytest.mark.parametrize("limit", [1, 7])
def test_no_first_order_step_is_beyond_the_limit(limit: int) -> None:
    setting, _, _, method, _ = opened(FAMILIES["planted"].draw(12, 6, 6, seed=3))
    control = Control(-1.0, max_iter=limit)
    assert finish(portfolio._first_order(setting, method, control)) is None
    assert control.stopped is Status.MAX_ITERATIONS
    assert control.iterations == limit


@pytest.mark.parametrize("seed", [0, 9])
def test_near_duplicates_in_every_other_sequence_are_decided(seed: int) -> None:
    """Rejected tokens 1e-7 to 1e-9 from the selected ones: the face is left open, the smoothed path closes the gap."""
    n, T, d = (14, 8, 6)
    planted = FAMILIES["planted"].draw(n, T, d, seed=seed)
    rng, tokens = np.random.default_rng([seed, 1]), planted.tokens.copy()
    for i in range(0, n, 2):
        best = int(planted.reference[i])
        tokens[i, (best + 1) % T] = tokens[i, best] + 10.0 ** -rng.uniform(7, 9) * rng.standard_normal(d)
    solution = solve(SelectionProblem(tokens, planted.queries, planted.reference), "nuclear")
    assert solution.status is Status.OPTIMAL
    assert solution.gap <= 1e-9


def test_what_newton_has_put_at_its_margin_stays_active() -> None:
    """With multipliers over many decades, a face read off margins alone loses constraints to rounding there."""
    problem = FAMILIES["near_duplicates"].draw(30, 12, 12)
    setting, control = setting_of(problem, NUCLEAR), Control(3e-5)
    reduced = setting.reduced
    finish(NUCLEAR_METHODS["interior_point"](setting, control, None))
    assert control.W is not None
    assert control.dual is not None
    assert control.state.gap > 1e-6
    after = control.inner(1e-10)
    after.offer(control.W, NUCLEAR.value(control.W), control.dual, control.state.lower_bound)
    W = control.W / reduced.min_margin(reduced.apply(control.W))
    assert refine(setting, W, control.dual, after)


@pytest.mark.slow
def test_a_large_matrix_has_the_margins_that_newton_gave_it() -> None:
    """With a norm of 3e4, the margins of U S V^T are off by 8e-10: V's own are not, and the gap is that of rounding."""
    n, T, d = (20_000, 6, 5)
    problem = FAMILIES["planted"].make(np.random.default_rng(0), n, T, d)
    solution = solve(problem, "nuclear", method="interior_point", tol=5e-10)
    assert solution.objective > 1e4
    assert solution.status is Status.OPTIMAL


def test_more_active_constraints_than_entries_lose_one() -> None:
    """On 26 constraints and 25 entries least squares ended at margins off by 3e-5, after which 20,000 steps ran."""
    problem = FAMILIES["planted"].make(np.random.default_rng(2), 5000, 16, 5)
    solution = solve(problem, "nuclear")
    assert solution.status is Status.OPTIMAL
    assert solution.iterations < 5000


def test_infeasible_problems_never_reach_the_steps() -> None:
    solution = solve(FAMILIES["contradicted"].draw(10, 6, 8, seed=2), "nuclear", method="first_order")
    assert solution.status is Status.INFEASIBLE
    assert "first order" not in solution.method


def test_doubled_queries_change_nothing() -> None:
    """An ill-conditioned instance that, doubled, once ended undecided at a gap of 7e-3."""
    problem = FAMILIES["several"].draw(4, 6, 4, seed=552)
    twice = np.r_[0:4, 0:4]
    repetition = SelectionProblem(problem.tokens[twice], problem.queries[twice], problem.selected[twice])
    single, double = solve(problem, "nuclear"), solve(repetition, "nuclear")
    assert single.status is double.status is Status.OPTIMAL
    assert double.objective == pytest.approx(single.objective, rel=2e-9)
    assert NUCLEAR.value(double.W) == pytest.approx(NUCLEAR.value(single.W), rel=4e-9)
