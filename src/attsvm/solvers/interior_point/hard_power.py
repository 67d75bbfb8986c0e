r"""Entrywise l_p norms, 1 < p < inf: a barrier method on the smooth side of the duality.

Minimise :math:`\tfrac{1}{p}\sum|W_k|^p` subject to :math:`A(W) \ge 1`. At the optimum :math:`W = \varphi_q(M)` with
:math:`M = A^\top\lambda`, :math:`\varphi_q(M) = \mathrm{sign}(M)|M|^{q-1}` and 1/p + 1/q = 1. Of the two potentials
one is twice differentiable: for p > 2 the primal one, whose Newton step on the barrier problem solves

.. math:: (h + A^\top\Theta A)\,dW = \dots, \qquad h = (p-1)|W|^{p-2}, \quad \Theta = \lambda/s,

for p < 2 the dual one, whose step has the same matrix with :math:`h = 1/((q-1)|M|^{q-2})` once W is the unknown.
Each is a descent direction for a convex barrier function, so a line search makes every step count; the other side's
variables follow by linearised complementarity (primal-dual Newton, Wright, *Primal-Dual Interior-Point Methods*, 1997).
Exponents far from 2 are reached through intermediate ones, each started from its neighbour's answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import LinAlgError

from attsvm.core.norms import entrywise, entrywise_norm
from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.diagonal_normal import DiagonalNormal
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.interior_point.alignment import Active
from attsvm.solvers.interior_point.engine import longest

STEP_BACK = 0.95
MAX_STEPS = 150
STALLED = 15
FLOOR = 1e-13
# The larger of p and q grows by at most this factor between neighbours.
GROWTH = 2.5
NEIGHBOUR_GAP = 1e-2
ARMIJO = 1e-4
LAG = 10.0


@dataclass
class Point:
    """W (p, r), slacks and multipliers (n, T), and the ties' nu (k,)."""

    W: np.ndarray
    slack: np.ndarray
    dual: np.ndarray
    tie: np.ndarray


def solve_power(setting: Setting, W: np.ndarray, dual: np.ndarray, control: Control) -> None:
    """Solve a hard margin without a prior in an entrywise norm with 1 < p < inf, until progress ends.

    Starts from W (p, r), smallest margin one, and multipliers (n, T) of the Frobenius problem.
    """
    reduced, p = setting.reduced, setting.terms.norm.power
    assert p is not None
    system = DiagonalNormal(reduced)
    for power in exponents(p):
        last = power == p
        stage = Control(NEIGHBOUR_GAP) if not last else control
        part = replace(setting, terms=replace(setting.terms, norm=entrywise_norm(power)))
        PowerNorm(reduced, system, power, W, dual).run(part, stage, control)
        if control.stopped is not None:
            return
        if stage.W is not None and stage.dual is not None:
            W = stage.W / reduced.min_margin(reduced.apply(stage.W))
            dual = stage.dual


def exponents(p: float) -> list[float]:
    """Exponents from the neighbourhood of 2 to p."""
    far = max(p, p / (p - 1.0)) / 2.0
    steps = max(1, int(np.ceil(np.log(far) / np.log(GROWTH))))
    exponents = [2.0 * far ** (k / steps) for k in range(1, steps)]
    return [e if p > 2 else e / (e - 1.0) for e in exponents] + [p]


class PowerNorm:
    """Barrier steps for one exponent, from W (p, r), smallest margin one, and multipliers (n, T) of any scale."""

    def __init__(self, reduced: Reduced, system: DiagonalNormal, p: float, W: np.ndarray, dual: np.ndarray) -> None:
        self.reduced, self.system, self.p, self.q = reduced, system, p, p / (p - 1.0)
        self._unit = entrywise(W, p)
        self._cost = np.where(reduced.rejected, 1.0 / self._unit, 0.0)
        # In these units ||W||_p is one, so multipliers have sum(lam c) = ||A^T lam||_q = 1 at the optimum.
        dual = np.where(reduced.rejected, np.maximum(dual, 0.0), dual)
        dual = dual / max(entrywise(reduced.adjoint(dual), self.q), 1e-300)
        V = (1.0 + 0.1 / p) * system.project(W) / self._unit  # strictly feasible, and its p-th powers still of size one
        slack = np.where(reduced.rejected, reduced.apply(V) - self._cost, 1.0)
        inner = reduced.rejected
        self._count = int(inner.sum())
        self.mu = 0.05 * float((self._cost * dual)[inner].sum()) / self._count
        # Multipliers start positive, but none may dominate the pull A^T lam.
        floor = np.minimum(self.mu / slack, 0.1 / (self._count * np.where(inner, reduced.lengths, 1.0)))
        self.point = Point(V, slack, np.where(inner, np.maximum(dual, floor), 0.0), system.from_multipliers(dual))

    def run(self, setting: Setting, stage: Control, control: Control) -> None:
        """Step until ``stage`` is satisfied; ``control`` supplies the limits."""
        best, stall = np.inf, 0
        for _ in range(MAX_STEPS):
            W, dual = self.candidate()
            done = setting.report(W, dual, stage)
            if self.p > 2 and self.mu * self._count < 0.1 * stage.tol and not done:
                done = setting.report(W, self.corrected_dual(), stage, steps=0)
            if stage is not control:
                done |= control.observe(None, np.inf, None, 0.0)
            gap = stage.state.gap
            best, stall = (gap, 0) if gap < 0.9 * best else (best, stall + 1)
            if done or stall > STALLED or not self.step(0.01 * stage.tol / self._count):
                return

    def candidate(self) -> tuple[np.ndarray, np.ndarray]:
        """W (p, r) in the problem's scale and multipliers (n, T)."""
        dual = self.point.dual + self.system.tie_multipliers(self.point.tie)
        return self.system.project(self.point.W) * self._unit, dual

    def corrected_dual(self) -> np.ndarray:
        """Multipliers (n, T) moved to where they pull like the gradient at W.

        For large p most entries of A^T lam are nearly zero and the dual norm sums their rounding; W knows them better.
        The smallest relative change of the multipliers of active constraints that repairs them is a least-squares
        problem.
        """
        x = self.point
        active = Active(self.system, x.dual, x.slack, x.tie)
        rows = self.reduced.constraint_rows(active.rows, active.columns)
        active.move(np.vstack([rows, self.system.basis]), (np.sign(x.W) * np.abs(x.W) ** (self.p - 1)).ravel())
        return active.scattered()

    def _adjoint(self, dual: np.ndarray, tie: np.ndarray) -> np.ndarray:
        return self.reduced.adjoint(dual) + self.system.adjoint(tie)

    def step(self, smallest: float) -> bool:
        """Take one Newton step and lower the barrier, not below ``smallest``; False when rounding ends the progress."""
        x, inner, primal_side = self.point, self.reduced.rejected, self.p > 2
        adjoint = self._adjoint(x.dual, x.tie)
        where, other, r = (x.W, adjoint, self.p) if primal_side else (adjoint, x.W, self.q)
        slope = np.sign(where) * np.abs(where) ** (r - 1)
        # An entry on its way through zero has no curvature of its own: that of where its counterpart sends it.
        size = np.maximum(np.abs(where), np.abs(other) ** (1 / (r - 1)))
        curvature = (r - 1) * np.maximum(size ** (r - 2), FLOOR * float(size.max()) ** (r - 2))
        # What W lacks of stationarity, h (phi(M) - W) or M - phi(W). The slacks follow the steps of W, so that rounding
        # of the margins is never multiplied by theta.
        if primal_side:
            h, lack = curvature, adjoint - slope
        else:
            h = 1.0 / curvature
            lack = h * (slope - x.W)
        theta = np.where(inner, x.dual / x.slack, 0.0)
        push = np.where(inner, self.mu / x.slack - x.dual, 0.0)
        try:
            W, tie = self.system.factor(h, theta)(lack + self.reduced.adjoint(push))
        except LinAlgError:
            return False
        if not np.isfinite(W).all():
            return False
        change = np.where(inner, self.reduced.apply(W), 0.0)
        move = Point(W, change, push - theta * change, tie)
        along_slack = STEP_BACK * longest(x.slack[inner], move.slack[inner])
        along_dual = STEP_BACK * longest(x.dual[inner], move.dual[inner])
        if primal_side:
            along_slack, decrement = self._search_primal(move, min(1.0, along_slack))
        else:
            along_dual, decrement = self._search_dual(move, min(1.0, along_dual))
        primal, dual = min(1.0, along_slack), min(1.0, along_dual)
        if max(primal, dual) < 1e-10:
            return False
        self.point = Point(
            x.W + primal * move.W,
            np.where(inner, x.slack + primal * move.slack, 1.0),
            np.where(inner, x.dual + dual * move.dual, 0.0),
            x.tie + dual * move.tie,
        )
        shortest = min(primal, dual)
        complementarity = float((self.point.slack * self.point.dual)[inner].sum()) / self._count
        # The barrier falls only as fast as Newton's method converges.
        lag = decrement > LAG * self.mu * self._count
        self.mu = max(complementarity * (0.8 if lag or shortest < 0.5 else 0.3 if shortest < 0.9 else 0.1), smallest)
        return True

    def _search_primal(self, move: Point, step: float) -> tuple[float, float]:
        """Backtrack on the primal barrier function; the step and the decrease that its slope promised."""
        x, inner = self.point, self.reduced.rejected
        p = self.p

        def value(step: float) -> float:
            W, slack = x.W + step * move.W, (x.slack + step * move.slack)[inner]
            return float((np.abs(W) ** p).sum()) / p - self.mu * float(np.log(slack).sum())

        slope = float((np.sign(x.W) * np.abs(x.W) ** (p - 1) * move.W).sum())
        slope -= self.mu * float((move.slack[inner] / x.slack[inner]).sum())
        return backtrack(value, slope, step), -slope

    def _search_dual(self, move: Point, step: float) -> tuple[float, float]:
        """Backtrack on the dual barrier function; the step and the decrease that its slope promised."""
        x, inner = self.point, self.reduced.rejected
        q = self.q
        adjoint, change = self._adjoint(x.dual, x.tie), self._adjoint(move.dual, move.tie)
        gain = float((self._cost * move.dual)[inner].sum())

        def value(step: float) -> float:
            dual = (x.dual + step * move.dual)[inner]
            barrier = self.mu * float(np.log(dual).sum())
            return float((np.abs(adjoint + step * change) ** q).sum()) / q - step * gain - barrier

        slope = float((np.sign(adjoint) * np.abs(adjoint) ** (q - 1) * change).sum()) - gain
        slope -= self.mu * float((move.dual[inner] / x.dual[inner]).sum())
        return backtrack(value, slope, step), -slope


def backtrack(value: Callable[[float], float], slope: float, step: float) -> float:
    """Largest step of the form step / 2^k with sufficient decrease (up to rounding)."""
    with np.errstate(over="ignore"):  # a power that overflows is an infinite value: the step is too long
        start = value(0.0)
        noise = 1e-14 * (1.0 + abs(start))
        for _ in range(40):
            if value(step) <= start + ARMIJO * step * slope + noise:
                return step
            step *= 0.5
    return 0.0
