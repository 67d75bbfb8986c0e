"""Compiled passes over the margins of words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm.platform.kernels import frozen, interpreted
from attsvm.solvers.words.losses import add_curvature, loss_of, proximal_step, slope_of, subtract_active
from attsvm.solvers.words.margins import _places


@pytest.mark.parametrize("kernel", [loss_of, slope_of, subtract_active, add_curvature], ids=lambda k: k.__name__)
def test_compiled_passes_over_margins_are_those_of_numpy(kernel: Any) -> None:
    rng = np.random.default_rng(5)
    margins, change = rng.normal(size=(2, 7, 5))
    rejected, prices = frozen(rng.random((7, 5)) < 0.8), rng.random(7)
    active, queries = rng.random((7, 5)) < 0.4, frozen(rng.normal(size=(7, 3)))
    places, pointers = _places(active)
    reference = frozen(rng.integers(5, size=7))
    arguments = {
        loss_of: (margins, rejected, prices, np.empty((7, 5)), np.empty((7, 5), bool)),
        slope_of: (margins, change, rejected, prices, 0.3),
        subtract_active: (margins.astype(np.float32), prices.astype(np.float32), active),
        add_curvature: (places, pointers, rng.normal(size=(5, 3)), queries, reference, prices, np.zeros((5, 3))),
    }[kernel]
    other = tuple(part.copy() if isinstance(part, np.ndarray) and part.flags.writeable else part for part in arguments)
    found, expected = kernel(*arguments), interpreted(kernel)(*other)
    if found is not None:
        assert found == pytest.approx(expected, rel=1e-12)
    for one, two in zip(arguments, other, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6 if kernel is subtract_active else 1e-12)


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 1e-5), (np.float64, 1e-13)])
@pytest.mark.parametrize("function", [proximal_step, interpreted(proximal_step)], ids=["compiled", "numpy"])
def test_proximal_steps_minimise_losses_and_squares(function: Any, dtype: type, error: float) -> None:
    """Of a state w, the margin m minimises its loss plus the weight times half of (m - w)^2; the rest is taken off."""
    rng = np.random.default_rng(5)
    scores, state = rng.normal(size=(2, 7, 5)).astype(dtype)
    rejected, chosen = frozen(rng.random((7, 5)) < 0.8), rng.normal(size=7).astype(dtype)
    rows, prices = rng.uniform(0.1, 2.0, (2, 7)).astype(dtype)
    tokens, sums = rng.uniform(0.1, 2.0, 5).astype(dtype), np.empty(7, dtype)
    weights, relaxation = rows[:, None] * tokens, 1.9

    def margins_of(w: np.ndarray) -> np.ndarray:
        short = rejected & (w < 1.0)
        return np.where(short, (weights * w + prices[:, None]) / (weights + prices[:, None]), w)

    m = margins_of(state)
    expected = relaxation * (chosen[:, None] - scores) + (1.0 - relaxation) * m + state - m
    right = weights * (2.0 * margins_of(expected) - expected)
    function(scores, state, rejected, chosen, rows, tokens, prices, np.array([0.0, 1.0, relaxation], dtype), sums)
    np.testing.assert_allclose(state, expected, atol=error)
    np.testing.assert_allclose(scores, right, atol=error)
    np.testing.assert_allclose(sums, right.sum(axis=1), atol=error)


def test_losses_that_are_no_numbers_stay_so() -> None:
    """They end the method; a loss of zero would not."""
    margins, rejected = np.array([[np.nan, 0.5]]), frozen(np.ones((1, 2), bool))
    for function in (loss_of, interpreted(loss_of)):
        assert np.isnan(function(margins, rejected, np.ones(1), np.empty((1, 2)), np.empty((1, 2), bool)))
