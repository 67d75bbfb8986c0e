"""Cone solvers: through cvxpy as users write the model, and called directly for the nuclear norm.

*naive* writes one constraint per token in a Python loop, with the solver that the paper's authors run (Clarabel for the
Frobenius norm, SCS for the nuclear norm) at its default settings; *vectorised* is one matrix expression.

Directly, the nuclear norm of W is the least (tr U + tr V) / 2 with [[U, W], [W^T, V]] positive semidefinite.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import scipy.sparse as sp
from peers import Answer, constraint_matrix, constraint_rows, spread

from attsvm import SelectionProblem

SCS_EPS = 1e-7


def naive(problem: SelectionProblem, norm: str) -> Answer:
    cp: Any = import_module("cvxpy")

    W = cp.Variable(problem.shape[2:])
    constraints = []
    for i, z in enumerate(problem.queries):
        x = problem.tokens[problem.sequence[i]]
        for t in np.flatnonzero(problem.rejected[i]):
            constraints.append((x[problem.reference[i]] - x[t]) @ W @ z >= 1)
    if norm == "frobenius":
        program = cp.Problem(cp.Minimize(cp.norm(W, "fro")), constraints)
        program.solve(solver=cp.CLARABEL)
    else:
        program = cp.Problem(cp.Minimize(cp.normNuc(W)), constraints)
        program.solve(solver=cp.SCS)
    values = [constraint.dual_value for constraint in constraints]
    numbers = None if any(value is None for value in values) else np.array(values, dtype=float).ravel()
    return _answer(problem, program, W, numbers)


def vectorised(problem: SelectionProblem, norm: str) -> Answer:
    cp: Any = import_module("cvxpy")

    W = cp.Variable(problem.shape[2:])
    delta, z = constraint_rows(problem)
    margins = cp.sum(cp.multiply(delta @ W, z), axis=1) >= 1
    objective = cp.sum_squares(W) / 2 if norm == "frobenius" else cp.normNuc(W)
    program = cp.Problem(cp.Minimize(objective), [margins])
    program.solve(solver=cp.CLARABEL)
    return _answer(problem, program, W, margins.dual_value)


def _answer(problem: SelectionProblem, program: Any, W: Any, values: np.ndarray | None) -> Answer:
    dead = program.status in ("infeasible", "infeasible_inaccurate")
    return Answer(W.value, spread(problem, values), program.status.replace("_", " "), dead)


def _semidefinite_program(problem: SelectionProblem, upper: bool) -> tuple[np.ndarray, sp.csc_matrix, np.ndarray, Any]:
    """Return c, G and h of: minimise c^T s with h - G s in (nonnegative, semidefinite); and the places of W in s.

    The variable s is the symmetric block matrix, one triangle column by column, entries off the diagonal times sqrt 2.
    """
    d, dz = problem.shape[2:]
    side = d + dz
    row, column = np.tril_indices(side)
    if upper:
        order = np.lexsort((column, row))  # the upper triangle by columns is the lower one by rows
    else:
        order = np.lexsort((row, column))
    row, column = row[order], column[order]
    place = np.empty((side, side), dtype=np.int64)
    place[row, column] = np.arange(len(row))
    of_W = place[d:, :d].T.ravel()  # W[a, b] stands at row d + b, column a
    cost = np.where(row == column, 0.5, 0.0)
    A = constraint_matrix(problem)
    m, count = len(A), len(row)
    columns = np.tile(of_W, m)
    margins = sp.csc_matrix((A.ravel() / np.sqrt(2.0), (np.repeat(np.arange(m), d * dz), columns)), (m, count))
    G = sp.csc_matrix(sp.vstack([-margins, -sp.identity(count)]))
    return cost, G, np.concatenate([-np.ones(m), np.zeros(count)]), of_W


def clarabel_directly(problem: SelectionProblem) -> Answer:
    solvers: Any = import_module("clarabel")

    cost, G, h, of_W = _semidefinite_program(problem, upper=True)
    m = int(problem.rejected.sum())
    cones = [solvers.NonnegativeConeT(m), solvers.PSDTriangleConeT(sum(problem.shape[2:]))]
    settings = solvers.DefaultSettings()
    settings.verbose = False
    quadratic = sp.csc_matrix((len(cost), len(cost)))
    solution = solvers.DefaultSolver(quadratic, cost, G, h, cones, settings).solve()
    W = (np.asarray(solution.x)[of_W] / np.sqrt(2.0)).reshape(problem.shape[2:])
    verdict = str(solution.status)
    return Answer(W, spread(problem, np.asarray(solution.z)[:m]), verdict, "PrimalInfeasible" in verdict)


def scs_directly(problem: SelectionProblem) -> Answer:
    import scs

    cost, G, h, of_W = _semidefinite_program(problem, upper=False)
    m = int(problem.rejected.sum())
    solver = scs.SCS(
        {"A": G, "b": h, "c": cost}, {"l": m, "s": [sum(problem.shape[2:])]},
        eps_abs=SCS_EPS, eps_rel=SCS_EPS, max_iters=1_000_000, verbose=False,
    )  # fmt: skip
    answer = solver.solve()
    W = (answer["x"][of_W] / np.sqrt(2.0)).reshape(problem.shape[2:])
    verdict = answer["info"]["status"]
    return Answer(W, spread(problem, answer["y"][:m]), verdict, "infeasible" in verdict)
