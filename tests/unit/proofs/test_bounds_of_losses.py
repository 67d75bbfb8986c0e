"""Bounds with losses and priors: against rational arithmetic on the same floats, and every rounding that they count."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

import exact as optimum
from attsvm import SelectionProblem, Solution, solve
from attsvm.core.error_free import UNIT, Pair
from attsvm.core.norms import FROBENIUS, Norm, get_norm
from attsvm.core.rounding import SUBNORMAL
from attsvm.core.types import AnyNorm
from attsvm.proofs import bounds as prover
from attsvm.proofs.bounds import lower_bound, objective_above, upper_bound
from attsvm.proofs.certified import certify
from attsvm.proofs.objective import SEPARATION_TOL, Regularisation, Terms
from attsvm.proofs.program import Program
from problems import FAMILIES, single

NORMS = ("frobenius", "nuclear", "spectral", "max", 1, 3)
KINDS = ("hinge", "squared_hinge", "prior", "hinge and prior", "prices", "squared prices and prior")
COARSE = 1e-6


def regularisation_of(kind: str, problem: SelectionProblem, rng: np.random.Generator) -> Regularisation:
    n, _, d, dz = problem.shape
    C = rng.uniform(0.3, 3.0, n) if "prices" in kind else None if kind == "prior" else 0.7
    prior = rng.standard_normal((d, dz)) if "prior" in kind else None
    return Regularisation(C, "squared_hinge" if "squared" in kind else "hinge", prior)


def solved(kind: str, problem: SelectionProblem, given: Regularisation, norm: AnyNorm = "frobenius") -> Solution:
    return solve(problem, norm, C=given.C, loss="squared_hinge" if "squared" in kind else "hinge", prior=given.prior)


@cache
def instances(kind: str, norm: AnyNorm) -> list[tuple[Program, np.ndarray, np.ndarray]]:
    """Programs with the W and multipliers of a solution, and with poorer ones."""
    results = []
    for seed, family in enumerate(("planted", "masked", "correlated", "badly_scaled")):
        rng = np.random.default_rng([seed, 31])
        problem = FAMILIES[family].make(rng, 3, 4, 3)
        regularisation = regularisation_of(kind, problem, rng)
        solution = solved(kind, problem, regularisation, norm)
        W, dual = solution.certified.W, solution.certified.dual
        program = Program(problem, get_norm(norm), regularisation)
        other = W + 1e-3 * np.linalg.norm(W) * rng.standard_normal(W.shape)
        if regularisation.hard:
            other /= min(1.0, problem.apply(other).min(where=problem.rejected, initial=1.0))
        results += [(program, W, dual), (program, other, dual * rng.uniform(0.5, 1.0, dual.shape))]
    return results


def bounds_of(program: Program, W: np.ndarray, dual: np.ndarray, *, sharp: bool) -> tuple[float, float]:
    """What these W and multipliers prove, unscaled."""
    problem, norm = program.problem, program.norm
    adjoint = problem.adjoint(dual)
    low = lower_bound(program, dual, adjoint, norm.dual(adjoint), 0.0, sharp=sharp)
    return low, upper_bound(program, W, problem.apply(W), program.distance(W), sharp=sharp)[0]


@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_bounds_enclose_what_the_floats_prove_and_hardly_more(kind: str, norm: AnyNorm, sharp: bool) -> None:
    for program, W, dual in instances(kind, norm):
        problem, measure, regularisation = program.problem, program.norm, program.regularisation
        low, high = bounds_of(program, W, dual, sharp=sharp)
        exact_low = float(optimum.lower_bound(problem, measure, dual, regularisation))
        fraction, reason = optimum.upper_bound(problem, measure, W, regularisation)
        assert fraction is not None, reason
        exact_high = float(fraction)
        assert low <= exact_low * (1 + 3e-15)
        assert high >= exact_high * (1 - 3e-15)
        # What cancels in a bound is rounded by its size: norms, multipliers and products, d dz at a time.
        d, dz = W.shape
        reach = float(problem.lengths.max(initial=0.0)) * (np.linalg.norm(W) + np.linalg.norm(program.origin))
        weight = float((np.abs(dual) * problem.lengths).sum()) * math.sqrt(d * dz)
        sizes = weight * (1 + np.linalg.norm(program.origin)) + float(np.abs(dual).sum()) + measure.value(W) ** 2
        assert low >= exact_low - 60 * UNIT * (d * dz + problem.mask.size) * (sizes + exact_low)
        charges = float(np.max(regularisation.C)) if regularisation.C is not None else 1.0
        slack = (1 + reach) * (1 + charges * problem.mask.size * (1 + reach)) * (1 + exact_high)
        assert high <= exact_high + 60 * UNIT * (d * dz) * (slack + sizes)


@pytest.mark.parametrize("kind", ["hinge", "squared_hinge", "prices", "squared prices"])
def test_the_slope_of_a_loss_is_its_difference_quotient(kind: str) -> None:
    """No loss depends on a token that is selected or hidden, whatever its number."""
    rng = np.random.default_rng(3)
    selected = np.array([[True, True, False, False], [False, False, True, False]])
    mask = np.array([[True, True, True, False], [True] * 4])
    problem = SelectionProblem(rng.standard_normal((2, 4, 3)), rng.standard_normal((2, 2)), selected, mask=mask)
    terms = regularisation_of(kind, problem, rng).terms(problem, FROBENIUS)
    shortfall, step = rng.choice([-1.0, 1.0], mask.shape) * rng.uniform(0.1, 1.0, mask.shape), 2.0**-10
    slope = terms.slope(shortfall)
    for index in np.ndindex(mask.shape):
        move = np.zeros(mask.shape)
        move[index] = step
        # The loss of either sign is a polynomial of degree two, for which this quotient is exact.
        quotient = (terms.loss(shortfall + move) - terms.loss(shortfall - move)) / (2 * step)
        assert slope[index] == pytest.approx(quotient, abs=1e-11)


def test_multipliers_of_losses_are_scaled_to_their_largest_bound() -> None:
    """w^2/2 + 10 max(0, 1 - 2 w) is least at w = 1/2, with the multiplier 1/4 and the value 1/8."""
    program = Program(single([[2.0, 0.0]]), FROBENIUS, Regularisation(10.0, "hinge", None))
    for multiplier in (0.1, 0.25, 3.0):
        bounds = certify(program, np.array([[0.5], [0.0]]), np.array([[0.0, multiplier]]))
        assert bounds.dual[0, 1] == pytest.approx(0.25, rel=1e-14)
        assert bounds.lower_bound <= 0.125
        assert bounds.lower_bound == pytest.approx(0.125, rel=1e-13)


# --- allowances, with a unit of 1e-6 in them alone ---


@pytest.fixture
def unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, "UNIT", COARSE)
    monkeypatch.setattr(prover, "FUNCTION_ROUNDING", 4 * COARSE)
    monkeypatch.setattr(prover, "gamma", lambda k: k * COARSE)
    monkeypatch.setattr(prover, "error_of", lambda first, second: (first + second) * COARSE)


def terms_of(norm: Norm, C: float | None, loss: str = "hinge") -> Terms:
    return Regularisation(C, loss, None).terms(single([[1.0]]), norm)


@pytest.mark.usefixtures("unit")
def test_an_objective_counts_losses_or_the_way_to_margin_one() -> None:
    # Margins of a half: W twice as long. It moves by its own length, 3, from a prior at distance 2.
    high, residual = objective_above(terms_of(get_norm("max"), None), 2.0, 3.0, math.inf, -0.5, 0.25)
    assert 3.0 * 4 <= (high - 5.0) / COARSE - 5.0 * 4 <= 3.0 * 4 + 1
    assert residual == 0.5
    # No margin is left to scale.
    assert objective_above(terms_of(get_norm("max"), None), 2.0, 3.0, math.inf, -1.0, 0.25) == (math.inf, 0.25)
    # Margins above one need no way.
    high, _ = objective_above(terms_of(get_norm("max"), None), 2.0, 3.0, math.inf, 0.5, 0.0)
    assert high == pytest.approx(2.0 * (1 + 4 * COARSE), rel=1e-14)
    # The losses, 1, are less than the way; half a square is 2.
    high, _ = objective_above(terms_of(get_norm("max"), 1.0), 2.0, 3.0, 1.0, -0.5, 0.0)
    assert high == pytest.approx(3.0 * (1 + 4 * COARSE), rel=1e-14)
    high, residual = objective_above(terms_of(FROBENIUS, 1.0), 2.0, 3.0, 1.0, -0.5, 0.25)
    assert high == pytest.approx(3.0 * (1 + 4 * COARSE), rel=1e-14)
    assert residual == 0.25
    # With losses, W is scaled when its margins nearly reach one, and then only.
    for factor, way in ((0.5, True), (1.0, False), (2.0, False)):
        high, residual = objective_above(terms_of(FROBENIUS, 1.0), 2.0, 3.0, 9.0, -factor * SEPARATION_TOL, 1.0)
        assert (high < 3.0) is way
        assert (residual > 1.0) is way


def test_the_square_of_a_small_norm_may_underflow() -> None:
    tiny = 1e-170
    assert objective_above(terms_of(FROBENIUS, 1.0), tiny, tiny, 0.0, 0.0, 0.0)[0] == prover.UNDERFLOWS * SUBNORMAL
    assert objective_above(terms_of(FROBENIUS, 1.0), 0.0, 0.0, 0.0, 0.0, 0.0)[0] == 0.0
    assert objective_above(terms_of(get_norm("max"), 1.0), tiny, tiny, 0.0, 0.0, 0.0)[0] == pytest.approx(tiny)


def lower(program: Program, multiplier: float, *, sharp: bool = False, tie_residual: float = 0.0) -> float:
    """The bound of one multiplier on the first constraint."""
    problem = program.problem
    dual = np.zeros(problem.mask.shape)
    dual[0, 1] = multiplier
    adjoint = problem.adjoint(dual)
    return lower_bound(program, dual, adjoint, program.norm.dual(adjoint), tie_residual, sharp=sharp)


@pytest.mark.usefixtures("unit")
@pytest.mark.parametrize("multiplier", [0.25, 1.0])
@pytest.mark.parametrize("C", [None, 1.0])
def test_a_prior_costs_the_roundings_of_its_product_and_of_the_adjoint(C: float | None, multiplier: float) -> None:
    """A prior of a hundred across the adjoint: nothing of their product, but all its roundings, and the adjoint's."""
    prior = np.array([[0.0], [100.0], [0.0]])
    problem = single([[1.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
    program = Program(problem, get_norm("max"), Regularisation(C, "hinge", prior))
    # A hard margin may use any multiple of the multiplier, so its share counts.
    scale = 1.0 if C is None else multiplier
    low = lower(program, multiplier)
    products, sums = prior.size, problem.roundings[1]
    shortfall = (scale - low) / COARSE / (100.0 * scale)
    assert products + sums + 1 <= shortfall <= products + 8 + sums + 8 + 2
    sharp = lower(program, multiplier, sharp=True)
    # In twice the precision the product is summed with the multipliers, and the sums of the adjoint are as exact.
    assert low < sharp < scale


@pytest.mark.usefixtures("unit")
def test_a_product_with_the_prior_in_twice_the_precision_counts_every_part() -> None:
    """Multiplier 1 less a product of 1000 - 999.5: parts of size 2000 are summed with four roundings and one each."""
    prior = np.array([[1000.0], [999.5]])
    problem = single([[1.0, -1.0], [5.0, 0.0]])
    program = Program(problem, get_norm("max"), Regularisation(1.0, "hinge", prior))
    low = lower(program, 0.25, sharp=True)
    exact = 0.25 * (1.0 - 0.5)
    parts = 0.25 * (1.0 + 1999.5)
    count = 2 + 2 * prior.size + 4
    shortfall = (exact - low) / COARSE
    length = 0.25 * np.linalg.norm(prior)
    adjoint_error = shortfall - count * parts
    # sharp_adjoint's own error is real, so what is left are some scalar roundings.
    assert 0 <= adjoint_error <= 10 + length * 1e-3


@pytest.mark.usefixtures("unit")
@pytest.mark.parametrize("prices", [False, True])
def test_a_sum_of_squares_is_off_by_its_terms(prices: bool) -> None:
    """One multiplier of a half and C = 1/6: its square costs three quarters of its gain, with n T roundings."""
    problem = single([[1e-3, 0.0], *[[3.0, 1.0]] * 38])
    C = np.array([1 / 6]) if prices else 1 / 6
    program = Program(problem, FROBENIUS, Regularisation(C, "squared_hinge", None))
    exact = 0.5 - 0.5 * (0.25 * 3 + 0.25 * 1e-6)
    shortfall = (exact - lower(program, 0.5)) / COARSE
    # The gain and the bound are rounded by four units each.
    shortfall -= 4 * 0.5 + 4 * exact
    cost = 0.5 * 0.25 * 3
    # A sum of n T squares, each with a product and a quotient, and the two factors before it.
    assert cost * (problem.mask.size + 4) <= shortfall <= cost * (problem.mask.size + 9)


@pytest.mark.usefixtures("unit")
def test_an_adjoint_beyond_the_ball_is_divided_by_its_norm() -> None:
    problem = single([[2.0, 0.0]])
    program = Program(problem, get_norm("max"), Regularisation(10.0, "hinge", None))
    # The dual norm of (2, 0) is 2: half the multiplier counts. Inside the ball all of it does.
    assert 8 <= (0.5 - lower(program, 1.0)) / COARSE <= 25
    # Two roundings of four units, of the sum and of the bound.
    assert (0.25 - lower(program, 0.25)) / COARSE == pytest.approx(2.0, rel=1e-5)
    squared = Program(problem, FROBENIUS, Regularisation(10.0, "hinge", None))
    assert (1.0 / 8 - lower(squared, 0.25)) / COARSE <= 12


@pytest.mark.usefixtures("unit")
def test_a_residual_of_ties_costs_their_multipliers_with_losses_too() -> None:
    problem = SelectionProblem([[[0.0, 0.0], [1.0, 1.0], [-1.0, 0.0]]], [[1.0]], [[True, True, False]])
    program = Program(problem, FROBENIUS, Regularisation(10.0, "hinge", None))
    dual = np.array([[0.0, -0.2, 0.3]])
    adjoint = problem.adjoint(dual)
    length = float(np.linalg.norm(adjoint))
    without, with_residual = (
        lower_bound(program, dual, adjoint, length, residual, sharp=False) for residual in (0.0, 0.1)
    )
    # The sum of the ties' multipliers has n T roundings; what the bound rounds afterwards, twice four units, is less.
    units = ((without - with_residual) / (0.1 * 0.2) - 1) / COARSE
    assert dual.size - 8.01 <= units <= dual.size - 7


@pytest.mark.usefixtures("unit")
def test_multipliers_are_weighed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    problem = SelectionProblem(rng.standard_normal((6, 4, 3)), rng.standard_normal((6, 2)), np.zeros(6, dtype=int))
    W = solve(problem).certified
    program = Program(problem, FROBENIUS)
    whole = bounds_of(program, W.W, W.dual, sharp=False)
    monkeypatch.setitem(problem.__dict__, "chunks", [slice(k, k + 1) for k in range(6)])
    assert bounds_of(program, W.W, W.dual, sharp=False) == pytest.approx(whole, rel=1e-14)
    losses = Program(problem, FROBENIUS, Regularisation(1.0, "hinge", None))
    chunked = bounds_of(losses, 0.7 * W.W, 0.1 * W.dual, sharp=False)
    monkeypatch.setitem(problem.__dict__, "chunks", [slice(0, 6)])
    assert bounds_of(losses, 0.7 * W.W, 0.1 * W.dual, sharp=False) == pytest.approx(chunked, rel=1e-14)


# --- multipliers known by their sum ---


@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize("kind", ["plain", "prior", "hinge", "hinge and prior"])
def test_a_bulk_of_multipliers_counts_like_the_multipliers(kind: str, sharp: bool) -> None:
    rng = np.random.default_rng(7)
    problem = FAMILIES["planted"].make(rng, 3, 5, 3)
    regularisation = Regularisation(None, "hinge", None)
    if kind != "plain":
        regularisation = regularisation_of(kind, problem, rng)
    solution = solved(kind, problem, regularisation)
    program, dual = Program(problem, FROBENIUS, regularisation), solution.certified.dual
    adjoint = problem.adjoint(dual)
    length = float(np.linalg.norm(adjoint))
    whole = lower_bound(program, dual, adjoint, length, 0.0, sharp=sharp)
    share = np.where(dual > 0.4 * dual.max(), 0.5, 0.0) * dual
    part = problem.adjoint(share)

    def with_bulk(error: float) -> float:
        bulk = prover.Bulk(float(share.sum()), Pair(part, np.zeros(part.shape)), error)
        return lower_bound(program, dual - share, adjoint, length, 0.0, sharp=sharp, bulk=bulk)

    assert with_bulk(1e-15) == pytest.approx(whole, rel=1e-12)
    assert whole > 0
    # What the sum may be off by lengthens the adjoint, and moves its product with the prior.
    total = float(dual.sum()) - float(np.vdot(program.origin, adjoint))
    error = 1e-3 * length
    stretch = error * np.linalg.norm(program.origin)
    longer = length + error
    expected = (total - stretch) / longer if regularisation.hard else total - stretch - 0.5 * longer**2
    assert with_bulk(error) == pytest.approx(expected, rel=1e-9)
    assert with_bulk(error) < whole


@pytest.mark.parametrize("kind", ["plain", "hinge and prior"])
def test_what_the_adjoint_of_a_bulk_leaves_over_counts_as_an_error(kind: str) -> None:
    rng = np.random.default_rng(7)
    problem = FAMILIES["planted"].make(rng, 3, 5, 3)
    regularisation = Regularisation(None, "hinge", None) if kind == "plain" else regularisation_of(kind, problem, rng)
    program = Program(problem, FROBENIUS, regularisation)
    dual = solved(kind, problem, regularisation).certified.dual
    part = problem.adjoint(dual)
    length = float(np.linalg.norm(part))
    left_over = 1e-3 * length * rng.standard_normal(part.shape)

    def with_bulk(low: np.ndarray, error: float) -> float:
        bulk = prover.Bulk(float(dual.sum()), Pair(part, low), error)
        return lower_bound(program, np.zeros(dual.shape), part, length, 0.0, sharp=False, bulk=bulk)

    nothing = np.zeros(part.shape)
    expected = with_bulk(nothing, float(np.linalg.norm(left_over)))
    assert with_bulk(left_over, 0.0) == pytest.approx(expected, rel=1e-13)
    assert 0 < expected < with_bulk(nothing, 0.0)
