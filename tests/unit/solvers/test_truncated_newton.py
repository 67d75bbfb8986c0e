"""Truncated Newton over classes and words: optima of other methods, its steps, its choice and its limits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.sparse import eye_array

from attsvm import SelectionProblem, Status, solve
from attsvm.core.norms import FROBENIUS, NUCLEAR, Norm, get_norm
from attsvm.proofs.certified import certify
from attsvm.proofs.objective import Regularisation
from attsvm.proofs.program import Program
from attsvm.solvers import solving
from attsvm.solvers.common.control import Control
from attsvm.solvers.words import margins as margins_module
from attsvm.solvers.words import newton as module
from attsvm.solvers.words.margins import Point, Words
from attsvm.solvers.words.newton import (
    memory_of,
    newton_step,
    preconditioner,
    step_length,
    suits_words,
    truncated_newton,
)
from attsvm.solvers.words.penalties import Penalty, SmoothNuclear

TOL = 1e-9


def classes(seed: int = 0, n: int = 40, K: int = 6, d: int = 4, noise: float = 1.5) -> SelectionProblem:
    """Draw inputs around the means of their classes; noise makes many margins fall short."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % K
    return SelectionProblem.from_classes(rng.normal(size=(K, d))[labels] + noise * rng.normal(size=(n, d)), labels)


def unusual_words(seed: int = 1) -> SelectionProblem:
    """Draw contexts of words with entries of either sign on some of the axes; some words are masked."""
    rng = np.random.default_rng(seed)
    tokens = np.zeros((5, 7))
    tokens[np.arange(5), [6, 0, 3, 2, 5]] = [2.0, -1.0, 0.5, 1.0, -3.0]
    selected, mask = rng.integers(5, size=30), rng.random((30, 5)) < 0.8
    mask[np.arange(30), selected] = True
    return SelectionProblem(
        tokens[None], rng.normal(size=(30, 3)), selected, mask=mask, sequence=np.zeros(30, dtype=int)
    )


def program_of(problem: SelectionProblem, C: Any, prior: np.ndarray | None = None, norm: Norm = FROBENIUS) -> Program:
    return Program(problem, norm, Regularisation(C, "squared_hinge", prior))


def run(program: Program, **limits: Any) -> tuple[Control, np.ndarray, np.ndarray]:
    control = Control(TOL, **limits)
    pair = truncated_newton(program, control)
    assert pair is not None
    return control, *pair


PRICES = np.geomspace(0.1, 10.0, 40)
PRIOR = np.random.default_rng(5).normal(size=(6, 4))


INSTANCES = pytest.mark.parametrize(
    ("problem", "C", "prior"),
    [
        (classes(), 1e-3, None),
        (classes(), 1.0, None),
        (classes(noise=0.3), 100.0, None),
        (classes(), PRICES, None),
        (classes(), 1.0, PRIOR),
        (classes(), PRICES, PRIOR),
        (unusual_words(), 2.0, None),
        (classes(K=3, d=5), 1.0, None),
    ],
    ids=["small C", "C", "large C", "prices", "prior", "prices and prior", "scaled and masked words", "wide W"],
)


@INSTANCES
def test_w_and_multipliers_prove_the_optimum_of_the_other_methods(
    problem: SelectionProblem, C: Any, prior: np.ndarray | None
) -> None:
    """The gap is certified from the pair alone, and the objective lies within both gaps of the other solution's."""
    program = program_of(problem, C, prior)
    _, W, dual = run(program)
    certified = certify(program, W, dual)
    other = solve(problem, C=C, loss="squared_hinge", prior=prior, tol=TOL)
    assert certified.gap <= TOL
    assert other.status is Status.OPTIMAL
    assert certified.value == pytest.approx(other.certified.value, rel=2 * TOL)
    np.testing.assert_allclose(W, other.W, atol=2 * np.sqrt(2 * 2 * TOL * other.certified.value))  # strong convexity


@pytest.mark.parametrize("many", [-1, module.MANY_STEPS], ids=["both terms", "one term"])
@INSTANCES
def test_the_nuclear_norm_has_the_optimum_of_the_other_methods(
    problem: SelectionProblem, C: Any, prior: np.ndarray | None, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With preconditioners of both terms of the Hessian, or of one as long as conjugate gradients are few."""
    monkeypatch.setattr(module, "MANY_STEPS", many)
    program = program_of(problem, C, prior, NUCLEAR)
    _, W, dual = run(program)
    certified = certify(program, W, dual)
    other = solve(problem, "nuclear", C=C, loss="squared_hinge", prior=prior, tol=1e-7)
    assert certified.gap <= TOL
    assert certified.value == pytest.approx(other.certified.value, rel=TOL + other.gap)


def test_multipliers_are_twice_the_price_of_the_shortfalls() -> None:
    program = program_of(classes(), 3.0)
    _, W, dual = run(program)
    short = np.where(program.problem.rejected, np.maximum(1.0 - program.problem.apply(W), 0.0), 0.0)
    np.testing.assert_allclose(dual, 6.0 * short, atol=1e-6 * dual.max())


def penalty_at(norm: Norm, V: np.ndarray) -> Penalty:
    return Penalty(V) if norm is FROBENIUS else SmoothNuclear(V, 0.3)


def points(
    problem: SelectionProblem, share: float = 1.0, norm: Norm = FROBENIUS
) -> tuple[Words, Penalty, np.ndarray, Point]:
    words = Words(program_of(problem, np.linspace(0.5, 2.0, len(problem.queries)), norm=norm))
    penalty = penalty_at(norm, np.random.default_rng(3).normal(size=words.shape))
    margins = words.margins(penalty.V)
    return words, penalty, margins, words.at(penalty, margins, share)


BOTH_NORMS = pytest.mark.parametrize("norm", [FROBENIUS, NUCLEAR], ids=["frobenius", "nuclear"])
BOTH_PROBLEMS = pytest.mark.parametrize("problem", [classes(), unusual_words()], ids=["classes", "words"])


@BOTH_NORMS
@BOTH_PROBLEMS
@pytest.mark.parametrize("share", [1.0, 0.01])
def test_value_bound_and_adjoint_are_those_of_the_terms(problem: SelectionProblem, share: float, norm: Norm) -> None:
    words, penalty, margins, point = points(problem, share, norm)
    prices = share * np.linspace(0.5, 2.0, len(problem.queries))
    terms = program_of(problem, prices, norm=norm).terms
    dual = terms.slope(terms.cost - margins)
    adjoint = problem.adjoint(dual)
    assert point.value == pytest.approx(terms.size(words.lift(penalty.V)) + terms.loss(terms.cost - margins), rel=1e-12)
    np.testing.assert_allclose(words.lift(point.adjoint), adjoint, atol=1e-12 * np.abs(dual).sum())
    assert (point.scale, point.bound) == pytest.approx(terms.bound(dual, adjoint), rel=1e-12)
    assert point.gap == pytest.approx(1.0 - point.bound / point.value, rel=1e-12)


@BOTH_NORMS
@BOTH_PROBLEMS
@pytest.mark.parametrize("few", [0.0, 1.0], ids=["dense", "sparse"])
@pytest.mark.parametrize("control", [None, Control(TOL)], ids=["one term", "both terms"])
def test_a_step_solves_newtons_equations(
    problem: SelectionProblem, few: float, norm: Norm, control: Control | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newton's matrix is formed entry by entry; one unit matrix of V at a time gives a column of A."""
    monkeypatch.setattr(module, "RESIDUAL", 1e-9)
    monkeypatch.setattr(module, "FEW_SHORT", few)
    words, penalty, margins, _ = points(problem, norm=norm)
    point = words.at(penalty, margins, 0.5)
    point = Point(point.value, -np.inf, point.scale, point.adjoint, point.active)  # no early end
    units = np.eye(penalty.V.size).reshape(-1, *penalty.V.shape)
    columns = np.array([np.where(problem.rejected, words.margins(unit), 0.0)[point.active] for unit in units])
    prices = np.broadcast_to(np.linspace(0.5, 2.0, len(problem.queries))[:, None], point.active.shape)[point.active]
    newton = np.array([penalty.product(unit).ravel() for unit in units]) + (columns * prices) @ columns.T
    residual = point.adjoint - penalty.gradient
    expected = np.linalg.solve(newton, residual.ravel())
    step, count = newton_step(words, penalty, point, 0.5, preconditioner(words, penalty, point, 0.5, control))
    # Dense products are sums of n numbers of four bytes.
    error = 1e-7 if few else np.linalg.cond(newton) * np.sqrt(len(problem.queries)) * float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(step.ravel(), expected, atol=error * float(np.linalg.norm(expected)))
    assert 1 < count < module.CONJUGATE_STEPS


@BOTH_NORMS
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_slope_vanishes_at_the_end_of_a_search(size: float, norm: Norm) -> None:
    words, penalty, margins, point = points(classes(), norm=norm)
    step = size * (point.adjoint - penalty.gradient)
    change = words.margins(step)
    length = step_length(words, penalty, point, step, margins, change, 1.0)

    def slope(at: float) -> float:
        there = penalty.at(penalty.V + at * step)
        return float(np.vdot(there.gradient - words.at(there, margins + at * change, 1.0).adjoint, step))

    assert abs(slope(length)) <= 1.001 * module.FLAT * abs(slope(0.0))


def test_c_grows_tenfold_to_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first share is small where norm and losses of the first multipliers differ most; the last is one.

    C grows where the last step promised to take off less than a tenth of the objective.
    """
    evaluations: list[tuple[float, float]] = []
    promised: list[tuple[int, float]] = []
    at, take = Words.at, module.newton_step

    def spy(words: Words, penalty: Penalty, margins: np.ndarray, share: float) -> Point:
        point = at(words, penalty, margins, share)
        evaluations.append((share, point.value))
        return point

    def step_of(words: Words, penalty: Penalty, point: Point, share: float, inverse: Any) -> tuple[np.ndarray, int]:
        step, count = take(words, penalty, point, share, inverse)
        promised.append((len(evaluations), 0.5 * float(np.vdot(point.adjoint - penalty.gradient, step))))
        return step, count

    monkeypatch.setattr(Words, "at", spy)
    monkeypatch.setattr(module, "newton_step", step_of)
    run(program_of(classes(noise=0.3), 1e3))
    first, *later = list(dict.fromkeys(share for share, _ in evaluations[1:]))
    zero = at(Words(program_of(classes(noise=0.3), 1e3)), Penalty(np.zeros((6, 4))), np.zeros((40, 6)), 1.0)
    assert first == module.FIRST * zero.scale < 1e-2
    np.testing.assert_allclose(later, np.minimum(1.0, first * 10.0 ** np.arange(1, len(later) + 1)))
    assert later[-1] == 1.0
    for (place, decrease), (following, _) in pairwise(promised):
        share, value = evaluations[place]
        assert (following == place + 2) is (share < 1.0 and decrease < module.STAGE * value)


def test_delta_begins_at_a_tenth_of_the_length_at_which_norm_and_losses_balance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """W = 0 has the loss n K C; W grows from the C on at which the multipliers have the dual norm one."""
    deltas: list[float] = []
    make = SmoothNuclear.__init__

    def spy(penalty: SmoothNuclear, V: np.ndarray, delta: float) -> None:
        deltas.append(delta)
        make(penalty, V, delta)

    monkeypatch.setattr(SmoothNuclear, "__init__", spy)
    problem = classes()
    run(program_of(problem, 3.0, norm=NUCLEAR))
    dual = 6.0 * problem.rejected
    length = 3.0 * problem.rejected.sum() / np.linalg.norm(problem.adjoint(dual), 2)
    assert deltas[1] == pytest.approx(0.1 * length, rel=1e-12)


def test_preconditioners_stay_whole_once_conjugate_gradients_were_many(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    take, make = module.newton_step, module.preconditioner

    def made(words: Words, penalty: Penalty, point: Point, share: float, control: Any) -> Any:
        given.append(control is not None)
        return make(words, penalty, point, share, control)

    def step_of(words: Words, penalty: Penalty, point: Point, share: float, inverse: Any) -> tuple[np.ndarray, int]:
        return take(words, penalty, point, share, inverse)[0], 31 if len(given) == 3 else 30

    monkeypatch.setattr(module, "newton_step", step_of)
    monkeypatch.setattr(module, "preconditioner", made)
    run(program_of(classes(), 1.0))
    assert given[:6] == [False, False, False, True, True, True]


@BOTH_NORMS
def test_many_short_margins_have_blocks_of_their_own_only_where_they_pay(
    norm: Norm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control asks for them."""
    words, penalty, _, point = points(classes(), norm=norm)
    for limit, control, absent in ((0.0, None, "blocks"), (0.0, Control(TOL), "multiples"), (1.0, None, "multiples")):
        with monkeypatch.context() as patched:
            patched.setattr(module, "FEW_SHORT", limit)
            patched.delattr(Words, absent)
            inverse = preconditioner(words, penalty, point, 1.0, control)
            step = inverse(point.adjoint)
            assert float(np.vdot(step, point.adjoint)) > 0


@BOTH_PROBLEMS
def test_few_short_margins_are_entries_of_a_sparse_matrix(
    problem: SelectionProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, penalty, _, point = points(problem)
    share = np.count_nonzero(point.active) / point.active.size
    for limit, absent in ((share, "dense_curvature"), (np.nextafter(share, 0.0), "sparse_curvature")):
        with monkeypatch.context() as patched:
            patched.setattr(module, "FEW_SHORT", limit)
            patched.delattr(Words, absent)
            newton_step(words, penalty, point, 1.0, preconditioner(words, penalty, point, 1.0, None))


@BOTH_PROBLEMS
def test_blocks_and_slopes_are_those_of_the_losses(problem: SelectionProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of the Hessian is its product with units of one row; the slope changes along a line by the curvature."""
    words, penalty, margins, point = points(problem)
    product = words.sparse_curvature(point.active, 0.5)
    units = np.eye(penalty.V.size).reshape(-1, *penalty.V.shape)
    matrix = np.array([product(unit) for unit in units]).reshape(*penalty.V.shape, *penalty.V.shape)
    expected, size = np.einsum("titj->tij", matrix), np.abs(matrix).max()
    np.testing.assert_allclose(words.blocks(point.active, 0.5), expected, atol=1e-12 * size)
    with monkeypatch.context() as patched:
        patched.setattr(margins_module, "COLUMNS", 2)
        np.testing.assert_allclose(words.blocks(point.active, 0.5), expected, atol=1e-12 * size)
    change, h = words.margins(np.random.default_rng(4).normal(size=words.shape)), 1e-6
    (slope, curvature), (after, _) = (words.slope(margins, change, at, 0.5) for at in (0.0, h))
    assert (after - slope) / h == pytest.approx(curvature, rel=1e-6)
    assert slope == pytest.approx(-float(np.vdot(0.5 * words.multipliers(margins.copy(), 1.0), change)), rel=1e-12)


def test_a_whole_step_of_newton_is_taken_where_it_is_the_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tiny C no margin reaches one, and the objective is a square."""
    monkeypatch.setattr(module, "RESIDUAL", 1e-9)
    problem = classes()
    words, penalty = Words(program_of(problem, 1e-6)), Penalty(np.zeros((6, 4)))
    margins = words.margins(penalty.V)
    point = words.at(penalty, margins, 1.0)
    point = Point(1.0, -np.inf, 1.0, point.adjoint, point.active)
    step, _ = newton_step(words, penalty, point, 1.0, preconditioner(words, penalty, point, 1.0, None))
    assert step_length(words, penalty, point, step, margins, words.margins(step), 1.0) == 1.0


def test_nothing_to_minimise_leaves_no_gap() -> None:
    """A prior whose margins all exceed one has neither norm nor losses."""
    labels = np.arange(6) % 3
    problem = SelectionProblem.from_classes(np.eye(3)[labels], labels)
    words = Words(program_of(problem, 1.0, 2.0 * np.eye(3)))
    point = words.at(Penalty(np.zeros((3, 3))), problem.apply(2.0 * np.eye(3)), 1.0)
    assert (point.value, point.bound, point.gap) == (0.0, 0.0, 0.0)


def test_a_small_c_needs_no_stages() -> None:
    control, *_ = run(program_of(classes(), 1e-6))
    assert control.iterations <= 3


def one_word(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(8, 3))


@pytest.mark.parametrize(
    ("change", "suitable"),
    [
        (lambda p: p, True),
        (lambda p: Program(p.problem, FROBENIUS, Regularisation(1.0, "hinge", None)), False),
        (lambda p: Program(p.problem, FROBENIUS), False),
        (lambda p: program_of(SelectionProblem(np.arange(12.0).reshape(2, 3, 2), np.eye(2), [0, 1]), 1.0), False),
        (
            lambda p: program_of(SelectionProblem.from_contexts(one_word(), np.tile([True, True, False], (8, 1))), 1.0),
            False,
        ),
    ],
    ids=["classes", "hinge", "hard margin", "dense tokens", "ties"],
)
def test_it_suits_squared_hinges_over_one_hot_tokens(change: Callable[[Program], Program], suitable: bool) -> None:
    assert suits_words(change(program_of(classes(), 1.0))) is suitable


def test_solve_uses_it_where_differences_are_too_many_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = classes()
    plain = solve(problem, C=1.0, loss="squared_hinge")
    monkeypatch.setattr(solving, "STREAM_BYTES", 100)
    streamed = solve(problem, C=1.0, loss="squared_hinge")
    assert "truncated Newton" not in plain.method
    assert (streamed.status, streamed.method) == (Status.OPTIMAL, "truncated Newton")
    assert streamed.certified.value == pytest.approx(plain.certified.value, rel=2e-9)
    assert "truncated Newton" not in solve(problem, C=1.0, loss="squared_hinge", method="streamed").method


def test_other_methods_go_on_from_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "STREAM_BYTES", 100)
    monkeypatch.setattr(module, "NEWTON_STEPS", 1)
    solution = solve(classes(), C=1.0, loss="squared_hinge")
    assert solution.status is Status.OPTIMAL
    assert solution.method != "truncated Newton"


def test_limits_and_callbacks_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "STREAM_BYTES", 100)
    problem, options = classes(), {"C": 1.0, "loss": "squared_hinge"}
    assert solve(problem, max_iter=2, **options).status is Status.MAX_ITERATIONS
    assert run(program_of(problem, 1.0), time_limit=0.0)[0].stopped is Status.TIME_LIMIT
    assert solve(problem, callback=lambda state: state.iteration >= 2, **options).status is Status.CANCELLED


def test_a_problem_without_room_for_its_margins_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "STREAM_BYTES", 100)
    monkeypatch.setattr(Control, "affords", lambda self, seconds, size: size < memory_of(program_of(classes(), 1.0)))
    assert "truncated Newton" not in solve(classes(), C=1.0, loss="squared_hinge").method


def in_units(problem: SelectionProblem, unit: float) -> SelectionProblem:
    return SelectionProblem(problem.tokens, unit * problem.queries, problem.reference, sequence=problem.sequence)


@BOTH_NORMS
@pytest.mark.parametrize("unit", [2.0**-200, 2.0**200])
def test_a_unit_of_the_inputs_changes_no_answer(unit: float, norm: Norm) -> None:
    """C in the power of the unit that the norm has gives the same V in the unit, bit by bit."""
    power = 2 if norm is FROBENIUS else 1
    _, W, dual = run(program_of(classes(), 1.0, norm=norm))
    _, scaled, scaled_dual = run(program_of(in_units(classes(), unit), 1.0 / unit**power, norm=norm))
    np.testing.assert_array_equal(scaled * unit, W)
    np.testing.assert_array_equal(scaled_dual * unit**power, dual)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("unit", [2.0**-530, 2.0**530])
def test_squares_beyond_the_range_of_floats_are_left_to_others(
    unit: float, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solving, "STREAM_BYTES", 100)
    problem = in_units(classes(), unit)
    if unit > 1.0:
        with np.errstate(all="ignore"):
            assert truncated_newton(program_of(problem, 1.0, norm=get_norm(norm)), Control(TOL)) is None
    solution = solve(problem, norm, C=1.0, loss="squared_hinge")
    assert solution.status is (Status.OPTIMAL if unit < 1.0 else Status.UNDECIDED)


def test_many_dimensions_of_contexts_take_memory_by_their_square() -> None:
    """Three numbers of 8 bytes a margin and three squares a word."""
    assert memory_of(program_of(classes(n=40, K=6, d=4), 1.0)) == 8 * (3 * 240 + 18 * 16)


def test_many_words_are_solved_where_working_sets_were_not() -> None:
    """200 words after 900 contexts have 179,100 constraints, and most of them count at the optimum."""
    rng = np.random.default_rng(0)
    selected = np.eye(200, dtype=bool)[rng.integers(200, size=900)]
    problem = SelectionProblem.from_contexts(rng.normal(size=(900, 5)), selected)
    solution = solve(problem, C=0.1, loss="squared_hinge", tol=1e-6)
    assert solution.status is Status.OPTIMAL
    assert solution.method == "truncated Newton"
    assert (solution.certified.dual > 0).mean() > 0.5


def test_sparse_contexts_that_share_an_axis_are_queries_too() -> None:
    problem = SelectionProblem.from_contexts(eye_array(3).tocsr()[[0, 1, 1, 2]], np.eye(4, dtype=bool))
    program = program_of(problem, 1.0)
    _, W, dual = run(program)
    assert certify(program, W, dual).gap <= TOL


@pytest.mark.parametrize(("d", "uses"), [(4, True), (5, False)])
def test_nuclear_norms_use_it_sooner_over_more_words_than_dimensions(
    d: int, uses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over six words, in four dimensions at most."""
    problem = classes(K=6, d=d)
    size = 8 * int(problem.rejected.sum()) * 6
    for most, expected in ((size - 1, uses), (size, False)):
        monkeypatch.setattr(solving, "WORD_BYTES", most)
        solution = solve(problem, "nuclear", C=1.0, loss="squared_hinge", tol=1e-6)
        assert solution.status is Status.OPTIMAL
        assert (solution.method == "truncated Newton") is expected
