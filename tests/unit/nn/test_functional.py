"""exact_softmax, exact_attention and exact_cross_entropy as drop-in torch functions."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from attsvm.functional import attention, exact_attention, exact_cross_entropy, exact_softmax, softmax

# torch's own forward-mode differentiation still compiles helpers with the deprecated torch.jit.script.
forward_mode = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def draw(*shape, seed=0, scale=1.0, grad=True):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).requires_grad_(grad)


@forward_mode
@pytest.mark.parametrize("dim", [-1, 0, 1, -3])
def test_softmax_has_the_values_and_derivatives_of_torch(dim):
    scores = draw(3, 4, 5)
    assert torch.equal(exact_softmax(scores, dim), torch.softmax(scores, dim))
    assert gradcheck(lambda a: exact_softmax(a, dim), scores, check_forward_ad=True)
    assert gradgradcheck(lambda a: exact_softmax(a, dim), scores)


@pytest.mark.parametrize("dim", [-1, 0])
def test_what_the_compiler_fuses_is_softmax_with_the_same_gradient(dim):
    """The composed form by itself, at scores of order one and where all but one probability is below rounding."""
    for scale in (1.0, 60.0):
        scores, weights = draw(4, 5, scale=scale), draw(4, 5, seed=1, grad=False)
        mine = softmax._composed_softmax(scores, dim)
        torch.testing.assert_close(mine, torch.softmax(scores, dim), rtol=1e-13, atol=1e-16)
        (grad,) = torch.autograd.grad((mine * weights).sum(), scores)
        (expected,) = torch.autograd.grad((exact_softmax(scores, dim) * weights).sum(), scores)
        torch.testing.assert_close(grad, expected, rtol=1e-12, atol=0)


def test_softmax_hides_entries_at_minus_infinity():
    scores = draw(2, 4).detach()
    scores[0, 1] = -torch.inf
    scores.requires_grad_()
    (grad,) = torch.autograd.grad((exact_softmax(scores) * draw(2, 4, seed=1, grad=False)).sum(), scores)
    assert grad[0, 1] == 0
    assert grad.isfinite().all()


@forward_mode
def test_softmax_under_function_transforms_equals_a_loop():
    scores, weights = draw(6, 5, grad=False), draw(5, seed=1, grad=False)

    def objective(row):
        return (exact_softmax(row, 0) * weights).sum() ** 2

    loop = torch.stack([torch.func.grad(objective)(row) for row in scores])
    torch.testing.assert_close(torch.vmap(torch.func.grad(objective))(scores), loop, rtol=0, atol=1e-15)
    hessians = torch.vmap(torch.func.hessian(objective))(scores)
    plain = torch.vmap(torch.func.hessian(lambda row: (torch.softmax(row, 0) * weights).sum() ** 2))(scores)
    torch.testing.assert_close(hessians, plain, rtol=0, atol=1e-14)


def attention_cases():
    mask = torch.rand(5, 7, generator=torch.Generator().manual_seed(3)) > 0.4
    mask[:, 0] = True
    blind = mask.clone()
    blind[2] = False
    additive = draw(2, 1, 5, 7, seed=4, grad=False)
    return {
        "plain": {},
        "scale": {"scale": 0.3},
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": mask},
        "blind row": {"attn_mask": blind},
        "additive": {"attn_mask": additive},
        "broadcast": {"attn_mask": mask[:1]},
    }


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("name", attention_cases())
def test_attention_agrees_with_torch(name, chunk):
    options = attention_cases()[name]
    q, k, v = draw(2, 3, 5, 4), draw(2, 3, 7, 4, seed=1), draw(2, 3, 7, 6, seed=2)
    mine = exact_attention(q, k, v, **options, query_chunk=chunk)
    theirs = scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-13)
    weight = draw(2, 3, 5, 6, seed=5, grad=False)
    mine, theirs = (torch.autograd.grad((out * weight).sum(), (q, k, v)) for out in (mine, theirs))
    for ours, reference in zip(mine, theirs, strict=True):
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-13)


@pytest.mark.parametrize("chunk", [None, 2])
def test_attention_is_twice_differentiable(chunk):
    q, k, v, bias = draw(3, 2), draw(4, 2, seed=1), draw(4, 2, seed=2), draw(3, 4, seed=3)

    def attend(q, k, v, bias):
        return exact_attention(q, k, v, attn_mask=bias, query_chunk=chunk)

    assert gradcheck(attend, (q, k, v, bias))
    assert gradgradcheck(attend, (q, k, v, bias))


def test_chunks_are_used_for_long_sequences_and_change_nothing(monkeypatch):
    q, k, v = draw(2, 9, 4), draw(2, 9, 4, seed=1), draw(2, 9, 4, seed=2)
    whole = exact_attention(q, k, v, is_causal=True)
    monkeypatch.setattr(attention, "CHUNK_ENTRIES", 40)
    by_chunks = exact_attention(q, k, v, is_causal=True)
    assert by_chunks.grad_fn is not None
    assert "Chunked" in type(by_chunks.grad_fn).__name__
    torch.testing.assert_close(by_chunks, whole, rtol=0, atol=1e-15)


@pytest.mark.parametrize("chunk", [None, 2])
def test_attention_vmaps_over_heads(chunk):
    q, k, v = draw(3, 5, 4, grad=False), draw(3, 6, 4, seed=1, grad=False), draw(3, 6, 2, seed=2, grad=False)

    def grad_of_query(q, k, v):
        return torch.func.grad(lambda q: exact_attention(q, k, v, query_chunk=chunk).square().sum())(q)

    loop = torch.stack([grad_of_query(*args) for args in zip(q, k, v, strict=True)])
    torch.testing.assert_close(torch.vmap(grad_of_query)(q, k, v), loop, rtol=0, atol=1e-14)


@forward_mode
def test_cross_entropy_has_the_values_and_derivatives_of_torch():
    logits, target = draw(6, 5, scale=3.0), torch.tensor([0, 1, 2, 3, 4, 0])
    for reduction in ("mean", "sum", "none"):
        torch.testing.assert_close(
            exact_cross_entropy(logits, target, reduction),
            cross_entropy(logits, target, reduction=reduction),
            rtol=1e-14,
            atol=1e-15,
        )
    assert gradcheck(lambda a: exact_cross_entropy(a, target, "none"), logits, check_forward_ad=True)
    assert gradgradcheck(lambda a: exact_cross_entropy(a, target, "none"), logits)
    per_row = torch.vmap(torch.func.grad(lambda a, b: exact_cross_entropy(a, b)))(logits.detach(), target)
    torch.testing.assert_close(per_row, torch.autograd.grad(cross_entropy(logits, target) * 6, logits)[0])


def test_cross_entropy_keeps_a_loss_below_rounding():
    loss = exact_cross_entropy(torch.tensor([[50.0, 0.0, -1.0]]).double(), torch.tensor([0]))
    expected = torch.log1p(torch.exp(torch.tensor(-50.0).double()) + torch.exp(torch.tensor(-51.0).double()))
    torch.testing.assert_close(loss, expected, rtol=1e-15, atol=0)
    assert exact_cross_entropy(torch.tensor([[0.0, 900.0]]).double(), torch.tensor([0])) == 900


@forward_mode
# The tracer itself builds the object that this warning is about.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("scale", [1.0, 200.0])
@pytest.mark.parametrize(
    "function",
    [
        lambda a: exact_softmax(a)[:, 0].sum(),
        lambda a: exact_cross_entropy(a, torch.tensor([0, 1, 2, 3])),
        lambda a: exact_attention(a, a, a, is_causal=True).square().sum(),
        lambda a: exact_attention(a, a, a, query_chunk=3).square().sum(),
    ],
    ids=["softmax", "cross-entropy", "attention", "chunked"],
)
@pytest.mark.slow
def test_the_compiled_graph_has_the_same_exact_gradient(function, scale):
    torch.compiler.reset()
    scores = draw(4, 5, scale=scale)
    (eager,) = torch.autograd.grad(function(scores), scores)
    (compiled,) = torch.autograd.grad(torch.compile(function, backend="aot_eager", fullgraph=True)(scores), scores)
    # Entry by entry relative to its row: saturated rows keep every digit, however small they are.
    size = eager.abs().amax(-1, keepdim=True)
    assert (size > 0).all()
    torch.testing.assert_close(compiled / size, eager / size, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: exact_softmax(torch.ones(3, dtype=torch.int64)), "scores"),
        (lambda: exact_softmax(torch.ones(3), 1), "dim"),
        (lambda: exact_attention(torch.ones(3), torch.ones(3, 2), torch.ones(3, 2)), "query"),
        (lambda: exact_attention(torch.ones(3, 4), torch.ones(3, 2), torch.ones(3, 2)), "do not fit"),
        (
            lambda: exact_attention(
                torch.ones(3, 2), torch.ones(3, 2), torch.ones(3, 2), torch.ones(3, 3) > 0, is_causal=True
            ),
            "attn_mask",
        ),
        (lambda: exact_attention(torch.ones(3, 2), torch.ones(3, 2), torch.ones(3, 2), torch.ones(2, 3)), "attn_mask"),
        (lambda: exact_attention(torch.ones(3, 2), torch.ones(3, 2), torch.ones(3, 2), query_chunk=0), "query_chunk"),
        (lambda: exact_cross_entropy(torch.ones(3, 2), torch.ones(3)), "target"),
        (lambda: exact_cross_entropy(torch.ones(3, 2), torch.zeros(3, dtype=torch.int64), "median"), "reduction"),
    ],
)
def test_bad_input_is_named(call, word):
    with pytest.raises(ValueError, match=word):
        call()


LONG = """
import resource, torch
from attsvm.functional import exact_attention
torch.set_num_threads(1)
q, k, v = (torch.randn(1, 4, 4096, 64, requires_grad=True) for _ in range(3))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
exact_attention(q, k, v, is_causal=True).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts kilobytes on Linux only")
def test_long_sequences_never_hold_the_scores() -> None:
    process = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=True)
    scores = 4 * 4096**2 * 4
    # About ten chunks of a million entries, 4 MB each, and a handful of tensors like q, 4 MB each, live at a time.
    assert int(process.stdout) * 1024 < scores / 2


def test_a_row_that_an_additive_mask_hides_whole_gives_zeros():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    visible = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])
    additive_mask = torch.zeros(3, 3, dtype=torch.float64).masked_fill(~visible, -torch.inf)
    out = exact_attention(query, key, value, attn_mask=additive_mask)
    assert (out[:, 1] == 0).all()
    torch.testing.assert_close(out, exact_attention(query, key, value, attn_mask=visible))
