r"""Distance of a matrix from the SVM solutions of a problem, if there may be more than one.

The solution is unique in the Frobenius and the l_p norms, 1 < p < infinity. In other norms a convex set may attain the
smallest norm :math:`\nu`. Scaled to norm one it is

.. math:: S = \{X : \|X\| \le 1,\ A(X)_{it} \ge 1/\nu \text{ for rejected},\ A(X)_{it} = 0 \text{ for tied tokens}\},

and the distance of U to S comes from the projection problem :math:`\min\tfrac{1}{2}\|X - U\|_F^2` over S. Its dual
function, with multipliers :math:`\lambda \ge 0` on the rejected and free on the tied tokens, takes one projection on
the ball,

.. math:: g(\lambda) = \min_{\|X\|\le1} \tfrac{1}{2}\|X-U\|_F^2 - \langle\lambda, A(X) - c\rangle,\qquad
          X(\lambda) = \Pi(U + A^\top\lambda),

is concave with gradient :math:`c - A(X(\lambda))`, and is maximised by L-BFGS-B. S has no interior, so margins are met
up to a relative slack: the answer is the distance to the matrices whose norm is within the slack of the smallest.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize

from attsvm.solution.solution import Solution

# Default slack: the set must contain the solution, whose certified gap is rarely below 1e-12.
SLACK = 1e-9


def distance_to_solutions(W: np.ndarray, solution: Solution, slack: float = SLACK) -> float:
    """Frobenius distance of W / ||W|| to the set of SVM solutions, both of norm one in the norm of the solution.

    Parameters
    ----------
    W : ndarray, shape (d, dz)
        Not zero.
    solution : Solution
        An optimum of the problem.
    slack : float
        Relative excess of the norm up to which a matrix counts as a solution; twice the solution's gap if larger.

    Raises
    ------
    ValueError
        If the problem has no solution. If W has another shape, is zero, or is not finite. If the norm has several
        solutions and no projection on its ball is known.
    """
    norm, problem = solution.norm, solution.problem
    if not np.isfinite(solution.objective) or solution.objective == 0:
        raise ValueError(f"solution has status {solution.status.name} and norm {solution.objective}; one was expected.")
    best = solution.certified.W
    if W.shape != best.shape or not np.isfinite(W).all() or not W.any():
        raise ValueError(f"W has shape {W.shape}; a finite non-zero matrix {best.shape} was expected.")
    unit = W / norm.value(W)
    if norm.smooth:
        return float(np.linalg.norm(unit - best / solution.objective))
    if norm.nearest(unit) is None:
        raise ValueError(f"solution has norm {norm.name}; a smooth norm, nuclear, spectral, max or l_1 was expected.")
    slack = max(slack, 2 * solution.gap)
    active = problem.rejected | problem.tied
    target = np.where(problem.rejected, (1 - slack) / solution.objective, 0.0)[active]
    dual = np.zeros(active.shape)

    def nearest(multipliers: np.ndarray) -> np.ndarray:
        dual[active] = multipliers
        projection = norm.nearest(unit + problem.adjoint(dual))
        assert projection is not None
        return projection

    def negative(multipliers: np.ndarray) -> tuple[float, np.ndarray]:
        X = nearest(multipliers)
        missing = target - problem.apply(X)[active]
        return -float(0.5 * ((X - unit) ** 2).sum() + multipliers @ missing), -missing

    bounds = [(0.0, None) if rejected else (None, None) for rejected in problem.rejected[active]]
    outcome = minimize(
        negative, np.zeros(len(target)), jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": 5000, "maxfun": 20000, "ftol": 0.0, "gtol": 1e-12, "maxcor": 30},
    )  # fmt: skip
    # Any multipliers bound the distance from below, so the returned value never exceeds the distance.
    return math.sqrt(2 * max(-float(outcome.fun), 0.0))
