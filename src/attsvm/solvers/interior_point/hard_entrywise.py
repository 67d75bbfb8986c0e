r"""The sum of absolute entries and the largest entry: linear programs with a structured interior point.

With :math:`-t \le W \le t`, minimise :math:`\sum_k t_k` (l_1) or one common t (largest entry) subject to
:math:`A(W) - s = c`. Multipliers :math:`\alpha, \beta \ge 0` of the two sides obey :math:`\alpha - \beta =
A^\top\lambda` and :math:`\alpha_k + \beta_k = 1` (l_1) or :math:`\sum_k (\alpha_k + \beta_k) = 1`. Eliminating t and
the slacks from a Newton step on the perturbed complementarity conditions leaves :math:`\mathrm{diag}(h) +
A^\top\Theta A` (:mod:`attsvm.solvers.common.diagonal_normal`) with, for :math:`P = \alpha/(t-W)` and
:math:`Q = \beta/(t+W)`,

.. math:: h = \frac{4PQ}{P+Q} \;\;(l_1), \qquad h = P + Q \text{ bordered by } P - Q \;\;(\max).

Predictor-corrector steps follow Mehrotra (SIAM J. Optim. 2, 1992). A general solver would carry (p r) columns of n T
entries each; here they never exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError

from attsvm.core.norms import Norm
from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.diagonal_normal import DiagonalNormal, Solver
from attsvm.solvers.common.evaluation import report

MAX_STEPS = 120
STEP_BACK = 0.99
STALLED = 25
REFINEMENTS = 4

Newton = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


@dataclass
class Step:
    """A point, or a direction from one.

    Attributes
    ----------
    W : ndarray, shape (p, r)
    above, below : ndarray, shape (p, r)
        t - W and t + W.
    upper, lower : ndarray, shape (p, r)
        Their multipliers alpha and beta.
    slack, dual : ndarray, shape (n, T)
    tie : ndarray, shape (k,)
        The ties' nu.
    """

    W: np.ndarray
    above: np.ndarray
    below: np.ndarray
    upper: np.ndarray
    lower: np.ndarray
    slack: np.ndarray
    dual: np.ndarray
    tie: np.ndarray


class LinearNorm:
    """Interior-point steps for one problem.

    Parameters
    ----------
    reduced : Reduced
    shared : bool
        One bound t for all entries (the largest entry) instead of one each (l_1).
    W : ndarray, shape (p, r)
        Feasible, smallest margin one.
    """

    def __init__(self, reduced: Reduced, shared: bool, W: np.ndarray) -> None:
        self.reduced, self.shared = reduced, shared
        self.system = DiagonalNormal(reduced)
        self._unit = float(np.abs(W).max())
        V = 1.5 * self.system.project(W) / self._unit  # strictly feasible, entries of size one
        self._cost = np.where(reduced.rejected, 1.0 / self._unit, 0.0)
        slack = np.where(reduced.rejected, reduced.apply(V) - self._cost, 1.0)
        size = V.size
        t = np.array([2.0 * np.abs(V).max()]) if shared else np.abs(V) + float(np.abs(V).mean())
        side = np.full(V.shape, 0.5 / size if shared else 0.5)
        # Multipliers so small that the dual norm of their pull leaves most of the ball free.
        dual = np.where(reduced.rejected, 1.0 / slack, 0.0)
        pulled = np.abs(reduced.adjoint(dual))
        dual *= 0.25 * float(side.min()) / max(float(pulled.max()), 1e-300)
        half = 0.5 * reduced.adjoint(dual)
        tie = np.zeros(len(self.system.basis))
        self.point = Step(V, t - V, t + V, side + half, side - half, slack, dual, tie)

    @property
    def W(self) -> np.ndarray:
        """The primal iterate in the problem's scale."""
        return self.system.project(self.point.W) * self._unit

    def scattered_dual(self) -> np.ndarray:
        """Multipliers of every constraint, (n, T)."""
        return self.point.dual + self.system.tie_multipliers(self.point.tie)

    def step(self) -> bool:
        """Take one predictor-corrector step; False when rounding ends the progress."""
        x = self.point
        rejected = self.reduced.rejected
        P, Q = x.upper / x.above, x.lower / x.below
        theta = np.where(rejected, x.dual / x.slack, 0.0)
        h = P + Q if self.shared else 4.0 * P * Q / (P + Q)
        try:
            solve = self.system.factor(h, theta)
        except LinAlgError:
            return False
        newton = self._newton(solve, P, Q, theta)
        count = 2 * x.W.size + int(rejected.sum())
        mu = self._complementarity(x) / count
        zero = np.zeros_like(x.W)
        affine = self._direction(newton, P, Q, theta, 0.0, (zero, zero, np.zeros_like(x.dual)))
        primal, dual = self._lengths(affine)
        after = self._complementarity(_moved(x, affine, primal, dual)) / count
        centre = mu * min(1.0, max(after / mu, 0.0)) ** 3
        bent = (affine.upper * affine.above, affine.lower * affine.below, affine.slack * affine.dual)
        move = self._direction(newton, P, Q, theta, centre, bent)
        if not (np.isfinite(move.W).all() and np.isfinite(move.dual).all()):
            return False
        primal, dual = self._lengths(move)
        primal, dual = min(1.0, STEP_BACK * primal), min(1.0, STEP_BACK * dual)
        self.point = _moved(x, move, primal, dual)
        return max(primal, dual) > 1e-8

    def _newton(self, solve: Solver, P: np.ndarray, Q: np.ndarray, theta: np.ndarray) -> Newton:
        """Return (rhs of W, rhs of t) -> (dW, dt, dnu), refined on the residual of the system before elimination."""
        reduced, total, border = self.reduced, P + Q, P - Q
        follow = solve(border) if self.shared else None

        def eliminate(rhs: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            if follow is None:
                W, tie = solve(rhs + border * given / total)
                return W, (given + border * W) / total, tie
            W, tie = solve(rhs)
            # The pivot is what the common bound costs once W follows it: positive, but the difference of near equals.
            pivot = max(float(total.sum() - (border * follow[0]).sum()), 1e-300)
            t = (given + (border * W).sum()) / pivot
            return W + t * follow[0], t, tie + t * follow[1]

        def newton(rhs: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            W, t, tie = eliminate(rhs, given)
            best = np.inf
            for _ in range(REFINEMENTS):
                pulled = reduced.adjoint(theta * reduced.apply(W)) - self.system.pull(tie)
                left = rhs - (total * W - border * t + pulled)
                left_t = given - ((total * t - border * W).sum() if self.shared else total * t - border * W)
                size = float(np.abs(left).max()) + float(np.abs(left_t).max())
                if not size < 0.5 * best:
                    break
                best = size
                more, more_t, more_tie = eliminate(left, left_t)
                W, t, tie = W + more, t + more_t, tie + more_tie
            return W, t, tie

        return newton

    def _direction(
        self,
        newton: Newton,
        P: np.ndarray,
        Q: np.ndarray,
        theta: np.ndarray,
        centre: float,
        bent: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> Step:
        x, reduced = self.point, self.reduced
        rejected = reduced.rejected
        push_up = (centre - bent[0]) / x.above - x.upper
        push_down = (centre - bent[1]) / x.below - x.lower
        push = np.where(rejected, (centre - bent[2]) / x.slack - x.dual, 0.0)
        pulled = reduced.adjoint(x.dual) + self.system.pull(x.tie)
        rhs = pulled - (x.upper - x.lower) - (push_up - push_down) + reduced.adjoint(push)
        sides = x.upper + x.lower
        excess = 1.0 - (sides.sum() if self.shared else sides)
        given = push_up + push_down
        W, t, tie = newton(rhs, (given.sum() if self.shared else given) - excess)
        moved = np.where(rejected, reduced.apply(W), 0.0)
        return Step(
            W,
            t - W,
            t + W,
            push_up - P * (t - W),
            push_down - Q * (t + W),
            moved,
            push - theta * moved,
            tie,
        )

    def _complementarity(self, x: Step) -> float:
        inner = self.reduced.rejected
        sides = float((x.upper * x.above).sum() + (x.lower * x.below).sum())
        return sides + float((x.slack * x.dual)[inner].sum())

    def _lengths(self, move: Step) -> tuple[float, float]:
        x, rejected = self.point, self.reduced.rejected
        primal = min(
            _longest(x.above, move.above),
            _longest(x.below, move.below),
            _longest(x.slack[rejected], move.slack[rejected]),
        )
        dual = min(
            _longest(x.upper, move.upper),
            _longest(x.lower, move.lower),
            _longest(x.dual[rejected], move.dual[rejected]),
        )
        return primal, dual


def _moved(x: Step, move: Step, primal: float, dual: float) -> Step:
    return Step(
        x.W + primal * move.W,
        x.above + primal * move.above,
        x.below + primal * move.below,
        x.upper + dual * move.upper,
        x.lower + dual * move.lower,
        x.slack + primal * move.slack,
        x.dual + dual * move.dual,
        x.tie + dual * move.tie,
    )


def _longest(value: np.ndarray, change: np.ndarray) -> float:
    """Largest step, at most 1/STEP_BACK, that keeps value + step change nonnegative."""
    shrinking = change < 0
    if not shrinking.any():
        return 1.0 / STEP_BACK
    return min(1.0 / STEP_BACK, float((-value[shrinking] / change[shrinking]).min()))


def solve_linear(reduced: Reduced, norm: Norm, W: np.ndarray, control: Control) -> None:
    """Run from a feasible W until the control is satisfied or progress ends.

    Parameters
    ----------
    reduced : Reduced
    norm : Norm
        Entrywise with p = 1 or infinite.
    W : ndarray, shape (p, r)
        Smallest margin one.
    control : Control
    """
    method = LinearNorm(reduced, math.isinf(norm.power or 0.0), W)
    best, waited = np.inf, 0
    for _ in range(MAX_STEPS):
        if report(reduced, norm, method.W, method.scattered_dual(), control):
            return
        gap = control.state.gap
        best, waited = (gap, 0) if gap < 0.9 * best else (best, waited + 1)
        if waited > STALLED or not method.step():
            return
