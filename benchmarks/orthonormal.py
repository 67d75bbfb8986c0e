"""Orthonormal queries (relevance labels, words after contexts): `solve` compared with sparse statements in cvxpy.

*relevance m q k*: m one-hot documents and q one-hot queries. Each query has k random relevant documents, which must
score above all others; no two queries have the same set. *contexts n V*: n one-hot contexts, each followed by one to
five of V words, which tie. Nothing was tuned on the instances of ``HELD_OUT``.

Each peer gets one vectorised sparse statement (``peers_sparse.py``), compiled before the clock starts. Its tolerance
falls by factors of ten from 1e-5 until its answer has a certified gap of 1e-6, which ours must have too. A cell has the
least processor time of alternating runs, and the gap. The last column divides the time of the fastest peer by ours.

    python benchmarks/orthonormal.py [--norms frobenius max nuclear spectral] [--only NAME] [--limit 60] [--ours]
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from itertools import combinations
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("ATTSVM_COMPILE", "first")

import numpy as np  # noqa: E402
from peers_sparse import TOL, Statement, Task, first_accurate  # noqa: E402

from attsvm import SelectionProblem, solve  # noqa: E402

REPEATS = 3
PEERS = {
    "frobenius": ("CLARABEL", "OSQP", "SCS"),
    "max": ("HIGHS", "CLARABEL"),
    "nuclear": ("SCS", "CLARABEL"),
    "spectral": ("SCS", "CLARABEL"),
}
ROWS = (
    "relevance 24 82 2",
    "relevance 46 103 2",
    "relevance 46 1035 2",
    "contexts 40 80",
    "contexts 80 160",
    "contexts 200 400",
)
HELD_OUT = ("relevance 16 60 2", "relevance 31 70 3", "contexts 65 120")
# Side d + dz of a semidefinite cone above which a solver takes more than a minute.
LARGEST_CONES = {"CLARABEL": 60, "SCS": 260}


def relevance(documents: int, queries: int, size: int) -> SelectionProblem:
    """Draw relevant documents, which must score above all others, without ties."""
    rng = np.random.default_rng([21, documents, queries, size])
    sets = np.array(list(combinations(range(documents), size)))
    sets = sets[np.sort(rng.choice(len(sets), queries, replace=False))]
    preferred = np.zeros((queries, documents), bool)
    preferred[np.arange(queries)[:, None], sets] = True
    return SelectionProblem.from_preferences(np.eye(documents), np.eye(queries), preferred)


def contexts(n: int, words: int) -> SelectionProblem:
    """Draw one to five words that follow each context."""
    rng = np.random.default_rng([22, n, words])
    supports = rng.random((n, words)).argsort(axis=1) < rng.integers(1, 6, size=(n, 1))
    return SelectionProblem.from_contexts(np.eye(n), supports)


def make(label: str) -> SelectionProblem:
    """Make the instance of a label."""
    family, *sizes = label.split()
    return {"relevance": relevance, "contexts": contexts}[family](*map(int, sizes))


def ours(problem: SelectionProblem, norm: Any, limit: float) -> tuple[float, float]:
    """Solve with attsvm; returns processor seconds and the certified gap."""
    start = time.process_time()
    solution = solve(problem, norm, tol=TOL, time_limit=limit)
    return time.process_time() - start, solution.gap


def contestants(problem: SelectionProblem, norm: str, limit: float) -> dict[str, Statement]:
    """Write the statements of the solvers that can solve the instance in time."""
    task = Task(problem, norm)
    side = sum(problem.shape[2:]) if norm in ("nuclear", "spectral") else 0
    names = [name for name in PEERS[norm] if side <= LARGEST_CONES.get(name, side)]
    return {name: Statement(task, name, limit) for name in names}


def compare(label: str, norm: str, limit: float, *, alone: bool) -> str:
    """Time one instance in one norm; returns a row of the table."""
    fresh = make(label)
    seconds, gap = ours(fresh, norm, limit)
    peers = {} if alone else contestants(fresh, norm, limit)
    results = {name: first_accurate(peer, limit=limit) for name, peer in peers.items()}
    for _ in range(REPEATS):
        if seconds < limit / REPEATS:
            seconds = min(seconds, ours(make(label), norm, limit)[0])
        for name, peer in peers.items():
            if results[name][0] < limit / REPEATS and results[name][1] <= TOL:
                results[name] = min(results[name][0], peer.run()), results[name][1]
    cells = [f"{name.lower()} {time_:.3f} ({found:.0e})" for name, (time_, found) in results.items()]
    arrived = [time_ for time_, found in results.values() if found <= TOL]
    ratio = f"{min(arrived) / seconds:.1f}" if arrived and gap <= TOL else "-"
    return f"| {label} | {norm} | {seconds:.4f} ({gap:.0e}) | {', '.join(cells) or '-'} | {ratio} |"


def main() -> None:
    """Print a row for each instance and norm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--norms", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--only", nargs="+", default=[*ROWS, *HELD_OUT], help="labels such as 'contexts 40 80'")
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--ours", action="store_true", help="without the peers")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for norm in options.norms:
        ours(make("contexts 5 8"), norm, options.limit)
    print("| instance | norm | attsvm, s (gap) | peers, s (gap) | peer / attsvm |\n|---|---|---:|---|---:|")
    for label in options.only:
        for norm in options.norms:
            print(compare(label, norm, options.limit, alone=options.ours), flush=True)


if __name__ == "__main__":
    main()
