"""Newton systems over few constraints beside many entries of W: as accurate as those over the entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.linalg import LinAlgError

from attsvm import Status, solve
from attsvm.core.error_free import EPS
from attsvm.core.reduction import reduce
from attsvm.solvers.common.augmented import augmented
from attsvm.solvers.common.diagonal_normal import DiagonalNormal
from problems import FAMILIES, HELD_OUT

SIZE = (8, 4, 24)


def test_steps_over_constraints_are_those_over_entries() -> None:
    reduced = reduce(FAMILIES["several"].draw(*SIZE))
    rng = np.random.default_rng(1)
    h, theta = rng.uniform(0.1, 1.0, reduced.shape), np.where(reduced.rejected, 10.0 ** rng.uniform(-2.0, 2.0), 0.0)
    r, g = rng.standard_normal(reduced.shape), np.where(reduced.rejected, rng.standard_normal(theta.shape), 0.0)
    few, many = DiagonalNormal(reduced, least=1), DiagonalNormal(reduced, fewer=np.inf)
    assert few.few
    assert not many.few
    # The condition of both systems is below 1e6, so no part of a step is off by more than 1e6 eps times a small factor.
    for one, other in zip(few.factor(h, theta)(r, g), many.factor(h, theta)(r, g), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8 * float(np.abs(other).max()))


def test_a_step_over_entries_takes_both_right_hand_sides() -> None:
    """Before refinement, against a dense solution of diag(h) + A' Theta A bordered by the ties."""
    reduced = reduce(FAMILIES["several"].draw(*SIZE))
    rng = np.random.default_rng(2)
    on, N = reduced.rejected, int(np.prod(reduced.shape))
    h, theta = rng.uniform(0.5, 1.0, reduced.shape), np.where(on, rng.uniform(0.5, 1.0, on.shape), 0.0)
    r, g = rng.standard_normal(reduced.shape), np.where(on, rng.standard_normal(on.shape), 0.0)
    system = DiagonalNormal(reduced, fewer=np.inf)
    x, _, dual = system._factor_entries(h, theta)(r, g)
    A, B = reduced.constraint_rows(*np.nonzero(on)), system.basis
    matrix = np.diag(h.ravel()) + A.T @ (theta[on][:, None] * A)
    whole = np.block([[matrix, -B.T], [B, np.zeros((len(B),) * 2)]])
    both = np.linalg.solve(whole, np.append(r.ravel() + A.T @ (theta * g)[on], np.zeros(len(B))))
    np.testing.assert_allclose(x.ravel(), both[:N], atol=1e-10 * np.abs(both).max())
    np.testing.assert_allclose(dual, theta * (g - reduced.apply(x)), atol=1e-10 * np.abs(dual).max())


@pytest.mark.parametrize("norm", [1, "max", 1.1, 1.5, 3.0, 10.0])
@pytest.mark.parametrize("family", ["planted", "several", "badly_scaled", "clustered", "low_rank"])
def test_wide_problems_end_without_the_smoothing_path(family: str, norm: float | str) -> None:
    make = HELD_OUT.get(family) or FAMILIES[family].make
    solution = solve(make(np.random.default_rng([3, *SIZE]), *SIZE), norm)
    assert solution.status is Status.OPTIMAL
    assert solution.verify()
    assert "smoothing path" not in solution.method
    if norm not in (1, "max"):
        assert "interior point" not in solution.method.split(", barrier")[1]


def test_a_step_keeps_the_digits_of_small_multipliers() -> None:
    """Where W is large the multipliers are small differences: both equations hold to the rounding of their terms."""
    reduced = reduce(FAMILIES["several"].draw(*SIZE))
    rng = np.random.default_rng(0)
    h, on = 10.0 ** rng.uniform(-12.0, 0.0, reduced.shape), reduced.rejected
    theta = np.where(on, rng.uniform(0.1, 1.0, on.shape), 0.0)
    r, g = rng.standard_normal(reduced.shape), np.where(on, rng.standard_normal(on.shape), 0.0)
    few = DiagonalNormal(reduced, least=1)
    x, tie, dual = few.factor(h, theta)(r, g)
    residual = r - h * x + reduced.adjoint(dual) + few.adjoint(tie)
    assert np.abs(residual).max() <= 4 * EPS * np.abs(h * x).max()
    lag = (g - reduced.apply(x))[on] - dual[on] / theta[on]
    terms = reduced.lengths[on] * np.linalg.norm(x) + np.abs(dual[on] / theta[on])
    assert (np.abs(lag) <= 4 * EPS * terms).all()


@pytest.mark.parametrize("options", [{"least": 1}, {"fewer": np.inf}], ids=["constraints", "entries"])
def test_a_rank_one_matrix_is_subtracted(options: dict[str, Any]) -> None:
    """A step, against a dense solution of diag(h) - vv' + A' Theta A bordered by the ties."""
    reduced = reduce(FAMILIES["several"].draw(*SIZE))
    rng = np.random.default_rng(2)
    on, N = reduced.rejected, int(np.prod(reduced.shape))
    h, theta = rng.uniform(0.5, 1.0, reduced.shape), np.where(on, rng.uniform(0.5, 1.0, on.shape), 0.0)
    r, g = rng.standard_normal(reduced.shape), np.where(on, rng.standard_normal(on.shape), 0.0)
    vector = rng.standard_normal(reduced.shape)
    system = DiagonalNormal(reduced, **options)
    # A tenth of the matrix is left along the vector: refinement alone would not make up for a wrong subtraction.
    vector *= np.sqrt(0.9 / float((vector * system.factor(h, theta)(vector)[0]).sum()))
    x, tie, dual = system.factor(h, theta, vector)(r, g)
    A, B = reduced.constraint_rows(*np.nonzero(on)), system.basis
    matrix = np.diag(h.ravel()) - np.outer(vector, vector) + A.T @ (theta[on][:, None] * A)
    whole = np.block([[matrix, -B.T], [B, np.zeros((len(B),) * 2)]])
    both = np.linalg.solve(whole, np.append(r.ravel() + A.T @ (theta * g)[on], np.zeros(len(B))))
    np.testing.assert_allclose(x.ravel(), both[:N], atol=1e-10 * np.abs(both).max())
    np.testing.assert_allclose(tie, both[N:], atol=1e-10 * np.abs(both).max())
    np.testing.assert_allclose(dual, theta * (g - reduced.apply(x)), atol=1e-10 * np.abs(dual).max())


@pytest.mark.parametrize("unit", [2.0**-70, 1.0, 2.0**70])
def test_an_augmented_system_is_solved_in_any_unit(unit: float) -> None:
    """A step, and its weighted rows, against a dense solution of K + R' diag(w) R."""
    rng = np.random.default_rng(0)
    matrix, rows, weights = np.diag([1.0, 2.0, 3.0]), rng.standard_normal((2, 3)), np.array([0.5, 40.0])
    rhs = rng.standard_normal(3)
    x, y = augmented(unit * matrix, rows, unit * weights)(unit * rhs)
    expected = np.linalg.solve(matrix + rows.T @ (weights[:, None] * rows), rhs)
    # The condition of both systems is below 1e3.
    np.testing.assert_allclose(x, expected, atol=1e3 * EPS * np.abs(expected).max())
    np.testing.assert_allclose(y / unit, weights * (rows @ expected), atol=1e3 * EPS * np.abs(weights).max())


@pytest.mark.parametrize("weight", [2.0**50, np.inf])
def test_equal_rows_of_an_augmented_system_share_its_right_hand_side(weight: float) -> None:
    """(I + 2 w 11') x = 1 has x = 1 / (1 + 4w) twice, and y = w (x1 + x2) is one half to rounding, for each row."""
    x, y = augmented(np.eye(2), np.ones((2, 2)), np.full(2, weight))(np.ones(2))
    np.testing.assert_allclose(x, 1.0 / (1.0 + 4.0 * weight), rtol=0, atol=16 * EPS)
    np.testing.assert_allclose(y, 0.5, rtol=0, atol=16 * EPS)


def test_a_singular_augmented_system_is_solved_where_it_is_consistent() -> None:
    """Ones in two dimensions: every x with x1 + x2 = 1 solves it, and no factor without a proximal term exists."""
    x, y = augmented(np.ones((2, 2)), np.zeros((0, 2)), np.zeros(0))(np.ones(2))
    assert x.sum() == pytest.approx(1.0, abs=16 * EPS)
    assert y.shape == (0,)


def test_an_unknown_without_an_equation_stays_zero() -> None:
    x, y = augmented(np.diag([4.0, 0.0]), np.array([[1.0, 0.0]]), np.array([4.0]))(np.array([8.0, 0.0]))
    np.testing.assert_allclose(x, [1.0, 0.0], atol=16 * EPS)
    np.testing.assert_allclose(y, [4.0], atol=64 * EPS)


def test_an_augmented_system_outside_the_range_of_floats_is_refused() -> None:
    """The inverse of a subnormal weight is infinite; the factor of the other rows is not."""
    with np.errstate(all="ignore"), pytest.raises(LinAlgError):
        augmented(np.eye(2), np.array([[1.0, 2.0]]), np.array([1e-320]))
