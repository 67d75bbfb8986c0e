r"""What the theory says must happen to the answer when the data change.

Tolerances: for the Frobenius norm a certified gap g bounds the distance to the solution by :math:`\|W\|\sqrt{2g}`
(strong convexity), so two solves of equivalent problems differ by at most the sum of their bounds. For the nuclear norm
only the objective is compared: it exceeds the optimum by at most the gap. Changed data are rounded: that moves a margin
by a few eps |x| |z| |W|, and W scaled up by as much is feasible again, so the optimum moves by no more, relatively.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import nnls

from attsvm import SelectionProblem, Solution, Status, solve
from attsvm.norms import KyFan, Schatten
from attsvm.proofs.certificate import FarkasCertificate
from problems import FAMILIES, NAMED

NORMS = st.sampled_from(["frobenius", "nuclear"])
EPS = float(np.finfo(float).eps)


@st.composite
def instances(
    draw: st.DrawFn, names: tuple[str, ...] = ("published", "planted", "rectangular", "correlated", "masked")
):
    """A small problem of a random family; hypothesis shrinks the sizes."""
    name = draw(st.sampled_from(names))
    size = draw(st.tuples(st.integers(1 + (name == "contradicted"), 6), st.integers(2, 6), st.integers(2, 6)))
    rng = np.random.default_rng([draw(st.integers(0, 10_000)), *size])
    return FAMILIES[name].make(rng, *size)


seeds = st.integers(0, 10_000).map(np.random.default_rng)


def rebuilt(problem: SelectionProblem, tokens=None, queries=None, selected=None, mask=None) -> SelectionProblem:
    """The same problem with some of its parts replaced."""
    return SelectionProblem(
        problem.tokens if tokens is None else tokens,
        problem.queries if queries is None else queries,
        problem.selected if selected is None else selected,
        mask=problem.mask if mask is None else mask,
        sequence=problem.sequence,
    )


def rotation(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((size, size)))[0]


def rounding(solution: Solution) -> float:
    """How far, relatively, rounding the data may move the optimum: 2 |x| |z| |W| times a few eps a coordinate."""
    problem = solution.problem
    x, z = np.linalg.norm(problem.tokens, axis=-1).max(), np.linalg.norm(problem.queries, axis=-1).max()
    return 2 * (sum(problem.shape[2:]) + 4) * EPS * float(1 + x * z * np.linalg.norm(np.asarray(solution.W)))


def assert_same(one: Solution, other: Solution, factor: float = 1.0, carry=None) -> None:
    """Assert that ``other`` is ``one`` with W mapped by ``carry`` and norms multiplied by ``factor``."""
    assert other.status is one.status
    if one.status is not Status.OPTIMAL:
        return
    slack = max(one.gap, 0.0) + max(other.gap, 0.0) + rounding(one) + rounding(other)
    assert other.objective == pytest.approx(one.objective * factor, rel=slack)
    if one.norm.name == "frobenius":
        expected = np.asarray(one.W) if carry is None else carry(np.asarray(one.W))
        distance = np.linalg.norm(np.asarray(other.W) - expected)
        assert distance <= 2 * np.sqrt(2 * slack) * other.objective


@given(instances(), NORMS, seeds)
def test_rotating_tokens_rotates_the_answer(problem, norm, rng):
    Q = rotation(rng, problem.shape[2])
    solution_after = solve(rebuilt(problem, tokens=problem.tokens @ Q.T), norm)
    assert_same(solve(problem, norm), solution_after, carry=lambda W: Q @ W)


@given(instances(), NORMS, seeds)
def test_rotating_queries_rotates_the_answer(problem, norm, rng):
    Q = rotation(rng, problem.shape[3])
    solution_after = solve(rebuilt(problem, queries=problem.queries @ Q.T), norm)
    assert_same(solve(problem, norm), solution_after, carry=lambda W: W @ Q.T)


@given(instances(), NORMS, seeds)
def test_moving_all_tokens_of_a_sequence_changes_nothing(problem, norm, rng):
    shift = rng.standard_normal((len(problem.tokens), 1, problem.shape[2]))
    assert_same(solve(problem, norm), solve(rebuilt(problem, tokens=problem.tokens + shift), norm))


@given(instances(), NORMS, seeds)
def test_order_of_tokens_does_not_matter(problem, norm, rng):
    order = rng.permutation(problem.shape[1])
    other = rebuilt(problem, problem.tokens[:, order], None, problem.selected[:, order], problem.mask[:, order])
    assert_same(solve(problem, norm), solve(other, norm))


@given(instances(), NORMS, seeds)
def test_order_of_queries_does_not_matter(problem, norm, rng):
    order = rng.permutation(problem.shape[0])
    other = SelectionProblem(
        problem.tokens[problem.sequence[order]],
        problem.queries[order],
        problem.selected[order],
        mask=problem.mask[order],
    )
    assert_same(solve(problem, norm), solve(other, norm))


@given(instances(), NORMS, st.sampled_from([-3.0, 1e-6, 0.37, 8.0, 1e6]))
def test_scaling_tokens_scales_the_answer_inversely(problem, norm, c):
    assert_same(
        solve(problem, norm), solve(rebuilt(problem, tokens=problem.tokens * c), norm), 1 / abs(c), lambda W: W / c
    )


@given(instances(), NORMS, st.sampled_from([-3.0, 1e-6, 0.37, 8.0, 1e6]))
def test_scaling_queries_scales_the_answer_inversely(problem, norm, c):
    assert_same(
        solve(problem, norm), solve(rebuilt(problem, queries=problem.queries * c), norm), 1 / abs(c), lambda W: W / c
    )


@given(instances(("planted",)), seeds)
def test_a_power_of_two_changes_no_bit(problem, rng):
    c = 2.0 ** rng.integers(-20, 20)
    one, other = solve(problem), solve(rebuilt(problem, tokens=problem.tokens * c))
    assert other.status is one.status
    np.testing.assert_array_equal(np.asarray(other.W) * c, np.asarray(one.W))


@given(instances(), NORMS)
def test_solving_twice_gives_the_same_bits(problem, norm):
    one, other = solve(problem, norm), solve(problem, norm)
    assert one.status is other.status
    np.testing.assert_array_equal(np.asarray(one.W), np.asarray(other.W))
    np.testing.assert_array_equal(np.asarray(one.dual), np.asarray(other.dual))


def with_token(problem: SelectionProblem, extra: np.ndarray, visible: np.ndarray | None = None) -> SelectionProblem:
    """Append one rejected token (n, d) to every sequence."""
    n = problem.shape[0]
    visible = np.ones(n, dtype=bool) if visible is None else visible
    return SelectionProblem(
        np.concatenate([problem.tokens[problem.sequence], extra[:, None]], axis=1),
        problem.queries,
        np.column_stack([problem.selected, np.zeros(n, dtype=bool)]),
        mask=np.column_stack([problem.mask, visible]),
    )


@given(instances(("planted", "published", "rectangular", "correlated")), NORMS, seeds)
def test_a_mean_of_rejected_tokens_changes_nothing(problem, norm, rng):
    """A convex combination of rejected tokens has that combination of their margins: at least one, under every W."""
    weight = rng.random(problem.rejected.shape) * problem.rejected
    weight /= weight.sum(axis=1, keepdims=True)
    extra = np.einsum("nt,ntd->nd", weight, problem.tokens[problem.sequence])
    assert_same(solve(problem, norm), solve(with_token(problem, extra), norm))


@given(instances(("planted", "published", "rectangular", "correlated")), NORMS, seeds)
def test_a_token_beyond_a_rejected_one_changes_nothing(problem, norm, rng):
    """x_alpha - c (x_alpha - x_t) with c >= 1 has c times the margin of t, so at least one whenever t has."""
    rows = np.arange(problem.shape[0])
    other = (rng.random(problem.rejected.shape) * problem.rejected).argmax(axis=1)
    x = problem.tokens[problem.sequence]
    selection = x[rows, problem.reference]
    extra = selection - rng.uniform(1.0, 3.0, (len(rows), 1)) * (selection - x[rows, other])
    assert_same(solve(problem, norm), solve(with_token(problem, extra), norm))


@given(instances(("planted", "published", "integers")), NORMS, seeds)
def test_a_second_copy_of_a_rejected_token_changes_nothing(problem, norm, rng):
    assume(problem.rejected.any(axis=1).all())
    other = (rng.random(problem.rejected.shape) * problem.rejected).argmax(axis=1)
    extra = problem.tokens[problem.sequence, other]
    assert_same(solve(problem, norm), solve(with_token(problem, extra), norm))


@given(instances(("planted", "rectangular", "several")), NORMS)
def test_a_second_copy_of_the_selected_token_is_a_contradiction(problem, norm):
    extra = problem.tokens[problem.sequence, problem.reference]
    solution = solve(with_token(problem, extra), norm)
    assert solution.status is Status.INFEASIBLE
    assert solution.certificate is not None
    assert solution.certificate.verify()


@given(instances(("planted", "rectangular", "several", "masked")), seeds)
def test_no_multipliers_prove_a_feasible_problem_infeasible(problem, rng):
    """Random ones, those of the optimum, and those that a nonnegative least-squares fit makes as small as possible."""
    solution = solve(problem)
    assume(solution.status is Status.OPTIMAL and problem.rejected.any())
    rows = np.nonzero(problem.rejected)
    x = problem.tokens[problem.sequence]
    delta = x[rows[0], problem.reference[rows[0]]] - x[rows]
    columns = np.einsum("md,me->dem", delta, problem.queries[rows[0]]).reshape(-1, len(delta))
    fitted = nnls(np.vstack([columns, np.ones(len(delta))]), np.r_[np.zeros(len(columns)), 1.0])[0]
    for values in (rng.random(len(delta)), np.asarray(solution.dual)[rows], fitted):
        dual = np.zeros(problem.mask.shape)
        dual[rows] = values
        assert not FarkasCertificate(problem, dual).verify()


@given(instances(("contradicted", "published", "integers")))
def test_a_certificate_that_was_tampered_with_is_refused(problem):
    solution = solve(problem)
    assume(solution.status is Status.INFEASIBLE)
    assert solution.certificate is not None
    dual = np.asarray(solution.certificate.dual)
    largest = np.unravel_index(np.where(problem.rejected, dual, -1).argmax(), dual.shape)
    negative, none = dual.copy(), np.zeros_like(dual)
    negative[largest] *= -1
    outside = np.where(problem.rejected | problem.tied, dual, 1.0)
    for forgery in (negative, none, outside, dual * np.nan, dual[:, :-1]):
        assert not FarkasCertificate(problem, forgery).verify()


@given(instances(("planted", "several", "masked", "integers")), NORMS, seeds)
def test_a_hidden_token_is_no_token(problem, norm, rng):
    """Garbage behind the mask, against the problem without that column."""
    garbage = rng.standard_normal((problem.shape[0], problem.shape[2])) * 1e6
    hidden = np.zeros(problem.shape[0], dtype=bool)
    one, other = solve(problem, norm), solve(with_token(problem, garbage, hidden), norm)
    assert_same(one, other)
    assert (np.asarray(other.dual)[:, -1] == 0).all()
    assert np.isposinf(np.asarray(other.margins)[:, -1]).all()
    assert not np.asarray(other.support)[:, -1].any()


@given(instances(("masked", "several", "planted")), NORMS)
def test_a_repeated_query_changes_nothing(problem, norm):
    twice = SelectionProblem(
        problem.tokens,
        np.vstack([problem.queries, problem.queries]),
        np.vstack([problem.selected, problem.selected]),
        mask=np.vstack([problem.mask, problem.mask]),
        sequence=np.r_[problem.sequence, problem.sequence],
    )
    assert_same(solve(problem, norm), solve(twice, norm))


@given(instances(("planted", "masked", "several")), NORMS, seeds)
def test_more_constraints_never_shorten_the_answer(problem, norm, rng):
    """Showing a query one more token can only raise the norm, or make the problem infeasible."""
    extra = rng.standard_normal((problem.shape[0], problem.shape[2]))
    one, other = solve(problem, norm), solve(with_token(problem, extra), norm)
    assert other.status in (Status.OPTIMAL, Status.INFEASIBLE)
    if one.status is Status.INFEASIBLE:
        assert other.status is Status.INFEASIBLE
    else:
        assert other.objective >= one.objective * (1 - max(one.gap, 0.0) - rounding(one))


@given(instances(("planted", "several", "masked")))
def test_the_two_norms_bound_each_other(problem):
    """|W|_F <= |W|_* <= sqrt(rank) |W|_F, and each solution is feasible for the other norm's problem."""
    frobenius, nuclear = solve(problem), solve(problem, "nuclear")
    assert frobenius.status is nuclear.status
    assume(frobenius.status is Status.OPTIMAL)
    rank = min(problem.shape[0], *problem.shape[2:])
    assert frobenius.objective <= nuclear.objective * (1 + max(frobenius.gap, 0.0) + rounding(frobenius))
    assert nuclear.objective <= np.sqrt(rank) * frobenius.objective * (1 + max(nuclear.gap, 0.0) + rounding(nuclear))


@given(instances(("planted", "several", "masked", "published")), NORMS)
def test_torch_in_torch_out(problem, norm):
    tensor = SelectionProblem(
        torch.from_numpy(problem.tokens[problem.sequence].copy()),
        torch.from_numpy(problem.queries.copy()),
        torch.from_numpy(problem.selected.copy()),
        mask=torch.from_numpy(problem.mask.copy()),
    )
    one, other = solve(problem, norm), solve(tensor, norm)
    assert other.status is one.status
    for name in ("W", "dual", "margins", "support"):
        value, expected = getattr(other, name), getattr(one, name)
        assert isinstance(value, torch.Tensor)
        np.testing.assert_array_equal(value.numpy(), expected)
    assert other.objective == one.objective


@given(instances(("planted", "rectangular")), NORMS, st.sampled_from(["numpy", "torch"]))
def test_single_precision_comes_back_as_single_precision(problem, norm, library):
    """The data are rounded once on the way in; the answer is that of the rounded data, rounded once on the way out."""
    tokens, queries = problem.tokens.astype(np.float32), problem.queries.astype(np.float32)
    exact = solve(SelectionProblem(tokens.astype(float), queries.astype(float), problem.selected), norm)
    assume(exact.status is Status.OPTIMAL)
    if library == "torch":
        solution = solve(SelectionProblem(torch.from_numpy(tokens), torch.from_numpy(queries), problem.selected), norm)
        assert solution.W.dtype == torch.float32
    else:
        solution = solve(SelectionProblem(tokens, queries, problem.selected), norm)
        assert solution.W.dtype == np.float32
    assert solution.objective == exact.objective
    np.testing.assert_array_equal(np.asarray(solution.W), np.asarray(exact.W).astype(np.float32))


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("name", [name for name in NAMED if NAMED[name]().feasible])
def test_refitting_a_solution_to_its_own_support_gives_it_back(name, norm):
    """Hiding every rejected token with a zero multiplier keeps the answer: only neighbours hold it."""
    problem = NAMED[name]().problem
    solution = solve(problem, norm)
    keep = problem.selected | (np.asarray(solution.dual) > 0)
    assert_same(solution, solve(rebuilt(problem, mask=keep), norm))


@given(instances(("planted", "several")), st.sampled_from(["nuclear", "spectral", Schatten(1.5), KyFan(2)]))
def test_for_queries_along_one_line_every_invariant_norm_has_the_frobenius_solution(problem, norm):
    """W has one column then, and a single singular value: all these norms are its length."""
    queries = np.ones((len(problem.queries), 1))
    one = rebuilt(problem, queries=queries)
    solution, frobenius = solve(one, norm), solve(one)
    assert solution.status is frobenius.status
    if solution.status is Status.OPTIMAL:
        slack = (1.0 + solution.gap) * (1.0 + frobenius.gap) - 1.0 + 16 * EPS
        assert abs(solution.objective - frobenius.objective) <= slack * frobenius.objective


def test_for_queries_along_one_line_no_other_method_follows_the_frobenius_one():
    tokens = np.random.default_rng(0).standard_normal((200, 10, 6))
    selected = (tokens @ np.random.default_rng(1).standard_normal(6)).argmax(axis=1)
    solution = solve(SelectionProblem(tokens, np.ones((200, 1)), selected), "nuclear")
    assert solution.status is Status.OPTIMAL
    assert solution.method == "Frobenius (active set)"
