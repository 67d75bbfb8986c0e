"""Quadratic programming solvers, on the primal (variables W) or the dual (one variable per constraint).

*primal*: minimise |w|^2 / 2 subject to A w >= 1.
*dual*: minimise lam^T A A^T lam / 2 - 1^T lam over lam >= 0; then W = A^T lam.

Solvers with a tolerance get 1e-9, the default of attsvm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from peers import Answer, constraint_matrix, gram_matrix, spread

from attsvm import SelectionProblem

TOLERANCE = 1e-9
MANY = 1_000_000  # iterations; the time limit ends a run earlier
SPARSE = ("osqp", "clarabel")
OPTIONS: dict[str, dict[str, Any]] = {
    "osqp": {"eps_abs": TOLERANCE, "eps_rel": TOLERANCE, "max_iter": MANY, "polishing": True},
    "piqp": {"eps_abs": TOLERANCE, "eps_rel": TOLERANCE, "max_iter": 1000},
    "proxqp": {"eps_abs": TOLERANCE, "eps_rel": 0.0, "max_iter": MANY},
    "clarabel": {"tol_gap_abs": TOLERANCE, "tol_gap_rel": TOLERANCE, "tol_feas": TOLERANCE},
    "quadprog": {},
}
# A A^T is singular whenever there are more constraints than unknowns; quadprog factors it.
RIDGE = 1e-12


def with_qpsolvers(problem: SelectionProblem, solver: str, form: str) -> Answer:
    import qpsolvers

    if form == "primal":
        A = constraint_matrix(problem)
        P, q, G, h, lower = np.eye(A.shape[1]), np.zeros(A.shape[1]), -A, -np.ones(len(A)), None
    else:
        P = gram_matrix(problem)
        if solver == "quadprog":
            P[np.diag_indices(len(P))] += RIDGE * P.diagonal().max()
        q, G, h, lower = -np.ones(len(P)), None, None, np.zeros(len(P))
    if solver in SPARSE:
        P, G = sp.csc_matrix(P), None if G is None else sp.csc_matrix(G)
    program = qpsolvers.Problem(P, q, G, h, lb=lower)  # type: ignore[arg-type]
    answer = qpsolvers.solve_problem(program, solver=solver, **OPTIONS[solver])
    verdict = _verdict(answer)
    dead = "infeasible" in verdict if form == "primal" else "dual" in verdict and "infeasible" in verdict
    if answer.x is None:
        # The identity always factors, so quadprog fails only if the constraints are inconsistent.
        gave_up = solver == "quadprog" and form == "primal"
        return Answer(None, None, "constraints are inconsistent" if gave_up else verdict, dead or gave_up)
    if form == "primal":
        return Answer(answer.x.reshape(problem.shape[2:]), spread(problem, answer.z), verdict, dead)
    return _from_dual(problem, answer.x, verdict, dead)


def _from_dual(problem: SelectionProblem, values: np.ndarray, verdict: str, dead: bool) -> Answer:
    dual = spread(problem, np.maximum(values, 0.0))
    assert dual is not None
    return Answer(problem.adjoint(dual), dual, verdict, dead)


def _verdict(answer: Any) -> str:
    """Return the status of the solver, in its words if qpsolvers passes them on."""
    info = answer.extras.get("info")
    status = answer.extras.get("status") or getattr(info, "status", None)
    text = str(status if status is not None else "solved" if answer.found else "not solved")
    words = text.split(".")[-1].replace("_", " ").replace("Infeasible", " infeasible").lower()
    return words.removeprefix("piqp ").removeprefix("proxqp ")


EQUALITY = 5  # how daqp marks a constraint that always holds with equality
DAQP_SAYS = {1: "solved", 2: "solved", -1: "infeasible", -2: "cycling", -3: "unbounded", -4: "iteration limit"}


def with_daqp(problem: SelectionProblem, form: str) -> Answer:
    import daqp

    if form == "primal":
        A, tied = constraint_matrix(problem, ties=True), problem.tied[problem.constrained]
        m, size = A.shape
        x, _, flag, info = daqp.solve(
            np.eye(size), np.zeros(size), A, np.where(tied, 0.0, 1e30), np.where(tied, 0.0, 1.0),
            np.where(tied, EQUALITY, 0).astype(np.int32), primal_tol=TOLERANCE, iter_limit=MANY,
        )  # fmt: skip
        values = -np.asarray(info["lam"])
        dual = np.zeros(problem.mask.shape)
        dual[problem.constrained] = np.where(tied, values, np.maximum(values, 0.0))
        return Answer(np.asarray(x).reshape(problem.shape[2:]), dual, DAQP_SAYS.get(flag, str(flag)), flag == -1)
    P = gram_matrix(problem)
    m = len(P)
    x, _, flag, _ = daqp.solve(
        P, -np.ones(m), np.empty((0, m)), np.full(m, 1e30), np.zeros(m), np.zeros(m, dtype=np.int32), iter_limit=MANY
    )
    return _from_dual(problem, np.asarray(x), DAQP_SAYS.get(flag, str(flag)), flag == -3)
