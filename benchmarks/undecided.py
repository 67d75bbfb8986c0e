"""Soft margins and priors of every norm on random problems: which end undecided?

*powers* are 1,176 soft margins in l_p with 1.1 <= p <= 1.75: seven families of tests/problems.py, six sizes up to
(60, 20, 24), seven exponents and four C. *regularised* draws a norm (also from :mod:`attsvm.norms`), a family,
a size, C, a loss and a prior at random. The random order of the instances is always the same, so that the first few
hundred are an even sample.
The option --out appends each finished instance as a line of JSON, and skips instances in the file.

--seed draws another order, and other instances of *regularised*.

    python benchmarks/undecided.py powers|regularised [--count 300] [--limit 30] [--seed 0] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("ATTSVM_COMPILE", "first")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np  # noqa: E402

import problems  # noqa: E402
from attsvm import SelectionProblem, Status, norms, solve  # noqa: E402
from attsvm.core.norms import Norm  # noqa: E402

EXPONENTS = (1.1, 1.2, 1.25, 1.3, 1.4, 1.5, 1.75)
COSTS = (0.1, 1.0, 10.0, 100.0)
POWER_SIZES = ((6, 8, 10), (10, 5, 4), (15, 15, 20), (30, 10, 8), (50, 20, 20), (60, 20, 24))
POWER_FAMILIES = ("published", "planted", "several", "correlated", "near_duplicates", "masked", "integers")

SIZES = ((4, 4, 4), (8, 5, 5), (12, 6, 6), (15, 15, 20), (30, 10, 8))
ANY_NORM: dict[str, Callable[[int, int], Norm | str | float]] = {
    **{name: lambda d, dz, name=name: name for name in ("frobenius", "nuclear", "spectral", "max")},
    **{f"l_{p:g}": lambda d, dz, p=p: p for p in (1.0, 1.3, 3.0, 8.0)},
    "schatten-1.5": lambda d, dz: norms.Schatten(1.5),
    "ky-fan-2": lambda d, dz: norms.KyFan(2),
    "group lasso": lambda d, dz: norms.Mixed(2, 1),
    "columns inf 1": lambda d, dz: norms.Mixed(np.inf, 1, "columns"),
    "weighted 1": lambda d, dz: norms.Weighted(np.linspace(0.5, 2.0, d * dz).reshape(d, dz), 1),
    "mahalanobis": lambda d, dz: norms.Mahalanobis(np.diag(np.linspace(0.5, 2.0, d)), np.eye(dz), "frobenius"),
    "frobenius + nuclear": lambda d, dz: norms.Sum("frobenius", "nuclear"),
    "max of spectral, rows 2 1": lambda d, dz: norms.Largest("spectral", norms.Mixed(2, 1)),
}
LOSSES = ("hinge", "squared_hinge")

Instance = tuple[str, SelectionProblem, Norm | str | float, dict[str, Any]]


def instance_of(family: str, size: tuple[int, int, int], seed: int) -> SelectionProblem:
    """Draw one problem, as tests/problems.py does."""
    return problems.FAMILIES[family].make(np.random.default_rng([seed, *size]), *size)


def powers(order: np.random.Generator) -> Iterator[Instance]:
    """Yield (label, problem, norm, options) of the soft margins in l_p."""
    grid = list(product(POWER_FAMILIES, POWER_SIZES, EXPONENTS, COSTS))
    for k in order.permutation(len(grid)):
        family, size, p, C = grid[k]
        yield f"{family} {size} p={p} C={C:g}", instance_of(family, size, 0), p, {"C": C}


def regularised(order: np.random.Generator) -> Iterator[Instance]:
    """Yield (label, problem, norm, options) without end: norms in a fixed order, everything else random."""
    while True:
        for name, norm in ANY_NORM.items():
            family = str(order.choice(list(problems.FAMILIES)))
            size, seed = SIZES[order.integers(len(SIZES))], int(order.integers(1000))
            problem = instance_of(family, size, seed)
            kind = order.choice(["soft", "soft and prior", "prior"])
            options: dict[str, Any] = {}
            if kind != "prior":
                options = {"C": float(10.0 ** order.uniform(-2, 4)), "loss": str(order.choice(LOSSES))}
            if kind != "soft":
                options["prior"] = order.standard_normal(problem.shape[2:])
            settings = ", ".join(f"{key}={value}" for key, value in options.items() if key != "prior")
            label = f"{name}: {family} {size} seed {seed}, {kind}, {settings}"
            yield label, problem, norm(*problem.shape[2:]), options


SWEEPS = {"powers": powers, "regularised": regularised}


def main() -> None:
    """Print every undecided instance, and their number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", choices=SWEEPS)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--limit", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out is not None and options.out.exists() else []
    rows = {row["label"]: row for row in map(json.loads, lines)}
    instances = SWEEPS[options.sweep](np.random.default_rng(options.seed))
    for _, (label, problem, norm, arguments) in zip(range(options.count), instances, strict=False):
        if label in rows:
            continue
        start = time.process_time()
        solution = solve(problem, norm, time_limit=options.limit, **arguments)
        seconds = time.process_time() - start
        row = {"label": label, "status": solution.status.name, "gap": float(solution.gap), "seconds": seconds}
        rows[label] = row
        if solution.status not in (Status.OPTIMAL, Status.INFEASIBLE):
            print(f"{solution.status.name} at gap {solution.gap:.1e} after {seconds:.1f} s: {label}", flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    final = sum(row["status"] in ("OPTIMAL", "INFEASIBLE") for row in rows.values())
    print(f"{len(rows)} instances, {len(rows) - final} of them undecided")


if __name__ == "__main__":
    main()
