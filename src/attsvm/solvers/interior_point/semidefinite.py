r"""The nuclear and the spectral norm in the interior point: semidefinite completions of V.

H is the Nesterov-Todd scaling of X and Z (Todd, Toh and Tutuncu, SIAM J. Optim. 8, 1998). The trace or the bound of X
is the norm of V (Fazel, Hindi and Boyd, ACC 2001). See :mod:`attsvm.solvers.interior_point.terms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from attsvm.core.cholesky import factor, refined
from attsvm.core.error_free import EPS
from attsvm.core.normal_matrix import NormalMatrix
from attsvm.core.reduction import Reduced
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.common.ties import bordered_solver
from attsvm.solvers.interior_point.alignment import aligned_multipliers
from attsvm.solvers.interior_point.engine import InteriorPointRun, Term, longest
from attsvm.solvers.interior_point.euclidean import work_of_a_step
from attsvm.solvers.interior_point.terms import TermMove
from attsvm.solvers.nuclear.face_newton import refine
from attsvm.solvers.schedule import (
    FEW_CONSTRAINTS,
    INTERIOR_TARGETS,
    MANY_CONSTRAINTS,
    MANY_RATIO,
    nuclear_interior_work,
)


@dataclass
class ConeMove(TermMove):
    """A direction with the bound t or the adjoint N, and X and Z in scaled coordinates."""

    free: Any
    scaled_x: np.ndarray
    scaled_z: np.ndarray


class _Semidefinite(Term):
    """The common part of the nuclear and the spectral norm: X and Z (p + r, p + r), and their scaling."""

    X: np.ndarray
    Z: np.ndarray

    def _scale(self) -> None:
        lower_x, lower_z = np.linalg.cholesky(self.X), np.linalg.cholesky(self.Z)
        _, self._scaled, right = np.linalg.svd(lower_z.T @ lower_x)
        root = np.sqrt(self._scaled)
        self._T = (lower_x @ right.T) / root  # T^-1 X T^-T = T^T Z T = diag(scaled)
        self._inverse = (root[:, None] * right) @ solve_triangular(lower_x, np.eye(len(root)), lower=True)

    def _target(self, centre: float, before: ConeMove | None) -> np.ndarray:
        """Scaled dX + dZ that complementarity requires."""
        lack = np.diag(centre - self._scaled**2)
        if before is not None:
            product = before.scaled_x @ before.scaled_z
            lack = lack - 0.5 * (product + product.T)
        return 2.0 * lack / (self._scaled[:, None] + self._scaled)

    def complementarity(self) -> float:
        """Inner product of X and Z."""
        return float((self.X * self.Z).sum())

    def after(self, move: ConeMove, primal: float, dual: float) -> float:
        """Inner product of X and Z after a step."""
        now = np.diag(self._scaled)
        return float(((now + primal * move.scaled_x) * (now + dual * move.scaled_z)).sum())

    def lengths(self, move: ConeMove) -> tuple[float, float]:
        """Largest steps that keep X and Z semidefinite."""
        root = np.sqrt(self._scaled)
        relative = [0.5 * (change + change.T) / (root[:, None] * root) for change in (move.scaled_x, move.scaled_z)]
        primal, dual = (longest(np.ones(len(root)), np.linalg.eigvalsh(change)) for change in relative)
        return primal, dual


class NuclearTerm(_Semidefinite):
    r"""The nuclear norm, half the trace of X = [[P, V], [V^T, Q]]; Z = [[I, -N], [-N^T, I]]/2, where N must equal M.

    Let G be the scaling (G Z G = X) and F the residual of complementarity. A step satisfies :math:`dV = F_{12} +
    \mathcal{K}\,dN` with :math:`\mathcal{K}\,dN = \tfrac12(G_{11}\,dN\,G_{22} + G_{12}\,dN^\top G_{12})`. If
    constraints are few, the unknowns are their multipliers and the matrix is :math:`A\mathcal{K}A^\top + \Theta^{-1}`.
    If they are many, the unknown is w in :math:`dV = F_{12} + Lw`, where :math:`\mathcal{K} = LL^\top`, and the matrix
    is :math:`I + L^\top A^\top\Theta A L`.

    If constraints outnumber the entries of V, the first matrix costs more than the second and ends closer to the
    solution.
    """

    def __init__(self, setting: Setting, is_second: bool = False) -> None:
        many = min(MANY_CONSTRAINTS, MANY_RATIO * int(np.prod(setting.reduced.shape)))
        self._limit = max(FEW_CONSTRAINTS, many) if is_second else FEW_CONSTRAINTS
        self._gaps = INTERIOR_TARGETS
        self.degree = int(sum(setting.reduced.shape))
        self.extend(setting)

    def extend(self, setting: Setting) -> None:
        """Use the constraints of another setting."""
        self._setting = setting
        self._ties = setting.ties
        self._where = np.nonzero(setting.reduced.rejected)
        rows, columns = self._where
        size = int(np.prod(setting.reduced.shape))
        self._few = len(rows) + len(self._ties.basis) <= max(self._limit, size)
        if self._few:
            self._delta, self._queries = setting.reduced.factors_at(rows, columns)
        else:
            self._normal = NormalMatrix(setting.reduced)

    @property
    def V(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The primal iterate, (p, r)."""
        p = self._ties.shape[0]
        return self.X[:p, p:]

    def start(self, V: np.ndarray, mu: float) -> None:
        """Begin at V with Z = I/2."""
        p, r = self._ties.shape
        U, sigma, Vt = np.linalg.svd(V, full_matrices=False)
        more = 2.0 * mu + float(sigma.mean())
        self.tie = np.zeros(len(self._ties.basis))
        self.adjoint = np.zeros((p, r))
        self.Z = self._slack(self.adjoint)
        residual, right = (U * sigma) @ U.T, (Vt.T * sigma) @ Vt
        self.X = np.block([[residual + more * np.eye(p), V], [V.T, right + more * np.eye(r)]])

    def _slack(self, adjoint: np.ndarray) -> np.ndarray:
        p, r = self._ties.shape
        return 0.5 * np.block([[np.eye(p), -adjoint], [-adjoint.T, np.eye(r)]])

    def factor(self, theta: np.ndarray, adjoint: np.ndarray) -> None:
        """Factor one of the systems of the class's derivation."""
        self._scale()
        p = self._ties.shape[0]
        G = self._T @ self._T.T
        self._G11, self._G12, self._G22 = G[:p, :p], G[:p, p:], G[p:, p:]
        self._theta, self._lack = theta, adjoint + self._ties.adjoint(self.tie) - self.adjoint
        if self._few:
            self._factor_multipliers()
        else:
            self._factor_entries()

    def _kernel(self, M: np.ndarray) -> np.ndarray:
        """Apply the operator K of the class's derivation to matrices (..., p, r)."""
        mirror = self._G12 @ np.swapaxes(M, -1, -2) @ self._G12
        return 0.5 * (self._G11 @ M @ self._G22 + mirror)

    def _factor_multipliers(self) -> None:
        delta, queries, basis = self._delta, self._queries, self._ties.basis
        coupling = (delta @ self._G12) @ queries.T  # (m, m)
        tokens = (delta @ self._G11) @ delta.T
        count, more = len(delta), len(basis)
        matrix = np.empty((count + more, count + more))
        matrix[:count, :count] = 0.5 * (tokens * ((queries @ self._G22) @ queries.T) + coupling * coupling.T)
        matrix[np.arange(count), np.arange(count)] += 1.0 / self._theta[self._where]
        if more:
            images = self._kernel(basis.reshape(more, *self._ties.shape))
            cross = np.einsum("ma,kar,mr->mk", delta, images, queries, optimize=True)
            matrix[:count, count:], matrix[count:, :count] = cross, cross.T
            matrix[count:, count:] = images.reshape(more, -1) @ basis.T
        self._solve = factor(matrix)

    def _factor_entries(self) -> None:
        size = int(np.prod(self._ties.shape))
        kernel = np.multiply(self._G11[:, None, :, None], self._G22[None, :, None, :])
        kernel += self._G12[:, None, None, :] * self._G12.T[None, :, :, None]
        kernel = 0.5 * kernel.reshape(size, size)
        kernel[np.diag_indices(size)] *= 1.0 + size * EPS
        self._lower = np.linalg.cholesky(kernel)
        matrix = self._lower.T @ self._normal.form(self._theta) @ self._lower
        matrix[np.diag_indices(size)] += 1.0
        self._on_ties = bordered_solver(factor(0.5 * (matrix + matrix.T)), self._ties.basis @ self._lower)

    def direction(self, centre: float, before: ConeMove | None, g: np.ndarray) -> ConeMove:
        """Solve for the direction."""
        p, r = self._ties.shape
        reduced, theta, basis = self._setting.reduced, self._theta, self._ties.basis
        target = self._target(centre, before)
        F = (self._T @ target @ self._T.T)[:p, p:]
        lack = self._lack
        if self._few:
            F = F + self._kernel(lack)
        tie_residual = -(basis @ (self.V + self._setting.prior + F).ravel())
        if self._few:
            both = self._solve(np.append((g - reduced.apply(F))[self._where], tie_residual))
            dual = np.zeros(theta.shape)
            dual[self._where], tie = both[: len(self._delta)], both[len(self._delta) :]
            more = reduced.adjoint(dual) + self._ties.adjoint(tie)
            adjoint, V = lack + more, F + self._kernel(more)
        else:
            push = reduced.adjoint(theta * (g - reduced.apply(F))) + lack
            w, tie = self._on_ties(self._lower.T @ push.ravel(), tie_residual)
            V = F + (self._lower @ w).reshape(p, r)
            dual = theta * (g - reduced.apply(V))
            adjoint = lack + reduced.adjoint(dual) + self._ties.adjoint(tie)
        change = np.zeros((p + r, p + r))
        change[:p, p:], change[p:, :p] = -0.5 * adjoint, -0.5 * adjoint.T
        scaled_z = self._T.T @ change @ self._T
        # The margins must follow V exactly; rounding goes into complementarity.
        dX = self._T @ (target - scaled_z) @ self._T.T
        dX[:p, p:], dX[p:, :p] = V, V.T
        return ConeMove(V, tie, dual, adjoint, self._inverse @ dX @ self._inverse.T, scaled_z)

    def advance(self, move: ConeMove, primal: float, dual: float) -> None:
        """Take the step."""
        X = self.X + primal * (self._T @ move.scaled_x @ self._T.T)
        self.X = 0.5 * (X + X.T)
        self.tie = self.tie + dual * move.tie
        self.adjoint = self.adjoint + dual * move.free
        self.Z = self._slack(self.adjoint)

    def finish(self, run: InteriorPointRun, last: bool) -> bool:
        """Try Newton on the face each time the gap has fallen far enough, and on the best pair at the end."""
        gap, control = run.gap, run.control
        if not self._gaps or not (last or gap < self._gaps[0]):
            return False
        self._gaps = tuple(later for later in self._gaps if later < 0.5 * gap)
        V, dual = run.pair
        if last and control.W is not None and control.dual is not None:
            V, dual = control.W, control.dual
        if run.setting.plain:
            smallest = run.setting.reduced.min_margin(run.setting.reduced.apply(V))
            V = V / smallest if smallest > 0 else V
        return refine(run.setting, V, dual, control)

    def work(self, reduced: Reduced) -> float:
        """Estimate the work of a step, which may be on a system over the constraints."""
        count = int(reduced.rejected.sum())
        return nuclear_interior_work(reduced.shape, count) if count <= self._limit else work_of_a_step(reduced)


class SpectralTerm(_Semidefinite):
    """The spectral norm t, X = [[tI, V], [V^T, tI]]; Z has trace one, and -2 Z_12 must equal M.

    A second run solves for the change of the multipliers, since Theta (g - A(dV)) loses its digits if C is large.
    """

    def __init__(self, setting: Setting, is_second: bool = False) -> None:
        reduced = setting.reduced
        self.degree = int(sum(reduced.shape))
        self._setting, self._ties = setting, setting.ties
        self._normal = NormalMatrix(reduced)
        self._where = np.nonzero(reduced.rejected & (is_second and int(reduced.rejected.sum()) <= FEW_CONSTRAINTS))
        rows = np.vstack([self._ties.basis, reduced.constraint_rows(*self._where)])
        self._rows = np.hstack([rows, np.zeros((len(rows), 1))])

    def start(self, V: np.ndarray, mu: float) -> None:
        """Begin at V with Z a multiple of the identity."""
        self.V, self.tie = V, np.zeros(len(self._ties.basis))
        self.t = max(mu * self.degree, 2.0 * float(np.linalg.norm(V, 2)))
        self.X = _block_matrix(V, self.t)
        self.Z = np.eye(self.degree) / self.degree

    def factor(self, theta: np.ndarray, adjoint: np.ndarray) -> None:
        """Factor the system in V and t, bordered by the ties and, in a second run, by the constraints."""
        self._adjoint = adjoint + self._ties.adjoint(self.tie)
        self._theta = theta.copy()
        self._theta[self._where] = 0.0
        self._scale()
        self._P = P = self._inverse.T @ self._inverse
        p, size = len(self.V), self.V.size
        P11, P12, P22 = P[:p, :p], P[:p, p:], P[p:, p:]
        matrix = np.empty((size + 1, size + 1))
        inner = np.multiply(P11[:, None, :, None], P22[None, :, None, :])
        inner += P12[:, None, None, :] * P12.T[None, :, :, None]
        matrix[:size, :size] = 2.0 * inner.reshape(size, size) + self._normal.form(self._theta)
        matrix[size, :size] = matrix[:size, size] = 2.0 * (P11 @ P12 + P12 @ P22).ravel()
        matrix[size, size] = float((P * P).sum())
        self._compliance = np.append(np.zeros(len(self._ties.basis)), 1.0 / theta[self._where])
        self._bordered = bordered_solver(factor(matrix), self._rows, self._compliance)

    def _solve(self, R: np.ndarray, a: float, lag: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
        x, multipliers = self._bordered(np.append(R.ravel(), a), lag)
        return self._ties.project(x[:-1].reshape(R.shape)), float(x[-1]), multipliers

    def _lack(
        self, R: np.ndarray, a: float, lag: np.ndarray, V: np.ndarray, t: float, multipliers: np.ndarray
    ) -> tuple[np.ndarray, float, np.ndarray]:
        reduced, p, rows = self._setting.reduced, len(V), self._rows[:, :-1]
        curvature = self._P @ _block_matrix(V, t) @ self._P
        adjoint = reduced.adjoint(self._theta * reduced.apply(V)) - (rows.T @ multipliers).reshape(V.shape)
        missing = lag - rows @ V.ravel() - self._compliance * multipliers
        return R - 2.0 * curvature[:p, p:] - adjoint, a - float(np.trace(curvature)), missing

    def direction(self, centre: float, before: ConeMove | None, g: np.ndarray) -> ConeMove:
        """Solve for the direction."""
        p, count = len(self.V), len(self._ties.basis)
        target = self._target(centre, before)
        goal = self._inverse.T @ target @ self._inverse
        lack = 2.0 * self.Z[:p, p:] + self._adjoint
        lack_t = 1.0 - float(np.trace(self.Z))
        reduced = self._setting.reduced
        push = reduced.adjoint(self._theta * g)
        lag = np.append(np.zeros(count), g[self._where])
        rhs = lack + 2.0 * goal[:p, p:] + push, float(np.trace(goal)) - lack_t, lag
        V, t, multipliers = refined(self._solve, partial(self._lack, *rhs), rhs)
        dual = self._theta * (g - reduced.apply(V))
        dual[self._where] = multipliers[count:]
        scaled_x = self._inverse @ _block_matrix(V, t) @ self._inverse.T
        return ConeMove(V, multipliers[:count], dual, t, scaled_x, target - scaled_x)

    def advance(self, move: ConeMove, primal: float, dual: float) -> None:
        """Take the step."""
        self.V, self.t = self.V + primal * move.V, self.t + primal * move.free
        self.X = _block_matrix(self.V, self.t)
        Z = self.Z + dual * (self._inverse.T @ move.scaled_z @ self._inverse)
        self.Z = 0.5 * (Z + Z.T)
        self.tie = self.tie + dual * move.tie

    def finish(self, run: InteriorPointRun, last: bool) -> bool:
        """Align the multipliers with V."""
        return run.correct(last, lambda: (self.V, aligned_multipliers(run.inner, run.method)))


def _block_matrix(W: np.ndarray, t: float) -> np.ndarray:
    p, r = W.shape
    return np.block([[t * np.eye(p), W], [W.T, t * np.eye(r)]])
