"""The monitor of attention during training: numbers by hand, nothing left behind, Trainer's events, an explosion."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, TrainerControl, TrainerState

from attsvm.pretrained import AttentionMonitor, extract_head, extract_heads
from pretrained_models import batch, tiny


def _language_model(**settings: Any) -> Any:
    torch.manual_seed(0)
    config = tf.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=30, n_positions=16, **settings)
    return tf.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "bart"])
def test_numbers_are_those_of_the_heads(family: str, implementation: str) -> None:
    """Sequences are short enough that every row is looked at, padding left out; float32 scores, so 1e-4 of a logit."""
    model = tiny(family, spread=12.0).eval()
    for name, parameter in model.named_parameters():
        # The key bias adds a number common to all tokens of a query, which is no part of a head.
        if name.endswith(("c_attn.bias", "key.bias", "k_proj.bias")):
            torch.nn.init.zeros_(parameter)
    model.set_attn_implementation(implementation)
    inputs = batch(family)
    if family == "bart":  # queries of the decoder are left out by its own padding
        inputs["decoder_attention_mask"] = torch.tensor([[1] * 5, [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])
    monitor = AttentionMonitor(model, every=1)
    with monitor.step(0):
        model(**inputs)
    rows = {(row["name"], row["head"]): row for row in monitor.records[0]["heads"]}
    for head in extract_heads(model, inputs):
        row, scores = rows[head.name, head.head], head.scores()
        choosing = head.mask.sum(axis=1) > 1
        order_statistics = np.sort(scores[choosing], axis=1)
        assert row["max_logit"] == pytest.approx(float(scores[head.mask].max()), rel=1e-4, abs=1e-4)
        margins, step = order_statistics[:, -1] - order_statistics[:, -2], 1 / len(order_statistics)
        low, high = np.quantile(margins, [0.5 - step, 0.5 + step])
        assert low - 1e-4 <= row["margin"] <= high + 1e-4  # torch takes the lower of two medians
        p = head.attention()[choosing]
        entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1).mean()
        assert row["entropy"] == pytest.approx(entropy, rel=1e-4, abs=1e-5)
        K, Q = (factor[:-1] if len(factor) == 33 else factor for factor in (head.K, head.Q))
        sigma = np.linalg.svd(K @ Q.T, compute_uv=False)
        assert row["norm"] == pytest.approx(np.linalg.norm(sigma), rel=1e-4)
        assert row["stable_rank"] == pytest.approx(np.square(sigma).sum() / sigma[0] ** 2, rel=0.03)  # one power step
        Q = Q / head.scale
        assert row["imbalance"] == pytest.approx(np.linalg.norm(K.T @ K - Q.T @ Q), rel=1e-4)


def test_a_model_may_leave_the_scale_to_the_attention_function() -> None:
    """Its default, one over the square root of the width, is the scale that Llama gives."""
    model, records = tiny("llama").eval(), []
    model.set_attn_implementation("sdpa")
    for _ in range(2):
        monitor = AttentionMonitor(model, every=1)
        with monitor.step(0):
            model(**batch("llama"))
        records.append(monitor.records[0]["heads"])
        for layer in model.layers:
            layer.self_attn.scaling = None
    assert records[1] == [pytest.approx(row) for row in records[0]]


def test_a_head_with_a_norm_on_one_side_has_no_norm_of_w() -> None:
    model = tiny("qwen3").eval()
    for layer in model.layers:
        layer.self_attn.k_norm = torch.nn.Identity()
    head = extract_head(model, 0, 0, batch("qwen3"))
    assert [place.kind for place in head.places] == ["linear", "norm"]
    monitor = AttentionMonitor(model, every=1)
    with monitor.step(0):
        model(**batch("qwen3"))
    for row in monitor.records[0]["heads"]:
        assert row["margin"] > 0
        assert not {"norm", "stable_rank", "imbalance"} & set(row)


def test_what_saturation_loses() -> None:
    """Two tokens at a margin of 30: 1 - p is 0 in float32 and e^-30 exactly, so the top entry's gradient is lost.

    At a margin of 2 it is a rounding of 1 - p = 0.12, some 5e-7 of it.
    """
    from attsvm_pretrained.monitoring.measures import measure

    query = torch.tensor([[[[1.0]], [[1.0]]]])  # (1, 2 heads, 1 row, 1)
    key = torch.tensor([[[[30.0], [0.0]], [[2.0], [0.0]]]])
    measured = {name: values.tolist() for name, values in measure(query, key, None, 1.0, causal=False).items()}
    assert measured["saturated"] == [1.0, 0.0]
    assert measured["lost"][0] == pytest.approx(1.0)
    assert measured["lost"][1] < 1e-6
    assert measured["margin"] == [30.0, 2.0]
    half = measure(query.bfloat16(), key.bfloat16(), None, 0.3, causal=False)
    assert half["saturated"].tolist() == [1.0, 0.0]  # a margin of 9 saturates bfloat16


def test_nothing_is_left_behind_and_gradients_are_the_same() -> None:
    model = _language_model(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0).train()
    ids = torch.randint(0, 30, (3, 12), generator=torch.Generator().manual_seed(0))
    names, implementation = set(ALL_ATTENTION_FUNCTIONS.keys()), model.config._attn_implementation
    gradients = []
    for with_monitor in (False, True):
        model.zero_grad()
        monitor = AttentionMonitor(model, every=1 if with_monitor else 7)
        with monitor.step(1):
            model(input_ids=ids, labels=ids).loss.backward()
        assert len(monitor.records) == with_monitor
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
        assert model.training
        assert model.config._attn_implementation == implementation
        assert set(ALL_ATTENTION_FUNCTIONS.keys()) == names
        assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    with pytest.raises(KeyError), monitor.step(2):
        raise KeyError
    assert model.config._attn_implementation == implementation


def test_events_of_trainer_and_reports(tmp_path: Path) -> None:
    """Trainer's own handler calls the monitor; step numbers are those of the steps, and reporters get flat numbers."""
    model = _language_model()
    reports: list[dict[str, float]] = []
    monitor = AttentionMonitor(every=2, path=tmp_path / "attention.jsonl", report=reports.append)
    handler = CallbackHandler([DefaultFlowCallback(), monitor], model, None, None, None)
    args = SimpleNamespace(logging_first_step=False, logging_strategy="no", eval_strategy="no", save_strategy="no")
    state, control = TrainerState(max_steps=4), TrainerControl()
    handler.on_train_begin(args, state, control)
    for _ in range(4):
        handler.on_step_begin(args, state, control)
        model(input_ids=torch.randint(0, 30, (2, 8)))
        state.global_step += 1
        handler.on_step_end(args, state, control)
    handler.on_train_end(args, state, control)
    assert [record["step"] for record in monitor.records] == [0, 2]
    lines = (tmp_path / "attention.jsonl").read_text(encoding="utf-8")
    assert lines == monitor.to_json_lines()
    assert [json.loads(line) for line in lines.splitlines()] == json.loads(json.dumps(monitor.to_dict()))["records"]
    heads = monitor.records[1]["heads"]
    assert reports[1]["attention/L1H0/entropy"] == heads[2]["entropy"]
    assert reports[1]["attention/max_logit"] == max(head["max_logit"] for head in heads)


def test_a_logit_explosion_is_caught() -> None:
    """A learning rate a hundred times too large: the logits pass the threshold while training at a sane one stays."""
    largest = {}
    for lr in (1e-3, 0.1):
        model = _language_model().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        monitor = AttentionMonitor(model, every=10, clip=30.0)
        rng = torch.Generator().manual_seed(0)
        for step in range(41):
            ids = torch.randint(0, 30, (8, 16), generator=rng)
            with monitor.step(step):
                model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        series = [max(row["max_logit"] for row in record["heads"]) for record in monitor.records]
        assert len(monitor.series("max_logit", 1, 0)) == 5
        largest[lr] = series[-1]
        clipped = min(row["clip_factor"] for row in monitor.records[-1]["heads"])
        assert clipped == pytest.approx(min(1.0, 30.0 / series[-1]))
    assert largest[1e-3] < 5
    assert largest[0.1] > 30


def test_heads_beside_their_svms() -> None:
    model = _language_model()
    inputs = {"input_ids": torch.randint(0, 30, (4, 8), generator=torch.Generator().manual_seed(1))}
    monitor = AttentionMonitor(model, every=5, svm_inputs=inputs)
    with monitor.step(0):
        model(**inputs)
    from attsvm.pretrained import margin_audit

    audit = margin_audit(extract_head(model, 0, 1, inputs), queries=32, norms=(), draws=0)
    row = monitor.records[0]["heads"][1]
    assert (row["svm_cosine"], row["svm_efficiency"]) == (audit.cosine, audit.efficiency)
    assert not model.config._attn_implementation.startswith("attsvm")


@pytest.mark.slow
def test_options_and_imports() -> None:
    with pytest.raises(ValueError, match="every is 0; a positive integer"):
        AttentionMonitor(every=0)
    with pytest.raises(ValueError, match="clip is -1"):
        AttentionMonitor(clip=-1)
    with pytest.raises(ValueError, match="model is None"), AttentionMonitor().step(0):
        pass
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = AttentionMonitor().nothing
    code = "import sys; from attsvm.pretrained import AttentionMonitor as M; M(); print('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
