"""Run an experiment: cells into batches, batches into shards, shards into rows.

The rows depend only on the experiment, its parameters and the root seed. They do not depend on the number of workers,
on interruption and resumption, or on the division into shards.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from attsvm import __version__
from attsvm.platform.meter import Meter, Progress
from attsvm_paper.engine import cells as sweep
from attsvm_paper.engine.compute import Batch, Result, compute, cut, task_of
from attsvm_paper.engine.experiment import Effort, Experiment
from attsvm_paper.engine.fingerprint import code_hash
from attsvm_paper.engine.store import Store
from attsvm_paper.judging.verdict import Row

SHARD_SECONDS = 1.0
"""Seconds of work per shard. kill -9 loses at most this; writing a shard takes 5 ms."""

Ranges = deque[tuple[int, int]]
Keep = Callable[[int, int, Result], object]


class Interruption(Exception):
    """The run was asked to stop; completed work is kept, and the same run continues from there."""


class Crew(Protocol):
    """Computes the batches, in this process or in workers."""

    def work(
        self, experiment: Experiment, seed: int, batches: Sequence[Batch], ranges: Ranges, keep: Keep, meter: Meter
    ) -> None:
        """Compute the batches of all `ranges`, passing results to ``keep(start, stop, result)``, until stopped."""
        ...


class SerialCrew:
    """The calling process."""

    def work(
        self, experiment: Experiment, seed: int, batches: Sequence[Batch], ranges: Ranges, keep: Keep, meter: Meter
    ) -> None:
        """Compute one shard after the other."""
        while ranges and not meter.stopped:
            start, stop = ranges.popleft()
            result = compute(task_of(experiment, seed, batches[start:stop]), SHARD_SECONDS, meter.show)
            end = start + result.batches
            if end < stop:
                ranges.appendleft((end, stop))
            keep(start, end, result)


def run(
    experiment: Experiment,
    effort: Effort = "quick",
    out: str | Path | None = None,
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
    *,
    crew: Crew | None = None,
    progress: Progress | None = None,
    interval: float = 1.0,
) -> list[Row]:
    """Run an experiment, or continue a run that was interrupted.

    Parameters
    ----------
    experiment : Experiment
        From :func:`attsvm_paper.registry.get`.
    effort : {"quick", "full"}
    out : path, optional
        The experiment's directory, see :mod:`attsvm_paper.engine.store`; None keeps nothing.
    seed : int
        Seed of all random numbers.
    overrides : mapping, optional
        Values of config fields for all cells, see :func:`attsvm_paper.engine.cells.cells`.
    crew : Crew, optional
        Workers; by default this process.
    progress : callable, optional
        ``progress(sentence, fraction done)``; returning True stops the run.
    interval : float
        Seconds between two progress sentences.

    Returns
    -------
    list of dict
        The rows of all cells in the order of the sweep, trial by trial, with the fields of their config and "trial".

    Raises
    ------
    ValueError
        If the effort, the seed or an override is wrong, or `out` holds another run.
    Interruption
        If `progress` asked to stop.
    OSError
        If `out` cannot be written.
    """
    if out is None:
        with tempfile.TemporaryDirectory(prefix="attsvm-") as place:
            return finish(prepare(experiment, effort, place, seed, overrides), crew, progress, interval)
    return finish(prepare(experiment, effort, out, seed, overrides), crew, progress, interval)


class Preparation:
    """A run that passed its checks: its cells are known, and its directory is empty or holds the same run."""

    def __init__(
        self,
        experiment: Experiment,
        effort: Effort,
        out: Path,
        seed: int,
        overrides: Mapping[str, Any] | None,
        fresh: bool,
    ) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed is {seed!r}; an integer of at least 0 was expected.")
        self.experiment, self.seed = experiment, seed
        self.effort: Effort = effort
        self.overrides = dict(overrides or {})
        self.cells = sweep.cells(experiment, effort, overrides)
        self.trials = sum(config.trials for config in self.cells)
        manifest = {
            "experiment": experiment.name,
            "attsvm": __version__,
            "code": code_hash(experiment),
            "seed": seed,
            "parameters": sweep.parameters_hash(experiment, self.cells),
            "effort": effort,
            "overrides": {name: str(value) for name, value in self.overrides.items()},
            "trials": self.trials,
        }
        self.store = Store(out, manifest, fresh)


def prepare(
    experiment: Experiment,
    effort: Effort,
    out: str | Path,
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
    fresh: bool = False,
) -> Preparation:
    """Check everything about a run that can be checked before it starts; parameters and errors as in :func:`run`.

    `fresh` makes the run discard the contents of `out`, whichever run they belong to.
    """
    return Preparation(experiment, effort, Path(out), seed, overrides, fresh)


def finish(
    preparation: Preparation, crew: Crew | None = None, progress: Progress | None = None, interval: float = 1.0
) -> list[Row]:
    """Compute the missing batches of a prepared run and return its rows; parameters and errors as in :func:`run`."""
    experiment, store = preparation.experiment, preparation.store
    batches = cut(preparation.cells, experiment.batch)
    with store.lock():
        if not store.rows_file.exists():
            ranges: Ranges = deque(store.missing(len(batches)))
            todo = sum(batch.stop - batch.start for first, last in ranges for batch in batches[first:last])
            meter = Meter(experiment.name, preparation.trials, preparation.trials - todo, progress, interval)

            def keep(start: int, stop: int, result: Result) -> None:
                store.add(start, stop, result.rows, result.seconds)
                meter.add(sum(batch.stop - batch.start for batch in batches[start:stop]))

            (crew or SerialCrew()).work(experiment, preparation.seed, batches, ranges, keep, meter)
            if store.missing(len(batches)):
                raise Interruption(experiment.name)
        return store.finish()
