"""A solution in words and tables: its status, its constraints, its summary."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.core.status import Status
from attsvm.platform.interop import to_numpy
from attsvm.platform.summary import BAD, GOOD, UNSURE, Summary, counted, histogram
from attsvm.proofs.claim import interval_words
from attsvm.proofs.program import Program
from attsvm.solution.numbers import SolutionNumbers

# The user's next step for each status.
NEXT = {
    Status.OPTIMAL: "verify(exact=True) proves it in exact arithmetic; margins and support say which tokens decide.",
    Status.INFEASIBLE: "A soft margin always exists: solve(problem, C=1.0). certificate holds the proof.",
    Status.UNDECIDED: "lower_bound and the norm of W enclose the optimum; a larger tol asks for less.",
    Status.MAX_ITERATIONS: "A larger max_iter goes on from here with warm_start=solution.",
    Status.TIME_LIMIT: "A larger time_limit goes on from here with warm_start=solution.",
    Status.MEMORY_LIMIT: "A machine with more memory goes on from here with warm_start=solution.",
    Status.CANCELLED: "solve(problem, warm_start=solution) goes on from here.",
}


def constraint_table(solution: SolutionNumbers) -> dict[str, Any]:
    """List the constraints, one per rejected token, in columns."""
    query, token = np.nonzero(solution.problem.rejected)
    return {
        "query": query,
        "token": token,
        "selected": solution.problem.reference[query],
        "margin": solution.certified.margins[query, token],
        "multiplier": solution.certified.dual[query, token],
        "support": np.asarray(to_numpy("support", solution.support))[query, token],
    }


def status_sentence(solution: SolutionNumbers) -> str:
    """Explain the status in a sentence, with the data, the ties or the interval for which it holds."""
    parts = [solution.status.sentence]
    certified = solution.certified
    if solution.certificate is not None and solution.certificate.perturbation > 0:
        parts.append(f"The proof holds for nearby data: {solution.certificate.statement}.")
    elif solution.certificate is None and certified.tie_residual > 0 and np.isfinite(certified.upper_bound):
        parts.append(f"Scores of tied tokens may differ by {certified.tie_residual:.1e} of the margin.")
    if solution.status not in (Status.OPTIMAL, Status.INFEASIBLE) and certified.lower_bound > 0:
        bounds = (certified.lower_bound, certified.upper_bound)
        parts.append(interval_words(Program(solution.problem, solution.norm, solution.regularisation), *bounds))
    if solution.note:
        parts.append(solution.note)
    return " ".join(parts)


def solution_summary(solution: SolutionNumbers) -> Summary:
    """Summarise a solution for a page or a terminal."""
    colour = {Status.OPTIMAL: GOOD, Status.INFEASIBLE: BAD}.get(solution.status, UNSURE)
    facts = [("method", f"{solution.method}, {counted(solution.iterations, 'iteration')}, {solution.seconds:.3g} s")]
    picture, notes = "", [status_sentence(solution)]
    if np.isfinite(solution.objective):
        support = int(np.asarray(solution.support).sum())
        most = "" if solution.status is Status.OPTIMAL else "at most "  # the gap leaves open which have margin one
        facts = [
            (f"{solution.norm.name} norm", f"{solution.objective:.9g}"),
            ("certified gap", f"{solution.gap:.1e}"),
            ("rank of W", f"{solution.rank} of {min(solution.certified.W.shape)}"),
            ("support tokens", f"{most}{support:,} of {counted(int(solution.problem.rejected.sum()), 'constraint')}"),
            *facts,
        ]
        rejected = solution.problem.rejected
        picture = histogram(solution.certified.margins[rejected], np.asarray(solution.support)[rejected])
    notes.append(NEXT[solution.status])
    title = type(solution).__name__
    return Summary(title, solution.status.name, colour, facts, picture, "margins; blue: support tokens", notes)
