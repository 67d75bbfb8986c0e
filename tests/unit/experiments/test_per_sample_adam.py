"""The fixed point of Adam on mini-batches: data with a known norm, its conditions, and a run of Adam."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from attsvm import TokenData, solve, train
from attsvm.core.norms import Mahalanobis
from attsvm.training.optimisers.adaptive import Adam
from attsvm_paper.beyond import per_sample_adam
from attsvm_paper.beyond.per_sample_adam import binary_problem, fixed_point, scales

RANDOM = np.random.default_rng(12).standard_normal((6, 9)) * np.geomspace(0.3, 3.0, 9)


def test_entries_of_equal_size_within_a_sample_give_the_frobenius_norm() -> None:
    """Each sample's squares are the same in every coordinate (arXiv 2510.26303, generalised Rademacher data)."""
    rng = np.random.default_rng(5)
    Z = rng.choice([-1.0, 1.0], (4, 12)) * rng.uniform(0.5, 2.0, (4, 1))
    norm, _, residual = fixed_point(Z)
    assert residual < 1e-6
    problem = binary_problem(Z)
    np.testing.assert_allclose(solve(problem, norm).W, solve(problem).W, atol=1e-6)
    # Batches of two mix samples, whose signs differ from one coordinate to the next.
    other, _, _ = fixed_point(Z, 2)
    assert np.abs(np.asarray(solve(problem, other).W) - np.asarray(solve(problem).W)).max() > 1e-3


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_weights_are_the_multipliers_of_their_own_norm(batch: int) -> None:
    _, weights, residual = fixed_point(RANDOM, batch)
    assert residual < 1e-6
    assert weights.sum() == pytest.approx(1.0)
    w = RANDOM.T @ weights / scales(RANDOM, weights, batch)
    margins = RANDOM @ w
    # Samples with a weight have the smallest margin, all others a larger one.
    active = weights > 1e-6
    np.testing.assert_allclose(margins[active], margins.min(), rtol=1e-4)
    assert (margins[~active] >= margins.min() * (1 - 1e-4)).all()


def test_scales_of_full_batches_are_the_mean_gradient() -> None:
    weights = np.array([0.1, 0.2, 0.3, 0.2, 0.1, 0.1])
    np.testing.assert_allclose(scales(RANDOM, weights, len(RANDOM)), np.abs(RANDOM.T @ weights))
    with pytest.raises(ValueError, match="1 <= batch < n = 6"):
        fixed_point(RANDOM, 6)


@pytest.mark.parametrize(("n", "batch"), [(2, 1), (2, 2), (4, 1), (4, 2), (4, 3), (4, 4)])
def test_scales_are_root_mean_squares_over_all_batches(n: int, batch: int) -> None:
    """Up to one factor for all coordinates: the number of batches over that of a sample's batches."""
    Z, weights = RANDOM[:n], np.array([0.4, 0.1, 0.3, 0.2])[:n]
    sums = np.stack([weights[list(one)] @ Z[list(one)] for one in combinations(range(n), batch)])
    np.testing.assert_allclose(scales(Z, weights, batch), np.sqrt((sums**2).mean(0) * n / batch), rtol=1e-12)


def test_a_single_sample_is_its_own_batch() -> None:
    np.testing.assert_allclose(scales(RANDOM[:1], np.array([2.0])), 2 * np.abs(RANDOM[0]))
    with pytest.raises(ValueError, match="1 <= batch < n = 1"):
        fixed_point(RANDOM[:1])


def test_margins_of_the_binary_problem_are_products() -> None:
    problem, w = binary_problem(RANDOM), np.arange(1.0, 10.0)
    np.testing.assert_allclose(problem.apply(w[:, None])[problem.rejected], RANDOM @ w)
    with pytest.raises(ValueError, match=r"batch is 0; 1 <= batch"):
        fixed_point(RANDOM, 0)


def form_of(norm: Mahalanobis) -> np.ndarray:
    left, right = norm.forms
    assert left is not None
    assert right is None
    return left


@pytest.mark.parametrize("batch", [1, 3])
def test_the_iteration_ends_where_weights_are_multipliers_of_the_norm_they_scale(batch: int) -> None:
    norm, weights, residual = fixed_point(RANDOM, batch)
    np.testing.assert_allclose(form_of(norm), np.diag(scales(RANDOM, weights, batch)), rtol=1e-12)
    multipliers = np.asarray(solve(binary_problem(RANDOM), norm, tol=1e-8).dual).sum(axis=1)
    difference = np.abs(multipliers / multipliers.sum() - weights).sum()
    assert residual == pytest.approx(difference, rel=1e-6)
    assert residual < 1e-8


def test_an_iteration_that_is_stopped_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step from equal weights goes half the way to the multipliers of their norm."""
    monkeypatch.setattr(per_sample_adam, "_STEPS", 1)
    norm, weights, residual = fixed_point(RANDOM)
    equal = np.full(6, 1 / 6)
    first = Mahalanobis(A=np.diag(scales(RANDOM, equal)))
    multipliers = np.asarray(solve(binary_problem(RANDOM), first, tol=1e-8).dual).sum(axis=1)
    target = multipliers / multipliers.sum()
    assert residual == pytest.approx(np.abs(target - equal).sum(), rel=1e-6)
    np.testing.assert_allclose(weights, (equal + target) / 2, atol=1e-9)
    np.testing.assert_allclose(form_of(norm), np.diag(scales(RANDOM, weights)), rtol=1e-9)


def test_adam_on_single_samples_is_nearer_to_the_fixed_point_than_to_the_max_norm() -> None:
    tokens = np.stack([RANDOM, np.zeros_like(RANDOM)], axis=1)
    values = np.broadcast_to([[1.0], [0.0]], (6, 2, 1))
    data = TokenData(tokens, np.ones((6, 1)), np.ones(6), values=values)
    problem, (norm, _, _) = binary_problem(RANDOM), fixed_point(RANDOM)

    def shares(batch: int) -> list[float]:
        W = np.asarray(
            train(
                data, [1.0], loss="log", optimizer=Adam(0.05, "sqrt", betas=(0.9, 0.99)), steps=600, batch_size=batch
            ).W[-1]
        )
        return [
            float((RANDOM @ W).min() / solution.norm.value(W) * solution.objective)
            for solution in (solve(problem, norm), solve(problem, "max"))
        ]

    (own, largest), (other, full) = shares(1), shares(6)
    assert own > largest
    assert full > other
