"""RESULTS.md from the measurements."""

from __future__ import annotations

import os
import platform
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import growth
import numpy as np
from goals import descriptions, faster, goals
from instances import Instance
from peers import LIBLINEAR, OFFICIAL
from plan import FROBENIUS, LARGEST, MAPPED, NORMS, NUCLEAR, SUM
from results import Results, Row

from attsvm import __version__

PACKAGES = (
    "numpy", "scipy", "numba", "cvxpy", "clarabel", "scs", "daqp", "scikit-learn",
    "qpsolvers", "highspy", "osqp", "piqp", "proxsuite", "quadprog",
)  # fmt: skip
OURS = {
    FROBENIUS: ("attsvm 1e-06", "attsvm 1e-09", "attsvm 1e-13"),
    NUCLEAR: ("attsvm 1e-05", "attsvm 1e-09", "attsvm 1e-13"),
    SUM: ("attsvm 1e-06", "attsvm 1e-09"),
    LARGEST: ("attsvm 1e-06", "attsvm 1e-09"),
}
TITLES = {FROBENIUS: "Frobenius norm", NUCLEAR: "Nuclear norm", SUM: "l_1 norm", LARGEST: "Largest entry"}

METHOD = f"""\
Every solver runs in a process of its own on one thread and reads the same files; each cell is a fork of that process,
so that a crash, a limit or a peak of memory belongs to it alone. Time goes from the tokens to W, forming the
constraints included where a solver needs them as a matrix: the least of repeated runs for short ones, a single run from
about two seconds on. Memory is the peak (`ru_maxrss`) less what was resident before the instance was read.

**gap** is recomputed by `attsvm.proofs.certified.certify` from the solver's W and multipliers, in twice the working
precision: (norm / smallest margin) times (dual norm of A^T lam / sum of lam) less one, whatever the solver says of
itself. {LIBLINEAR} gives no multipliers; its entry, marked †, is the excess of its W over the lower bound that attsvm
proves. **x attsvm** divides its time by that of the fastest attsvm run that is at least as accurate (gaps below 1e-12
count as equal); without a gap, by attsvm at 1e-9. Quadratic programming solvers are asked for 1e-9, scs for 1e-7, the
cvxpy models and clarabel's nuclear program for their defaults; {LIBLINEAR} and libsvm have a hard margin by C = 1e6. An
entry such as "> 10" met that limit on time, so that its ratio is a lower bound; larger instances of the family are then
skipped. On infeasible instances a solver's word is not a proof, whereas attsvm's time includes a certificate that was
checked.
"""


def machine() -> str:
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        name = models[0] if models else name
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{name}, {os.cpu_count()} cores, {memory:.0f} GiB; {platform.system()}, Python {platform.python_version()}"


def versions() -> str:
    lines = [f"attsvm {__version__}"]  # version of the code that ran; an editable installation may state an earlier one
    for package in PACKAGES:
        try:
            lines.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            lines.append(f"{package} not installed")
    return ", ".join(lines)


def seconds_text(row: Row) -> str:
    if row.outcome == "limit":
        return f"> {row.seconds:.0f}"
    return f"{row.seconds:.2g}" if np.isfinite(row.seconds) else ""


def ratio_text(results: Results, row: Row) -> str:
    value = results.ratio(row)
    if not np.isfinite(value) or row.cell.who.ours:
        return ""
    digits = f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
    return ("> " if row.outcome == "limit" else "") + digits


def gap_text(row: Row) -> str:
    if row.outcome != "solved":
        return "" if row.outcome in ("limit", "infeasible") else row.outcome
    if not np.isfinite(row.accuracy):
        return "no bound"
    return f"{row.accuracy:.0e}" + ("†" if row.one_sided else "")


def memory_text(row: Row) -> str:
    return f"{row.record['memory'] / 1e6:,.0f}" if "memory" in row.record else ""


def _instances(results: Results, norm: str) -> list[Instance]:
    return list(dict.fromkeys(r.cell.instance for r in results.rows if r.cell.who.norm == norm and not r.cell.axis))


def summary(results: Results, norm: str) -> list[str]:
    """Return one line per instance: attsvm, the paper's model, and the fastest other solver."""
    lines = [
        f"| instance (n, T, d) | {' | '.join(OURS[norm])} | {OFFICIAL} | fastest other |",
        "|---|" + "---:|" * len(OURS[norm]) + "---:|---|",
    ]
    for instance in _instances(results, norm):
        cells = []
        for name in (*OURS[norm], OFFICIAL):
            row = results.get(name, norm, instance)
            ratio = "" if row is None else ratio_text(results, row)
            cells.append("" if row is None else seconds_text(row) + (f" ({ratio}x)" if ratio else ""))
        rivals = [r for r in results.on(norm, instance) if not r.cell.who.ours and r.cell.who.name != OFFICIAL]
        accurate = [r for r in rivals if np.isfinite(r.accuracy)] or [r for r in rivals if r.outcome == "infeasible"]
        best = min(accurate, key=lambda r: r.seconds, default=None)
        if best is not None:
            text = gap_text(best) or "says infeasible"
            ratio = ratio_text(results, best)
            cells.append(f"{best.cell.who.name} {seconds_text(best)}{f' ({ratio}x)' if ratio else ''}, {text}")
        else:
            cells.append("none in time" if rivals else "")
        lines.append(f"| {instance.name} | " + " | ".join(cells) + " |")
    return lines


def full_table(results: Results, norm: str, instance: Instance) -> list[str]:
    lines = [
        f"### {norm}, {instance.name}", "",
        "| solver | seconds | x attsvm | gap | peak MB | it says |", "|---|---:|---:|---:|---:|---|",
    ]  # fmt: skip
    for row in results.on(norm, instance):
        verdict = row.record.get("verdict", "").replace("|", "/")
        note = f" ({row.cell.who.note})" if row.cell.who.note else ""
        cells = (seconds_text(row), ratio_text(results, row), gap_text(row), memory_text(row), verdict)
        lines.append(f"| {row.cell.who.name}{note} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def wrong(results: Results) -> list[str]:
    """Count how often each solver gave no usable answer, or a claim that attsvm disproves."""
    counts: dict[str, Counter[str]] = {}
    for row in results.rows:
        who = row.cell.who
        if who.ours or row.cell.axis:
            continue
        expected = results.ours(who.norm, row.cell.instance, np.inf)
        if expected is None:
            continue
        tally = counts.setdefault(f"{who.name}, {who.norm}", Counter())
        if expected.outcome == "infeasible" and row.outcome == "no W":
            tally["ended without the verdict infeasible"] += 1
        elif expected.outcome == "solved" and row.outcome in ("infeasible", "no W"):
            tally["no W, or said infeasible, where a W exists"] += 1
        elif row.outcome == "solved" and row.accuracy > 1e-4:
            tally["gap above 1e-4"] += 1
        elif row.outcome in ("error", "memory", "missing", "limit"):
            tally[
                {"memory": "out of memory", "missing": "not installed", "limit": "over the limit"}.get(
                    row.outcome, "crashed"
                )
            ] += 1
    lines = [f"* {who}: " + ", ".join(f"{count} {what}" for what, count in t.items()) for who, t in counts.items() if t]
    return lines or ["* none"]


def batch_table(results: Results) -> list[str]:
    lines = ["| solver | cores | instances | us each | largest gap |", "|---|---:|---:|---:|---:|"]
    for b in results.batch:
        if "seconds" in b:
            row_text = f"{b['count']} | {1e6 * b['seconds']:,.1f} | {b['gap']:.0e}"
        else:
            row_text = f"{b['count']} | {b['verdict']} |"
        lines.append(f"| {b['runner']} | {b['cores']} | {row_text} |")
    return lines


def markdown(
    results: Results, command: str, cells_so_far: int, total: int, cores: int, load: float, picture: str | None
) -> str:
    """Return the report; it is unfinished while ``done`` is below ``total``."""
    state = "" if cells_so_far >= total else f"\n**Unfinished: {cells_so_far} of {total} cells.**\n"
    lines = ["# Solvers side by side", "", f"Written by `{command}`; do not edit.{state}", ""]
    lines += [f"{machine()}. Load average at the start: {load:.1f}.", versions() + ".", "", METHOD]
    if results.mode in ("full", "large"):
        lines += ["## Goals", "", "| goal | target | measured | verdict |", "|---|---:|---:|---|"]
        lines += ["| " + " | ".join(goal.cells()) + " |" for goal in goals(results, cores)]
        if results.mode == "full":
            lines += ["", f"The memory map {MAPPED.sizes} and other long runs are measured by `--large`."]
        lines.append("")
    for norm in NORMS:
        if _instances(results, norm):
            lines += [f"## {TITLES[norm]}, seconds", "", *summary(results, norm), ""]
    if results.batch:
        lines += ["## Batch at (6, 8, 10); infeasible ones at (30, 10, 6)", "", *batch_table(results), ""]
    if any(row.cell.axis for row in results.rows):
        lines += [
            "## Growth",
            "",
            "Exponent of the time in each size, fitted to the three largest sizes within the limit.",
            "",
        ]
        lines += growth.table(results)
        ahead = descriptions(faster(results, growth=True))
        if ahead:
            lines += ["", f"Faster there than attsvm, which was asked for 1e-9: {'; '.join(ahead)}."]
        if picture:
            lines += ["", f"![Seconds over n, T and d, for both norms]({picture})"]
        lines.append("")
    lines += ["## Answers that were not usable", "", *wrong(results), "", "## Every cell", ""]
    for norm in NORMS:
        for instance in _instances(results, norm):
            lines += full_table(results, norm, instance)
    return "\n".join(lines).rstrip() + "\n"
