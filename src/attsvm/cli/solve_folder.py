"""`attsvm solve` for a folder of shards: many machines, and a checkpoint to continue from."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np

from attsvm import __version__
from attsvm.cli.console import BadInput, Exit, Progress, check_writable, refusing, tell
from attsvm.core.norms import get_norm
from attsvm.core.status import Status
from attsvm.data.npz import read_arrays, write_arrays
from attsvm.data.shards import ShardedProblem
from attsvm.platform.cluster import ClusterLost
from attsvm.platform.files import check_apart
from attsvm.platform.json_values import json_values
from attsvm.platform.summary import counted
from attsvm.solution.solution import Solution
from attsvm.solvers.common.control import IterationState
from attsvm.solvers.solving import solve as solve_problem
from attsvm.solvers.working_sets.solution import ShardedSolution, first_names
from attsvm.solvers.working_sets.state import check_outside
from attsvm.study.words import small_text

CODES = {Status.OPTIMAL: Exit.DONE, Status.INFEASIBLE: Exit.INFEASIBLE, Status.CANCELLED: Exit.INTERRUPTED}


@dataclass(frozen=True)
class Folder:
    """A folder of shards, its checkpoint, and the processes that evaluate it."""

    path: Path
    checkpoint: Path
    scheduler: str | None
    workers: int | None


def solve_folder(
    folder: Folder, norm: str, out: Path | None, prior: Path | None, options: dict[str, Any], *, json: bool
) -> int:
    """Solve, print and write; return the exit code.

    Raises BadInput if the folder, the checkpoint or an option is invalid, or the cluster is lost.
    """
    with refusing():
        problem = ShardedProblem.from_folder(folder.path)
        origin = None if prior is None else read_arrays(prior, ("W",))["W"]
        if out is not None:
            check_npz(out)
        for target, option, others in ((out, "--out", [prior]), (folder.checkpoint, "--checkpoint", [prior, out])):
            if target is not None:
                check_apart(target, option, filter(None, others), [folder.path])
                check_outside(target, option, problem)
    if out is not None:
        check_writable(out, directory=False)
    check_writable(folder.checkpoint, directory=False, option="--checkpoint")
    if folder.checkpoint.exists():
        tell(f"continuing from {folder.checkpoint}", sys.stderr)
    with Progress("finished rounds are kept, and the same command continues from there.") as progress:

        def watch(state: IterationState) -> bool:
            return progress(f"Solving, {state.method}", 0.0)

        with refusing():
            try:
                solution = solve_problem(
                    problem,
                    get_norm(norm),
                    **options,
                    prior=origin,
                    callback=watch,
                    scheduler=folder.scheduler,
                    workers=folder.workers,
                    checkpoint=folder.checkpoint,
                )
            except (ClusterLost, ImportError) as error:
                raise BadInput(str(error)) from error
    lines = [dumps(numbers(solution)) if json else summary(solution)]
    try:  # the file first, because the output may be closed; the output comes even if the file cannot be written
        if out is not None:
            with refusing():
                write_arrays(out, solution_arrays(solution))
            lines.append(f"written to {out}")
    finally:
        print("\n".join(lines[:1] if json else lines))
    if folder.checkpoint.exists() and not json:
        print(f"the same command continues from {folder.checkpoint}")
    return CODES.get(solution.status, Exit.UNDECIDED)


def check_npz(out: Path) -> None:
    """Refuse an output whose name does not end in .npz."""
    if out.suffix != ".npz" and not out.is_dir():
        raise BadInput(f"--out {out} would be written as .npz; a name that ends in .npz was expected.")


def answer_numbers(solution: Solution | ShardedSolution) -> dict[str, Any]:
    """Collect the values that --json prints for a file and for a folder; null for infinite or undecided numbers."""
    n, T, d, dz = solution.problem.shape
    return json_values(
        {
            "attsvm": __version__,
            "shape": {"n": n, "T": T, "d": d, "dz": dz},
            "status": solution.status.name,
            "sentence": solution.status.value,
            "norm": solution.norm.name,
            "objective": solution.objective,
            "primal": getattr(solution, "primal", solution.objective),
            "lower_bound": solution.lower_bound,
            "gap": solution.gap,
            "method": solution.method,
            "iterations": int(solution.iterations),
            "seconds": float(solution.seconds),
        }
    )


def answer_arrays(solution: Solution | ShardedSolution) -> dict[str, np.ndarray]:
    """Collect the arrays of the output file that a file and a folder have in common."""
    return {
        "W": solution.W,
        "status": np.array(solution.status.name),
        "norm": np.array(solution.norm.name),
        "objective": np.array(solution.objective),
        "lower_bound": np.array(solution.lower_bound),
        "gap": np.array(solution.gap),
        "method": np.array(solution.method),
        "seconds": np.array(solution.seconds),
        "attsvm": np.array(__version__),
    }


def numbers(solution: ShardedSolution) -> dict[str, Any]:
    """Collect the values that --json prints for a folder."""
    return answer_numbers(solution) | {
        "shards": len(solution.problem.shards),
        "left_out": list(solution.problem.left_out),
        "digests": list(solution.digests),
        "rounds": len(solution.rounds),
        "bytes_sent": sum(one.sent for one in solution.rounds),
        "bytes_received": sum(one.received for one in solution.rounds),
    }


def summary(solution: ShardedSolution) -> str:
    """Describe a solution in a few aligned lines."""
    n, T, d, dz = solution.problem.shape
    queries, shards = counted(n, "query", "queries"), counted(len(solution.problem.shards), "shard")
    lines = [
        ("problem", f"{queries} of dimension {dz}, up to {counted(T, 'token')} of dimension {d}, {shards}"),
        ("status", f"{solution.status.name.lower()}: {solution.sentence}"),
    ]
    if np.isfinite(solution.objective):
        lines.append(("norm", f"{solution.objective:.10g} ({solution.norm.name}), gap {small_text(solution.gap)}"))
    elif solution.certificate is not None:
        support_size = int((solution.certificate.dual > 0).sum())
        lines.append(("proof", counted(support_size, "multiplier")))
    else:
        lines.append(("bound", f"the objective of every W is above {solution.lower_bound:.6g}"))
    upload, download = sum(one.sent for one in solution.rounds), sum(one.received for one in solution.rounds)
    if solution.problem.left_out:
        lines.append(("left out", first_names(solution.problem.left_out)))
    lines.append(("method", f"{solution.method}, {counted(len(solution.rounds), 'round')}"))
    lines.append(("traffic", f"{upload:,} bytes out, {download:,} back, {solution.seconds:.3g} s"))
    return "\n".join(f"{name:8} {text}" for name, text in lines)


def solution_arrays(solution: ShardedSolution) -> dict[str, np.ndarray]:
    """Collect the arrays of the output file: multipliers, with the constraints that they belong to."""
    supports = solution.supports
    return answer_arrays(solution) | {
        "shard": supports.shard,
        "query": supports.query,
        "token": supports.token,
        "multiplier": supports.multiplier,
        "digest": np.array(solution.digests),
    }
