"""`attsvm solve`: a selection problem in, a certified solution out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter

from attsvm import __version__
from attsvm.cli.console import BadInput, Exit, Progress, check_writable, refusing
from attsvm.core.problem import SelectionProblem
from attsvm.core.status import Status
from attsvm.data.npz import as_mask, read_arrays, write_arrays
from attsvm.solution.solution import Solution
from attsvm.solvers.common.control import IterationState
from attsvm.solvers.solving import solve as solve_problem
from attsvm.study.spectrum import certified_rank
from attsvm.study.words import counted, small_text

CODES = {Status.OPTIMAL: Exit.DONE, Status.INFEASIBLE: Exit.INFEASIBLE, Status.CANCELLED: Exit.INTERRUPTED}


def read_problem(path: Path) -> SelectionProblem:
    """Read tokens, queries, selected and optionally mask and sequence.

    Raises
    ------
    FileNotFoundError, ValueError
        If the file or an array in it is not as expected.
    """
    arrays = read_arrays(path, ("tokens", "queries", "selected"), ("mask", "sequence"))
    mask = as_mask(arrays.get("mask"))
    sequence = arrays.get("sequence")
    return SelectionProblem(arrays["tokens"], arrays["queries"], arrays["selected"], mask=mask, sequence=sequence)


def solve(
    file: Path,
    /,
    *,
    norm: str = "frobenius",
    out: Path | None = None,
    tol: float = 1e-9,
    max_iter: int | None = None,
    time_limit: Annotated[float | None, Parameter(help="In seconds.")] = None,
) -> int:
    """Find the smallest W that selects given tokens, with a certificate.

    Exits with 0 when solved, 2 on bad input, 3 when no W exists, 4 when undecided or a limit was reached.

    Parameters
    ----------
    file
        A .npz file with tokens (n, T, d), queries (n, dz), selected (n,) or (n, T), and optionally mask (n, T) and
        sequence (n,).
    norm
        The norm of W to minimise: frobenius, nuclear, spectral, max, or a number p >= 1 for the entrywise l_p norm.
    out
        The .npz file to write: W, dual, margins, support, certificate and the numbers printed.
    tol
        Certified relative gap to reach.
    max_iter
        Limit on iterations.
    time_limit
        Limit on time.
    """
    with refusing():
        problem = read_problem(file)
    if out is not None:
        if out.exists() and out.samefile(file):
            raise BadInput(f"--out {out} is the file of the problem; another name was expected.")
        check_writable(out, directory=False)

    with Progress() as progress:

        def watch(state: IterationState) -> bool:
            return progress(f"Solving, {state.method}", 0.0)

        with refusing():
            found = solve_problem(problem, norm, tol=tol, max_iter=max_iter, time_limit=time_limit, callback=watch)
    print(summary(found))
    if out is not None:
        with refusing():
            write_arrays(out, saved(found))
        print(f"written to {out}")
    return CODES.get(found.status, Exit.UNDECIDED)


def summary(found: Solution) -> str:
    """Describe a solution in a few aligned lines."""
    n, T, d, dz = found.problem.shape
    lines = [
        ("problem", f"{counted(n, 'query', 'queries')} of dimension {dz}, up to {T} tokens of dimension {d}"),
        ("status", f"{found.status.name.lower()}: {found.status.value}"),
    ]
    if np.isfinite(found.objective):
        lines += [
            ("norm", f"{found.objective:.10g} ({found.norm.name}), gap {small_text(max(found.gap, 0.0))}"),
            ("rank", f"{certified_rank(found)}"),
            ("support", counted(int(np.sum(found.support)), "token", "tokens") + " at margin one"),
        ]
    elif found.certificate is not None:
        used = int((found.certificate.dual > 0).sum())
        lines.append(
            ("proof", f"{counted(used, 'multiplier', 'multipliers')}, residual {found.certificate.residual:.0e}")
        )
    else:
        lines.append(("bound", f"every W must have norm above {found.lower_bound:.6g}"))
    lines.append(("method", f"{found.method}, {found.iterations} iterations, {found.seconds:.3g} s"))
    return "\n".join(f"{name:8} {text}" for name, text in lines)


def saved(found: Solution) -> dict[str, np.ndarray]:
    """Collect what the output file holds."""
    arrays = {
        "W": found.W,
        "dual": found.dual,
        "margins": found.margins,
        "support": found.support,
        "status": np.array(found.status.name),
        "norm": np.array(found.norm.name),
        "objective": np.array(found.objective),
        "lower_bound": np.array(found.lower_bound),
        "gap": np.array(found.gap),
        "method": np.array(found.method),
        "iterations": np.array(found.iterations),
        "seconds": np.array(found.seconds),
        "attsvm": np.array(__version__),
    }
    if found.certificate is not None:
        arrays["certificate"] = found.certificate.dual
    return arrays
