"""The exact gradient equals automatic differentiation wherever the latter is sound."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from attsvm.data.synthetic import random_data
from attsvm.data.token_data import TokenData
from attsvm.nn.heads import LambdaHead, LinearHead, ReLUHead
from attsvm.nn.losses import as_loss
from attsvm.training import train
from attsvm.training.risk.arrays import has_ties
from attsvm.training.risk.gradient import head_logit_gradient, linear_logit_gradient
from attsvm.training.risk.objective import Objective

B, N, T, D, DZ = 4, 3, 5, 4, 3


def objective(head="linear", loss="logistic", masked=False, values=False, numerics="exact"):
    rng = np.random.default_rng(7)
    mask = None
    if masked:
        mask = rng.random((B, N, T)) > 0.5
        mask[..., 1] = True
        mask[0, 0] = np.arange(T) == 1  # a row with one visible token has no gradient
    width = 2 if values else D
    data = TokenData(
        rng.standard_normal((B, N, T, D)),
        rng.standard_normal((B, N, DZ)),
        rng.choice([-1.0, 1.0], (B, N)),
        mask,
        rng.standard_normal((B, N, T, 2)) if values else None,
    )
    v = rng.standard_normal((B, width))
    heads = {
        "linear": v,
        "shared": v[0],
        "relu": ReLUHead(rng.standard_normal((width, 6))),
        "lambda": LambdaHead(v[0], 0.7),
        "callable": lambda x: torch.tanh(x).sum(-1),
    }
    return Objective.from_data(data, heads[head], loss, numerics=numerics)


def draw_W(scale=1.0):
    return scale * torch.randn(B, D, DZ, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def softsquare(margin):
    return (1 - margin).square() / 4 + 1 / margin.cosh()


CASES = [
    (head, loss, masked, values)
    for head, loss in [
        ("linear", "logistic"),
        ("linear", "exponential"),
        ("linear", "correlation"),
        ("linear", softsquare),
        ("shared", "logistic"),
        ("relu", "logistic"),
        ("lambda", "correlation"),
        ("lambda", "exponential"),
        ("callable", "logistic"),
    ]
    for masked, values in [(False, False), (True, False), (True, True)]
]


@pytest.mark.parametrize(("head", "loss", "masked", "values"), CASES)
def test_gradient_equals_autograd_at_small_margins(head, loss, masked, values):
    exact = objective(head, loss, masked, values)
    W = draw_W()
    gradient = exact.gradient(W)
    mine = gradient.log_scale.exp()[:, None, None] * gradient.W
    reference = objective(head, loss, masked, values, numerics="autograd").gradient(W)
    # Margins of a few units leave autograd some e^5 roundings of the largest entry.
    scale = reference.W.abs().amax((-2, -1), keepdim=True)
    torch.testing.assert_close(mine / scale, reference.W / scale, rtol=0, atol=1e-12)


@pytest.mark.parametrize("head", ["linear", "relu"])
def test_value_is_the_mean_loss(head):
    exact = objective(head, masked=True)
    W = draw_W()
    out = (exact.attention(W).unsqueeze(-2) @ exact.values).squeeze(-2)
    prediction = exact.head(out)
    expected = torch.nn.functional.softplus(-exact.labels * prediction).mean(-1)
    torch.testing.assert_close(exact.value(W), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("head", ["linear", "relu", "callable"])
def test_the_score_of_a_token_is_the_prediction_from_it_alone(head: str) -> None:
    exact = objective(head, values=True)
    for t in range(T):
        expected = exact.labels * exact.head(exact.values[:, :, t]).detach()
        torch.testing.assert_close(exact.token_scores()[..., t], expected, rtol=1e-13, atol=1e-15)


def test_logit_weights_of_a_row_sum_to_zero_and_vanish_on_hidden_tokens():
    exact = objective(masked=True)
    weights = exact.logit_gradient(draw_W(50.0)).weights
    assert exact.hidden is not None
    assert (weights[exact.hidden] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.zeros(B, N, dtype=torch.float64), rtol=0, atol=1e-15)


def test_the_scale_is_the_largest_weight():
    data, v = random_data(3, 4, 5, 6, seed=3)
    exact = Objective.from_data(data, v)
    for norm in (1.0, 1e3, 1e8):
        W = norm * torch.ones(3, 6, 6, dtype=torch.float64)
        gradient = exact.gradient(W)
        assert gradient.W.isfinite().all()
        assert (torch.linalg.matrix_norm(gradient.W) > 1e-6).all()


def test_ties_and_single_tokens_give_a_zero_gradient():
    rng = np.random.default_rng(0)
    one_token = TokenData(rng.standard_normal((2, 1, 3)), rng.standard_normal((2, 3)), np.ones(2))
    tied = TokenData(rng.standard_normal((2, 4, 3)), rng.standard_normal((2, 3)), np.ones(2), None, np.ones((2, 4, 3)))
    for data in (one_token, tied):
        gradient = Objective.from_data(data, np.ones(3)).gradient(torch.zeros(1, 3, 3, dtype=torch.float64))
        assert (gradient.W == 0).all()
        assert (gradient.log_scale == 0).all()


@pytest.mark.parametrize("head", [[1.0], lambda x: x[..., 0]], ids=["linear", "callable"])
def test_a_tie_does_not_hide_smaller_weights(head: Any) -> None:
    # Token 1 ties with the top in score and sits close to it; token 2 is 900 below: its weight alone counts.
    data = TokenData(np.array([[[1.0], [0.99], [0.0]]]), [[1.0]], [1], None, np.array([[[1.0], [1.0], [0.0]]]))
    gradient = Objective.from_data(data, head).gradient(torch.full((1, 1, 1), 900.0, dtype=torch.float64))
    assert gradient.W.item() == pytest.approx(-1.0, rel=1e-3)
    assert gradient.log_scale.item() < -890


@pytest.mark.parametrize("name", ["value", "log_slope"])
def test_an_object_with_one_method_of_a_loss_is_no_loss(name: str) -> None:
    """A function may have an attribute of this name for another reason."""

    def cubed(margin: torch.Tensor) -> torch.Tensor:
        return -(margin**3)

    setattr(cubed, name, 0.5)
    log_slope, sign = as_loss(cubed).log_slope(torch.tensor([2.0, -1.0], dtype=torch.float64))
    torch.testing.assert_close(log_slope, torch.tensor([12.0, 3.0], dtype=torch.float64).log())  # |l'| = 3 u^2
    assert sign is not None
    assert sign.tolist() == [-1.0, -1.0]
    with pytest.raises(ValueError, match="loss has type SimpleNamespace"):
        as_loss(SimpleNamespace(**{name: cubed}))  # pyright: ignore[reportArgumentType]


def test_a_head_with_the_wrong_shape_is_named():
    data = TokenData(np.ones((2, 3, 4)), np.ones((2, 4)), np.ones(2))
    with pytest.raises(ValueError, match="head reads outputs of dimension 3"):
        Objective.from_data(data, np.ones(3))
    with pytest.raises(ValueError, match="head returned shape"):
        Objective.from_data(data, torch.nn.Linear(4, 2)).gradient(torch.zeros(1, 4, 4, dtype=torch.float64))
    assert isinstance(Objective.from_data(data, np.ones(4)).head, LinearHead)


@pytest.mark.parametrize("norm", [1.0, 30.0, 500.0, 1e4])
@pytest.mark.parametrize("backend", ["torch", "compiled"])
def test_a_token_that_ties_with_the_top_shares_its_push(norm, backend):
    # Tokens 0 and 1 have equal score and equal logit: the gradient pulls both alike, however small it has become.
    data = TokenData(
        np.array([[[1.0, 0.5], [1.0, -0.5], [0.0, 0.0]]]), [[1.0]], [1], None, np.array([[[1.0], [1.0], [0.0]]])
    )
    step = train(data, [1.0], init=np.array([[norm], [0.0]]), steps=1, lr=norm, backend=backend).W
    np.testing.assert_allclose(step[1] - step[0], [[norm], [0.0]], rtol=1e-12, atol=1e-12 * norm)


@pytest.mark.parametrize("linear", [True, False])
def test_several_heads_add_up_to_one_output(linear):
    """Weights of (B, H, n, T) logits against automatic differentiation of the mean loss of their sum."""
    generator = torch.Generator().manual_seed(3)
    heads = 2
    logits = torch.randn(B, heads, N, T, generator=generator, dtype=torch.float64, requires_grad=True)
    values = torch.randn(B, N, T, D, generator=generator, dtype=torch.float64)
    labels = torch.where(torch.rand(B, N, generator=generator) > 0.5, 1.0, -1.0).double()
    hidden = torch.randn(D, 6, generator=generator, dtype=torch.float64)
    head = (lambda x: x @ hidden[:, 0]) if linear else (lambda x: torch.tanh(x @ hidden).sum(-1))
    output = torch.einsum("bhnt,bntd->bnd", logits.softmax(-1), values)
    margin = labels * head(output)
    (expected,) = torch.autograd.grad(torch.nn.functional.softplus(-margin).sum(), logits)
    loss, plain = as_loss("logistic"), logits.detach().clone()
    if linear:
        gamma = (labels[..., None] * head(values)).unsqueeze(1)
        result = linear_logit_gradient(plain, gamma, loss)
    else:
        result = head_logit_gradient(plain, values.unsqueeze(1), labels, head, loss)
    weights = result.weights * result.log_scale.exp()[:, None, None, None]
    # Float64 sums of a dozen terms of order one.
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-13)
    assert result.margin.shape == (B, N)
    torch.testing.assert_close(result.margin, margin.detach(), rtol=1e-13, atol=1e-13)


def test_margins_have_one_row_a_trial():
    exact = objective()
    assert exact.logit_gradient(draw_W()).margin.shape == (B, N)


@pytest.mark.parametrize("spread", [1.0, 60.0])
def test_tokens_of_equal_score_under_a_curved_head(spread):
    """Two tokens are the same, and one of them is on top: both are pushed, by what automatic differentiation says.

    At a spread of 60 its difference of equal numbers is lost, and the push is that of the tokens far below.
    """
    values = torch.tensor([[[[1.0, 0.5], [1.0, 0.5], [-1.0, 0.3], [0.2, -2.0]]]], dtype=torch.float64)
    logits = spread * torch.tensor([[[1.0, 0.9, 0.0, -0.2]]], dtype=torch.float64)
    labels = torch.ones(1, 1, dtype=torch.float64)

    def head(x):
        return torch.tanh(x).sum(-1)

    result = head_logit_gradient(logits.clone(), values, labels, head, as_loss("logistic"))
    weights = result.weights * result.log_scale.exp()[:, None, None]
    s = logits.softmax(-1)
    output = (s.unsqueeze(-2) @ values).squeeze(-2)
    slope = 1 - torch.tanh(output) ** 2
    gamma = (values * slope.unsqueeze(-2)).sum(-1)
    # s_t sum_tau s_tau (gamma_t - gamma_tau), in which equal scores give exactly zero.
    q = s * (s.unsqueeze(-2) * (gamma.unsqueeze(-1) - gamma.unsqueeze(-2))).sum(-1)
    expected = -q / (1 + torch.tanh(output).sum(-1, keepdim=True).exp())
    torch.testing.assert_close(weights, expected, rtol=1e-12, atol=0)
    assert weights[0, 0, 1] < 0


def test_a_tie_is_one_within_a_row() -> None:
    assert has_ties(torch.tensor([[[1.0, 2.0, 1.0], [3.0, 4.0, 5.0]]]))
    assert not has_ties(torch.tensor([[[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]]))


def test_the_excess_is_a_difference_of_risks_over_visible_tokens() -> None:
    exact = objective(masked=True)
    assert exact.hidden is not None
    assert exact.gamma is not None
    visible = exact.gamma.masked_fill(exact.hidden, -torch.inf)
    assert (visible.amax(-1) < exact.gamma.amax(-1)).any()
    W = draw_W()
    least = torch.nn.functional.softplus(-visible.amax(-1)).mean(-1)
    mantissa, exponent = exact.excess(W)
    torch.testing.assert_close(mantissa * exponent.exp() / N, exact.value(W) - least, rtol=1e-12, atol=0)


@pytest.mark.parametrize("logit", [0.0, 2.5, 4.0])
def test_the_excess_of_a_small_drop_has_the_mean_slope(logit) -> None:
    """One sequence with scores one and zero: the margin is p = sigmoid(logit), the drop 1 - p = 0.5, 0.08 and 0.02."""
    data = TokenData(np.array([[[1.0], [0.0]]]), [[1.0]], [1])
    mantissa, exponent = Objective.from_data(data, [1.0]).excess(torch.full((1, 1, 1), logit, dtype=torch.float64))
    expected = np.log1p(np.exp(-1 / (1 + np.exp(-logit)))) - np.log1p(np.exp(-1.0))
    # A difference of numbers below one, of size 0.005 and more.
    assert mantissa.item() * np.exp(exponent.item()) == pytest.approx(expected, rel=1e-13)
