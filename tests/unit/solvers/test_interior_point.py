"""Interior points step by step: their iterates, their systems, and what they start from."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, solve
from attsvm.core.error_free import EPS
from attsvm.core.norms import FROBENIUS, MAX, NUCLEAR, SPECTRAL, Entrywise, Norm
from attsvm.proofs.objective import HARD_MARGIN, Regularisation
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.diagonal_normal import DiagonalNormal
from attsvm.solvers.common.setting import SMALLEST_MARGIN
from attsvm.solvers.compiled.frobenius import interior_work
from attsvm.solvers.interior_point import semidefinite, terms
from attsvm.solvers.interior_point.alignment import Active, aligned_multipliers, vertex
from attsvm.solvers.interior_point.engine import CENTRE, STALLED_STEPS, InteriorPoint, InteriorPointRun, Slacks, Term
from attsvm.solvers.interior_point.euclidean import EuclideanTerm, FrobeniusInteriorPoint, work_at
from attsvm.solvers.interior_point.general import START_DEPTH, _inside, _unit, _without_loss, solve_general
from attsvm.solvers.interior_point.power import CURVATURE_FLOOR, EXPONENT_GROWTH, PowerTerm, exponents
from attsvm.solvers.interior_point.semidefinite import NuclearTerm, SpectralTerm
from attsvm.solvers.interior_point.terms import LinearTerm, TermMove
from attsvm.solvers.schedule import BLAS_RATE, INTERIOR_TARGETS, OVERHEAD, finish
from problems import FAMILIES
from settings import setting_of

SQUARED_HINGE = Regularisation(2.0, "squared_hinge", None)
TERMS: dict[str, tuple[Norm, Callable[[Any], Term]]] = {
    "frobenius": (FROBENIUS, EuclideanTerm),
    "nuclear": (NUCLEAR, NuclearTerm),
    "spectral": (SPECTRAL, SpectralTerm),
    "l_1": (Entrywise(1), LinearTerm),
    "max": (MAX, LinearTerm),
    "l_3": (Entrywise(3), lambda setting: PowerTerm(setting, DiagonalNormal(setting.reduced), 0.0)),
}


@pytest.mark.parametrize("regularisation", [Regularisation(None, "hinge", None), SQUARED_HINGE], ids=["hard", "soft"])
def test_only_the_hinge_has_losses_of_its_own(regularisation: Regularisation) -> None:
    setting = setting_of(FAMILIES["planted"].draw(12, 6, 6), regularisation=regularisation)
    method = FrobeniusInteriorPoint(setting)
    for _ in range(5):
        assert method.step()
    np.testing.assert_array_equal(method.point.loss, 0.0)
    np.testing.assert_array_equal(method.point.other, 1.0)


def test_a_squared_hinge_is_not_corrected() -> None:
    """The corrections solve for a vertex, or for singular vectors, that only linear losses have."""
    setting = setting_of(FAMILIES["planted"].draw(6, 5, 4), regularisation=SQUARED_HINGE)
    run = InteriorPointRun(setting, Control(1e-9), EuclideanTerm, np.zeros(setting.reduced.shape), CENTRE)

    def correction() -> Any:
        raise AssertionError

    assert not run.correct(True, correction)


def test_the_work_of_a_step_grows_as_its_matrices() -> None:
    # With fewer constraints than entries the matrix is over constraints, with more of them over the 900 entries.
    assert work_at((100, 20, 30, 30), 500, 0) < work_at((100, 20, 30, 30), 899, 0)
    assert work_at((100, 20, 30, 30), 1000, 0) == work_at((100, 20, 30, 30), 2000, 0)
    # The factor of a large W takes the cube of its entries, of which twice the columns have twice as many.
    factors = [work_at((1, 1, 1000, r), r * 1000, 0) for r in (1000, 2000)]
    assert factors[1] / factors[0] == pytest.approx(8.0, rel=0.01)
    # The matrix of many queries is formed from one square of its entries each.
    forms = [work_at((10**6, 1, 100, r), 10**6, 0) for r in (30, 60)]
    assert forms[1] / forms[0] == pytest.approx(4.0, rel=0.1)
    # So has the matrix over constraints.
    factors = [work_at((1, 1, 1000, 1000), count, 0) for count in (20_000, 40_000)]
    assert factors[1] / factors[0] == pytest.approx(8.0, rel=0.01)
    # In tall matrices the squares of the tokens' differences count too, of which twice the dimension has four.
    forms = [work_at((10, 10**5, p, 1), 10**6, 0) for p in (2000, 4000)]
    assert forms[1] / forms[0] == pytest.approx(4.0, rel=0.1)
    # A tie is solved for and subtracted: two products with a matrix of 900 columns.
    more = work_at((100, 20, 30, 30), 1000, 7) - work_at((100, 20, 30, 30), 1000, 0)
    assert more == pytest.approx(7 * 2 * 900**2 / BLAS_RATE, rel=1e-9)
    # Passes over the tokens take the time of their number.
    passes = [work_at((n, T, 30, 30), 0, 0) - OVERHEAD for n, T in ((100, 20), (200, 20), (100, 40))]
    np.testing.assert_allclose(passes, np.array([1.0, 2.0, 2.0]) * passes[0], rtol=1e-9)


def test_dimensions_beyond_those_of_tokens_and_queries_cost_no_work() -> None:
    """Fifteen tokens and five queries have no larger ranks."""
    assert interior_work(5, 3, 400, 5) == interior_work(5, 3, 15, 5) > interior_work(5, 3, 14, 5)
    assert interior_work(5, 10, 4, 300) == interior_work(5, 10, 4, 5) > interior_work(5, 10, 4, 4)


@pytest.mark.parametrize(
    "options", [(None, "hinge"), (2.0, "hinge"), (2.0, "squared_hinge")], ids=["hard", "hinge", "squared hinge"]
)
def test_a_problem_in_larger_units_is_the_same_problem(options: tuple[float | None, str]) -> None:
    problem, unit = FAMILIES["several"].draw(5, 6, 6, seed=1), 8.0
    rng = np.random.default_rng(0)
    setting = setting_of(problem, SPECTRAL, Regularisation(*options, rng.standard_normal(problem.shape[2:])))
    scaled, V = setting.scaled(unit), rng.standard_normal(setting.reduced.shape)
    assert setting.ties
    np.testing.assert_allclose(unit * scaled.on_ties(V / unit), setting.on_ties(V), rtol=0, atol=1e-14)
    values = [
        one.terms.size(U) + one.terms.loss(one.terms.cost - one.reduced.apply(U)) + one.loose
        for one, U in ((setting, V), (scaled, V / unit))
    ]
    assert unit * values[1] == pytest.approx(values[0], rel=1e-14)


@pytest.mark.parametrize(("norm", "units"), [(FROBENIUS, 1.0), (SPECTRAL, SMALLEST_MARGIN)])
def test_a_run_ends_in_rounding_at_that_of_the_mean_margin_or_of_the_smallest(norm: Norm, units: float) -> None:
    setting, control = setting_of(FAMILIES["planted"].draw(6, 5, 4), norm), Control(0.0)
    rng = np.random.default_rng(0)
    # So long that the gap is far above the rounding of the objective.
    V, dual = 1e6 * rng.standard_normal(setting.reduced.shape), rng.random(setting.terms.cost.shape)
    mean = float(np.average(setting.reduced.lengths, weights=dual))
    rounding = units * EPS * float(np.linalg.norm(V)) * mean
    assert not setting.ends_in_rounding(control)  # there is no pair yet
    for share in (2.0, 1.1, 0.9):
        control.offer(V, 1.0 + share * rounding, dual, 1.0)
        assert setting.ends_in_rounding(control) == (share < 1)


def test_a_start_without_length_has_the_unit_one() -> None:
    setting = setting_of(FAMILIES["planted"].draw(6, 5, 4), SPECTRAL)
    assert _unit(setting, np.zeros(setting.reduced.shape)) == 1.0
    V = np.random.default_rng(0).standard_normal(setting.reduced.shape)
    assert _unit(setting, V) == pytest.approx(np.linalg.norm(V, 2), rel=1e-14)


@pytest.mark.parametrize("size", [0.0, 0.1])
@pytest.mark.parametrize("family", ["planted", "several"])
def test_a_start_that_meets_its_margins_moves_off_them(family: str, size: float) -> None:
    problem = FAMILIES[family].draw(5, 6, 6, seed=1)
    prior = size * np.random.default_rng(0).standard_normal(problem.shape[2:])
    setting = setting_of(problem, SPECTRAL, Regularisation(None, "hinge", prior))
    V = setting.reduced.lower(solve(problem, prior=prior).W) - setting.prior
    expected = (1.0 + START_DEPTH) * (V + setting.prior) - setting.prior
    np.testing.assert_allclose(_inside(setting, V), expected, rtol=1e-14, atol=1e-15)
    # A third of W has a third of the margins, less than half of what is asked.
    short = (V + setting.prior) / 3.0 - setting.prior
    np.testing.assert_array_equal(_inside(setting, short), short)
    soft = setting_of(problem, SPECTRAL, Regularisation(2.0, "hinge", prior))
    np.testing.assert_array_equal(_inside(soft, V), V)


@pytest.mark.parametrize("p", [1.02, 1.1, 1.6, 3.0, 12.0, 40.0])
def test_exponents_go_from_two_to_p_in_equal_ratios(p: float) -> None:
    """Of the exponent or of its conjugate, whichever is above two: the problems of both are each other's duals."""
    path = exponents(p)
    larger = [2.0, *(max(e, e / (e - 1.0)) for e in path)]
    ratios = np.divide(larger[1:], larger[:-1])
    assert path[-1] == p
    assert all((e > 2) == (p > 2) for e in path)
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-12)
    assert 1.0 < ratios[0] <= EXPONENT_GROWTH * (1 + 1e-12)
    # One exponent less would be too few.
    assert len(path) == 1 or max(p, p / (p - 1.0)) / 2.0 > EXPONENT_GROWTH ** (len(path) - 1)


@pytest.mark.parametrize(("family", "size"), [("planted", (12, 8, 3)), ("several", (4, 12, 5))])
def test_steps_of_the_nuclear_norm_over_constraints_are_those_over_entries(
    family: str, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = setting_of(FAMILIES[family].make(np.random.default_rng(0), *size), NUCLEAR)
    methods = []
    for most in (0, int(setting.reduced.rejected.sum()) + len(setting.ties.basis)):
        monkeypatch.setattr(semidefinite, "FEW_CONSTRAINTS", most)
        V = setting.reduced.adjoint(np.where(setting.terms.rejected, 0.01, 0.0))
        methods.append(InteriorPoint(setting, NuclearTerm(setting), V))
    many, few = methods
    assert few.term._few
    assert not many.term._few
    for _ in range(3):
        assert few.step()
        assert many.step()
        for one, other in (
            (few.term.V, many.term.V),
            (few.term.adjoint, many.term.adjoint),
            (few.term.tie, many.term.tie),
            (few.point.dual, many.point.dual),
        ):
            # Far from the end both matrices have condition numbers below 1e6.
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-10 * float(np.abs(other).max(initial=0.0)))


def test_a_power_has_a_curvature_even_at_zero() -> None:
    """That of an entry of size one is p - 1 times its size to the power of p - 2; a zero has a share of the largest."""
    norm = Entrywise(3)
    setting = setting_of(FAMILIES["planted"].draw(4, 3, 2), norm, rotate=False)
    curvatures = []
    system: Any = SimpleNamespace(
        basis=np.zeros((0, 4)),
        adjoint=lambda tie: np.zeros((2, 2)),
        factor=lambda h, theta: curvatures.append(h),
    )
    term = PowerTerm(setting, system, 0.0)
    V = np.array([[0.0, 1.0], [-2.0, 5.0]])
    term.start(V, 1.0)
    # The derivative of a third of the cubes: V is a solution of its multipliers.
    adjoint = np.sign(V) * V**2
    term.factor(np.zeros(setting.terms.cost.shape), adjoint)
    (h,) = curvatures
    np.testing.assert_allclose(h, 2.0 * np.maximum(np.abs(V), CURVATURE_FLOOR * 5.0), rtol=1e-14)
    assert term.complementarity() == pytest.approx(0.0, abs=1e-13)


@pytest.mark.parametrize("name", TERMS)
def test_products_after_a_step_are_known_before_it(name: str) -> None:
    norm, term_of = TERMS[name]
    setting = setting_of(FAMILIES["several"].draw(5, 6, 4, seed=1), norm, rotate=norm.invariant)
    method = InteriorPoint(setting, term_of(setting), 0.1 * np.ones(setting.reduced.shape))
    assert method.step()
    _, move = method._prepare()(0.0, None)
    primal, dual = (0.3, 0.3) if method.term.joint else (0.3, 0.2)
    expected, tie = method.term.after(move, primal, dual), method.term.tie.copy()
    method.term.advance(move, primal, dual)
    assert len(tie)
    np.testing.assert_array_equal(method.term.tie, tie + dual * move.tie)
    assert method.term.complementarity() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert (expected == 0.0) == (norm is FROBENIUS)


@pytest.mark.parametrize("name", TERMS)
def test_no_start_has_multipliers_of_ties(name: str) -> None:
    norm, term_of = TERMS[name]
    setting = setting_of(FAMILIES["several"].draw(5, 6, 4, seed=1), norm, rotate=norm.invariant)
    assert setting.ties
    method = InteriorPoint(setting, term_of(setting), np.zeros(setting.reduced.shape))
    np.testing.assert_array_equal(method.scattered_dual(setting)[setting.reduced.tied], 0.0)


def test_steps_in_the_frobenius_norm_end_at_the_solution() -> None:
    problem = FAMILIES["several"].draw(5, 6, 6, seed=1)
    setting = setting_of(problem)
    method = FrobeniusInteriorPoint(setting)
    for _ in range(25):
        method.step()
    W = setting.reduced.lower(solve(problem, tol=1e-12).W)
    size = float(np.linalg.norm(W))
    np.testing.assert_allclose(method.term.V, W, rtol=0, atol=1e-6 * size)
    np.testing.assert_allclose(setting.reduced.adjoint(method.scattered_dual(setting)), W, rtol=0, atol=1e-6 * size)
    # All products and residuals vanish.
    assert 0.0 <= method.distance() < 1e-6 * size * size


def test_a_hard_margin_starts_with_the_slacks_of_its_start() -> None:
    """Where they exceed the margin, so that only residuals of the other constraints are left."""
    problem = FAMILIES["planted"].draw(6, 5, 4)
    setting = setting_of(problem)
    V = 1.5 * setting.reduced.lower(solve(problem).W)
    slack = setting.reduced.apply(V) - 1.0
    method = FrobeniusInteriorPoint(setting, V)
    wide, rejected = setting.terms.rejected & (slack >= 1.0), setting.terms.rejected
    assert wide.any()
    assert not wide[rejected].all()
    np.testing.assert_allclose(method.point.slack[wide], slack[wide], rtol=1e-14)
    np.testing.assert_array_equal(method.point.slack[rejected & ~wide], 1.0)


@pytest.mark.parametrize("C", [None, 0.3])
@pytest.mark.parametrize("family", ["planted", "several"])
def test_aligned_multipliers_have_the_rank_that_the_matrix_permits(family: str, C: float | None) -> None:
    """And a dual norm of one; those of the iterate have both only to its own accuracy."""
    setting = setting_of(FAMILIES[family].draw(10, 6, 5), SPECTRAL, Regularisation(C, "hinge", None))
    method = InteriorPoint(setting, SpectralTerm(setting), np.zeros(setting.reduced.shape))
    while method.distance() > 1e-6:
        assert method.step()
    active = Active.of(setting, method)
    shortfall = setting.terms.cost - setting.reduced.apply(method.term.V)
    lossy = setting.terms.rejected & (shortfall > 1e-4)
    np.testing.assert_array_equal(active.constant, np.where(lossy, setting.terms.upper if lossy.any() else 0.0, 0.0))
    assert lossy.any() == (C is not None)
    held = np.zeros(lossy.shape, dtype=bool)
    held[active.rows, active.columns] = True
    np.testing.assert_array_equal(held, setting.terms.rejected & (np.abs(shortfall) <= 1e-4))
    sigma = np.linalg.svd(method.term.V, compute_uv=False)
    leading = int((sigma > (1.0 - 1e-4) * sigma[0]).sum())
    values = [
        np.linalg.svd(setting.reduced.adjoint(dual), compute_uv=False)
        for dual in (method.scattered_dual(setting), aligned_multipliers(setting, method))
    ]
    assert leading < len(sigma)
    assert values[1][leading:].max() <= 1e-13 < values[0][leading:].max()
    assert values[1].sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("is_second", [False, True])
@pytest.mark.parametrize(("family", "size"), [("planted", (12, 8, 3)), ("several", (4, 12, 5))])
def test_a_whole_step_of_the_spectral_norm_is_stationary(
    family: str, size: tuple[int, int, int], is_second: bool
) -> None:
    """Then -2 Z_12 is the adjoint of the multipliers and Z has trace one; complementarity holds to first order."""
    setting = setting_of(FAMILIES[family].make(np.random.default_rng(0), *size), SPECTRAL)
    method = InteriorPoint(setting, SpectralTerm(setting, is_second), np.zeros(setting.reduced.shape))
    assert len(method.term._where[0]) == (int(setting.reduced.rejected.sum()) if is_second else 0)
    for _ in range(3):
        assert method.step()
        term, point, p = method.term, method.point, setting.reduced.shape[0]
        np.testing.assert_array_equal(term.Z, term.Z.T)
        assert np.linalg.eigvalsh(term.Z).min() > 0
        slacks, move = method._prepare()(0.1, None)
        adjoint = setting.reduced.adjoint(point.dual + slacks.dual) + setting.ties.adjoint(term.tie + move.tie)
        # Both are one diagonal matrix in scaled coordinates; its product with their changes is symmetrised.
        now, change = np.diag(term._scaled), move.scaled_x + move.scaled_z
        product = now @ now + 0.5 * (now @ change + change @ now)
        np.testing.assert_allclose(product, 0.1 * np.eye(len(now)), rtol=0, atol=1e-10 * (1.0 + np.abs(change).max()))
        term.advance(move, 1.0, 1.0)
        # Far from the end the systems have condition numbers below 1e6.
        np.testing.assert_allclose(2.0 * term.Z[:p, p:], -adjoint, rtol=0, atol=1e-10)
        assert np.trace(term.Z) == pytest.approx(1.0, abs=1e-10)
        term.advance(move, -1.0, -1.0)


@pytest.mark.parametrize("is_second", [False, True])
@pytest.mark.parametrize("norm", [Entrywise(1), MAX], ids=["l_1", "max"])
def test_a_whole_step_of_a_linear_program_is_stationary(norm: Norm, is_second: bool) -> None:
    """Then differences of both sides' multipliers are the adjoint, their sums are the price of the bound."""
    setting = setting_of(FAMILIES["several"].draw(4, 12, 5), norm, rotate=False)
    assert setting.ties
    method = InteriorPoint(setting, LinearTerm(setting, is_second), np.ones(setting.reduced.shape))
    for _ in range(3):
        assert method.step()
        term, point = method.term, method.point
        slacks, move = method._prepare()(0.1, None)
        # Products of both sides are 0.1 to first order.
        for side, change, other, other_change in (
            (term.above, move.above, term.upper, move.upper),
            (term.below, move.below, term.lower, move.lower),
        ):
            np.testing.assert_allclose(side * other + side * other_change + other * change, 0.1, rtol=0, atol=1e-9)
        adjoint = setting.reduced.adjoint(point.dual + slacks.dual) + setting.ties.adjoint(term.tie + move.tie)
        term.advance(move, 1.0, 1.0)
        np.testing.assert_allclose(term.upper - term.lower, adjoint, rtol=0, atol=1e-9)
        sums = term.upper + term.lower
        np.testing.assert_allclose(sums.sum() if norm == MAX else sums, 1.0, rtol=0, atol=1e-9)
        np.testing.assert_allclose(setting.ties.basis @ term.V.ravel(), 0.0, rtol=0, atol=1e-9)
        term.advance(move, -1.0, -1.0)


@pytest.mark.parametrize("norm", [Entrywise(1), MAX], ids=["l_1", "max"])
def test_a_linear_program_starts_with_multipliers_that_pay_for_its_bounds(norm: Norm) -> None:
    """And with products of mu at least."""
    setting = setting_of(FAMILIES["planted"].draw(6, 5, 4), norm, rotate=False)
    term, V = LinearTerm(setting), np.random.default_rng(0).normal(size=setting.reduced.shape)
    term.start(V, 0.01)
    sums, products = term.upper + term.lower, np.minimum(term.upper * term.above, term.lower * term.below)
    np.testing.assert_allclose(sums.sum() if norm == MAX else sums, 1.0, rtol=1e-14)
    assert products.min() > 0.01 * (1.0 - 1e-12)
    bounds = (term.above + term.below) / 2.0
    np.testing.assert_allclose(bounds - term.above, V, rtol=0, atol=1e-14 * float(bounds.max()))


@pytest.mark.parametrize(("gap", "last", "tries"), [(0.99, False, 1), (1.01, False, 0), (1.01, True, 1)])
def test_newton_on_the_face_is_tried_below_the_first_target_and_at_the_end(
    gap: float, last: bool, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    monkeypatch.setattr(semidefinite, "refine", lambda *_: tried.append(None) or True)
    setting, control = setting_of(FAMILIES["planted"].draw(6, 5, 4), NUCLEAR), Control(1e-9)
    V = np.ones(setting.reduced.shape)
    run: Any = SimpleNamespace(gap=gap * INTERIOR_TARGETS[0], control=control, setting=setting, pair=(V, 0.0))
    assert NuclearTerm(setting).finish(run, last) == bool(tries)
    assert len(tried) == tries


@pytest.mark.parametrize("size", [0.0, 4.0])
def test_newton_on_the_face_begins_at_margins_of_one_if_there_are_any(
    size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    monkeypatch.setattr(semidefinite, "refine", lambda setting, V, *_: tried.append(V) or True)
    problem = FAMILIES["planted"].draw(6, 5, 4)
    setting, control = setting_of(problem, NUCLEAR), Control(1e-9)
    V = size * setting.reduced.lower(solve(problem).W)
    run: Any = SimpleNamespace(gap=1.0, control=control, setting=setting, pair=(V, 0.0))
    assert NuclearTerm(setting).finish(run, True)
    margins = setting.reduced.apply(tried[0])[setting.terms.rejected]
    assert margins.min() == pytest.approx(1.0 if size else 0.0, abs=1e-14)


@pytest.mark.parametrize("few", [False, True])
def test_a_second_run_of_a_linear_program_is_over_constraints_up_to_a_number_of_them(
    few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = setting_of(FAMILIES["planted"].draw(12, 6, 4), MAX, rotate=False)
    assert not LinearTerm(setting)._system.few  # constraints are more than entries
    monkeypatch.setattr(terms, "FEW_CONSTRAINTS", int(setting.reduced.rejected.sum()) - (not few))
    assert LinearTerm(setting, is_second=True)._system.few == few


def test_steps_without_a_loss_count_and_solve_a_problem_with_large_prices() -> None:
    problem = FAMILIES["planted"].draw(6, 5, 4)
    alone, control = Control(1e-9), Control(1e-9)
    assert finish(solve_general(setting_of(problem, SPECTRAL), alone, None)) is None
    list(_without_loss(setting_of(problem, SPECTRAL, Regularisation(1e4, "hinge", None)), control))
    assert control.solved
    assert control.state.objective == pytest.approx(alone.state.objective, rel=2e-9)
    assert control.iterations == alone.iterations + 1  # the pair is evaluated once more, with the loss


@pytest.mark.parametrize("options", [HARD_MARGIN, Regularisation(2.0, "hinge", None), SQUARED_HINGE])
def test_a_predictor_without_progress_is_followed_by_a_step_to_the_mean_product(options: Regularisation) -> None:
    setting = setting_of(FAMILIES["planted"].draw(6, 5, 4), regularisation=options)
    shape, counts = setting.reduced.shape, setting.terms.cost.shape
    method: Any = InteriorPoint(setting, EuclideanTerm(setting), np.ones(shape), centre=0.01)
    # Products that differ; those of losses too.
    random = np.random.default_rng(0)
    for values in (method.point.slack, method.point.other):
        values *= random.uniform(0.5, 1.5, counts)
    x, inner = method.point, setting.terms.rejected
    products = (x.slack * x.dual)[inner]
    if options.loss == "hinge" and not setting.terms.hard:
        products = np.append(products, (x.loss * x.other)[inner])
    centres = []

    def stay(centre: float, before: Any) -> tuple[Slacks, TermMove]:
        centres.append(centre)
        return Slacks(*(np.zeros(counts) for _ in range(4))), TermMove(np.zeros(shape), np.zeros(0), np.zeros(counts))

    method._prepare = lambda: stay
    assert method.step()
    assert 0.0 < products.mean() < 1.0
    assert centres == [0.0, pytest.approx(products.mean(), rel=1e-12)]


def test_multipliers_of_ties_change_in_units_of_the_largest_one() -> None:
    """Or of one, if all are zero: those of inequalities change in units of their own."""
    ties: Any = None  # only read when multipliers are scattered
    dual, slack, tie = np.array([[0.0, 3.0], [0.5, 0.0]]), np.array([[1.0, 0.0], [0.1, 2.0]]), np.array([-0.2, 0.0])
    np.testing.assert_array_equal(Active(ties, dual, slack, tie).size, [3.0, 0.5, 3.0, 3.0])
    np.testing.assert_array_equal(Active(ties, 0.0 * dual, slack, tie).size, [1.0, 1.0])


@pytest.mark.parametrize(
    ("deltas", "W", "multipliers"),
    [
        ([[1.0, 0.9]], [1.0, 0.0], [1.0]),  # w_1 + 0.9 w_2 >= 1 costs least on w_1
        ([[1.0, 0.9], [0.0, 4.0]], [0.775, 0.25], [1.0, 0.025]),  # and w_2 >= 1/4
    ],
    ids=["an entry is zero", "a constraint is active"],
)
def test_a_vertex_is_at_the_end_of_a_face_along_which_the_objective_falls(
    deltas: list[list[float]], W: list[float], multipliers: list[float]
) -> None:
    tokens = np.array([[[0.0, 0.0], *(-np.array(deltas))]])
    setting = setting_of(SelectionProblem(tokens, np.ones((1, 1)), [0]), Entrywise(1), rotate=False)
    reduced = setting.reduced
    V = reduced.lower(np.array([[0.55], [0.5]]))  # on the first constraint, beyond the second
    slack = np.where(setting.terms.rejected, reduced.apply(V) - 1.0, 1.0)
    active = setting.terms.rejected & (np.abs(slack) < 1e-12)
    assert active.sum() == 1
    ones, one = np.ones(reduced.shape), np.ones(slack.shape)
    point = Slacks(np.where(active, 0.0, slack), np.where(active, 1.0, 0.0), 0.0 * one, one)
    # Both entries are free: their bounds are slack.
    term = SimpleNamespace(V=V, above=ones, below=ones, upper=0.5 * ones, lower=0.5 * ones, tie=np.zeros(0))
    method: Any = SimpleNamespace(term=term, point=point)
    found, dual = vertex(setting, method, shared=False)
    np.testing.assert_allclose(reduced.lift(found).ravel(), W, rtol=0, atol=1e-14)
    # The multipliers are those of the problem's own coordinates, over their scale.
    adjoint = np.array(multipliers) @ np.array(deltas)
    assert adjoint.max() <= 1.0
    np.testing.assert_allclose(reduced.adjoint(dual).ravel(), adjoint, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(dual[setting.terms.rejected] > 0.0, True)


def test_a_run_ends_after_twenty_steps_without_progress() -> None:
    setting = setting_of(FAMILIES["planted"].draw(6, 5, 4))
    # No gap is below -1.
    run = InteriorPointRun(setting, Control(-1.0), EuclideanTerm, np.zeros(setting.reduced.shape), CENTRE)
    method: Any = run.method
    method.distance, method.step = lambda: 1.0, lambda: True
    # The first distance is progress; the run ends before it steps again.
    assert len(list(run.steps(lambda reduced: 1.0))) == 1 + STALLED_STEPS + 1


def test_a_run_on_a_working_set_ends_at_the_solution_of_all_constraints() -> None:
    problem = FAMILIES["planted"].draw(12, 6, 4)
    setting, control = setting_of(problem, NUCLEAR), Control(1e-9)
    working = setting.terms.rejected & (np.arange(12) < 2)[:, None]
    start = np.eye(*setting.reduced.shape)
    run = InteriorPointRun(setting, control, NuclearTerm, start, CENTRE, working=working)
    assert int(run.method.point.dual.astype(bool).sum()) == working.sum()
    list(run.steps(lambda reduced: 1.0))
    assert control.solved
    added = run.inner.terms.rejected & ~working
    assert added.any()
    expected = solve(problem, "nuclear", tol=1e-10).objective
    assert control.state.objective / setting.value_unit == pytest.approx(expected, rel=1e-8)
