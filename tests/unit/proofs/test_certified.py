"""What a W and multipliers prove in floats: against rational arithmetic on the same floats, from both sides."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

import exact as optimum
import oracle
from attsvm import SelectionProblem, solve
from attsvm.core.double_double import Rows
from attsvm.core.error_free import UNIT, Pair
from attsvm.core.norms import FROBENIUS, Norm, get_norm
from attsvm.core.rounding import FUNCTION_ROUNDING
from attsvm.proofs import bounds as prover
from attsvm.proofs import certified as module
from attsvm.proofs.certified import TIE_TOLERANCE, Certified, certify, counts_as_zero
from attsvm.proofs.objective import Regularisation
from attsvm.proofs.program import Program
from attsvm.solvers.common.refinement import MARGIN_UNITS, _correct, refine
from problems import FAMILIES, NAMED, single

NORMS = ("frobenius", "nuclear", "spectral", "max", 1, 1.5, 3)


def pair(lower: float, upper: float, residual: float = 0.0) -> Certified:
    nothing = np.zeros((1, 1))
    return Certified(nothing, nothing, nothing, upper, lower, upper, residual)


@cache
def claims(*, ties: bool = False) -> list[tuple[SelectionProblem, np.ndarray, np.ndarray]]:
    """Problems with a W of positive margins and multipliers of the right sign, good ones and poor ones."""
    rng, results = np.random.default_rng(0), []
    for name in ("several",) if ties else ("planted", "masked", "rectangular", "correlated", "badly_scaled"):
        for seed in range(4):
            problem = FAMILIES[name].make(np.random.default_rng([seed, 8]), 4, 4, 4)
            best = solve(problem)
            if not np.isfinite(best.objective) or best.objective == 0 or (ties and not problem.tied.any()):
                continue
            W, dual = best.certified.W, best.certified.dual
            results.append((problem, W, dual))
            if not ties:
                noise, size = rng.standard_normal(W.shape), 0.02
                # As much noise as leaves a third of the smallest margin.
                while problem.apply(W * (1 + size * noise)).min(where=problem.rejected, initial=1.0) < 0.3:
                    size /= 2
                results.append((problem, 7.0 * W * (1 + size * noise), dual * rng.uniform(0.3, 3.0, dual.shape)))
    assert len(results) >= (3 if ties else 30)
    return results


# --- the gap ---


def test_the_gap_of_two_bounds() -> None:
    assert pair(2.0, 3.0).gap == pytest.approx(0.5)
    assert pair(2.0, 2.0).gap == 0.0
    assert pair(0.0, 0.0).gap == 0.0
    assert pair(-1.0, 0.0).gap == 0.0
    for lower, upper, residual in ((0.0, 3.0, 0.0), (-1.0, 3.0, 0.0), (2.0, math.inf, 0.0), (2.0, math.nan, 0.0),
                                   (2.0, 3.0, 2 * TIE_TOLERANCE)):  # fmt: skip
        assert pair(lower, upper, residual).gap == math.inf
    assert pair(2.0, 3.0, TIE_TOLERANCE).gap == pytest.approx(0.5)


def test_bounds_that_cross_prove_nothing_unless_by_the_rounding_of_a_quotient() -> None:
    assert pair(1.0, 1.0 - 0.5 * FUNCTION_ROUNDING).gap == 0.0
    assert pair(1.0, 1.0 - FUNCTION_ROUNDING).gap == 0.0
    assert pair(1.0, 1.0 - 2 * FUNCTION_ROUNDING).gap == math.inf
    assert FUNCTION_ROUNDING == 4 * UNIT


def test_an_objective_below_the_rounding_of_w_counts_as_zero() -> None:
    for primal, distance, resolution, zero in (
        (1e-16, 1e-16, 1e-15, True),
        (1e-15, 1e-15, 1e-15, True),
        (1e-14, 1e-14, 1e-15, False),
        (0.0, 0.0, 0.0, True),
        (0.0, 1e-200, 0.0, False),  # a square that underflows
        (None, 0.0, 1e-15, False),
    ):
        assert counts_as_zero(primal, distance, resolution) == zero, (primal, distance, resolution)


# --- conventions ---


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("sharp", [False, True])
def test_w_and_multipliers_are_scaled_to_their_conventions(norm: str | float, sharp: bool) -> None:
    measure = get_norm(norm)
    for problem, W, dual in claims():
        bounds = certify(Program(problem, measure), W, dual, sharp=sharp)
        full = oracle.dense(problem)
        margins = np.einsum("md,de,me->m", full.left, bounds.W, full.right)
        size = np.linalg.norm(bounds.W) * full.lengths.max()
        assert margins.min() == pytest.approx(1.0, abs=1e-14 * size + 1e-15)
        np.testing.assert_allclose(bounds.margins[full.where], margins, rtol=0, atol=1e-13 * size)
        np.testing.assert_allclose(bounds.W / bounds.W.flat[0], W / W.flat[0], rtol=1e-13)
        assert bounds.objective == pytest.approx(measure.value(bounds.W), rel=1e-14)
        adjoint = np.einsum("m,md,me->de", bounds.dual[full.where], full.left, full.right)
        total = float(bounds.dual[problem.rejected].sum())
        if measure is FROBENIUS:
            assert np.linalg.norm(adjoint) == pytest.approx(total / np.linalg.norm(adjoint), rel=1e-12)
        else:
            assert measure.dual(adjoint) == pytest.approx(1.0, rel=1e-12)
        np.testing.assert_allclose(bounds.dual * dual.sum(), np.maximum(dual, 0) * bounds.dual.sum(), rtol=1e-12)
        for array in (bounds.W, bounds.dual, bounds.margins):
            assert not array.flags.writeable
        assert bounds.tie_residual == 0.0


def test_multipliers_of_the_wrong_sign_or_place_are_dropped() -> None:
    problem = NAMED["counterexample"]().problem
    W = np.array([[1.0, 0.0], [3.0, 0.0]])
    dual = np.array([[5.0, 7.0], [-2.0, 3.0]])
    bounds = certify(Program(problem, FROBENIUS), W, dual)
    np.testing.assert_allclose(bounds.dual, [[0.0, 7.0], [0.0, 3.0]], rtol=1e-14)
    assert bounds.gap <= 1e-13
    negative = certify(Program(problem, FROBENIUS), W, np.array([[0.0, 7.0], [0.0, -3.0]]))
    assert negative.dual[1, 1] == 0.0
    # (7, 0) alone bounds the norm by 1.
    assert negative.lower_bound == pytest.approx(1.0, rel=1e-14)


def test_multipliers_of_ties_keep_their_sign() -> None:
    """Selected (0, 0) and (1, 1), rejected (-1, 0): w = (1, -1) = 2 (1, 0) - (1, 1), so the tie's multiplier is +-1."""
    problem = NAMED["tie_forces_a_detour"]().problem
    bounds = certify(Program(problem, FROBENIUS), np.array([[1.0], [-1.0]]), np.array([[9.0, 1.0, 2.0]]))
    assert bounds.gap <= 1e-13
    np.testing.assert_allclose(bounds.dual, [[0.0, 1.0, 2.0]], rtol=1e-14)
    assert certify(Program(problem, FROBENIUS), np.array([[1.0], [-1.0]]), np.array([[0.0, -1.0, 2.0]])).gap > 1.0


def test_nothing_to_reject_is_solved_by_zero() -> None:
    problem = NAMED["everything_selected"]().problem
    bounds = certify(Program(problem, FROBENIUS), np.ones((3, 2)), np.ones((1, 3)))
    assert bounds.objective == bounds.lower_bound == bounds.upper_bound == bounds.gap == 0.0
    assert not bounds.W.any()
    assert not bounds.dual.any()
    assert bounds.margins.shape == (1, 3)
    assert not bounds.margins.any()


def test_a_w_without_positive_margin_and_multipliers_that_pull_nowhere_bound_nothing() -> None:
    problem = NAMED["counterexample"]().problem
    W, dual = np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([[0.0, 7.0], [0.0, 3.0]])
    for bad in (-W, 0 * W, np.full_like(W, np.nan)):
        bounds = certify(Program(problem, FROBENIUS), bad, dual)
        assert bounds.objective == bounds.upper_bound == bounds.gap == math.inf
        assert bounds.lower_bound == pytest.approx(math.sqrt(10.0), rel=1e-13)
        np.testing.assert_array_equal(bounds.W, bad)
    for bad in (0 * dual, -dual, np.full_like(dual, np.inf)):
        bounds = certify(Program(problem, FROBENIUS), W, bad)
        assert bounds.lower_bound == 0.0
        assert bounds.objective == pytest.approx(math.sqrt(10.0))
        assert bounds.gap == math.inf
    cancelling = NAMED["midpoint"]().problem
    assert (
        certify(Program(cancelling, FROBENIUS), np.zeros((2, 2)), np.array([[0.0, 1.0, 1.0, 0.0]])).lower_bound == 0.0
    )


def test_squares_out_of_range_change_the_scale_of_the_multipliers() -> None:
    """||W||^2 beyond 1e280 is not what the multipliers sum to: then they are scaled to dual norm one."""
    for exponent, euclidean in ((-200, False), (-80, True), (80, True), (200, False)):
        problem = single([[math.ldexp(1.0, int(exponent * 3.32)), 0.0]])
        W = np.array([[1.0], [0.0]])
        bounds = certify(Program(problem, FROBENIUS), W, np.array([[0.0, 1.0]]))
        assert bounds.gap <= 1e-13
        length = bounds.objective
        expected = length**2 if euclidean else length
        assert bounds.dual[0, 1] == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(("excess", "is_kept"), [(-4 * UNIT, True), (4 * UNIT, True), (0.5, True), (-1e-9, False)])
def test_a_w_beside_a_prior_is_lengthened_only_if_its_margin_falls_short(excess: float, is_kept: bool) -> None:
    program = Program(single([[1.0, 0.0]]), FROBENIUS, Regularisation(None, "hinge", np.array([[0.5], [0.25]])))
    W = np.array([[1.0 + excess], [0.25]])
    bounds = certify(program, W, np.array([[0.0, 0.5]]))
    assert np.array_equal(bounds.W, W) is is_kept
    assert bounds.margins[0, 1] >= 1 - 4 * UNIT


# --- bounds, against rational arithmetic ---


def exact_bounds(problem: SelectionProblem, norm: Norm, W: np.ndarray, dual: np.ndarray) -> tuple[Fraction, Fraction]:
    high, reason = optimum.upper_bound(problem, norm, W)
    assert high is not None, reason
    return optimum.lower_bound(problem, norm, dual), high


@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_bounds_enclose_what_the_floats_prove_and_hardly_more(norm: str | float, sharp: bool) -> None:
    """Exact bounds of W and the multipliers lie within those in floats, and those within some roundings of them."""
    measure = get_norm(norm)
    for problem, W, dual in claims():
        bounds = certify(Program(problem, measure), W, dual, sharp=sharp)
        low, high = exact_bounds(problem, measure, bounds.W, bounds.dual)
        # The exact bound exceeds a norm of singular values by some 1e-15.
        assert bounds.upper_bound >= float(high) * (1 - 2e-15)
        assert bounds.lower_bound <= float(low) * (1 + 2e-15)
        full = oracle.dense(problem)
        # A margin is off by gamma_{d+dz+6} of |delta||W||z|, beside which all other roundings are few.
        reach = float((full.lengths * np.linalg.norm(bounds.W)).max())
        d, dz = bounds.W.shape
        room = 40 * UNIT * (8 if sharp else d * dz + (d + dz + 8) * reach)
        assert bounds.upper_bound <= float(high) * (1 + room)
        heavy = float((bounds.dual[full.where] * full.lengths).sum()) * math.sqrt(d * dz)
        adjoint = np.einsum("m,md,me->de", bounds.dual[full.where], full.left, full.right)
        loss = 40 * UNIT * (d * dz + (20 if sharp else 30 * heavy / measure.dual(adjoint)))
        assert bounds.lower_bound >= float(low) * (1 - loss)
        # What rounding may have cost is what the gap exceeds the quotient by.
        width = bounds.gap - (
            bounds.objective / float(bounds.dual[problem.rejected].sum()) * scale_of(measure, bounds) - 1
        )
        assert bounds.rounding == pytest.approx(2 * max(width, 0.0), rel=1e-3, abs=4e-15)


def scale_of(norm: Norm, result: Certified) -> float:
    """Dual norm of A^T dual by convention."""
    return math.sqrt(float(result.dual[result.dual > 0].sum())) if norm is FROBENIUS else 1.0


def test_the_allowance_of_a_margin_is_what_the_theorem_asks() -> None:
    """One constraint with |delta||W||z| = margin: the bound is above the norm by d + dz + 1 units at least."""
    for d, dz in ((1, 1), (3, 2), (40, 30)):
        deltas = np.zeros((1, d))
        deltas[0, 0] = 1.0
        query = np.zeros(dz)
        query[0] = 1.0
        W = np.zeros((d, dz))
        W[0, 0] = 1.0
        bounds = certify(Program(single(deltas, query), FROBENIUS), W, np.array([[0.0, 1.0]]))
        excess = (bounds.upper_bound - 1.0) / UNIT
        # The norm itself allows for half of d dz roundings more, and eight.
        assert d + dz + 1 + 0.5 * d * dz <= excess <= d + dz + 40 + 0.5 * d * dz
        short = (1.0 - bounds.lower_bound) / UNIT
        assert 2 + 0.5 * d * dz <= short <= 60 + 0.5 * d * dz
        sharp = certify(Program(single(deltas, query), FROBENIUS), W, np.array([[0.0, 1.0]]), sharp=True)
        assert 0 < sharp.upper_bound - 1.0 <= 40 * UNIT
        assert 0 < 1.0 - sharp.lower_bound <= 40 * UNIT


def test_twice_the_precision_helps_where_digits_cancel() -> None:
    """Tokens 1e6 apart from the origin, W across: ten digits of every margin cancel."""
    rng = np.random.default_rng(2)
    count = 0
    for seed in range(6):
        base = FAMILIES["near_duplicates"].make(np.random.default_rng([seed, 3]), 4, 4, 4)
        best = solve(base, tol=1e-9)
        W = best.certified.W + 1e-3 * best.objective * rng.standard_normal(best.certified.W.shape)
        margins = base.apply(W)
        if margins.min(where=base.rejected, initial=np.inf) <= 0:
            W = best.certified.W
        plain = certify(Program(base, FROBENIUS), W, best.certified.dual)
        sharp = certify(Program(base, FROBENIUS), W, best.certified.dual, sharp=True)
        low, high = exact_bounds(base, FROBENIUS, sharp.W, sharp.dual)
        assert float(low) * (1 + 1e-15) >= sharp.lower_bound >= plain.lower_bound * (1 - 1e-15)
        assert float(high) * (1 - 1e-15) <= sharp.upper_bound <= plain.upper_bound * (1 + 1e-15)
        assert sharp.upper_bound <= float(high) * (1 + 1e-14)
        assert sharp.lower_bound >= float(low) * (1 - 1e-13)
        count += sharp.upper_bound < plain.upper_bound * (1 - 1e-15)
    assert count > 3


# --- ties ---


def test_a_w_that_misses_its_ties_is_moved_onto_them() -> None:
    rng = np.random.default_rng(3)
    for problem, W, dual in claims(ties=True):
        for size in (0.0, 1e-6, 1e-3):
            shift = W + size * np.linalg.norm(W) * rng.standard_normal(W.shape)
            bounds = certify(Program(problem, FROBENIUS), shift, dual)
            assert bounds.tie_residual == 0.0
            full = oracle.dense(problem)
            margins = np.einsum("md,de,me->m", full.left, bounds.W, full.right)
            assert np.abs(margins[full.tied]).max() <= 1e-13 * np.linalg.norm(bounds.W) * full.lengths.max()
            exact, _ = optimum.upper_bound(problem, FROBENIUS, bounds.W)
            assert exact is not None
            assert bounds.upper_bound >= float(exact) * (1 - 1e-14)
            assert bounds.upper_bound <= float(exact) * (1 + 1e-11)


def test_only_a_w_that_misses_its_ties_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move would cost a W within rounding of its ties the digits of the move."""
    problem, moved = NAMED["tie_forces_a_detour"]().problem, []
    monkeypatch.setattr(module, "onto_ties", lambda problem, W, margins: moved.append(W) or W)
    for miss, count in ((0.0, 0), (UNIT, 0), (1e-6, 1)):
        certify(Program(problem, FROBENIUS), np.array([[1.0], [-1.0 + miss]]), np.array([[0.0, 1.0, 2.0]]))
        assert len(moved) == count


@pytest.mark.parametrize("norm", NORMS)
def test_bounds_with_ties_enclose_the_optimum(norm: str | float) -> None:
    measure = get_norm(norm)
    for problem, _, _ in claims(ties=True):
        solution = solve(problem, norm)
        bounds = solution.certified
        low, high = exact_bounds(problem, measure, bounds.W, bounds.dual)
        assert bounds.lower_bound <= float(high)
        assert float(low) <= bounds.upper_bound
        # The exact proof moves W by rational multipliers, the floats by a bound on the shortest move.
        assert bounds.lower_bound <= float(low) * (1 + 2e-15)
        assert bounds.upper_bound == pytest.approx(float(high), rel=1e-9)


def test_ties_that_no_move_is_shown_for_leave_a_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a move, what is claimed is for the problem whose ties may differ by the residual."""
    problem = NAMED["tie_forces_a_detour"]().problem
    monkeypatch.setattr(prover, "tie_move", lambda *arguments: math.inf)
    monkeypatch.setattr(module, "onto_ties", lambda problem, W, margins: W)
    miss = 1e-10
    W = np.array([[1.0], [-1.0 + miss]])
    bounds = certify(Program(problem, FROBENIUS), W, np.array([[0.0, 3.0, 6.0]]))
    # Margins 1 and -miss; the rounding of |W||delta||z| = 2 is some 1e-15.
    assert bounds.tie_residual == pytest.approx(miss, rel=1e-4)
    assert bounds.tie_residual >= miss * (1 - 1e-6)
    assert bounds.gap <= 1e-9
    # The multiplier of the tie, one against two of the margin, may cost its share of the bound: residual over two.
    full = certify(Program(problem, FROBENIUS), np.array([[1.0], [-1.0]]), np.array([[0.0, 1.0, 2.0]]))
    shortfall = 1 - bounds.lower_bound / math.sqrt(2.0)
    assert shortfall == pytest.approx(miss / 2, rel=1e-3)
    assert full.tie_residual < 1e-14
    loose = certify(Program(problem, FROBENIUS), np.array([[1.0], [-1.0 + 1e-6]]), np.array([[0.0, 1.0, 2.0]]))
    assert loose.tie_residual == pytest.approx(1e-6, rel=1e-4)
    assert loose.gap == math.inf


def test_a_residual_that_takes_the_whole_bound_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = NAMED["tie_forces_a_detour"]().problem
    monkeypatch.setattr(prover, "tie_move", lambda *arguments: math.inf)
    bounds = certify(Program(problem, FROBENIUS), np.array([[1.0], [-1.0]]), np.array([[0.0, 1e16, 2.0]]))
    assert bounds.lower_bound == bounds.rounding == 0.0
    assert bounds.gap == math.inf


def test_a_move_that_would_cost_more_than_the_norm_is_no_move(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = NAMED["tie_forces_a_detour"]().problem
    W, dual = np.array([[1.0], [-1.0]]), np.array([[0.0, 1.0, 2.0]])
    for size in (0.0, 1e-6, 0.1, 1.5):
        monkeypatch.setattr(prover, "tie_move", lambda *arguments, size=size: size)
        bounds = certify(Program(problem, FROBENIUS), W, dual)
        if size > 1.0:
            # longer than the margin over |delta||z| = 1 leaves
            assert bounds.tie_residual > 0
            assert bounds.upper_bound == pytest.approx(math.sqrt(2.0), rel=1e-13)
        else:
            assert bounds.tie_residual == 0.0
            assert bounds.upper_bound == pytest.approx((math.sqrt(2.0) + size) / (1 - size), rel=1e-13)


# --- allowances, with a unit of 1e-6 in them alone ---


COARSE = 1e-6


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, "UNIT", COARSE)
    monkeypatch.setattr(prover, "FUNCTION_ROUNDING", 4 * COARSE)
    monkeypatch.setattr(module, "FUNCTION_ROUNDING", 4 * COARSE)
    monkeypatch.setattr(prover, "gamma", lambda k: k * COARSE)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(("d", "dz"), [(2, 1), (3, 7)])
def test_a_margin_is_off_by_the_products_it_is_a_sum_of(d: int, dz: int) -> None:
    """W across the difference, a hundred times as long as its margin: d + dz units of |delta||W||z| at least."""
    delta, query, W = np.zeros((1, d)), np.zeros(dz), np.zeros((d, dz))
    delta[0, 0] = query[0] = W[0, 0] = 1.0
    W[1, 0] = 100.0
    length = float(np.linalg.norm(W))
    problem = single(delta, query)
    proven = certify(Program(problem, FROBENIUS), W, np.array([[0.0, 1.0]]))
    # The bound is the norm over the margin from below, and a few scalar roundings.
    shortfall = 1 - length / proven.upper_bound
    assert d + dz + 1 <= shortfall / COARSE / length <= d + dz + 8
    direct, residual = prover.upper_bound(Program(problem, FROBENIUS), W, np.array([[0.0, 1.0]]), length, sharp=False)
    assert direct == proven.upper_bound
    assert residual == 0.0


@pytest.mark.usefixtures("coarse")
def test_a_margin_is_off_by_the_frobenius_norm_whatever_the_norm() -> None:
    """A hundred entries one: largest entry one, length ten; margins are sums, so the length is what counts."""
    d = dz = 10
    delta, query = np.eye(1, d), np.eye(1, dz)[0]
    for norm in ("max", "spectral", "nuclear", 1, 3):
        measure = get_norm(norm)
        bounds = certify(Program(single(delta, query), measure), np.ones((d, dz)), np.array([[0.0, 1.0]]))
        shortfall = 1 - measure.value(np.ones((d, dz))) / bounds.upper_bound
        assert d + dz + 1 <= shortfall / COARSE / 10 <= d + dz + 8, norm


@pytest.mark.usefixtures("coarse")
def test_scalar_roundings_of_a_bound() -> None:
    """Both bounds are quotients; in twice the precision nothing else is left."""
    problem, one = single([[1.0, 0.0]]), np.array([[1.0], [0.0]])
    bounds = certify(Program(problem, FROBENIUS), one, np.array([[0.0, 1.0]]), sharp=True)
    assert 2 <= (bounds.upper_bound - 1) / COARSE <= 10
    assert 2 <= (1 - bounds.lower_bound) / COARSE <= 14
    plain = certify(Program(problem, FROBENIUS), one, np.array([[0.0, 1.0]]))
    assert plain.upper_bound > bounds.upper_bound


@pytest.mark.usefixtures("coarse")
def test_margins_after_a_move_onto_ties_are_rounded_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """In twice the precision a margin, what the move leaves of it, and the quotient round by four units each."""
    problem = NAMED["tie_forces_a_detour"]().problem
    monkeypatch.setattr(prover, "tie_move", lambda *arguments: 0.0)
    bounds = certify(Program(problem, FROBENIUS), np.array([[1.0], [-1.0]]), np.array([[0.0, 1.0, 2.0]]), sharp=True)
    assert 11 <= (bounds.upper_bound / math.sqrt(2.0) - 1) / COARSE <= 13


@pytest.mark.usefixtures("coarse")
def test_what_sums_in_twice_the_precision_miss_is_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may miss far more than the adjoint: the weights, this product and the gain are rounded."""
    problem, dual, missing = single([[1.0, 0.0]]), np.array([[0.0, 1.0]]), 1e4
    exact = Pair(np.array([[1.0], [0.0]]), np.zeros((2, 1)))
    monkeypatch.setattr(Rows, "adjoint", lambda *arguments: (exact, missing))
    bound = prover.lower_bound(Program(problem, FROBENIUS), dual, np.zeros((2, 1)), 1.0, 0.0, sharp=True)
    shortfall = (1 - bound * (2 + missing)) / COARSE
    # A sum of n T weights, and twice four units.
    assert dual.size + 8 <= shortfall <= dual.size + 4 + 8 + 1


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("count", [2, 40, 70])
def test_a_sum_of_multipliers_is_off_by_its_terms(count: int) -> None:
    """Differences (1, h) and (-1, h) cancel but for a hundredth: what is left is off by units of the whole."""
    h = 1e-2
    deltas = np.array([[1.0, h], [-1.0, h], *[[3.0, 1.0]] * (count - 2)])
    dual = np.zeros((1, count + 1))
    dual[0, 1:3] = 1.0
    bounds = certify(Program(single(deltas), FROBENIUS), np.array([[0.0], [1 / h]]), dual)
    exact = 1 / h  # 2 over the length 2h
    # Up to 63 queries and tokens all terms are counted, beyond that those that are not zero.
    terms = count + 2 if count + 2 < 64 else 2
    weight = math.hypot(1.0, h) / h
    shortfall = (exact / bounds.lower_bound - 1) / COARSE
    assert (terms + 1) * weight <= shortfall <= (terms + 9) * weight + 20


@pytest.mark.usefixtures("coarse")
def test_what_sums_round_is_a_matrix_of_any_kind() -> None:
    """The dual of the largest entry is the sum of entries: sqrt(d dz) times the length, at worst."""
    h, count = 1e-2, 40
    deltas = np.array([[1.0, h], [-1.0, h], *[[3.0, 1.0]] * (count - 2)])
    dual = np.zeros((1, count + 1))
    dual[0, 1:3] = 1.0
    bounds = certify(Program(single(deltas), get_norm("max")), np.array([[0.0], [1 / h]]), dual)
    weight = math.sqrt(2.0) * math.hypot(1.0, h) / h
    shortfall = (1 / h / bounds.lower_bound - 1) / COARSE
    assert (count + 2) * weight <= shortfall <= (count + 11) * weight + 20


@pytest.mark.usefixtures("coarse")
def test_a_tie_is_missed_by_more_than_its_products_round() -> None:
    problem = NAMED["tie_forces_a_detour"]().problem
    W = np.array([[1.0], [-1.0]])
    size = math.sqrt(2.0) * math.sqrt(2.0)  # |W| and the length of the tie (1, 1)
    for units, loose in ((3.0, False), (-3.0, False), (12.0, True), (-12.0, True)):
        margins = np.array([[0.0, units * COARSE * size, 1.0]])
        assert module._loose(problem, W, margins) == loose
    # An inequality that is far from zero is no tie.
    assert not module._loose(problem, W, np.array([[0.0, 0.0, 5.0]]))


@pytest.mark.usefixtures("coarse")
def test_margins_in_twice_the_precision_from_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousandths of the lengths are what twice the precision misses; constraints out of reach stay as they are."""
    deltas = np.array([[1.0, 0.0], [1.5, 2.0], [1e3, 0.0]])
    problem, W = single(deltas), np.array([[1.0], [0.1]])
    size, margins = float(np.linalg.norm(W)), np.array([[0.0, 1.0, 1.7, 1e3]])
    allowance = 9 * COARSE * size
    least = margins - allowance * problem.lengths
    plain = prover._sharpen(problem, W, margins, least, size)
    assert 1 - 6 * COARSE <= plain[0, 1] <= 1 - 2 * COARSE
    np.testing.assert_array_equal(plain[0, 2:], least[0, 2:])
    honest = Rows.margins
    monkeypatch.setattr(Rows, "margins", lambda *arguments, **options: (honest(*arguments, **options)[0], 2e-3))
    wide = prover._sharpen(problem, W, margins, least, size)
    assert 1 - 2e-3 * size - 7 * COARSE <= wide[0, 1] <= 1 - 2e-3 * size - 2 * COARSE
    three = single(np.array([[3.0, 0.0]]))
    far = prover._sharpen(three, np.array([[1.0], [0.0]]), np.array([[0.0, 3.0]]), np.array([[0.0, 2.9]]), 0.0)
    assert 3 - 15 * COARSE <= far[0, 1] <= 3 - 6 * COARSE
    # All that may be the smallest are looked at: least of the smallest, twice its allowance above.
    close = single(np.array([[1.0, 0.0], [1.0 + 3 * COARSE, 0.0]]))
    margins = np.array([[0.0, 1.0, 1.0 + 3 * COARSE]])
    estimates = margins - 9 * COARSE * close.lengths
    assert (prover._sharpen(close, np.array([[1.0], [0.0]]), margins, estimates, 1.0) != estimates)[0, 1:].all()


@pytest.mark.usefixtures("coarse")
def test_the_residual_of_a_tie_is_one_of_a_margin_from_below(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = NAMED["tie_forces_a_detour"]().problem
    monkeypatch.setattr(prover, "tie_move", lambda *arguments: math.inf)
    monkeypatch.setattr(prover, "gamma", lambda k: k * 1e-2)
    W = np.array([[1.0], [-1.0]])
    margins = np.array([[0.0, 0.05, 1.0]])
    _, residual = prover.upper_bound(Program(problem, FROBENIUS), W, margins, math.sqrt(2.0), sharp=False)
    allowance = (2 + 1 + 6) * 1e-2 * math.sqrt(2.0)
    assert residual == pytest.approx((0.05 + allowance * math.sqrt(2.0)) / (1 - allowance), rel=1e-4)


@pytest.mark.usefixtures("coarse")
def test_a_residual_costs_the_multipliers_of_ties_their_share() -> None:
    problem = NAMED["tie_forces_a_detour"]().problem
    for factor in (1.0, 5.0):
        dual = factor * np.array([[0.0, -0.5, 2.0]])
        adjoint = problem.adjoint(dual)
        length = float(np.linalg.norm(adjoint))
        free, bound_with_ties = (
            prover.lower_bound(Program(problem, FROBENIUS), dual, adjoint, length, residual, sharp=False)
            for residual in (0.0, 0.1)
        )
        # 2 less 0.1 of one half, of 2.
        assert bound_with_ties / free == pytest.approx(1 - 0.05 / 2, abs=20 * COARSE)
        assert bound_with_ties / free < 1 - 0.05 / 2
        assert prover.lower_bound(Program(problem, FROBENIUS), dual, adjoint, length, 100.0, sharp=False) == 0.0


def test_what_twice_the_precision_leaves_over_counts_against_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A^T lam = (1, 0) with a thousandth left over in each entry, and a hundredth that the sums may miss of 1."""
    problem, dual = single([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    low, missing = np.full((2, 1), 1e-3), 1e-2
    monkeypatch.setattr(Rows, "adjoint", lambda *arguments: (Pair(np.array([[1.0], [0.0]]), low), missing))
    bound = prover.lower_bound(Program(problem, FROBENIUS), dual, np.zeros((2, 1)), 1.0, 0.0, sharp=True)
    # The weight of 1 was halved by the scale, so A^T lam is 2 (1, 0) and what is left over twice a thousandth.
    expected = 1 / (2 + 2 * math.sqrt(2.0) * 1e-3 + 1e-2)
    assert bound == pytest.approx(expected, rel=1e-13)
    # Sums that left the range of floats in one entry are not used.
    for part in (Pair(np.array([[1.0], [0.0]]), np.array([[np.nan], [0.0]])), Pair(np.array([[np.inf], [0.0]]), low)):
        monkeypatch.setattr(Rows, "adjoint", lambda *arguments, part=part: (part, missing))
        plain = prover.lower_bound(Program(problem, FROBENIUS), dual, np.array([[1.0], [0.0]]), 1.0, 0.0, sharp=True)
        assert plain == pytest.approx(1.0, rel=1e-13)


def test_a_w_that_overflows_when_it_is_scaled_is_not_feasible() -> None:
    problem = single([[1e-120, 0.0]])
    for entries, fine in (((1.0, 1e10), True), ((1.0, 1e200), False)):
        bounds = certify(Program(problem, FROBENIUS), np.array(entries)[:, None], np.array([[0.0, 1.0]]))
        assert np.isfinite(bounds.objective) == fine
        assert np.isfinite(bounds.upper_bound) == fine


@pytest.mark.parametrize(("size", "seed"), [((200, 8, 3), 2), ((400, 8, 4), 4), ((400, 8, 4), 5), ((400, 8, 4), 6)])
def test_refinement_reaches_the_rounding_of_W(size: tuple[int, int, int], seed: int) -> None:
    problem = FAMILIES["planted"].draw(*size, seed=seed)
    solution = solve(problem)
    dual, lengths = solution.certified.dual, problem.lengths
    mean = float((dual * lengths).sum() / dual.sum())
    unit = UNIT * solution.objective * mean  # what half a unit in the last place of W costs the objective on average
    refined = refine(Program(problem, FROBENIUS), solution.certified.W, dual, 0.25 * unit)
    # The smallest margin of W as stored lacks a unit of its own length, and targets were raised by a quarter.
    longest = float(lengths[dual > 1e-9 * dual.max()].max()) / mean
    assert refined.gap <= (longest + 0.25) * unit


def test_a_correction_that_proves_nothing_is_dropped() -> None:
    """Without multipliers W = A' dual is zero, which has no margin, and neither W has a gap."""
    problem = FAMILIES["several"].draw(8, 8, 8)
    assert problem.tied.any()
    solution = solve(problem)
    refined = refine(Program(problem, FROBENIUS), solution.certified.W, np.zeros(problem.mask.shape), 1e-9)
    assert refined.gap == math.inf
    assert refined.objective == pytest.approx(solution.objective, rel=1e-9)


def test_a_matrix_of_one_entry_is_refined_too() -> None:
    """The least of w^2/2 + 2 (1 - 3w)^2 is at w = 12/37, where the multiplier is w/3 and the margin 1 - w/12."""
    program = Program(single([[3.0]]), FROBENIUS, Regularisation(2.0, "squared_hinge", None))
    W, dual = np.array([[12 / 37 + 1e-5]]), np.array([[0.0, 4 / 37]])
    assert certify(program, W, dual, sharp=True).gap > 1e-10
    refined = refine(program, W, dual, 1e-15)
    assert refined.W[0, 0] == pytest.approx(12 / 37, rel=4 * MARGIN_UNITS * UNIT)


def test_a_margin_whose_multiplier_is_at_its_bound_is_left_short() -> None:
    """The least of (v^2 + w^2)/2 + C max(0, 1 - v) + C max(0, 1 - 4w): v = C below one, and w = 1/4."""
    C = 0.5
    program = Program(single([[1.0, 0.0], [0.0, 4.0]]), FROBENIUS, Regularisation(C, "hinge", None))
    W, dual = np.array([[C], [0.25 + 1e-6]]), np.array([[0.0, C, 1 / 16]])
    refined = refine(program, W, dual, 1e-15)
    np.testing.assert_allclose(refined.W[:, 0], [C, 0.25], rtol=4 * MARGIN_UNITS * UNIT)


def test_refinement_for_a_wide_tolerance_leaves_no_margin_below_one() -> None:
    """A share of the tolerance is spent on margins: several units of the rounding of W, which takes one at most."""
    problem = FAMILIES["planted"].draw(200, 8, 3, seed=2)
    solution, program = solve(problem), Program(problem, FROBENIUS)
    dual, tol = solution.certified.dual, 1e-9
    unit = UNIT * solution.objective * problem.lengths
    # The units that this tolerance pays for are far more than the most that is of use.
    assert 0.25 * tol * dual.sum() > 10 * MARGIN_UNITS * float((dual * unit).sum())
    pair = _correct(problem, program.terms, solution.certified.W, dual, tol, along=True)
    assert pair is not None
    rows, columns = np.nonzero(dual > 1e-9 * dual.max())
    exact, _ = Rows.of(problem, rows, columns).margins(Pair(pair[0], np.zeros(pair[0].shape)))
    excess = (exact.high - 1.0) + exact.low
    assert (np.abs(excess - MARGIN_UNITS * unit[rows, columns]) <= 1.01 * unit[rows, columns]).all()
