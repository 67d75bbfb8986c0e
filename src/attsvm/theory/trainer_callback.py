"""Record a layer in the Trainer of transformers; only :meth:`attsvm.MarginRecorder.callback` imports this module."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

RECORDS_FILE = "margin_records.pt"
"""File with the records in a checkpoint folder."""


class Recorder(Protocol):
    """What the callback needs of :class:`attsvm.MarginRecorder`, which imports this module."""

    def step(self) -> None:
        """Count a step of the optimiser."""

    def state_dict(self) -> dict[str, Any]:
        """Return steps and records."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue from records."""


class MarginCallback(TrainerCallback):
    """Calls a recorder after every step of the optimiser, and stores its records in the checkpoints."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Continue at the step at which training begins, with the records of its checkpoint or the current records."""
        del control, kwargs
        step, file = state.global_step, _records_file(args, state)
        records = torch.load(file, weights_only=True) if step and file.exists() else self.recorder.state_dict()
        count = sum(mark <= step for mark in records["marks"])
        marks, matrices = records["marks"][:count], records["matrices"][:count]
        self.recorder.load_state_dict({"steps": step, "marks": marks, "matrices": matrices})

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count a step of the optimiser."""
        del args, state, control, kwargs
        self.recorder.step()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Store the records in the checkpoint."""
        del control, kwargs
        file = _records_file(args, state)
        if state.is_world_process_zero and file.parent.exists():
            torch.save(self.recorder.state_dict(), file)


def _records_file(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}" / RECORDS_FILE
