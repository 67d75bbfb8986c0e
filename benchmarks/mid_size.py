"""The Frobenius schedule beside each of its methods, at sizes where choosing wrongly costs most.

Every family of tests/problems.py at (100, 32, 24) and (200, 32, 24), the multiclass corner (queries outnumber the
dimensions), and one query direction with thousands of queries. Times are processor time of one thread; the ratio is
that of `solve` to the best single method.

    python benchmarks/mid_size.py [--seeds 5] [--limit 60] [--family several ...]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np  # noqa: E402

import problems  # noqa: E402
from attsvm import SelectionProblem, Status, solve  # noqa: E402

SIZES = ((100, 32, 24), (200, 32, 24))
ONE_DIRECTION = ((1000, 10, 20), (2000, 16, 3), (5000, 16, 4))
METHODS = (None, "active_set", "coordinate_newton", "interior_point")
DECIDED = (Status.OPTIMAL, Status.INFEASIBLE)
REPEATS, SHORT = 3, 1.0  # runs below this many seconds are repeated


def multiclass(classes: int, inputs: int, d: int) -> SelectionProblem:
    """Class vectors as tokens, inputs as queries, the label selected."""
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((inputs, d))
    labels = (queries @ rng.standard_normal((d, classes))).argmax(axis=1)
    return SelectionProblem(np.eye(classes)[None], queries, labels, sequence=np.zeros(inputs, dtype=int))


def one_direction(n: int, T: int, d: int) -> SelectionProblem:
    """A shared query of one dimension, planted: the tokens of every sequence are ranked by one vector."""
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((n, T, d))
    return SelectionProblem(tokens, np.ones((n, 1)), (tokens @ rng.standard_normal(d)).argmax(axis=1))


def instances(families: list[str], seeds: int) -> Iterator[tuple[str, SelectionProblem]]:
    """Yield (label, problem)."""
    for name in families:
        for size in SIZES:
            for seed in range(seeds):
                rng = np.random.default_rng([seed, *size])
                yield f"{name} {size} seed {seed}", problems.FAMILIES[name].make(rng, *size)
    yield "multiclass (750, 15, 25)", multiclass(15, 750, 25)
    for size in ONE_DIRECTION:
        yield f"one direction {size}", one_direction(*size)


def seconds(problem: SelectionProblem, method: str | None, limit: float) -> tuple[float, str]:
    """Return the least processor time of a few runs (infinite when undecided), and what ran."""
    best, ran = np.inf, ""
    for _ in range(REPEATS):
        start = time.process_time()
        solution = solve(problem, method=method, time_limit=limit)
        spent = time.process_time() - start
        ran = solution.method
        if solution.status in DECIDED:
            best = min(best, spent)
        if spent > SHORT:
            break
    return best, ran


def main() -> None:
    """Print a row an instance, and the worst ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--family", nargs="*", default=list(problems.FAMILIES))
    options = parser.parse_args()
    print(f"{'instance':<44} {'solve':>8} {'active':>8} {'passes':>8} {'interior':>8} {'ratio':>6}  ran")
    for method in METHODS:  # compiles
        solve(problems.planted(np.random.default_rng(0), 60, 20, 16), method=method)
    ratios = []
    for label, problem in instances(options.family, options.seeds):
        times = [seconds(problem, method, options.limit) for method in METHODS]
        ratios.append(times[0][0] / min(spent for spent, _ in times[1:]))
        row = " ".join(f"{spent:8.3f}" for spent, _ in times)
        print(f"{label:<44} {row} {ratios[-1]:6.2f}  {times[0][1]}", flush=True)
    print(f"{len(ratios)} instances, ratio median {np.median(ratios):.2f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
