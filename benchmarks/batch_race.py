"""Thousands of small instances: one call of solve_batch, compared with loops of daqp, the naive cvxpy model and solve.

    python batch_race.py RUNNER CORES COUNT        one JSON line; NUMBA_NUM_THREADS must equal CORES

The loop of daqp gets its constraints from one vectorised expression and calls daqp directly, in forked processes on
several cores. Seconds per instance count from stacked tokens to all W; they are the least of five runs.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context

import numpy as np
from peers_cone import naive

from attsvm import ProblemBatch, SelectionProblem, solve, solve_batch
from attsvm.core.norms import FROBENIUS, NUCLEAR
from attsvm.data.synthetic import random_data
from attsvm.proofs.certified import Certified, certify
from attsvm.proofs.program import Program

SIZES = (6, 8, 10)
CONTRADICTORY = (30, 10, 6)  # random selections: more constraints than a W can meet
RUNS = 5
NAIVE_COUNT, ALONE_COUNT = 20, 200
SAMPLE = 50

# Set once by the main block, so that forked processes inherit the instances.
tokens: np.ndarray
queries: np.ndarray
selected: np.ndarray
MATRICES: np.ndarray
REJECTED: np.ndarray


def differences() -> tuple[np.ndarray, np.ndarray]:
    """Return constraint matrices of all instances, (B, n (T-1), d dz), and the token of each row, (B, n, T-1)."""
    B, n, T, _ = tokens.shape
    rejected = np.arange(T - 1) + (np.arange(T - 1) >= selected[:, :, None])  # (B, n, T-1)
    references = np.take_along_axis(tokens, selected[:, :, None, None], axis=2)
    delta = references - np.take_along_axis(tokens, rejected[..., None], axis=2)
    return (delta[..., :, None] * queries[:, :, None, None, :]).reshape(B, n * (T - 1), -1), rejected


def daqp_loop(rows: slice) -> tuple[np.ndarray, np.ndarray]:
    import daqp

    A = MATRICES[rows]
    m, size = A.shape[1:]
    H, f, upper, lower = np.eye(size), np.zeros(size), np.full(m, 1e30), np.ones(m)
    sense = np.zeros(m, dtype=np.int32)
    W, dual = np.empty((len(A), size)), np.empty((len(A), m))
    for b, matrix in enumerate(A):
        x, _, _, info = daqp.solve(H, f, matrix, upper, lower, sense, primal_tol=1e-9)
        W[b], dual[b] = x, info["lam"]
    return W, dual


def daqp_all(cores: int) -> tuple[np.ndarray, np.ndarray]:
    global MATRICES, REJECTED
    MATRICES, REJECTED = differences()
    if cores == 1:
        return daqp_loop(slice(None))
    edges = np.linspace(0, len(MATRICES), cores + 1).astype(int)
    parts = [slice(a, b) for a, b in pairwise(edges)]
    with ProcessPoolExecutor(cores, mp_context=get_context("fork")) as pool:
        pairs = list(pool.map(daqp_loop, parts))
    return np.concatenate([w for w, _ in pairs]), np.concatenate([d for _, d in pairs])


def _certify_single(problem: SelectionProblem, norm: str) -> Certified:
    return solve(problem, norm).certified


def race(runner: str, cores: int) -> tuple[float, float]:
    """Return the seconds per instance and the largest gap."""
    B = len(tokens)
    best = np.inf
    runner, _, kind = runner.partition(", ")
    measure = NUCLEAR if kind == "nuclear" else FROBENIUS
    if runner in ("naive", "attsvm alone"):
        count = NAIVE_COUNT if runner == "naive" else ALONE_COUNT
        problems = list(ProblemBatch(tokens[:count], queries[:count], selected[:count]))
        solver = naive if runner == "naive" else _certify_single
        solver(problems[0], measure.name)
        start = time.perf_counter()
        answers = [solver(problem, measure.name) for problem in problems]
        best = (time.perf_counter() - start) / len(problems)
        pairs = zip(problems, answers, strict=True)
        return best, max(certify(Program(p, measure), a.W, a.dual).gap for p, a in pairs)  # type: ignore[arg-type]
    if runner == "attsvm":
        solve_batch(ProblemBatch(tokens[:50], queries[:50], selected[:50]), measure.name)
        for _ in range(RUNS):
            start = time.perf_counter()
            solutions = solve_batch(ProblemBatch(tokens, queries, selected), measure.name)
            best = min(best, (time.perf_counter() - start) / B)
        return best, float(solutions.gap.max())  # type: ignore[possibly-undefined]
    for _ in range(RUNS):
        start = time.perf_counter()
        W, lam = daqp_all(cores)
        best = min(best, (time.perf_counter() - start) / B)
    gaps = []
    for b in range(min(B, SAMPLE)):
        problem = ProblemBatch(tokens[b : b + 1], queries[b : b + 1], selected[b : b + 1])[0]
        dual = np.zeros(problem.mask.shape)
        np.put_along_axis(dual, REJECTED[b], -lam[b].reshape(REJECTED[b].shape), axis=1)  # type: ignore[possibly-undefined]
        gaps.append(certify(Program(problem, FROBENIUS), W[b].reshape(problem.shape[2:]), dual).gap)  # type: ignore[possibly-undefined]
    return best, max(gaps)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    who, cores, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    contradictory = who.endswith("infeasible")
    data, v = random_data(count, *(CONTRADICTORY if contradictory else SIZES))
    tokens, queries = data.tokens, data.queries
    selected = (data.labels[:, :, None] * np.einsum("bntd,bd->bnt", tokens, v)).argmax(axis=2)
    if contradictory:
        selected = np.random.default_rng([10, *CONTRADICTORY]).integers(tokens.shape[2], size=selected.shape)
    seconds, gap = race(who, cores)
    timing = {"naive": NAIVE_COUNT, "attsvm alone": ALONE_COUNT}.get(who.partition(", ")[0], count)
    print(json.dumps({"runner": who, "cores": cores, "count": timing, "seconds": seconds, "gap": gap}))
