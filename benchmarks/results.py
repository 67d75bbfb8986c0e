"""What was measured, and the comparisons every table and goal is computed from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from instances import Instance
from plan import Cell

# Below this a gap is rounding: two answers that reach it are equally accurate.
ROUNDING = 1e-12
# attsvm runs once on the growth curves, asked for this.
ON_CURVES = 1e-9


@dataclass
class Row:
    """A cell and what came of it; ``found`` is the line that measure.py printed."""

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
        """No multipliers came with W, so that its accuracy is its excess over the bound others proved."""
        return self.outcome == "solved" and self.record["gap"] is None

    @property
    def accuracy(self) -> float:
        """Certified gap; infinite without a usable answer."""
        if self.outcome != "solved":
            return np.inf
        gap = self.record["objective"] / self.bound - 1.0 if self.one_sided else self.record["gap"]
        return max(gap, 0.0) if np.isfinite(gap) else np.inf


@dataclass
class Results:
    """Rows as they come, the batch, and which mode was asked for."""

    mode: str
    rows: list[Row] = field(default_factory=list)
    batch: list[dict[str, Any]] = field(default_factory=list)

    def add(self, cell: Cell, record: dict[str, Any]) -> Row:
        row = Row(cell, record)
        self.rows.append(row)
        same = list(self.on(cell.who.norm, cell.instance, cell.axis))
        # Ours alone: a rounded multiplier of a solver that failed proves nothing worth comparing to.
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
        """The fastest attsvm run that is at least so accurate; for an infinite accuracy the default one."""
        runs = [r for r in self.on(norm, instance, axis) if r.cell.who.ours and r.outcome == "solved"]
        if not np.isfinite(accuracy):
            runs = [r for r in self.on(norm, instance, axis) if r.cell.who.name == "attsvm 1e-09"]
            return runs[0] if runs and runs[0].outcome in ("solved", "infeasible") else None
        enough = max(accuracy, ON_CURVES if axis else ROUNDING)
        able = [r for r in runs if r.accuracy <= enough]
        return min(able, key=lambda r: r.seconds, default=None)

    def ratio(self, row: Row) -> float:
        """Seconds of a contestant over those of attsvm at the same accuracy; for a limit, a lower bound on that."""
        if row.outcome not in ("solved", "limit", "no W", "infeasible"):
            return np.nan
        ours = self.ours(row.cell.who.norm, row.cell.instance, row.accuracy, row.cell.axis)
        return np.nan if ours is None else row.seconds / ours.seconds

    def batch_seconds(self, runner: str, cores: int) -> float:
        times = [b["seconds"] for b in self.batch if (b["runner"], b["cores"]) == (runner, cores) and "seconds" in b]
        return times[0] if times else np.nan
