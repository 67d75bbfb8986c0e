r"""Interior point for the Frobenius norm, hard or soft margin, with or without a prior, in the space of W.

For correlated tokens the coordinate method crawls and working sets churn; the steps of
:mod:`attsvm.solvers.interior_point.engine` do not mind. Half the square of the norm contributes the identity,

.. math:: (I + A^\top \Theta A)\, dV - B^\top d\nu = \mathrm{rhs}, \qquad B\,dV = 0,

B an orthonormal basis of the ties' rows, which are thus kept exactly. The matrix is (p r) x (p r), formed in one
product (:mod:`attsvm.core.normal_matrix`); when there are fewer constraints than entries of W the same step is taken on
:math:`\Theta^{-1} + A P A^\top`, P the projection onto BW = 0, whose second term is formed once.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.normal_matrix import NormalMatrix
from attsvm.core.reduction import Reduced
from attsvm.solvers.common import cholesky as equilibrated
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.common.ties import Solver, Ties
from attsvm.solvers.interior_point.engine import CENTRE, Slacks, SoftInteriorPoint
from attsvm.solvers.interior_point.terms import FAR, Move
from attsvm.solvers.schedule import BLOCKED, COORDINATE_OPERATIONS, OVERHEAD, STEP_OPERATIONS, STREAMED


class EuclideanSystem:
    """Factors and solves the systems above for one reduced problem.

    Parameters
    ----------
    reduced : Reduced
    ties : Ties
        Of the same problem.
    """

    def __init__(self, reduced: Reduced, ties: Ties) -> None:
        self._reduced, self._ties = reduced, ties
        rows, columns = np.nonzero(reduced.rejected)
        self._where = rows, columns
        self._normal = None
        if in_dual_space(reduced):
            self._gram = reduced.gram(rows, columns)
            for row in ties.basis:
                image = reduced.apply(row.reshape(reduced.shape))[rows, columns]
                self._gram -= np.outer(image, image)
        else:
            self._normal = NormalMatrix(reduced)

    def factor(self, theta: np.ndarray) -> Solver:
        """Factor for theta (n, T) >= 0; the result maps rhs (p, r) to dV (p, r) and d nu (k,).

        Raises
        ------
        scipy.linalg.LinAlgError
            When rounding makes the matrix indefinite.
        """
        return self._factor_dual(theta) if self._normal is None else self._factor_primal(self._normal, theta)

    def _factor_primal(self, normal: NormalMatrix, theta: np.ndarray) -> Solver:
        matrix = normal.form(theta)
        matrix[np.diag_indices(len(matrix))] += 1.0
        return self._ties.eliminate(equilibrated.factor(matrix))

    def _factor_dual(self, theta: np.ndarray) -> Solver:
        reduced, ties = self._reduced, self._ties
        matrix = self._gram.copy()
        matrix[np.diag_indices(len(matrix))] += 1.0 / np.maximum(theta[self._where], 1e-300)
        inverse = equilibrated.factor(matrix)

        def solve(rhs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            inner = ties.project(rhs)
            dual = np.zeros(theta.shape)
            dual[self._where] = inverse(reduced.apply(inner)[self._where])
            V = ties.project(inner - reduced.adjoint(dual))
            tie = ties.basis @ (reduced.adjoint(theta * reduced.apply(V)) - rhs).ravel()
            return V, tie

        return solve


class EuclideanTerm:
    """Half the square of the Frobenius norm: stationarity is V = A^T lam + B^T nu.

    Parameters
    ----------
    setting : Setting
    """

    joint = True
    degree = 0

    def __init__(self, setting: Setting) -> None:
        self._reduced, self._ties = setting.reduced, setting.ties
        self._system = EuclideanSystem(setting.reduced, setting.ties)

    def extend(self, setting: Setting) -> None:
        """Take the constraints of another setting."""
        self._reduced, self._system = setting.reduced, EuclideanSystem(setting.reduced, setting.ties)

    def start(self, V: np.ndarray, mu: float) -> None:
        """Begin at V; the multipliers follow."""
        self.V, self.tie = V, np.zeros(len(self._ties.basis))

    def complementarity(self) -> float:
        """No products."""
        return 0.0

    def factor(self, theta: np.ndarray) -> None:
        """Factor I + A^T Theta A."""
        self._theta = theta
        self._solve = self._system.factor(theta)

    def direction(self, centre: float, before: Move | None, g: np.ndarray, adjoint: np.ndarray) -> Move:
        """Solve for the direction; the term is quadratic, so predictor and corrector differ only in g."""
        rhs = self._reduced.adjoint(self._theta * g) + adjoint - self.V
        if len(self.tie):
            rhs += self._ties.adjoint(self.tie)
        return Move(*self._solve(rhs))

    def after(self, move: Move, primal: float, dual: float) -> float:
        """No products."""
        return 0.0

    def lengths(self, move: Move) -> tuple[float, float]:
        """No bounds."""
        return FAR, FAR

    def advance(self, move: Move, primal: float, dual: float, adjoint: np.ndarray) -> None:
        """Take the step."""
        self.V = self.V + primal * move.V
        self.tie = self.tie + dual * move.tie


class FrobeniusInteriorPoint(SoftInteriorPoint):
    """The engine's steps with a start of its own for hard margins.

    Slacks of the size of the margin and multipliers that meet each constraint by itself save a third of the steps that
    a start on the central path takes.

    Parameters
    ----------
    setting : Setting
    V : ndarray, shape (p, r), optional
        Where a soft margin starts.
    centre : float
        How far from the bounds.
    """

    def __init__(self, setting: Setting, V: np.ndarray | None = None, centre: float = CENTRE) -> None:
        super().__init__(setting, EuclideanTerm(setting), np.zeros(setting.reduced.shape) if V is None else V, centre)
        self._setting = setting

    def _centred(self, V: np.ndarray, centre: float) -> Slacks:
        if not self.terms.hard:
            return super()._centred(V, centre)
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
        """Tell the control both V and what the multipliers pull, which is the better one near the end."""
        dual = self.scattered_dual(self._setting)
        adjoint = self.reduced.adjoint(dual)
        self._setting.offer(self.term.V, control)
        return self._setting.report(adjoint, dual, control, adjoint=adjoint)


def in_dual_space(reduced: Reduced) -> bool:
    """Whether constraints are fewer than entries of W, so that their own system is the smaller one."""
    return int(reduced.rejected.sum()) < int(np.prod(reduced.shape))


def work_of_a_step(reduced: Reduced) -> float:
    """Estimate the work of one step from sizes (see :mod:`attsvm.solvers.schedule`)."""
    n, T, p = reduced.delta.shape
    return work_at((n, T, p, reduced.shape[1]), int(reduced.rejected.sum()), int(reduced.tied.sum()))


def work_at(shape: tuple[int, int, int, int], rejected: int, tied: int) -> float:
    """Estimate the same for a problem of shape (n, T, p, r) with so many constraints of both kinds."""
    n, T, p, r = shape
    passes = (STEP_OPERATIONS + COORDINATE_OPERATIONS * p) * n * T / STREAMED
    if rejected < p * r:
        return OVERHEAD + passes + rejected**3 / 3.0 / BLOCKED
    form = n * T * p * p + n * p * p * r * r / 2.0
    ties = min(tied, p * r)
    return OVERHEAD + passes + (form + (p * r) ** 3 / 3.0 + 2.0 * ties * (p * r) ** 2) / BLOCKED
