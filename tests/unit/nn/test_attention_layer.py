"""The Attention module and the heads."""

import numpy as np
import pytest
import torch

from attsvm import Attention, TokenData, train
from attsvm.nn.heads import LambdaHead, LinearHead, ReLUHead, as_head, predict


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Z = draw(2, 3, 4, 5), draw(2, 3, 6, seed=1)


@pytest.mark.parametrize("rank", [None, 2])
def test_forward_is_the_formula(rank):
    layer = Attention(5, 6, rank=rank, dtype=torch.float64)
    logits = torch.einsum("bntd,de,bne->bnt", X, layer.W, Z)
    expected = torch.einsum("bnt,bntd->bnd", torch.softmax(logits, -1), X)
    torch.testing.assert_close(layer(X, Z), expected, rtol=0, atol=1e-14)
    values = draw(2, 3, 4, 2, seed=2)
    assert layer(X, Z, values=values).shape == (2, 3, 2)
    assert {name for name, _ in layer.named_parameters()} == ({"weight"} if rank is None else {"K", "Q"})


def test_the_layer_takes_torchs_default_dtype():
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            assert {p.dtype for p in Attention(3, rank=2).parameters()} == {dtype}
            # One of several modules of a model: no cast is needed between them.
            model = torch.nn.Linear(4, 3)
            assert Attention(3)(model(torch.ones(2, 5, 4)), torch.ones(2, 3)).dtype == dtype
    finally:
        torch.set_default_dtype(before)


def test_hidden_tokens_get_no_attention():
    mask = torch.ones(2, 3, 4, dtype=torch.bool)
    mask[..., 2] = False
    assert (Attention(5, 6, dtype=torch.float64).probabilities(X, Z, mask)[..., 2] == 0).all()


def test_a_torch_loop_over_the_module_is_train():
    data = TokenData(X[0], Z[0], [1, -1, 1])
    v = draw(5, seed=3)
    layer, head = Attention(5, 6, dtype=torch.float64), LinearHead(v)
    torch.nn.init.zeros_(layer.weight)
    for _ in range(30):
        loss = torch.nn.functional.softplus(-data.labels * head(layer(data.tokens, data.queries))).mean()
        (grad,) = torch.autograd.grad(loss, layer.weight)
        with torch.no_grad():
            layer.weight -= 0.1 * grad / grad.norm()
    torch.testing.assert_close(layer.weight.detach(), train(data, v, steps=30).W[-1], rtol=0, atol=1e-11)


def test_batched_heads_equal_single_heads():
    outputs = draw(3, 4, 5)
    V, v, w = draw(3, 5, 7), draw(3, 5, seed=1), draw(3, 7, seed=2)
    for batched, single in [
        (LinearHead(v), lambda j: LinearHead(v[j])),
        (LambdaHead(v, 0.3), lambda j: LambdaHead(v[j], 0.3)),
        (ReLUHead(V, w), lambda j: ReLUHead(V[j], w[j])),
    ]:
        loop = torch.stack([single(j)(outputs[j]) for j in range(3)])
        torch.testing.assert_close(batched(outputs), loop, rtol=0, atol=1e-13)


def test_lambda_head_is_concave_quadratic():
    x = draw(4, 5)
    v = draw(5, seed=1)
    torch.testing.assert_close(LambdaHead(v, 2.0)(x), x @ v - 2 * x.square().sum(-1))


def test_a_trailing_dimension_of_one_is_dropped():
    network = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)).double()
    assert predict(network, draw(2, 3, 5)).shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Attention(0), "d is 0"),
        (lambda: Attention(2.5), "d is 2.5"),  # pyright: ignore[reportArgumentType]
        (lambda: Attention(5)(np.ones((2, 3, 5)), Z), "tokens has type ndarray"),
        (lambda: Attention(5)(X, Z), "do not fit"),
        (lambda: Attention(5, 6)(X, Z), "tokens has dtype torch.float64; torch.float32"),
        (lambda: Attention(5, 6, dtype=torch.float64)(X, Z, torch.ones(2, 3, 4)), "mask is torch.float32"),
        (lambda: LinearHead(1.0), "v is a scalar"),
        (lambda: LinearHead([1.0, np.inf]), "contains NaN"),
        (lambda: LambdaHead(1.0, 1.0), "v is a scalar"),
        (lambda: ReLUHead(np.ones(3)), r"V has shape \(3,\)"),
        (lambda: ReLUHead(np.ones((3, 2)), np.ones(3)), r"v has shape \(3,\)"),
        (lambda: as_head("v"), "head has type str"),
    ],
)
def test_bad_input_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
