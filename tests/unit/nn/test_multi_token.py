"""Heads that keep several tokens: the concave lambda-head and the ReLU head."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

from attsvm import TokenData, train
from attsvm.data.synthetic import random_data
from attsvm.functional import sparsemax
from attsvm.nn.heads import LambdaHead, LinearHead, ReLUHead
from attsvm.training.paths.path import regularization_path

D = 10


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (torch.ones(3, 2, dtype=torch.float16), torch.float16),
        (torch.ones(3, 2, dtype=torch.float32), torch.float32),
        (torch.ones(3, 2, dtype=torch.int64), torch.float64),
        (torch.ones(3, 2, dtype=torch.bool), torch.float64),
        (np.ones((3, 2), np.float32), torch.float64),
        ([[1, 1]] * 3, torch.float64),
    ],
)
def test_a_head_has_the_dtype_of_floating_point_tensors_and_float64_for_other_numbers(
    given: Any, kept: torch.dtype
) -> None:
    dtypes = [parameter.dtype for head in (LinearHead(given), ReLUHead(given)) for parameter in head.parameters()]
    assert len(dtypes) == 3
    assert set(dtypes) == {kept}


@pytest.mark.parametrize("lam", [0.05, 0.2, 0.7, 2.0])
def test_sparsemax_maximises_the_lambda_head(lam):
    # Lemma 6 of arXiv 2308.16898: on orthonormal tokens v^T x - lam ||x||^2 = gamma^T s - lam ||s||^2.
    gamma = np.random.default_rng(3).standard_normal(D) / 2
    best = sparsemax(torch.as_tensor(gamma / (2 * lam))).numpy()
    s = cp.Variable(D)
    objective = cp.Minimize(lam * cp.sum_squares(s) - gamma @ s)
    cp.Problem(objective, [s >= 0, cp.sum(s) == 1]).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-15, tol_gap_rel=1e-15, tol_feas=1e-14
    )
    # Interior points leave the root of their gap, 1e-8, in coordinates at a bound.
    np.testing.assert_allclose(best, s.value, atol=1e-7)
    # The optimality conditions hold to rounding: equal slopes on the support, smaller ones off it.
    head = LambdaHead(gamma, lam)
    point = torch.as_tensor(best).requires_grad_()
    (slope,) = torch.autograd.grad(head(point), point)
    subset = best > 0
    assert np.ptp(slope.numpy()[subset]) < 1e-10
    assert (slope.numpy()[~subset] <= slope.numpy()[subset].min() + 1e-10).all()
    assert best.sum() == pytest.approx(1, abs=1e-12)
    assert (subset.sum() >= 2) == (2 * lam > np.sort(gamma)[-1] - np.sort(gamma)[-2])


def test_sparsemax_in_batches_and_along_any_dimension():
    scores = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    along = sparsemax(scores, 1)
    for i in range(3):
        for j in range(5):
            torch.testing.assert_close(along[i, :, j], sparsemax(scores[i, :, j]))
    assert torch.autograd.gradcheck(sparsemax, scores.requires_grad_())


def orthonormal(seed):
    """One sequence of orthonormal tokens, a query and a head vector, all of length one."""
    rng = np.random.default_rng(seed)
    tokens = np.linalg.qr(rng.standard_normal((D, D)))[0][None]
    v, query = (x / np.linalg.norm(x) for x in rng.standard_normal((2, D)))
    return TokenData(tokens, query[None], [1.0]), v


@pytest.mark.parametrize("lam", [0.05, 0.2, 0.7, 2.0])
@pytest.mark.slow
def test_the_limit_of_the_lambda_head_is_sparsemax(lam):
    """The identity of Lemma 6 to 1e-10: minimise the risk in balls ||W|| <= R and let R grow.

    The tokens left out trail by a margin that grows like R, so what they keep, and with it the error, falls
    exponentially: it is squared when R doubles, down to rounding.
    """
    for seed in (5, 6, 7):
        data, v = orthonormal(seed)
        path = regularization_path(data, LambdaHead(v, lam), [20, 40, 80, 160], loss="correlation")
        logits = np.einsum("td,rde,e->rt", data.tokens[0], path.W, data.queries[0])
        attention = np.exp(logits - logits.max(-1, keepdims=True))
        attention /= attention.sum(-1, keepdims=True)
        expected = sparsemax(torch.as_tensor(data.tokens[0] @ v / (2 * lam))).numpy()
        error = np.abs(attention - expected).max(-1)
        assert error[-1] <= 1e-10
        assert (error[1:] <= np.maximum(error[:-1] ** 1.5, 1e-13)).all()


@pytest.mark.parametrize("lam", [0.2, 1.0])
@pytest.mark.slow
def test_training_goes_to_sparsemax(lam):
    data, v = orthonormal(5)
    rate, steps = 2.0, 2_000
    trace = train(data, LambdaHead(v, lam), loss="correlation", optimizer="gd", lr=rate, steps=steps)
    score = data.tokens[0] @ v
    expected = sparsemax(torch.as_tensor(score / (2 * lam))).numpy()
    # A token that is to vanish loses logits at rate s c |z|^2, c its slope deficit: it is left with 1/(c |z|^2 eta k),
    # twice that while the others still settle. The others answer in proportion: all T of them together.
    slopes = score - 2 * lam * expected
    deficit = slopes[expected > 0].min() - slopes[expected == 0]
    np.testing.assert_allclose(trace.attention[-1, 0], expected, atol=2 * D / (rate * steps * deficit.min()))


@pytest.mark.slow
def test_a_convex_head_keeps_one_token_for_positive_labels_and_several_for_negative():
    data, _ = random_data(30, 1, 5, 6, seed=2)
    V = np.random.default_rng(1).standard_normal((6, 8))
    counts = {}
    for label in (1.0, -1.0):
        labelled = TokenData(data.tokens, data.queries, np.full((30, 1), label))
        trace = train(labelled, ReLUHead(V), steps=1500)
        counts[label] = (trace.attention[:, -1] > 1e-3).sum(-1)
    assert (counts[1.0] == 1).mean() > 0.9
    assert (counts[-1.0] > 1).any()
