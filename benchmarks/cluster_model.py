"""What limits a run at 10^9 and 10^12 constraints: a simulation of rounds on many workers.

python benchmarks/cluster_model.py

A round solves the inner problem on one machine. Then every shard evaluates its constraints at the rate of one core, and
the round ends with the slowest shard. Shard times are log-normal around the mean, and one in a thousand takes ten times
longer (another user, a failing disk). Free workers take shards in the order of their numbers, as under dask. Constants
come from docs/cluster.md. Rounds and inner problem are assumed to depend on d only.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

# Seconds of one core per constraint in a pass, for d from 10 to 64.
PRICE_SECONDS = 8e-8
# Seconds that dask takes to start a task, and bytes per second of a network card.
TASK, NETWORK = 1e-3, 1.25e8
SPREAD, STRAGGLERS, SLOW = 0.25, 1e-3, 10.0
# Largest number of rounds measured: (100000, 64, 64), labels from a random matrix.
ROUNDS = 14
# Seconds of the inner problem in a round at d = dz = 10, and its exponent in the entries of W.
INNER, INNER_ENTRIES, INNER_EXPONENT = 0.05, 100, 1.3
SHARD_CONSTRAINTS = 3e7


@dataclass(frozen=True)
class Round:
    """Seconds of the parts of a round."""

    inner: float
    scheduler: float
    traffic: float
    pricing: float
    waiting: float

    @property
    def total(self) -> float:
        return self.inner + self.traffic + max(self.scheduler, self.pricing + self.waiting)


def simulated(constraints: float, d: int, workers: int, seed: int = 0) -> Round:
    """Simulate a round on workers of one core, W (d, d)."""
    rng = np.random.default_rng(seed)
    total = PRICE_SECONDS * constraints
    # The scheduler must be able to start all tasks in the time of the pass.
    shards = int(max(workers, min(constraints / SHARD_CONSTRAINTS, 4 * workers)))
    seconds = total / shards * rng.lognormal(-0.5 * SPREAD**2, SPREAD, shards)
    seconds[rng.random(shards) < STRAGGLERS] *= SLOW
    free = [0.0] * workers
    for one in seconds:
        heapq.heappush(free, heapq.heappop(free) + one)
    slowest, even = max(free), float(seconds.sum()) / workers
    entries = d * d
    inner = INNER * (entries / INNER_ENTRIES) ** INNER_EXPONENT
    exchange = 8 * entries * np.log2(workers + 1) + 8 * 8 * entries * 3 * d
    return Round(inner, shards * TASK, exchange / NETWORK, even, slowest - even)


def main() -> None:
    names = ("inner", "scheduler", "traffic", "pricing", "waiting", "run")
    print(f"{'constraints':>11} {'d':>4} {'workers':>8} " + " ".join(f"{name:>9}" for name in names))
    for constraints in (1e9, 1e12):
        for d in (10, 64):
            for workers in (1, 16, 256, 4096):
                one = simulated(constraints, d, workers)
                parts = (one.inner, one.scheduler, one.traffic, one.pricing, one.waiting, ROUNDS * one.total)
                print(f"{constraints:11.0e} {d:4} {workers:8} " + " ".join(f"{part:9.3g}" for part in parts))


if __name__ == "__main__":
    main()
