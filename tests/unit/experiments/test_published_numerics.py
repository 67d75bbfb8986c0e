"""The arithmetic of the published runs: its steps, its ridge, and the options of training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attsvm import train
from attsvm.training.risk.objective import Gradient
from attsvm_paper.published.instances import draw
from attsvm_paper.published.numerics import EPSILON, STEP, PublishedDescent, descent


def gradient_of(slope: torch.Tensor) -> Gradient:
    """Return a gradient of one query whose scale is one."""
    return Gradient(slope, torch.zeros(len(slope), dtype=slope.dtype), 1)


def test_factors_shrink_once_the_gradient_has_vanished_and_w_stays() -> None:
    rng = np.random.default_rng(0)
    W, K, Q = (torch.as_tensor(rng.standard_normal((2, 3, 3))) for _ in range(3))
    for params in ([W.clone()], [K.clone(), Q.clone()]):
        before = [param.clone() for param in params]
        zeros = [torch.zeros_like(param) for param in params]
        PublishedDescent(STEP).step(params, zeros, gradient_of(zeros[0]), {}, 0, STEP)
        for old, new in zip(before, params, strict=True):
            # The ridge epsilon ||K||^2 has the gradient 2 epsilon K, of norm 2 epsilon ||K||.
            length = torch.linalg.matrix_norm(old, keepdim=True)
            expected = old if len(params) == 1 else old * (1 - STEP * 2 / (2 * length + 1))
            np.testing.assert_allclose(new, expected, rtol=1e-14)


def test_each_factor_takes_a_step_of_its_own_length() -> None:
    rng = np.random.default_rng(1)
    params = [torch.as_tensor(rng.standard_normal((2, 3, 3))) for _ in range(2)]
    slopes = [torch.as_tensor(size * rng.standard_normal((2, 3, 3))) for size in (1.0, EPSILON)]
    before = [param.clone() for param in params]
    PublishedDescent(STEP).step(params, slopes, gradient_of(slopes[0]), {}, 0, STEP)
    long, short = (torch.linalg.matrix_norm(new - old) for new, old in zip(params, before, strict=True))
    np.testing.assert_allclose(long, STEP, rtol=1e-12)
    # Epsilon in the denominator counts.
    assert (short < 0.95 * STEP).all()


@pytest.mark.parametrize("factors", [1, 2])
def test_a_step_is_that_of_the_gradient_of_the_mean_loss(factors: int) -> None:
    """Of the size of epsilon, the gradient is not normalised away: its scale and the number of queries count."""
    rng = np.random.default_rng(2)
    queries, scale = 4, np.array([3.0, 20.0]) * EPSILON
    params = [torch.as_tensor(rng.standard_normal((2, 3, 3))) for _ in range(factors)]
    slopes = [torch.as_tensor(rng.standard_normal((2, 3, 3))) for _ in range(factors)]
    before = [param.numpy().copy() for param in params]
    gradient = Gradient(slopes[0], torch.as_tensor(np.log(scale)), queries)
    PublishedDescent(STEP).step(params, slopes, gradient, {}, 0, 0.7)
    for old, slope, new in zip(before, slopes, params, strict=True):
        true = slope.numpy() * scale[:, None, None] / queries + (2 * EPSILON * old if factors == 2 else 0.0)
        length = np.sqrt((true**2).sum(axis=(1, 2), keepdims=True))
        np.testing.assert_allclose(new, old - 0.7 * true / (length + EPSILON), rtol=1e-12)


def test_an_unknown_arithmetic_is_refused() -> None:
    with pytest.raises(ValueError, match="numerics is 'fast'; 'exact' or 'published' was expected"):
        descent("fast", "W")


def test_both_arithmetics_have_their_own_options() -> None:
    """Exact factors follow the rule of the library, so nothing is said of their steps."""
    assert descent("exact", "W") == {"parameterization": "W", "numerics": "exact", "lr": STEP}
    assert descent("exact", "KQ") == {"parameterization": "KQ", "numerics": "exact"}
    for name in ("W", "KQ"):
        options = descent("published", name)
        assert (options["parameterization"], options["numerics"]) == (name, "autograd")
        assert options["optimizer"] == PublishedDescent(STEP)


@pytest.mark.parametrize("numerics", ["exact", "published"])
def test_w_takes_steps_of_a_tenth_in_either_arithmetic(numerics: str) -> None:
    instances = draw([3, 4], 4, 3, 5)
    trace = train(instances.data, instances.v, steps=1, **descent(numerics, "W"))
    np.testing.assert_allclose(np.linalg.norm(trace.W[:, -1], axis=(-2, -1)), STEP, rtol=1e-12)


def test_exact_factors_take_the_steps_of_the_library() -> None:
    instances = draw([3, 4], 4, 3, 5)
    trace = train(instances.data, instances.v, steps=1, init="torch", seed=7, **descent("exact", "KQ"))
    assert trace.K is not None
    assert trace.Q is not None
    both = np.concatenate([trace.K, trace.Q], axis=-1)
    length, step = (np.linalg.norm(part, axis=(-2, -1)) for part in (both[:, 0], both[:, 1] - both[:, 0]))
    np.testing.assert_allclose(step, 0.5 * length, rtol=1e-12)
