r"""The path of minimisers of the smoothed problem: every norm, hard and soft margins, priors and ties.

Let :math:`f_\mu` be the smooth approximation of the norm (:mod:`attsvm.core.norms.norm`). The logarithmic barrier of
slack and loss is in :mod:`attsvm.proofs.objective`. The problem is one smooth convex minimisation for each :math:`\mu`,

.. math:: \min_V\; f_\mu(V) + \sum_{it} \ell_\mu\bigl(c_{it} - A(V)_{it}\bigr), \qquad BV = \mathrm{const}.

Its multipliers :math:`\lambda = \ell_\mu'` lie between 0 and C by construction. Stationarity reads :math:`\nabla
f_\mu(V) = A^\top\lambda + B^\top\nu`, and the gradient lies in the unit ball of the dual norm: a minimiser certifies
itself to a gap of order :math:`\mu`. A basis of the null space of B eliminates the ties. A Newton step dV also improves
the multipliers, to :math:`\lambda - \Theta A(dV)` with :math:`\Theta = \ell_\mu''`. The improved multipliers satisfy
stationarity to the accuracy of the linear solution. Slacks are differences of nearly equal numbers and less accurate.

:math:`\nabla f_\mu(V)` depends on :math:`V/\mu` only, so the tangent of the path is :math:`\mu\,\tfrac{dV}{d\mu} =
K^{-1}\bigl(\nabla^2 f_\mu V + A^\top\mu\,\partial_\mu\lambda\bigr)`, with K the Hessian: one more solution with the
matrix of the last Newton step. Predictor steps along the tangent alternate with Newton steps back to the path (Nesterov
and Nemirovskii, *Interior-Point Polynomial Algorithms in Convex Programming*, 1994). Newton systems are dense in the
entries of V. For l_p norms the Hessian is a diagonal minus a rank-one matrix. If constraints are fewer than entries,
the system is then solved over the constraints (:mod:`attsvm.solvers.common.diagonal_normal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError

from attsvm.core.cholesky import factor
from attsvm.core.normal_matrix import NormalMatrix
from attsvm.core.norms import Smooth, frobenius
from attsvm.core.norms.smoothing import entrywise_parts, norm_gauge
from attsvm.core.rounding import growth
from attsvm.solvers.common.augmented import augmented
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.diagonal_normal import DiagonalNormal
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.interior_point.euclidean import work_of_a_step
from attsvm.solvers.schedule import SMOOTH_ENTRIES

# First mu, over the objective per token.
FIRST_MU = 1.0
# Largest number of values of mu, of Newton steps per value, and of halvings of a step.
MOST_STAGES, STAGE_NEWTON_STEPS, STEP_HALVINGS = 80, 40, 40
# Newton decrement, over mu, at which V counts as on the path; the second value is for a run that follows it closely,
# which takes more steps and is less sensitive to rounding.
ON_PATH, CLOSELY_ON_PATH = 4.0, 1e-3
# Factors by which a predictor step lowers mu, tried in turn.
MU_FALLS = (0.05, 0.2, 0.5, 0.8)
# Smallest share of a slack that a predictor step leaves, over the factor.
SLACK_SHARE = 0.1
# Largest squared Newton decrement, over mu, after a predictor step; the second value is for a close run.
DECREMENT, SMALL_DECREMENT = 300.0, 10.0
# Number of Newton steps after which the next predictor step starts with a larger factor.
CAREFUL_STEPS = 8
# Number of stages without a smaller gap, or without reaching the path, after which the run ends; stages count if the
# gap exceeds STALLED_GAP times the gap expected on the path.
STALLED_STAGES, STALLED_GAP = 4, 10.0
# Smallest mu, over the first.
SMALLEST_MU = 1e-17
# Largest residual of stationarity after a step, over the requested gap or the gap expected at mu.
DEFECT = 0.1
# Slack of a hard margin's start, over the margin.
PATH_DEPTH = 0.1


@dataclass(frozen=True)
class Curvature:
    """The Hessian diag(diagonal) - vector vector^T of an entrywise norm, in factors; both are (p r,)."""

    diagonal: np.ndarray
    vector: np.ndarray

    def __matmul__(self, V: np.ndarray) -> np.ndarray:
        """Apply the Hessian to V (p r,)."""
        return self.diagonal * V - self.vector * float(self.vector @ V)


@dataclass(frozen=True)
class PathPoint:
    """V, and the smoothed problem at V.

    Attributes
    ----------
    V : ndarray, shape (p, r)
    shortfall, dual, theta, drift : ndarray, shape (n, T)
        u = c - A(V), the first and second derivatives of its loss, and mu times the derivative of the first derivative
        in mu.
    gradient : ndarray, shape (p, r)
        Gradient of the objective.
    """

    V: np.ndarray
    norm: Smooth
    shortfall: np.ndarray
    dual: np.ndarray
    theta: np.ndarray
    drift: np.ndarray
    gradient: np.ndarray


def resume(setting: Setting, control: Control, V: np.ndarray) -> Iterator[float]:
    """Follow the path from V (p, r), or from the best V so far, if other methods have left the gap open."""
    if not (control.solved or control.stopped) and V.size <= SMOOTH_ENTRIES:
        control.enter("smoothing path")
        yield from SmoothingPath(setting, control, closely=True).run(V if control.W is None else control.W)


class SmoothingPath:
    """The path of one problem; with ``closely``, Newton runs nearer to it, on systems over the entries of V."""

    def __init__(self, setting: Setting, control: Control, *, closely: bool = False) -> None:
        self.setting, self.control = setting, control
        self._terms, self._reduced = setting.terms, setting.reduced
        basis, power = setting.ties.basis, self._terms.norm.power
        self._on_path, self._decrement = (CLOSELY_ON_PATH, SMALL_DECREMENT) if closely else (ON_PATH, DECREMENT)
        rows = None if power is None or closely else DiagonalNormal(setting.reduced)
        self._rows = rows if rows is not None and rows.few else None
        self._count = max(1, int(self._terms.rejected.sum()))
        self._free = None
        if self._rows is None:
            self._normal = NormalMatrix(setting.reduced)
            if len(basis):
                self._free = np.linalg.qr(basis.T, mode="complete")[0][:, len(basis) :]

    def run(self, V: np.ndarray) -> Iterator[float]:
        """Follow the path from V (p, r), feasible for a hard margin, until the control is satisfied."""
        work = work_of_a_step(self._reduced)
        V = self._interior(V)
        mu = self._first_mu(V)
        last = SMALLEST_MU * mu
        point = self._at(V, mu)
        best, stall, careful = np.inf, 0, 0
        smallest_gap, off_path = self.control.state.gap, 0
        for _ in range(MOST_STAGES):
            if point is None or mu < last:
                return
            point, solve, steps = self._newton(point, mu)
            yield (steps + 1) * work
            if solve is None or self.control.stopped is not None or self.control.solved:
                return
            gap = self.control.state.gap
            if STALLED_GAP * mu * self._count < gap * (point.norm.value + self._terms.loss(point.shortfall)):
                best, stall = (gap, 0) if gap < 0.9 * best else (best, stall + 1)
            off_path = off_path + 1 if steps >= STAGE_NEWTON_STEPS - 1 and not gap < smallest_gap else 0
            smallest_gap = min(smallest_gap, gap)
            if max(stall, off_path) > STALLED_STAGES:
                return
            careful = careful + 1 if steps > CAREFUL_STEPS else max(careful - 1, 0)
            point, mu = self._predict(point, solve, mu, careful)

    def _interior(self, V: np.ndarray) -> np.ndarray:
        """Scale a feasible V so that a hard margin has slack."""
        setting = self.setting
        V = setting.on_ties(V)
        if not self._terms.hard:
            return V
        short = self._terms.cost - self._reduced.apply(V)
        margin = 1.0 - float(np.max(short, where=self._terms.rejected, initial=-np.inf))
        return (V + setting.prior) * ((1.0 + PATH_DEPTH) / margin) - setting.prior if 0 < margin < np.inf else V

    def _first_mu(self, V: np.ndarray) -> float:
        """Choose mu from the norm of V (p, r) and the part of its losses above the lower bound."""
        terms, control = self._terms, self.control
        size, loss = terms.norm.value(V), terms.loss(terms.cost - self._reduced.apply(V))
        excess = size + loss + self.setting.loose - control.state.lower_bound * control.unit
        return FIRST_MU * (size + max(0.0, min(loss, excess))) / self._count or 1.0

    def _at(self, V: np.ndarray, mu: float) -> PathPoint | None:
        """Evaluate the smoothed problem at V; None outside the domain of a hard margin or the range of floats."""
        if not np.isfinite(V).all():
            return None
        terms, inner = self._terms, self._terms.rejected
        u = np.where(inner, terms.cost - self._reduced.apply(V), -1.0)
        if terms.hard and not (u < 0).all():
            return None
        slack, dual, loss, other = terms.central(u, mu)
        theta = 1.0 / (slack / dual + (terms.shift if terms.shift > 0 else loss / other))
        drift = theta * (slack - loss)
        dual, theta, drift = (np.where(inner, value, 0.0) for value in (dual, theta, drift))
        norm = self._smoothing(V, mu)
        return PathPoint(V, norm, u, dual, theta, drift, norm.gradient - self._reduced.adjoint(dual))

    def _smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        norm = self._terms.norm
        if self._rows is None or norm.power is None:
            return norm.smoothing(V, mu)
        value, gradient, *curvature = entrywise_parts(norm_gauge(norm.power), V, mu)
        hessian: Any = Curvature(*curvature)
        return Smooth(value, gradient, hessian)

    def _factor(self, point: PathPoint) -> Callable[[np.ndarray], np.ndarray]:
        """Factor the Hessian on the ties' null space; the result maps (p, r) to (p, r)."""
        if self._rows is not None:
            curvature: Any = point.norm.hessian
            diagonal, vector = curvature.diagonal.reshape(point.V.shape), curvature.vector.reshape(point.V.shape)
            inverse = self._rows.factor(diagonal, point.theta, vector)
            return lambda rhs: inverse(rhs)[0]
        matrix = point.norm.hessian + self._normal.form(point.theta)
        free, shape = self._free, point.V.shape
        solve = factor(matrix if free is None else free.T @ matrix @ free)
        if free is None:
            return lambda rhs: solve(rhs.ravel()).reshape(shape)
        return lambda rhs: (free @ solve(free.T @ rhs.ravel())).reshape(shape)

    def _newton(self, point: PathPoint, mu: float) -> tuple[PathPoint, Callable[[np.ndarray], np.ndarray] | None, int]:
        """Run Newton's method for one mu; return the point, its factor (None ends the run) and the number of steps."""
        for step in range(STAGE_NEWTON_STEPS):
            try:
                solve = self._factor(point)
            except LinAlgError:
                return point, None, step
            move = solve(-point.gradient)
            decrement = -float((move * point.gradient).sum())
            is_near = not decrement > self._on_path * mu
            if is_near or step == STAGE_NEWTON_STEPS - 1:
                self._report(point, move, mu)
                return point, solve, step
            if self.control.observe(None, np.inf, None, 0.0):
                return point, None, step
            after = self._search(point, move, decrement, mu)
            if after is None:
                self._report(point, move, mu)
                return point, solve, STAGE_NEWTON_STEPS
            point = after
        raise AssertionError

    def _search(self, point: PathPoint, move: np.ndarray, decrement: float, mu: float) -> PathPoint | None:
        """Step until the slope along the move has halved: a convex function cannot rise before that."""
        length = 1.0
        for _ in range(STEP_HALVINGS):
            after = self._at(point.V + length * move, mu)
            if after is not None and float((move * after.gradient).sum()) <= 0.5 * decrement:
                return after
            length *= 0.5
        return None

    def _report(self, point: PathPoint, move: np.ndarray, mu: float) -> None:
        """Report the result of a Newton step, with the multipliers that it improves."""
        setting, terms, reduced = self.setting, self._terms, self._reduced
        dual = point.dual - point.theta * reduced.apply(move)
        change = (point.norm.hessian @ move.ravel()).reshape(move.shape)
        residual = point.norm.gradient + change - reduced.adjoint(dual)
        tie = setting.ties.basis @ residual.ravel()
        residual = residual - setting.ties.adjoint(tie)
        defect = growth(terms.norm, residual.shape, True) * frobenius(residual)
        objective = point.norm.value + terms.loss(point.shortfall)
        expected = mu * self._count / objective if objective > 0 else 0.0
        small = self._rows is None and move.size <= SMOOTH_ENTRIES
        if small and DEFECT * max(self.control.tol, expected) < defect < np.inf:
            with suppress(LinAlgError):
                move, dual, tie = self._stiff_step(point)
            if frobenius(move) > frobenius(point.V):
                # The system is singular to rounding: multipliers of such a step may be right although the move is not.
                setting.offer(point.V, self.control)
        dual = terms.clip(dual + setting.ties.tie_multipliers(tie))
        adjoint = reduced.adjoint(dual)
        if not np.isfinite(adjoint).all():
            return
        size = terms.norm.dual_after(adjoint, point.norm, move)
        setting.report(point.V + move, dual, self.control, adjoint=adjoint, size=size)

    def _stiff_step(self, point: PathPoint) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute a Newton step (p, r) whose theta A(move) keeps its digits, and multipliers (n, T) and (k,)."""
        reduced, ties = self._reduced, self.setting.ties
        weight = (point.theta * reduced.lengths**2).ravel()
        first = np.argsort(weight)[max(0, weight.size - point.V.size) :]
        rows, columns = np.unravel_index(first[weight[first] > 0], point.theta.shape)
        soft = point.theta.copy()
        soft[rows, columns] = 0.0
        weights = np.append(point.theta[rows, columns], np.full(len(ties.basis), np.inf))
        stiff = np.vstack([reduced.constraint_rows(rows, columns), ties.basis])
        x, y = augmented(point.norm.hessian + self._normal.form(soft), stiff, weights)(-point.gradient.ravel())
        move = x.reshape(point.V.shape)
        dual = point.dual - soft * reduced.apply(move)
        dual[rows, columns] -= y[: len(rows)]
        return move, dual, -y[len(rows) :]

    def _predict(
        self, point: PathPoint, solve: Callable[[np.ndarray], np.ndarray], mu: float, careful: int
    ) -> tuple[PathPoint | None, float]:
        """Follow the tangent to a smaller mu, as far as the slacks permit."""
        push = self._reduced.adjoint(point.drift)
        tangent = solve((point.norm.hessian @ point.V.ravel()).reshape(point.V.shape) + push)
        for fall in MU_FALLS[min(careful, len(MU_FALLS) - 1) :]:
            after = self._at(point.V - (1.0 - fall) * tangent, fall * mu)
            if after is None:
                continue
            ratio = after.shortfall[self._terms.rejected] / point.shortfall[self._terms.rejected]
            if self._terms.hard and float(ratio.min(initial=1.0)) <= SLACK_SHARE * fall:
                continue
            if float((after.gradient * solve(after.gradient)).sum()) <= self._decrement * fall * mu:
                return after, fall * mu
        return self._at(point.V, MU_FALLS[-1] * mu), MU_FALLS[-1] * mu
