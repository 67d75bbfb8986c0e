"""Compiled passes over the margins of words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm.platform.kernels import frozen, interpreted
from attsvm.solvers.words.losses import add_curvature, loss_of, slope_of, subtract_active
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


def test_losses_that_are_no_numbers_stay_so() -> None:
    """They end the method; a loss of zero would not."""
    margins, rejected = np.array([[np.nan, 0.5]]), frozen(np.ones((1, 2), bool))
    for function in (loss_of, interpreted(loss_of)):
        assert np.isnan(function(margins, rejected, np.ones(1), np.empty((1, 2)), np.empty((1, 2), bool)))
