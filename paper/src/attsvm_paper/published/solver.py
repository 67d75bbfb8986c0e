r"""The nuclear SVM solved as in the published runs: an operator-splitting method at its usual accuracy.

The official code passes :math:`\min\|W\|_*` under :math:`A(W)\ge 1` to a modelling language, which poses

.. math:: \min \tfrac12(\mathrm{tr}\,P + \mathrm{tr}\,Q) \quad\text{subject to}\quad
          \begin{pmatrix} P & W \\ W^\top & Q \end{pmatrix} \succeq 0,\ A(W) \ge 1,

to a first-order conic solver that stops at residuals of 1e-4 (O'Donoghue et al., *Conic optimization via operator
splitting*, 2016). This module implements the alternating direction method of multipliers for that problem, with the
same stopping rule. Its W satisfies the constraints and the cone only up to the residuals, and singular values that
should be zero have the size of the residuals.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.problem import SelectionProblem

EPSILON = 1e-4
PENALTY = 1.0
LIMIT = 20_000
CHECK = 10


def splitting_solution(problem: SelectionProblem, epsilon: float = EPSILON) -> np.ndarray:
    """Return W at the end of the splitting method, (d, dz); for a feasible problem.

    Parameters
    ----------
    problem : SelectionProblem
        A problem with one selected token per query.
    epsilon : float
        Relative and absolute residuals at which the method stops.
    """
    d, dz = problem.shape[2:]
    rows, columns = np.nonzero(problem.rejected)
    delta = np.concatenate([part for _, part in problem.differences()])[rows, columns]  # (m, d)
    A = (delta[:, :, None] * problem.queries[rows][:, None, :]).reshape(len(rows), -1)  # (m, d dz)
    # W appears twice in the matrix of the cone.
    factor = np.linalg.inv(A.T @ A + 2 * np.eye(d * dz))
    cone, slack = np.zeros((d + dz, d + dz)), np.zeros(len(rows))
    cone_dual, slack_dual = np.zeros_like(cone), np.zeros_like(slack)
    W = np.zeros((d, dz))
    for step in range(LIMIT):
        target = cone - cone_dual
        W = (factor @ (2 * target[:d, d:].ravel() + A.T @ (1 + slack - slack_dual))).reshape(d, dz)
        whole = target - np.eye(d + dz) / (2 * PENALTY)
        whole[:d, d:], whole[d:, :d] = W, W.T
        margins = A @ W.ravel() - 1
        before, slack_before = cone, slack
        values, vectors = np.linalg.eigh(whole + cone_dual)
        cone = (vectors * np.maximum(values, 0)) @ vectors.T
        slack = np.maximum(margins + slack_dual, 0)
        cone_dual = cone_dual + whole - cone
        slack_dual = slack_dual + margins - slack
        if step % CHECK == 0:
            primal = np.hypot(np.linalg.norm(whole - cone), np.linalg.norm(margins - slack))
            dual = PENALTY * np.hypot(np.linalg.norm(cone - before), np.linalg.norm(slack - slack_before))
            if primal <= epsilon * (1 + np.linalg.norm(cone)) and dual <= epsilon * (1 + np.linalg.norm(cone_dual)):
                break
    return W
