"""How far a run is: what is done, its rate, and the time left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

Progress = Callable[[str, float], object]
"""Called with a sentence and the share of the work done; a true answer asks to stop."""


RECENT_SECONDS = 30.0
"""The rate is that of the recent past: cells differ in cost, and the first trials pay for compilation."""


class Meter:
    """Counts trials, or other units of work, and tells a caller about them.

    Parameters
    ----------
    name : str
    total, before : int
        Trials of the run, and how many of them an earlier run left.
    progress : callable, optional
    interval : float
        Seconds between two new sentences, so that a log stays readable.
    unit : str
        What is counted, in the plural.
    """

    def __init__(
        self, name: str, total: int, before: int, progress: Progress | None, interval: float, unit: str = "trials"
    ) -> None:
        self.stopped = False
        self._name, self._total, self._before = name, total, before
        self._progress, self._interval, self._unit = progress, interval, unit
        self._done = 0
        self._told = time.perf_counter()
        self._past = deque([(self._told, 0)])
        self._text = f"{name}: {before:,} of {total:,} {unit}"
        self._tell()

    def add(self, trials: int) -> bool:
        """Count what is done; tell whether to stop."""
        self._done += trials
        return self.show(0)

    def show(self, under_way: int = 0) -> bool:
        """Show trials that are done but not yet counted as well; tell whether to stop."""
        now = time.perf_counter()
        if now - self._told >= self._interval:
            self._told = now
            self._text = self._sentence(self._done + under_way, now)
        return self._tell(under_way)

    def _tell(self, under_way: int = 0) -> bool:
        if self._progress is not None:
            share = (self._before + self._done + under_way) / self._total
            self.stopped = bool(self._progress(self._text, share)) or self.stopped
        return self.stopped

    def _sentence(self, done: int, now: float) -> str:
        while len(self._past) > 1 and self._past[1][0] <= now - RECENT_SECONDS:
            self._past.popleft()
        then, before = self._past[0]
        self._past.append((now, done))
        counted = f"{self._name}: {self._before + done:,} of {self._total:,} {self._unit}"
        if done == before:
            return counted
        rate = (done - before) / (now - then)
        left = (self._total - self._before - done) / rate
        return f"{counted}, {rate:.3g} a second, {duration(left)} left"


def duration(seconds: float) -> str:
    """Say a time as people do: "40 s", "3 min", "2 h 5 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
