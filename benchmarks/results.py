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
    found: dict[str, Any]
    bound: float = np.nan  # the best proven lower bound on the norm, over all contestants

    @property
    def outcome(self) -> str:
        return self.found["outcome"]

    @property
    def seconds(self) -> float:
        return self.found.get("seconds", np.nan)

    @property
    def one_sided(self) -> bool:
        """No multipliers came with W, so that its accuracy is its excess over the bound others proved."""
        return self.outcome == "solved" and self.found["gap"] is None

    @property
    def accuracy(self) -> float:
        """Certified gap; infinite without a usable answer."""
        if self.outcome != "solved":
            return np.inf
        gap = self.found["objective"] / self.bound - 1.0 if self.one_sided else self.found["gap"]
        return max(gap, 0.0) if np.isfinite(gap) else np.inf


@dataclass
class Results:
    """Rows as they come, the batch, and which mode was asked for."""

    mode: str
    rows: list[Row] = field(default_factory=list)
    batch: list[dict[str, Any]] = field(default_factory=list)

    def add(self, cell: Cell, found: dict[str, Any]) -> Row:
        row = Row(cell, found)
        self.rows.append(row)
        same = list(self.on(cell.who.norm, cell.instance, cell.axis))
        # Ours alone: a rounded multiplier of a solver that failed proves nothing worth comparing to.
        bounds = [r.found["bound"] for r in same if r.outcome == "solved" and r.cell.who.ours]
        for each in same:
            each.bound = max(bounds, default=np.nan)
        return row

    def on(self, norm: str, instance: Instance, axis: str = "") -> Iterator[Row]:
        wanted = (norm, instance, axis)
        return (r for r in self.rows if (r.cell.who.norm, r.cell.instance, r.cell.axis) == wanted)

    def get(self, name: str, norm: str, instance: Instance) -> Row | None:
        return next((r for r in self.on(norm, instance) if r.cell.who.name == name), None)

    def ours(self, norm: str, instance: Instance, accuracy: float, axis: str = "") -> Row | None:
        """The fastest attsvm run that is at least so accurate; for an infinite accuracy the default one."""
        found = [r for r in self.on(norm, instance, axis) if r.cell.who.ours and r.outcome == "solved"]
        if not np.isfinite(accuracy):
            found = [r for r in self.on(norm, instance, axis) if r.cell.who.name == "attsvm 1e-09"]
            return found[0] if found and found[0].outcome in ("solved", "infeasible") else None
        enough = max(accuracy, ON_CURVES if axis else ROUNDING)
        able = [r for r in found if r.accuracy <= enough]
        return min(able, key=lambda r: r.seconds, default=None)

    def ratio(self, row: Row) -> float:
        """Seconds of a contestant over those of attsvm at the same accuracy; for a limit, a lower bound on that."""
        if row.outcome not in ("solved", "limit", "no W", "infeasible"):
            return np.nan
        ours = self.ours(row.cell.who.norm, row.cell.instance, row.accuracy, row.cell.axis)
        return np.nan if ours is None else row.seconds / ours.seconds

    def batch_seconds(self, runner: str, cores: int) -> float:
        found = [b["seconds"] for b in self.batch if (b["runner"], b["cores"]) == (runner, cores) and "seconds" in b]
        return found[0] if found else np.nan
