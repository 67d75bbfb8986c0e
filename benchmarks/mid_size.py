"""Times of `solve` and of each of its methods, at sizes where a wrong choice costs most.

The tuned set has every family of tests/problems.py at (100, 32, 24) and (200, 32, 24), classes with more inputs than
dimensions, and thousands of queries in one direction. The held-out set has other sizes, seeds and families. No constant
of :mod:`attsvm.solvers.schedule` was tuned on it, and none may be.

Times are processor seconds of one thread. The ratio divides the time of `solve` by the least time of a single method. A
method is stopped at twice the time of `solve`, because a slower method is not the best. The option --out appends each
finished instance as a line of JSON, and skips instances in the file.

    python benchmarks/mid_size.py [--held-out] [--norm nuclear ...] [--seeds 5] [--family several ...] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")
# Machine code is compiled before the clock starts.
os.environ.setdefault("ATTSVM_COMPILE", "first")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np  # noqa: E402

import problems  # noqa: E402
from attsvm import SelectionProblem, Status, solve  # noqa: E402
from attsvm.core.norms import get_norm  # noqa: E402
from attsvm.solvers.options import METHODS  # noqa: E402

NORMS = ("frobenius", "nuclear", "spectral", "1", "1.5", "3", "max")
SIZES = ((100, 32, 24), (200, 32, 24))
HELD_OUT_SIZES, HELD_OUT_SEED = ((60, 48, 16), (150, 20, 40), (50, 44, 36)), 100
ONE_DIRECTION = ((1000, 10, 20), (2000, 16, 3), (5000, 16, 4))
FINAL = (Status.OPTIMAL, Status.INFEASIBLE)
REPEATS, SHORT = 3, 0.5  # runs below this many seconds are repeated
SLOWER, LEAST = 2.0, 0.2  # limit of a method: multiple of the time of `solve`, and least seconds


@dataclass
class Timing:
    """One instance in one norm: seconds of `solve` and of each method (infinite when it ends undecided)."""

    norm: str
    label: str
    status: str = ""
    ran: str = ""
    automatic: float = np.inf
    methods: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Time of `solve` divided by the least time of a single method; one if no single method decides it."""
        best = min(self.methods.values(), default=np.inf)
        return self.automatic / best if np.isfinite(best) else 1.0 if np.isfinite(self.automatic) else np.nan


def multiclass(classes: int, inputs: int, d: int) -> SelectionProblem:
    """Class vectors as tokens, inputs as queries, the label selected."""
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((inputs, d))
    labels = (queries @ rng.standard_normal((d, classes))).argmax(axis=1)
    return SelectionProblem(np.eye(classes)[None], queries, labels, sequence=np.zeros(inputs, dtype=int))


def one_direction(n: int, T: int, d: int) -> SelectionProblem:
    """A shared query of one dimension: the tokens of every sequence are ranked by one vector."""
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((n, T, d))
    return SelectionProblem(tokens, np.ones((n, 1)), (tokens @ rng.standard_normal(d)).argmax(axis=1))


def tuning_instances(
    families: list[str], sizes: list[tuple[int, ...]], seeds: int
) -> Iterator[tuple[str, SelectionProblem]]:
    """Yield (label, problem) of the instances on which constants may be tuned."""
    for size in sizes or SIZES:
        for name in families or problems.FAMILIES:
            for seed in range(seeds):
                rng = np.random.default_rng([seed, *size])
                yield f"{name} {size} seed {seed}", problems.FAMILIES[name].make(rng, *size)
    if families:
        return
    yield "multiclass (750, 15, 25)", multiclass(15, 750, 25)
    for size in ONE_DIRECTION:
        yield f"one direction {size}", one_direction(*size)


def held_out(families: list[str], sizes: list[tuple[int, ...]], seeds: int) -> Iterator[tuple[str, SelectionProblem]]:
    """Yield (label, problem) of the instances on which no constant was tuned; unseen families come first."""
    makers = {**problems.HELD_OUT, **{name: family.make for name, family in problems.FAMILIES.items()}}
    for size in sizes or HELD_OUT_SIZES:
        for name in families or makers:
            for seed in range(HELD_OUT_SEED, HELD_OUT_SEED + seeds):
                rng = np.random.default_rng([seed, *size])
                yield f"{name} {size} seed {seed}", makers[name](rng, *size)


def seconds(problem: SelectionProblem, norm: str, method: str | None, limit: float) -> tuple[float, float, Status, str]:
    """Return the least processor time of a few runs (infinite if undecided); of the last, wall time, status, method."""
    best = np.inf
    for _ in range(REPEATS):
        clock, start = time.perf_counter(), time.process_time()
        solution = solve(problem, norm, method=method, time_limit=limit)
        cpu, wall = time.process_time() - start, time.perf_counter() - clock
        if solution.status in FINAL:
            best = min(best, cpu)
        if cpu > SHORT or solution.status not in FINAL:
            break
    return best, wall, solution.status, solution.method


def measure(label: str, problem: SelectionProblem, norm: str, limit: float) -> Timing:
    """Time `solve`, then each method until it can no longer be the best."""
    automatic, wall, status, ran = seconds(problem, norm, None, limit)
    timing = Timing(norm, label, status.name, ran, automatic)
    methods = [name for name in METHODS.get(get_norm(norm), {}) if name != "auto"]
    for method in (*methods, "streamed"):
        seconds_allowance = max(LEAST, SLOWER * wall) if np.isfinite(automatic) else limit
        timing.methods[method] = seconds(problem, norm, method, seconds_allowance)[0]
    return timing


def summary(timings: list[Timing]) -> str:
    """Describe the distribution of the ratio, and list instances that are undecided or have a ratio above three."""
    lines = []
    for norm in dict.fromkeys(t.norm for t in timings):
        here = [t for t in timings if t.norm == norm]
        ratios = np.array([t.ratio for t in here if np.isfinite(t.ratio)])
        lines.append(f"{norm}: {len(here)} instances, {len(here) - len(ratios)} undecided")
        if len(ratios):
            lines[-1] += f", ratio median {np.median(ratios):.2f}, 95 % {np.quantile(ratios, 0.95):.2f}"
            lines[-1] += f", worst {ratios.max():.2f}"
        lines += [f"    {t.label}: {t.ratio:.2f}, {t.status}, {t.ran}" for t in here if not t.ratio <= 3.0]
    return "\n".join(lines)


def main() -> None:
    """Print a row per instance, and the distribution of the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--norm", nargs="*", default=["frobenius"], choices=NORMS)
    parser.add_argument("--size", nargs=3, type=int, action="append", default=[], metavar=("n", "T", "d"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--family", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    timings: list[Timing] = []
    if options.out is not None and options.out.exists():
        timings = [Timing(**json.loads(line)) for line in options.out.read_text().splitlines()]
    labels = {(timing.norm, timing.label) for timing in timings}
    instances = held_out if options.held_out else tuning_instances
    sizes = [tuple(size) for size in options.size]
    for norm in options.norm:
        for method in (None, *METHODS.get(get_norm(norm), {})):  # compiles
            solve(problems.planted(np.random.default_rng(0), 60, 20, 16), norm, method=method)
        for label, problem in instances(options.family, sizes, options.seeds):
            if (norm, label) in labels:
                continue
            timings.append(timing := measure(label, problem, norm, options.limit))
            row = " ".join(f"{method} {cpu:.3f}" for method, cpu in timing.methods.items())
            print(f"{norm:<9} {label:<44} {timing.automatic:7.3f} {timing.ratio:5.2f}  {row}  {timing.ran}", flush=True)
            if options.out is not None:
                with options.out.open("a") as lines:
                    lines.write(json.dumps(asdict(timing)) + "\n")
    print(summary([timing for timing in timings if timing.norm in options.norm]))


if __name__ == "__main__":
    main()
