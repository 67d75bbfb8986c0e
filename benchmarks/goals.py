"""The goals set before the solvers were written, computed from the measurements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from instances import Instance
from peers import DAQP, LIBLINEAR, OFFICIAL
from plan import FROBENIUS, MAPPED, NUCLEAR, TABLES
from results import Results, Row

SMALL = Instance("off", (6, 8, 10))
MEDIUM = Instance("off", (15, 15, 20))
LARGER = Instance("planted", (100, 32, 32))
LARGEST = Instance("planted", (1000, 64, 64))


@dataclass(frozen=True)
class Goal:
    """``value`` next to its ``target``; ``least`` marks a bound from a run that reached its time limit."""

    what: str
    target: float
    value: float
    unit: str = "x"
    at_most: bool = False
    least: bool = False
    note: str = ""

    @property
    def verdict(self) -> str:
        if not np.isfinite(self.value):
            return "not measured"
        is_met = self.value <= self.target if self.at_most else self.value >= self.target
        if is_met:
            return "met"
        return "not shown: the other met its limit" if self.least else "**not met**"

    def cells(self) -> tuple[str, str, str, str]:
        sign = "<=" if self.at_most else ">="
        value = "" if not np.isfinite(self.value) else f"{'> ' if self.least else ''}{self.value:.3g} {self.unit}"
        return self.what, f"{sign} {self.target:g} {self.unit}", value.strip(), f"{self.verdict}{self.note}"


def goals(results: Results, cores: int) -> list[Goal]:
    each, each_single = results.batch_seconds("attsvm", cores), results.batch_seconds("attsvm", 1)
    over_daqp = min(results.batch_seconds("daqp", c) / results.batch_seconds("attsvm", c) for c in {1, cores})
    out = [
        Goal("batch of 2000 at (6, 8, 10), all cores, each", 30.0, 1e6 * each, "us", at_most=True),
        Goal("that batch: time of naive cvxpy over ours", 1000.0, results.batch_seconds("naive", 1) / each_single),
        Goal("that batch: time of daqp on the same cores over ours", 2.5, over_daqp),
        _ratio(results, FROBENIUS, MEDIUM, [OFFICIAL], 1000.0),
        _ratio(results, FROBENIUS, MEDIUM, DAQP, 5.0),
        _ratio(results, FROBENIUS, LARGER, [OFFICIAL], 5000.0),
        _ratio(results, FROBENIUS, LARGER, [LIBLINEAR], 25.0),
        _ratio(results, FROBENIUS, LARGEST, [LIBLINEAR], 20.0),
        _memory(results),
    ]
    for instance in TABLES[FROBENIUS]:
        if instance.family == "digits":
            out.append(_ratio(results, FROBENIUS, instance, DAQP, 1.0))
    out += [
        _ratio(results, NUCLEAR, MEDIUM, [OFFICIAL], 25.0),
        _ratio(results, NUCLEAR, LARGER, [OFFICIAL], 350.0),
        _ratio(results, NUCLEAR, LARGER, [OFFICIAL], 190.0, accuracy=1e-13),
        _faster(results),
        *_mapped(results),
    ]
    return out


def _ratio(
    results: Results, norm: str, instance: Instance, names: Iterable[str], target: float, accuracy: float | None = None
) -> Goal:
    """Return the least ratio over the named contestants that gave an answer, or whose limit bounds it."""
    rows = [row for name in names if (row := results.get(name, norm, instance)) is not None]
    rivals = " or ".join(sorted({r.cell.who.name for r in rows} or set(names)))
    what = f"{norm}, {instance.name}: time of {rivals} over ours"
    pairs: list[tuple[float, bool]] = []
    for row in rows:
        value = results.ratio(row)
        if accuracy is not None:
            ours = results.get(f"attsvm {accuracy:.0e}", norm, instance)
            good = ours is not None and ours.accuracy <= accuracy
            value = row.seconds / ours.seconds if good and ours is not None else np.nan
        if row.outcome in ("solved", "limit") and np.isfinite(value):
            pairs.append((value, row.outcome == "limit"))
    value, least = min(pairs, default=(np.nan, False))
    return Goal(what + (f", attsvm at {accuracy:.0e}" if accuracy else ""), target, value, least=least)


def _memory(results: Results) -> Goal:
    ours, theirs = results.get("attsvm 1e-09", FROBENIUS, LARGEST), results.get(LIBLINEAR, FROBENIUS, LARGEST)
    value = np.nan
    if ours is not None and theirs is not None and "memory" in ours.record and "memory" in theirs.record:
        value = theirs.record["memory"] / ours.record["memory"]
    return Goal(f"{FROBENIUS}, {LARGEST.name}: memory of {LIBLINEAR} over ours", 8.0, value)


def faster(results: Results, growth: bool = False) -> list[tuple[Row, float]]:
    """List contestants faster than attsvm at the same accuracy, on feasible instances of tables or curves."""
    out = []
    for row in results.rows:
        if not row.cell.who.ours and bool(row.cell.axis) == growth and np.isfinite(row.accuracy):
            ratio = results.ratio(row)
            if ratio < 1.0:
                out.append((row, ratio))
    return out


def descriptions(pairs: list[tuple[Row, float]]) -> list[str]:
    return sorted({f"{r.cell.who.name} on {r.cell.who.norm} {r.cell.instance.name} ({q:.2f}x)" for r, q in pairs})


def _faster(results: Results) -> Goal:
    pairs = faster(results)
    names = descriptions(pairs)
    measured = any(not row.cell.who.ours and not row.cell.axis for row in results.rows)
    note = f": {'; '.join(names)}" if names else ""
    return Goal(
        "instances on which a generic solver is faster at the same accuracy", 0.0,
        float(len({(r.cell.who.norm, r.cell.instance) for r, _ in pairs})) if measured else np.nan,
        "", at_most=True, note=note,
    )  # fmt: skip


def _mapped(results: Results) -> list[Goal]:
    n, T, d = MAPPED.sizes
    rows = list(results.on(FROBENIUS, MAPPED))
    row = rows[0] if rows else None
    gap = row.accuracy if row is not None else np.nan
    memory = row.record.get("memory", np.nan) / (8 * n * T * d) if row is not None else np.nan
    return [
        Goal(f"memory map {MAPPED.sizes}: gap", 1e-6, gap, "", at_most=True),
        Goal(f"memory map {MAPPED.sizes}: peak memory over size of the tokens", 1.5, memory, at_most=True),
    ]
