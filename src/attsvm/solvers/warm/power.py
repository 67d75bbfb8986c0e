r"""Entrywise l_p norms, 1 < p < inf, from the solution of a similar problem: Newton on the active constraints.

In units where :math:`\|W\|_p = 1` the conditions of optimality read

.. math:: A^\top\lambda = \varphi_p(W), \qquad \lambda = [\lambda + c - A(W)]_+, \qquad
   \varphi_p(W) = \mathrm{sign}(W)|W|^{p-1}.

The second is an equation that is not smooth; its generalised Newton method reads the active constraints, those with
:math:`\lambda > A(W) - c`, anew before every step (the primal-dual active-set strategy; Hintermueller, Ito and Kunisch,
SIAM J. Optim. 13, 2002). With J active, a step solves :math:`A_J D A_J^\top d\lambda = \dots` where D differentiates
whichever of :math:`\varphi_p` and its inverse :math:`\varphi_q` is smooth. Started near the solution it converges in a
few steps; where it does not, it is given up and nothing but those steps is lost.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError

from attsvm.core.norms import Norm, entrywise
from attsvm.core.reduction import Reduced
from attsvm.solvers.common import cholesky as equilibrated
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.evaluation import report
from attsvm.solvers.common.ties import Ties

STEPS = 8
# Gap of the earlier pair above which its active constraints say too little.
FAR = 0.3
# Multipliers below this part of the largest are zero in an interior point's solution.
ZERO = 1e-6
# Curvatures below this part of the largest are rounding.
FLOOR = 1e-13
# A step must shrink to this part of the one before, from the third on: slower is not Newton's method near a solution.
SHRINK = 0.5


def pursue_power(reduced: Reduced, norm: Norm, W: np.ndarray, dual: np.ndarray, control: Control) -> bool:
    """Take Newton steps from the solution of a similar problem while they approach this one's.

    Parameters
    ----------
    reduced : Reduced
    norm : Norm
        Entrywise with 1 < p < inf.
    W : ndarray, shape (p, r)
        Feasible.
    dual : ndarray, shape (n, T)
        Of any scale.
    control : Control

    Returns
    -------
    bool
        Whether the gap closed (or the run is to stop); the best pair is with ``control``.
    """
    if not control.state.gap < FAR:
        return False
    p = norm.power
    assert p is not None
    q = p / (p - 1.0)
    ties = Ties(reduced)
    W = W / reduced.min_margin(reduced.apply(W))
    unit = entrywise(W, p)
    length = entrywise(reduced.adjoint(dual), q)
    if length <= 0:
        return False
    V, dual = W / unit, np.where(reduced.rejected, np.maximum(dual, 0.0), dual) / length
    nu = ties.from_multipliers(dual)
    before = np.inf
    for step in range(STEPS):
        strength = np.where(reduced.rejected, dual * reduced.lengths, 0.0)
        top = float(strength.max())
        level = ZERO * top if step == 0 else top * (unit * reduced.apply(V) - 1.0)
        rows, columns = np.nonzero(reduced.rejected & (strength > level))
        matrix = ties.constraints(rows, columns)  # (J + k, p r)
        if not 0 < len(rows) <= len(matrix.T):
            return False
        now = np.append(dual[rows, columns], nu)
        cost = np.append(np.full(len(rows), 1.0 / unit), np.zeros(len(nu)))
        try:
            V, held = _step(matrix, cost, V, now, p)
        except LinAlgError:
            return False
        change = float(np.abs(held - now).max() / max(np.abs(now).max(), 1e-300))
        if not change < FAR or (step > 1 and change > SHRINK * before):
            return False
        before = change
        dual = np.zeros_like(dual)
        dual[rows, columns], nu = held[: len(rows)], held[len(rows) :]
        if report(reduced, norm, ties.project(V), dual + ties.tie_multipliers(nu), control):
            return True
    return False


def _step(
    matrix: np.ndarray, cost: np.ndarray, V: np.ndarray, held: np.ndarray, p: float
) -> tuple[np.ndarray, np.ndarray]:
    """Take a Newton step on ``matrix V = cost``, ``matrix^T held = phi_p(V)`` for V (p, r) and held (J,)."""
    primal_side = p > 2
    r = p if primal_side else p / (p - 1.0)
    where = V.ravel() if primal_side else held @ matrix
    size = np.abs(where)
    curvature = (r - 1.0) * np.maximum(size ** (r - 2.0), FLOOR * float(size.max()) ** (r - 2.0))
    slope = np.sign(where) * size ** (r - 1.0)
    compliance = 1.0 / curvature if primal_side else curvature
    solve = equilibrated.factor((matrix * compliance) @ matrix.T)
    if primal_side:
        after = held + solve(cost - matrix @ (where + compliance * (held @ matrix - slope)))
        return (where + compliance * (after @ matrix - slope)).reshape(V.shape), after
    after = held + solve(cost - matrix @ slope)
    pulled = after @ matrix
    return (np.sign(pulled) * np.abs(pulled) ** (r - 1.0)).reshape(V.shape), after
