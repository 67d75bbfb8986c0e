"""The monitor inside transformers' Trainer: its numbers reach Trainer's reporters, and nothing of Trainer's is lost."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tensorboardX.proto import event_pb2

from attsvm.pretrained import AttentionMonitor
from attsvm_pretrained.monitoring.records import flat

STEPS, EVERY = 5, 2


class Reporter(tf.TrainerCallback):
    """What any of Trainer's reporters is: a callback that reads logs."""

    def __init__(self) -> None:
        self.logs: list[tuple[int, dict[str, float]]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **keywords: Any) -> None:
        self.logs.append((state.global_step, dict(logs)))


def _scalars(folder: Path) -> Iterator[tuple[int, str, float]]:
    """Read event files: records of a length of 8 bytes, 4 of checksum, an Event, 4 of checksum."""
    for path in folder.rglob("events.out.tfevents.*"):
        data, start = path.read_bytes(), 0
        while start < len(data):
            (length,) = struct.unpack_from("<Q", data, start)
            event = event_pb2.Event.FromString(data[start + 12 : start + 12 + length])
            start += 12 + length + 4
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    yield event.step, value.tag, value.simple_value


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AttentionMonitor, Reporter]:
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 30, "n_positions": 16}
    model = tf.AutoModelForCausalLM.from_config(tf.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))
    texts = torch.randint(0, 30, (20, 12), generator=torch.Generator().manual_seed(0))
    args = tf.TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        report_to=["tensorboard"], logging_steps=1, save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    monitor, reporter = AttentionMonitor(every=EVERY, path=folder / "attention.jsonl"), Reporter()
    data: Any = [{"input_ids": ids, "labels": ids} for ids in texts]
    trainer = tf.Trainer(model, args, train_dataset=data, callbacks=[monitor, reporter])
    trainer.remove_callback(tf.trainer_callback.PrinterCallback)
    monitor.report = trainer.log
    trainer.train()
    assert not model.config._attn_implementation.startswith("attsvm")
    return folder, monitor, reporter


def test_every_reporter_gets_the_numbers(run: tuple[Path, AttentionMonitor, Reporter]) -> None:
    """Two batches are accumulated a step, of which the first is measured; Trainer counts a step when it ends."""
    folder, monitor, reporter = run
    assert [record["step"] for record in monitor.records] == [0, 2, 4]
    reports = {step: logs for step, logs in reporter.logs if "attention/max_logit" in logs}
    assert sorted(reports) == [1, 3, 5]
    for record in monitor.records:
        numbers = flat(record)
        assert len(numbers) == 5 * 10  # ten numbers of four heads and of all together
        assert numbers.items() <= reports[record["step"] + 1].items()
    lines = (folder / "attention.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == monitor.records


def test_trainers_own_logs_stay(run: tuple[Path, AttentionMonitor, Reporter]) -> None:
    """A report ends in trainer.log, which marks the step as logged; the loss is logged at every step all the same."""
    _, _, reporter = run
    assert [step for step, logs in reporter.logs if "loss" in logs] == list(range(1, STEPS + 1))


def test_tensorboard_has_the_numbers(run: tuple[Path, AttentionMonitor, Reporter]) -> None:
    """Event files hold float32."""
    folder, monitor, _ = run
    scalars = {(step, name): value for step, name, value in _scalars(folder)}
    for record in monitor.records:
        for name, value in flat(record).items():
            assert scalars[record["step"] + 1, f"train/{name}"] == pytest.approx(value, rel=2**-23)
    assert all((step, "train/loss") in scalars for step in range(1, STEPS + 1))
