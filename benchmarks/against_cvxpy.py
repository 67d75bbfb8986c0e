"""Time ``attsvm.solve`` beside the two models one would write in cvxpy.

*naive*: one constraint a token, built in a Python loop, cvxpy's own choice of solver, as the paper's authors do it.
*vectorised*: all margins as one expression of matrix products, a quadratic program where there is one, Clarabel.
Accuracy is the excess over the lower bound that ``attsvm`` proves: how much longer W is, once scaled to margin one,
than any W must be.

Run with ``make bench``; one minute on one core. Prints a Markdown table.
"""

from __future__ import annotations

import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

import cvxpy as cp
import numpy as np

from attsvm import SelectionProblem, Status, solve

Model = Callable[[SelectionProblem, cp.Variable], Iterable[Any]]
Objectives = dict[str, Callable[[cp.Variable], Any]]
Solver = Callable[[SelectionProblem, str], np.ndarray | None]

AS_WRITTEN: Objectives = {"frobenius": lambda W: cp.norm(W, "fro"), "nuclear": cp.normNuc}
AS_QUADRATIC: Objectives = {"frobenius": cp.sum_squares, "nuclear": cp.normNuc}


def sphere(rng: np.random.Generator, *shape: int) -> np.ndarray:
    x = rng.standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def planted(n: int, T: int, d: int, seed: int = 0) -> SelectionProblem:
    """Unit vectors, tokens selected by a random matrix: always feasible."""
    rng = np.random.default_rng([seed, n, T, d])
    tokens, queries, W = sphere(rng, n, T, d), sphere(rng, n, d), rng.standard_normal((d, d))
    return SelectionProblem(tokens, queries, np.einsum("ntd,de,ne->nt", tokens, W, queries).argmax(axis=1))


def infeasible(n: int, T: int, d: int) -> SelectionProblem:
    """Unit vectors and random selections, far more constraints than d^2 can meet."""
    rng = np.random.default_rng([1, n, T, d])
    return SelectionProblem(sphere(rng, n, T, d), sphere(rng, n, d), rng.integers(T, size=n))


def correlated(n: int, T: int, d: int) -> SelectionProblem:
    """Neighbouring tokens 99 % alike around a common mean, planted: what patches and hidden states look like."""
    rng = np.random.default_rng([2, n, T, d])
    steps = rng.standard_normal((n, T, d)) * np.where(np.arange(T) == 0, 1.0, 0.14)[:, None]
    tokens, queries, W = np.cumsum(steps, axis=1) + 3.0, rng.standard_normal((n, d)), rng.standard_normal((d, d))
    return SelectionProblem(tokens, queries, np.einsum("ntd,de,ne->nt", tokens, W, queries).argmax(axis=1))


INSTANCES: dict[str, Callable[[], SelectionProblem]] = {
    "planted 6, 8, 10": lambda: planted(6, 8, 10),
    "planted 15, 15, 20": lambda: planted(15, 15, 20),
    "planted 50, 20, 20": lambda: planted(50, 20, 20),
    "correlated 15, 15, 10": lambda: correlated(15, 15, 10),
    "infeasible 30, 10, 6": lambda: infeasible(30, 10, 6),
}


def loop_of_constraints(problem: SelectionProblem, W: cp.Variable) -> Iterable[Any]:
    for i, z in enumerate(problem.queries):
        x = problem.tokens[problem.sequence[i]]
        for t in np.flatnonzero(problem.rejected[i]):
            yield (x[problem.reference[i]] - x[t]) @ W @ z >= 1


def products(problem: SelectionProblem, W: cp.Variable) -> Iterable[Any]:
    rows, columns = np.nonzero(problem.rejected)
    x = problem.tokens[problem.sequence[rows]]
    delta = x[np.arange(len(rows)), problem.reference[rows]] - x[np.arange(len(rows)), columns]
    yield cp.sum(cp.multiply(delta @ W, problem.queries[rows]), axis=1) >= 1


def with_cvxpy(model: Model, objectives: Objectives, **options: Any) -> Solver:
    def run(problem: SelectionProblem, norm: str) -> np.ndarray | None:
        W = cp.Variable((problem.shape[2], problem.shape[3]))
        program = cp.Problem(cp.Minimize(objectives[norm](W)), list(model(problem, W)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program.solve(**options)
        return W.value

    return run


def with_attsvm(problem: SelectionProblem, norm: str) -> np.ndarray | None:
    solution = solve(problem, norm)
    return solution.W if solution.status is Status.OPTIMAL else None


CONTESTANTS: dict[str, Solver] = {
    "attsvm": with_attsvm,
    "naive": with_cvxpy(loop_of_constraints, AS_WRITTEN),
    "vectorised": with_cvxpy(products, AS_QUADRATIC, solver=cp.CLARABEL),
}


def excess(problem: SelectionProblem, norm: str, W: np.ndarray | None, bound: float) -> float:
    """Length of W, scaled to smallest margin one, over the proven bound, less one; NaN without a feasible W."""
    if W is None:
        return np.nan
    margin = problem.margins(W)[problem.rejected].min()
    if margin <= 0:
        return np.nan
    return float(np.linalg.norm(W, "fro" if norm == "frobenius" else "nuc") / margin / bound - 1)


def main() -> None:
    print(f"Python {platform.python_version()}, {platform.machine()}, one thread each; ", end="")
    print(", ".join(f"{name} {version(name)}" for name in ("attsvm", "cvxpy", "clarabel", "scs")))
    print("\n| instance (n, T, d) | norm | attsvm | naive cvxpy | vectorised cvxpy | excess of each |")
    print("|---|---|---|---|---|---|")
    for norm in AS_WRITTEN:
        with_attsvm(planted(4, 4, 4), norm)  # compile, or load what is compiled
        for name, make in INSTANCES.items():
            problem = make()
            known = solve(problem, norm)
            times, accuracy = {}, {}
            for contestant, run in CONTESTANTS.items():
                best, started = np.inf, time.perf_counter()
                while best == np.inf or time.perf_counter() - started < 0.5:
                    begin = time.perf_counter()
                    W = run(problem, norm)
                    best = min(best, time.perf_counter() - begin)
                times[contestant] = best
                accuracy[contestant] = excess(problem, norm, W, known.lower_bound)
            ratios = {c: f" ({t / times['attsvm']:.0f}x)" for c, t in times.items() if c != "attsvm"}
            cells = [f"{t:.2g} s{ratios.get(c, '')}" for c, t in times.items()]
            proofs = ", ".join(f"{v:.0e}" if np.isfinite(v) else "no W" for v in accuracy.values())
            print(f"| {name} | {norm} | " + " | ".join(cells) + f" | {proofs} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
