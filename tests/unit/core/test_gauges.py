"""The smooth sum of the k largest numbers: its threshold, and the steps that find it."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.core.norms import smoothing
from attsvm.core.norms.smoothing import top_gauge

NUMBERS = {
    "equal": np.ones(4),
    "far apart": 10.0 ** -np.arange(40.0),
    "random": np.random.default_rng(0).random(9),
    "few values": np.round(2.0 * np.random.default_rng(1).random(9)),
}


@pytest.mark.parametrize("mu", [1e-12, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("name", NUMBERS)
def test_the_weights_of_the_k_largest_sum_to_k(name: str, k: int, mu: float) -> None:
    """The threshold is a minimiser, where the slope k minus the sum of the weights is zero."""
    weight = top_gauge(k)(NUMBERS[name], mu).weight
    assert weight.min() >= 0.0
    assert weight.max() <= 1.0
    assert weight.sum() == pytest.approx(k, rel=1e-12)


@pytest.mark.parametrize(("count", "k"), [(2, 1), (4, 3), (9, 2)])
def test_the_threshold_of_equal_numbers_takes_one_step(count: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newton's method solves an equation that is linear there; a second step of length zero ends it."""
    calls, slopes = [], smoothing._slopes

    def counted(upper: np.ndarray, lower: np.ndarray, mu: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        calls.append(mu)
        return slopes(upper, lower, mu)

    monkeypatch.setattr(smoothing, "_slopes", counted)
    value = top_gauge(k)(np.full(count, 3.0), 0.5)
    assert len(calls) <= 2 + 1  # the value at the threshold needs the slopes as well
    np.testing.assert_allclose(value.weight, k / count, rtol=1e-13)
