"""Run an engine from record to record, and return to the last finite state if a trial overflows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from attsvm.training.run.engine import Engine
from attsvm.training.run.limits import Ending, left_range, out_of_range

# Number of pieces of a run between which the callback is called, for a progress bar.
_PIECES = 100
# Longest time between two callbacks, in seconds, for Ctrl-C.
_LONGEST = 0.5


def record_steps(record_every: int | Sequence[int] | None, steps: int) -> np.ndarray:
    """Return the sorted step numbers at which to record; 0 and `steps` are always among them."""
    if record_every is None:
        marks = np.array([], dtype=int)
    elif isinstance(record_every, (int, np.integer)):
        if record_every < 1:
            raise ValueError(f"record_every is {record_every}; a positive integer or a list of steps was expected.")
        marks = np.arange(0, steps, int(record_every))
    else:
        marks = np.asarray(record_every)
        if marks.ndim != 1 or marks.dtype.kind not in "iu" or (marks < 0).any() or (marks > steps).any():
            raise ValueError(
                f"record_every has shape {marks.shape}; a positive integer or steps in 0..{steps} were expected."
            )
    return np.unique(np.concatenate([marks, [0, steps]]).astype(int))


def _snapshot(engine: Engine) -> dict[str, Tensor]:
    """Return the current parameters by name, shape (B, ...); names of head parameters begin with "head."."""
    names = ("W",) if len(engine.params) == 1 else ("K", "Q")
    parameters: dict[str, Tensor] = dict(zip(names, engine.params, strict=True))
    for companion in engine.companions:
        parameters |= companion.parameters()
    return parameters


def _outside(engine: Engine) -> Tensor:
    """Tell whether any trained parameter of a trial is out of range, (B,)."""
    outside = out_of_range(engine.params)
    for companion in engine.companions:
        for parameter in companion.parameters().values():
            outside |= out_of_range([parameter])
    return outside


class RangeWatch:
    """Advances an engine, and keeps trials at their last parameters within range."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._last: dict[int, dict[str, Tensor]] = {}

    def advance(self, first: int, stop: int) -> None:
        """Make steps first + 1 .. stop of the trials that have not ended."""
        engine = self.engine
        if len(engine.ends) == len(engine.params[0]):
            return
        before = engine.save()
        engine.advance(first, stop - first)
        if self._ending():
            engine.restore(before)
            for step in range(first, stop):
                good = {name: parameter.clone() for name, parameter in _snapshot(engine).items()}
                engine.advance(step, 1)
                for trial, reason in self._ending().items():
                    self._last[trial] = {name: parameter[trial] for name, parameter in good.items()}
                    engine.ends[trial] = Ending(step, reason)
        for trial, values in self._last.items():
            for name, parameter in _snapshot(engine).items():
                parameter[trial] = values[name]
        for companion in engine.companions if self._last else ():
            companion.refresh()

    def _ending(self) -> dict[int, str]:
        """Return the reason for each trial that ends now: out of range, or a failed step."""
        engine = self.engine
        outside = _outside(engine).nonzero().flatten().tolist()
        reasons = dict.fromkeys(outside, left_range(engine.params[0].dtype)) | engine.failures()
        return {trial: reason for trial, reason in reasons.items() if trial not in engine.ends}


@torch.no_grad()
def run(
    engine: Engine, marks: np.ndarray, steps: int, callback: Callable[[int, int], bool | None] | None
) -> tuple[dict[str, Tensor], np.ndarray, bool]:
    """Advance from record to record; return the records (B, R, ...), their steps, and whether the callback stopped."""
    stops = set(marks.tolist())
    if callback is not None:
        stops.update(np.linspace(0, steps, _PIECES + 1).astype(int).tolist())
    records = {name: p.new_empty((p.shape[0], len(marks), *p.shape[1:])) for name, p in _snapshot(engine).items()}
    record_steps: list[int] = []
    watch = RangeWatch(engine)
    count, most, cancel = 0, steps, False
    for stop in sorted(stops):
        while count < stop and not cancel:
            start, piece = time.perf_counter(), min(most, stop - count)
            watch.advance(count, count + piece)
            count += piece
            if callback is not None:
                most = max(1, int(piece * _LONGEST / (time.perf_counter() - start)))
                cancel = count < stop and bool(callback(count, steps))
        cancel = cancel or (callback is not None and bool(callback(count, steps)))
        if cancel or count == marks[len(record_steps)]:
            for name, parameter in _snapshot(engine).items():
                records[name][:, len(record_steps)] = parameter
            record_steps.append(count)
        if cancel:
            break
    return {name: r[:, : len(record_steps)] for name, r in records.items()}, np.array(record_steps), count < steps
