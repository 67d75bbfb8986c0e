"""Rescue parts of the solvers, removed one at a time: which statuses differ, and how much slower is the rest?

An instance is solved once while the parts that act on it are counted. It is then solved again without each part that
acted; a part that did not act changes neither status nor time. Seconds are processor seconds of one thread, and runs
below a second are repeated (least of two). The suites are in benchmarks/knock_out_suites.py.

A part stays if without it a realistic instance gets a worse status or takes three times as long. The limit is wall
time: on a busy machine, a TIME_LIMIT counts only if the processor seconds are several times larger.
The option --out appends each finished instance as a line of JSON, and skips instances in the file.

    python benchmarks/knock_outs.py [--suite named classes ...] [--part restart ...] [--limit 30] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("ATTSVM_COMPILE", "first")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
from knock_out_suites import SUITES, Instance  # noqa: E402

from attsvm import solve  # noqa: E402
from attsvm.proofs.certified import certify  # noqa: E402
from attsvm.solvers import answers, in_memory, solving  # noqa: E402
from attsvm.solvers.common import refinement  # noqa: E402
from attsvm.solvers.interior_point import general, semidefinite, terms  # noqa: E402
from attsvm.solvers.nuclear import portfolio  # noqa: E402

FINAL = ("OPTIMAL", "INFEASIBLE")
# Ratio of times above which a part stays, and seconds below which a time gives no ratio.
SLOWER, SHORTEST = 3.0, 5e-3
REPEATED = 1.0  # seconds below which a run is repeated


@dataclass(frozen=True)
class Part:
    """One part: where its name is looked up, its replacement, and whether a call of it acts.

    ``acts`` gets the arguments and the result, which is None for a generator.
    """

    owners: tuple[Any, ...]
    name: str
    instead: Callable[..., Any]
    acts: Callable[[tuple[Any, ...], Any], bool] = lambda arguments, result: True

    def counted(self, hits: Counter[str], label: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the part so that calls which act are counted."""

        def call(*arguments: Any, **options: Any) -> Any:
            result = whole(*arguments, **options)
            hits[label] += self.acts(arguments, None if isinstance(result, Generator) else result)
            return result

        return call


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _no_steps(*_: Any, **__: Any) -> Iterator[float]:
    return iter(())


def _not_finished(*_: Any, **__: Any) -> bool:
    return False


def _as_it_is(program: Any, W: Any, dual: Any, _: float) -> Any:
    return certify(program, W, dual)


def _is_open(arguments: tuple[Any, ...], _: Any) -> bool:
    control = arguments[1]
    return not (control.solved or control.stopped)


def _found(_: tuple[Any, ...], result: Any) -> bool:
    return result is not None


def _refined(arguments: tuple[Any, ...], result: Any) -> bool:
    program, W, dual, _ = arguments
    return result.gap < certify(program, W, dual).gap


PARTS = {
    "vertex": Part((terms.LinearTerm,), "finish", _not_finished),
    "alignment": Part((semidefinite.SpectralTerm,), "finish", _not_finished),
    "refinement": Part((answers,), "refine", _as_it_is, _refined),
    "refinement of W": Part((refinement,), "_correct", _nothing, _found),
    "restart": Part((general,), "restart", _no_steps),
    "resumed path": Part((general, portfolio), "resume", _no_steps, _is_open),
    "hard margin for large C": Part((general,), "_without_loss", _no_steps),
    "outer loop as a turn": Part(
        (in_memory,), "beside_rounds", lambda setting, work, whole, rounds: [whole], lambda _, turns: len(turns) > 1
    ),
    "opposite demands": Part((solving,), "opposite_demands", _nothing, _found),
    "blocks": Part((solving,), "solve_blocks", _nothing, _found),
}


@contextmanager
def counting(hits: Counter[str]) -> Iterator[None]:
    """Count which parts act."""
    with ExitStack() as stack:
        for label, part in PARTS.items():
            for owner in part.owners:
                whole = getattr(owner, part.name)
                stack.enter_context(patch.object(owner, part.name, part.counted(hits, label, whole)))
        yield


@contextmanager
def without(label: str) -> Iterator[None]:
    """Run without one part."""
    part = PARTS[label]
    with ExitStack() as stack:
        for owner in part.owners:
            stack.enter_context(patch.object(owner, part.name, part.instead))
        yield


def timed(instance: Instance, limit: float) -> tuple[float, str, float]:
    """Solve; returns processor seconds (the least of two short runs), status and gap."""
    best = np.inf
    for _ in range(2):
        problem = instance.make()
        start = time.process_time()
        solution = solve(problem, instance.norm, time_limit=limit, **instance.options)
        best = min(best, time.process_time() - start)
        if best > REPEATED:
            break
    return best, solution.status.name, float(solution.gap)


def knock_out(instance: Instance, parts: list[str], limit: float) -> dict[str, Any]:
    """Solve an instance as it is, and without each of the parts that act on it."""
    hits: Counter[str] = Counter()
    with counting(hits):
        solve(instance.make(), instance.norm, time_limit=limit, **instance.options)  # a first run, which compiles
    acting = [label for label in parts if hits[label]]
    row: dict[str, Any] = {"label": instance.label, "without": {}}
    if not acting:
        return row
    row["whole"] = timed(instance, limit)
    for label in acting:
        with without(label):
            row["without"][label] = timed(instance, limit)
    return row


def verdict(row: dict[str, Any], label: str) -> str:
    """Describe the effect of removing a part on one instance; empty if it is small."""
    (seconds, status, gap), (seconds_without, status_without, gap_without) = row["whole"], row["without"][label]
    ratio = seconds_without / seconds
    if status == status_without and (max(seconds, seconds_without) < SHORTEST or 1 / SLOWER < ratio < SLOWER):
        return ""
    return (
        f"without {label}: {status} -> {status_without}, gap {gap:.0e} -> {gap_without:.0e}, "
        f"{seconds:.3f} -> {seconds_without:.3f} s, {row['label']}"
    )


def summary(rows: list[dict[str, Any]], label: str) -> str:
    """Count what a part decides and the ratios of times without it."""
    acted = [row for row in rows if label in row["without"]]
    pairs = [(row["whole"], row["without"][label]) for row in acted]
    lost = sum(whole[1] in FINAL and part[1] not in FINAL for whole, part in pairs)
    gained = sum(whole[1] not in FINAL and part[1] in FINAL for whole, part in pairs)
    decided = [(whole, part) for whole, part in pairs if whole[1] == part[1] in FINAL and whole[0] > SHORTEST]
    ratios = sorted(part[0] / whole[0] for whole, part in decided)
    spread = "-"
    if ratios:
        spread = ", ".join(f"{ratios[int(share * (len(ratios) - 1))]:.2f}" for share in (0.0, 0.5, 1.0))
    slower = sum(ratio >= SLOWER for ratio in ratios)
    return f"| {label} | {len(acted)} | {lost} | {gained} | {slower} | {spread} |"


def main() -> None:
    """Print every change, then a row for each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--limit", type=float, default=30.0)
    parser.add_argument("--count", type=int, default=300, help="instances of a suite, at most")
    parser.add_argument("--only", default="", help="part of the label")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = options.out.read_text().splitlines() if options.out is not None and options.out.exists() else []
    rows = {row["label"]: row for row in map(json.loads, lines)}
    for suite in options.suite:
        for instance in islice(SUITES[suite](), options.count):
            if options.only not in instance.label or instance.label in rows:
                continue
            row = rows[instance.label] = knock_out(instance, options.part, options.limit)
            for label in row["without"]:
                line = verdict(row, label)
                if line:
                    print(line, flush=True)
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print(f"{len(rows)} instances")
    print("| without | acts on | decided no more | decided only now | 3 times as slow | ratio least, median, most |")
    print("|---|---:|---:|---:|---:|---:|")
    for label in options.part:
        print(summary(list(rows.values()), label))


if __name__ == "__main__":
    main()
