"""Records of the Trainer of transformers, of runs that were resumed, and of checkpoints on disk."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from attsvm import MarginRecorder, SelectionProblem, margin_path

N, STEPS, CLASSES = 12, 40, 3
IDS = torch.arange(N * 4).reshape(N, 4) % 17 + 1
LABELS = torch.arange(N) % CLASSES


class Items(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"input_ids": IDS[row], "labels": LABELS[row]}


def classifier() -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=8, num_labels=CLASSES,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def trainer(
    model: BertForSequenceClassification, recorder: MarginRecorder | None, folder: Path, steps: int = STEPS
) -> Trainer:
    arguments = TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=5, save_steps=10, learning_rate=1e-2, report_to=[],
        disable_tqdm=True, logging_strategy="no", use_cpu=True, lr_scheduler_type="constant",
    )  # fmt: skip
    callbacks = None if recorder is None else [recorder.callback()]
    return Trainer(model=model, args=arguments, train_dataset=Items(), callbacks=callbacks)


def recorder_of(model: BertForSequenceClassification) -> MarginRecorder:
    return MarginRecorder(model, {"input_ids": IDS}, LABELS)


def inputs_of(model: BertForSequenceClassification) -> np.ndarray:
    model.eval()
    with torch.no_grad():
        pooled = model.bert(input_ids=IDS).pooler_output.numpy()
    return np.column_stack([pooled, np.ones(N)])


def last_layer(state: Any) -> np.ndarray:
    return np.column_stack([state["classifier.weight"].numpy(), state["classifier.bias"].numpy()])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[BertForSequenceClassification, MarginRecorder, Path]:
    """A run in batches of five."""
    folder, model = tmp_path_factory.mktemp("run"), classifier()
    recorder = recorder_of(model)
    trainer(model, recorder, folder).train()
    return model, recorder, folder


def test_the_trainer_records_steps_of_mini_batches(run: Any) -> None:
    model, recorder, _ = run
    path = recorder.path(["frobenius"])
    assert path.steps.tolist() == [1, 2, 3, 6, 10, 18, 32, STEPS]
    problem = SelectionProblem.from_classes(inputs_of(model), LABELS)
    theirs = margin_path([last_layer(model.state_dict())], [STEPS], problem, ["frobenius"])
    assert path.reports[-1]["frobenius"].margin == pytest.approx(theirs.reports[0]["frobenius"].margin)


def test_a_resumed_run_goes_on_with_the_records_of_its_checkpoint(run: Any) -> None:
    _, recorder, folder = run
    model = classifier()
    resumed = recorder_of(model)
    trainer(model, resumed, folder, STEPS + 20).train(resume_from_checkpoint=str(folder / "checkpoint-20"))
    kept, new = recorder.state_dict(), resumed.state_dict()
    assert new["marks"] == [1, 2, 3, 6, 10, 18, 32, 56]
    for ours, theirs in zip(new["matrices"][:6], kept["matrices"], strict=False):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_second_run_of_the_same_recorder_starts_anew(tmp_path: Path) -> None:
    model = classifier()
    recorder = recorder_of(model)
    for steps in (10, 3):
        trainer(model, recorder, tmp_path, steps).train()
    assert recorder.state_dict()["marks"] == [1, 2, 3]


def test_a_checkpoint_holds_the_record_of_its_own_step(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    recorder = MarginRecorder(model, torch.eye(2), [0, 1])
    arguments, state, control = TrainingArguments(str(tmp_path)), TrainerState(global_step=10), TrainerControl()
    (tmp_path / "checkpoint-10").mkdir()
    for _ in range(10):
        recorder.step()
    recorder.callback().on_save(arguments, state, control)
    resumed = MarginRecorder(model, torch.eye(2), [0, 1])
    resumed.callback().on_train_begin(arguments, state, control)
    assert resumed.state_dict()["marks"] == recorder.state_dict()["marks"] == [1, 2, 3, 6, 10]


def test_a_checkpoint_without_records_leaves_those_of_the_recorder(tmp_path: Path) -> None:
    recorder = MarginRecorder(torch.nn.Linear(2, 2), torch.eye(2), [0, 1])
    for _ in range(10):
        recorder.step()
    arguments, state, control = TrainingArguments(str(tmp_path)), TrainerState(global_step=5), TrainerControl()
    recorder.callback().on_train_begin(arguments, state, control)
    assert recorder.state_dict()["marks"] == [1, 2, 3]


def test_records_of_a_checkpoint_run_no_code(tmp_path: Path) -> None:
    recorder = MarginRecorder(torch.nn.Linear(2, 2), torch.eye(2), [0, 1])
    (tmp_path / "checkpoint-10").mkdir()
    torch.save({"marks": Touch(tmp_path / "run")}, tmp_path / "checkpoint-10" / "margin_records.pt")
    with pytest.raises(pickle.UnpicklingError, match="weights_only"):
        recorder.callback().on_train_begin(
            TrainingArguments(str(tmp_path)), TrainerState(global_step=10), TrainerControl()
        )
    assert not (tmp_path / "run").exists()


def test_records_are_written_by_one_process_beside_a_checkpoint(tmp_path: Path) -> None:
    recorder = MarginRecorder(torch.nn.Linear(2, 2), torch.eye(2), [0, 1])
    arguments, control = TrainingArguments(str(tmp_path)), TrainerControl()
    (tmp_path / "checkpoint-10").mkdir()
    recorder.callback().on_save(arguments, TrainerState(global_step=10, is_world_process_zero=False), control)
    recorder.callback().on_save(arguments, TrainerState(global_step=11), control)  # no such checkpoint
    assert [path.name for path in tmp_path.rglob("*")] == ["checkpoint-10"]


def test_checkpoints_of_a_trainer_give_the_path_of_their_weights(run: Any) -> None:
    _, _, folder = run
    model = classifier()
    recorder = MarginRecorder.from_checkpoints(folder, model, {"input_ids": IDS}, LABELS)
    path = recorder.path(["frobenius", "max"])
    assert path.steps.tolist()[:4] == [10, 20, 30, 40]
    trained = BertForSequenceClassification.from_pretrained(folder / f"checkpoint-{path.steps[-1]}")
    problem = SelectionProblem.from_classes(inputs_of(trained), LABELS)
    matrices = [
        last_layer(BertForSequenceClassification.from_pretrained(folder / f"checkpoint-{step}").state_dict())
        for step in path.steps
    ]
    theirs = margin_path(matrices, path.steps, problem, ["frobenius", "max"])
    assert str(path) == str(theirs)
    np.testing.assert_array_equal(path.shares("max"), theirs.shares("max"))


@pytest.mark.parametrize("form", ["pt", "nested", "safetensors", "prefixed"])
def test_state_dicts_of_any_loop_are_read(form: str, tmp_path: Path) -> None:
    last = torch.nn.Linear(4, 3, bias=False)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), last)
    X, y = torch.randn(6, 5), torch.arange(6) % 3
    matrices = []
    for step in (0, 5, 50, 500):
        torch.nn.init.normal_(last.weight)
        state = {name: weight.clone() for name, weight in model.state_dict().items()}
        if form == "prefixed":
            state = {f"module.{name}": weight for name, weight in state.items()}
        if form == "safetensors":
            save_file(state, tmp_path / f"step_{step}.safetensors")
        else:
            whole = {"state_dict": state, "optimizer": {}} if form == "nested" else state
            torch.save(whole, tmp_path / f"step_{step}.pt")
        matrices.append(last.weight.detach().clone())
    (tmp_path / "notes.txt").write_text("of another kind")
    torch.nn.init.zeros_(last.weight)
    recorder = MarginRecorder.from_checkpoints(tmp_path, model, X, y)
    state = recorder.state_dict()
    assert state["marks"] == [5, 50, 500]
    for ours, theirs in zip(state["matrices"], matrices[1:], strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(last.weight.detach(), matrices[-1])
    for _ in range(63):
        recorder.step()
    assert recorder.state_dict()["marks"] == [5, 50, 500, 562]


def test_what_a_folder_lacks_is_said(tmp_path: Path) -> None:
    model = torch.nn.Linear(5, 3)
    with pytest.raises(ValueError, match=r"has no checkpoint; folders or \.pt"):
        MarginRecorder.from_checkpoints(tmp_path, model, torch.eye(5), torch.arange(5) % 3)
    torch.save({"weight": model.weight.detach()}, tmp_path / "4.pt")
    with pytest.raises(ValueError, match="has no bias; the state dict"):
        MarginRecorder.from_checkpoints(tmp_path, model, torch.eye(5), torch.arange(5) % 3)


class Touch:
    """An object whose unpickling makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_checkpoint_that_holds_code_is_not_run(tmp_path: Path) -> None:
    model, trace = torch.nn.Linear(5, 3), tmp_path / "trace"
    torch.save({**model.state_dict(), "other": Touch(trace)}, tmp_path / "4.pt")
    with pytest.raises(pickle.UnpicklingError, match="weights_only"):
        MarginRecorder.from_checkpoints(tmp_path, model, torch.eye(5), torch.arange(5) % 3)
    assert not trace.exists()


def test_weights_that_share_memory_are_saved_once(tmp_path: Path) -> None:
    first, last = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    model = torch.nn.Sequential(first, last)
    first.weight = last.weight
    save_file(
        {name: weight for name, weight in model.state_dict().items() if name != "0.weight"}, tmp_path / "7.safetensors"
    )
    recorder = MarginRecorder.from_checkpoints(tmp_path, model, torch.eye(3), torch.arange(3))
    assert recorder.path(["frobenius"]).steps.tolist() == [7]


def test_inputs_of_another_shape_than_the_labels_are_refused() -> None:
    """A layer that is applied to every token has no one input per label."""
    recorder = MarginRecorder(torch.nn.Linear(2, 3), torch.ones(4, 5, 2), [0, 1, 2, 0])
    recorder.step()
    with pytest.raises(ValueError, match=r"inputs \(4, 5, 2\); \(n, d\) = \(4, 2\) was expected"):
        recorder.path()


def test_the_layer_may_be_named() -> None:
    first = torch.nn.Linear(2, 3, bias=False)
    recorder = MarginRecorder(torch.nn.Sequential(first, torch.nn.Linear(3, 4)), torch.eye(2), [0, 1], layer=first)
    recorder.step()
    assert recorder.state_dict()["matrices"][0].shape == (3, 2)


def test_ten_thousand_steps_are_seventeen_records() -> None:
    recorder = MarginRecorder(torch.nn.Linear(1, 2), torch.ones(2, 1), [0, 1])
    for _ in range(10**4):
        recorder.step()
    assert len(recorder.state_dict()["marks"]) == 17
