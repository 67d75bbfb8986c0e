"""The smoothed nuclear norm of truncated Newton: derivatives, its limit, and the inverse of its Hessian."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attsvm.solvers.common.control import Control
from attsvm.solvers.words.penalties import DELTA_FACTOR, DELTA_SHARE, Penalty, SmoothNuclear

DELTA = 0.3
SHAPES = pytest.mark.parametrize("shape", [(5, 3), (3, 3), (2, 4)], ids=["tall", "square", "wide"])


def matrix(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def smoothed(V: np.ndarray, delta: float) -> float:
    """The sum of sqrt(sigma^2 + delta^2) over dz singular values, those beyond the rows being zero."""
    values = np.linalg.eigvalsh(V.T @ V + delta**2 * np.eye(V.shape[1]))
    return float(np.sqrt(values).sum())


@SHAPES
def test_gradient_and_hessian_are_those_of_the_smoothed_norm(shape: tuple[int, int]) -> None:
    """Central differences in a direction, whose error is of order h^2."""
    V, S, h = matrix(shape), matrix(shape, 1), 1e-5
    penalty = SmoothNuclear(V, DELTA)
    assert penalty.size == pytest.approx(float(np.linalg.norm(V, "nuc")), rel=1e-12)
    slope = (smoothed(V + h * S, DELTA) - smoothed(V - h * S, DELTA)) / (2 * h)
    assert float(np.vdot(penalty.gradient, S)) == pytest.approx(slope, rel=1e-8)
    change = (penalty.at(V + h * S).gradient - penalty.at(V - h * S).gradient) / (2 * h)
    np.testing.assert_allclose(penalty.product(S), change, atol=1e-7)


@SHAPES
def test_the_basis_makes_the_first_term_of_the_hessian_a_unit_matrix(shape: tuple[int, int]) -> None:
    """The first term is the inverse root of V^T V + delta^2, on every row."""
    V = matrix(shape)
    basis = SmoothNuclear(V, DELTA).basis
    assert basis is not None
    inverse = np.linalg.inv(basis @ basis.T)
    np.testing.assert_allclose(inverse @ inverse @ (V.T @ V + DELTA**2 * np.eye(shape[1])), np.eye(shape[1]), atol=1e-9)


def blocks_and_inverses(penalty: SmoothNuclear) -> tuple[np.ndarray, np.ndarray]:
    """Draw a positive block a row, and invert each plus the first term, in the basis."""
    (T, dz), basis = penalty.V.shape, penalty.basis
    assert basis is not None
    roots = np.random.default_rng(2).normal(size=(T, dz, dz))
    blocks = roots @ roots.transpose(0, 2, 1)
    return blocks, np.linalg.inv(np.eye(dz) + basis.T @ blocks @ basis)


@SHAPES
def test_an_inverse_of_both_terms_undoes_the_hessian_and_the_blocks(shape: tuple[int, int]) -> None:
    """Every singular value of V but those of missing rows, which count for nothing, is above delta."""
    penalty = SmoothNuclear(matrix(shape), 1e-3)
    assert (np.linalg.svd(penalty.V, compute_uv=False) > 1e-3).all()
    blocks, inverses = blocks_and_inverses(penalty)
    inverse = penalty.full_inverse(inverses, Control(1e-9))
    assert inverse is not None
    assert penalty.basis is not None
    S = matrix(shape, 3)
    image = penalty.product(S) + np.einsum("tij,tj->ti", blocks, S)
    np.testing.assert_allclose(inverse(image @ penalty.basis) @ penalty.basis.T, S, atol=1e-8)


def test_pairs_of_small_singular_values_are_left_out_and_cost_at_most_half() -> None:
    """In the basis the eigenvalues of Hessian plus blocks, times the inverse, lie between 1/2 and 1."""
    U, V = (np.linalg.qr(matrix((n, 3), n))[0] for n in (6, 3))
    penalty = SmoothNuclear((U * np.array([5.0, 0.9 * DELTA, 0.5 * DELTA])) @ V.T, DELTA)
    blocks, inverses = blocks_and_inverses(penalty)
    inverse = penalty.full_inverse(0.0 * blocks + inverses, Control(1e-9))
    assert inverse is not None
    basis = penalty.basis
    assert basis is not None
    images = [
        (inverse(image @ basis) @ basis.T).ravel()
        for unit in np.eye(18).reshape(-1, 6, 3)
        for image in [penalty.product(unit) + np.einsum("tij,tj->ti", blocks, unit)]
    ]
    eigenvalues = np.linalg.eigvals(np.array(images).T).real
    assert eigenvalues.max() <= 1.0 + 1e-9
    assert 0.5 <= eigenvalues.min() < 1.0 - 1e-3


def test_an_inverse_too_large_or_too_slow_is_not_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    penalty = SmoothNuclear(matrix((5, 3)), DELTA)
    _, inverses = blocks_and_inverses(penalty)
    asked: list[tuple[float, float]] = []
    monkeypatch.setattr(Control, "affords", lambda self, seconds, size: asked.append((seconds, size)) or False)
    assert penalty.full_inverse(inverses, Control(1e-9)) is None
    ((seconds, size),) = asked
    assert seconds > 0
    assert size == 8 * (2 * 5 * 6 + 6**2 + 4 * 6**2)  # six pairs of columns, for five rows


def test_an_inverse_spoilt_by_rounding_is_not_used() -> None:
    penalty = SmoothNuclear(matrix((5, 3)), 1e-3)
    _, inverses = blocks_and_inverses(penalty)
    assert penalty.full_inverse(100.0 * inverses, Control(1e-9)) is None


def test_delta_falls_tenfold_until_the_last_step_promises_more_than_it_takes_of_the_gap() -> None:
    V = matrix((5, 3))
    sigma = np.linalg.svd(V, compute_uv=False)

    def share(delta: float) -> float:
        return float((sigma - sigma**2 / np.hypot(sigma, delta)).sum())

    penalty = SmoothNuclear(V, DELTA)
    assert penalty.reduce_smoothing(math.inf, 0.0) is penalty
    assert penalty.reduce_smoothing(1.001 * share(DELTA), 0.0).delta == DELTA
    assert penalty.reduce_smoothing(0.999 * share(DELTA), 0.0).delta == DELTA_FACTOR * DELTA
    assert penalty.reduce_smoothing(0.0, 1.001 * share(DELTA) / DELTA_SHARE).delta == DELTA
    assert penalty.reduce_smoothing(0.0, 0.999 * share(DELTA) / DELTA_SHARE).delta == DELTA_FACTOR * DELTA
    assert penalty.reduce_smoothing(0.0, 1e-4 * share(DELTA)).delta == pytest.approx(1e-3 * DELTA, rel=1e-12)


def test_half_the_squared_norm_is_its_own_approximation() -> None:
    V, S = matrix((4, 2)), matrix((4, 2), 1)
    penalty = Penalty(V)
    assert penalty.size == pytest.approx(0.5 * float(np.linalg.norm(V)) ** 2)
    assert penalty.reduce_smoothing(0.0, 0.0) is penalty
    assert penalty.full_inverse(np.zeros((4, 2, 2)), Control(1e-9)) is None
    np.testing.assert_array_equal(penalty.product(S), S)
    np.testing.assert_array_equal(penalty.gradient, V)


@pytest.mark.parametrize("penalty", [Penalty(np.zeros((4, 2))), SmoothNuclear(np.zeros((4, 2)), DELTA)])
def test_a_bound_counts_the_dual_norm_of_the_adjoint(penalty: Penalty) -> None:
    """Half its square, or the scale at which it is one; an adjoint of zero limits nothing."""
    adjoint = matrix((4, 2), 1)
    length = float(np.linalg.norm(adjoint, 2))
    is_square = not isinstance(penalty, SmoothNuclear)
    curvature, largest = (float(np.linalg.norm(adjoint)) ** 2, math.inf) if is_square else (0.0, 1.0 / length)
    assert penalty.dual_terms(adjoint) == pytest.approx((curvature, largest))
    assert penalty.dual_terms(0.0 * adjoint) == (0.0, math.inf)
