"""`attsvm solve`: solve a selection problem, with a certificate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter

from attsvm.cli.console import BadInput, Exit, Progress, check_writable, refusing
from attsvm.cli.solve_folder import CODES, Folder, answer_arrays, answer_numbers, check_npz, solve_folder
from attsvm.core.norms import get_norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.status import Status
from attsvm.data.npz import as_mask, read_arrays, write_arrays
from attsvm.platform.files import check_apart
from attsvm.platform.summary import counted
from attsvm.proofs import Proof
from attsvm.proofs.words import norm_words
from attsvm.solution.regularised import RegularisedSolution
from attsvm.solution.solution import Solution
from attsvm.solvers.common.control import IterationState
from attsvm.solvers.solving import solve as solve_problem
from attsvm.study.spectrum import certified_rank
from attsvm.study.words import small_text


def read_problem(path: Path) -> SelectionProblem:
    """Read tokens, queries, selected and optionally mask and sequence.

    Raises FileNotFoundError or ValueError if the file or an array in it is invalid.
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
    certificate: Path | None = None,
    C: Annotated[float | None, Parameter(name="--C")] = None,
    loss: Literal["hinge", "squared_hinge"] = "hinge",
    prior: Path | None = None,
    method: str | None = None,
    exact: bool = False,
    tol: float = 1e-9,
    max_iter: int | None = None,
    time_limit: Annotated[float | None, Parameter(help="In seconds.")] = None,
    json: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    checkpoint: Path | None = None,
) -> int:
    """Find the smallest W that selects given tokens, with a certificate.

    Exits with 0 if solved, 2 on bad input, 3 if no W exists, 4 if undecided or a limit was reached.

    Parameters
    ----------
    file
        A .npz file with tokens (n, T, d), queries (n, dz), selected (n,) or (n, T), and optionally mask (n, T) and
        sequence (n,); or a folder of shards with such arrays.
    norm
        The norm of W to minimise: frobenius, nuclear, spectral, max, a number p >= 1 for the entrywise l_p norm, or
        one of schatten:p, ky-fan:k, rows:p:q, columns:p:q.
    out
        The .npz file to write: W, dual, margins, support, certificate and the printed numbers.
    certificate
        The .json file to write: the problem, W, multipliers and what they prove, as rational numbers. `attsvm check`
        verifies it without the solvers. Exits with 4 if exact arithmetic does not prove the result.
    C
        Soft margin: weight of the losses. By default every constraint must hold (hard margin).
    loss
        Loss of a margin below one, with --C.
    prior
        A .npz file with W (d, dz), such as one written by --out: the distance from it replaces the norm.
    method
        The solver's method; chosen automatically by default.
    exact
        Also prove the result in exact arithmetic; exits with 4 if the proof fails.
    tol
        Certified relative gap to reach.
    max_iter
        Largest number of iterations.
    time_limit
        Time limit in seconds.
    json
        Print one line of JSON instead of a table.
    workers
        For a folder: number of processes that evaluate the shards.
    scheduler
        For a folder: address of a running dask scheduler whose workers evaluate the shards.
    checkpoint
        For a folder: the file to continue from and to write after every round; by default next to the folder.
    """
    with refusing():
        is_folder = file.is_dir()
    if is_folder:
        if certificate is not None or exact or method is not None:
            raise BadInput("--certificate, --exact and --method are for files; none was expected with a folder.")
        limits = {"tol": tol, "max_iter": max_iter, "time_limit": time_limit}
        place = checkpoint or file.resolve().with_name(f"{file.resolve().name}.checkpoint.npz")
        return solve_folder(
            Folder(file, place, scheduler, workers), norm, out, prior, limits | {"C": C, "loss": loss}, json=json
        )
    if (workers, scheduler, checkpoint) != (None, None, None):
        raise BadInput(
            "--workers, --scheduler and --checkpoint are given with a file; a folder of shards was expected."
        )
    with refusing():
        problem = read_problem(file)
        origin = None if prior is None else read_arrays(prior, ("W",))["W"]
        if certificate is not None:
            norm_words(get_norm(norm))
        _check_targets(out, certificate, [file, *filter(None, [prior])])
    if out is not None:
        check_writable(out, directory=False)
    if certificate is not None:
        check_writable(certificate, directory=False, option="--certificate")

    with Progress() as progress:

        def watch(state: IterationState) -> bool:
            return progress(f"Solving, {state.method}" if state.method else "Solving", 0.0)

        options: dict[str, Any] = {"tol": tol, "max_iter": max_iter, "time_limit": time_limit, "method": method}
        with refusing():
            measure: Any = norm  # solve checks the name
            solution = solve_problem(problem, measure, **options, C=C, loss=loss, prior=origin, callback=watch)
    proof = solution.verify(exact=True) if exact else None
    lines = [dumps(numbers(solution, proof)) if json else summary(solution, "norm" if prior is None else "distance")]
    if proof is not None and not json:
        lines.append(f"{'exact':8} {'proven: ' if proof.proven else ''}{proof.statement}")
    try:  # files first, because the output may be closed; the output comes even if a file cannot be written
        if out is not None:
            with refusing():
                write_arrays(out, solution_arrays(solution))
            lines.append(f"written to {out}")
        certified = certificate is None or _save(solution, certificate)
        if certificate is not None and certified:
            lines.append(f"certificate written to {certificate}")
    finally:
        print("\n".join(lines[:1] if json else lines))
    if not certified:
        return Exit.UNDECIDED
    if proof is not None and not proof.proven and solution.status in (Status.OPTIMAL, Status.INFEASIBLE):
        return Exit.UNDECIDED
    return CODES.get(solution.status, Exit.UNDECIDED)


def _check_targets(out: Path | None, certificate: Path | None, sources: Sequence[Path]) -> None:
    """Refuse outputs that equal an input or each other, or whose names have the wrong suffix."""
    if out is not None:
        check_npz(out)
        check_apart(out, "--out", sources)
    if certificate is not None:
        check_apart(certificate, "--certificate", [*sources, *filter(None, [out])])
        if certificate.suffix == ".npz":
            raise BadInput(f"--certificate {certificate} would be written as JSON; a name such as c.json was expected.")


def _save(solution: Solution, certificate: Path) -> bool:
    """Write the certificate, or report why there is none."""
    with refusing():
        try:
            solution.save(certificate)
        except ValueError as error:
            print(f"attsvm: no certificate was written: {error}", file=sys.stderr)
            return False
    return True


def numbers(solution: Solution, proof: Proof | None = None) -> dict[str, Any]:
    """Collect the values that --json prints for a file."""
    has_optimum = solution.status is Status.OPTIMAL
    return answer_numbers(solution) | {
        "rank": certified_rank(solution) if has_optimum else None,
        "support": int(np.sum(solution.support)) if has_optimum else None,
        "exact": None if proof is None else {"proven": proof.proven, "statement": proof.statement},
    }


def summary(solution: Solution, objective: str = "norm") -> str:
    """Describe a solution in a few aligned lines; `objective` is the label of the objective."""
    n, T, d, dz = solution.problem.shape
    queries, iterations = counted(n, "query", "queries"), counted(solution.iterations, "iteration")
    lines = [
        ("problem", f"{queries} of dimension {dz}, up to {counted(T, 'token')} of dimension {d}"),
        ("status", f"{solution.status.name.lower()}: {solution.sentence}"),
    ]
    if np.isfinite(solution.objective):
        # The gap of a W that is not optimal gives only bounds.
        least, most = ("", "") if solution.status is Status.OPTIMAL else ("at least ", "at most ")
        support = counted(int(np.sum(solution.support)), "token")
        lines += [
            (objective, f"{solution.objective:.10g} ({solution.norm.name}), gap {small_text(max(solution.gap, 0.0))}"),
            *_soft_margin_lines(solution),
            ("rank", f"{least}{certified_rank(solution)}"),
            ("support", f"{most}{support} at margin one"),
        ]
    elif solution.certificate is not None:
        support_size = int((solution.certificate.dual > 0).sum())
        lines.append(("proof", f"{counted(support_size, 'multiplier')}, residual {solution.certificate.residual:.0e}"))
    else:
        lines.append(("bound", f"every W must have norm above {solution.lower_bound:.6g}"))
    lines.append(("method", f"{solution.method}, {iterations}, {solution.seconds:.3g} s"))
    return "\n".join(f"{name:8} {text}" for name, text in lines)


def _soft_margin_lines(solution: Solution) -> list[tuple[str, str]]:
    """Describe the objective of a soft margin."""
    if not isinstance(solution, RegularisedSolution) or solution.regularisation.C is None:
        return []
    size = "half the squared norm" if solution.norm.euclidean else "the norm"
    return [("primal", f"{solution.primal:.10g}, {size} plus C times the losses")]


def solution_arrays(solution: Solution) -> dict[str, np.ndarray]:
    """Collect the arrays of the output file."""
    arrays = answer_arrays(solution) | {
        "dual": solution.dual,
        "margins": solution.margins,
        "support": solution.support,
        "iterations": np.array(solution.iterations),
    }
    if solution.certificate is not None:
        arrays["certificate"] = solution.certificate.dual
    return arrays
