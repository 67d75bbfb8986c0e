"""Compressed heads and models: nothing is lost at full rank, what is counted is right, and what is written loads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as tf

from attsvm.pretrained import compress_head, compress_model, extract_head, extract_heads, rank_profile
from attsvm.pretrained.lowrank import divergence, query_root, token_root
from attsvm.pretrained.rank import effective_rank
from pretrained_models import SENTENCES, batch, minilm, tiny

FAMILIES = ["bert", "gpt2", "opt", "vit", "llama", "qwen2", "phi", "t5"]


@pytest.mark.parametrize("family", FAMILIES)
def test_full_rank_changes_nothing(family: str) -> None:
    """Key biases are dropped, factors mixed and shared keys solved together, and the output stays the same."""
    found = compress_model(tiny(family), 8, batch(family))
    assert found.kl < 1e-6
    assert found.top1 == 1.0
    assert found.output_change < 1e-4  # float32 through two layers of weights spread sixfold
    assert found.key_bytes == found.key_bytes_before


@pytest.mark.parametrize("family", ["gpt2", "qwen2", "phi"])
def test_distillation_is_closest(family: str) -> None:
    rows = [compress_model(tiny(family), 4, batch(family), method=m) for m in ("svd", "whitened", "distilled")]
    alone = [np.mean([head.kl for head in found.heads]) for found in rows]
    assert alone[2] <= alone[1]
    assert rows[0].key_bytes == rows[0].key_bytes_before // 2
    assert rows[0].flops == rows[0].flops_before // 2


def test_svd_and_whitened_are_the_best_of_their_kind() -> None:
    """Eckart-Young: the error is the tail of the spectrum, of W and of the whitened W."""
    head = extract_head(tiny("bert"), 1, 2, batch("bert"))
    x, z = token_root(head), query_root(head)
    for method, left, right in (("svd", np.eye(32), np.eye(33)), ("whitened", x, z)):
        W = left @ head.W @ right.T
        reduced = compress_head(head, 3, method)  # type: ignore[arg-type]
        error = np.linalg.norm(W - left @ reduced.head.W @ right.T)
        tail = np.linalg.svd(W, compute_uv=False)[3:]
        assert error == pytest.approx(float(np.linalg.norm(tail)), rel=1e-6)
        assert reduced.head.K.shape == (32, 3)


def test_token_root_is_the_covariance_of_what_queries_see() -> None:
    head = extract_head(tiny("gpt2"), 0, 0, batch("gpt2"))
    total = np.zeros((32, 32))
    for i, j in enumerate(head.sequence):
        x = head.tokens[j][head.mask[i]]
        total += (x - x.mean(axis=0)).T @ (x - x.mean(axis=0))
    root = token_root(head)
    np.testing.assert_allclose(root.T @ root, total / head.mask.sum(), atol=1e-10 * np.abs(total).max())


def test_rotary_heads_keep_whole_pairs() -> None:
    head = extract_head(tiny("llama"), 0, 1, batch("llama"))
    reduced = compress_head(head, 4)
    assert reduced.head.columns is not None
    assert reduced.head.turns is not None
    assert set(reduced.head.columns[reduced.head.turns.pairs].ravel()) == set(reduced.head.columns)
    assert ((reduced.head.columns % 4)[:2] == (reduced.head.columns % 4)[2:]).all()
    with pytest.raises(ValueError, match="an even number was expected"):
        compress_head(head, 3)


def test_compressed_model_loads_and_runs(tmp_path: Path) -> None:
    """Written, loaded by transformers alone, run, and extracted: every head has the rank it was given."""
    model, tokenizer = minilm()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = compress_model(model, 6, SENTENCES[:8], layers=[0, 3], tokenizer=tokenizer, evaluate_on=SENTENCES[8:])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    found.save(tmp_path / "small", tokenizer)
    record = json.loads((tmp_path / "small" / "attsvm_compression.json").read_text())
    assert record["rank"] == 6
    assert len(record["heads"]) == 24
    loaded = tf.AutoModel.from_pretrained(tmp_path / "small")
    inputs = tf.AutoTokenizer.from_pretrained(tmp_path / "small")(list(SENTENCES), padding=True, return_tensors="pt")
    with torch.no_grad():
        again, once = loaded(**inputs).last_hidden_state, found.model.eval()(**inputs).last_hidden_state
    torch.testing.assert_close(again, once)
    for head in extract_heads(loaded, inputs, layers=[0, 3]):
        assert np.linalg.matrix_rank(head.W, tol=1e-5 * np.linalg.norm(head.W, 2)) == 6
    assert np.linalg.matrix_rank(extract_head(loaded, 1, 0, inputs).W) > 6
    assert found.loss is None  # MiniLM predicts nothing
    assert 0.0 < found.output_change < 1.0
    assert "Rank 6 of 32 (whitened): the last hidden state changes by" in found.sentence
    assert "saves 81 % of key-cache bytes" in found.sentence


def test_compression_of_a_language_model_is_judged_by_its_loss() -> None:
    """The loss is that of the next token where neither it nor the one before is padding."""
    torch.manual_seed(0)
    config = tf.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=60, n_positions=16)
    model, inputs = tf.AutoModelForCausalLM.from_config(config).eval(), batch("gpt2")
    found = compress_model(model, 8, inputs)
    losses = []
    for ids, visible in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
        text = ids[visible.bool()]
        places = (visible.cumsum(0) - 1).clamp_min(0)[visible.bool()]
        shift = int(visible.argmax())  # GPT-2 counts places in the padded row
        with torch.no_grad():
            logits = model(input_ids=text[None], position_ids=(places + shift)[None]).logits[0]
        losses.append(torch.nn.functional.cross_entropy(logits[:-1], text[1:], reduction="none"))
    assert found.loss_before == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)  # float32 logits
    assert found.loss == pytest.approx(found.loss_before, rel=1e-5)  # all coordinates were kept
    assert compress_model(model, 1, inputs).sentence.startswith("Rank 1 of 8 (whitened): the loss goes from 4.")


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="normalises queries or keys"):
        compress_model(tiny("qwen3"), 4, batch("qwen3"))
    with pytest.raises(ValueError, match="in several layers"):
        compress_model(tiny("albert"), 4, batch("albert"))
    head = extract_head(tiny("bert"), 0, 0, batch("bert"))
    with pytest.raises(ValueError, match="an integer from 1 to 8"):
        compress_head(head, 9)
    with pytest.raises(ValueError, match=r"method is .*; one of"):
        compress_head(head, 4, "pca")  # type: ignore[arg-type]


def test_divergence_by_hand() -> None:
    head = extract_head(tiny("bert"), 0, 0, batch("bert"))
    kl, top1 = divergence(head, np.where(head.mask, 1 / head.mask.sum(axis=1, keepdims=True), 0.0))
    entropy = -np.where(head.mask, head.probabilities * np.log(np.maximum(head.probabilities, 1e-300)), 0).sum(axis=1)
    assert kl == pytest.approx(float((np.log(head.mask.sum(axis=1)) - entropy).mean()), abs=1e-6)
    assert 0 <= top1 <= 1


def test_rank_profile() -> None:
    assert effective_rank(np.array([1.0, 1.0, 0.0])) == pytest.approx(2.0)
    for family in ("bert", "llama"):
        rows = rank_profile(tiny(family), batch(family))
        assert [(row.layer, row.head) for row in rows] == [(layer, head) for layer in range(2) for head in range(4)]
        assert all(1 <= row.scores <= 8 and 1 <= row.weights99 <= 8 for row in rows)
