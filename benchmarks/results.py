"""The measurements, and the comparisons from which every table and goal is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from instances import Instance
from plan import Cell

# Gap below which answers are equally accurate, because rounding dominates.
ROUNDING = 1e-12
# Tolerance of attsvm on the growth curves.
ON_CURVES = 1e-9


@dataclass
class Row:
    """A cell and its result; ``found`` is the line that measure.py printed."""

    cell: Cell
    record: dict[str, Any]
    bound: float = np.nan  # the best proven lower bound on the norm, over all contestants

    @property
    def outcome(self) -> str:
        return self.record["outcome"]

    @property
    def seconds(self) -> float:
        return self.record.get("seconds", np.nan)

    @property
    def one_sided(self) -> bool:
        """Whether W came without multipliers; its accuracy is then its excess over the bound that others proved."""
        return self.outcome == "solved" and self.record["gap"] is None

    @property
    def accuracy(self) -> float:
        """The certified gap; infinite without a usable answer."""
        if self.outcome != "solved":
            return np.inf
        gap = self.record["objective"] / self.bound - 1.0 if self.one_sided else self.record["gap"]
        return max(gap, 0.0) if np.isfinite(gap) else np.inf


@dataclass
class Results:
    """Rows in the order of measurement, the batch, and the mode."""

    mode: str
    rows: list[Row] = field(default_factory=list)
    batch: list[dict[str, Any]] = field(default_factory=list)

    def add(self, cell: Cell, record: dict[str, Any]) -> Row:
        row = Row(cell, record)
        self.rows.append(row)
        same = list(self.on(cell.who.norm, cell.instance, cell.axis))
        # Only ours: multipliers of a solver that failed prove no useful bound.
        bounds = [r.record["bound"] for r in same if r.outcome == "solved" and r.cell.who.ours]
        for each in same:
            each.bound = max(bounds, default=np.nan)
        return row

    def on(self, norm: str, instance: Instance, axis: str = "") -> Iterator[Row]:
        place = (norm, instance, axis)
        return (r for r in self.rows if (r.cell.who.norm, r.cell.instance, r.cell.axis) == place)

    def get(self, name: str, norm: str, instance: Instance) -> Row | None:
        return next((r for r in self.on(norm, instance) if r.cell.who.name == name), None)

    def ours(self, norm: str, instance: Instance, accuracy: float, axis: str = "") -> Row | None:
        """Return the fastest attsvm run of at least this accuracy; the default run if the accuracy is infinite."""
        runs = [r for r in self.on(norm, instance, axis) if r.cell.who.ours and r.outcome == "solved"]
        if not np.isfinite(accuracy):
            runs = [r for r in self.on(norm, instance, axis) if r.cell.who.name == "attsvm 1e-09"]
            return runs[0] if runs and runs[0].outcome in ("solved", "infeasible") else None
        enough = max(accuracy, ON_CURVES if axis else ROUNDING)
        able = [r for r in runs if r.accuracy <= enough]
        return min(able, key=lambda r: r.seconds, default=None)

    def ratio(self, row: Row) -> float:
        """Return seconds of a contestant over seconds of attsvm at the same accuracy; for a limit, a lower bound."""
        if row.outcome not in ("solved", "limit", "no W", "infeasible"):
            return np.nan
        ours = self.ours(row.cell.who.norm, row.cell.instance, row.accuracy, row.cell.axis)
        return np.nan if ours is None else row.seconds / ours.seconds

    def batch_seconds(self, runner: str, cores: int) -> float:
        times = [b["seconds"] for b in self.batch if (b["runner"], b["cores"]) == (runner, cores) and "seconds" in b]
        return times[0] if times else np.nan
