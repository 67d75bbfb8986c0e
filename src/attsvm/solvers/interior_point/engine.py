r"""Interior point for hard and soft margins with priors, for the norms of :mod:`attsvm.solvers.interior_point.terms`.

Let :math:`A(V) + \xi - s = c`, with multipliers :math:`\lambda` of :math:`s \ge 0` and :math:`\nu = C - \lambda` of
:math:`\xi \ge 0`. A Newton step on the perturbed complementarity conditions :math:`s\lambda = \xi\nu = \mu` gives

.. math:: d\lambda = \Theta\,(g - A(dV)), \qquad
   \Theta^{-1} = \frac{s}{\lambda} + \begin{cases} \xi/\nu & \text{hinge} \\ 1/(2C) & \text{squared hinge} \\
   0 & \text{hard margin} \end{cases}.

The slack of the hinge thus changes the diagonal only. The other part of the system, :math:`H\,dV - A^\top d\lambda`,
depends on the norm alone. Predictor-corrector steps follow Mehrotra (SIAM J. Optim. 2, 1992).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError

from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.common.ties import Ties

MAX_STEPS = 120
# Share of the way to the nearest bound that a step takes.
STEP_BACK = 0.97
# Length of the longest step within the bounds above which a step is taken in full.
FULL_STEP = 1.0 / STEP_BACK
# Number of steps without progress after which a run ends: rounding keeps the gap open.
STALLED_STEPS = 20
# Sum of products and residuals, over the requested gap, below which only rounding keeps the gap open.
NEGLIGIBLE = 1e-6
# First mu, over the objective per token.
CENTRE = 10.0
# First mu from a feasible start with multipliers inside the dual ball.
HARD_CENTRE = 1.0
# Residual of a margin, over the size of its terms, up to which it is rounding.
RESIDUAL_ROUNDING = 8.0 * float(np.finfo(float).eps)
# Dual norm of A^T lam at the start, and dual norm for the multipliers that join.
BALL, JOINING_BALL = 0.5, 0.1
# Smallest slack at the start of a hard margin, over the margin.
LEAST_SLACK = 0.1


class Term(ABC):
    """The part of a Newton step that depends on the norm.

    A norm without bounds has no products, and every step length keeps within its bounds.

    Attributes
    ----------
    V : ndarray, shape (p, r)
        The primal iterate.
    tie : ndarray, shape (k,)
        Multipliers of the ties' basis.
    joint : bool
        Whether the primal and the dual step must have one length.
    degree : int
        Number of its complementarity products.
    least : float
        Smallest mu that a step may aim at.
    """

    V: Any
    tie: np.ndarray
    joint = False
    degree = 0
    least = 0.0

    @abstractmethod
    def start(self, V: np.ndarray, mu: float) -> None:
        """Start at V (p, r), which satisfies the ties, with products near mu."""

    @abstractmethod
    def factor(self, theta: np.ndarray, adjoint: np.ndarray) -> None:
        """Prepare the Newton system for Theta (n, T); ``adjoint`` is A^T lam, (p, r)."""

    @abstractmethod
    def direction(self, centre: float, before: Any, g: np.ndarray) -> Any:
        """Compute a direction with fields V, tie and dual (n, T) = Theta (g - A(V)).

        ``before`` is the predictor's direction (None for the predictor itself).
        """

    def complementarity(self) -> float:
        """Sum of the complementarity products."""
        return 0.0

    def after(self, move: Any, primal: float, dual: float) -> float:
        """Sum of the complementarity products after a step."""
        return 0.0

    def lengths(self, move: Any) -> tuple[float, float]:
        """Largest primal and dual step."""
        return FULL_STEP, FULL_STEP

    @abstractmethod
    def advance(self, move: Any, primal: float, dual: float) -> None:
        """Take the step."""

    def finish(self, run: InteriorPointRun, last: bool) -> bool:
        """Correct a nearly converged iterate, at the latest the ``last`` one; return whether the run has ended."""
        return False


@dataclass
class Slacks:
    """Slack s, loss xi and their multipliers lam and nu, each (n, T), at a point or along a direction."""

    slack: np.ndarray
    dual: np.ndarray
    loss: np.ndarray
    other: np.ndarray


Direction = Callable[[float, tuple[Slacks, Any] | None], tuple[Slacks, Any]]


class InteriorPoint:
    """Predictor-corrector steps for one problem: an iterate and its Newton directions.

    Parameters
    ----------
    V : ndarray, shape (p, r)
        Starting point.
    centre : float
        First mu over the objective per token. It is large because the first multipliers do not fit V.
    """

    def __init__(self, setting: Setting, term: Term, V: np.ndarray, centre: float = CENTRE) -> None:
        self.reduced, self.terms = setting.reduced, setting.terms
        self.term: Any = term
        self._inner = self.terms.rejected
        self._hinge = bool(np.isfinite(self.terms.upper))
        self.point = self._central_point(setting.on_ties(V), centre)

    def _central_point(self, V: np.ndarray, centre: float) -> Slacks:
        """Compute slacks and multipliers on the central path from the margins of V; stationarity does not hold.

        A hard margin that V violates starts with slacks of the size of the margin.
        """
        shortfall = np.where(self._inner, self.terms.cost - self.reduced.apply(V), 0.0)
        mu = centre * (self.terms.size(V) + self.terms.loss(shortfall)) / max(1, int(self._inner.sum()))
        if mu <= 0:
            mu = 1.0
        self.term.start(V, mu)
        point = self._fitting(shortfall, mu)
        self._enter_ball(point.dual, BALL)
        return point

    def _enter_ball(self, dual: np.ndarray, size: float) -> None:
        """Shorten multipliers (n, T) of a hard margin, which small slacks make large, until A^T lam has this size."""
        if self.terms.hard and not self.terms.squared:
            length = self.terms.norm.dual(self.reduced.adjoint(dual))
            dual *= min(1.0, size / length) if length > 0 else 1.0

    def _fitting(self, shortfall: np.ndarray, mu: float) -> Slacks:
        inner = self._inner
        if self.terms.hard:
            shortfall = np.minimum(shortfall, -LEAST_SLACK * float(np.abs(self.terms.cost[inner]).max(initial=0.0)))
        slack, dual, loss, other = self.terms.central(shortfall, mu)
        return Slacks(
            np.where(inner, slack, 1.0),
            np.where(inner, dual, 0.0),
            np.where(inner, loss, 0.0),
            np.where(inner, other, 1.0),
        )

    def adopt(self, dual: np.ndarray, ties: Ties, centre: float) -> None:
        """Start from multipliers (n, T) of a similar problem, raised to at least ``centre`` times their mean.

        No raised multiplier may dominate A^T lam.
        """
        x, inner = self.point, self._inner
        count = int(inner.sum())
        mu = centre * float((self.terms.cost * dual)[inner].sum()) / count
        floor = np.minimum(mu / x.slack, 0.1 / (count * np.where(inner, self.reduced.lengths, 1.0)))
        x.dual = np.where(inner, np.maximum(dual, floor), 0.0)
        self.term.tie = ties.from_multipliers(dual)

    def extend(self, setting: Setting) -> None:
        """Add the rejected tokens of a larger working set, on the central path at the current complementarity."""
        entering = setting.terms.rejected & ~self._inner
        x, members = self.point, self._inner
        mu = float((x.slack * x.dual)[members].mean())
        self.reduced, self.terms, self._inner = setting.reduced, setting.terms, setting.terms.rejected
        self.term.extend(setting)
        fresh = self._fitting(np.where(entering, self.terms.cost - self.reduced.apply(self.term.V), 0.0), mu)
        fresh.dual[~entering] = 0.0
        self._enter_ball(fresh.dual, JOINING_BALL)
        pairs = ((fresh.slack, x.slack), (fresh.dual, x.dual), (fresh.loss, x.loss), (fresh.other, x.other))
        self.point = Slacks(*(np.where(entering, one, before) for one, before in pairs))

    def scattered_dual(self, setting: Setting) -> np.ndarray:
        """Multipliers of every constraint, (n, T)."""
        return self.point.dual + setting.ties.tie_multipliers(self.term.tie)

    def _lacking(self) -> np.ndarray:
        x, V = self.point, self.term.V
        loss = x.loss if self._hinge else self.terms.shift * x.dual
        residual = self.terms.cost - self.reduced.apply(V) - loss + x.slack
        # Slacks follow the steps of V, and a residual below the rounding of the margins must not grow with every step.
        noise = RESIDUAL_ROUNDING * (self.reduced.lengths * float(np.linalg.norm(V)) + np.abs(self.terms.cost))
        return np.where(self._inner & (np.abs(residual) > noise), residual, 0.0)

    def _prepare(self) -> Direction:
        """Factor the Newton system; return a function from mu and the predictor to a direction."""
        x, inner, terms, term = self.point, self._inner, self.terms, self.term
        residual = self._lacking()
        dual_residual = np.where(inner, terms.upper - x.dual - x.other, 0.0) if self._hinge else np.zeros(inner.shape)
        weight = np.where(inner, x.dual, 1.0)
        soft = x.loss / x.other if self._hinge else terms.shift
        theta = np.where(inner, 1.0 / (x.slack / weight + soft), 0.0)
        term.factor(theta, self.reduced.adjoint(x.dual))

        def direction(centre: float, before: tuple[Slacks, Any] | None) -> tuple[Slacks, Any]:
            curvature = np.zeros(inner.shape) if before is None else before[0].slack * before[0].dual
            loss_curvature = np.zeros(inner.shape) if before is None else before[0].loss * before[0].other
            target = centre - x.slack * x.dual - curvature
            g = residual + target / weight
            if self._hinge:
                target_loss = centre - x.loss * x.other - loss_curvature
                g = g - (target_loss - x.loss * dual_residual) / x.other
            g = np.where(inner, g, 0.0)
            norm_move = term.direction(centre, None if before is None else before[1], g)
            dual = norm_move.dual
            slack = np.where(inner, (target - x.slack * dual) / weight, 0.0)
            if not self._hinge:
                return Slacks(slack, dual, np.zeros(inner.shape), np.zeros(inner.shape)), norm_move
            other = np.where(inner, dual_residual - dual, 0.0)
            loss_step = np.where(inner, (target_loss - x.loss * other) / x.other, 0.0)
            return Slacks(slack, dual, loss_step, other), norm_move

        return direction

    def step(self) -> bool:
        """Take one step; False when rounding ends the progress."""
        # Quotients of vanishing slacks may overflow near the solution; tests below reject such a direction.
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            try:
                return self._step()
            except (LinAlgError, np.linalg.LinAlgError):
                return False

    def distance(self) -> float:
        """Measure the progress of this method alone: complementarity plus the residuals of the margins."""
        return self.term.complementarity() + self._complementarity(self.point) + float(np.abs(self._lacking()).sum())

    def _step(self) -> bool:
        direction = self._prepare()
        x, term = self.point, self.term
        count = term.degree + int(self._inner.sum()) * (2 if self._hinge else 1)
        mu = (term.complementarity() + self._complementarity(x)) / max(count, 1)
        affine = direction(0.0, None)
        primal, dual = self._lengths(*affine)
        after = term.after(affine[1], primal, dual) + self._complementarity(after_step(x, affine[0], primal, dual))
        ratio = min(1.0, max(after / max(count, 1) / mu, 0.0)) if mu > 0 else 0.0
        move = direction(max(mu * ratio**3, term.least), affine)
        if not (np.isfinite(move[0].dual).all() and np.isfinite(move[1].V).all()):
            return False
        primal, dual = self._lengths(*move)
        primal, dual = min(1.0, STEP_BACK * primal), min(1.0, STEP_BACK * dual)
        self.point = after_step(x, move[0], primal, dual)
        term.advance(move[1], primal, dual)
        return max(primal, dual) > 1e-7

    def _complementarity(self, x: Slacks) -> float:
        return float((x.slack * x.dual + x.loss * x.other)[self._inner].sum())

    def _lengths(self, move: Slacks, norm_move: Any) -> tuple[float, float]:
        primal, dual = self.term.lengths(norm_move)
        x, inner = self.point, self._inner
        primal = min(primal, longest(x.slack[inner], move.slack[inner]))
        dual = min(dual, longest(x.dual[inner], move.dual[inner]))
        if self._hinge:
            primal = min(primal, longest(x.loss[inner], move.loss[inner]))
            dual = min(dual, longest(x.other[inner], move.other[inner]))
        if self.term.joint or self.terms.shift > 0:
            primal = dual = min(primal, dual)
        return primal, dual


def after_step(x: Slacks, move: Slacks, primal: float, dual: float) -> Slacks:
    """Take a step of two lengths."""
    return Slacks(
        x.slack + primal * move.slack,
        x.dual + dual * move.dual,
        x.loss + primal * move.loss,
        x.other + dual * move.other,
    )


def longest(value: np.ndarray, change: np.ndarray) -> float:
    """Compute the largest step, at most :data:`FULL_STEP`, that keeps value + step change nonnegative."""
    shrinking = change < 0
    return float((-value[shrinking] / change[shrinking]).min(initial=FULL_STEP))


class InteriorPointRun:
    """An interior point that reports to the control of a problem.

    Parameters
    ----------
    setting : Setting
        The problem; the method works with V / ``unit``.
    term : callable
        Maps the method's setting to the term of the norm.
    V : ndarray, shape (p, r)
        Starting point, in the coordinates of ``setting``.
    centre : float
        As for :class:`InteriorPoint`.
    working : ndarray of bool, shape (n, T), optional
        The first working set.

    Attributes
    ----------
    inner : Setting
        The method's setting.
    """

    def __init__(
        self,
        setting: Setting,
        control: Control,
        term: Callable[[Setting], Term],
        V: np.ndarray,
        centre: float,
        unit: float = 1.0,
        working: np.ndarray | None = None,
    ) -> None:
        self.setting, self.control, self.unit = setting, control, unit
        self.inner = setting.scaled(unit) if working is None else setting.scaled(unit).on(working)
        self.method = InteriorPoint(self.inner, term(self.inner), V / unit, centre)

    @property
    def pair(self) -> tuple[np.ndarray, np.ndarray]:
        """V (p, r) and multipliers (n, T) of the iterate."""
        return self.method.term.V * self.unit, self.method.scattered_dual(self.inner)

    @property
    def gap(self) -> float:
        """Gap relative to the norm; the control's gap hardly shows progress if losses dominate the objective."""
        state, size = self.control.state, self.inner.terms.size(self.method.term.V) * self.unit
        return state.gap * max(1.0, state.objective * self.control.unit / size) if size > 0 else np.inf

    def correct(self, last: bool, correction: Callable[[], tuple[np.ndarray, np.ndarray]]) -> bool:
        """Report a corrected pair of an iterate that has reached the requested gap, or of the ``last`` iterate.

        Return whether the run has ended.
        """
        tol = self.control.tol * self.inner.terms.size(self.method.term.V)
        if self.inner.terms.shift > 0 or not (last or self.method.distance() < tol):
            return False
        try:
            V, dual = correction()
        except np.linalg.LinAlgError:
            return False
        return self.setting.report(V * self.unit, dual, self.control, steps=0)

    def steps(self, work: Callable[[Reduced], float]) -> Iterator[float]:
        """Step until the control is satisfied or progress ends; yields the work of each step."""
        method, term, best, stall, longest_step = self.method, self.method.term, np.inf, 0, 0.0
        for _ in range(MAX_STEPS):
            if self.setting.report(*self.pair, self.control) or (not self._grow() and term.finish(self, False)):
                return
            yield work(method.reduced)
            if not self.control.has_time_for(longest_step):
                return
            began = self.control.seconds
            distance = method.distance()
            best, stall = (distance, 0) if distance < 0.9 * best else (best, stall + 1)
            below = NEGLIGIBLE * self.control.tol * method.terms.size(term.V)
            if stall > STALLED_STEPS or distance < below or not method.step():
                break
            longest_step = max(longest_step, self.control.seconds - began)
        term.finish(self, True)

    def _grow(self) -> bool:
        """Add constraints that are violated more than any in the working set; return whether there are any."""
        reduced, working = self.setting.reduced, self.inner.terms.rejected
        if working.sum() == reduced.rejected.sum():
            return False
        margins = reduced.apply(self.method.term.V)
        violations = reduced.rejected & ~working & (margins < np.min(margins, where=working, initial=np.inf))
        if not violations.any():
            return False
        self.inner = self.setting.scaled(self.unit).on(working | violations)
        self.method.extend(self.inner)
        return True
