"""exact_attention with dropout, grouped heads and autocast, as scaled_dot_product_attention has them."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from attsvm.functional import exact_attention


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


Q, K, V = draw(2, 4, 5, 4), draw(2, 4, 7, 4, seed=1), draw(2, 4, 7, 6, seed=2)
VISIBLE = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(3)) > 0.3
MASKS = {"none": {}, "boolean": {"attn_mask": VISIBLE}, "additive": {"attn_mask": draw(5, 7, seed=4)}}
chunks = pytest.mark.parametrize("chunk", [None, 2])


def gradients(function, inputs: tuple[torch.Tensor, ...], **options) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    leaves = tuple(one.clone().requires_grad_() for one in inputs)
    out = function(*leaves, **options)
    return out.detach(), *torch.autograd.grad((out * draw(*out.shape, seed=5, dtype=out.dtype)).sum(), leaves)


@chunks
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
def test_dropout_is_that_of_torch_of_the_same_seed(rate: float, mask: str, chunk: int | None) -> None:
    options = MASKS[mask] | {"dropout_p": rate}
    mine = gradients(exact_attention, (Q, K, V), query_chunk=chunk, **options)
    theirs = gradients(scaled_dot_product_attention, (Q, K, V), **options)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-13)
    if rate < 1.0:
        whole = gradients(exact_attention, (Q, K, V), **MASKS[mask])
        assert not torch.equal(mine[0], whole[0])


def test_dropout_keeps_the_expectation() -> None:
    torch.manual_seed(0)
    out = exact_attention(Q.expand(4000, *Q.shape), K, V, dropout_p=0.25)
    plain = exact_attention(Q, K, V)
    # The variance of a draw is p / (1 - p) times the sum of P^2 V^2; five deviations of the mean of 4000.
    variance = 0.25 / 0.75 * exact_attention(Q, K, torch.eye(7).double()).square() @ V.square()
    assert ((out.mean(0) - plain).abs() <= 5 * (variance / 4000).sqrt()).all()


@chunks
def test_dropout_keeps_saturated_gradients_exact(chunk: int | None) -> None:
    """One key is 60 ahead of the others: torch's gradient along it is rounding, ours that of float64."""
    query, key = torch.zeros(1, 6, 4), draw(1, 5, 4, seed=1, dtype=torch.float32)
    key[0, 0], query[..., 0] = 0.0, 30.0
    key[0, 0, 0], key[0, 1:, 0] = 2.0, 0.0
    value = draw(1, 5, 3, seed=2, dtype=torch.float32)
    options = {"dropout_p": 0.3, "scale": 1.0}
    mine = gradients(exact_attention, (query, key, value), query_chunk=chunk, **options)
    wide = gradients(exact_attention, (query.double(), key.double(), value.double()), **options)
    theirs = gradients(scaled_dot_product_attention, (query, key, value), **options)
    # Scores of size 60 are rounded, and a few sums of products of which each is a part of the largest.
    size = wide[1].abs().amax()
    assert 0 < size < 1e-20
    assert ((mine[1] - wide[1]).abs().amax() / size) < 64 * 60 * torch.finfo(torch.float32).eps
    assert ((theirs[1] - wide[1]).abs().amax() / size) > 0.3


@chunks
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_grouped_heads_as_torch(heads: int, mask: str, chunk: int | None) -> None:
    inputs = (Q, K[:, :heads], V[:, :heads])
    options = MASKS[mask] | {"enable_gqa": True}
    mine = gradients(exact_attention, inputs, query_chunk=chunk, **options)
    theirs = gradients(scaled_dot_product_attention, inputs, **options)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-13)
    key = inputs[1].requires_grad_()  # along random directions: entry by entry it has just been compared
    assert gradcheck(lambda k: exact_attention(Q, k, V[:, :heads], query_chunk=chunk, **options), key, fast_mode=True)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@chunks
@pytest.mark.slow
def test_options_compile_in_one_graph(chunk: int | None) -> None:
    torch.compiler.reset()

    def attend(q: torch.Tensor) -> torch.Tensor:
        return exact_attention(q, K[:, :2], V[:, :2], None, 0.4, True, enable_gqa=True, query_chunk=chunk)

    q = Q.clone().requires_grad_()
    out = torch.compile(attend, backend="aot_eager", fullgraph=True)(q)
    (slope,) = torch.autograd.grad(out.sum(), q)
    assert slope.isfinite().all()
    assert (out[:, :, 0] == 0).any(-1).any()  # the one visible key of the first query is dropped for some heads


@chunks
def test_autocast_casts_as_torch(chunk: int | None) -> None:
    narrow = [one.float() for one in (Q, K, V)]
    mask = MASKS["additive"]["attn_mask"].float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mine, theirs = (
            gradients(function, tuple(narrow), attn_mask=mask, dropout_p=0.2, **extra)
            for function, extra in ((exact_attention, {"query_chunk": chunk}), (scaled_dot_product_attention, {}))
        )
        assert exact_attention(Q, K, V, query_chunk=chunk).dtype == torch.float64
    assert [one.dtype for one in mine] == [one.dtype for one in theirs] == [torch.bfloat16, *[torch.float32] * 3]
    # Products of bfloat16 numbers of size three, rounded to 2^-8 of it at most a few times on the way.
    torch.testing.assert_close(mine, theirs, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exact_attention(Q, K, V, None, True), "^dropout_p is True"),
        (lambda: exact_attention(Q, K, V, dropout_p=1.5), "^dropout_p is 1.5"),
        (lambda: exact_attention(Q, K[:, :3], V, enable_gqa=True), r"^key has shape \(2, 3, 7, 4\) with enable_gqa"),
        (lambda: exact_attention(Q[0, 0], K[0, 0], V[0, 0], enable_gqa=True), "^key has shape"),
    ],
)
def test_bad_options_are_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
