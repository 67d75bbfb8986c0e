"""Truncated Newton over classes and words: optima of other methods, its steps, its choice and its limits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.sparse import eye_array

from attsvm import SelectionProblem, Status, solve
from attsvm.core.norms import FROBENIUS
from attsvm.proofs.certified import certify
from attsvm.proofs.objective import Regularisation
from attsvm.proofs.program import Program
from attsvm.solvers import solving
from attsvm.solvers.common.control import Control
from attsvm.solvers.words import margins as margins_module
from attsvm.solvers.words import newton as module
from attsvm.solvers.words.margins import Point, Words, suits_words
from attsvm.solvers.words.newton import memory_of, newton_step, preconditioner, step_length, truncated_newton
from word_problems import INSTANCES, classes, in_units, unusual_words

TOL = 1e-9


def program_of(problem: SelectionProblem, C: Any, prior: np.ndarray | None = None) -> Program:
    return Program(problem, FROBENIUS, Regularisation(C, "squared_hinge", prior))


def run(program: Program, **limits: Any) -> tuple[Control, np.ndarray, np.ndarray]:
    control = Control(TOL, **limits)
    pair = truncated_newton(program, control)
    assert pair is not None
    return control, *pair


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


def test_multipliers_are_twice_the_price_of_the_shortfalls() -> None:
    program = program_of(classes(), 3.0)
    _, W, dual = run(program)
    short = np.where(program.problem.rejected, np.maximum(1.0 - program.problem.apply(W), 0.0), 0.0)
    np.testing.assert_allclose(dual, 6.0 * short, atol=1e-6 * dual.max())


def points(problem: SelectionProblem, share: float = 1.0) -> tuple[Words, np.ndarray, np.ndarray, Point]:
    words = Words(program_of(problem, np.linspace(0.5, 2.0, len(problem.queries))))
    V = np.random.default_rng(3).normal(size=words.shape)
    margins = words.margins(V)
    return words, V, margins, words.at(V, margins, share)


BOTH_PROBLEMS = pytest.mark.parametrize("problem", [classes(), unusual_words()], ids=["classes", "words"])


@BOTH_PROBLEMS
@pytest.mark.parametrize("share", [1.0, 0.01])
def test_value_bound_and_adjoint_are_those_of_the_terms(problem: SelectionProblem, share: float) -> None:
    words, V, margins, point = points(problem, share)
    prices = share * np.linspace(0.5, 2.0, len(problem.queries))
    terms = program_of(problem, prices).terms
    dual = terms.slope(terms.cost - margins)
    adjoint = problem.adjoint(dual)
    assert point.value == pytest.approx(terms.size(words.lift(V)) + terms.loss(terms.cost - margins), rel=1e-12)
    np.testing.assert_allclose(words.lift(point.adjoint), adjoint, atol=1e-12 * np.abs(dual).sum())
    assert (point.scale, point.bound) == pytest.approx(terms.bound(dual, adjoint), rel=1e-12)
    assert point.gap == pytest.approx(1.0 - point.bound / point.value, rel=1e-12)


@BOTH_PROBLEMS
@pytest.mark.parametrize("few", [0.0, 1.0], ids=["dense", "sparse"])
@pytest.mark.parametrize("exact", [False, True])
def test_a_step_solves_newtons_equations(
    problem: SelectionProblem, few: float, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newton's matrix is formed entry by entry; one unit matrix of V at a time gives a column of A."""
    monkeypatch.setattr(module, "RESIDUAL", 1e-9)
    monkeypatch.setattr(module, "FEW_SHORT", few)
    words, V, margins, _ = points(problem)
    point = words.at(V, margins, 0.5)
    point = Point(point.value, -np.inf, point.scale, point.adjoint, point.active)  # no early end
    units = np.eye(V.size).reshape(-1, *V.shape)
    columns = np.array([np.where(problem.rejected, words.margins(unit), 0.0)[point.active] for unit in units])
    prices = np.broadcast_to(np.linspace(0.5, 2.0, len(problem.queries))[:, None], point.active.shape)[point.active]
    newton = np.eye(V.size) + (columns * prices) @ columns.T
    residual = point.adjoint - V
    expected = np.linalg.solve(newton, residual.ravel())
    step, count = newton_step(words, V, point, 0.5, preconditioner(words, point, 0.5, exact=exact))
    # Dense products are sums of n numbers of four bytes.
    error = 1e-7 if few else np.linalg.cond(newton) * np.sqrt(len(problem.queries)) * float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(step.ravel(), expected, atol=error * float(np.linalg.norm(expected)))
    assert 1 < count < module.CONJUGATE_STEPS


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_slope_vanishes_at_the_end_of_a_search(size: float) -> None:
    words, V, margins, point = points(classes())
    step = size * (point.adjoint - V)
    change = words.margins(step)
    length = step_length(words, V, point, step, margins, change, 1.0)

    def slope(at: float) -> float:
        there = V + at * step
        return float(np.vdot(there - words.at(there, margins + at * change, 1.0).adjoint, step))

    assert abs(slope(length)) <= 1.001 * module.FLAT * abs(slope(0.0))


def test_c_grows_tenfold_to_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first share is small where norm and losses of the first multipliers differ most; the last is one.

    C grows where the last step promised to take off less than a tenth of the objective.
    """
    evaluations: list[tuple[float, float]] = []
    promised: list[tuple[int, float]] = []
    at, take = Words.at, module.newton_step

    def spy(words: Words, V: np.ndarray, margins: np.ndarray, share: float) -> Point:
        point = at(words, V, margins, share)
        evaluations.append((share, point.value))
        return point

    def step_of(words: Words, V: np.ndarray, point: Point, share: float, inverse: Any) -> tuple[np.ndarray, int]:
        step, count = take(words, V, point, share, inverse)
        promised.append((len(evaluations), 0.5 * float(np.vdot(point.adjoint - V, step))))
        return step, count

    monkeypatch.setattr(Words, "at", spy)
    monkeypatch.setattr(module, "newton_step", step_of)
    run(program_of(classes(noise=0.3), 1e3))
    first, *later = list(dict.fromkeys(share for share, _ in evaluations[1:]))
    zero = at(Words(program_of(classes(noise=0.3), 1e3)), np.zeros((6, 4)), np.zeros((40, 6)), 1.0)
    assert first == module.FIRST * zero.scale < 1e-2
    np.testing.assert_allclose(later, np.minimum(1.0, first * 10.0 ** np.arange(1, len(later) + 1)))
    assert later[-1] == 1.0
    for (place, decrease), (following, _) in pairwise(promised):
        share, value = evaluations[place]
        assert (following == place + 2) is (share < 1.0 and decrease < module.STAGE * value)


def test_preconditioners_stay_whole_once_conjugate_gradients_were_many(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    take, make = module.newton_step, module.preconditioner

    def made(words: Words, point: Point, share: float, *, exact: bool) -> Any:
        given.append(exact)
        return make(words, point, share, exact=exact)

    def step_of(words: Words, V: np.ndarray, point: Point, share: float, inverse: Any) -> tuple[np.ndarray, int]:
        return take(words, V, point, share, inverse)[0], 31 if len(given) == 3 else 30

    monkeypatch.setattr(module, "newton_step", step_of)
    monkeypatch.setattr(module, "preconditioner", made)
    run(program_of(classes(), 1.0))
    assert given[:6] == [False, False, False, True, True, True]


def test_many_short_margins_have_blocks_of_their_own_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    words, _, _, point = points(classes())
    for limit, exact, absent in ((0.0, False, "blocks"), (0.0, True, "multiples"), (1.0, False, "multiples")):
        with monkeypatch.context() as patched:
            patched.setattr(module, "FEW_SHORT", limit)
            patched.delattr(Words, absent)
            step = preconditioner(words, point, 1.0, exact=exact)(point.adjoint)
            assert float(np.vdot(step, point.adjoint)) > 0


@BOTH_PROBLEMS
def test_few_short_margins_are_entries_of_a_sparse_matrix(
    problem: SelectionProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, V, _, point = points(problem)
    share = np.count_nonzero(point.active) / point.active.size
    for limit, absent in ((share, "dense_curvature"), (np.nextafter(share, 0.0), "sparse_curvature")):
        with monkeypatch.context() as patched:
            patched.setattr(module, "FEW_SHORT", limit)
            patched.delattr(Words, absent)
            newton_step(words, V, point, 1.0, preconditioner(words, point, 1.0, exact=False))


@BOTH_PROBLEMS
def test_blocks_and_slopes_are_those_of_the_losses(problem: SelectionProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of the Hessian is its product with units of one row; the slope changes along a line by the curvature."""
    words, V, margins, point = points(problem)
    product = words.sparse_curvature(point.active, 0.5)
    units = np.eye(V.size).reshape(-1, *V.shape)
    matrix = np.array([product(unit) for unit in units]).reshape(*V.shape, *V.shape)
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
    words, V = Words(program_of(problem, 1e-6)), np.zeros((6, 4))
    margins = words.margins(V)
    point = words.at(V, margins, 1.0)
    point = Point(1.0, -np.inf, 1.0, point.adjoint, point.active)
    step, _ = newton_step(words, V, point, 1.0, preconditioner(words, point, 1.0, exact=False))
    assert step_length(words, V, point, step, margins, words.margins(step), 1.0) == 1.0


def test_nothing_to_minimise_leaves_no_gap() -> None:
    """A prior whose margins all exceed one has neither norm nor losses."""
    labels = np.arange(6) % 3
    problem = SelectionProblem.from_classes(np.eye(3)[labels], labels)
    words = Words(program_of(problem, 1.0, 2.0 * np.eye(3)))
    point = words.at(np.zeros((3, 3)), problem.apply(2.0 * np.eye(3)), 1.0)
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


@pytest.mark.parametrize("unit", [2.0**-200, 2.0**200])
def test_a_unit_of_the_inputs_changes_no_answer(unit: float) -> None:
    """C in the square of the unit gives the same V in the unit, bit by bit."""
    _, W, dual = run(program_of(classes(), 1.0))
    _, scaled, scaled_dual = run(program_of(in_units(classes(), unit), 1.0 / unit**2))
    np.testing.assert_array_equal(scaled * unit, W)
    np.testing.assert_array_equal(scaled_dual * unit**2, dual)


@pytest.mark.parametrize("unit", [2.0**-530, 2.0**530])
def test_squares_beyond_the_range_of_floats_are_left_to_others(unit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "STREAM_BYTES", 100)
    problem = in_units(classes(), unit)
    if unit > 1.0:
        with np.errstate(all="ignore"):
            assert truncated_newton(program_of(problem, 1.0), Control(TOL)) is None
    solution = solve(problem, C=1.0, loss="squared_hinge")
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
