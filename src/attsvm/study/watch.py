"""Progress reports, and requests to stop."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], object]
"""Called with the sentence of the current stage and the fraction of the study done; returning True stops the study."""


class Watch:
    """Reports a study's progress to a caller, and remembers its request to stop.

    ``stages`` has the sentence of each stage, in order, with its usual share of the time.
    """

    def __init__(self, progress: Progress | None, stages: dict[str, float]) -> None:
        self.stopped = False
        self.stopped_in = ""
        self._progress = progress
        self._shares = stages
        self._total = sum(stages.values())
        self._stage = next(iter(stages))
        self._fraction = 0.0

    def enter(self, stage: str) -> bool:
        """Begin a stage; return whether it should run."""
        self._stage = stage
        return not self.inside(0.0)

    def inside(self, fraction: float) -> bool:
        """Report the completed fraction of the stage; return whether to stop."""
        self._fraction = fraction
        if self._progress is not None:
            completed = 0.0
            for stage, share in self._shares.items():
                if stage == self._stage:
                    break
                completed += share
            fraction_of_all = (completed + fraction * self._shares[self._stage]) / self._total
            self.stopped = bool(self._progress(self._stage, fraction_of_all)) or self.stopped
            if self.stopped:
                self.interrupt()
        return self.stopped

    def interrupt(self) -> None:
        """Record the current stage as the one in which the study was stopped."""
        self.stopped = True
        self.stopped_in = self.stopped_in or self._stage

    def poll(self, _state: object) -> bool:
        """Return whether a solver should stop; its progress within a stage is unknown."""
        return self.stopped or self.inside(self._fraction)
