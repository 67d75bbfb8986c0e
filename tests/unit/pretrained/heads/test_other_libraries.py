"""Heads of TransformerLens and nnsight, and features of circuit-tracer; the libraries themselves where installed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers as tf

from attsvm import pretrained

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        from transformer_lens.model_bridge import TransformerBridge  # pyright: ignore[reportMissingImports]
    except ImportError:
        TransformerBridge = None
    try:
        import nnsight  # pyright: ignore[reportMissingImports]
    except ImportError:
        nnsight = None

IDS = torch.tensor([[7, 3, 9, 3, 1], [2, 8, 4, 4, 6]])


@pytest.fixture
def bridge(tmp_path: Path) -> Any:
    """The example model in TransformerLens, with a tokenizer of one word per id."""
    model, _ = pretrained.example_model("gpt2")
    model.save_pretrained(tmp_path)
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{k}": k for k in range(50)}, unk_token="w0"))
    names = {"unk_token": "w0", "pad_token": "w0", "bos_token": "w1", "eos_token": "w2"}
    tf.PreTrainedTokenizerFast(tokenizer_object=inner, **names).save_pretrained(tmp_path)
    tokenizer = tf.AutoTokenizer.from_pretrained(tmp_path)
    return TransformerBridge.boot_transformers(str(tmp_path), tokenizer=tokenizer)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(TransformerBridge is None, reason="transformer_lens is not installed")
def test_patterns_and_direct_effects_are_those_of_transformer_lens(bridge) -> None:
    """Its cache holds the patterns, and its `logit_attrs` gives the direct effects, heads one after another."""
    _, cache = bridge.run_with_cache(IDS)
    heads = list(pretrained.extract_heads(bridge, {"input": IDS}))
    for layer in range(2):
        ours = np.stack([head.pattern() for head in heads if head.layer == layer], axis=1)
        theirs = cache[f"blocks.{layer}.attn.hook_pattern"]
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=1e-6)
    for sequence in range(2):
        split = pretrained.attribute_logit(bridge, {"input": IDS}, answer=9, rival=2, sequence=sequence)
        stack = cache.stack_head_results(layer=-1, pos_slice=-1, apply_ln=False)
        scaled = cache.apply_ln_to_stack(stack, layer=-1, pos_slice=-1)[:, sequence]
        direction = bridge.W_U[:, 9] - bridge.W_U[:, 2]
        theirs = (scaled @ direction).detach().numpy()
        np.testing.assert_allclose(split.by_head().ravel(), theirs, atol=1e-7)
    assert pretrained.attribute(bridge, 1, 0, {"input": IDS}).error < 1e-7
    with pytest.raises(ValueError, match="computes attention by itself"):
        pretrained.head_effects(bridge, 1, 0, {"input": IDS}, answers=IDS[:, 0], draws=2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(nnsight is None, reason="nnsight is not installed")
def test_patterns_are_those_that_nnsight_saves() -> None:
    model, _ = pretrained.example_model("gpt2")
    model.set_attn_implementation("eager")
    wrapped = nnsight.NNsight(model)
    with wrapped.trace(IDS):
        saved = wrapped.transformer.h[1].attn.output[1].save()
    heads = pretrained.extract_heads(wrapped, {"input_ids": IDS}, layers=[1])
    ours = np.stack([head.pattern() for head in heads], axis=1)
    np.testing.assert_allclose(ours, saved.detach().numpy(), atol=1e-6)
    assert pretrained.attribute(wrapped, 1, 0, {"input_ids": IDS}).error < 1e-7


def test_the_features_of_a_circuit_are_components_of_a_query_key_score() -> None:
    """circuit-tracer's `active_features` (n, 3: layer, place, number), values and decoder vectors, as docs have it."""
    model, _ = pretrained.example_model("gpt2")
    rng = np.random.default_rng(0)
    inputs = {"input_ids": IDS[:1]}
    active = np.array([[0, 4, 11], [0, 1, 11], [0, 3, 5], [0, 4, 2]])
    values, decoders = rng.random(4), rng.normal(size=(4, 16))
    activations = np.zeros((5, 4))
    activations[active[:, 1], np.arange(4)] = values
    split = pretrained.attribute(
        model, 1, 0, inputs, query=4, chosen=1, rival=3, dictionary=decoders, activations=activations
    )
    names = [one.name for one in split.components]
    features = [names.index(f"feature {k}") for k in range(4)]
    head = pretrained.extract_head(model, 1, 0, inputs)
    norm = model.transformer.h[1].ln_1
    with torch.no_grad():
        streams = model(**inputs, output_hidden_states=True).hidden_states[1][0].double().numpy()
    spread = np.sqrt(streams.var(axis=1) + norm.eps)
    gain = norm.weight.detach().double().numpy()
    read = values[:, None] * (decoders - decoders.mean(axis=1, keepdims=True)) * gain / spread[active[:, 1], None]
    expected = (read @ head.K) @ (read @ head.Q[:16]).T
    expected *= np.where(active[:, 1] == 1, 1.0, np.where(active[:, 1] == 3, -1.0, 0.0))[:, None]  # chosen less rival
    expected *= (active[:, 1] == 4)[None]  # the query
    np.testing.assert_allclose(split.pairs[np.ix_(features, features)], expected, atol=1e-9)
    assert np.count_nonzero(expected) == 4
    assert split.pairs.sum() == pytest.approx(split.margin, abs=1e-6)
