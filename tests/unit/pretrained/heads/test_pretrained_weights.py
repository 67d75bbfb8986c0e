"""Models that hold a matrix a head, as TransformerLens' do, and objects that hold a model, as nnsight's do."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from attsvm.pretrained import attribute, attribute_logit, extract_head, extract_heads, selection_report
from attsvm_pretrained.activations.maps import Place
from attsvm_pretrained.activations.tracing import record
from attsvm_pretrained.activations.weights import explain_weights
from attsvm_pretrained.inspection.survey import Survey
from attsvm_pretrained.inspection.unfinished import ResumeFile
from pretrained_models import batch, tiny

B, T, D, HEADS, WIDTH = 3, 7, 12, 4, 6


class HookPoint(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class HookedAttention(nn.Module):
    """The shapes, names and order of operations of TransformerLens' attention; grouped keys and rotary on demand."""

    def __init__(self, groups: int, rotary: bool) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(torch.randn(HEADS, D, WIDTH))
        self.b_Q = nn.Parameter(torch.randn(HEADS, WIDTH))
        self._W_K = nn.Parameter(torch.randn(groups, D, WIDTH))
        self._b_K = nn.Parameter(torch.randn(groups, WIDTH))
        self.repeats, self.rotary = HEADS // groups, rotary
        self.hook_q, self.hook_k, self.hook_attn_scores, self.hook_pattern = (HookPoint() for _ in range(4))
        self.register_buffer("IGNORE", torch.tensor(-torch.inf))
        self.visible = torch.ones(T, T, dtype=torch.bool).tril()

    @property
    def W_K(self) -> torch.Tensor:
        return self._W_K.repeat_interleave(self.repeats, dim=0)

    @property
    def b_K(self) -> torch.Tensor:
        return self._b_K.repeat_interleave(self.repeats, dim=0)

    def _turn(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(T)[:, None] / 10.0 ** torch.arange(2)  # (T, pairs)
        pairs = torch.view_as_complex(x[..., :4].unflatten(-1, (2, 2)).contiguous())
        rotation = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[:, None]).flatten(-2)
        return torch.cat([rotation, x[..., 4:]], dim=-1)

    def forward(self, query_input: torch.Tensor, key_input: torch.Tensor, value_input: torch.Tensor) -> torch.Tensor:
        q = self.hook_q(torch.einsum("btd,hdw->bthw", query_input, self.W_Q) + self.b_Q)
        k = self.hook_k(torch.einsum("btd,hdw->bthw", key_input, self.W_K) + self.b_K)
        if self.rotary:
            q, k = self._turn(q), self._turn(k)
        scores = (q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1)) / math.sqrt(WIDTH)
        scores = torch.where(self.visible, scores, self.IGNORE)
        pattern = self.hook_pattern(torch.softmax(self.hook_attn_scores(scores), dim=-1))
        return (pattern @ value_input[:, None]).mean(dim=1)


class HookedModel(nn.Module):
    """Two blocks behind a normalisation, with a configuration under the name that TransformerLens gives it."""

    def __init__(self, groups: int = HEADS, *, rotary: bool = False) -> None:
        super().__init__()
        self.cfg = SimpleNamespace(n_layers=2)
        self.embed = nn.Embedding(20, D)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"ln1": nn.LayerNorm(D), "attn": HookedAttention(groups, rotary)}) for _ in range(2)
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        residual = self.embed(input)
        for block in self.blocks:
            assert isinstance(block, nn.ModuleDict)
            x = block["ln1"](residual)
            residual = residual + block["attn"](x, x, x)
        return residual


@pytest.mark.parametrize(("groups", "rotary"), [(4, False), (2, False), (4, True), (2, True)])
def test_heads_by_the_tensors_of_a_module(groups: int, rotary: bool) -> None:
    torch.manual_seed(0)
    model = HookedModel(groups, rotary=rotary)
    tokens = torch.randint(0, 20, (B, T))
    patterns = []
    for block in model.blocks:
        assert isinstance(block, nn.ModuleDict)
        block["attn"].hook_pattern.register_forward_hook(lambda module, args, out: patterns.append(out))
    heads = list(extract_heads(model, {"input": tokens}))
    assert [(head.layer, head.head) for head in heads] == [(layer, head) for layer in range(2) for head in range(4)]
    for head in heads:
        assert head.error <= 1e-5  # scores are of size 20, and wrong by some roundings of that
        assert head.rotary == rotary
        assert head.self_attention
        np.testing.assert_array_equal(head.ids, tokens.numpy())
        theirs = patterns[-2 + head.layer].detach().double().numpy()[:, head.head]
        np.testing.assert_allclose(head.attention(), theirs[head.sequence, head.position], atol=1e-5)
        if not rotary:
            attention = model.blocks[head.layer].attn
            K, Q = attention.W_K[head.head].double(), attention.W_Q[head.head].double()
            W = head.W[:, :-1] * math.sqrt(WIDTH)
            np.testing.assert_allclose(W, (K @ Q.T).detach().numpy(), rtol=1e-12)


class SharedKeys(HookedAttention):
    """One key for all heads, and one argument."""

    def __init__(self) -> None:
        super().__init__(1, rotary=False)
        self.repeats = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, x, x)


class SharedKeysModel(HookedModel):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([SharedKeys()])

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.blocks[0](self.embed(input))


def test_a_key_of_all_heads_and_a_single_argument() -> None:
    torch.manual_seed(0)
    model = SharedKeysModel()
    attention = model.blocks[0]
    assert isinstance(attention, SharedKeys)
    heads = list(extract_heads(model, {"input": torch.randint(0, 20, (B, T))}))
    assert [head.head for head in heads] == [0, 1, 2, 3]
    for head in heads:
        np.testing.assert_array_equal(head.K, attention.W_K[0].detach().double().numpy())
        assert head.places == (Place("blocks.0", 0, WIDTH, rows=False, factor=1.0, kind="weights"),) * 2


class TwoArguments(HookedAttention):
    """States of queries and of keys, each (B, T, d) or with one axis for heads, as `use_split_qkv_input` makes them."""

    def forward(self, query_input: torch.Tensor, key_input: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        sides = []
        for states, weight, bias in ((query_input, self.W_Q, self.b_Q), (key_input, self.W_K, self.b_K)):
            by_head = states[:, :, None] if states.ndim == 3 else states
            by_head = by_head.repeat_interleave(HEADS // by_head.shape[2], dim=2)
            sides.append(torch.einsum("bthd,hdw->bhtw", by_head, weight) + bias[:, None])
        q, k = sides
        return torch.softmax((q @ k.mT / math.sqrt(WIDTH)).masked_fill(~self.visible, -torch.inf), dim=-1)


class TwoArgumentsModel(nn.Module):
    """Attention whose keys read what a second embedding gives, one copy for each of some heads."""

    def __init__(self, copies: int | None, groups: int = HEADS) -> None:
        super().__init__()
        self.cfg = SimpleNamespace(n_layers=1)
        self.copies = copies
        self.queries, self.keys = nn.Embedding(20, D), nn.Embedding(20, D * (copies or 1))
        self.blocks = nn.ModuleList([TwoArguments(groups, rotary=False)])

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        keys = self.keys(input)
        keys = keys if self.copies is None else keys.unflatten(-1, (self.copies, D))
        return self.blocks[0](self.queries(input), keys)


@pytest.mark.parametrize("copies", [None, 1, 2, 4])
def test_keys_read_the_second_argument_by_head(copies: int | None) -> None:
    """A copy for all heads, for each of two groups, or for each head."""
    torch.manual_seed(0)
    model = TwoArgumentsModel(copies, groups=2)
    tokens = torch.randint(0, 20, (B, T))
    keys = model.keys(tokens).detach().double().unflatten(-1, (copies or 1, D)).numpy()
    for head in extract_heads(model, {"input": tokens}):
        assert head.error <= 1e-5
        np.testing.assert_array_equal(head.tokens, keys[:, :, head.head * (copies or 1) // HEADS])


def test_tensors_that_give_only_the_queries_explain_nothing() -> None:
    torch.manual_seed(0)
    call = record(SharedKeysModel(), {"input": torch.randint(0, 20, (B, T))}).calls[0]
    assert explain_weights(call, 1, 0) is not None
    assert explain_weights(replace(call, key=call.key.tanh()), 1, 0) is None


def test_roundings_of_long_vectors_are_no_error() -> None:
    """Queries and keys some 100 long at right angles: products of size one from sums of numbers up to 10,000.

    The first key of every text has length zero, and what float32 may leave depends on the longest.
    """
    torch.manual_seed(0)
    model, tokens = SharedKeysModel(), torch.randint(1, 20, (B, T))
    tokens[:, 0] = 0
    axes, _ = torch.linalg.qr(torch.randn(WIDTH, WIDTH))
    attention = model.blocks[0]
    assert isinstance(attention, SharedKeys)
    with torch.no_grad():
        model.embed.weight[0] = 0.0
        for weight, bias, axis in ((attention.W_Q, attention.b_Q, 0), (attention._W_K, attention._b_K, 1)):
            bias.zero_()
            weight.copy_(30 * torch.randn(len(weight), D, 1) * axes[axis] + 0.2 * weight @ axes[2:].T @ axes[2:])
    heads = list(extract_heads(model, {"input": tokens}))
    assert max(head.error for head in heads) > 1e-5
    assert max(head.rounding for head in heads) == 0.0  # none was read again in float64


def test_a_softmax_in_float32_of_scores_in_float64_is_no_error() -> None:
    """A key bias adds thousands to all scores of a query, which float32 then rounds by a ten-thousandth."""
    torch.manual_seed(0)
    model = SharedKeysModel().double()
    attention = model.blocks[0]
    assert isinstance(attention, SharedKeys)
    with torch.no_grad():
        attention._b_K.mul_(400.0)
    attention.hook_attn_scores.register_forward_hook(lambda module, arguments, scores: scores.float())
    attention.hook_pattern.register_forward_hook(lambda module, arguments, pattern: pattern.double())
    heads = list(extract_heads(model, {"input": torch.randint(0, 20, (B, T))}))
    assert len(heads) == HEADS
    assert max(head.error for head in heads) > 1e-5


def test_only_queries_with_a_choice_in_every_head_are_noted() -> None:
    """The second head lets the first three queries see nothing but themselves."""
    torch.manual_seed(0)
    model, inputs = HookedModel(), {"input": torch.randint(0, 20, (B, T))}
    for block in model.blocks:
        assert isinstance(block, nn.ModuleDict)
        visible = torch.ones(HEADS, T, T, dtype=torch.bool).tril()
        visible[1, :3] = torch.eye(T, dtype=torch.bool)[:3]
        block["attn"].visible = visible
    survey = Survey(model, None, [0, 1], lambda which: inputs, seed=0)
    assert survey.run([range(B)], [0, 1], ResumeFile(None, ""), None, 1.0)
    heads = list(extract_heads(model, inputs, layers=[1]))
    assert [selection_report(head).queries for head in heads] == [B * (T - 1), B * (T - 3), B * (T - 1), B * (T - 1)]
    for head in heads:
        (numbers,) = survey.numbers_of(1, head.head)
        assert numbers.report().queries == B * (T - 3)


def test_an_object_that_holds_a_model() -> None:
    model = tiny("gpt2")
    wrapper = SimpleNamespace(_model=model)
    assert extract_head(wrapper, 1, 2, batch("gpt2")).error == extract_head(model, 1, 2, batch("gpt2")).error
    assert attribute(wrapper, 1, 2, batch("gpt2")).margin == attribute(model, 1, 2, batch("gpt2")).margin


def test_attribution_of_tensors_by_head_is_refused() -> None:
    """A HookedTransformer projects by einsum, which leaves no module between the residual stream and the queries."""
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="a head whose projections are modules was expected"):
        attribute(HookedModel(), 0, 1, {"input": torch.randint(0, 20, (B, T))})
    with pytest.raises(ValueError, match="HookedModel has no output embedding"):
        attribute_logit(HookedModel(), {"input": torch.randint(0, 20, (B, T))}, answer=1)
