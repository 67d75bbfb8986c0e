r"""Soft margins and priors in entrywise l_p norms, 1 < p < inf: barrier steps that a line search keeps honest.

The Newton step of :mod:`attsvm.solvers.interior_point.engine` with the term of
:mod:`attsvm.solvers.interior_point.power` is a descent direction of a convex barrier function: for p < 2 that of the
dual problem,

.. math:: -c^\top\lambda - b^\top\nu + \tfrac{\epsilon}{2}|\lambda|^2 - \mu\big(\log\kappa(A^\top\lambda + B^\top\nu) +
   \sum\log\lambda + \sum\log(C - \lambda)\big),

for p > 2 that of the primal problem,

.. math:: \tfrac1p\textstyle\sum|V|^p\tau^{1-p} + \tfrac1q\tau + \sum\ell(\xi) -
   \mu\big(\log\tau + \sum\log(A(V) + \xi - c) + \sum\log\xi\big).

A step is cut back until that function falls; the variables of the other side follow as far as they stay positive, and
within a factor of what the barrier makes of them. The barrier's weight falls as fast as Newton's method converges.
Exponents far from 2 are reached through intermediate ones, as for hard margins
(:mod:`attsvm.solvers.interior_point.hard_power`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.core.norms import entrywise, entrywise_norm
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.interior_point.engine import NewtonDirections, Slacks, longest, moved
from attsvm.solvers.interior_point.hard_power import backtrack, exponents
from attsvm.solvers.interior_point.power import PowerMove, PowerTerm, signed_power

MAX_STEPS = 250
STALLED = 30
STEP_BACK = 0.95
# The first mu, in parts of the objective a token; the second when rounding ends the run from the first early.
CENTRES = (0.3, 30.0)
NEIGHBOUR_GAP = 1e-2
LAG = 0.3
# Products on the side that follows stay within this factor of the barrier's weight.
SPREAD = 100.0
# Part of what the barrier makes of the room in the ball that a step must leave.
NEAREST = 0.1
# A hard margin begins this far inside, in parts of the margin.
INSIDE = 0.1


def solve_soft_power(setting: Setting, control: Control, V: np.ndarray) -> None:
    """Solve, leaving V and multipliers with ``control``.

    Parameters
    ----------
    setting : Setting
        With an entrywise norm, 1 < p < inf.
    control : Control
    V : ndarray, shape (p, r)
        The Frobenius norm's answer, or near it; feasible when the margin is hard.
    """
    p = setting.terms.norm.power
    assert p is not None
    for power in exponents(p):
        last = power == p
        stage = control if last else Control(NEIGHBOUR_GAP)
        now = replace(setting, terms=replace(setting.terms, norm=entrywise_norm(power)))
        for centre in CENTRES:
            BarrierMethod(now, V, centre).run(stage, control)
            if control.stopped is not None:
                return
            if stage.solved:
                break
        if stage.W is not None:
            V = stage.W


class BarrierMethod(NewtonDirections):
    """Newton steps for one problem and one exponent.

    Parameters
    ----------
    setting : Setting
    V : ndarray, shape (p, r)
        Where to start.
    centre : float
        The first mu, as above.
    """

    term: PowerTerm

    def __init__(self, setting: Setting, V: np.ndarray, centre: float) -> None:
        self._setting = setting
        terms = setting.terms
        if terms.hard:
            margin = 1.0 - float(np.max(terms.cost - setting.reduced.apply(V), where=terms.rejected, initial=-np.inf))
            if 0.0 < margin < np.inf:
                V = (V + setting.prior) * ((1.0 + INSIDE) / margin) - setting.prior
        super().__init__(setting, PowerTerm(setting), V, centre)
        count = int(self._inner.sum())
        shortfall = np.where(self._inner, terms.cost - self.reduced.apply(self.term.V), 0.0)
        self._held = setting.ties.basis @ self.term.V.ravel()  # B V never changes
        self._count = 1 + count * (2 if self._hinge else 1)
        self.mu = centre * (terms.size(self.term.V) + terms.loss(shortfall)) / max(1, count) or 1.0
        x = self.point
        if self.term.primal_side:
            if terms.hard:
                slack = np.where(self._inner, np.maximum(-shortfall, 1e-3 * INSIDE), 1.0)
                self.point = replace(x, slack=slack, dual=np.where(self._inner, self.mu / slack, 0.0))
            return
        self._enter_ball()
        self._follow()

    def _enter_ball(self) -> None:
        """Scale the multipliers into the ball; those of ties bring the pull towards the gradient at V."""
        x, term, ties = self.point, self.term, self._setting.ties
        pulled = self.reduced.adjoint(x.dual)
        scale = _into_ball(pulled, term.q)
        length = entrywise(term.V, term.p)
        wanted = 0.5 * signed_power(term.V / length, term.p) if length > 0 else scale * pulled
        tie = ties.basis @ (wanted - scale * pulled).ravel()
        again = _into_ball(scale * pulled + ties.pull(tie), term.q)
        dual, term.tie = x.dual * (scale * again), tie * again
        other = np.where(self._inner, self.terms.upper - dual, 1.0) if self._hinge else x.other
        self.point = replace(x, dual=dual, other=other)
        term.pull = self.reduced.adjoint(dual) + ties.pull(term.tie)

    def run(self, stage: Control, control: Control) -> None:
        """Step until ``stage`` is satisfied; ``control`` supplies the limits."""
        best, waited = np.inf, 0
        for _ in range(MAX_STEPS):
            done = self._setting.report(self.term.V, self.scattered_dual(self._setting), stage)
            if stage is not control:
                done |= control.observe(None, np.inf, None, 0.0)
            progress = min(stage.state.gap, self.mu)
            best, waited = (progress, 0) if progress < 0.9 * best else (best, waited + 1)
            self.smallest = 0.01 * stage.tol * stage.state.objective / self._count
            if done or waited > STALLED or not self.step():
                return

    def _step(self) -> bool:
        direction = self._prepared()
        move, change = direction(self.mu, None)
        x, inner, term = self.point, self._inner, self.term
        if not (np.isfinite(move.dual).all() and np.isfinite(change.V).all() and np.isfinite(change.bound)):
            return False
        pull = self.reduced.adjoint(move.dual) + term.system.pull(change.tie)
        primal, dual = longest(x.slack[inner], move.slack[inner]), longest(x.dual[inner], move.dual[inner])
        if self._hinge:
            primal = min(primal, longest(x.loss[inner], move.loss[inner]))
            dual = min(dual, longest(x.other[inner], move.other[inner]))
        bound = longest(np.array([term.tau]), np.array([change.bound]))
        primal, dual, bound = (min(1.0, STEP_BACK * length) for length in (primal, dual, bound))
        if term.primal_side:
            primal = min(primal, bound, dual if self.terms.shift > 0 else 1.0)
            primal, decrement = self._search_primal(move, change, primal)
            bound = primal
            if self.terms.shift > 0:
                dual = primal
        else:
            dual, decrement = self._search_dual(move, change, pull, dual)
        if (primal if term.primal_side else dual) < 1e-12:
            return False
        self.point = moved(x, move, primal, dual)
        term.V, term.tau = term.V + primal * change.V, term.tau + bound * change.bound
        term.tie, term.pull = term.tie + dual * change.tie, term.pull + dual * pull
        shortest = min(primal, dual)
        lag = decrement > LAG * self.mu * self._count
        self.mu = max(
            self.mu * (1.0 if lag else 0.8 if shortest < 0.5 else 0.3 if shortest < 0.9 else 0.1), self.smallest
        )
        self._follow()
        return True

    def _follow(self) -> None:
        """Keep the variables of the side without a line search near what the barrier makes of them."""
        x, inner, term, mu = self.point, self._inner, self.term, self.mu
        low, high = mu / SPREAD, mu * SPREAD

        def near(value: np.ndarray, partner: np.ndarray) -> np.ndarray:
            return np.where(inner, np.clip(value, low / partner, high / partner), value)

        with np.errstate(divide="ignore", over="ignore"):
            if not term.primal_side:
                room = term.room(term.tau, term.V, term.pull)
                term.tau = float(np.clip(term.tau, low / room, high / room))
                x = replace(x, slack=near(x.slack, x.dual))
                if self._hinge:
                    x = replace(x, loss=near(x.loss, x.other))
            elif self.terms.shift == 0:
                x = replace(x, dual=near(x.dual, x.slack))
                if self._hinge:
                    x = replace(x, other=near(x.other, x.loss))
        self.point = x

    def _search_primal(self, move: Slacks, change: PowerMove, step: float) -> tuple[float, float]:
        """Backtrack on the primal barrier function; the step and the decrease that its slope promised."""
        x, inner, term, mu, shift = self.point, self._inner, self.term, self.mu, self.terms.shift
        p, q = term.p, term.q

        def value(step: float) -> float:
            tau = term.tau + step * change.bound
            out = tau * (float((np.abs((term.V + step * change.V) / tau) ** p).sum()) / p + 1.0 / q)
            out -= mu * (float(np.log((x.slack + step * move.slack)[inner]).sum()) + float(np.log(tau)))
            if self._hinge:
                lost = (x.loss + step * move.loss)[inner]
                out += self.terms.upper * float(lost.sum()) - mu * float(np.log(lost).sum())
            elif shift > 0:
                held = (x.dual + step * move.dual)[inner]
                out += 0.5 * shift * float(held @ held)
            return out

        slope = float((signed_power(term.V / term.tau, p) * change.V).sum())
        slope += (term.room(term.tau, term.V, term.pull) - mu / term.tau) * change.bound
        slope -= mu * float((move.slack[inner] / x.slack[inner]).sum())
        if self._hinge:
            slope += float(((self.terms.upper - mu / x.loss[inner]) * move.loss[inner]).sum())
        elif shift > 0:
            slope += shift * float(x.dual[inner] @ move.dual[inner])
        return backtrack(value, slope, step), -slope

    def _search_dual(self, move: Slacks, change: PowerMove, pull: np.ndarray, step: float) -> tuple[float, float]:
        """Backtrack on the dual barrier function; the step and the decrease that its slope promised."""
        x, inner, term, mu, shift = self.point, self._inner, self.term, self.mu, self.terms.shift
        gain = float((self.terms.cost * move.dual)[inner].sum()) + float(self._held @ change.tie)

        def value(step: float) -> float:
            room = term.room(term.tau, term.V, term.pull + step * pull)
            if room <= least:
                return np.inf
            held = (x.dual + step * move.dual)[inner]
            out = (
                -step * gain + 0.5 * shift * float(held @ held) - mu * (float(np.log(room)) + float(np.log(held).sum()))
            )
            if self._hinge:
                out -= mu * float(np.log((x.other + step * move.other)[inner]).sum())
            return out

        room = term.room(term.tau, term.V, term.pull)
        # The ball is curved: what a step leaves of the room may be far less than its linear model says.
        least = min(NEAREST * mu / term.tau, 0.5 * room)
        slope = -gain + mu / room * float((signed_power(term.pull, term.q) * pull).sum())
        slope += float(((shift * x.dual - mu / np.where(inner, x.dual, 1.0)) * move.dual)[inner].sum())
        if self._hinge:
            slope -= mu * float((move.other[inner] / x.other[inner]).sum())
        return backtrack(value, slope, step), -slope


def _into_ball(pull: np.ndarray, q: float) -> float:
    """Factor that brings a pull half way to the surface of the ball, or nearer its centre."""
    size = entrywise(pull, q)
    return min(1.0, 0.5 / size) if size > 0 else 1.0
