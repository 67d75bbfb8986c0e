"""Rounds, bytes and time of problems in pieces, as n, T, d and workers grow, with fitted exponents.

python benchmarks/sharded.py [--full] [--out FILE]

Every instance is planted (a Gaussian matrix selects, so that a W exists) and cut into shards of a hundred queries at
least. Processor seconds are those of this process and of the worker processes that it started, so that they say the
same on a busy machine. Exponents are slopes of least squares in logarithms along one size, the others fixed.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
from instances import planted

from attsvm import ShardedProblem, solve

# The sizes that are fixed while one grows; then what each of them grows through.
BASE = {"n": 2000, "T": 16, "d": 10}
QUICK = {"n": (500, 1000, 2000, 4000, 8000), "T": (4, 8, 16, 32), "d": (4, 6, 10, 14)}
FULL = {"n": (1000, 4000, 16000, 64000, 256000), "T": (4, 8, 16, 32, 64), "d": (4, 8, 12, 16, 24, 32)}
WORKERS = (1, 2, 4)
SHARDS = 16


def measured(n: int, T: int, d: int, workers: int | None = None) -> dict[str, Any]:
    """Solve one instance; returns what it took."""
    arrays = planted(n, T, d)
    pieces = ShardedProblem.from_arrays(**arrays, chunk=max(100, n // SHARDS))
    began, processor = time.perf_counter(), _processor()
    solution = solve(pieces, workers=workers)
    rounds = solution.rounds
    return {
        "n": n,
        "T": T,
        "d": d,
        "workers": workers or 0,
        "shards": len(pieces.shards),
        "status": solution.status.name,
        "rounds": len(rounds),
        "working": max(one.working for one in rounds),
        "sent": sum(one.sent for one in rounds),
        "received": sum(one.received for one in rounds),
        "inner": sum(one.inner_seconds for one in rounds),
        "passes": sum(one.pass_seconds for one in rounds),
        "processor": _processor() - processor,
        "wall": time.perf_counter() - began,
    }


def _processor() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def exponent(rows: list[dict[str, Any]], size: str, quantity: str) -> float:
    """Slope of a quantity over a size, in logarithms."""
    x, y = (np.log([max(row[name], 1e-9) for row in rows]) for name in (size, quantity))
    return float(np.polyfit(x, y, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    measured(200, 8, 4)  # compiles
    every: list[dict[str, Any]] = []
    for size, values in (FULL if options.full else QUICK).items():
        rows = [measured(**(BASE | {size: value})) for value in values]
        every += rows
        for row in rows:
            said = (
                f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()
            )
            print(" ".join(said))
        slopes = {name: exponent(rows, size, name) for name in ("rounds", "working", "inner", "passes", "processor")}
        print(f"exponents in {size}: " + ", ".join(f"{name} {slope:.2f}" for name, slope in slopes.items()), flush=True)
    for workers in WORKERS:
        row = measured(**BASE, workers=workers)
        every.append(row)
        said = ("workers", "sent", "received", "rounds", "processor")
        print(" ".join(f"{key}={row[key]}" for key in said), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
