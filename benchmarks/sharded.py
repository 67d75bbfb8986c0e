"""Rounds, bytes and time of problems in pieces, as n, T, d and workers grow, with fitted exponents.

python benchmarks/sharded.py [--full] [--out FILE]
python benchmarks/sharded.py --mapped N FOLDER
python benchmarks/sharded.py --random-matrix N T D
python benchmarks/sharded.py --words N V D
python benchmarks/sharded.py --passes

The second command writes an instance of size (N, 64, 64) into the folder and reads it from there. The third makes an
instance of size (N, T, D), the fourth selects the next of V words after N contexts. They print each round with its
processor seconds and peak memory. The last prints the cost of a pass over all constraints.

In every instance a Gaussian matrix selects, so that a W exists. Shards hold at least a hundred queries. Processor
seconds count this process and its worker processes, and do not depend on the load of the machine. Exponents are least
squares slopes in logarithms along one size, with the others fixed.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from instances import Instance, planted, write

from attsvm import ShardedProblem, solve
from attsvm.solvers.common.control import IterationState
from attsvm.solvers.working_sets.pricing import Request, price

# Sizes that are fixed while one grows, and the values of the growing size.
BASE = {"n": 2000, "T": 16, "d": 10}
QUICK = {"n": (500, 1000, 2000, 4000, 8000), "T": (4, 8, 16, 32), "d": (4, 6, 10, 14)}
FULL = {"n": (1000, 4000, 16000, 64000, 256000), "T": (4, 8, 16, 32, 64), "d": (4, 8, 12, 16, 24, 32)}
WORKERS = (1, 2, 4)
SHARDS = 16


def measured(n: int, T: int, d: int, workers: int | None = None) -> dict[str, Any]:
    """Solve one instance; returns its costs."""
    arrays = planted(n, T, d)
    pieces = ShardedProblem.from_arrays(**arrays, chunk=max(100, n // SHARDS))
    start, processor = time.perf_counter(), _processor()
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
        "wall": time.perf_counter() - start,
    }


def _processor() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def next_words(n: int, V: int, d: int) -> ShardedProblem:
    """Select the word that a Gaussian matrix scores highest after n contexts, a thousand contexts at a time."""
    rng = np.random.default_rng([10, n, V, d])
    words, contexts, teacher = rng.standard_normal((V, d)), rng.standard_normal((n, d)), rng.standard_normal((d, d))
    parts = (contexts[start : start + 1000] @ teacher.T @ words.T for start in range(0, n, 1000))
    return ShardedProblem.from_vocabulary(contexts, np.concatenate([part.argmax(axis=1) for part in parts]), words)


def follow(problem: ShardedProblem) -> None:
    """Solve one large instance, and print the costs of its rounds."""
    start = _processor()

    def elapsed() -> str:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        return f"{_processor() - start:.1f} processor seconds, {memory:.2f} GB"

    def say(state: IterationState) -> None:
        print(f"gap {state.gap:.1e}, {elapsed()}, {state.method}", flush=True)

    solution = solve(problem, callback=say)
    working = ", ".join(f"{one.working:,}" for one in solution.rounds)
    print(f"{elapsed()}\nconstraints of the working set, round by round: {working}\n{solution}")


def passes() -> None:
    """Print the processor time of a pass per constraint on one core, the least of three."""
    problems = {
        f"tokens (2000, 64, {d}), {width}": ShardedProblem.from_arrays(
            **(arrays | {"tokens": arrays["tokens"].astype(width)}), chunk=2000
        )
        for d in (10, 64)
        for arrays in (planted(2000, 64, d),)
        for width in ("float64", "float32")
    }
    problems |= {f"10,000 words, 300 contexts, d = {d}": next_words(300, 10_000, d) for d in (10, 64)}
    for name, pieces in problems.items():
        (source,) = pieces.shards
        shard = source.open()
        W = np.random.default_rng(0).standard_normal((shard.tokens.shape[2], shard.queries.shape[1]))
        request, none, seconds = (
            Request(W, hinge=False, hard=True, room=4096),
            np.zeros((0, 2), dtype=np.int64),
            [],
        )
        for _ in range(3):
            start = time.process_time()
            rejected = price(source, 0, none, request).rejected
            seconds.append(time.process_time() - start)
        print(f"{name}: {1e9 * min(seconds) / rejected:.0f} ns a constraint of {rejected:,}", flush=True)


def exponent(rows: list[dict[str, Any]], size: str, quantity: str) -> float:
    """Fit the slope of a quantity over a size, in logarithms."""
    x, y = (np.log([max(row[name], 1e-9) for row in rows]) for name in (size, quantity))
    return float(np.polyfit(x, y, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--mapped", nargs=2)
    parser.add_argument("--random-matrix", nargs=3, type=int)
    parser.add_argument("--words", nargs=3, type=int)
    parser.add_argument("--passes", action="store_true")
    options = parser.parse_args()
    measured(200, 8, 4)  # compiles
    if options.mapped is not None:
        instance = Instance("planted", (int(options.mapped[0]), 64, 64))
        # A separate process, so that its peak memory belongs to the solver.
        with ProcessPoolExecutor(1, get_context("spawn")) as writer:
            folder = writer.submit(write, instance, Path(options.mapped[1]), mapped=True).result()
        follow(ShardedProblem.from_folder(folder))
        return
    if options.random_matrix is not None:
        chunk = max(100, options.random_matrix[0] // SHARDS)
        follow(ShardedProblem.from_arrays(**planted(*options.random_matrix), chunk=chunk))
        return
    if options.passes:
        passes()
        return
    if options.words is not None:
        follow(next_words(*options.words))
        return
    every: list[dict[str, Any]] = []
    for size, values in (FULL if options.full else QUICK).items():
        rows = [measured(**(BASE | {size: value})) for value in values]
        every += rows
        for row in rows:
            text = (
                f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()
            )
            print(" ".join(text))
        slopes = {name: exponent(rows, size, name) for name in ("rounds", "working", "inner", "passes", "processor")}
        print(f"exponents in {size}: " + ", ".join(f"{name} {slope:.2f}" for name, slope in slopes.items()), flush=True)
    for workers in WORKERS:
        row = measured(**BASE, workers=workers)
        every.append(row)
        text = ("workers", "sent", "received", "rounds", "processor")
        print(" ".join(f"{key}={row[key]}" for key in text), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
