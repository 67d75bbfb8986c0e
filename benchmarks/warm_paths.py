"""Time with and without a warm start along a path of slightly changed tokens, in every norm.

    OMP_NUM_THREADS=1 python warm_paths.py [NORM ...]

Every step moves all tokens by a relative Gaussian change. Each problem is solved without a warm start and from the
previous solution. Times are medians over the steps of the processor time of one solve, the least of three runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from instances import planted

from attsvm import SelectionProblem, Solution, solve

NORMS = ("frobenius", "nuclear", "spectral", "max", "1", "1.5", "1.75", "3")
SIZES = ((20, 10, 8), (60, 20, 16))
CHANGES = (1e-3, 1e-4)
STEPS, RUNS = 10, 3


def path(sizes: tuple[int, int, int], change: float) -> list[SelectionProblem]:
    """Return problems whose tokens change while the selection stays."""
    arrays, random = planted(*sizes), np.random.default_rng([3, *sizes])
    problems = [SelectionProblem(**arrays)]
    for _ in range(STEPS):
        arrays["tokens"] = arrays["tokens"] * (1.0 + change * random.standard_normal(arrays["tokens"].shape))
        problems.append(SelectionProblem(**arrays))
    return problems


def timing(run: Callable[[], Solution]) -> tuple[float, Solution]:
    """Return the least processor time in milliseconds, and the answer, which must be optimal."""
    best = np.inf
    for _ in range(RUNS):
        start = time.process_time()
        solution = run()
        best = min(best, time.process_time() - start)
    return 1e3 * best, solution.raise_for_status()


def race(norm: str, sizes: tuple[int, int, int], change: float) -> str:
    """Return one row of the table."""
    first, *rest = path(sizes, change)
    before = solve(first, norm).raise_for_status()
    cold, warm, steps = [], [], []
    for problem in rest:
        from_nothing, scratch = timing(lambda problem=problem: solve(problem, norm))
        from_before, now = timing(lambda problem=problem, before=before: solve(problem, norm, warm_start=before))
        if abs(now.objective - scratch.objective) > 2e-9 * scratch.objective:
            raise RuntimeError(f"{norm} {sizes}: {now.objective} from a start, {scratch.objective} from nothing.")
        cold.append(from_nothing)
        warm.append(from_before)
        steps.append((scratch.iterations, now.iterations))
        before = now
    scratch, start = np.median(cold), np.median(warm)
    many, few = np.median(steps, axis=0)
    return (
        f"| {norm} | {', '.join(map(str, sizes))} | {change:g} | {scratch:.2f} | {start:.2f} | {scratch / start:.1f} | "
        f"{many:.0f} | {few:.0f} |"
    )


if __name__ == "__main__":
    print("| norm | n, T, d | change | cold, ms | warm, ms | ratio | iterations cold | warm |")
    print("|---|---|---|---|---|---|---|---|")
    for norm in sys.argv[1:] or NORMS:
        for sizes in SIZES:
            for change in CHANGES:
                print(race(norm, sizes, change), flush=True)
