"""Splits of a matrix between the norms of a sum or maximum: what they bound, and the path that leads to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm import norms
from attsvm.core.norms import Norm
from attsvm.core.norms.smoothing import Smooth
from attsvm.core.norms.splitting import (
    BARRIER_FALLS,
    BARRIER_START,
    CHEAP_WEIGHTS,
    IDLE_WEIGHTS,
    LATE_WEIGHT,
    optimal_split,
)

COMPOSED: dict[str, Any] = {
    "sum": norms.Sum(1, "max"),
    "largest": norms.Largest("frobenius", norms.Weighted([[1.0, 2.0], [0.5, 3.0], [1.5, 1.0]], 1.5)),
    "three": norms.Sum(norms.Sum(1, "max"), "spectral"),
}


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.parametrize("size", [0.25, 1.0, 64.0])
def test_a_gradient_is_split_as_it_is_composed(name: str, size: float) -> None:
    """Contributions of a gradient lie in the dual balls, and so their sum has a dual norm of at most one."""
    norm: Norm = COMPOSED[name]
    V = np.random.default_rng(0).standard_normal((3, 2))
    for mu in CHEAP_WEIGHTS:
        M = norm.smoothing(V, mu * norm.value(V)).gradient
        assert norm.dual_near(size * M, V) <= size * (1 + 1e-12)


def noted_weights(norm: Norm, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list to which every later smoothing of the norm adds its weight."""
    weights, original = [], norm.smoothing

    def smoothing(V: np.ndarray, mu: float) -> Smooth:
        weights.append(mu)
        return original(V, mu)

    monkeypatch.setattr(norm, "smoothing", smoothing)
    return weights


@pytest.mark.parametrize("name", COMPOSED)
def test_the_path_looks_at_no_weight_above_its_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    norm: Norm = COMPOSED[name]
    M = np.random.default_rng(1).standard_normal((3, 2))
    first, weights = BARRIER_START * norm.value(M / np.linalg.norm(M)), noted_weights(norm, monkeypatch)
    parts = optimal_split(norm, M)
    np.testing.assert_allclose(sum(parts, np.zeros(M.shape)), M, rtol=0, atol=1e-14 * np.abs(M).max())
    assert max(weights) <= first * (1 + 1e-12)
    assert min(weights) < 1e-6 * first


@pytest.mark.parametrize("seed", range(3))
def test_the_path_of_smooth_norms_falls_fast_and_ends_early(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tangent leads so near to the next point that the first fall is taken; the bound soon has all its digits."""
    norm, M = norms.Sum("frobenius", 3), np.random.default_rng(seed).standard_normal((3, 2))
    weights = noted_weights(norm, monkeypatch)
    optimal_split(norm, M)
    assert (np.diff(weights) <= 0.0).all()
    assert min(weights) >= 0.99 * LATE_WEIGHT * BARRIER_FALLS[0] ** IDLE_WEIGHTS * max(weights)


@pytest.mark.parametrize("name", COMPOSED)
def test_zero_is_split_into_zeros(name: str) -> None:
    first, second = COMPOSED[name].split(np.zeros((3, 2)))
    assert not first.any()
    assert not second.any()
