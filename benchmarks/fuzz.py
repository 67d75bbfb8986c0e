"""Random problems of every kind; three judges that share no code with the solvers check each answer.

A draw takes a norm (nested sums and maxima among them), a loss, C, a prior, a mask, ties, shared sequences, repeated
and zero tokens, a dtype, a memory layout and a scale. The judges:

* *arithmetic*: norm and margins of W, written out densely in long double, and the objective that they give;
* *programs*: HiGHS looks for a W if the answer is that none exists, Clarabel for a smaller W (cvxpy, with the rows of
  tests/oracle.py);
* *proof*: ``verify()``, and ``verify(exact=True)`` in rational arithmetic if the answer promises an exact proof. It
  promises none if ties hold up to rounding, or if the data are infeasible only after a rounding.

A fault is an answer that a judge refutes, an exception, or a run past its limit. Undecided answers are counted, not
faults.

    python benchmarks/fuzz.py [--count 5000] [--seed 0] [--limit 5] [--out FILE]

The option --out appends each finished instance as a line of JSON, and skips instances in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("ATTSVM_COMPILE", "first")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import cvxpy as cp  # noqa: E402
import numpy as np  # noqa: E402

import oracle  # noqa: E402
from attsvm import SelectionProblem, Status, norms, solve  # noqa: E402
from attsvm.platform.kernels import Stopwatch  # noqa: E402

# Relative difference above which Clarabel refutes an answer; its answers are accurate to about 1e-8.
PROGRAM_TOL = 1e-5
# Relative rounding error allowed to the certificate. Long double sums of 64 products are exact to about 1e-17.
ARITHMETIC_TOL = 1e-11
# Allowance of a run beyond its limit: a share of the limit, and seconds for the current step.
OVERRUN = 1.1, 0.5


@dataclass(frozen=True)
class Measure:
    """A norm for ``solve`` with its value in NumPy (long double where it can be) and its expression in cvxpy.

    A soft margin adds losses to half the square of a Euclidean norm, and to any other norm itself.
    """

    name: str
    norm: Any
    value: Callable[[np.ndarray], float]
    expression: Callable[[Any], Any] | None
    euclidean: bool = False


def _singular(M: np.ndarray) -> np.ndarray:
    return np.linalg.svd(np.asarray(M, dtype=float), compute_uv=False)


def _ky_fan(W: Any, k: int) -> Any:
    d, dz = W.shape
    dilation = cp.bmat([[np.zeros((d, d)), W], [W.T, np.zeros((dz, dz))]])
    return cp.lambda_sum_largest((dilation + dilation.T) / 2, k)


def _power(p: float) -> Measure:
    return Measure(
        f"l_{p:g}",
        p,
        lambda M: float((np.abs(M) ** p).sum() ** (1 / np.longdouble(p))),
        lambda W: cp.pnorm(cp.vec(W, order="C"), p),
    )


def _simple(rng: np.random.Generator, d: int, dz: int) -> Measure:
    """Draw one norm that is not a combination of others."""
    weights = rng.uniform(0.5, 2.0, (d, dz))
    metric = np.diag(rng.uniform(0.5, 2.0, d))
    half = np.sqrt(metric)
    choices = [
        Measure("frobenius", "frobenius", lambda M: float(np.sqrt((M * M).sum())), lambda W: cp.norm(W, "fro"), True),
        Measure("nuclear", "nuclear", lambda M: float(_singular(M).sum()), cp.normNuc),
        Measure("spectral", "spectral", lambda M: float(_singular(M)[0]), cp.sigma_max),
        Measure("max", "max", lambda M: float(np.abs(M).max()), lambda W: cp.max(cp.abs(W))),
        _power(1.0),
        _power(1.5),
        _power(3.0),
        Measure("schatten 1.5", norms.Schatten(1.5), lambda M: float((_singular(M) ** 1.5).sum() ** (2 / 3)), None),
        Measure(
            "ky fan 2",
            norms.KyFan(2),
            lambda M: float(_singular(M)[:2].sum()),
            (lambda W: _ky_fan(W, 2)) if min(d, dz) > 1 else cp.normNuc,
        ),
        Measure(
            "rows 2 1",
            norms.Mixed(2, 1),
            lambda M: float(np.sqrt((M * M).sum(axis=1)).sum()),
            lambda W: cp.sum(cp.norm(W, 2, axis=1)),
        ),
        Measure(
            "columns inf 1",
            norms.Mixed(np.inf, 1, "columns"),
            lambda M: float(np.abs(M).max(axis=0).sum()),
            lambda W: cp.sum(cp.max(cp.abs(W), axis=0)),
        ),
        Measure(
            "weighted 1",
            norms.Weighted(weights, 1),
            lambda M: float((weights * np.abs(M)).sum()),
            lambda W: cp.sum(cp.multiply(weights, cp.abs(W))),
        ),
        Measure(
            "mahalanobis",
            norms.Mahalanobis(metric, np.eye(dz), "frobenius"),
            lambda M: float(np.sqrt(((half @ M) ** 2).sum())),
            lambda W: cp.norm(half @ W, "fro"),
            euclidean=True,
        ),
    ]
    return choices[int(rng.integers(len(choices)))]


def _measure(rng: np.random.Generator, d: int, dz: int, depth: int = 2) -> Measure:
    """Draw a norm; one in six is a sum or a maximum of two norms, which may be combinations again."""
    if depth == 0 or rng.random() > 1 / 6:
        return _simple(rng, d, dz)
    one, other = _measure(rng, d, dz, depth - 1), _measure(rng, d, dz, depth - 1)
    add = bool(rng.random() < 0.5)
    expression = None
    if one.expression is not None and other.expression is not None:
        left, right = one.expression, other.expression
        expression = (lambda W: left(W) + right(W)) if add else (lambda W: cp.maximum(left(W), right(W)))
    return Measure(
        f"{'sum' if add else 'largest'}({one.name}, {other.name})",
        (norms.Sum if add else norms.Largest)(one.norm, other.norm),
        (lambda M: one.value(M) + other.value(M)) if add else (lambda M: max(one.value(M), other.value(M))),
        expression,
    )


def _laid_out(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Give an array one of four memory layouts."""
    layout = rng.integers(4)
    if layout == 1:
        return np.asfortranarray(array)
    if layout == 2:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if layout == 3:
        return array[..., ::-1].copy()[..., ::-1]
    return array


@dataclass(frozen=True)
class Instance:
    """One draw: the problem, its norm, and the options of ``solve``."""

    label: str
    problem: SelectionProblem
    measure: Measure
    options: dict[str, Any]


def draw(rng: np.random.Generator) -> Instance:
    """Draw a problem, a norm and the options of ``solve``."""
    n, T = int(rng.integers(1, 9)), int(rng.integers(1, 7))
    d, dz = int(rng.integers(1, 7)), int(rng.integers(1, 7))
    b = n if rng.random() < 0.7 else int(rng.integers(1, n + 1))
    tokens, queries = rng.standard_normal((b, T, d)), rng.standard_normal((n, dz))
    kind = str(rng.choice(["gaussian", "integers", "one-hot", "repeated", "zeros", "low rank"]))
    if kind == "integers":
        tokens, queries = np.round(2 * tokens), np.round(2 * queries)
    elif kind == "one-hot":
        tokens, queries = np.eye(d)[rng.integers(0, d, (b, T))], np.eye(dz)[rng.integers(0, dz, n)]
    elif kind == "repeated":
        tokens = tokens[:, rng.integers(0, T, T)]
    elif kind == "zeros":
        tokens[rng.random((b, T)) < 0.3] = 0.0
    elif kind == "low rank":
        tokens = rng.standard_normal((b, T, 1)) * rng.standard_normal(d)
    scale = float(10.0 ** rng.choice([0, 0, 0, -6, -3, 3, 6]))
    dtype = str(
        rng.choice(["float64", "float64", "float32", "int64" if kind in ("integers", "one-hot") else "float64"])
    )
    tokens = (tokens if dtype == "int64" else tokens * scale).astype(dtype)
    sequence = None if b == n else rng.integers(0, b, n)
    mask = None
    selected: Any = rng.integers(0, T, n)
    if rng.random() < 0.6:  # a selection by some W, so that most problems are feasible
        chosen = tokens[np.arange(n) if sequence is None else sequence].astype(float)
        selected = np.einsum("ntd,de,ne->nt", chosen, rng.standard_normal((d, dz)), queries).argmax(axis=1)
    if rng.random() < 0.3:
        mask = rng.random((n, T)) < 0.7
        mask[np.arange(n), selected] = True
    if rng.random() < 0.25:
        several = np.zeros((n, T), dtype=bool)
        several[np.arange(n), selected] = True
        several |= (rng.random((n, T)) < 0.2) & (True if mask is None else mask)
        selected = several
    problem = SelectionProblem(_laid_out(tokens, rng), _laid_out(queries, rng), selected, mask=mask, sequence=sequence)
    measure = _measure(rng, d, dz)
    options: dict[str, Any] = {}
    margin = str(rng.choice(["hard", "hard", "soft", "prior", "soft and prior"]))
    if margin.startswith("soft"):
        options = {"C": float(10.0 ** rng.uniform(-2, 3)), "loss": str(rng.choice(["hinge", "squared_hinge"]))}
    if margin.endswith("prior"):
        options["prior"] = rng.standard_normal((d, dz))
    said = ", ".join(f"{key}={value}" for key, value in options.items() if key != "prior")
    label = f"{measure.name}, {kind} {dtype} x {scale:g}, n={n} T={T} d={d} dz={dz} b={b}, {margin} {said}"
    return Instance(label, problem, measure, options)


def _objective(instance: Instance, W: np.ndarray, margins: np.ndarray) -> float:
    """Evaluate what ``solve`` minimises, from the norm of W and its dense margins."""
    options, prior = instance.options, instance.options.get("prior", 0.0)
    size = instance.measure.value(np.asarray(W, dtype=np.longdouble) - prior)
    if "C" not in options:
        return size
    deficit = np.maximum(1 - margins, 0)
    loss = float((deficit * deficit if options["loss"] == "squared_hinge" else deficit).sum())
    return (size * size / 2 if instance.measure.euclidean else size) + options["C"] * loss


def judge_arithmetic(instance: Instance, solution: Any) -> str | None:
    """Recompute margins and objective of W in long double."""
    full, W = oracle.dense(instance.problem), np.asarray(solution.certified.W, dtype=np.longdouble)
    left, right = full.left.astype(np.longdouble), full.right.astype(np.longdouble)
    margins = ((left @ W) * right).sum(axis=1)
    # A margin is a sum of products; its rounding error is relative to their sizes.
    sizes = ((np.abs(left) @ np.abs(W)) * np.abs(right)).sum(axis=1) + 1
    if full.tied.any() and float((np.abs(margins) / sizes)[full.tied].max()) > 1e-7:
        return f"ties are broken by {float(np.abs(margins[full.tied]).max()):.2e}"
    beaten = margins[~full.tied]
    if (
        "C" not in instance.options
        and len(beaten)
        and float(((beaten - 1) / sizes[~full.tied]).min()) < -ARITHMETIC_TOL
    ):
        return f"smallest margin {float(beaten.min())}"
    value, claim = _objective(instance, W, beaten), solution.certified.value
    # Losses are differences of numbers near one, so their rounding error is C times the error of the margins.
    rounding = 1e-12 * instance.options.get("C", 0.0) * float(sizes.sum())
    if abs(value - claim) > 1e-9 * max(abs(value), abs(claim)) + rounding:
        return f"objective {claim!r}, recomputed {value!r}"
    return None


def judge_programs(instance: Instance, solution: Any) -> str | None:
    """Look for a W if the answer is that none exists, and for a smaller W otherwise.

    A larger value from Clarabel refutes nothing, because :func:`judge_arithmetic` has recomputed ours.
    """
    problem, options = instance.problem, instance.options
    full = oracle.dense(problem)
    if solution.status is Status.INFEASIBLE:
        if "C" in options and not full.tied.any():
            return "a soft margin without ties is always feasible"
        if (full.lengths[~full.tied] == 0).any():
            return None
        keep = full.lengths > 0
        unit = oracle.Dense(
            full.left[keep] / np.linalg.norm(full.left[keep], axis=1, keepdims=True),
            full.right[keep] / np.linalg.norm(full.right[keep], axis=1, keepdims=True),
            full.tied[keep],
            (full.where[0][keep], full.where[1][keep]),
        )
        try:
            verdict, _ = oracle._linear_program(unit)
        except AssertionError:  # HiGHS gives up
            return None
        return "HiGHS finds a W" if verdict is True else None
    if instance.measure.expression is None or not len(full.left):
        return None
    # Rows of length about one: the tokens' scale goes into the variable.
    scale = float(np.median(full.lengths[full.lengths > 0])) if (full.lengths > 0).any() else 1.0
    V = cp.Variable(problem.shape[2:])
    W = V / scale
    margins = (full.rows / scale) @ cp.vec(V, order="C")
    size = instance.measure.expression(W - options["prior"] if "prior" in options else V)
    unit_of_size = 1.0 if "prior" in options else 1.0 / scale
    ties = [margins[full.tied] == 0] if full.tied.any() else []
    beaten = margins[~full.tied]
    if "C" in options:
        deficit = cp.pos(1 - beaten)
        loss = cp.sum_squares(deficit) if options["loss"] == "squared_hinge" else cp.sum(deficit)
        first = cp.square(size * unit_of_size) / 2 if instance.measure.euclidean else size * unit_of_size
        program, unit = cp.Problem(cp.Minimize(first + options["C"] * loss), ties), 1.0
    else:
        rejected = [beaten >= 1] if (~full.tied).any() else []
        program, unit = cp.Problem(cp.Minimize(size), rejected + ties), unit_of_size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program.solve(solver=cp.CLARABEL)
        except cp.SolverError:
            return None
    if program.status != cp.OPTIMAL:
        return None
    value, claim = float(program.value) * unit, solution.certified.value
    # Clarabel's tolerance of about 1e-8 is absolute for values below one.
    if claim - value > PROGRAM_TOL * max(abs(value), unit):
        return f"objective {claim!r}, Clarabel {value!r}"
    return None


def judge_proof(instance: Instance, solution: Any) -> str | None:
    """Check the proof, and the exact proof if the answer promises one."""
    proof = solution.verify()
    exact = not instance.problem.has_ties if solution.certificate is None else solution.certificate.exact
    if proof and exact:
        proof = solution.verify(exact=True)
    return None if proof else f"{proof.statement}"


JUDGES = {"arithmetic": judge_arithmetic, "programs": judge_programs, "proof": judge_proof}


def examine(instance: Instance, limit: float) -> dict[str, Any]:
    """Solve one instance and let the judges check the answer."""
    watch = Stopwatch()
    try:
        solution = solve(instance.problem, instance.measure.norm, time_limit=limit, **instance.options)
    except Exception:
        return {"label": instance.label, "status": "EXCEPTION", "faults": [traceback.format_exc(limit=-3)]}
    seconds = watch.seconds
    faults = []
    if seconds > OVERRUN[0] * limit + OVERRUN[1]:
        faults.append(f"ran {seconds:.1f} s with a limit of {limit:g} s")
    if solution.status in (Status.OPTIMAL, Status.INFEASIBLE):
        for name, judge in JUDGES.items():
            if name == "arithmetic" and solution.status is Status.INFEASIBLE:
                continue
            fault = judge(instance, solution)
            if fault is not None:
                faults.append(f"{name}: {fault}")
    return {"label": instance.label, "status": solution.status.name, "seconds": round(seconds, 3), "faults": faults}


def main() -> None:
    """Print every fault, and how the instances ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=5.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out is not None and options.out.exists() else []
    rows = {row["index"]: row for row in map(json.loads, lines)}
    for index in range(options.count):
        if index in rows:
            continue
        row = {"index": index, **examine(draw(np.random.default_rng([options.seed, index])), options.limit)}
        rows[index] = row
        for fault in row["faults"]:
            print(f"{index} {row['status']}: {row['label']}\n    {fault}", flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    faults = sum(bool(row["faults"]) for row in rows.values())
    ends = ", ".join(
        f"{count} {status}" for status, count in Counter(row["status"] for row in rows.values()).most_common()
    )
    print(f"{len(rows)} instances: {ends}; {faults} with a fault")
    raise SystemExit(int(faults > 0))


if __name__ == "__main__":
    main()
