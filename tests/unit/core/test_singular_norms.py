"""Norms of the singular values: one object for each name, and their smoothing where singular values agree."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from attsvm import norms
from attsvm.core.norms import Norm, get_norm


@pytest.mark.parametrize("name", ["nuclear", "spectral"])
def test_a_named_norm_stays_one_object_in_another_process(name: str) -> None:
    norm = get_norm(name)
    assert pickle.loads(pickle.dumps(norm)) is norm


@pytest.mark.parametrize("norm", [norms.Schatten(3), norms.KyFan(1), norms.KyFan(2)], ids=lambda norm: norm.name)
@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (3, 3)])
def test_equal_singular_values_have_the_limit_of_the_divided_differences(norm: Norm, shape: tuple[int, int]) -> None:
    """Central differences of step h err by h^2 and eps / h, relative to derivatives of order one: 1e-7 at h = 1e-5."""
    rng = np.random.default_rng(0)
    U, _, Vt = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
    V, D = 2.0 * U @ Vt, rng.standard_normal(shape)
    here, up, down = (norm.smoothing(V + step * D, 0.5) for step in (0.0, 1e-5, -1e-5))
    change = (up.gradient - down.gradient).ravel() / 2e-5
    np.testing.assert_allclose(here.hessian @ D.ravel(), change, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(here.hessian, here.hessian.T, atol=1e-13)
