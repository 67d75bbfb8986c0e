"""Orthonormal queries: found, solved column by column, and right where they are not quite so."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from attsvm import SelectionProblem, Solution, Status, norms, solve
from attsvm.core.columns import Columns
from attsvm.core.norms import FROBENIUS, NUCLEAR
from attsvm.proofs.objective import HARD_MARGIN, Regularisation
from attsvm.solvers.common.control import Control
from attsvm.solvers.separable import projection, splitting
from attsvm.solvers.separable.closed_form import least_change
from attsvm.solvers.separable.proximal import shrink_power
from attsvm.solvers.separable.splitting import EXTRAPOLATED, Extrapolation, _balance, report
from oracle import dense

NORMS: dict[str, Any] = {
    "frobenius": "frobenius",
    "nuclear": "nuclear",
    "spectral": "spectral",
    "ky fan": norms.KyFan(2),
    "schatten": norms.Schatten(1.5),
    "schatten above two": norms.Schatten(4.0),
    "l_1": 1.0,
    "l_1.5": 1.5,
    "l_3": 3.0,
    "max": "max",
    "columns 2, 1": norms.Mixed(2, 1, axis="columns"),
    "columns inf, 2": norms.Mixed(np.inf, 2, axis="columns"),
    "columns 1, inf": norms.Mixed(1, np.inf, axis="columns"),
}
# Those of W in the span of any orthonormal tokens and queries.
INVARIANT = ("frobenius", "nuclear", "spectral", "ky fan", "schatten")
LIMIT = 60.0
# Bounds of both answers are within this of each other: each has a certified gap of 1e-9.
AGREE = 3e-9


def relevance(seed: int = 0, documents: int = 7, queries: int = 5, size: int = 2) -> SelectionProblem:
    """Every relevant document above every irrelevant one; the other relevant ones are masked."""
    rng = np.random.default_rng(seed)
    sets = np.array([rng.choice(documents, size, replace=False) for _ in range(queries)])
    query = np.repeat(np.arange(queries), size)
    mask = np.ones((len(query), documents), bool)
    mask[np.arange(len(query))[:, None], sets[query]] = False
    mask[np.arange(len(query)), sets.ravel()] = True
    shared = np.zeros(len(query), int)
    return SelectionProblem(np.eye(documents)[None], np.eye(queries)[query], sets.ravel(), mask=mask, sequence=shared)


def contexts(seed: int = 0, n: int = 5, words: int = 8) -> SelectionProblem:
    """One to three words follow a context."""
    rng = np.random.default_rng(seed)
    return SelectionProblem.from_contexts(
        np.eye(n), rng.random((n, words)).argsort(axis=1) < rng.integers(1, 4, size=(n, 1))
    )


def single(seed: int = 0, n: int = 5, words: int = 7) -> SelectionProblem:
    """One word follows a context, and every context sees words of its own."""
    rng = np.random.default_rng(seed)
    mask = rng.random((n, words)) < 0.7
    selected = rng.integers(words, size=n)
    mask[np.arange(n), selected] = True
    mask[np.arange(n), (selected + 1) % words] = True
    return SelectionProblem(
        np.eye(words)[None], np.eye(n) * rng.uniform(0.5, 2, n), selected, mask=mask, sequence=np.zeros(n, int)
    )


INSTANCES = {"relevance": relevance, "contexts": contexts, "single": single}


def moved(
    problem: SelectionProblem, queries: np.ndarray | None = None, tokens: np.ndarray | None = None, order: Any = None
) -> SelectionProblem:
    """The same demands on other queries (n, dz) or tokens (T, d), in another order."""
    order = np.arange(problem.shape[0]) if order is None else order
    queries = problem.queries if queries is None else queries
    tokens = problem.tokens if tokens is None else tokens[None]
    return SelectionProblem(
        tokens, queries[order], problem.selected[order], mask=problem.mask[order], sequence=problem.sequence[order]
    )


def rotation(seed: int, size: int) -> np.ndarray:
    """Draw an orthogonal matrix."""
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]


def by_cvxpy(problem: SelectionProblem, norm: str, C: float | None, loss: str, prior: np.ndarray) -> float:
    """Minimise the objective as it is written."""
    W = cp.Variable(problem.shape[2:])
    full = dense(problem)
    margins = full.rows @ cp.vec(W, order="C")
    distance: Any = {
        "frobenius": lambda V: cp.norm(V, "fro"),
        "nuclear": cp.normNuc,
        "spectral": cp.sigma_max,
        "max": lambda V: cp.max(cp.abs(V)),
        "l_1": lambda V: cp.sum(cp.abs(V)),
    }[norm](W - prior)
    constraints = [margins[full.tied] == 0] if full.tied.any() else []
    if C is None:
        constraints.append(margins[~full.tied] >= 1)
    else:
        short = cp.pos(1 - margins[~full.tied])
        distance = cp.sum_squares(W - prior) / 2 if norm == "frobenius" else distance
        distance = distance + C * (cp.sum(short) if loss == "hinge" else cp.sum_squares(short))
    program: Any = cp.Problem(cp.Minimize(distance), constraints)
    with warnings.catch_warnings():
        # On some processors Clarabel ends just before what is asked for; the tests compare to 1e-6.
        warnings.filterwarnings("ignore", message="Solution may be inaccurate")
        program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    return float(program.value)


def found_by_columns(problem: SelectionProblem, norm: Any, **options: Any) -> Solution:
    """Solve past the one compiled call of small Frobenius problems, which counts no iterations."""
    return solve(problem, norm, max_iter=100_000, **options)


def value(solution: Any) -> float:
    """What was minimised."""
    return solution.certified.value


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("instance", INSTANCES)
def test_hard_margins_agree_with_the_methods_that_see_no_columns(instance: str, name: str) -> None:
    problem = INSTANCES[instance]()
    found, other = (
        found_by_columns(problem, NORMS[name]),
        solve(problem, NORMS[name], method="streamed", time_limit=LIMIT),
    )
    assert "columns" in found.method
    assert found.status is Status.OPTIMAL
    assert found.objective == pytest.approx(other.objective, rel=AGREE)


@pytest.mark.parametrize("name", ["frobenius", "nuclear", "spectral", "max", "l_1"])
@pytest.mark.parametrize("instance", INSTANCES)
@pytest.mark.parametrize("far", [0.0, 0.5])
def test_hard_margins_agree_with_cvxpy(instance: str, name: str, far: float) -> None:
    problem = INSTANCES[instance](1)
    prior = far * np.random.default_rng(2).standard_normal(problem.shape[2:])
    found = found_by_columns(problem, NORMS[name], prior=prior if far else None)
    assert "columns" in found.method
    assert found.status is Status.OPTIMAL
    # Clarabel's own gap, asked for as 1e-9 of a conic form of the problem, is 1e-7 at most.
    assert value(found) == pytest.approx(by_cvxpy(problem, name, None, "hinge", prior), rel=1e-6)


@pytest.mark.parametrize("name", ["frobenius", "nuclear", "spectral"])
@pytest.mark.parametrize("instance", ["contexts", "single"])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.parametrize(("C", "far"), [(0.05, 0.0), (1.0, 0.0), (0.3, 0.5)])
def test_soft_margins_agree_with_cvxpy(instance: str, name: Any, loss: Any, C: float, far: float) -> None:
    problem = INSTANCES[instance](3)
    prior = far * np.random.default_rng(4).standard_normal(problem.shape[2:])
    found = solve(problem, name, C=C, loss=loss, prior=prior if far else None)
    assert found.status is Status.OPTIMAL
    assert "columns" in found.method or found.method == "closed form"
    assert value(found) == pytest.approx(by_cvxpy(problem, name, C, loss, prior), rel=1e-6)


@pytest.mark.parametrize(
    ("norm", "C"), [(1.0, 0.3), ("max", 0.3), (norms.Mixed(2, 1, axis="rows"), None)], ids=["l_1", "max", "rows"]
)
def test_norms_of_entries_with_losses_and_those_of_rows_have_no_columns(norm: Any, C: float | None) -> None:
    found = solve(contexts(5), norm, C=C)
    assert "columns" not in found.method
    assert found.status is Status.OPTIMAL


def test_losses_of_several_preferred_tokens_have_no_columns() -> None:
    problem = relevance(5)
    found = solve(problem, C=0.2)
    assert "columns" not in found.method
    assert value(found) == pytest.approx(by_cvxpy(problem, "frobenius", 0.2, "hinge", np.zeros((7, 5))), rel=1e-6)


@pytest.mark.parametrize("name", INVARIANT)
@pytest.mark.parametrize("instance", INSTANCES)
@pytest.mark.slow
def test_rotated_scaled_and_permuted_data_have_the_same_answer(instance: str, name: str) -> None:
    problem = INSTANCES[instance](6)
    n, _, d, dz = problem.shape
    rng = np.random.default_rng(7)
    changed = moved(problem, 2.5 * problem.queries @ rotation(8, dz), 0.4 * rotation(9, d), rng.permutation(n))
    first, second = found_by_columns(problem, NORMS[name]), found_by_columns(changed, NORMS[name])
    assert "columns" in second.method
    assert second.status is Status.OPTIMAL
    # 2.5 * 0.4 = 1
    assert second.objective == pytest.approx(first.objective, rel=AGREE)


def alone(columns: Columns, origin: np.ndarray) -> tuple[Columns, np.ndarray, np.ndarray]:
    """Leave all columns as they are."""
    return columns, np.arange(columns.shape[1]), np.arange(columns.shape[1])


def repeated(instance: str) -> SelectionProblem:
    """Queries of an instance once, twice or three times, each in a direction of its own."""
    problem = INSTANCES[instance]()
    axis = problem.queries.argmax(axis=1)
    order, copy = map(list, zip(*[(i, k) for i, g in enumerate(axis) for k in range(g % 3 + 1)], strict=True))
    queries = np.zeros((len(order), 3 * problem.queries.shape[1]))
    queries[np.arange(len(order)), 3 * axis[order] + copy] = problem.queries.max(axis=1)[order]
    return SelectionProblem(
        problem.tokens, queries, problem.selected[order], mask=problem.mask[order], sequence=problem.sequence[order]
    )


# Losses of several queries per column, and losses beside a smooth norm, are not solved by columns.
BY_COLUMNS = [
    *product(INSTANCES, ["nuclear", "spectral", "ky fan", "schatten"], [{}]),
    *product(["contexts", "single"], ["nuclear", "spectral", "ky fan"], [{"C": 0.4, "loss": "hinge"}]),
    *product(["contexts", "single"], ["nuclear", "spectral", "ky fan"], [{"C": 2.0, "loss": "squared_hinge"}]),
]


@pytest.mark.parametrize(("instance", "name", "soft"), BY_COLUMNS)
def test_equal_columns_are_solved_once(
    instance: str, name: str, soft: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = repeated(instance)
    columns = Columns.of(problem)
    assert columns is not None
    merged, first, number = columns.merge(np.zeros(columns.shape))
    assert merged.shape[1] < columns.shape[1]
    assert (np.bincount(number) == merged.copies).all()
    found = found_by_columns(problem, NORMS[name], **soft)
    assert found.method == "splitting over columns"
    scores = columns.lower(found.W)
    assert (scores == scores[:, first][:, number]).all()
    monkeypatch.setattr(Columns, "merge", alone)
    other = found_by_columns(problem, NORMS[name], **soft)
    assert found.status == other.status == Status.OPTIMAL
    assert value(found) == pytest.approx(value(other), rel=AGREE)


def test_columns_are_equal_only_with_one_length_one_prior_and_one_mask() -> None:
    selected, mask = np.zeros(5, int), np.ones((5, 4), bool)
    mask[4, 3] = False
    queries = np.eye(5) * np.array([1.0, 1.0, 2.0, 1.0, 1.0])[:, None]
    problem = SelectionProblem(np.eye(4)[None], queries, selected, mask=mask, sequence=np.zeros(5, int))
    columns = Columns.of(problem)
    assert columns is not None
    prior = np.zeros((4, 5))
    assert columns.merge(prior)[2].tolist() == [0, 0, 1, 0, 2]
    prior[1, 3] = 0.25
    merged, first, number = columns.merge(prior)
    assert first.tolist() == [0, 2, 3, 4]
    assert number.tolist() == [0, 0, 1, 2, 3]
    assert merged.copies.tolist() == [2, 1, 1, 1]
    found = found_by_columns(problem, "nuclear", prior=prior)
    other = solve(problem, "nuclear", prior=prior, method="streamed", time_limit=LIMIT)
    assert found.method == "splitting over columns"
    assert value(found) == pytest.approx(value(other), rel=AGREE)


@pytest.mark.parametrize("off", [1e-9, 1e-3])
@pytest.mark.parametrize("name", ["frobenius", "nuclear", "spectral"])
def test_nearly_orthogonal_queries_are_right(name: Any, off: float) -> None:
    problem = contexts(10)
    noise = np.random.default_rng(11).standard_normal(problem.queries.shape)
    near = moved(problem, problem.queries + off * noise)
    found = solve(near, name)
    assert Columns.of(near) is None
    assert found.status is Status.OPTIMAL
    assert found.objective == pytest.approx(by_cvxpy(near, name, None, "hinge", np.zeros(near.shape[2:])), rel=1e-6)


@pytest.mark.parametrize(("p", "q"), [(np.inf, 2.0), (np.inf, 1.0), (1.0, 1.0), (1.5, 1.5)])
def test_a_column_that_need_not_change_proves_nothing(p: float, q: float) -> None:
    """The adjoint is zero where scores suffice; its product with a change is the column's share of the norm."""
    columns = Columns.of(single(13))
    assert columns is not None
    V = np.zeros(columns.demand.shape)
    V[:, 0] = 3.0 * columns.demand[:, 0]
    change, adjoint = least_change(columns, V, p, q)
    assert not change[:, 0].any()
    assert not adjoint[:, 0].any()
    assert change[:, 1:].any(axis=0).all()
    size = np.linalg.norm(change, p, axis=0)
    np.testing.assert_allclose((adjoint * change).sum(axis=0)[1:], (size * (size / size.max()) ** (q - 1))[1:])
    # What rises rises by what the others fall: moving all scores of a column is free.
    np.testing.assert_allclose(adjoint.sum(axis=0), 0.0, atol=1e-9)


def test_entrywise_norms_need_the_axes_and_norms_of_singular_values_do_not() -> None:
    problem = contexts(12)
    turned = moved(problem, problem.queries @ rotation(13, 5))
    assert "columns" not in solve(turned, "max").method
    assert "columns" in solve(turned, "nuclear").method


def test_what_is_no_column_is_not_taken_for_one() -> None:
    rng = np.random.default_rng(14)
    assert Columns.of(SelectionProblem(rng.standard_normal((6, 5, 8)), np.eye(6), np.zeros(6, int))) is None
    assert Columns.of(SelectionProblem(np.eye(5)[None], rng.standard_normal((1, 3)), [0])) is not None
    problem = relevance(15)
    mask = problem.mask.copy()
    row = np.flatnonzero(problem.rejected[0])[0]
    mask[0, row] = False  # the first document need not be above this one, the second one of the query must
    incomplete = SelectionProblem(
        problem.tokens, problem.queries, problem.reference, mask=mask, sequence=problem.sequence
    )
    assert Columns.of(incomplete) is None
    contradicted = SelectionProblem(np.eye(3)[None], np.ones((2, 1)), [0, 1], sequence=[0, 0])
    assert Columns.of(contradicted) is None
    assert solve(contradicted).status is Status.INFEASIBLE


def test_repeated_queries_of_several_lengths_ask_for_the_most() -> None:
    tokens, shared = np.eye(4)[None], np.zeros(3, int)
    lengths = np.array([[2.0], [0.5], [1.0]]) * np.array([1.0, 0.0])
    lengths[2] = [0.0, 1.0]
    problem = SelectionProblem(tokens, lengths, [0, 0, 1], sequence=shared)
    found, other = solve(problem, "nuclear"), solve(problem, "nuclear", method="streamed")
    assert "columns" in found.method
    assert found.objective == pytest.approx(other.objective, rel=AGREE)


def test_one_hot_tokens_are_evaluated_as_dense_ones_are() -> None:
    problem = contexts(16)
    same = SelectionProblem(np.repeat(problem.tokens, 2, axis=0), problem.queries, problem.selected, sequence=[0] * 5)
    rng = np.random.default_rng(17)
    W, dual = rng.standard_normal(problem.shape[2:]), rng.random(problem.mask.shape)
    for one, other in zip(problem.evaluate(W, dual), same.evaluate(W, dual), strict=True):
        # A margin is a sum of two products, an adjoint one of eight; their sizes are below ten.
        np.testing.assert_allclose(one, other, atol=1e-14)
    constrained = problem.constrained
    np.testing.assert_allclose(problem.lengths[constrained], same.lengths[constrained], rtol=1e-14)


def test_lengths_of_one_hot_vectors_of_one_size_are_one_number() -> None:
    assert contexts(16).lengths.strides == (0, 0)
    even = SelectionProblem(np.diag([2.0, -2.0, 2.0])[None], np.diag([3.0, -3.0]), [0, 1], sequence=[0, 0]).lengths
    assert even.strides == (0, 0)
    np.testing.assert_allclose(even, 8**0.5 * 3.0, rtol=1e-14)  # |2 e_a - 2 e_b| times |3 e_c|
    words = SelectionProblem(np.diag([1.0, 2.0, 2.0])[None], np.eye(2), [0, 1], sequence=[0, 0])
    np.testing.assert_allclose(words.lengths, [[0.0, 5**0.5, 5**0.5], [5**0.5, 0.0, 8**0.5]], rtol=1e-14, atol=1e-90)


def test_a_threshold_at_a_score_is_found_in_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = SelectionProblem(np.eye(2)[None], np.ones((1, 1)), [0])
    columns = Columns.of(problem)
    assert columns is not None
    monkeypatch.setattr(projection, "PROJECTION_STEPS", 5)
    project = projection.Projection(columns, HARD_MARGIN.terms(problem, FROBENIUS))
    # The scores (2, 0) have a margin above one, and the threshold between them is one half.
    np.testing.assert_allclose(project(np.array([[2.0], [0.0]])), 0.0)
    # Both scores below move to the mean of .5 and 4.5, up to the demand of one.
    np.testing.assert_allclose(project(np.array([[1.5], [4.5]])), [[2.0], [-2.0]], rtol=1e-15)


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-12])
def test_a_threshold_between_two_that_newton_takes_in_turn_is_found(size: float) -> None:
    """One score rises; ten from 1 and one from 4 fall by 0.3 at most, and the steps from 0.3 and 3.3 lead back."""
    problem = SelectionProblem(np.eye(12)[None], np.eye(2) / size, [0, 0], sequence=[0, 0])
    columns = Columns.of(problem)
    assert columns is not None
    # The bound of a fall is C times the length of the query.
    terms = Regularisation(0.3 * size**2, "hinge", None).terms(problem, FROBENIUS)
    # The first one minus its demand is zero. The other column suffices, and its threshold does not change.
    scores = size * np.array([[1.0, 1.0], *[[1.0, 0.0]] * 10, [4.0, 0.0]])
    threshold = 10.3 / 11  # t = 0.3 + 10 (1 - t)
    expected = size * np.array([[threshold, 0.0], *[[threshold - 1.0, 0.0]] * 10, [-0.3, 0.0]])
    np.testing.assert_allclose(projection.Projection(columns, terms)(scores), expected, rtol=1e-13)


@pytest.mark.parametrize("p", [1.5, 2.0, 4.0])
@pytest.mark.parametrize("weight", [0.5, 20.0])
def test_the_map_of_a_power_solves_its_equation(p: float, weight: float) -> None:
    sigma = np.array([3.0, 1.0, 0.5, 1e-3, 0.0])
    x = shrink_power(sigma, weight, p)
    np.testing.assert_allclose(x + x ** (p - 1.0) / weight, sigma, rtol=1e-13)
    # A tangent at the first guess, a quarter, may meet the axis at zero: x + 2 sqrt(x) = 1/2.
    np.testing.assert_allclose(shrink_power(sigma[2:3], 0.5, 1.5), (1.5**0.5 - 1.0) ** 2, rtol=1e-13)


def test_a_guess_that_solves_the_equation_of_a_power_is_kept() -> None:
    sigma = np.array([2.0, 1.0])
    np.testing.assert_array_equal(shrink_power(sigma, 1.0, 2.0), 0.5 * sigma)


@pytest.mark.parametrize(
    ("ratio", "factor"), [(1.0, 1.0), (1.9, 1.0), (0.6, 1.0), (9.0, 3.0), (0.25, 0.5), (100.0, 4.0), (1e-3, 0.25)]
)
def test_the_weight_stays_where_residuals_are_balanced(ratio: float, factor: float) -> None:
    """It changes by the root of their ratio, at most by four."""
    one = np.ones((1, 1))
    assert _balance(one + ratio, one, 0.0 * one, one) == pytest.approx(factor, rel=1e-14)
    # Scores that did not move say nothing of the weight.
    assert _balance(one + ratio, one, one, one) == 1.0


def test_every_other_step_extrapolates_once_there_are_differences() -> None:
    """The others are plain; residuals of a linear map fall, so that no extrapolation is taken back."""
    random = np.random.default_rng(0)
    shares, V = np.linspace(0.1, 0.9, 20).reshape(4, 5), random.standard_normal((4, 5))
    extrapolation, extrapolated = Extrapolation(), []
    for _ in range(13):
        plain = V - shares * V
        V = extrapolation.advance(V, -shares * V)
        extrapolated.append(not np.array_equal(V, plain))
    assert extrapolated == [step > EXTRAPOLATED and step % 2 == 0 for step in range(1, 14)]


def test_steps_of_splitting_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Counted(projection.Projection):
        def __call__(self, V: np.ndarray, weight: float = 1.0) -> np.ndarray:
            calls.append(weight)
            return super().__call__(V, weight)

    monkeypatch.setattr(splitting, "Projection", Counted)
    columns = Columns.of(contexts())
    assert columns is not None
    control = Control(-1.0, max_iter=20)  # a goal that no gap meets
    splitting.split(columns, HARD_MARGIN.terms(columns.problem, NUCLEAR), np.zeros(columns.shape), control)
    assert control.stopped is Status.MAX_ITERATIONS
    assert len(calls) == 1 + control.iterations  # the first one finds the start


def test_a_hard_margin_has_no_loss() -> None:
    columns = Columns.of(single())
    assert columns is not None
    terms, control = HARD_MARGIN.terms(columns.problem, FROBENIUS), Control(1e-12)
    change = projection.Projection(columns, terms)(np.zeros(columns.shape))
    assert report(columns, terms, change, change, control)
    assert control.state.objective == pytest.approx(np.linalg.norm(change), rel=1e-14)


@pytest.mark.parametrize("size", [1e-78, 1e78])
def test_scores_whose_squares_leave_the_range_of_floats_are_left_to_other_methods(size: float) -> None:
    problem = relevance(21)
    scaled = moved(problem, size * problem.queries, size * np.eye(problem.shape[2]))
    one, other = solve(problem, "nuclear"), solve(scaled, "nuclear")
    assert other.status is Status.OPTIMAL
    assert other.objective * size**2 == pytest.approx(one.objective, rel=AGREE)


@pytest.mark.parametrize(
    ("problem", "norm"),
    [(relevance(18, 24, 82), "nuclear"), (contexts(19, 80, 160), "nuclear"), (relevance(20, 24, 82), "max")],
)
def test_sizes_that_took_minutes(problem: SelectionProblem, norm: Any) -> None:
    solution = solve(problem, norm, tol=1e-6)
    assert "columns" in solution.method
    assert solution.status is Status.OPTIMAL
