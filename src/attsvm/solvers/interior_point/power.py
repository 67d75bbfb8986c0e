r"""Entrywise l_p norms, 1 < p < inf, hard margins: the engine's steps on the smooth side of the duality.

Minimise :math:`\tfrac{1}{p}\sum|V_k|^p` subject to :math:`A(V) \ge 1`. At the optimum :math:`V = \varphi_q(M)` with
:math:`M = A^\top\lambda + B^\top\nu`, :math:`\varphi_q(M) = \mathrm{sign}(M)|M|^{q-1}` and 1/p + 1/q = 1. One of the
two potentials is twice differentiable. For p > 2 it is the primal one, whose Newton step has :math:`h = (p-1)|V|^{p-2}`
in

.. math:: h\,dV - A^\top d\lambda - B^\top d\nu = \mathrm{rhs}.

For p < 2 it is the dual one, whose step is the same with :math:`h = 1/((q-1)|M|^{q-2})` once V is the unknown. By
Young's inequality :math:`\tfrac1p\sum|V_k|^p + \tfrac1q\sum|M_k|^q - \langle V, M\rangle \ge 0`. This difference is a
part of the duality gap, like the products of slacks and multipliers, and is counted with them: the barrier falls only
as fast as Newton's method converges. Exponents far from 2 are reached through intermediate exponents, each started from
its neighbour's answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attsvm.core.norms import entrywise, entrywise_norm
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.diagonal_normal import DiagonalNormal
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.interior_point.engine import FULL_STEP, InteriorPointRun, Term
from attsvm.solvers.interior_point.euclidean import work_of_a_step
from attsvm.solvers.interior_point.terms import TermMove

# Curvature of an entry near zero, over the curvature of the largest entry.
CURVATURE_FLOOR = 1e-13
# Largest factor between neighbours of the larger of p and q.
EXPONENT_GROWTH = 4.0
# Gap of the solutions with intermediate exponents.
NEIGHBOUR_GAP = 1e-2
# First mu, over the objective per token, and smallest mu, over the requested gap.
FIRST_POWER_MU, LAST_POWER_MU = 0.05, 0.01
# Slack of the start, times p: V is strictly feasible, and p-th powers are still of size one.
POWER_DEPTH = 0.1
# Smallest step that is tried.
SHORTEST = 1e-6


@dataclass
class PowerMove(TermMove):
    """A direction with the adjoint of its multipliers, (p, r)."""

    adjoint: np.ndarray


class PowerTerm(Term):
    """The p-th power of an l_p norm, in units in which the norm of the solution is near one."""

    def __init__(self, setting: Setting, system: DiagonalNormal, least: float) -> None:
        norm = setting.terms.norm
        assert norm.power is not None
        self.p, self.q = norm.power, norm.power / (norm.power - 1.0)
        self._reduced, self._system, self.least = setting.reduced, system, least

    def start(self, V: np.ndarray, mu: float) -> None:
        """Begin at V without multipliers."""
        self.V, self.tie = V, np.zeros(len(self._system.basis))
        self._set_adjoint(np.zeros_like(V))

    def _set_adjoint(self, adjoint: np.ndarray) -> None:
        self._adjoint, self._distance = adjoint, self._separation(self.V, adjoint)

    def _separation(self, V: np.ndarray, adjoint: np.ndarray) -> float:
        return float((np.abs(V) ** self.p / self.p + np.abs(adjoint) ** self.q / self.q - V * adjoint).sum())

    def complementarity(self) -> float:
        """Measure how far V and the adjoint of the multipliers are from a solution."""
        return self._distance

    def after(self, move: PowerMove, primal: float, dual: float) -> float:
        """Measure the distance from a solution after a step."""
        return self._separation(self.V + primal * move.V, self._adjoint + dual * move.adjoint)

    def lengths(self, move: PowerMove) -> tuple[float, float]:
        """Largest tried steps after which the distance from a solution is at most one, or at most its present value."""
        length, most = FULL_STEP, max(1.0, self.complementarity())
        while length > SHORTEST and not self.after(move, length, length) <= most:
            length *= 0.5
        return length, length

    def factor(self, theta: np.ndarray, adjoint: np.ndarray) -> None:
        """Factor diag(h) + A^T Theta A."""
        self._set_adjoint(adjoint + self._system.adjoint(self.tie))
        primal_side = self.p > 2
        here, there, r = (self.V, self._adjoint, self.p) if primal_side else (self._adjoint, self.V, self.q)
        slope = np.sign(here) * np.abs(here) ** (r - 1)
        # An entry that passes through zero has no curvature; its counterpart determines one.
        size = np.maximum(np.abs(here), np.abs(there) ** (1 / (r - 1)))
        curvature = (r - 1) * np.maximum(size ** (r - 2), CURVATURE_FLOOR * float(size.max()) ** (r - 2))
        if primal_side:
            h, self._lack = curvature, self._adjoint - slope
        else:
            h = 1.0 / curvature
            self._lack = h * (slope - self.V)
        self._solve = self._system.factor(h, theta)

    def direction(self, centre: float, before: PowerMove | None, g: np.ndarray) -> PowerMove:
        """Solve for the direction."""
        V, tie, dual = self._solve(self._lack, g)
        return PowerMove(V, tie, dual, self._reduced.adjoint(dual) + self._system.adjoint(tie))

    def advance(self, move: PowerMove, primal: float, dual: float) -> None:
        """Take the step."""
        self.V, self.tie = self.V + primal * move.V, self.tie + dual * move.tie
        self._set_adjoint(self._adjoint + dual * move.adjoint)


def solve_power(setting: Setting, W: np.ndarray, dual: np.ndarray, control: Control) -> Iterator[float]:
    """Solve a hard margin without a prior in an entrywise norm with 1 < p < inf, until progress ends.

    Starts from W (p, r), smallest margin one, and multipliers (n, T) of the Frobenius problem.
    """
    reduced, p = setting.reduced, setting.terms.norm.power
    assert p is not None
    system = DiagonalNormal(reduced)
    for power in exponents(p):
        stage = control if power == p else control.inner(NEIGHBOUR_GAP)
        part = replace(setting, terms=replace(setting.terms, norm=entrywise_norm(power)))
        least = LAST_POWER_MU * stage.tol / int(reduced.rejected.sum())
        term = partial(PowerTerm, system=system, least=least)
        run = InteriorPointRun(part, stage, term, (1.0 + POWER_DEPTH / power) * W, FIRST_POWER_MU, entrywise(W, power))
        # In these units sum(lam c) = ||A^T lam||_q = 1 at the optimum.
        size = entrywise(reduced.adjoint(part.terms.clip(dual)), run.method.term.q)
        run.method.adopt(dual / max(size, 1e-300), system, FIRST_POWER_MU)
        yield from run.steps(work_of_a_step)
        if stage is not control:
            control.iterations += stage.iterations
            control.stopped = stage.stopped
        if control.stopped is not None:
            return
        if stage.W is not None and stage.dual is not None:
            W, dual = stage.W, stage.dual


def exponents(p: float) -> list[float]:
    """List exponents from near 2 to p."""
    distance = max(p, p / (p - 1.0)) / 2.0
    steps = max(1, int(np.ceil(np.log(distance) / np.log(EXPONENT_GROWTH))))
    exponents = [2.0 * distance ** (k / steps) for k in range(1, steps)]
    return [e if p > 2 else e / (e - 1.0) for e in exponents] + [p]
