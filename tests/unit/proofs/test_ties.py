"""Ties that must hold exactly: how far a W is from one that does, against rational arithmetic and linear programs."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from attsvm import SelectionProblem, Status, solve
from attsvm.check import Matrix, Rejected, root_above
from attsvm.core import reduction
from attsvm.core.double_double import Rows
from attsvm.core.error_free import UNIT
from attsvm.core.norms import FROBENIUS
from attsvm.core.reduction import independent_ties, reduce
from attsvm.core.rounding import LENIENT
from attsvm.proofs import linear, surjective, tie_moves, ties
from attsvm.proofs.certified import certify
from attsvm.proofs.dyadic import Dyadic
from attsvm.proofs.program import Program
from attsvm.proofs.surjective import SURE_DEFECT, right_inverse
from attsvm.proofs.tie_moves import Move, TieEquations, common, exact_move
from attsvm.proofs.ties import onto_ties, tie_move
from exact import certificate, upper_bound
from problems import FAMILIES, NAMED

Row = list[Fraction]


def rational(values: np.ndarray) -> Row:
    return [Fraction(float(v)) for v in np.ravel(values)]


def tie_rows(problem: SelectionProblem) -> list[Row]:
    """The equations written out, one Python iteration a tie: (x_alpha - x_t) z^T."""
    rows = []
    for i, t in zip(*np.nonzero(problem.tied), strict=True):
        x = problem.tokens[problem.sequence[i]]
        delta = [a - b for a, b in zip(rational(x[problem.reference[i]]), rational(x[t]), strict=True)]
        rows.append([a * b for a in delta for b in rational(problem.queries[i])])
    return rows


def product(row: Row, values: Row) -> Fraction:
    return sum((a * b for a, b in zip(row, values, strict=True)), Fraction(0))


def eliminate(rows: list[Row], right: Row) -> tuple[list[Row], Row, bool]:
    """Gauss over the rationals: independent rows, their right sides, and whether the others agree with them."""
    remaining_rows: list[tuple[int, Row, Fraction]] = []
    consistent = True
    basis_rows, basis_right = [], []
    for row, value in zip(rows, right, strict=True):
        rest, rhs = list(row), value
        for pivot, other, other_rhs in remaining_rows:
            factor = rest[pivot]
            if factor:
                rest = [a - factor * b for a, b in zip(rest, other, strict=True)]
                rhs -= factor * other_rhs
        pivot = next((j for j, a in enumerate(rest) if a), None)
        if pivot is None:
            consistent = consistent and rhs == 0
            continue
        lead = rest[pivot]
        remaining_rows.append((pivot, [a / lead for a in rest], rhs / lead))
        basis_rows.append(row)
        basis_right.append(value)
    return basis_rows, basis_right, consistent


def nearest(problem: SelectionProblem, W: np.ndarray) -> float | None:
    """Length of the shortest change that makes every tie exact, in rational arithmetic; None when there is none."""
    rows = tie_rows(problem)
    missing = [-product(row, rational(W)) for row in rows]
    rows, missing, consistent = eliminate(rows, missing)
    if not consistent:
        return None
    if not rows:
        return 0.0
    gram = [[product(a, b) for b in rows] for a in rows]
    weights: Row = [Fraction(0)] * len(rows)
    augmented = [[*line, value] for line, value in zip(gram, missing, strict=True)]
    for k in range(len(rows)):
        for i in range(len(rows)):
            if i != k:
                factor = augmented[i][k] / augmented[k][k]
                augmented[i] = [a - factor * b for a, b in zip(augmented[i], augmented[k], strict=True)]
    weights = [augmented[k][-1] / augmented[k][k] for k in range(len(rows))]
    squared = product(weights, missing)
    return math.sqrt(squared.numerator / squared.denominator) if squared else 0.0


def tied_problem(seed: int, n: int = 3, T: int = 4, d: int = 3) -> SelectionProblem:
    """Two or three tied tokens in every query."""
    rng = np.random.default_rng([seed, 23])
    selected = rng.random((n, T)).argsort(axis=1) < rng.integers(2, 4, (n, 1))
    return SelectionProblem(rng.standard_normal((n, T, d)), rng.standard_normal((n, 2)), selected)


def with_repeats(problem: SelectionProblem) -> SelectionProblem:
    """Every query twice, the second time doubled: half of the equations depend on the others."""
    n = len(problem.queries)
    return SelectionProblem(
        problem.tokens,
        np.concatenate([problem.queries, 2 * problem.queries]),
        np.concatenate([problem.selected, problem.selected]),
        sequence=[*range(n), *range(n)],
    )


# --- bounds on the change ---


@pytest.mark.parametrize("size", [1e-12, 1e-3, 10.0])
@pytest.mark.parametrize("dependent", [False, True])
def test_the_move_bounds_the_shortest_change(size: float, dependent: bool) -> None:
    """At least the shortest change; at most that times the condition of the equations, sqrt(2) for the share kept."""
    rng = np.random.default_rng(0)
    for seed in range(6):
        problem = tied_problem(seed, n=2)
        problem = with_repeats(problem) if dependent else problem
        W = problem_solution(problem) + size * rng.standard_normal(problem.shape[2:])
        bound = tie_move(problem, W, float(np.linalg.norm(W)))
        true = nearest(problem, W)
        assert true is not None
        assert bound >= true
        if dependent:
            exact = exact_move(equations(problem, W))
            assert exact is not None
            length = root_above(sum((x * x for x in exact.fractions().flat), Fraction(0)))
            assert length <= Fraction(bound) <= length * (1 + Fraction(1, 2**48))
        rows = np.array([[float(a) for a in row] for row in tie_rows(problem)])
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        sigma = np.linalg.svd(rows, compute_uv=False)
        # Dependent equations are solved over the rationals; the sum of entries exceeds the length by sqrt(d dz).
        room = math.sqrt(problem.shape[2] * 2) if dependent else math.sqrt(2 * len(rows)) * sigma[0] / sigma[-1]
        # Margins are known in twice the precision: what is lost is far below a unit of W.
        assert bound <= true * room * (1 + 1e-9) + 1e-28 * np.linalg.norm(W)


def problem_solution(problem: SelectionProblem) -> np.ndarray:
    """A W of length one whose ties hold to rounding."""
    rows = np.array([[float(a) for a in row] for row in tie_rows(problem)])
    W = np.random.default_rng(9).standard_normal(problem.shape[2] * problem.shape[3])
    W -= np.linalg.pinv(rows) @ (rows @ W)
    return (W / max(np.linalg.norm(W), 1e-300)).reshape(problem.shape[2:])


def test_ties_that_hold_exactly_cost_nothing_and_ones_that_cannot_are_refused() -> None:
    exact = NAMED["tie_forces_a_detour"]().problem
    assert tie_move(exact, np.array([[3.0], [-3.0]]), math.sqrt(18.0)) < 1e-29
    # d = dz = 1 and two ties of one query that ask w delta = 0: w = 0, at the price of its length.
    line = SelectionProblem([[[0.0], [1.0], [3.0], [7.0]]], [[1.0]], [[True, True, True, False]])
    assert tie_move(line, np.array([[0.25]]), 0.25) == pytest.approx(0.25, rel=1e-12)
    twins = NAMED["several_selected_twins"]().problem
    assert tie_move(twins, np.array([[1.0], [5.0]]), math.sqrt(26.0)) == 0.0


def test_ties_that_depend_on_each_other_are_settled_over_the_rationals() -> None:
    """Differences (1, 1), (2, 2), (3, 3): w = (3, -3) ties all of them, (3, -2) is a half short in every entry."""
    line = [[0.0, 0.0], [-1.0, -1.0], [-2.0, -2.0], [-3.0, -3.0], [5.0, 1.0]]
    problem = SelectionProblem([line], [[1.0]], [[True, True, True, True, False]])
    assert tie_move(problem, np.array([[3.0], [-3.0]]), math.sqrt(18.0)) == 0.0
    assert tie_move(problem, np.array([[3.0], [-2.0]]), math.sqrt(13.0)) == pytest.approx(math.sqrt(0.5), rel=1e-14)
    # One of the ties holds, another does not: d = 2, and (1, 0) beside (0, 1) and (1, 1).
    corner = [[0.0, 0.0], [-1.0, 0.0], [0.0, -1.0], [-1.0, -1.0], [5.0, 1.0]]
    mixed = SelectionProblem([corner], [[1.0]], [[True, True, True, True, False]])
    assert tie_move(mixed, np.array([[0.0], [0.5]]), 0.5) == pytest.approx(0.5, rel=1e-14)


def test_an_equation_whose_square_underflows_is_settled_over_the_rationals() -> None:
    """No Gram matrix holds the square of a difference that is 1e-200 times as long as the others."""
    rng = np.random.default_rng(0)
    tokens = np.vstack([np.zeros(3), rng.standard_normal((3, 3)), np.full(3, 5.0)])
    tokens[3] *= 1e-200
    problem = SelectionProblem(tokens[None], [[1.0, 2.0]], [[True, True, True, True, False]])
    W = rng.standard_normal((3, 2))
    with np.errstate(**LENIENT):
        bound = tie_move(problem, W, float(np.linalg.norm(W)))
    true = nearest(problem, W)
    assert true is not None
    assert true * (1 - 1e-15) <= bound < math.inf


def contexts(seed: int, axes: list[list[int]]) -> SelectionProblem:
    """Queries with entries on the given axes only, each followed by two or three of five one-hot words."""
    rng = np.random.default_rng([seed, 29])
    queries = np.zeros((len(axes), 1 + max(max(one) for one in axes)))
    for i, one in enumerate(axes):
        queries[i, one] = rng.choice([-1.0, 1.0], len(one)) * rng.uniform(0.5, 2.0, len(one))
    selected = rng.random((len(axes), 5)).argsort(axis=1) < rng.integers(2, 4, (len(axes), 1))
    return SelectionProblem.from_contexts(queries, selected)


@pytest.mark.parametrize("axes", [[[0], [1], [2]], [[0, 1], [1, 2], [3]], [[0], [0, 1], [2, 3]]])
def test_equations_of_queries_without_a_common_axis_are_bounded_block_by_block(
    axes: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(4):
        problem = contexts(seed, axes)
        W = problem_solution(problem) + 1e-3 * np.random.default_rng(seed).standard_normal(problem.shape[2:])
        true = nearest(problem, W)
        rows = Rows.of(problem, *ties._distinct_ties(problem))
        written = np.array([[float(a) for a in row] for row in tie_rows(problem)])
        written /= np.linalg.norm(written, axis=1, keepdims=True)
        smallest = float(np.linalg.svd(written, compute_uv=False)[-1])
        # Half of the smallest eigenvalue is what is proved; the rounding allowed for is far below it.
        with monkeypatch.context() as patch:
            patch.setattr(ties, "SUFFICIENT_SQUARE", math.inf)
            assert ties._smallest_square(rows) == pytest.approx(0.5 * smallest**2, rel=1e-9)
        assert 0.5 * smallest**2 * (1 - 1e-9) <= ties._smallest_square(rows) <= smallest**2 * (1 + 1e-12)
        assert true is not None
        assert tie_move(problem, W, float(np.linalg.norm(W))) >= true
        blocks = ties._connected(rows.queries, rows.group)
        assert sorted(np.concatenate(blocks).tolist()) == list(range(len(rows.lengths)))
        pattern = rows.queries != 0
        for k, one in enumerate(blocks):
            for other in blocks[k + 1 :]:
                assert not (pattern[one][:, None] & pattern[other]).any()


@pytest.mark.parametrize("scale", [1.0, 1e-170, 1e170])
def test_words_of_their_own_bound_the_equations_of_one_hot_contexts(scale: float) -> None:
    """A tie e_a - e_t has half of its square on e_t, which no other tie of its context has."""
    problem = contexts(0, [[0], [1], [2]])
    scaled = SelectionProblem(problem.tokens * scale, problem.queries, problem.selected, sequence=problem.sequence)
    rows = Rows.of(scaled, *ties._distinct_ties(scaled))
    blocks = ties._connected(rows.queries, rows.group)
    assert ties._smallest_square_of_axes(rows.delta.high, blocks) == pytest.approx(0.5, rel=1e-12)
    # Equations that share their axes, as of one block, have less or nothing of their own.
    everything = [np.arange(len(rows.lengths))]
    smallest = float(np.linalg.svd(rows.delta.high / np.sqrt(2.0), compute_uv=False)[-1])
    assert ties._smallest_square_of_axes(rows.delta.high, everything) <= max(smallest**2, 0.0) + 1e-12


def test_equal_scores_of_one_hot_words_and_contexts_tie_without_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = contexts(0, [[0], [1], [2]])
    W = np.random.default_rng(0).standard_normal((5, 3))
    W[problem.selected.T] = 0.3
    monkeypatch.setattr(ties, "_distinct_ties", lambda _: pytest.fail("the equations are written"))
    assert tie_move(problem, W, float(np.linalg.norm(W))) == 0.0
    monkeypatch.undo()
    i, t = np.argwhere(problem.tied)[0]
    W[t, i] += 1e-3
    assert tie_move(problem, W, float(np.linalg.norm(W))) >= 1e-3 / np.sqrt(2)


def test_one_block_without_a_bound_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = contexts(0, [[0], [1], [2]])
    rows = Rows.of(problem, *ties._distinct_ties(problem))
    bounds = iter([0.25, 0.0, 0.25])
    monkeypatch.setattr(ties, "SUFFICIENT_SQUARE", math.inf)
    monkeypatch.setattr(ties, "_smallest_square_of_block", lambda *_: next(bounds))
    assert ties._smallest_square(rows) == 0.0


def test_an_equation_is_counted_once_whatever_the_sign_of_its_zeros() -> None:
    tokens = np.array([[[0.0, 1.0], [1.0, 0.0], [3.0, 3.0]], [[-0.0, 1.0], [1.0, -0.0], [4.0, 4.0]]])
    problem = SelectionProblem(tokens, [[1.0, 0.0], [1.0, -0.0]], [[True, True, False]] * 2)
    rows, columns = ties._distinct_ties(problem)
    assert (rows.tolist(), columns.tolist()) == ([0], [1])
    # Equal tokens and zero queries give no equation.
    same = SelectionProblem([[[1.0], [1.0], [2.0]], [[1.0], [2.0], [3.0]]], [[1.0], [0.0]], [[True, True, False]] * 2)
    assert len(ties._distinct_ties(same)[0]) == 0


def test_as_many_equations_as_w_has_entries() -> None:
    """Orthogonal ones: each has its axis, so the bound is the length of the residuals."""
    problem = SelectionProblem(
        [[[0.0, 0.0], [-1.0, 0.0], [0.0, -1.0], [5.0, 1.0]]], [[1.0, 0.0]], [[True, True, True, False]]
    )
    assert tie_move(problem, np.array([[0.25, 0.0], [0.0, 7.0]]), 8.0) == pytest.approx(0.25, rel=1e-11)
    square = SelectionProblem(
        [[[0.0, 0.0], [-1.0, 0.0], [0.0, -1.0], [5.0, 1.0]]], [[2.0]], [[True, True, True, False]]
    )
    assert tie_move(square, np.array([[0.3], [0.4]]), 0.5) == pytest.approx(0.5, rel=1e-11)


def test_the_smallest_eigenvalue_is_proved_and_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK may say what it likes: without a Cholesky factor of the rest there is no bound by the Gram matrix."""
    problem = tied_problem(0, n=2, d=4)
    rows = Rows.of(problem, *ties._distinct_ties(problem))
    assert ties._smallest_square(rows) > 0
    monkeypatch.setattr(np.linalg, "eigvalsh", lambda gram: np.array([1.9]))
    assert ties._smallest_square(rows) == 0.0


def test_allowances_are_those_of_the_roundings_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a unit of 1e-6 in the allowances alone, the move is longer by what the products and sums may lose."""
    unit = 1e-6
    problem = tied_problem(0, n=2, d=5)
    d, dz = problem.shape[2:]
    rows = Rows.of(problem, *ties._distinct_ties(problem))
    k = len(rows.lengths)
    W = np.random.default_rng(0).standard_normal((d, dz))
    length, floor = tie_move(problem, W, 1.0), ties._smallest_square(rows)
    monkeypatch.setattr(ties, "gamma", lambda count: count * unit)
    coarse = ties._smallest_square(rows)
    # Entries of the Gram matrix: a difference, d and dz products, lengths; Cholesky: k + 1 roundings of the trace.
    shortfall = (floor - coarse) / unit
    assert k * 2 * (d + dz) + (k + 1) * k <= shortfall <= k * (2 * (d + dz) + 16) + (k + 4) * k + 1e-3
    stretch = (tie_move(problem, W, 1.0) / length / math.sqrt(floor / coarse) - 1) / unit
    # The norm of k residuals, their quotients by lengths of d + dz roundings.
    assert k + d + dz + 4 <= stretch <= k + d + dz + 40
    # Four times the rounding is where the bound is given up.
    for share, is_shown in ((4.1, True), (3.9, False)):
        gram_unit = 2 * floor / share / (k * (2 * (d + dz) + 16) + (k + 4) * k)
        monkeypatch.setattr(ties, "gamma", lambda count, size=gram_unit: count * size)
        assert (ties._smallest_square(rows) > 0) == is_shown


def test_what_sums_may_miss_counts_beside_the_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tie of length one: a margin of 3 known to 2 |W||delta||z| is 3 + 2 |W| short at most, of whatever sign."""
    from attsvm.core.double_double import Rows
    from attsvm.core.error_free import Pair

    problem = SelectionProblem([[[0.0, 0.0], [-1.0, 0.0], [5.0, 1.0]]], [[1.0]], [[True, True, False]])
    inputs = Rows.of(problem, *ties._distinct_ties(problem))
    unit = inputs.lengths[0]  # scaled by powers of two
    for margin in (3.0, -3.0, 0.0):
        answer = Pair(np.array([margin * unit]), np.zeros(1)), 2.0
        monkeypatch.setattr(Rows, "margins", lambda *arguments, answer=answer, **options: answer)
        bound = tie_move(problem, np.array([[4.0], [0.0]]), 4.0)
        # The equation alone has its axis: its singular value, one, is the floor.
        assert bound == pytest.approx(abs(margin) + 2.0 * 4.0, rel=1e-9)


def test_an_equation_that_says_nothing_or_stands_twice_is_left_out() -> None:
    """Two queries read the same tied tokens; a third query is zero, a fourth ties a token with itself."""
    tokens = [[[0.0, 1.0], [1.0, 1.0], [5.0, 5.0]], [[2.0, 2.0], [2.0, 2.0], [5.0, 5.0]]]
    selected = np.array([[True, True, False]] * 4)
    problem = SelectionProblem(tokens, [[1.0], [1.0], [0.0], [1.0]], selected, sequence=[0, 0, 0, 1])
    rows, columns = ties._distinct_ties(problem)
    assert (rows.tolist(), columns.tolist()) == ([0], [1])
    thrice = SelectionProblem(tokens, [[1.0], [2.0], [1.0], [1.0]], selected, sequence=[0, 0, 0, 0])
    assert ties._distinct_ties(thrice)[0].tolist() == [0, 1]
    half = SelectionProblem(tokens, [[1.0, 0.0]], selected[:1], sequence=[0])
    assert len(ties._distinct_ties(half)[0]) == 1
    several = SelectionProblem(tokens, [[1.0], [2.0], [0.0], [1.0]], selected, sequence=[0, 0, 0, 1])
    rows, columns = ties._distinct_ties(several)
    assert (rows.tolist(), columns.tolist()) == ([0, 1], [1, 1])


@pytest.mark.parametrize("seed", range(4))
def test_moving_onto_the_ties_is_the_orthogonal_projection(seed: int) -> None:
    problem = tied_problem(seed, d=4)
    W = np.random.default_rng(seed).standard_normal(problem.shape[2:])
    shift = onto_ties(problem, W, problem.apply(W))
    rows = np.array([[float(a) for a in row] for row in tie_rows(problem)])
    expected = W.ravel() - np.linalg.pinv(rows) @ (rows @ W.ravel())
    np.testing.assert_allclose(shift.ravel(), expected, rtol=0, atol=1e-12)


def test_more_ties_than_are_treated_leave_w_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tied_problem(0)
    count = len(ties._distinct_ties(problem)[0])
    W = np.random.default_rng(0).standard_normal(problem.shape[2:])
    margins, size = problem.apply(W), float(np.linalg.norm(W))
    monkeypatch.setattr(ties, "GRAM_TIES", count)
    assert onto_ties(problem, W, margins) is not W
    bound = tie_move(problem, W, size)
    monkeypatch.setattr(ties, "GRAM_TIES", count - 1)
    assert onto_ties(problem, W, margins) is W
    # The rationals settle what the Gram matrix may not: as few ties, of few numbers.
    assert 0 < tie_move(problem, W, size) < math.inf
    assert tie_move(problem, W, size) != bound
    for name, value in (("FEW_TIES", count), ("FEW_NUMBERS", count * 5)):
        with monkeypatch.context() as inner:
            inner.setattr(ties, name, value)
            assert tie_move(problem, W, size) < math.inf
            inner.setattr(ties, name, value - 1)
            assert tie_move(problem, W, size) == math.inf
    free = NAMED["counterexample"]().problem
    assert onto_ties(free, np.ones((2, 2)), free.apply(np.ones((2, 2)))).tolist() == np.ones((2, 2)).tolist()


def test_the_smallest_singular_value_is_bounded_from_below() -> None:
    for seed in range(8):
        problem = tied_problem(seed, n=2, d=4)
        rows, columns = ties._distinct_ties(problem)
        floor = ties._smallest_square(Rows.of(problem, rows, columns))
        dense = np.array([[float(a) for a in row] for row in tie_rows(problem)])
        dense /= np.linalg.norm(dense, axis=1, keepdims=True)
        sigma = float(np.linalg.svd(dense, compute_uv=False)[-1]) ** 2
        assert 0.4 * sigma <= floor <= 0.6 * sigma
    # Twice the same equation: no bound.
    twice = with_repeats(tied_problem(0, n=1))
    rows, columns = ties._distinct_ties(twice)
    assert ties._smallest_square(Rows.of(twice, rows, columns)) == 0.0
    # More equations than W has entries, in general position.
    many = tied_problem(1, n=5, d=2)
    rows, columns = ties._distinct_ties(many)
    assert len(rows) > 4
    assert ties._smallest_square(Rows.of(many, rows, columns)) == 0.0


# --- the moves themselves ---


def equations(problem: SelectionProblem, W: np.ndarray) -> TieEquations:
    left, right, margins = [], [], []
    for i, t in zip(*np.nonzero(problem.tied), strict=True):
        tokens = Dyadic.of(problem.tokens[problem.sequence[i], [problem.reference[i], t]])
        delta = Dyadic(tokens.numbers[0] - tokens.numbers[1], tokens.exponent)
        z = Dyadic.of(problem.queries[i])
        left.append(delta)
        right.append(z)
        margin = delta @ (Dyadic.of(W) @ z)
        margins.append(Dyadic(np.array(margin.numbers, dtype=object), margin.exponent))
    return TieEquations(common(left), common(right), common(margins))


def move_exactly(W: np.ndarray, move: Move) -> Row:
    return [a + b for a, b in zip(rational(W), move.fractions().ravel().tolist(), strict=True)]


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_an_exact_move_ties_exactly(seed: int, dependent: bool) -> None:
    problem = with_repeats(tied_problem(seed, n=2)) if dependent else tied_problem(seed, n=2)
    W = np.random.default_rng(seed).standard_normal(problem.shape[2:])
    move = exact_move(equations(problem, W))
    assert move is not None
    values = move_exactly(W, move)
    assert all(product(row, values) == 0 for row in tie_rows(problem))
    change = [a - b for a, b in zip(values, rational(W), strict=True)]
    assert move.fractions().ravel().tolist() == change


def test_too_many_equations_are_left_to_the_other_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tied_problem(0)
    count = int(problem.tied.sum())
    W = np.ones(problem.shape[2:])
    monkeypatch.setattr(tie_moves, "EXACT_TIES", count)
    assert exact_move(equations(problem, W)) is not None
    monkeypatch.setattr(tie_moves, "EXACT_TIES", count - 1)
    assert exact_move(equations(problem, W)) is None


def near_ties(problem: SelectionProblem, W: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> tuple[Row, Fraction]:
    """W after the move of many ties, and how near, in the Frobenius norm, the checker proves a matrix that ties."""
    monkeypatch.setattr(tie_moves, "EXACT_TIES", 0)
    witness = certificate(problem, FROBENIUS, W, np.zeros(problem.mask.shape))
    matrix = Matrix.read(witness.witness["W"], *W.shape) + Matrix.read(witness.witness["move"], *W.shape)
    values = [Fraction(a) * matrix.unit for row in matrix.rows for a in row]
    return values, witness._tie_radius(witness._margins(matrix))


@pytest.mark.parametrize("size", [1e-10, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_w_that_ties_is_within_reach(seed: int, size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left after the move has a solution within the reach: the smallest one, by least squares."""
    problem = tied_problem(seed, n=2)
    W = problem_solution(problem) + size * np.random.default_rng(seed).standard_normal(problem.shape[2:])
    values, reach = near_ties(problem, W, monkeypatch)
    rows = tie_rows(problem)
    left_over = [product(row, values) for row in rows]
    scale = max(abs(a) for a in left_over)
    assert 0 < scale < Fraction(1, 10**14) * Fraction(max(size, 1e-6))
    dense = np.array([[float(a) for a in row] for row in rows])
    smallest = np.linalg.lstsq(dense, np.array([float(-a / scale) for a in left_over]), rcond=None)[0]
    # The reach is for any right-hand side as large, by the lengths of an inverse: a hundredfold at these sizes.
    length = float(np.linalg.norm(smallest) * float(scale))
    assert length * (1 - 1e-9) <= float(reach) <= 100 * np.linalg.cond(dense) * length


def test_equations_that_no_matrix_satisfies_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ties whose differences round to the same float but are not the same number: nothing may be left out."""
    tokens = np.array([[[1.0], [1 / 3], [0.0]], [[2.0**60 + 0.0], [2.0**60 - 1.0 * 2**10], [0.0]]])
    selected = np.array([[True, True, False]] * 2)
    problem = SelectionProblem(tokens, [[1.0], [1.0]], selected)
    twin = SelectionProblem(tokens[:1], [[1.0], [1.0]], selected, sequence=[0, 0])
    W = np.array([[0.5]])
    with pytest.raises(ValueError, match="few enough for an exact solution were expected"):
        near_ties(problem, W, monkeypatch)  # two different equations on one unknown
    values, reach = near_ties(twin, W, monkeypatch)
    assert abs(values[0]) <= reach
    near = np.array([[[1.0], [2.0**-60], [0.0]], [[1.0], [2.0**-61], [0.0]]])
    wide = SelectionProblem(np.pad(near, ((0, 0), (0, 0), (0, 1))), [[1.0], [1.0]], selected)
    with pytest.raises(Rejected, match="right inverse"):  # different equations that are one in floats
        near_ties(wide, np.array([[0.5], [0.5]]), monkeypatch)


def test_a_tie_that_is_not_named_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tied_problem(0, n=2)
    monkeypatch.setattr(tie_moves, "EXACT_TIES", 0)
    W = np.random.default_rng(0).standard_normal(problem.shape[2:])
    witness = certificate(problem, FROBENIUS, W, np.zeros(problem.mask.shape))
    witness.witness["ties"] = witness.witness["ties"][1:]
    with pytest.raises(Rejected, match="a tie is left out"):
        witness.upper()


def test_differences_with_zeros_and_ties_of_twins_are_moved_onto_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit vectors: most entries of an equation are zero; the tie of two equal tokens is no equation."""
    tokens = np.array([np.eye(4), np.eye(4)[[0, 0, 1, 2]]])
    problem = SelectionProblem(tokens, [[1.0, 0.0], [0.0, 2.0]], [[True, True, True, False], [True, True, True, False]])
    W = np.random.default_rng(0).standard_normal((4, 2))
    values, reach = near_ties(problem, W, monkeypatch)
    # Rows have a length of at most two times the root of two.
    assert max(abs(product(row, values)) for row in tie_rows(problem)) <= reach * 3


# --- a right inverse ---


def test_the_defect_of_a_right_inverse_holds_in_exact_arithmetic() -> None:
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (3, 5), (6, 6)):
        M = rng.standard_normal(shape) * 10.0 ** rng.integers(-8, 9, (shape[0], 1))
        inverse = right_inverse(M, 3)
        assert inverse is not None
        np.testing.assert_array_equal(inverse.M, M * inverse.scale[:, None])
        assert (np.frexp(inverse.scale)[0] == 0.5).all()
        assert (np.abs(inverse.M).max(axis=1) <= math.sqrt(2)).all()
        assert (np.abs(inverse.M).max(axis=1) >= 1 / math.sqrt(2)).all()
        # Entries of M are within three units of the exact ones: the worst of such matrices.
        units = Fraction(3) / 2**53
        worst = Fraction(0)
        for i in range(shape[0]):
            total = Fraction(0)
            for j in range(shape[0]):
                terms = [Fraction(a) * Fraction(b) for a, b in zip(inverse.M[i], inverse.Y[:, j], strict=True)]
                total += abs(int(i == j) - sum(terms)) + units * sum(abs(a) for a in terms)
            worst = max(worst, total)
        assert worst <= Fraction(inverse.defect) <= 40 * worst
        # c solves (M Y) c = b: |c| <= |b| / (1 - defect).
        assert inverse.multiplier(2.0) >= 2.0 / (1 - inverse.defect)
        assert inverse.multiplier(2.0) <= 2.0 / (1 - inverse.defect) * (1 + 1e-14)
        v = rng.standard_normal(shape[1])
        for row, value in zip(inverse.M, inverse.M @ v, strict=True):
            exact = sum(Fraction(a) * Fraction(b) for a, b in zip(row, v, strict=True))
            room = sum(abs(Fraction(a) * Fraction(b)) for a, b in zip(row, v, strict=True))
            assert abs(Fraction(float(value)) - exact) + units * room <= Fraction(inverse.error) * room
        assert inverse.error <= (shape[1] + 10) * UNIT


def test_the_allowances_of_a_right_inverse(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a unit of 1e-6 and an inverse that is off by a hundredth: every rounding counted widens the defect."""
    unit, count = 1e-6, 5
    M = np.eye(count) + np.diag([1.0] * (count - 1), 1)
    inverse = np.linalg.pinv(M) * 1.01
    monkeypatch.setattr(surjective, "UNIT", unit)
    monkeypatch.setattr(surjective, "gamma", lambda k: k * unit)
    monkeypatch.setattr(np.linalg, "pinv", lambda M: inverse)
    result = right_inverse(M, 3)
    assert result is not None
    # k products and sums, three roundings of an entry and that of its scaling.
    assert (count + 3) * unit <= result.error <= (count + 3 + 3) * unit
    size = (np.abs(M) @ np.abs(inverse)).sum(axis=1)
    least = 0.01 * (1 + unit) + result.error * size + count * unit
    assert least.max() * (1 + (count - 1) * unit) <= result.defect
    assert result.defect <= (0.01 * (1 + 3 * unit) + result.error * size + count * unit).max() * (
        1 + (count + 1) * unit
    )
    reach = result.multiplier(1.0) * (1 - result.defect)
    assert 1 + 2 * unit <= reach <= 1 + 10 * unit
    monkeypatch.setattr(np.linalg, "pinv", lambda M: np.where(np.eye(count) > 0, np.inf, inverse))
    assert right_inverse(M, 3) is None


def test_what_maps_onto_less_has_no_right_inverse() -> None:
    assert right_inverse(np.ones((2, 3)), 3) is None
    assert right_inverse(np.ones((3, 2)), 3) is None
    assert right_inverse(np.empty((0, 2)), 3) is None
    assert right_inverse(np.array([[1.0, np.nan]]), 3) is None
    assert right_inverse(np.array([[1.0, 0.0], [np.inf, 1.0]]), 3) is None
    nearly = np.array([[1.0, 0.0], [1.0, 2.0**-50]])
    assert right_inverse(nearly, 3) is None  # entries known to three units only: the rows may be the same
    assert right_inverse(np.array([[1.0, 0.0], [1.0, 1e-10]]), 3) is not None
    assert SURE_DEFECT == 0.5


# --- what it is for ---


def test_upper_bounds_with_ties_hold_for_a_w_that_ties_exactly() -> None:
    """The bound in floats against the exact one, for W whose ties were broken a little."""
    rng, count = np.random.default_rng(1), 0
    for seed in range(12):
        problem = FAMILIES["several"].make(np.random.default_rng([seed, 4]), 4, 4, 4)
        solution = solve(problem)
        if not np.isfinite(solution.objective) or not problem.tied.any():
            continue
        W = solution.certified.W + 1e-7 * rng.standard_normal(problem.shape[2:])
        pair = certify(Program(problem, FROBENIUS), W, solution.certified.dual)
        # Certification moves W onto the ties first; then the remaining miss is rounding.
        assert pair.tie_residual == 0.0
        exact, reason = upper_bound(problem, FROBENIUS, pair.W)
        assert exact is not None, reason
        assert pair.upper_bound >= solution.certified.lower_bound
        assert pair.upper_bound <= solution.objective * (1 + 1e-4)
        count += 1
    assert count > 4


def test_integers_that_solve_a_system_exactly() -> None:
    rng = np.random.default_rng(2)
    for rank, shape in ((2, (4, 3)), (3, (3, 6)), (1, (5, 2))):
        left = rng.integers(-9, 10, (shape[0], rank)).astype(object)
        right = rng.integers(-9, 10, (rank, shape[1])).astype(object)
        matrix = left @ right
        rows, columns = linear.independent(matrix)
        assert len(rows) == len(columns) == np.linalg.matrix_rank(matrix.astype(float))
        assert abs(np.linalg.det(matrix[np.ix_(rows, columns)].astype(float))) > 0.5


def test_ties_that_do_not_fit_into_memory_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = NAMED["ties_outnumber_the_entries"]().problem
    monkeypatch.setattr(reduction, "available_bytes", lambda: 1e3)
    solution = solve(problem, method="coordinate_newton")
    assert solution.status is Status.MEMORY_LIMIT
    assert np.isinf(solution.gap)


def test_ties_that_follow_from_others_are_left_out_where_they_outnumber_the_entries() -> None:
    problem = NAMED["ties_outnumber_the_entries"]().problem
    assert problem.tied.sum() == 60
    assert independent_ties(reduce(problem)).tied.sum() == 6
    solution = solve(problem)
    # All sixty hold, not only the six.
    assert np.abs(problem.apply(solution.W)[problem.tied]).max() <= UNIT * 60
