"""HiGHS, through SciPy, on the linear programs of the l_1 and the largest-entry norm.

For l_1, the variables are the positive and the negative parts of W. For the largest entry, they are W and its bound,
with two rows per entry.
"""

from __future__ import annotations

import numpy as np
from peers import Answer, constraint_matrix, spread
from scipy.optimize import linprog

from attsvm import SelectionProblem


def with_highs(problem: SelectionProblem, norm: str) -> Answer:
    A = constraint_matrix(problem)
    m, size = A.shape
    if norm == "1":
        cost, rows, offset = np.ones(2 * size), np.hstack([-A, A]), -np.ones(m)
        bounds: list[tuple[float | None, float | None]] = [(0.0, None)] * (2 * size)
    else:
        unit, one = np.eye(size), np.ones((size, 1))
        cost = np.concatenate([np.zeros(size), [1.0]])
        rows = np.block([[-A, np.zeros((m, 1))], [unit, -one], [-unit, -one]])
        offset, bounds = np.concatenate([-np.ones(m), np.zeros(2 * size)]), [(None, None)] * (size + 1)
    program = linprog(cost, A_ub=rows, b_ub=offset, bounds=bounds, method="highs")
    if program.x is None:
        return Answer(None, None, program.message, program.status == 2)
    w = program.x[:size] - program.x[size:] if norm == "1" else program.x[:size]
    dual = spread(problem, np.maximum(-program.ineqlin.marginals[:m], 0.0))
    return Answer(w.reshape(problem.shape[2:]), dual, "solved")
