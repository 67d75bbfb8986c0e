r"""Interior point for the nuclear norm.

The nuclear norm is half the trace of the smallest completion of W to a positive semidefinite X = [[P, W], [W^T, Q]];
the dual slack is Z = 1/2 [[I, -M], [-M^T, I]] with :math:`M = A^\top\lambda` (Fazel, Hindi and Boyd, ACC 2001). With
the Nesterov-Todd scaling G (G Z G = X; Todd, Toh and Tutuncu, SIAM J. Optim. 8, 1998) a step in the multipliers solves

.. math:: \left(\tfrac12 \mathcal{K} + \mathrm{diag}(s/\lambda)\right) d\lambda = \mathrm{rhs}, \qquad
   \mathcal{K}_{kl} = (\delta_k^\top G_{11} \delta_l)(z_k^\top G_{22} z_l) + (\delta_k^\top G_{12} z_l)(\delta_l^\top
   G_{12} z_k),

so that the matrix of a general semidefinite solver, with its (p + r)^2/2 unknowns, becomes two entrywise products of
small Gram matrices. Z is a function of the multipliers, so dual feasibility is exact in every iterate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from attsvm.core.reduction import Reduced

STEP_BACK = 0.95
TIE_RIDGE = 1e-12
RIDGE_TRIES = 4
EPS = float(np.finfo(float).eps)


@dataclass
class Point:
    """An interior iterate on a working set of constraints.

    Attributes
    ----------
    X : ndarray, shape (p + r, p + r)
    slack, dual : ndarray, shape (m,)
    """

    X: np.ndarray
    slack: np.ndarray
    dual: np.ndarray


class NuclearInteriorPoint:
    """Predictor-corrector steps on the constraints (rows, columns) of a reduced problem.

    Parameters
    ----------
    reduced : Reduced
    rows, columns : ndarray of int, shape (m,)
        The working set; every equality must be in it.
    """

    def __init__(self, reduced: Reduced, rows: np.ndarray, columns: np.ndarray) -> None:
        self.reduced = reduced
        self._gather(rows, columns)
        p, r = reduced.shape
        self._size = p + r
        dual = self._cost / np.maximum(reduced.lengths[rows, columns], 1e-300)
        dual *= 0.5 / max(np.linalg.norm(self._adjoint(dual), 2), 1e-300)
        # On the central path X = mu Z^-1 and s = mu / lam; mu is the scale at which slacks are of the size of margins.
        mu = float(dual[~self._free].max())
        slack = np.where(self._free, 1.0, mu / np.where(self._free, 1.0, dual))
        self.point = Point(mu * np.linalg.inv(self._slack_matrix(dual)), slack, dual)

    def _gather(self, rows: np.ndarray, columns: np.ndarray) -> None:
        self.rows, self.columns = rows, columns
        self._delta = self.reduced.delta[rows, columns]  # (m, p)
        self._queries = self.reduced.queries[rows]  # (m, r)
        self._free = self.reduced.tied[rows, columns]
        self._cost = np.where(self._free, 0.0, 1.0)

    def extend(self, rows: np.ndarray, columns: np.ndarray) -> None:
        """Let inequalities join the working set without leaving the interior."""
        known = len(self.rows)
        inner = ~self._free
        mu = float((self.point.slack * self.point.dual)[inner].mean())
        self._gather(np.concatenate([self.rows, rows]), np.concatenate([self.columns, columns]))
        slack = np.maximum(self._apply(self.W)[known:] - 1.0, 0.1)
        joining = mu / slack
        while True:
            dual = np.concatenate([self.point.dual, joining])
            if np.linalg.norm(self._adjoint(dual), 2) < 1.0:
                break
            # The old multipliers lie inside the dual ball, so small enough new ones do too.
            joining *= 0.1
        self.point = Point(self.point.X, np.concatenate([self.point.slack, slack]), dual)

    def _apply(self, W: np.ndarray) -> np.ndarray:
        return np.einsum("ka,ka->k", self._delta @ W, self._queries)

    def _adjoint(self, dual: np.ndarray) -> np.ndarray:
        return self._delta.T @ (dual[:, None] * self._queries)

    def _slack_matrix(self, dual: np.ndarray) -> np.ndarray:
        p, r = self.reduced.shape
        pulled = self._adjoint(dual)
        return 0.5 * np.block([[np.eye(p), -pulled], [-pulled.T, np.eye(r)]])

    @property
    def W(self) -> np.ndarray:
        """The primal iterate, (p, r)."""
        p = self.reduced.shape[0]
        return self.point.X[:p, p:]

    def scattered_dual(self) -> np.ndarray:
        """Multipliers on all constraints, (n, T)."""
        dual = np.zeros(self.reduced.rejected.shape)
        dual[self.rows, self.columns] = self.point.dual
        return dual

    def step(self) -> bool:
        """Take one predictor-corrector step; False when rounding ends the progress."""
        p = self.reduced.shape[0]
        X, s, lam = self.point.X, self.point.slack, self.point.dual
        free, cost = self._free, self._cost
        inner = ~free
        try:
            lower_x = np.linalg.cholesky(X)
            lower_z = np.linalg.cholesky(self._slack_matrix(lam))
        except np.linalg.LinAlgError:
            return False
        _, scaled, right = np.linalg.svd(lower_z.T @ lower_x)
        T = (lower_x @ right.T) / np.sqrt(scaled)  # T^-1 X T^-T = T^T Z T = diag(scaled)
        G = T @ T.T
        left, cross = self._delta @ G[:p, :p], self._delta @ G[:p, p:]  # (m, p), (m, r)
        mixed = cross @ self._queries.T  # (m, m): delta_k G12 z_l
        kernel = (left @ self._delta.T) * ((self._queries @ G[p:, p:]) @ self._queries.T) + mixed * mixed.T
        divisor = np.where(free, 1.0, lam)
        ratio = np.where(free, 0.0, s / divisor)
        kernel *= 0.5
        kernel[np.diag_indices(len(lam))] += ratio + TIE_RIDGE * free * np.trace(kernel) / len(lam)
        try:
            factor = _factor(kernel)
        except LinAlgError:
            return False
        primal_residual = np.where(free, 0.0, cost + s) - self._apply(X[:p, p:])
        count = self._size + int(inner.sum())
        mu = (float(scaled @ scaled) + float(s[inner] @ lam[inner])) / count
        sums = scaled[:, None] + scaled[None, :]

        def direction(centre: float, curved: np.ndarray, bent: np.ndarray):
            target = 2.0 * (np.diag(centre - scaled**2) - curved) / sums  # scaled dX + scaled dZ
            moved = T @ target @ T.T
            q = np.where(free, 0.0, (centre - s * lam - bent) / divisor)
            d_dual = cho_solve(factor, primal_residual - self._apply(moved[:p, p:]) + q, check_finite=False)
            pulled = self._adjoint(d_dual)
            d_z = np.zeros_like(X)
            d_z[:p, p:], d_z[p:, :p] = -0.5 * pulled, -0.5 * pulled.T
            d_slack = np.where(free, 0.0, q - ratio * d_dual)
            scaled_z = T.T @ d_z @ T
            scaled_x = target - scaled_z
            return scaled_x, scaled_z, d_slack, d_dual

        zero = np.zeros_like(X)
        scaled_x, scaled_z, d_slack, d_dual = direction(0.0, zero, np.zeros_like(s))
        primal, dual = self._steps(scaled, scaled_x, scaled_z, d_slack, d_dual)
        after = (
            float(np.sum((np.diag(scaled) + primal * scaled_x) * (np.diag(scaled) + dual * scaled_z)))
            + float(((s + primal * d_slack) * (lam + dual * d_dual))[inner].sum())
        ) / count
        centre = mu * min(1.0, max(after / mu, 0.0) ** 3)
        product = scaled_x @ scaled_z
        scaled_x, scaled_z, d_slack, d_dual = direction(
            centre, 0.5 * (product + product.T), np.where(free, 0.0, d_slack * d_dual)
        )
        if not (np.isfinite(d_dual).all() and np.isfinite(scaled_x).all()):
            return False
        primal, dual = self._steps(scaled, scaled_x, scaled_z, d_slack, d_dual)
        primal, dual = min(1.0, STEP_BACK * primal), min(1.0, STEP_BACK * dual)
        moved = T @ scaled_x @ T.T
        X = X + primal * moved
        self.point = Point(0.5 * (X + X.T), s + primal * d_slack, lam + dual * d_dual)
        return max(primal, dual) > 1e-6

    def _steps(self, scaled, scaled_x, scaled_z, d_slack, d_dual) -> tuple[float, float]:
        """Largest primal and dual steps that stay in the cones."""
        root = np.sqrt(scaled)
        scale = root[:, None] * root[None, :]
        out = []
        for cone, value, change in ((scaled_x, self.point.slack, d_slack), (scaled_z, self.point.dual, d_dual)):
            smallest = float(np.linalg.eigvalsh(cone / scale)[0])
            step = -1.0 / smallest if smallest < 0 else 10.0
            shrinking = ~self._free & (change < 0)
            if shrinking.any():
                step = min(step, float((-value[shrinking] / change[shrinking]).min()))
            out.append(step)
        return out[0], out[1]


def _factor(kernel: np.ndarray) -> tuple[np.ndarray, bool]:
    """Cholesky factor, with a ridge at rounding level where dependent constraints leave the matrix indefinite."""
    size = len(kernel)
    ridge = 0.0
    for _ in range(RIDGE_TRIES):
        try:
            return cho_factor(kernel + ridge * np.eye(size) if ridge else kernel, lower=True, check_finite=False)
        except LinAlgError:
            ridge = 10.0 * ridge if ridge else EPS * float(np.trace(kernel)) / size
    raise LinAlgError("no ridge at rounding level makes the matrix definite")
