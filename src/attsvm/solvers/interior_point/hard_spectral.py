r"""Interior point for the spectral norm.

Minimise t subject to :math:`X = [[tI, W], [W^\top, tI]] \succeq 0` and :math:`A(W) - s = c`; the dual slack is a Z
with trace one whose off-diagonal block is :math:`-\tfrac{1}{2} A^\top\lambda`, so that the nuclear norm of
:math:`A^\top\lambda` is at most one. With the Nesterov-Todd scaling G (G Z G = X; Todd, Toh and Tutuncu, SIAM J.
Optim. 8, 1998) and :math:`P = G^{-1}`, eliminating Z and the multipliers leaves a system in (W, t) with the matrix

.. math:: dW \mapsto 2\,(P_{11}\, dW\, P_{22} + P_{12}\, dW^\top P_{12}) + A^\top\Theta A(dW),

bordered by :math:`2(P_{11}P_{12} + P_{12}P_{22})` for t. X is a function of (W, t), so a feasible W stays feasible to
rounding; equal scores of tied tokens are kept by solving on the orthogonal complement of their rows. The problem lives
in the span of the data (p, r), whose product is the size of the system.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular

from attsvm.core.normal_matrix import NormalMatrix
from attsvm.core.norms import SPECTRAL, nuclear
from attsvm.core.reduction import Reduced
from attsvm.solvers.common import cholesky as equilibrated
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.evaluation import report
from attsvm.solvers.common.phase_one import open_with_frobenius
from attsvm.solvers.common.ties import Ties
from attsvm.solvers.warm.spectral import pursue_spectral

MAX_STEPS = 100
STEP_BACK = 0.97
STALLED = 12
REFINEMENTS = 10
CORRECTIONS = 3

Solver = Callable[[np.ndarray, float], tuple[np.ndarray, float, np.ndarray]]


def solve_spectral(reduced: Reduced, control: Control, start: np.ndarray | None) -> np.ndarray | None:
    """Solve, leaving W and multipliers with ``control``.

    Parameters
    ----------
    reduced : Reduced
    control : Control
    start : ndarray, shape (n, T), optional
        Multipliers of a similar problem, whose W is ``control.earlier``; an interior point takes no start.

    Returns
    -------
    ndarray or None
        Multipliers that prove infeasibility, when they do.
    """
    if start is not None and control.earlier is not None:
        control.method = "warm face Newton"
        if pursue_spectral(reduced, control.earlier, start, control):
            return None
    opening = open_with_frobenius(reduced, control)
    if opening.W is None or opening.dual is None:
        return opening.certificate
    control.method += ", interior point"
    if report(reduced, SPECTRAL, opening.W, opening.dual, control):
        return None
    method = SpectralInteriorPoint(reduced, opening.W)
    best, waited = np.inf, 0
    for _ in range(MAX_STEPS):
        gap = control.state.gap
        best, waited = (gap, 0) if gap < 0.9 * best else (best, waited + 1)
        if waited > STALLED or not method.step():
            break
        if report(reduced, SPECTRAL, method.W, method.scattered_dual(), control):
            break
        if method.complementarity < control.tol and report(
            reduced, SPECTRAL, method.W, method.corrected_dual(), control, steps=0
        ):
            break
    return None


@dataclass
class Point:
    """W (p, r), its bound t, the dual slack Z (p + r, p + r), slacks and multipliers (n, T), the ties' nu (k,)."""

    W: np.ndarray
    t: float
    Z: np.ndarray
    slack: np.ndarray
    dual: np.ndarray
    tie: np.ndarray


class SpectralInteriorPoint:
    """Predictor-corrector steps for one problem.

    Parameters
    ----------
    reduced : Reduced
    W : ndarray, shape (p, r)
        Feasible, smallest margin one.
    """

    def __init__(self, reduced: Reduced, W: np.ndarray) -> None:
        self.reduced = reduced
        self.system = TiedNormal(reduced)
        p, r = reduced.shape
        W = self.system.project(W)
        self._unit = float(np.linalg.norm(W, 2))
        V = 1.5 * W / self._unit  # strictly feasible, of size one
        inner = reduced.rejected
        self._count = p + r + int(inner.sum())
        slack = np.where(inner, reduced.apply(V) - 1.0 / self._unit, 1.0)
        dual = np.where(inner, 1.0 / slack, 0.0)
        dual *= 0.25 / (nuclear(reduced.adjoint(dual)) * (p + r))
        Z = np.eye(p + r) / (p + r)
        Z[:p, p:] = -0.5 * reduced.adjoint(dual)
        Z[p:, :p] = Z[:p, p:].T
        self.point = Point(V, 2.0 * float(np.linalg.norm(V, 2)), Z, slack, dual, np.zeros(len(self.system.basis)))

    @property
    def W(self) -> np.ndarray:
        """The primal iterate in the problem's scale."""
        return self.system.project(self.point.W) * self._unit

    def scattered_dual(self) -> np.ndarray:
        """Multipliers of every constraint, (n, T)."""
        return self.point.dual + self.system.tie_multipliers(self.point.tie)

    @property
    def complementarity(self) -> float:
        """The gap that the iterate would have if it satisfied the linear equations exactly."""
        x, inner = self.point, self.reduced.rejected
        cones = x.t * float(np.trace(x.Z)) + 2.0 * float((x.W * x.Z[: len(x.W), len(x.W) :]).sum())
        return (cones + float((x.slack * x.dual)[inner].sum())) / x.t

    def corrected_dual(self) -> np.ndarray:
        """Multipliers (n, T) whose pull has the singular vectors and the rank that W allows.

        At the optimum the singular values of A^T lam vanish where those of W stay below its norm. The dual norm sums
        them, so rounding there costs the bound its first digits. The smallest relative change of the multipliers of
        active constraints that aligns A^T lam with the singular vectors of W, and then Newton's method on what is left
        outside its own leading ones, are least-squares problems.
        """
        x, inner = self.point, self.reduced.rejected
        rows, columns = np.nonzero(inner & (x.dual > x.slack))
        delta, queries = self.reduced.delta[rows, columns], self.reduced.queries[rows]
        basis = self.system.basis.reshape(-1, *x.W.shape)
        scale = np.append(x.dual[rows, columns], np.full(len(x.tie), x.dual.max()))
        values = np.append(x.dual[rows, columns], x.tie)
        U, sigma, Vt = np.linalg.svd(x.W)
        pulled = delta.T @ (x.dual[rows, columns][:, None] * queries) + self.system.pull(x.tie)
        weight = np.linalg.svd(pulled, compute_uv=False)
        k = max(1, int(np.count_nonzero(1.0 - sigma / x.t < weight / weight.sum())))
        outside = np.ones(x.W.shape, dtype=bool)
        outside[:k, :k] = False
        for _ in range(CORRECTIONS):
            turned = np.concatenate([(delta @ U)[:, :, None] * (queries @ Vt.T)[:, None, :], U.T @ basis @ Vt.T])
            trace = np.trace(turned[:, :k, :k], axis1=1, axis2=2)
            matrix = np.column_stack([turned[:, outside], trace]) * scale[:, None]
            target = np.append(np.zeros(matrix.shape[1] - 1), 1.0)
            values = values + scale * np.linalg.lstsq(matrix.T, target - (values / scale) @ matrix, rcond=None)[0]
            pulled = delta.T @ (values[: len(rows), None] * queries) + self.system.pull(values[len(rows) :])
            U, _, Vt = np.linalg.svd(pulled)
            outside[:k], outside[:, :k] = False, False  # errors of the leading vectors themselves enter squared
        dual = np.zeros_like(x.dual)
        dual[rows, columns] = values[: len(rows)]
        return dual + self.system.tie_multipliers(values[len(rows) :])

    def step(self) -> bool:
        """Take one predictor-corrector step; False when rounding ends the progress."""
        x, inner = self.point, self.reduced.rejected
        p = self.reduced.shape[0]
        try:
            lower_x = np.linalg.cholesky(_completed(x.W, x.t))
            lower_z = np.linalg.cholesky(x.Z)
            _, scaled, right = np.linalg.svd(lower_z.T @ lower_x)
            T = (lower_x @ right.T) / np.sqrt(scaled)  # T^-1 X T^-T = T^T Z T = diag(scaled)
            inverse = (np.sqrt(scaled)[:, None] * right) @ solve_triangular(lower_x, np.eye(len(T)), lower=True)
            P = inverse.T @ inverse
            theta = np.where(inner, x.dual / x.slack, 0.0)
            solve = self.system.factor(P, theta)
        except (np.linalg.LinAlgError, LinAlgError):
            return False
        mu = (float(scaled @ scaled) + float((x.slack * x.dual)[inner].sum())) / self._count
        sums = scaled[:, None] + scaled[None, :]
        lack_t = 1.0 - float(np.trace(x.Z))
        lack_w = 2.0 * x.Z[:p, p:] + self.reduced.adjoint(x.dual) + self.system.pull(x.tie)

        def direction(centre: float, curved: np.ndarray, bent: np.ndarray) -> Direction:
            target = 2.0 * (np.diag(centre - scaled**2) - curved) / sums  # scaled dX + scaled dZ
            pushed = inverse.T @ target @ inverse
            push = np.where(inner, (centre - bent) / x.slack - x.dual, 0.0)
            rhs = lack_w + 2.0 * pushed[:p, p:] + self.reduced.adjoint(push)
            W, t, tie = solve(rhs, float(np.trace(pushed)) - lack_t)
            moved = np.where(inner, self.reduced.apply(W), 0.0)
            scaled_x = inverse @ _completed(W, t) @ inverse.T
            return Direction(W, t, scaled_x, target - scaled_x, moved, push - theta * moved, tie)

        affine = direction(0.0, np.zeros_like(P), np.zeros_like(x.dual))
        primal, dual = self._lengths(scaled, affine)
        after = (
            float(np.sum((np.diag(scaled) + primal * affine.scaled_x) * (np.diag(scaled) + dual * affine.scaled_z)))
            + float(((x.slack + primal * affine.slack) * (x.dual + dual * affine.dual))[inner].sum())
        ) / self._count
        product = affine.scaled_x @ affine.scaled_z
        centre = mu * min(1.0, max(after / mu, 0.0)) ** 3
        move = direction(centre, 0.5 * (product + product.T), affine.slack * affine.dual)
        if not (np.isfinite(move.W).all() and np.isfinite(move.dual).all() and np.isfinite(move.scaled_z).all()):
            return False
        primal, dual = self._lengths(scaled, move)
        primal, dual = min(1.0, STEP_BACK * primal), min(1.0, STEP_BACK * dual)
        Z = x.Z + dual * (inverse.T @ move.scaled_z @ inverse)
        self.point = Point(
            x.W + primal * move.W,
            x.t + primal * move.t,
            0.5 * (Z + Z.T),
            np.where(inner, x.slack + primal * move.slack, 1.0),
            x.dual + dual * move.dual,
            x.tie + dual * move.tie,
        )
        return max(primal, dual) > 1e-6

    def _lengths(self, scaled: np.ndarray, move: Direction) -> tuple[float, float]:
        """Largest primal and dual steps that stay in the cones."""
        root = np.sqrt(scaled)
        scale = root[:, None] * root[None, :]
        inner = self.reduced.rejected
        out = []
        sides = ((move.scaled_x, self.point.slack, move.slack), (move.scaled_z, self.point.dual, move.dual))
        for cone, value, change in sides:
            smallest = float(np.linalg.eigvalsh(0.5 * (cone + cone.T) / scale)[0])
            step = -1.0 / smallest if smallest < 0 else 10.0
            shrinking = inner & (change < 0)
            if shrinking.any():
                step = min(step, float((-value[shrinking] / change[shrinking]).min()))
            out.append(step)
        return out[0], out[1]


@dataclass
class Direction:
    """A step of W and t, of X and Z in scaled coordinates, and of slacks, multipliers and nu."""

    W: np.ndarray
    t: float
    scaled_x: np.ndarray
    scaled_z: np.ndarray
    slack: np.ndarray
    dual: np.ndarray
    tie: np.ndarray


class TiedNormal(Ties):
    """Factors the Newton matrix of the module's derivation, ties eliminated.

    Parameters
    ----------
    reduced : Reduced
    """

    def __init__(self, reduced: Reduced) -> None:
        super().__init__(reduced)
        self._normal = NormalMatrix(reduced)

    def factor(self, P: np.ndarray, theta: np.ndarray) -> Solver:
        """Factor for P (p + r, p + r) and theta (n, T); the result maps (R (p, r), a) to dW, dt and nu.

        Raises
        ------
        scipy.linalg.LinAlgError
            When rounding makes the matrix indefinite.
        """
        p, r = self.shape
        size = p * r
        P11, P12, P22 = P[:p, :p], P[:p, p:], P[p:, p:]
        matrix = np.empty((size + 1, size + 1))
        inner = np.multiply(P11[:, None, :, None], P22[None, :, None, :])
        inner += P12[:, None, None, :] * P12.T[None, :, :, None]
        matrix[:size, :size] = 2.0 * inner.reshape(size, size) + self._normal.form(theta)
        matrix[size, :size] = matrix[:size, size] = 2.0 * (P11 @ P12 + P12 @ P22).ravel()
        matrix[size, size] = float((P * P).sum())
        inverse = equilibrated.factor(matrix)
        wide = np.hstack([self.basis, np.zeros((len(self.basis), 1))])  # (k, p r + 1)
        lifted = inverse(wide.T)
        small = cho_factor(wide @ lifted, lower=True, check_finite=False) if len(wide) else None

        def once(R: np.ndarray, a: float) -> tuple[np.ndarray, float, np.ndarray]:
            x = inverse(np.append(R.ravel(), a))
            tie = np.zeros(0)
            if small is not None:
                tie = -cho_solve(small, wide @ x, check_finite=False)
                x = x + lifted @ tie
            return self.project(x[:size].reshape(p, r)), float(x[size]), tie

        def solve(R: np.ndarray, a: float) -> tuple[np.ndarray, float, np.ndarray]:
            W, t, tie = once(R, a)
            best = np.inf
            for _ in range(REFINEMENTS):
                curved = P @ _completed(W, t) @ P
                pulled = self._reduced.adjoint(theta * self._reduced.apply(W)) - self.pull(tie)
                left, left_t = R - 2.0 * curved[:p, p:] - pulled, a - float(np.trace(curved))
                error = float(np.abs(left).max()) + abs(left_t)
                if not error < 0.5 * best:
                    break
                best = error
                more, more_t, more_tie = once(left, left_t)
                W, t, tie = W + more, t + more_t, tie + more_tie
            return W, t, tie

        return solve


def _completed(W: np.ndarray, t: float) -> np.ndarray:
    p, r = W.shape
    return np.block([[t * np.eye(p), W], [W.T, t * np.eye(r)]])
