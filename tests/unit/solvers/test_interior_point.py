"""Interior points step by step: their iterates, their systems, and what they start from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm import solve
from attsvm.core.error_free import EPS
from attsvm.core.norms import FROBENIUS, NUCLEAR, SPECTRAL, Norm
from attsvm.proofs.objective import Regularisation
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import SMALLEST_MARGIN
from attsvm.solvers.compiled.frobenius import interior_work
from attsvm.solvers.interior_point import semidefinite
from attsvm.solvers.interior_point.engine import CENTRE, InteriorPoint, InteriorPointRun
from attsvm.solvers.interior_point.euclidean import EuclideanTerm, FrobeniusInteriorPoint, work_at
from attsvm.solvers.interior_point.general import START_DEPTH, _inside, _unit
from attsvm.solvers.interior_point.power import EXPONENT_GROWTH, exponents
from attsvm.solvers.interior_point.semidefinite import NuclearTerm
from problems import FAMILIES
from settings import setting_of

SQUARED_HINGE = Regularisation(2.0, "squared_hinge", None)


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
