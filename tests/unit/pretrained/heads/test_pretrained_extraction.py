"""Heads extracted from every family of models agree with the models' own attention, padding and masks included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
import transformers as tf
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attsvm.pretrained import (
    AttentionHead,
    example_model,
    extract_head,
    extract_heads,
    head_types,
    rope_lift,
    selection_report,
)
from attsvm_pretrained.activations.maps import ColumnBlock, _parallel, affine
from attsvm_pretrained.activations.recording import AttentionCall, ModuleCall, Stream
from attsvm_pretrained.activations.relative import relative_forms
from attsvm_pretrained.activations.rotation import relative_difference
from attsvm_pretrained.activations.sources import explain, explain_vectors
from attsvm_pretrained.activations.tokens import read_mask
from attsvm_pretrained.activations.tracing import ScoreTrace, Tracer, record, tracing
from pretrained_models import CONFIGURATIONS, SENTENCES, batch, minilm, tiny

FAMILIES_WITH_HEADS = [family for family in CONFIGURATIONS if family != "resnet"]
ROTARY = {
    "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "olmo2", "cohere", "phi", "gpt-neox", "gpt-oss", "gptj",
    "falcon", "falcon-groups", "deepseek-v2", "deepseek-v3", "persimmon",
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES_WITH_HEADS)
def test_heads_agree_with_the_model(family: str) -> None:
    model, inputs = tiny(family), batch(family)
    own = _eager_attentions(model, inputs)
    result = list(extract_heads(model, inputs))
    assert len(result) == sum(layer.shape[1] for layer in own)
    for head in result:
        assert head.error <= 1e-5
        assert head.rotary == (family in ROTARY)
        assert head.self_attention == ("EncDec" not in head.name and "encoder_attn" not in head.name)
        np.testing.assert_allclose(head.attention(), head.probabilities, atol=1e-5)
        if not family.startswith("falcon"):  # asked for attentions, it adds a boolean mask or ALiBi twice
            null = head.sink is not None  # stands before the tokens of which the model returns the attention
            theirs = own[head.layer][:, head.head].double().numpy()[head.sequence, head.position - null]
            np.testing.assert_allclose(head.attention()[:, int(null) :], theirs, atol=1e-5)
        lifted = rope_lift(head)
        _assert_same_up_to_a_shift(lifted.problem().scores(lifted.W), head)
        if not head.rotary:
            _assert_same_up_to_a_shift(head.problem().scores(head.W), head)


def _assert_same_up_to_a_shift(scores: Any, head: AttentionHead) -> None:
    """Scores of a problem are the head's, additive terms included, but for one number a query and rounding."""
    head_scores = head.scores()
    difference = np.where(head.mask, np.where(head.mask, scores, 0.0) - np.where(head.mask, head_scores, 0.0), np.nan)
    size = 1.0 + np.abs(head_scores[head.mask]).max()
    assert (np.nanmax(difference, axis=1) - np.nanmin(difference, axis=1)).max() <= 1e-12 * size


def _eager_attentions(model: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Attention of every layer as the model itself returns it; an encoder-decoder's in the order of the calls."""
    before = model.config._attn_implementation
    model.eval().set_attn_implementation("eager")
    with torch.no_grad():
        out = model(**inputs, output_attentions=True)
    model.set_attn_implementation(before)
    if "encoder_attentions" in out:
        pairs = zip(out.decoder_attentions, out.cross_attentions, strict=True)
        return [*out.encoder_attentions, *(layer for pair in pairs for layer in pair)]
    return list(out.attentions)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "mistral", "qwen2", "t5"])
def test_padding_changes_nothing(family: str) -> None:
    """A sequence gives the same tokens, scores and attention alone and padded in a batch."""
    model, inputs = tiny(family), batch(family)
    for head in extract_heads(model, inputs, heads=[1]):
        if not head.self_attention:
            continue
        row = head.sequence == 1
        decoder = head.name.startswith("decoder")
        alone_inputs = {
            name: value[1:2] if name == "decoder_input_ids" else value[1:2, :6] for name, value in inputs.items()
        }
        single = extract_head(model, head.layer, 1, alone_inputs)
        length = 5 if decoder else 6
        assert single.mask.shape == (length, length)
        assert row.sum() == length
        padded = head.take(row)
        assert not padded.mask[:, length:].any()
        # Float32 sums in another order: a few roundings of activations of size 10 to 100.
        np.testing.assert_allclose(padded.tokens[0, :length], single.tokens[0], rtol=1e-4, atol=1e-3)
        np.testing.assert_array_equal(padded.mask[:, :length], single.mask)
        np.testing.assert_allclose(padded.probabilities[:, :length], single.probabilities, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_padding_neither_asks_nor_is_seen(family: str) -> None:
    inputs = batch(family)
    head = extract_head(tiny(family), 1, 0, inputs)
    visible = inputs["attention_mask"].bool().numpy()
    assert len(head.queries) == visible.sum()
    assert visible[head.sequence, head.position].all()
    assert not (head.mask & ~visible[head.sequence]).any()


@pytest.mark.parametrize(("family", "window"), [("gpt2", 99), ("llama", 99), ("mistral", 3)])
def test_causal_and_sliding_masks(family: str, window: int) -> None:
    inputs = batch(family)
    head = extract_head(tiny(family), 0, 2, inputs)
    offset = head.position[:, None] - np.arange(head.mask.shape[1])
    visible = inputs["attention_mask"].bool().numpy()[head.sequence]
    np.testing.assert_array_equal(head.mask, visible & (offset >= 0) & (offset < window))


def test_grouped_query_heads_share_keys() -> None:
    heads = list(extract_heads(tiny("llama"), batch("llama"), layers=[0]))
    np.testing.assert_array_equal(heads[0].K, heads[1].K)
    assert np.abs(heads[1].K - heads[2].K).max() > 0.1
    assert heads[0].tokens is heads[3].tokens


def test_scale_options_of_gpt2() -> None:
    """Without scaling by width, layer k is divided by k + 1 alone: W is the weights' product over k + 1."""
    model = tiny("gpt2-scales")
    for layer in (0, 1):
        head = extract_head(model, layer, 3, batch("gpt2-scales"))
        weight, bias = model.h[layer].attn.c_attn.weight.double(), model.h[layer].attn.c_attn.bias.double()
        query = torch.cat([weight[:, 24:32], bias[None, 24:32]])
        np.testing.assert_allclose(head.W, (weight[:, 56:64] @ query.T).detach().numpy() / (layer + 1), rtol=1e-12)


def test_key_bias_counts_under_rotary_positions_only() -> None:
    assert extract_head(tiny("qwen2"), 0, 0, batch("qwen2")).tokens.shape[2] == 33
    assert extract_head(tiny("bert"), 0, 0, batch("bert")).tokens.shape[2] == 32


def test_query_key_norm_is_divided_out() -> None:
    """Tokens of Qwen3's heads are normalised keys, so their mean square is one and W is the product of the gains."""
    model = tiny("qwen3")
    head = extract_head(model, 0, 1, batch("qwen3"))
    assert head.normed
    assert "query/key norm" in repr(head)
    np.testing.assert_allclose(np.square(head.queries).mean(axis=1), 1.0, rtol=1e-4)
    attention = model.layers[0].self_attn
    np.testing.assert_allclose(np.diag(head.K), attention.k_norm.weight.detach().numpy(), rtol=1e-6)


def test_position_bias_of_t5_is_an_additive_term() -> None:
    head = extract_head(tiny("t5"), 1, 0, batch("t5"))
    assert head.bias is not None
    assert np.abs(head.bias).max() > 0.1
    assert not head.bias[~head.mask].any()


def test_a_null_token_gets_what_the_others_lack() -> None:
    """gpt-oss: the softmax of scores and sink, written by hand, and a head that attends to nothing."""
    model = tiny("gpt-oss")
    with torch.no_grad():
        model.layers[0].self_attn.sinks[2] = 50.0
    head = extract_head(model, 0, 2, batch("gpt-oss"))
    assert head.sink == 50.0
    assert not head.tokens[:, 0].any()
    assert head.ids is not None
    assert (head.ids[:, 0] == -1).all()
    np.testing.assert_array_equal(head.ids[:, 1:], batch("gpt-oss")["input_ids"].numpy())
    scores = np.where(head.mask, head.scores(), -np.inf)
    np.testing.assert_array_equal(scores[:, 0], 50.0)
    by_hand = np.exp(scores[:, 1:]).sum(axis=1)
    np.testing.assert_allclose(head.probabilities[:, 0], np.exp(50.0) / (np.exp(50.0) + by_hand), atol=1e-6)
    assert (head.selected == 0).all()
    assert (head.query_place > 0).all()
    assert "100 % of queries attend most to the null token" in selection_report(head).sentence
    types = head_types(head, draws=4)
    assert types.scores["null"].score > 0.99
    assert types.scores["first"].score < 0.01


def test_a_soft_cap_keeps_order_and_selection() -> None:
    """A cap that bites: the softmax of the scores alone is far off, and its largest is still the largest."""
    model = tiny("gemma2")
    for layer in model.layers:
        layer.self_attn.attn_logit_softcapping = 0.1
    head = extract_head(model, 1, 1, batch("gemma2"))
    assert head.softcap == 0.1
    scores = np.where(head.mask, head.scores(), -np.inf)
    assert np.abs(scores[head.mask]).max() > 0.1
    assert np.abs(replace(head, softcap=None).attention() - head.probabilities).max() > 1e-3
    # Where the two largest scores are further apart than float32 tells under the cap.
    clear = np.diff(np.sort(scores, axis=1)[:, -2:], axis=1)[:, 0] > 1e-3
    assert clear.sum() > 5
    np.testing.assert_array_equal(head.selected[clear], scores.argmax(axis=1)[clear])


@pytest.mark.parametrize("family", ["bloom", "mpt", "falcon", "falcon-alibi", "gptj", "gpt-neo", "mpnet", "openai-gpt"])
def test_a_traced_model_computes_what_it_always_does(family: str) -> None:
    model, inputs = tiny(family).eval(), batch(family)
    with torch.no_grad():
        own = model(**inputs).last_hidden_state
        with tracing(model, lambda index, path: True) as recorder:
            trace_output = model(**inputs).last_hidden_state
    assert len(recorder.calls) == 2
    visible = inputs["attention_mask"].bool()
    # A fused kernel sums in another order: some roundings of states of size 10.
    torch.testing.assert_close(trace_output[visible], own[visible], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["deepseek-v2", "deepseek-v3"])
def test_latent_attention_has_the_absorbed_matrix(family: str) -> None:
    """W over the latent is W_UK W_UQ^T of the weights; the rotary part reads the hidden state, alike for all heads."""
    model = tiny(family)
    heads = list(extract_heads(model, batch(family), layers=[1]))
    attention = model.layers[1].self_attn
    up = attention.kv_b_proj.weight.detach().double().reshape(4, 14, 10)[:, :6]  # (heads, nope, latent)
    projection = attention.q_b_proj if family == "deepseek-v2" else attention.q_proj
    query_map = projection.weight.detach().double().reshape(4, 10, -1)[:, :6]  # (heads, nope, d)
    for head in heads:
        assert head.self_attention
        assert head.tokens.shape[2] == 10 + 32
        absorption = up[head.head].T @ query_map[head.head] * attention.scaling
        W = head.K @ head.Q.T - head.K[:, 6:] @ head.Q[:, 6:].T
        np.testing.assert_allclose(W[:10], absorption.numpy(), rtol=1e-6, atol=1e-9)
        assert head.turns is not None
        assert set(head.turns.pairs.ravel().tolist()) == {6, 7, 8, 9}
        np.testing.assert_array_equal(head.K[10:, 6:], heads[0].K[10:, 6:])
    assert heads[0].tokens is heads[3].tokens


def test_latent_attention_of_a_short_text() -> None:
    """As many tokens as a key's first part has coordinates."""
    ids = batch("deepseek-v2")["input_ids"][:1]
    short, long = (extract_head(tiny("deepseek-v2"), 1, 2, {"input_ids": some}) for some in (ids[:, :6], ids))
    np.testing.assert_allclose(short.K, long.K, rtol=1e-6)
    np.testing.assert_allclose(short.Q, long.Q, rtol=1e-6)


def test_latent_attention_with_a_bias_in_one_part() -> None:
    """The projection to latents has a bias, which only its rotary part brings into the key."""
    torch.manual_seed(0)
    model = tf.AutoModel.from_config(tf.DeepseekV2Config(**CONFIGURATIONS["deepseek-v2"][1], attention_bias=True))
    projection = model.layers[1].self_attn.kv_a_proj_with_mqa
    with torch.no_grad():
        projection.bias.copy_(torch.arange(14) + 1.0)
    head = extract_head(model, 1, 2, batch("deepseek-v2"))
    assert head.tokens.shape[2] == 10 + 32 + 1
    np.testing.assert_array_equal(head.K[-1, :6], 0.0)
    np.testing.assert_allclose(np.abs(head.K[-1, 6:]), [11.0, 12.0, 13.0, 14.0])


@pytest.mark.parametrize("family", ["deberta", "deberta-v2", "deberta-v2-tables"])
def test_disentangled_attention_is_three_bilinear_forms(family: str) -> None:
    """Content to content, content to position, position to content; by the matrices r^T P Q^T z and x^T K P^T r."""
    model = tiny(family)
    head = extract_head(model, 1, 3, batch(family))
    assert [form.name for form in head.relative] == ["content to position", "position to content"]
    by_hand = head.tokens[head.sequence] @ (head.K @ head.Q.T) @ head.queries[..., None]
    rows = np.arange(len(head.queries))[:, None]
    for form in head.relative:
        distance = head.position[:, None] - np.arange(head.mask.shape[1])
        assert len(set(form.index[distance == 1].tolist())) == 1
        if form.of_tokens:
            products = head.tokens @ (head.K @ form.P.T) @ form.table.T  # (b, T, R)
            by_hand[..., 0] += products[head.sequence[:, None], np.arange(head.mask.shape[1]), form.index]
        else:
            by_hand[..., 0] += (head.queries @ (head.Q @ form.P.T) @ form.table.T)[rows, form.index]
    np.testing.assert_allclose(by_hand[..., 0][head.mask], head.scores()[head.mask], rtol=1e-10, atol=1e-10)
    some = head.take(rows[3:9, 0])
    np.testing.assert_array_equal(some.relative[0].index, head.relative[0].index[3:9, : some.mask.shape[1]])


def test_every_head_reads_its_own_rows_of_a_table() -> None:
    call = record(tiny("deberta"), batch("deberta")).calls[1]
    (product, _) = call.relative
    where = np.nonzero(np.ones((3, 9), dtype=bool))
    index = (product.index + torch.arange(4)[:, None, None]) % product.table.shape[2]  # (B, H, T, T)
    own = replace(call, relative=(replace(product, index=index),))
    shared = replace(call, relative=(replace(product, index=product.index[:, :1]),))
    for h in range(4):
        np.testing.assert_array_equal(relative_forms(own, h, where)[0].index, index[:, h].numpy()[where])
        np.testing.assert_array_equal(relative_forms(shared, h, where)[0].index, product.index[:, 0].numpy()[where])


def test_only_the_content_of_queries_carries_the_scale_of_scores() -> None:
    """P is what the head's Q lacks: of a Q with four times the scale, a quarter, and of K the same as before."""
    call = record(tiny("deberta"), batch("deberta")).calls[1]
    where = np.nonzero(np.ones((3, 9), dtype=bool))
    one, other = (relative_forms(replace(call, scaling=size * call.scaling), 2, where) for size in (1.0, 4.0))
    assert [form.of_tokens for form in one] == [False, True]
    np.testing.assert_allclose(other[0].P, one[0].P / 4, rtol=1e-12)
    np.testing.assert_array_equal(other[1].P, one[1].P)


def test_a_card_has_the_shape_and_the_rank_of_the_matrix() -> None:
    """Keys are 8 wide; the query bias is one more column of W."""
    card = extract_head(tiny("bert"), 0, 1, batch("bert"))._repr_html_()
    assert "32 x 33, rank at most 8" in card


@pytest.mark.parametrize("architecture", ["bert", "llama"])
def test_every_map_of_an_example_model_is_sixteen_wide(architecture: Literal["bert", "llama"]) -> None:
    model, _ = example_model(architecture)
    maps = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    assert {tuple(one.weight.shape) for one in maps} == {(16, 16)}


@pytest.mark.parametrize("axes", [(), (None,), (None, None)])
def test_a_difference_is_measured_by_the_length_of_vectors(axes: tuple[None, ...]) -> None:
    """The longest difference is (3, 4) and the longest reference (0, 10)."""
    reference, change = torch.tensor([[[0.0, 10.0], [1.0, 1.0]], [[3.0, 4.0], [2.0, 2.0]]])
    assert relative_difference((reference + change)[axes], reference[axes]) == 0.5


def test_vectors_of_length_zero_have_every_direction() -> None:
    """Such as embeddings of padding, in a text of nothing else."""
    vectors = torch.eye(3)[None]
    assert _parallel(vectors, torch.zeros(1, 3, 3))
    assert not _parallel(vectors, torch.eye(3)[None, [1, 0, 2]])


def test_a_model_may_leave_the_scale_to_the_attention_function() -> None:
    """Its default is one over the square root of the width, which BERT gives."""
    model, inputs = tiny("bert"), batch("bert")
    given = extract_head(model, 0, 1, inputs)
    for layer in model.encoder.layer:
        layer.attention.self.scaling = None
    np.testing.assert_array_equal(extract_head(model, 0, 1, inputs).Q, given.Q)


def test_embeddings_come_with_their_padding() -> None:
    model, inputs = tiny("gpt2"), batch("gpt2")
    given = {"inputs_embeds": model.wte(inputs["input_ids"]).detach(), "attention_mask": inputs["attention_mask"]}
    for call in record(model, given).calls:
        assert call.stream.ids is None
        assert call.stream.padding is given["attention_mask"]


def test_a_position_bias_and_what_a_mask_adds_are_added() -> None:
    """The mask hides the last token, and takes one from the scores of the first."""
    call = record(tiny("bert"), {"input_ids": batch("bert")["input_ids"]}).calls[0]
    bias = torch.randn(1, 4, 9, 9, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(1, 1, 9, 9)
    mask[..., 0], mask[..., 8] = -1.0, torch.finfo(torch.float32).min
    visible, additive = read_mask(replace(call, bias=bias, mask=mask))
    np.testing.assert_array_equal(visible, (np.arange(9) < 8) & np.ones((3, 1, 9, 9), dtype=bool))
    expected = bias.double().numpy() - (np.arange(9) == 0)
    np.testing.assert_array_equal(additive, np.broadcast_to(expected, (3, 4, 9, 9)))


def test_outputs_may_have_heads_before_places() -> None:
    torch.manual_seed(0)
    states, norm = torch.randn(3, 2, 5, 4), torch.nn.LayerNorm(4)
    torch.nn.init.normal_(norm.weight)
    with torch.no_grad():
        vectors = norm(states)
    for head in range(2):
        side = explain_vectors((ModuleCall("norm", norm, states, vectors),), vectors, head)
        assert side is not None
        assert side.place.start == 4 * head
        assert side.bias is not None
        torch.testing.assert_close(side.tokens @ side.weight + side.bias, vectors[:, head].double())


def test_rotated_queries_of_another_text_than_the_keys_are_refused() -> None:
    """Their rotations are of different positions, so that none is shared."""
    torch.manual_seed(0)
    calls: list[ModuleCall] = []
    rotated: list[torch.Tensor] = []
    with torch.no_grad():
        for path, length in (("query", 5), ("key", 7)):
            module, states = torch.nn.Linear(6, 4, bias=False), torch.randn(2, length, 6)
            calls.append(ModuleCall(path, module, states, module(states)))
            first, second = calls[-1].output.split(2, dim=-1)
            angles = torch.arange(length)[:, None] / 10.0 ** torch.arange(2)
            turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
            rotated.append(torch.cat([turned.real, turned.imag], dim=-1)[:, None])
    (query, key), module = rotated, torch.nn.Identity()
    probabilities, stream = torch.ones(2, 1, 5, 7), Stream(None, None)
    call = AttentionCall(0, "attn", module, query, key, None, 0.5, None, {}, probabilities, tuple(calls), stream)
    with pytest.raises(ValueError, match=r"head 0 of attn \(Identity\) is not supported: .*; found query \(Linear\)"):
        explain(call, 0)


def test_the_source_of_normalised_queries_is_what_was_projected() -> None:
    """Not the projection, nor the input of another call."""
    torch.manual_seed(0)
    hidden, other = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    project, norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
    with torch.no_grad():
        projection = project(hidden)
        calls = (
            ModuleCall("q_norm", norm, projection, norm(projection)),
            ModuleCall("k_proj", project, other, project(other)),
            ModuleCall("q_proj", project, hidden, projection),
        )
    queries = affine(ColumnBlock(calls[0], 0, 8, 1.0, heads_first=False), calls)
    assert queries is not None
    assert queries.place.kind == "norm"
    assert queries.source is hidden


@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_fused_attention_is_traced_as_torch_computes_it(scale: float | None, heads: int) -> None:
    traces: list[tuple[ScoreTrace, torch.Tensor]] = []
    query, key, value = torch.randn(3, 2, 4, 5, 6, generator=torch.Generator().manual_seed(0))
    key, value = key[:, :heads], value[:, :heads]
    options: dict[str, Any] = {"is_causal": True, "scale": scale, "enable_gqa": heads < 4}
    with Tracer(lambda trace, probabilities: traces.append((trace, probabilities))):
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)
    ((trace, probabilities),) = traces
    torch.testing.assert_close(probabilities @ value.repeat_interleave(4 // heads, dim=1), out)
    (product,) = trace.products
    assert product.factor == pytest.approx(6**-0.5 if scale is None else scale)


def test_a_term_that_is_subtracted_is_added_with_its_sign_changed() -> None:
    traces: list[ScoreTrace] = []
    query, key, distance = torch.randn(3, 2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    with Tracer(lambda trace, probabilities: traces.append(trace)):
        (query @ key.mT - distance).softmax(dim=-1)
    assert traces[0].additive is not None
    torch.testing.assert_close(traces[0].additive, -distance)


SUMS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a multiple of a term": lambda scores, others, term: torch.add(scores, term, alpha=2.0),
    "a multiple of a term subtracted": lambda scores, others, term: torch.sub(scores, term, alpha=2.0),
    "in place": lambda scores, others, term: scores.clone().sub_(term, alpha=0.5),
    "a term less the scores": lambda scores, others, term: term - scores,
    "a multiple of the scores": lambda scores, others, term: torch.add(term, scores, alpha=3.0),
    "other scores": lambda scores, others, term: torch.add(scores, others + term, alpha=2.0),
    "other scores subtracted": lambda scores, others, term: scores - (others + term),
    "a number": lambda scores, others, term: torch.sub(scores + term, 3.0, alpha=2.0),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_traced_scores_of_a_sum_have_its_probabilities(name: str) -> None:
    """Products and terms have the signs and the factors of the sum; a number does not change probabilities."""
    traces: list[tuple[ScoreTrace, torch.Tensor]] = []
    query, key, other, term = torch.randn(4, 2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    with Tracer(lambda trace, probabilities: traces.append((trace, probabilities))):
        SUMS[name](query @ key.mT, query @ other.mT, term).softmax(dim=-1)
    ((trace, probabilities),) = traces
    scores = sum((one.factor * (one.rows @ one.columns.mT) for one in trace.products), torch.zeros(()))
    scores = scores if trace.additive is None else scores + trace.additive
    torch.testing.assert_close(scores.softmax(dim=-1), probabilities)


def test_only_the_last_axes_of_a_product_alone_are_transposed() -> None:
    """What is added to the scores would be transposed too, and other axes are no transposition of scores."""
    traces: list[ScoreTrace] = []
    query, key, mask = torch.randn(3, 2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    with Tracer(lambda trace, probabilities: traces.append(trace)):
        (query @ key.mT + mask).transpose(2, 3).softmax(dim=-1)
        (query @ key.mT).transpose(0, 1).softmax(dim=-1)
        assert not traces
        (query @ key.mT).transpose(2, 3).softmax(dim=-1)
    assert [trace.products[0].swapped for trace in traces] == [True]


@pytest.mark.slow
def test_bias_of_tokens_needs_no_copy_for_each_query() -> None:
    """ALiBi is a number of the token but for one of the query; T5's position bias is not."""
    assert extract_head(tiny("bloom"), 0, 0, batch("bloom")).problem().tokens.shape == (3, 9, 33)
    head = extract_head(tiny("t5"), 1, 0, batch("t5"))
    assert head.problem().tokens.shape == (len(head.queries), 9, 33)
    with pytest.raises(ValueError, match=r"GiB; .* take fewer queries.*solve_kernel"):
        head.take(np.tile([7, 8], 500_000)).problem()


def test_layers_by_name_and_from_the_end() -> None:
    model, inputs = tiny("t5"), batch("t5")
    crossing = extract_head(model, "decoder.block.0.layer.1.EncDecAttention", 0, inputs)
    assert crossing.mask.shape == (15, 9)
    assert not crossing.self_attention
    assert extract_head(model, -1, 0, inputs).layer == 5


def test_minilm_with_texts() -> None:
    model, tokenizer = minilm()
    heads = list(extract_heads(model, SENTENCES, layers=[0, 5], tokenizer=tokenizer))
    assert len(heads) == 24
    assert max(head.error for head in heads) < 2e-6  # what float32 leaves in probabilities
    texts, special = heads[0].texts, heads[0].special
    assert texts is not None
    assert special is not None
    assert texts[0][:4] == ("[CLS]", "the", "committee", "read")
    assert special[0, 0]
    assert not special[0, 1]


def test_a_model_without_attention_is_named() -> None:
    with pytest.raises(ValueError, match="ResNetModel neither uses transformers' attention interface nor computes"):
        list(extract_heads(tiny("resnet"), {"pixel_values": torch.zeros(1, 3, 32, 32)}))


def test_what_lies_between_projection_and_attention_is_named() -> None:
    model = tiny("bert")
    query = model.encoder.layer[0].attention.self.query
    query.register_forward_hook(lambda module, arguments, output: None)  # a harmless hook of the user's stays
    query.forward = lambda x: torch.tanh(torch.nn.functional.linear(x, query.weight, query.bias))
    with pytest.raises(ValueError, match=r"head 0 of encoder.layer.0.attention.self \(BertSelfAttention\).*Linear"):
        extract_head(model, 0, 0, batch("bert"))
    assert len(query._forward_hooks) == 1


@pytest.mark.parametrize(
    ("layer", "head", "sentence"),
    [
        (2, 0, "a number from 0 to 1"),
        (0, 4, "a number from 0 to 3"),
        ("x", 0, "no attention module"),
    ],
)
def test_layer_and_head_out_of_range(layer: int | str, head: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        extract_head(tiny("bert"), layer, head, batch("bert"))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "qwen3", "t5", "falcon", "deepseek-v2", "gpt-oss"])
def test_bfloat16_is_checked_in_float64(family: str) -> None:
    """Tokens are the hidden states that bfloat16 left; attention agrees but for a fitted rotation's rounding."""
    model, inputs = tiny(family, spread=2.0).bfloat16(), batch(family)
    heads = list(extract_heads(model, inputs))
    assert max(head.error for head in heads) < 1e-6
    # A score of size 1 in bfloat16, eps 2^-7, is off by a few times .008 and a probability by a quarter of that or less
    # (of nine tokens, less); T5 does not scale its scores, which are larger.
    assert 1e-5 < max(head.rounding for head in heads) < (0.2 if family == "t5" else 0.02)
    head = heads[0]
    assert head.tokens.dtype == np.float64
    if family in ("bert", "gpt2", "llama", "t5", "falcon"):  # behind a norm in the layer, tokens are of float64
        assert (torch.from_numpy(head.tokens).bfloat16().double().numpy() == head.tokens).all()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("texts", [[], ["one", 2]])
def test_texts_are_one_string_or_more(texts: list[Any]) -> None:
    with pytest.raises(ValueError, match="a sequence of texts that is not empty, were expected"):
        extract_head(minilm()[0], 0, 0, texts, tokenizer=minilm()[1])


@pytest.mark.parametrize(
    ("architecture", "layers", "shape"), [("bert", 1, (4, 6)), ("llama", 1, (4, 6)), ("gpt2", 2, (1, 5))]
)
def test_example_models_are_what_they_are_said_to_be(architecture: Any, layers: int, shape: tuple[int, int]) -> None:
    model, inputs = example_model(architecture)
    ids = inputs["input_ids"]
    assert ids.shape == shape
    assert len(ids.unique()) == ids.numel() - (architecture == "gpt2")
    assert model.config.num_hidden_layers == layers
    assert (model.get_output_embeddings() is not None) == (architecture == "gpt2")
    assert not any("pooler" in name for name, _ in model.named_parameters())


def test_texts_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="2 texts; a tokenizer was expected"):
        extract_head(tiny("bert"), 0, 0, ["one", "two"])


class BrokenModelError(Exception):
    pass


def test_everything_is_put_back_when_the_model_raises() -> None:
    model = tiny("bert")
    model.train()
    model.encoder.layer[0].eval()  # a mixture that a plain model.train() would not restore
    modes = [module.training for module in model.modules()]
    names, implementation = set(ALL_ATTENTION_FUNCTIONS.keys()), model.config._attn_implementation

    def fail(*arguments: object) -> None:
        raise BrokenModelError

    handle = model.encoder.layer[1].attention.self.register_forward_pre_hook(fail)
    with pytest.raises(BrokenModelError):
        extract_head(model, 0, 0, batch("bert"))
    handle.remove()
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert model.config._attn_implementation == implementation
    assert set(ALL_ATTENTION_FUNCTIONS.keys()) == names
    assert [module.training for module in model.modules()] == modes
    assert extract_head(model, 0, 0, batch("bert")).error < 1e-5
