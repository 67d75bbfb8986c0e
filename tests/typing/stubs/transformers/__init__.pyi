"""Stands for the package's own `__init__`: pyright would bind three thousand files and infer no class of a model."""

from typing import Any

from transformers.trainer_callback import TrainerCallback as TrainerCallback
from transformers.trainer_callback import TrainerControl as TrainerControl
from transformers.trainer_callback import TrainerState as TrainerState
from transformers.training_args import TrainingArguments as TrainingArguments

def __getattr__(name: str) -> Any: ...
