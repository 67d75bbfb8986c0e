"""The monitor's numbers equal a computation in float64 from the queries and keys that a model made."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

from attsvm.pretrained import AttentionMonitor, extract_head, margin_audit
from attsvm_pretrained.monitoring.measures import measure, query_mask
from attsvm_pretrained.monitoring.records import RecordFile, flat

WIDTH, HEADS, LENGTH = 32, 2, 24
# Means over rows of what the rounding of one probability decides.
ROUNDED = ("saturated", "lost")


def language_model() -> Any:
    torch.manual_seed(0)
    sizes = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "vocab_size": 30, "n_positions": 64}
    drops = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    model = tf.AutoModelForCausalLM.from_config(tf.GPT2Config(**sizes, **drops, bos_token_id=None, eos_token_id=None))
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight *= 20.0  # scores of order one and more, so that heads differ
    return model.train()


def texts(count: int = 4, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 30, (count, LENGTH), generator=torch.Generator().manual_seed(seed))


@contextmanager
def projections(model: Any) -> Iterator[list[torch.Tensor]]:
    """Collect what the fused projection of each layer puts out, (B, T, 3 d), in order."""
    outputs: list[torch.Tensor] = []

    def collect(module: Any, inputs: Any, output: torch.Tensor) -> None:
        if output.dtype != torch.float64:  # the repetition of a short layer
            outputs.append(output.detach())

    handles = [block.attn.c_attn.register_forward_hook(collect) for block in model.transformer.h]
    yield outputs
    for handle in handles:
        handle.remove()


def by_hand(output: torch.Tensor, real: torch.Tensor, head: int) -> dict[str, float]:
    """Compute a head's numbers in float64, query by query, padding left out."""
    dh = WIDTH // HEADS
    dtype, table = output.dtype, output.double()
    q, k = (table[..., at + head * dh : at + (head + 1) * dh] for at in (0, WIDTH))
    top, margins, entropies, saturated, lost = [], [], [], [], []
    for b in range(len(output)):
        for i in torch.nonzero(real[b]).flatten().tolist():
            scores = torch.stack([q[b, i] @ k[b, j] for j in range(i + 1) if real[b, j]]) / dh**0.5
            top.append(float(scores.max()))
            if len(scores) == 1:
                continue
            ordered = scores.sort(descending=True).values
            p = torch.softmax(ordered, dim=0)
            margins.append(float(ordered[0] - ordered[1]))
            entropies.append(float(torch.special.entr(p).sum()))
            rounded = p[0].to(dtype)
            exact, single = float(p[0] * p[1:].sum()), float(rounded * (1 - rounded))
            saturated.append(float(rounded == 1))
            lost.append(min(1.0, abs(exact - single) / exact) if exact > 1e-37 else 0.0)
    lower_median = sorted(margins)[(len(margins) - 1) // 2]
    means = {name: float(np.mean(values)) for name, values in
             (("entropy", entropies), ("saturated", saturated), ("lost", lost))}  # fmt: skip
    return {"max_logit": max(top), "margin": lower_median, **means}


def of_weights(weight: torch.Tensor, head: int) -> dict[str, float]:
    """Compute norm, stable rank and imbalance of a head from GPT-2's fused weight (d, 3 d), in float64."""
    dh = WIDTH // HEADS
    Q, K = (weight.double()[:, at + head * dh : at + (head + 1) * dh].numpy() for at in (0, WIDTH))
    sigma = np.linalg.svd(K @ Q.T, compute_uv=False)
    return {
        "norm": float(np.linalg.norm(sigma)) / dh**0.5,
        "stable_rank": float(np.square(sigma).sum() / sigma[0] ** 2),
        "imbalance": float(np.linalg.norm(K.T @ K - Q.T @ Q)),
    }


def same(record: dict[str, Any], outputs: list[torch.Tensor], real: torch.Tensor, weights: list[torch.Tensor]) -> None:
    """Compare a record with the computation by hand.

    A score is a float32 sum of 16 products of lengths up to 30: roundings below 1e-4. The largest probability of a row
    may round to either neighbour in the queries' dtype if it is near their middle, which moves two means by a row. The
    stable rank comes from one power step.
    """
    assert record["non_finite"] == 0
    for row in record["heads"]:
        hand = by_hand(outputs[row["layer"]], real, row["head"]) | of_weights(weights[row["layer"]], row["head"])
        for name, value in hand.items():
            rel = 0.03 if name == "stable_rank" else 1e-4
            of_a_row = 1.01 / int(real.sum() - len(real))
            assert row[name] == pytest.approx(value, rel=rel, abs=of_a_row if name in ROUNDED else 2e-4), name


def weights_of(model: Any) -> list[torch.Tensor]:
    return [block.attn.c_attn.weight.detach().clone() for block in model.transformer.h]


def real_tokens(side: str) -> torch.Tensor:
    real = torch.ones(4, LENGTH, dtype=torch.bool)
    if side != "none":
        real[:, 8:] = False
        real[3] = True
        real[3, 17:] = False
    return real.flip(1) if side == "left" else real


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_queries_that_are_padding_do_not_count(side: str, implementation: str) -> None:
    model, real = language_model(), real_tokens(side)
    model.set_attn_implementation(implementation)
    monitor = AttentionMonitor(model, every=1)
    with projections(model) as outputs, monitor.step(0):
        model(input_ids=texts(), attention_mask=real.long())
    same(monitor.records[0], outputs, real, weights_of(model))


@pytest.mark.parametrize("how", ["autocast", "bfloat16"])
def test_short_dtypes_have_all_numbers(how: str) -> None:
    model, real = language_model(), real_tokens("right")
    model = model.bfloat16() if how == "bfloat16" else model
    monitor = AttentionMonitor(model, every=1)
    with projections(model) as outputs, torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        for step in range(2):  # the weights are located once
            with monitor.step(step):
                model(input_ids=texts(), attention_mask=real.long())
    assert outputs[0].dtype == torch.bfloat16
    same(monitor.records[0], outputs[:2], real, weights_of(model))
    same(monitor.records[1], outputs[2:], real, weights_of(model))
    assert [step for step, _ in monitor.series("norm", 0, 0)] == [0, 1]


def test_the_repetition_in_float64_leaves_a_cache_alone() -> None:
    model = language_model().bfloat16()
    with AttentionMonitor(model, every=1).step(0):
        cache = model(input_ids=texts(), use_cache=True).past_key_values
    assert cache.get_seq_length() == LENGTH
    assert cache.layers[0].keys.dtype == torch.bfloat16


def test_trainer_measures_the_first_batch_and_the_weights_before_the_step() -> None:
    """Trainer's events in their order: two batches are accumulated, the weights change, the step ends."""
    model, real = language_model(), real_tokens("none")
    monitor = AttentionMonitor(every=2, svm_inputs={"input_ids": texts(2)})
    handler = CallbackHandler([monitor], model, None, None, None)
    args, state, control = SimpleNamespace(), TrainerState(max_steps=3), TrainerControl()
    for step in range(3):
        handler.on_step_begin(args, state, control)
        before = weights_of(model)
        expected = margin_audit(extract_head(model, 1, 0, {"input_ids": texts(2)}), queries=32, norms=(), draws=0)
        with projections(model) as outputs:
            for seed in (step, 7):
                model(input_ids=texts(seed=seed))
        handler.on_pre_optimizer_step(args, state, control)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1.05
        state.global_step += 1
        handler.on_step_end(args, state, control)
        if step % 2 == 0:
            same(monitor.records[-1], outputs[:2], real, before)
            row = monitor.records[-1]["heads"][HEADS]
            assert (row["svm_cosine"], row["svm_efficiency"]) == (expected.cosine, expected.efficiency)
    assert [record["step"] for record in monitor.records] == [0, 2]


def strict(line: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(line, parse_constant=refuse)


def test_a_diverged_model_is_not_healthy(tmp_path: Path) -> None:
    model = language_model()
    reports: list[dict[str, float]] = []
    monitor = AttentionMonitor(model, every=1, path=tmp_path / "lines.jsonl", report=reports.append)
    with monitor.step(0):
        model(input_ids=texts())
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight.fill_(float("nan"))
    with pytest.warns(RuntimeWarning, match="step 1: scores of 2 heads are not finite, of 1.0 first"), monitor.step(1):
        model(input_ids=texts())
    lines = [strict(line) for line in (tmp_path / "lines.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["non_finite"] for line in lines] == [0, 2]
    assert list(lines[1])[:2] == ["step", "non_finite"]
    assert next(iter(reports[1].items())) == ("attention/non_finite", 2.0)
    row = lines[1]["heads"][HEADS]
    assert list(row)[3:5] == ["non_finite", "max_logit"]
    assert row["non_finite"] == 1.0
    assert {row[name] for name in ("max_logit", "margin", "entropy", "saturated", "lost", "clip_factor", "norm")} == {
        None
    }
    assert strict(json.dumps(monitor.to_dict()))["records"] == lines


def test_scores_beyond_the_range_of_half_precision_are_not_finite() -> None:
    query = torch.full((1, 1, 2, 4), 200.0, dtype=torch.float16)
    key = torch.tensor([200.0, 1.0], dtype=torch.float16)[:, None].expand(1, 1, 2, 4)
    assert measure(query, key, None, 1.0, causal=False)["non_finite"].tolist() == [1.0]
    assert measure(query.float(), key.float(), None, 1.0, causal=False)["non_finite"].tolist() == [0.0]


def test_a_mask_of_numbers_is_added_to_the_scores() -> None:
    """A position bias reaches the attention function as a mask."""
    scores, bias = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0.5, 4.0, -1.0])
    query, key = torch.ones(1, 1, 1, 1), scores[None, None, :, None]
    hidden = torch.tensor([torch.finfo(torch.float32).min])
    key = torch.cat([key, torch.full((1, 1, 1, 1), 9.0)], dim=2)
    measured = measure(query, key, torch.cat([bias, hidden])[None, None, None], 1.0, causal=False)
    ordered = (scores + bias).sort(descending=True).values
    assert measured["max_logit"].tolist() == [float(ordered[0])]
    assert measured["margin"].tolist() == [float(ordered[0] - ordered[1])]


def test_a_mask_without_rows_of_queries_does_not_tell_padding() -> None:
    mask = torch.tensor([[[[False, True, True]]]]).expand(2, 1, 1, 3)
    assert query_mask(mask, torch.ones(2, 1, 3, 4), 3) is None


def test_a_causal_query_of_width_one_sees_no_later_token() -> None:
    """Its scores are the keys; the second of two queries has a choice, the third of three tokens is beyond both."""
    key = torch.tensor([1.0, 4.0, 9.0])[None, None, :, None]
    measured = measure(torch.ones(1, 1, 3, 1), key, None, 1.0, causal=True)
    leads = [4.0 - 1.0, 9.0 - 4.0]
    assert measured["margin"].tolist() == [min(leads)]
    p = [torch.softmax(torch.tensor(scores), dim=0) for scores in ([1.0, 4.0], [1.0, 4.0, 9.0])]
    assert measured["entropy"].tolist() == pytest.approx([float(sum(torch.special.entr(one).sum() for one in p)) / 2])


def test_a_run_that_goes_back_in_one_process_repeats_no_step(tmp_path: Path) -> None:
    lines = RecordFile(tmp_path / "lines.jsonl")
    for step in (0, 2, 4, 2, 2, 3):
        lines.append({"step": step})
    assert [strict(line)["step"] for line in lines.path.read_text(encoding="utf-8").splitlines()] == [0, 2, 3]


def test_a_resumed_run_repeats_no_step(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    model = language_model()
    for steps, scale in ((range(8), 1.0), (range(3, 12), 1.1)):
        with torch.no_grad():
            model.transformer.h[0].attn.c_attn.weight *= scale
        monitor = AttentionMonitor(model, every=2, path=path)
        for step in steps:
            with monitor.step(step):
                model(input_ids=texts())
        with path.open("a", encoding="utf-8") as lines:
            lines.write('{"step": 2, "hea')  # a line that a crash cut off
    with AttentionMonitor(model, every=2, path=path).step(12):
        model(input_ids=texts())
    records = [strict(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [record["step"] for record in records] == [0, 2, 4, 6, 8, 10, 12]
    norms = [record["heads"][0]["norm"] for record in records]
    assert norms[2:] == pytest.approx([norms[0] * 1.21] * 5)


def test_a_number_that_no_head_has_is_refused() -> None:
    model = language_model()
    monitor = AttentionMonitor(model, every=1)
    assert monitor.series("norm", 0, 0) == []
    with monitor.step(0):
        model(input_ids=texts())
    with pytest.raises(ValueError, match=r"number is 'logit'; one of head 0.0 was expected: non_finite, max_logit, "):
        monitor.series("logit", 0, 0)
    with pytest.raises(ValueError, match=r"head is 0.2; one of the records"):
        monitor.series("norm", 0, 2)
    assert flat(monitor.records[0])["attention/norm"] == max(row["norm"] for row in monitor.records[0]["heads"])


# One process imports everything and becomes two.
RANKS = """
import os
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
sys.path[:0] = {folders!r}
from attsvm.pretrained import AttentionMonitor
from test_monitor_numbers import language_model, projections, real_tokens, same, texts, weights_of

folder = sys.argv[1]
second = os.fork()
rank = 0 if second else 1
dist.init_process_group("gloo", init_method=f"file://{{folder}}/store", rank=rank, world_size=2)
model, real, reports = language_model(), real_tokens("right"), []
parallel = DistributedDataParallel(model)
monitor = AttentionMonitor(parallel, every=1, path=folder + "/lines.jsonl", report=reports.append)
for step in range(2):
    before = weights_of(model)
    with projections(model) as outputs, monitor.step(step):
        parallel(input_ids=texts(seed=rank), attention_mask=real.long()).logits.square().mean().backward()
    same(monitor.records[step], outputs, real, before)
assert len(reports) == (2 if rank == 0 else 0)
dist.barrier()
dist.destroy_process_group()
if rank == 0:
    with open(folder + "/lines.jsonl") as lines:
        assert lines.read() == monitor.to_json_lines()
    assert os.waitpid(second, 0)[1] == 0
"""


@pytest.mark.slow
def test_of_two_processes_the_first_one_writes(tmp_path: Path) -> None:
    script = RANKS.format(folders=[str(Path(__file__).parent)])
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
