r"""Interior point for the Frobenius problem, in the space of W.

For correlated tokens the coordinate method crawls and working sets churn; Newton's method on the perturbed optimality
conditions of min 1/2 ||W||^2 s.t. A(W) - s = c, s >= 0 does not mind. Each step solves

.. math:: (I + A^\top \Theta A)\, dW = \mathrm{rhs}, \qquad \Theta = \lambda / s,

whose matrix is (p r) x (p r), formed in one product (:mod:`attsvm.core.normal_matrix`); when there are fewer
constraints than entries of W the same step is taken on :math:`\Theta^{-1} + A A^\top`. Predictor-corrector steps
follow Mehrotra (SIAM J. Optim. 2, 1992). Equalities get a large fixed weight and an accumulated multiplier (method of
multipliers).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from attsvm.core.normal_matrix import NormalMatrix
from attsvm.core.norms import FROBENIUS
from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.evaluation import report

TIE_WEIGHT = 1e8
STEP_BACK = 0.995


def interior_point(reduced: Reduced, control: Control, *, max_steps: int = 80) -> np.ndarray:
    """Run until the control is satisfied or progress ends.

    Parameters
    ----------
    reduced : Reduced
    control : Control
    max_steps : int

    Returns
    -------
    ndarray, shape (n, T)
        The last multipliers.
    """
    rejected, tied = reduced.rejected, reduced.tied
    cost = np.where(rejected, 1.0, 0.0)
    W = np.zeros(reduced.shape)
    slack, dual = cost.copy(), cost / np.where(rejected, reduced.lengths, 1.0) ** 2
    count = int(rejected.sum())
    solver = _step_solver(reduced)
    stalled = 0
    best_gap = np.inf
    for _ in range(max_steps):
        margins = reduced.apply(W)
        pulled = reduced.adjoint(dual)
        if report(reduced, FROBENIUS, pulled, dual, control) or _assess_primal(reduced, W, margins, control):
            break
        stalled = stalled + 1 if control.state.gap >= 0.9 * best_gap else 0
        best_gap = min(best_gap, control.state.gap)
        if stalled > 15:
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            theta = np.where(rejected, dual / slack, np.where(tied, TIE_WEIGHT, 0.0))
        primal_residual = np.where(rejected, margins - slack - cost, np.where(tied, margins, 0.0))
        dual_residual = W - pulled
        mu = float((slack * dual)[rejected].sum()) / count
        try:
            solve = solver(theta)
        except LinAlgError:
            break

        def direction(
            target: np.ndarray,
            solve: Callable[[np.ndarray, np.ndarray], np.ndarray] = solve,
            theta: np.ndarray = theta,
            primal_residual: np.ndarray = primal_residual,
            dual_residual: np.ndarray = dual_residual,
        ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            # target is (s lam + ds dlam - sigma mu)/s for inequalities: what complementarity still lacks
            lacking = target + theta * primal_residual  # (n, T)
            d_w = solve(-dual_residual, -lacking)
            moved = reduced.apply(d_w)
            d_dual = np.where(rejected | tied, -lacking - theta * moved, 0.0)
            d_slack = np.where(rejected, moved + primal_residual, 0.0)
            return d_w, d_slack, d_dual

        with np.errstate(divide="ignore", invalid="ignore"):
            affine = direction(np.where(rejected, dual, 0.0))
            primal_step = _largest_step(slack, affine[1], rejected)
            dual_step = _largest_step(dual, affine[2], rejected)
            after = ((slack + primal_step * affine[1]) * (dual + dual_step * affine[2]))[rejected].sum() / count
            centre = (max(float(after), 0.0) / mu) ** 3 * mu if mu > 0 else 0.0
            target = np.where(rejected, dual + (affine[1] * affine[2] - centre) / slack, 0.0)
            d_w, d_slack, d_dual = direction(target)
        if not (np.isfinite(d_w).all() and np.isfinite(d_dual).all()):
            break
        # One step length for both: W and lam are coupled through W = A^T lam.
        step = STEP_BACK * min(_largest_step(slack, d_slack, rejected), _largest_step(dual, d_dual, rejected))
        step = min(1.0, step)
        W = W + step * d_w
        slack = np.where(rejected, slack + step * d_slack, 0.0)
        dual = dual + step * d_dual
    return dual


def _assess_primal(reduced: Reduced, W: np.ndarray, margins: np.ndarray, control: Control) -> bool:
    """Offer the primal iterate too: far from convergence it is the better W."""
    margin = reduced.feasible_margin(W, margins)
    if margin > 0:
        control.offer(W, FROBENIUS.value(W) / margin, None, 0.0)
    return control.solved


def _largest_step(value: np.ndarray, change: np.ndarray, where: np.ndarray) -> float:
    """Largest step in [0, 1/STEP_BACK] that keeps value + step change nonnegative."""
    shrinking = where & (change < 0)
    if not shrinking.any():
        return 1.0 / STEP_BACK
    return min(1.0 / STEP_BACK, float((-value[shrinking] / change[shrinking]).min()))


def _step_solver(reduced: Reduced) -> Callable[[np.ndarray], Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """Return theta -> ((R, q) -> dW solving (I + A^T theta A) dW = R + A^T q), in the smaller of two spaces."""
    rows, columns = np.nonzero(reduced.rejected | reduced.tied)
    size = int(np.prod(reduced.shape))
    if len(rows) >= size:
        normal = NormalMatrix(reduced)

        def factor_primal(theta: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
            matrix = normal.form(theta)
            matrix[np.diag_indices(size)] += 1.0
            factor = cho_factor(matrix.T, lower=True, overwrite_a=True, check_finite=False)

            def solve(residual: np.ndarray, weights: np.ndarray) -> np.ndarray:
                rhs = (residual + reduced.adjoint(weights)).ravel()
                return cho_solve(factor, rhs, check_finite=False).reshape(reduced.shape)

            return solve

        return factor_primal
    delta, queries = reduced.delta[rows, columns], reduced.queries[rows]
    gram = (delta @ delta.T) * (queries @ queries.T)

    def factor_dual(theta: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        matrix = gram.copy()
        weight = theta[rows, columns]
        matrix[np.diag_indices(len(rows))] += 1.0 / np.maximum(weight, 1e-300)
        factor = cho_factor(matrix.T, lower=True, overwrite_a=True, check_finite=False)

        def solve(residual: np.ndarray, weights: np.ndarray) -> np.ndarray:
            total = residual + reduced.adjoint(weights)
            held = np.zeros(weights.shape)
            held[rows, columns] = cho_solve(factor, reduced.apply(total)[rows, columns], check_finite=False)
            return total - reduced.adjoint(held)

        return solve

    return factor_dual
