"""What a solution says of itself: margins, support, rank, factors and words, against answers derived by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attsvm import BatchSolution, SelectionProblem, Solution, Status, solve
from attsvm.core.error_free import EPS
from attsvm.core.norms import FROBENIUS, get_norm
from attsvm.platform.summary import GOOD, UNSURE
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import Certified, certify
from attsvm.proofs.objective import Regularisation
from attsvm.proofs.program import Program
from attsvm.solution.numbers import constraint_lengths
from attsvm.solution.reading import solution_summary
from attsvm.solution.regularised import RegularisedSolution
from attsvm.solution.solution import UnsolvedError
from attsvm.study.spectrum import certified_rank
from problems import FAMILIES, NAMED, single


def solution_of(
    problem: SelectionProblem, W: np.ndarray, dual: np.ndarray, status: Status = Status.OPTIMAL, norm=FROBENIUS
):
    """A solution from given W and multipliers, whatever they are worth."""
    return Solution(problem, norm, status, certify(Program(problem, norm), W, dual), 3, 0.5, "by hand")


def counterexample(status: Status = Status.OPTIMAL) -> Solution:
    instance = NAMED["counterexample"]()
    assert instance.W is not None
    return solution_of(instance.problem, instance.W, np.array([[0.0, 7.0], [0.0, 3.0]]), status)


# --- margins, support, tolerance ---


def test_margins_and_support_by_hand() -> None:
    """Differences (k, +-j/64): only (1, 0) is tight at w = (1, 0)."""
    solution = solve(NAMED["one_support_of_many"]().problem)
    assert np.flatnonzero(solution.support[0]).tolist() == [1]
    np.testing.assert_allclose(solution.margins[0, :3], [0.0, 1.0, 2.0], atol=1e-8)
    assert solution.support.dtype == bool
    all_tight = solve(NAMED["every_constraint_tight"]().problem)
    assert all_tight.support.sum() == 11
    hidden = solve(NAMED["mask_hides_a_duplicate"]().problem)
    np.testing.assert_allclose(hidden.margins, [[0.0, np.inf, 1.0]])
    assert hidden.support.tolist() == [[False, False, True]]
    # A tie is no neighbour, though its margin is below one.
    tied = solve(NAMED["tie_forces_a_detour"]().problem)
    assert tied.support.tolist() == [[False, False, True]]


@pytest.mark.parametrize("norm", ["frobenius", 1.5, 3])
def test_the_tolerance_bounds_how_far_margins_are_from_those_of_the_solution(norm: str | float) -> None:
    """W* and feasible matrices nearby: every margin within the tolerance that the gap of the nearby one gives."""
    rng = np.random.default_rng(0)
    for seed in range(6):
        problem = FAMILIES["rectangular"].make(np.random.default_rng([seed, 5]), 4, 4, 4)
        best = solve(problem, norm, tol=1e-12)
        if not np.isfinite(best.objective):
            continue
        for size in (1e-2, 1e-4):
            W = best.certified.W * (1 + size * rng.standard_normal(best.certified.W.shape))
            if problem.apply(W).min(where=problem.rejected, initial=1.0) <= 0.1:
                continue
            near = solution_of(problem, W, best.certified.dual, norm=best.norm)
            differences = np.abs(near.certified.margins - best.certified.margins)[problem.rejected]
            tolerance = near.margin_tolerance[problem.rejected]
            assert (differences <= tolerance).all()
            # Not idle: the largest change is a visible share of what is allowed, where that is a root of the gap.
            assert norm == 3 or differences.max() >= 1e-3 * tolerance.min()
            everywhere = near.support[problem.rejected]
            np.testing.assert_array_equal(everywhere, near.certified.margins[problem.rejected] <= 1 + tolerance)


def test_the_tolerance_of_the_frobenius_norm_is_the_formula() -> None:
    """sqrt(2 gap) |W| |delta| |z|, with the gap no smaller than four roundings."""
    problem = NAMED["counterexample"]().problem
    rough = solution_of(problem, np.array([[1.1, 0.0], [3.5, 0.0]]), np.array([[0.0, 7.0], [0.0, 3.0]]))
    lengths = np.array([[0.0, 1.0], [0.0, np.sqrt(5.0)]])
    assert rough.gap > 0.01
    np.testing.assert_allclose(
        rough.margin_tolerance, np.sqrt(2 * rough.gap) * np.linalg.norm(rough.W) * lengths, rtol=1e-12
    )
    exact = replace(counterexample(), certified=replace(counterexample().certified, upper_bound=1.0, lower_bound=1.0))
    assert exact.gap == 0.0
    np.testing.assert_allclose(exact.margin_tolerance, np.sqrt(8 * EPS) * np.sqrt(10.0) * lengths, rtol=1e-12)
    infeasible = solve(NAMED["midpoint"]().problem)
    assert not infeasible.margin_tolerance.any()
    assert infeasible.margin_tolerance.shape == (1, 4)


def test_beside_a_prior_the_tolerance_is_that_of_the_distance_from_it() -> None:
    """A prior of zero changes nothing; with losses the gap is one of half the squared norm and the losses."""
    problem, pair, lengths = counterexample().problem, counterexample().certified, np.array([[0, 1], [0, 5**0.5]])
    zero, said = np.zeros(pair.W.shape), (FROBENIUS, Status.OPTIMAL)
    for low, high in ((1.0, 1.0), (1.0, 1.5), (0.0, 1.0)):
        bounds = replace(pair, lower_bound=low, upper_bound=high)
        plain = Solution(problem, *said, bounds, 3, 0.5, "by hand")
        asked = Regularisation(None, "hinge", zero)
        near = RegularisedSolution(problem, *said, bounds, 3, 0.5, "by hand", regularisation=asked)
        np.testing.assert_allclose(near.margin_tolerance, plain.margin_tolerance, rtol=1e-12, atol=1e-99)
        assert near.margin_tolerance.any() == (low > 0)
        soft = replace(near, certified=replace(bounds, primal=3.0), regularisation=Regularisation(1.0, "hinge", None))
        gap = max(high / low - 1, 4 * EPS) if low > 0 else 0.0
        np.testing.assert_allclose(soft.margin_tolerance, np.sqrt(2 * gap * 3.0) * lengths, rtol=1e-12, atol=1e-99)


@pytest.mark.parametrize("size", [0.0, 1e-200, 1.0, 1e200])
def test_lengths_of_constraints_neither_overflow_nor_underflow(size: float) -> None:
    """Cubes of 3 and 4 sum to 91, those of 2 and 1 to 9."""
    problem = SelectionProblem(size * np.array([[[0.0, 0.0], [-3.0, -4.0]]]), [[2.0, -1.0]], [0])
    expected = size * np.cbrt(91.0) * np.cbrt(9.0)
    np.testing.assert_allclose(constraint_lengths(problem, 3.0), [[0.0, expected]], rtol=1e-14)


def test_lengths_near_the_end_of_an_exponent_are_capped() -> None:
    """p = 1.01 has the dual exponent 101; lengths are taken in l_8, which are longer and do not underflow."""
    problem = single([[3.0, 4.0]], (2.0,))
    solution = solve(problem, 1.01)
    length = np.linalg.norm([3.0, 4.0], 8) * 2.0
    from attsvm.core.norms import entrywise

    distance, p = solution.norm.distance_bound(max(solution.gap, 4 * EPS))
    assert solution.margin_tolerance[0, 1] == pytest.approx(
        length * distance * entrywise(solution.certified.W, p), rel=1e-12
    )


@pytest.mark.parametrize("p", [1.1, 1.5])
def test_the_distance_of_l_p_is_that_of_a_w_beside_the_solution(p: float) -> None:
    """Of w_1 + w_2 >= 1 the shortest is (1/2, 1/2); (1/2 + t, 1/2 - t) is longer by (p - 1) (2 t)^2 / 2."""
    norm = get_norm(p)
    best, near = np.array([[0.5, 0.5]]), np.array([[0.501, 0.499]])
    distance, power = norm.distance_bound(norm.value(near) / norm.value(best) - 1)
    assert power == p
    assert distance == pytest.approx(norm.value(near - best) / norm.value(near), rel=1e-4)


@pytest.mark.parametrize("p", [3.0, 4.0, 10.0])
def test_the_distance_of_l_p_above_two_is_by_the_inequality_of_clarkson(p: float) -> None:
    """A distance of 2 t costs a gap of 2 t^p / p, by the midpoint of W and the solution."""
    norm = get_norm(p)
    for t in (0.25, 1e-3):
        distance, power = norm.distance_bound(2.0 * t**p / p)
        assert power == p
        assert distance == pytest.approx(2.0 * t, rel=1e-12)
    best, near = np.array([[0.5, 0.5]]), np.array([[0.501, 0.499]])
    distance, _ = norm.distance_bound(norm.value(near) / norm.value(best) - 1)
    assert norm.value(near - best) <= distance * norm.value(near)


# --- rank ---


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_rank_counts_singular_values_beyond_what_the_gap_allows(scale: float) -> None:
    """The permutation of four, a projection of rank three: whatever the units, and whatever a cut in absolute terms."""
    eye = np.eye(4)
    problem = SelectionProblem(scale * eye[None], eye, np.arange(4), sequence=[0] * 4)
    W = (eye - 0.25) / scale
    dual = np.where(problem.rejected, 0.25, 0.0)
    solution = solution_of(problem, W, dual)
    assert solution.rank == 3
    assert solution_of(problem, W, dual, Status.MAX_ITERATIONS).rank == 3
    for size, rank in ((1e-3, 4), (1e-15, 3)):
        # What is added in the fourth direction lowers every margin alike to second order only.
        inexact = solution_of(problem, W + size / scale * np.ones((4, 4)) / 4, dual)
        reach = np.sqrt(2 * max(inexact.gap, 4 * EPS)) * np.linalg.norm(inexact.certified.W)
        sigma = np.linalg.svd(inexact.certified.W, compute_uv=False)
        assert inexact.rank == int((sigma > reach).sum())
        if rank == 3:
            assert inexact.rank == 3


def test_without_an_optimum_the_rank_is_that_of_the_w_there_is() -> None:
    problem = SelectionProblem(np.eye(4)[None], np.eye(4), np.arange(4), sequence=[0] * 4)
    poor = np.where(problem.rejected, 0.25, 0.0) * np.arange(1, 5)[:, None] ** 4
    W = np.eye(4) - 0.25 + 1e-6 * np.ones((4, 4))
    cutoff = solution_of(problem, W, poor, Status.MAX_ITERATIONS)
    assert cutoff.gap > 0.1
    assert cutoff.rank == 4
    assert solution_of(problem, W, poor).rank < 3  # an optimum of this gap tells few singular values from zero
    small = solution_of(problem, np.eye(4) - 0.25 + 1e-16 * np.ones((4, 4)), poor, Status.MAX_ITERATIONS)
    assert small.rank == 3
    assert solve(NAMED["midpoint"]().problem).rank == 0
    assert solve(NAMED["one_token"]().problem).rank == 0


def with_gap(W: np.ndarray, gap: float, status: Status = Status.OPTIMAL) -> Solution:
    """A solution said to have this W and gap; nothing but the rank is asked of it."""
    problem = SelectionProblem(np.eye(2)[None], np.ones((1, W.shape[1])), [0])
    pair = Certified(W, np.zeros((1, 2)), np.zeros((1, 2)), 1.0, 1.0, 1.0 + gap)
    return Solution(problem, FROBENIUS, status, pair, 0, 0.0, "by hand")


def test_the_rank_is_cut_at_the_distance_that_the_gap_leaves() -> None:
    """sqrt(2 g) |W|_F: 0.1414 of the length for g = 1/100, and the root of eight roundings for none."""
    for gap, reach in ((0.01, math.sqrt(0.02)), (0.0, math.sqrt(8 * EPS))):
        for share, rank in ((1.05, 2), (0.95, 1)):
            second = share * reach / math.sqrt(1 - reach**2)
            assert with_gap(np.diag([1.0, second]), gap).rank == rank
    # Without an optimum: the larger dimension times eps of the largest singular value.
    for units, rank in ((30.0, 1), (50.0, 2)):
        W = np.zeros((2, 40))
        W[0, 0], W[1, 1] = 1.0, units * EPS
        assert with_gap(W, 0.01, Status.MAX_ITERATIONS).rank == rank


# --- factors ---


@pytest.mark.parametrize("number", [None, 0, 1, 3])
def test_factors_are_balanced_and_give_the_best_matrix_of_their_rank(number: int | None) -> None:
    problem = FAMILIES["rectangular"].make(np.random.default_rng(3), 6, 4, 5)
    solution = solve(problem)
    W = np.asarray(solution.W)
    U, sigma, Vt = np.linalg.svd(W, full_matrices=False)
    rank = solution.rank if number is None else number
    K, Q = solution.factors(number)
    assert K.shape == (W.shape[0], rank)
    assert Q.shape == (W.shape[1], rank)
    np.testing.assert_allclose(K @ Q.T, (U[:, :rank] * sigma[:rank]) @ Vt[:rank], atol=1e-12 * sigma[0])
    assert np.linalg.norm(K) ** 2 == pytest.approx(sigma[:rank].sum(), rel=1e-12)
    assert np.linalg.norm(Q) ** 2 == pytest.approx(sigma[:rank].sum(), rel=1e-12)
    if number is None:
        np.testing.assert_allclose(K @ Q.T, W, atol=1e-7 * sigma[0])


def test_factors_of_a_rank_there_is_not() -> None:
    solution = counterexample()
    assert solution.factors(2)[0].shape == (2, 2)
    for rank in (-1, 3):
        with pytest.raises(ValueError, match=rf"^rank is {rank}; a number from 0 to 2 was expected\.$"):
            solution.factors(rank)
    with pytest.raises(UnsolvedError) as error:
        solve(NAMED["midpoint"]().problem).factors()
    assert error.value.solution.status is Status.INFEASIBLE


# --- status and words ---


def test_what_an_infeasible_problem_leaves() -> None:
    solution = solve(NAMED["midpoint"]().problem)
    assert solution.status is Status.INFEASIBLE
    assert np.isnan(solution.W).all()
    assert solution.objective == solution.lower_bound == np.inf
    assert not solution.support.any()
    with pytest.raises(UnsolvedError, match=r"\.") as error:
        solution.raise_for_status()
    assert str(error.value) == f"{solution.sentence} A soft margin allows shortfalls: give C=1.0."
    # Infinite whatever the multipliers of the last iterate bounded.
    assert replace(solution, status=Status.UNDECIDED).lower_bound == solution.certified.lower_bound


def test_an_optimum_returns_itself_and_says_no_more_than_that() -> None:
    solution = counterexample()
    assert solution.raise_for_status() is solution
    assert solution.sentence == Status.OPTIMAL.sentence
    assert replace(solution, note="Half the tokens are hidden.").sentence.endswith(". Half the tokens are hidden.")
    assert repr(solution).startswith("Solution(OPTIMAL, frobenius norm 3.16228, gap ")
    assert "by hand, 3 iterations, 0.5 s" in repr(solution)
    assert "by hand, 1 iteration, 0.5 s" in repr(replace(solution, iterations=1))


def test_a_limit_says_between_what_the_norm_lies() -> None:
    for status in (Status.MAX_ITERATIONS, Status.UNDECIDED, Status.TIME_LIMIT):
        sentence = counterexample(status).sentence
        assert sentence.startswith(status.sentence)
        assert "3.16227766016" in sentence
        with pytest.raises(UnsolvedError) as error:
            counterexample(status).raise_for_status()
        assert str(error.value) == sentence  # a soft margin would answer another question
    short = solution_of(single([[4.0, 0.0]]), np.array([[0.25], [0.0]]), np.array([[0.0, 1.0]]), Status.TIME_LIMIT)
    assert "0.25" in short.sentence
    nothing = counterexample(Status.MAX_ITERATIONS)
    nothing = replace(nothing, certified=replace(nothing.certified, lower_bound=0.0))
    assert nothing.sentence == Status.MAX_ITERATIONS.sentence


@pytest.mark.parametrize(("status", "most"), [(Status.OPTIMAL, ""), (Status.TIME_LIMIT, "at most ")])
def test_only_an_optimum_counts_its_support_tokens(status: Status, most: str) -> None:
    facts = dict(solution_summary(counterexample(status)).facts)
    assert facts["support tokens"] == f"{most}2 of 2 constraints"


def test_the_rank_is_told_beside_the_largest_that_there_is() -> None:
    assert dict(solution_summary(solve(single([[1.0, 0.0]]))).facts)["rank of W"] == "1 of 1"


def test_a_batch_counts_what_was_decided() -> None:
    limit = counterexample(Status.TIME_LIMIT)
    solutions = [*[counterexample()] * 3, *[solve(NAMED["midpoint"]().problem)] * 2, limit]
    status = np.array([one.status for one in solutions])
    none = np.zeros(6)
    gap = np.array([1e-12, 3e-11, 0.0, np.inf, np.inf, 2e-3])
    batch = BatchSolution([limit.problem] * 6, FROBENIUS, none, none, none, none, gap, status, 0.25, lambda b: limit)
    assert repr(batch) == (
        "BatchSolution(5 of 6 decided, OPTIMAL 3, INFEASIBLE 2, TIME_LIMIT 1, largest gap 2.0e-03, seconds 0.25)"
    )
    assert batch._summary().colour == UNSURE
    assert replace(batch, objective=none[:5], gap=gap[:5], status=status[:5])._summary().colour == GOOD


def test_a_residual_of_ties_and_a_perturbation_are_said() -> None:
    solution = counterexample()
    loose = replace(solution, certified=replace(solution.certified, tie_residual=3e-11))
    assert "Scores of tied tokens may differ by 3.0e-11 of the margin." in loose.sentence
    unbounded = replace(loose, certified=replace(loose.certified, upper_bound=np.inf))
    assert "tied" not in unbounded.sentence
    rng = np.random.default_rng(5)
    others = rng.standard_normal((40, 30)) @ rng.standard_normal((30, 60))
    tokens = np.vstack([others.mean(axis=0), others])[None]
    problem = SelectionProblem(tokens, rng.standard_normal((1, 3)), [0])
    certificate = FarkasCertificate(problem, np.r_[0.0, np.full(40, 1 / 40)][None])
    assert certificate.perturbation > 0
    near = replace(solution, problem=problem, status=Status.INFEASIBLE, certificate=certificate)
    assert f"The proof holds for nearby data: {certificate.statement}." in near.sentence
    exact = solve(NAMED["midpoint"]().problem)
    assert exact.sentence == Status.INFEASIBLE.sentence


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", 1.5])
def test_bounds_and_gap_are_those_of_w_and_the_multipliers(norm: str | float) -> None:
    problem = FAMILIES["planted"].make(np.random.default_rng(1), 4, 4, 4)
    solution = solve(problem, norm)
    measure = get_norm(norm)
    assert solution.objective == solution.certified.objective == pytest.approx(measure.value(solution.W))
    assert solution.lower_bound == solution.certified.lower_bound
    assert solution.gap == solution.certified.gap >= 0
    np.testing.assert_array_equal(solution.dual, solution.certified.dual)
    assert solution.verify()
    assert solution.verify(exact=True).method.startswith("exact integers")
    assert solution.verify().method.startswith("floats")


@pytest.mark.parametrize("norm", ["frobenius", "max", 3])
@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_support_and_rank_do_not_depend_on_the_size_of_tokens(norm: Any, scale: float) -> None:
    random = np.random.default_rng(0)
    tokens, queries = random.normal(size=(4, 3, 5)), random.normal(size=(4, 5))
    near, far = (solve(SelectionProblem(tokens * size, queries, [0, 1, 2, 0]), norm) for size in (1.0, scale))
    np.testing.assert_array_equal(near.support, far.support)
    assert (near.rank, certified_rank(near)) == (far.rank, certified_rank(far))
