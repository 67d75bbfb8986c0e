"""The computation of batches, the same in this process and on a worker.

A cell is divided into batches of :attr:`Experiment.batch` trials, always at the same indices. Batched linear algebra
may round differently in a batch of another size, so fixed batches make equal runs equal to the last bit. A shard is a
range of consecutive batches that fits a time limit; it has no influence on the results.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from attsvm.platform.kernels import compiled_first
from attsvm.platform.threads import one_thread
from attsvm_paper.engine.experiment import Experiment
from attsvm_paper.engine.seeds import trial_seeds
from attsvm_paper.judging.verdict import Row


@dataclass(frozen=True)
class Batch:
    """Trials `start` to `stop` of a cell, for one call of the experiment."""

    config: Any
    start: int
    stop: int


@dataclass(frozen=True)
class Task:
    """Batches to compute, with all information that a worker needs."""

    experiment: str
    trials: Callable[[Any, Any], list[Row]]
    instance: tuple[str, ...]
    seed: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True)
class Result:
    """Rows of the first `batches` batches of a task, and the processor seconds they took."""

    rows: list[Row]
    batches: int
    seconds: float


def cut(configs: Sequence[Any], batch: int) -> list[Batch]:
    """Divide cells into batches; the last batch of a cell may be smaller."""
    return [
        Batch(config, start, min(start + batch, config.trials))
        for config in configs
        for start in range(0, config.trials, batch)
    ]


def task_of(experiment: Experiment, seed: int, batches: Sequence[Batch]) -> Task:
    """Describe work for a worker; functions are sent by name."""
    return Task(experiment.name, experiment.trials, experiment.instance, seed, tuple(batches))


def compute(task: Task, budget: float, stop: Callable[[int], object] | None = None) -> Result:
    """Compute batches until `budget` seconds are used, at least one batch.

    Parameters
    ----------
    task : Task
    budget : float
    stop : callable, optional
        Called with the number of completed trials after each batch; returning True stops the work.

    Returns
    -------
    Result

    Raises
    ------
    ValueError
        If the rows of the experiment are malformed.
    """
    rows: list[Row] = []
    batches = trials = 0
    with one_thread(), compiled_first():
        wall_start, process_start = time.perf_counter(), time.process_time()
        for batch in task.batches:
            rows += _rows(task, batch)
            batches += 1
            trials += batch.stop - batch.start
            if (stop is not None and stop(trials)) or time.perf_counter() - wall_start >= budget:
                break
        # Processor time, because wall time depends on the load of the machine.
        seconds = time.process_time() - process_start
    return Result(rows, batches, seconds)


def pack(task: Task) -> bytes:
    """Pickle a task of a file with the code of the file, which workers cannot import."""
    cloudpickle = import_module("cloudpickle")
    module = sys.modules[task.trials.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(task)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def compute_packed(task: bytes, budget: float) -> Result:
    """Compute a packed task, on a worker."""
    return compute(pickle.loads(task), budget)


def _rows(task: Task, batch: Batch) -> list[Row]:
    parameters = asdict(batch.config)
    instance = {name: parameters[name] for name in task.instance}
    seeds = trial_seeds(task.seed, task.experiment, instance, range(batch.start, batch.stop))
    trial_of = {int(seed): batch.start + i for i, seed in enumerate(seeds)}
    table: list[Row] = []
    for row in task.trials(batch.config, seeds):
        seed = row.get("seed")
        if seed is None or int(seed) not in trial_of:
            raise ValueError(f"a row of {task.experiment} has the seed {seed!r}; one of those given was expected.")
        conflicts = sorted(name for name in row if name in parameters or name == "trial")
        if conflicts:
            raise ValueError(
                f"a row of {task.experiment} has the keys {conflicts} of its config; others were expected."
            )
        table.append({**parameters, "trial": trial_of[int(seed)], **row, "seed": int(seed)})
    if len({row["trial"] for row in table}) < len(trial_of):
        raise ValueError(f"{task.experiment} gave no row for some of its seeds; at least one per seed was expected.")
    return sorted(table, key=lambda row: row["trial"])
