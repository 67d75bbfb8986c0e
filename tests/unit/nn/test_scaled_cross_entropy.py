"""exact_cross_entropy(..., scaled=True): a loss whose exponent is kept apart, and its gradient."""

import mpmath as mp
import numpy as np
import pytest
import torch

from attsvm.functional import exact_cross_entropy

mp.mp.dps = 60


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("lead", [-3.0, 2.0, 20.0, 60.0, 400.0])
def test_loss_and_gradient_are_right_at_every_margin(dtype, reduction, lead):
    rows = [[lead, 0.5, -0.25, 0.0], [lead + 1, 0.0, 0.25, -1.0]]
    target = torch.zeros(2, dtype=torch.int64)
    logits = torch.tensor(rows, dtype=dtype, requires_grad=True)
    loss, exponent = exact_cross_entropy(logits, target, reduction, scaled=True)
    loss.backward()
    weight = mp.mpf(1) / 2 if reduction == "mean" else mp.mpf(1)
    sums = [mp.fsum(mp.exp(mp.mpf(a) - row[0]) for a in row[1:]) for row in rows]
    value = weight * mp.fsum(mp.log1p(odds) for odds in sums)
    scale = mp.exp(float(exponent))
    # Logarithms of size `lead` are rounded to eps of it, and exponentiated: a relative error of that size.
    tolerance = 8 * torch.finfo(dtype).eps * (1 + abs(lead))
    assert abs(float(loss.detach()) * scale / value - 1) < tolerance
    for row, odds, grad in zip(rows, sums, logits.grad, strict=True):
        others = [weight * mp.exp(mp.mpf(a) - row[0]) / (1 + odds) for a in row[1:]]
        for true, approximation in zip([-mp.fsum(others), *others], grad.tolist(), strict=True):
            assert abs(approximation * scale / true - 1) < tolerance


def test_rows_have_exponents_of_their_own_and_agree_with_the_plain_loss():
    logits = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([0, 1, 2, 0, 1])
    loss, exponent = exact_cross_entropy(logits, target, "none", scaled=True)
    plain = exact_cross_entropy(logits, target, "none")
    np.testing.assert_allclose((loss * exponent.exp()).numpy(), plain.numpy(), rtol=1e-14)
    assert exponent.shape == (5,)
    # Two classes have the loss of their difference.
    loss, exponent = exact_cross_entropy(logits[:, :2], target.clamp(max=1), "none", scaled=True)
    lead = (logits[:, 0] - logits[:, 1]) * (1 - 2 * target.clamp(max=1))
    np.testing.assert_allclose((loss * exponent.exp()).numpy(), np.log1p(np.exp(-lead.numpy())), rtol=1e-14)
    with pytest.raises(ValueError, match="two classes or more"):
        exact_cross_entropy(torch.ones(2, 1), torch.zeros(2, dtype=torch.int64), scaled=True)


def test_a_float32_sign_optimiser_goes_on_where_the_plain_gradient_is_zero():
    logits = torch.tensor([[150.0, 0.0, 0.0]], requires_grad=True)
    target = torch.tensor([0])
    exact_cross_entropy(logits, target).backward()
    assert (logits.grad == 0).all()
    logits.grad = None
    exact_cross_entropy(logits, target, scaled=True)[0].backward()
    # 1 against 1/2 and 1/2, to the rounding of e^(150 eps).
    np.testing.assert_allclose(logits.grad.numpy(), [[-1, 0.5, 0.5]], rtol=1e-4)
