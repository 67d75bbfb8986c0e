"""The linear system of projected Newton, solved through a factor in single precision where that is enough."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import SelectionProblem, solve
from attsvm.core import cholesky
from attsvm.core.block_gram import BlockGram
from attsvm.proofs.objective import Regularisation
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.regularisation import LOSSES
from attsvm.solvers.frobenius import newton
from attsvm.solvers.frobenius.coordinate_descent import DualCoordinateDescent
from attsvm.solvers.schedule import WORKING_SET, finish
from problems import FAMILIES
from settings import setting_of


def gram(size: int, smallest: float) -> np.ndarray:
    """A positive definite matrix with eigenvalues from 1 down to ``smallest``."""
    random = np.random.default_rng(0)
    basis = np.linalg.qr(random.normal(size=(size, size)))[0]
    matrix = (basis * np.geomspace(1.0, smallest, size)) @ basis.T
    return (matrix + matrix.T) / 2


@pytest.mark.parametrize("smallest", [1e-2, 1e-4, 1e-8])
def test_solution_is_as_accurate_as_a_double_factor_would_make_it(smallest: float) -> None:
    size = newton.SINGLE_ROWS + 50
    matrix = gram(size, smallest)
    exact = np.random.default_rng(1).normal(size=size)
    right = matrix @ exact
    solution = newton.proximal_solve(matrix, right)
    # Backward stability: a residual of size * eps * |K| |x|; 1e-13 of the right-hand side is what is asked for instead.
    bound = size * np.finfo(float).eps * np.linalg.norm(exact) + newton.SOLVED_RESIDUAL * np.linalg.norm(right)
    assert np.linalg.norm(matrix @ solution - right) <= bound


# The second leaves more than 1e-13 of the right-hand side, but no more than the rounding of K e.
@pytest.mark.parametrize("smallest", [1e-2, 1e-5])
def test_a_well_conditioned_system_needs_no_double_factor(smallest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes, original = [], cholesky.cho_factor
    monkeypatch.setattr(cholesky, "cho_factor", lambda a, **_: dtypes.append(a.dtype) or original(a, **_))
    size = newton.SINGLE_ROWS
    newton.proximal_solve(gram(size, smallest), np.ones(size))
    assert dtypes == [np.float32]


def test_an_unknown_without_an_equation_is_left_alone() -> None:
    """A row of zeros gets a one on its diagonal."""
    solve_with_factor = cholesky.factor(np.diag([4.0, 0.0]))
    np.testing.assert_allclose(solve_with_factor(np.array([8.0, 3.0])), [2.0, 3.0], rtol=1e-12)


def test_a_ridge_is_relative_to_the_diagonal_and_the_number_of_rows() -> None:
    solve_with_factor = cholesky.factor(np.diag([4.0, 2.0, 1.0, 8.0]), ridges=[0.25])
    np.testing.assert_allclose(solve_with_factor(np.array([8.0, 8.0, 8.0, 8.0])), [1.0, 2.0, 4.0, 0.5], rtol=1e-15)


def test_a_right_hand_side_that_overflowed_is_left_to_the_caller() -> None:
    assert np.isnan(cholesky.factor(np.eye(2))(np.array([np.nan, 1.0]))).any()


def test_a_singular_system_falls_back_and_still_solves_what_is_consistent() -> None:
    size = newton.SINGLE_ROWS
    random = np.random.default_rng(2)
    half = random.normal(size=(size, size // 2))
    matrix = half @ half.T
    right = matrix @ random.normal(size=size)
    solution = newton.proximal_solve(matrix, right)
    # The ridge shifts by its own size at most, three proximal steps divide that by 1e13 / condition each.
    assert np.linalg.norm(matrix @ solution - right) <= 1e-9 * np.linalg.norm(right)


def test_a_matrix_is_moved_onto_its_margins_by_a_system_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six contexts, each followed by one of twelve words: every constraint is active, and blocks are cheaper."""
    monkeypatch.setattr(newton, "OVERHEAD", 0.0)
    random = np.random.default_rng(0)
    followers = np.eye(12, dtype=bool)[random.integers(12, size=6)]
    problem = SelectionProblem.from_contexts(random.normal(size=(6, 6)), followers)
    setting, control = setting_of(problem), Control(1e-12)
    reduced = setting.reduced
    dual = reduced.gather(solve(problem, tol=1e-12).dual) * setting.unit
    rows, columns = np.nonzero(setting.inner(dual))
    assert isinstance(newton.gram_of(setting, rows, columns), BlockGram)
    V = reduced.adjoint(dual * (1.0 + 1e-3 * random.normal(size=dual.shape)))
    assert not setting.report(V, dual, control)
    assert newton.refine(setting, V, dual, control)
    assert control.solved


@pytest.mark.parametrize(("most", "is_solved"), [(WORKING_SET, True), (3, False)])
def test_newton_ends_at_the_solution_unless_the_working_set_is_too_large(
    most: int, is_solved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newton, "WORKING_SET", most)
    setting, control = setting_of(FAMILIES["planted"].draw(12, 6, 6)), Control(1e-12)
    descent = DualCoordinateDescent(setting, np.zeros(setting.terms.cost.shape))
    descent.run(10)
    assert int(setting.inner(descent.dual).sum()) > 3
    before = descent.dual.copy()
    assert finish(newton.newton(setting, descent.dual, control, rounds=20)) is None
    assert control.solved == is_solved
    assert (descent.dual == before).all() != is_solved


@pytest.mark.parametrize("loss", LOSSES)
def test_newton_ends_at_the_solution_of_a_soft_margin(loss: str) -> None:
    setting = setting_of(FAMILIES["published"].draw(12, 6, 6), regularisation=Regularisation(1.0, loss, None))
    descent, control = DualCoordinateDescent(setting, np.zeros(setting.terms.cost.shape)), Control(1e-11)
    descent.run(10)
    assert not setting.report(descent.V, descent.dual, control)
    assert finish(newton.newton(setting, descent.dual, control, rounds=20)) is None
    assert control.solved


@pytest.mark.parametrize(("tol", "refinements"), [(-1.0, 1), (np.inf, 0)])
def test_newton_ends_once_moving_onto_the_margins_closes_the_gap(
    tol: float, refinements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No gap is below -1; a gap that is closed at the start needs no step."""
    refined: list[np.ndarray] = []
    monkeypatch.setattr(newton, "refine", lambda setting, V, *_: refined.append(V) or True)
    setting, control = setting_of(FAMILIES["planted"].draw(12, 6, 6)), Control(tol)
    descent = DualCoordinateDescent(setting, np.zeros(setting.terms.cost.shape))
    descent.run(10)
    assert finish(newton.newton(setting, descent.dual, control, rounds=20)) is None
    assert len(refined) == refinements
    assert control.iterations == 1 + refinements


def test_the_steepest_multipliers_at_a_bound_join_those_between_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newton, "SMALLEST_GROWTH", 1)
    setting = setting_of(FAMILIES["planted"].draw(6, 5, 4))
    random, rejected = np.random.default_rng(0), setting.terms.rejected
    inner = rejected & (random.random(rejected.shape) < 0.1)
    slope = np.where(rejected, random.normal(size=rejected.shape), 0.0)
    rows, columns = newton._choose(setting, inner.astype(float), slope, 1e-12)
    # As many multipliers at zero, with the largest slopes.
    threshold = np.sort(slope[rejected & ~inner])[-int(inner.sum())]
    assert inner.any()
    assert threshold > 0
    expected = inner | rejected & (slope >= threshold)
    np.testing.assert_array_equal((rows, columns), np.nonzero(expected))


@pytest.mark.parametrize(("share", "moves"), [(0.9, 4), (0.3, 0)])
def test_a_gap_that_stays_open_is_not_closed_by_moving_onto_the_margins(
    share: float, moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Solutions that leave a tenth of the error come nearer four times, those that leave most of it never."""
    monkeypatch.setattr(newton, "factor", lambda *arguments: lambda rhs: share * cholesky.factor(*arguments)(rhs))
    # No gap is below -1.
    problem, control = FAMILIES["planted"].draw(12, 6, 6), Control(-1.0)
    setting = setting_of(problem)
    dual = setting.reduced.gather(solve(problem).dual) * setting.unit
    V = 0.9 * setting.reduced.adjoint(dual)
    assert not newton.refine(setting, V, dual, control)
    assert control.iterations == moves
