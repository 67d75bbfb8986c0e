"""Progress of a run: work done, rate, and time left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

Progress = Callable[[str, float], object]
"""Called with a sentence and the fraction of the work done; returning True stops the run."""


RECENT_SECONDS = 30.0
"""Seconds over which the rate is measured: trials differ in cost, and the first ones include compilation."""


class Meter:
    """Counts trials, or other units of work, and reports progress to a caller.

    Parameters
    ----------
    total, before : int
        Number of trials of the run, and how many of these an earlier run completed.
    interval : float
        Seconds between two reports.
    unit : str
        The counted unit, in the plural.
    """

    def __init__(
        self, name: str, total: int, before: int, progress: Progress | None, interval: float, unit: str = "trials"
    ) -> None:
        self.stopped = False
        self._name, self._total, self._before = name, total, before
        self._progress, self._interval, self._unit = progress, interval, unit
        self._trials = 0
        self._last_report = time.perf_counter()
        self._past = deque([(self._last_report, 0)])
        self._text = f"{name}: {before:,} of {total:,} {unit}"
        self._tell()

    def add(self, trials: int) -> bool:
        """Count completed work; tell whether to stop."""
        self._trials += trials
        return self.show(0)

    def show(self, under_way: int = 0) -> bool:
        """Report, including work that is done but not yet counted; tell whether to stop."""
        now = time.perf_counter()
        if now - self._last_report >= self._interval:
            self._last_report = now
            self._text = self._sentence(self._trials + under_way, now)
        return self._tell(under_way)

    def _tell(self, under_way: int = 0) -> bool:
        if self._progress is not None:
            share = (self._before + self._trials + under_way) / self._total
            self.stopped = bool(self._progress(self._text, share)) or self.stopped
        return self.stopped

    def _sentence(self, trials: int, now: float) -> str:
        while len(self._past) > 1 and self._past[1][0] <= now - RECENT_SECONDS:
            self._past.popleft()
        then, before = self._past[0]
        self._past.append((now, trials))
        progress = f"{self._name}: {self._before + trials:,} of {self._total:,} {self._unit}"
        if trials == before:
            return progress
        rate = (trials - before) / (now - then)
        remaining = (self._total - self._before - trials) / rate
        return f"{progress}, {rate:.3g} a second, {duration(remaining)} left"


def duration(seconds: float) -> str:
    """Write a duration as people say it: "40 s", "3 min", "2 h 5 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
