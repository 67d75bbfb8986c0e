"""The linear system of projected Newton, solved through a factor in single precision where that is enough."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import SelectionProblem, solve
from attsvm.core import cholesky
from attsvm.core.block_gram import BlockGram
from attsvm.solvers.common.control import Control
from attsvm.solvers.frobenius import newton
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


def test_a_well_conditioned_system_needs_no_double_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes, original = [], cholesky.cho_factor
    monkeypatch.setattr(cholesky, "cho_factor", lambda a, **_: dtypes.append(a.dtype) or original(a, **_))
    size = newton.SINGLE_ROWS
    newton.proximal_solve(gram(size, 1e-2), np.ones(size))
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
