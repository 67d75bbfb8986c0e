"""The fixed point of Adam on mini-batches: data with a known norm, its conditions, and a run of Adam."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import TokenData, solve, train
from attsvm.training.optimisers.adaptive import Adam
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
