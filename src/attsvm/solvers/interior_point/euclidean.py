r"""Interior point for the Frobenius norm, hard or soft margin, with or without a prior, in the space of W.

The coordinate method is slow for correlated tokens, and working sets change often; the steps of
:mod:`attsvm.solvers.interior_point.engine` hardly depend on the correlation. Half the squared norm contributes the
identity,

.. math:: (I + A^\top \Theta A)\, dV - B^\top d\nu = \mathrm{rhs}, \qquad B\,dV = 0,

with B an orthonormal basis of the ties' rows, so that ties hold exactly. This is the system of
:mod:`attsvm.solvers.common.diagonal_normal` with a diagonal of ones.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.diagonal_normal import DiagonalNormal
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.interior_point.engine import CENTRE, InteriorPoint, Slacks, Term
from attsvm.solvers.interior_point.terms import TermMove
from attsvm.solvers.schedule import BLAS_RATE, COORDINATE_OPERATIONS, OVERHEAD, STEP_OPERATIONS, STREAM_RATE


class EuclideanTerm(Term):
    """Half the square of the Frobenius norm: stationarity is V = A^T lam + B^T nu."""

    joint = True

    def __init__(self, setting: Setting) -> None:
        self._ties = setting.ties
        self._system = DiagonalNormal(setting.reduced, least=0)

    def start(self, V: np.ndarray, mu: float) -> None:
        """Begin at V; the multipliers follow."""
        self.V, self.tie = V, np.zeros(len(self._ties.basis))

    def factor(self, theta: np.ndarray, adjoint: np.ndarray) -> None:
        """Factor I + A^T Theta A."""
        self._solve = self._system.factor(1.0, theta)
        self._lack = adjoint + self._ties.adjoint(self.tie) - self.V

    def direction(self, centre: float, before: TermMove | None, g: np.ndarray) -> TermMove:
        """Solve for the direction; the term is quadratic, so predictor and corrector differ only in g."""
        return TermMove(*self._solve(self._lack, g))

    def advance(self, move: TermMove, primal: float, dual: float) -> None:
        """Take the step."""
        self.V = self.V + primal * move.V
        self.tie = self.tie + dual * move.tie


class FrobeniusInteriorPoint(InteriorPoint):
    """Steps of the engine, with another start for hard margins.

    A hard margin starts with slacks of the size of the margin and multipliers that meet each constraint by itself,
    which takes fewer steps than a start on the central path. A soft margin starts from V (p, r), ``centre`` away from
    the bounds.
    """

    def __init__(self, setting: Setting, V: np.ndarray | None = None, centre: float = CENTRE) -> None:
        super().__init__(setting, EuclideanTerm(setting), np.zeros(setting.reduced.shape) if V is None else V, centre)
        self._setting = setting

    def _central_point(self, V: np.ndarray, centre: float) -> Slacks:
        if not self.terms.hard:
            return super()._central_point(V, centre)
        inner, lengths = self._inner, self.reduced.lengths
        self.term.start(V, centre)
        shortfall = self.terms.cost - self.reduced.apply(V)
        size = max(1.0, float(np.abs(self.terms.cost).max()))
        nothing = np.zeros(inner.shape)
        return Slacks(
            np.where(inner, np.maximum(-shortfall, size), 1.0),
            np.where(inner, size / np.where(inner, lengths, 1.0) ** 2, 0.0),
            nothing,
            np.ones(inner.shape),
        )

    def report(self, control: Control) -> bool:
        """Report V and the adjoint of the multipliers, which is better near the end."""
        dual = self.scattered_dual(self._setting)
        adjoint = self.reduced.adjoint(dual)
        self._setting.offer(self.term.V, control)
        return self._setting.report(adjoint, dual, control, adjoint=adjoint)


def work_of_a_step(reduced: Reduced) -> float:
    """Estimate the work of one step from sizes (see :mod:`attsvm.solvers.schedule`)."""
    n, T, p = reduced.delta.shape
    return work_at((n, T, p, reduced.shape[1]), int(reduced.rejected.sum()), int(reduced.tied.sum()))


def work_at(shape: tuple[int, int, int, int], rejected: int, tied: int) -> float:
    """Estimate the work of one step for sizes (n, T, p, r) and numbers of rejected and tied tokens."""
    n, T, p, r = shape
    passes = (STEP_OPERATIONS + COORDINATE_OPERATIONS * p) * n * T / STREAM_RATE
    if rejected < p * r:
        return OVERHEAD + passes + rejected**3 / 3.0 / BLAS_RATE
    form = n * T * p * p + n * p * p * r * r / 2.0
    ties = min(tied, p * r)
    return OVERHEAD + passes + (form + (p * r) ** 3 / 3.0 + 2.0 * ties * (p * r) ** 2) / BLAS_RATE
