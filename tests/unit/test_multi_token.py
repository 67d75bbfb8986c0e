"""Heads that keep several tokens: the concave lambda-head and the ReLU head."""

import cvxpy as cp
import numpy as np
import pytest
import torch

from attsvm import TokenData, train
from attsvm.data.synthetic import random_data
from attsvm.functional import sparsemax
from attsvm.heads import LambdaHead, ReLUHead

D = 10


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
    kept = best > 0
    assert np.ptp(slope.numpy()[kept]) < 1e-10
    assert (slope.numpy()[~kept] <= slope.numpy()[kept].min() + 1e-10).all()
    assert best.sum() == pytest.approx(1, abs=1e-12)
    assert (kept.sum() >= 2) == (2 * lam > np.sort(gamma)[-1] - np.sort(gamma)[-2])


def test_sparsemax_in_batches_and_along_any_dimension():
    scores = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    along = sparsemax(scores, 1)
    for i in range(3):
        for j in range(5):
            torch.testing.assert_close(along[i, :, j], sparsemax(scores[i, :, j]))
    assert torch.autograd.gradcheck(sparsemax, scores.requires_grad_())


@pytest.mark.parametrize("lam", [0.2, 1.0])
def test_training_reaches_sparsemax(lam):
    rng = np.random.default_rng(5)
    tokens = np.linalg.qr(rng.standard_normal((D, D)))[0][None]
    v = rng.standard_normal(D)
    v /= np.linalg.norm(v)
    data = TokenData(tokens, rng.standard_normal((1, D)), [1.0])
    rate, steps = 2.0, 2_000
    trace = train(data, LambdaHead(v, lam), loss="correlation", optimizer="gd", lr=rate, steps=steps)
    expected = sparsemax(torch.as_tensor(tokens[0] @ v / (2 * lam))).numpy()
    # A token that is to vanish with slope deficit c does so like 1/(c |z|^2 eta k); deficits here exceed 0.01.
    speed = rate * steps * float((data.queries**2).sum()) * 0.01
    np.testing.assert_allclose(trace.attention[-1, 0], expected, atol=5 / speed)


def test_a_convex_head_keeps_one_token_for_positive_labels_and_several_for_negative():
    data, _ = random_data(30, 1, 5, 6, seed=2)
    V = np.random.default_rng(1).standard_normal((6, 8))
    kept = {}
    for label in (1.0, -1.0):
        labelled = TokenData(data.tokens, data.queries, np.full((30, 1), label))
        trace = train(labelled, ReLUHead(V), steps=1500)
        kept[label] = (trace.attention[:, -1] > 1e-3).sum(-1)
    assert (kept[1.0] == 1).mean() > 0.9
    assert (kept[-1.0] > 1).any()
