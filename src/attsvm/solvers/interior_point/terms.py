r"""Norms in the interior point: the part of a Newton step that depends on the norm.

A term stores V, the ties' multipliers and the variables that certify the norm, and solves

.. math:: H\,dV + A^\top\Theta A(dV) - B^\top d\nu = \mathrm{rhs}, \qquad B\,dV = \mathrm{residual\ of\ the\ ties}.

H is diagonal for the sum of absolute entries and the largest entry, which are linear programs. H is the identity for
the Frobenius norm (:mod:`attsvm.solvers.interior_point.euclidean`). The nuclear and the spectral norm are in
:mod:`attsvm.solvers.interior_point.semidefinite`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attsvm.core.norms import MAX
from attsvm.solvers.common.diagonal_normal import DiagonalNormal
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.interior_point.alignment import vertex
from attsvm.solvers.interior_point.engine import InteriorPointRun, Term, longest
from attsvm.solvers.schedule import FEW_CONSTRAINTS


@dataclass
class TermMove:
    """A direction of V (p, r), of the ties' multipliers (k,) and of the multipliers (n, T)."""

    V: np.ndarray
    tie: np.ndarray
    dual: np.ndarray


@dataclass
class BoundMove(TermMove):
    """A direction with t - V, t + V and their multipliers."""

    above: np.ndarray
    below: np.ndarray
    upper: np.ndarray
    lower: np.ndarray


class LinearTerm(Term):
    """The largest entry (one ``shared`` bound t) or the sum of absolute entries (one bound per entry): -t <= V <= t.

    A second run uses the Newton system that the first run did not use, over the constraints or over the entries.
    """

    def __init__(self, setting: Setting, is_second: bool = False) -> None:
        reduced = setting.reduced
        self._shared = setting.terms.norm == MAX
        self._system = DiagonalNormal(reduced)
        if is_second:
            over_rows = not self._system.few and int(reduced.rejected.sum()) <= FEW_CONSTRAINTS
            self._system = DiagonalNormal(reduced, 0.0 if over_rows else math.inf, 0)
        self.degree = 2 * int(np.prod(reduced.shape))

    def start(self, V: np.ndarray, mu: float) -> None:
        """Begin at V with equal multipliers of both sides."""
        self.V, self.tie = V, np.zeros(len(self._system.basis))
        side = 0.5 / V.size if self._shared else 0.5
        self.upper = self.lower = np.full(V.shape, side)
        t = mu / side + (np.abs(V).max() if self._shared else np.abs(V) + np.abs(V).mean())
        self.above, self.below = t - V, t + V

    def complementarity(self) -> float:
        """Sum of both sides' products."""
        return float((self.upper * self.above + self.lower * self.below).sum())

    def factor(self, theta: np.ndarray, adjoint: np.ndarray) -> None:
        """Factor diag(h) + A^T Theta A."""
        self._lack = adjoint + self._system.adjoint(self.tie) - (self.upper - self.lower)
        self._P, self._Q = self.upper / self.above, self.lower / self.below
        total = self._P + self._Q
        self._solve = self._system.factor(total if self._shared else 4.0 * self._P * self._Q / total, theta)
        if self._shared:
            self._follow = self._solve(self._P - self._Q)

    def direction(self, centre: float, before: BoundMove | None, g: np.ndarray) -> BoundMove:
        """Solve for the direction."""
        P, Q = self._P, self._Q
        total, border = P + Q, P - Q
        curvature_up = 0.0 if before is None else before.upper * before.above
        curvature_down = 0.0 if before is None else before.lower * before.below
        push_up = (centre - curvature_up) / self.above - self.upper
        push_down = (centre - curvature_down) / self.below - self.lower
        rhs = self._lack - (push_up - push_down)
        pushes, sides = push_up + push_down, self.upper + self.lower
        if self._shared:
            V, tie, dual = self._solve(rhs, g)
            along, along_tie, along_dual = self._follow
            # Schur complement of the shared bound, which is positive but a difference of nearly equal numbers.
            pivot = max(float((total - border * along).sum()), 1e-300)
            t = (float((pushes + sides).sum()) - 1.0 + float((border * V).sum())) / pivot
            V, tie, dual = V + t * along, tie + t * along_tie, dual + t * along_dual
        else:
            excess = pushes + sides - 1.0
            V, tie, dual = self._solve(rhs + border * excess / total, g)
            t = (excess + border * V) / total
        return BoundMove(V, tie, dual, t - V, t + V, push_up - P * (t - V), push_down - Q * (t + V))

    def after(self, move: BoundMove, primal: float, dual: float) -> float:
        """Sum of the products after a step."""
        up = (self.upper + dual * move.upper) * (self.above + primal * move.above)
        down = (self.lower + dual * move.lower) * (self.below + primal * move.below)
        return float((up + down).sum())

    def lengths(self, move: BoundMove) -> tuple[float, float]:
        """Largest steps that keep both sides and their multipliers nonnegative."""
        primal = min(longest(self.above, move.above), longest(self.below, move.below))
        return primal, min(longest(self.upper, move.upper), longest(self.lower, move.lower))

    def advance(self, move: BoundMove, primal: float, dual: float) -> None:
        """Take the step."""
        self.V, self.tie = self.V + primal * move.V, self.tie + dual * move.tie
        self.above, self.below = self.above + primal * move.above, self.below + primal * move.below
        self.upper, self.lower = self.upper + dual * move.upper, self.lower + dual * move.lower

    def finish(self, run: InteriorPointRun, last: bool) -> bool:
        """Solve for the vertex."""
        return run.correct(last, lambda: vertex(run.inner, run.method, self._shared))
