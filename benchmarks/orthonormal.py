"""Orthonormal queries: relevance labels and words after contexts, `solve` compared with sparse statements in cvxpy.

*relevance m q k*: m one-hot documents and q one-hot queries, each with k relevant documents drawn at random without a
repeated set (all pairs where q says so), every relevant document above every irrelevant one. A query is repeated once
per relevant document with the other relevant ones masked. *contexts n V*: n one-hot contexts, each followed by one to
five of V words, which tie. The instances of ``HELD_OUT`` have sizes and seeds that nothing was chosen on.

Each peer gets one vectorised sparse statement, stated and compiled before the clock starts; its tolerance falls by tens
from 1e-5 until its own answer has a certified gap of 1e-6, as ours is asked for. A cell is the least processor time of
the runs, ours and the peers' in turns, and the gap. The last column is the time of the fastest peer over ours.

    python benchmarks/orthonormal.py [--norms frobenius max nuclear spectral] [--only NAME] [--limit 60] [--ours]
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from importlib import import_module
from itertools import combinations
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("ATTSVM_COMPILE", "first")

import numpy as np  # noqa: E402
import scipy.sparse as sp  # noqa: E402

from attsvm import SelectionProblem, solve  # noqa: E402
from attsvm.core.norms import get_norm  # noqa: E402
from attsvm.proofs.certified import certify  # noqa: E402

TOL, REPEATS = 1e-6, 3
EPSILONS = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)
OPTIONS: dict[str, tuple[str, ...]] = {
    "CLARABEL": ("tol_gap_abs", "tol_gap_rel", "tol_feas"),
    "OSQP": ("eps_abs", "eps_rel"),
    "SCS": ("eps_abs", "eps_rel"),
    "HIGHS": (),
}
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
# Sides d + dz of a semidefinite cone beyond which a solver is over a minute.
LARGEST_CONES = {"CLARABEL": 60, "SCS": 260}


def relevance(documents: int, queries: int, size: int) -> SelectionProblem:
    """Every relevant document above every irrelevant one, without ties."""
    rng = np.random.default_rng([21, documents, queries, size])
    sets = np.array(list(combinations(range(documents), size)))
    sets = sets[np.sort(rng.choice(len(sets), queries, replace=False))]
    query = np.repeat(np.arange(queries), size)
    mask = np.ones((queries * size, documents), bool)
    mask[np.arange(len(query))[:, None], sets[query]] = False
    mask[np.arange(len(query)), sets.ravel()] = True
    shared = np.zeros(len(query), int)
    return SelectionProblem(np.eye(documents)[None], np.eye(queries)[query], sets.ravel(), mask=mask, sequence=shared)


def contexts(n: int, words: int) -> SelectionProblem:
    """One to five of the words follow each context."""
    rng = np.random.default_rng([22, n, words])
    supports = rng.random((n, words)).argsort(axis=1) < rng.integers(1, 6, size=(n, 1))
    return SelectionProblem.from_contexts(np.eye(n), supports)


def make(label: str) -> SelectionProblem:
    """Make the instance of a label."""
    family, *sizes = label.split()
    return {"relevance": relevance, "contexts": contexts}[family](*map(int, sizes))


class Peer:
    """One sparse statement of a problem for one solver."""

    def __init__(self, problem: SelectionProblem, norm: str, solver: str, limit: float) -> None:
        cp: Any = import_module("cvxpy")
        self.problem, self.solver, self.norm = problem, getattr(cp, solver), norm
        self.W = cp.Variable(problem.shape[2:])
        margins = [_rows(problem, marked) @ cp.vec(self.W, order="C") for marked in (problem.rejected, problem.tied)]
        self.constraints = [margins[0] >= 1] + ([margins[1] == 0] if problem.has_ties else [])
        objective = {
            "frobenius": lambda W: cp.sum_squares(W) / 2,
            "max": lambda W: cp.max(cp.abs(W)),
            "nuclear": cp.normNuc,
            "spectral": cp.sigma_max,
        }[norm]
        self.program = cp.Problem(cp.Minimize(objective(self.W)), self.constraints)
        self.program.get_problem_data(self.solver)  # compiled once, and kept
        self.options = dict.fromkeys(OPTIONS[solver], EPSILONS[0])
        self.limits = {
            "CLARABEL": {"time_limit": limit},
            "OSQP": {"time_limit": limit, "max_iter": 1_000_000},
            "SCS": {"time_limit_secs": limit, "max_iters": 1_000_000},
            "HIGHS": {},
        }[solver]

    def run(self) -> float:
        """Solve; returns processor seconds."""
        start = time.process_time()
        self.program.solve(solver=self.solver, warm_start=False, **self.options, **self.limits)
        return time.process_time() - start

    def gap(self) -> float:
        """Certified gap of the last answer."""
        if self.W.value is None:
            return np.inf
        problem, dual = self.problem, np.zeros(self.problem.mask.shape)
        dual[problem.rejected] = np.maximum(self.constraints[0].dual_value, 0.0)
        gaps = []
        for sign in (1.0, -1.0) if problem.has_ties else (1.0,):
            if problem.has_ties:
                dual[problem.tied] = sign * self.constraints[1].dual_value
            gaps.append(certify(problem, get_norm(self.norm), self.W.value, dual).gap)
        return min(gaps)

    def first(self, limit: float) -> tuple[float, float]:
        """Find the largest tolerance that arrives; returns seconds and gap."""
        seconds, gap = self.run(), self.gap()
        for epsilon in EPSILONS[1:]:
            if gap <= TOL or seconds > limit or not self.options:
                break
            self.options = dict.fromkeys(self.options, epsilon)
            seconds, gap = self.run(), self.gap()
        return seconds, gap


def _rows(problem: SelectionProblem, marked: np.ndarray) -> sp.csr_matrix:
    """Write the constraints of marked tokens as sparse rows, W flattened row by row."""
    rows, columns = np.nonzero(marked)
    dz, m = problem.shape[3], len(rows)
    context = problem.queries[rows].argmax(axis=1)  # both sides are one-hot
    first, other = problem.reference[rows] * dz + context, columns * dz + context
    values = np.concatenate([np.ones(m), -np.ones(m)])
    place = np.concatenate([first, other])
    return sp.csr_matrix((values, (np.tile(np.arange(m), 2), place)), shape=(m, problem.shape[2] * dz))


def ours(problem: SelectionProblem, norm: Any, limit: float) -> tuple[float, float]:
    """Solve with attsvm; returns processor seconds and the certified gap."""
    start = time.process_time()
    solution = solve(problem, norm, tol=TOL, time_limit=limit)
    return time.process_time() - start, solution.gap


def contestants(problem: SelectionProblem, norm: str, limit: float) -> dict[str, Peer]:
    """Write the statements of the solvers that have a chance."""
    side = sum(problem.shape[2:]) if norm in ("nuclear", "spectral") else 0
    names = [name for name in PEERS[norm] if side <= LARGEST_CONES.get(name, side)]
    return {name: Peer(problem, norm, name, limit) for name in names}


def compare(label: str, norm: str, limit: float, *, alone: bool) -> str:
    """Time one instance in one norm; returns a row of the table."""
    fresh = make(label)
    seconds, gap = ours(fresh, norm, limit)
    peers = {} if alone else contestants(fresh, norm, limit)
    results = {name: peer.first(limit) for name, peer in peers.items()}
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
