"""The exact gradient against 60-digit arithmetic, from small margins to far beyond the underflow of exp."""

import mpmath as mp
import numpy as np
import pytest
import torch

from attsvm.data.synthetic import random_data
from attsvm.training.risk.objective import Objective
from attsvm.training.run.compiled import LOSS_CODES, advance_W

N, T, D = 2, 4, 3
EPS = np.finfo(float).eps


def reference_gradient(data, v, W, loss):
    """Return n times the gradient at W as an mpmath matrix (D, D)."""
    with mp.workdps(60):
        slopes = {
            "logistic": lambda u: -1 / (1 + mp.exp(u)),
            "exponential": lambda u: -mp.exp(-u),
            "correlation": lambda u: mp.mpf(-1),
        }
        number = np.vectorize(mp.mpf, otypes=[object])
        X, Z, Y, v, W = (number(a) for a in (data.tokens, data.queries, data.labels, v, W))
        total = np.zeros((D, D), dtype=object)
        for x, z, y in zip(X, Z, Y, strict=True):
            a = x @ W @ z
            gamma = y * (x @ v)
            e = np.array([mp.exp(t - max(a)) for t in a])
            s = e / e.sum()
            u = gamma @ s
            # 60 digits leave the cancellation harmless only up to margin 130; beyond, pairs give it without any.
            mean_gap = np.array([sum(s[j] * (gamma[t] - gamma[j]) for j in range(T)) for t in range(T)])
            g = slopes[loss](u) * s * mean_gap
            total = total + np.outer(g @ x, z)
        return total


def logit_error(data, W):
    """Bound on the error of a logit difference: two inner products of D terms each, twice."""
    size = np.abs(data.tokens).max() * np.abs(W).sum() * np.abs(data.queries).max()
    return 4 * D * EPS * size


@pytest.mark.parametrize("loss", LOSS_CODES)
@pytest.mark.parametrize("norm", [1.0, 10.0, 40.0, 100.0, 400.0, 1500.0, 20000.0])
def test_gradient_is_right_at_every_margin(norm, loss):
    data, v = random_data(None, N, T, D, seed=11)
    direction = np.random.default_rng(5).standard_normal((D, D))
    W = norm * direction / np.linalg.norm(direction)
    reference = reference_gradient(data, v, W, loss)
    exact = Objective.from_data(data, v, loss).gradient(torch.as_tensor(W)[None])
    with mp.workdps(60):
        scale = mp.exp(mp.mpf(float(exact.log_scale)))
        scaled = np.array([[float(entry / scale) for entry in row] for row in reference])
    # An absolute error in the logits is a relative error in the weights, of which the largest is below the score range.
    mass = N * T * 2 * np.abs(data.tokens @ v).max()
    tolerance = (logit_error(data, W) + 4 * (T * N + D) * EPS) * mass
    assert np.abs(exact.W[0].numpy() - scaled).max() <= tolerance


@pytest.mark.parametrize("loss", LOSS_CODES)
@pytest.mark.parametrize("norm", [1.0, 40.0, 400.0, 20000.0])
def test_compiled_step_is_the_reference_step(norm, loss):
    data, v = random_data(None, N, T, D, seed=11)
    direction = np.random.default_rng(5).standard_normal((D, D))
    W = norm * direction / np.linalg.norm(direction)
    reference = reference_gradient(data, v, W, loss)
    with mp.workdps(60):
        length = mp.sqrt(sum(entry**2 for entry in reference.flat))
        unit = np.array([[float(entry / length) for entry in row] for row in reference])
    # A step as long as W keeps the direction readable in the difference.
    after = W[None].copy()
    gamma = (data.labels[:, None] * (data.tokens @ v))[None]
    mask = np.ones((1, N, T), dtype=bool)
    columns, across = (np.ascontiguousarray(a.swapaxes(-1, -2))[None] for a in (data.tokens, data.queries))
    advance_W(
        data.tokens[None], columns, data.queries[None], across, gamma, mask, LOSS_CODES[loss], 1, np.array([norm]), 0,
        2.0, after,
        np.zeros_like(after),
    )  # fmt: skip
    step = (W - after[0]) / norm
    conditioning = 4 * N * T  # mass over norm of the gradient on this instance is below this
    assert np.abs(step - unit).max() <= conditioning * (logit_error(data, W) + (T * N + D) * EPS)


def test_autograd_is_wrong_where_the_exact_gradient_is_right():
    data, v = random_data(None, N, T, D, seed=11)
    direction = np.random.default_rng(5).standard_normal((D, D))
    W = 1500 * direction / np.linalg.norm(direction)
    reference = reference_gradient(data, v, W, "logistic")
    error = {}
    for numerics in ("exact", "autograd"):
        gradient = Objective.from_data(data, v, numerics=numerics).gradient(torch.as_tensor(W)[None])
        with mp.workdps(60):
            scale = mp.exp(mp.mpf(float(gradient.log_scale)))
            difference = [
                mp.mpf(float(g)) * scale - r for g, r in zip(gradient.W.flatten(), reference.flat, strict=True)
            ]
            error[numerics] = float(mp.norm(difference) / mp.norm(list(reference.flat)))
    assert error["exact"] < 1e-10
    assert error["autograd"] > 0.1
