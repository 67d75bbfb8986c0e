"""Time one contestant in a separate process.

    python measure.py CONTESTANT NORM        with cells as JSON on stdin; one JSON line per cell on stdout

The process imports the contestant, solves two tiny problems, and then forks once per cell. A crash ends only its cell,
a time limit kills it, and the peak memory (``ru_maxrss`` minus the resident memory at the fork, after all imports)
belongs to it. If a cell reaches its limit, larger cells of its family are skipped.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import sys
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from instances import planted, read_folder
from peers import Answer, Contestant, Solver, contestant

from attsvm import SelectionProblem
from attsvm.core.norms import get_norm
from attsvm.proofs.certified import certify
from attsvm.proofs.program import Program

# Together they use the compiled parts of attsvm and the lazy imports of the others.
WARM_UP = ((4, 4, 4), (10, 8, 6))
WARM_UP_OURS = (*WARM_UP, (50, 20, 10))
LOADING = 120.0  # seconds for reading an instance, and for certifying an answer
QUICK, LONG = 0.3, 2.0  # seconds spent up to which runs are repeated, and up to which there are three runs
MOST = 200
MEMORY_SHARE = 0.85
RESIDENT_UNIT = 1 if sys.platform == "darwin" else 1024


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RESIDENT_UNIT


def best_of(run: Solver, problem: SelectionProblem, effort: float) -> tuple[Answer, float, int, int]:
    """Return the first answer, the least time, the number of runs, and the peak memory after the first run."""
    total, best, count = 0.0, np.inf, 0
    answer, most = None, 0
    while answer is None or (total < effort * QUICK and count < MOST) or (count < 3 and total < effort * LONG):
        start = time.perf_counter()
        answer_now = run(problem)
        seconds = time.perf_counter() - start
        if answer is None:
            answer, most = answer_now, peak()
        total, best, count = total + seconds, min(best, seconds), count + 1
    return answer, best, count, most


def judge(problem: SelectionProblem, norm: str, answer: Answer) -> dict[str, Any]:
    """Certify the answer from W and the multipliers by attsvm.proofs.certified.certify.

    It computes in double-double precision. In floats the allowance for rounding, 1e-11 for thousands of constraints,
    would hide which answer is more accurate.
    """
    usable = answer.W is not None and np.isfinite(answer.W).all()
    W = answer.W if usable and answer.W is not None else np.zeros(problem.shape[2:])
    has_multipliers = answer.dual is not None and np.isfinite(answer.dual).all()
    dual = answer.dual if has_multipliers and answer.dual is not None else np.zeros(problem.mask.shape)
    certified = certify(Program(problem, get_norm(norm)), W, dual, sharp=True)
    if np.isfinite(certified.objective):
        outcome = "solved"
    else:
        outcome = "infeasible" if answer.infeasible else "no W"
    return {
        "outcome": outcome,
        "verdict": answer.verdict,
        "objective": certified.objective,
        "bound": certified.lower_bound,
        "gap": certified.gap if has_multipliers else None,
    }


def _cell(pipe: Connection, run: Solver, norm: str, cell: dict[str, Any]) -> None:
    """Measure a cell in the forked process; results go through the pipe."""
    try:
        baseline = peak()
        limit_memory()
        problem = read_folder(Path(cell["folder"]), mapped=cell["mapped"])
        pipe.send("ready")
        answer, seconds, repeats, most = best_of(run, problem, cell["effort"])
        pipe.send({"seconds": seconds, "repeats": repeats, "memory": max(most - baseline, 0)})
        pipe.send(judge(problem, norm, answer))
    except MemoryError:
        pipe.send({"outcome": "memory", "verdict": "out of memory"})
    except ImportError as error:
        pipe.send({"outcome": "missing", "verdict": f"{error.name or error} is not installed"})
    except Exception as error:  # any error of a peer becomes an entry of the table
        pipe.send({"outcome": "error", "verdict": f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"})


def limit_memory() -> None:
    """Let an allocation fail before the machine runs out."""
    if sys.platform == "linux":
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = Path("/proc/meminfo").read_text().splitlines()
            available = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (int(MEMORY_SHARE * available), resource.RLIM_INFINITY))


def measure(run: Solver, norm: str, cell: dict[str, Any]) -> dict[str, Any]:
    """Fork, wait, and kill at the limit."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_cell, args=(theirs, run, norm, cell))
    process.start()
    theirs.close()
    result: dict[str, Any] = {}
    # Stages: the instance is read; the runs (several, of at most the limit each); the judgement.
    for seconds_allowance in (LOADING, cell["limit"] + cell["effort"] * LONG, LOADING):
        try:
            if not ours.poll(seconds_allowance):
                if "seconds" not in result:
                    result = {"outcome": "limit", "seconds": cell["limit"], "verdict": "over the limit on time"}
                else:
                    result |= {"outcome": "error", "verdict": "its answer could not be judged in time"}
                break
            message = ours.recv()
        except EOFError:
            process.join()
            result |= {"outcome": "error", "verdict": f"crashed, exit code {process.exitcode}"}
            break
        if message != "ready":
            result |= message
        if "outcome" in result:
            break
    process.kill()
    process.join()
    return result


def warm(run: Solver, who: Contestant) -> None:
    for size in WARM_UP_OURS if who.ours else WARM_UP:
        arrays = planted(*size)
        # An error here occurs in the cells again and is reported there.
        with contextlib.suppress(Exception):
            run(SelectionProblem(arrays["tokens"], arrays["queries"], arrays["selected"]))


def main() -> None:
    warnings.simplefilter("ignore")
    results = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # solvers print
    os.dup2(1, 2)
    cells = json.load(sys.stdin)
    who = contestant(sys.argv[1], sys.argv[2])
    run = who.load()
    warm(run, who)
    limits: dict[str, int] = {}
    for cell in cells:
        if cell["work"] > limits.get(cell["family"], cell["work"]):
            result: dict[str, Any] = {"outcome": "skipped", "verdict": "a smaller one met a limit"}
        else:
            result = measure(run, who.norm, cell)
        if result["outcome"] in ("limit", "memory"):
            limits[cell["family"]] = min(cell["work"], limits.get(cell["family"], cell["work"]))
        print(json.dumps(result), file=results, flush=True)


if __name__ == "__main__":
    main()
