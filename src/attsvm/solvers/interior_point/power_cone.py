r"""Entrywise l_p norms, 1 < p < inf, in the interior point: one power cone an entry.

:math:`\|V\|_p \le t` when :math:`\sum_k r_k = t` and :math:`|v_k| \le r_k^{1/p} t^{1-1/p}`, the power cone of
:math:`s_k = (r_k, t, v_k)` (Chares, thesis, Louvain 2009). Its dual variables :math:`z_k = (\rho_k, \omega_k, y_k)`
obey :math:`\rho_k = \eta`, :math:`\eta + \sum\omega_k = 1` and :math:`y = -A^\top\lambda - B^\top\nu`. With the barrier

.. math:: f(s) = -\log(r^{2/p}t^{2-2/p} - v^2) - (1 - 1/p)\log r - \tfrac1p\log t,

its gradient :math:`-\tilde z` at s and its conjugate's :math:`-\tilde s` at z, the scaling H is the quasi-Newton update
that maps s to z and :math:`\tilde s` to :math:`\tilde z` (Tuncel, Found. Comput. Math. 1, 2001; Dahl and Andersen,
Math. Program. 194, 2022). Eliminating r leaves a diagonal in V, bordered by t and :math:`\eta`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.solvers.common.diagonal_normal import DiagonalNormal
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.interior_point.terms import Move

CONJUGATE_STEPS = 60
FULL, RESOLUTION, SHORTEST = 1.05, 0.02, 1e-12
# Where s and z are this near the central path the update is not defined to rounding, and the Hessian takes its place.
CENTRAL = 1e-8
R, T, V = range(3)


@dataclass
class ConesMove(Move):
    """The same with s and z (3, p, r) and eta."""

    s: np.ndarray
    z: np.ndarray
    eta: float


class PowerConeTerm:
    """The entrywise l_p norm.

    Parameters
    ----------
    setting : Setting
        With an entrywise norm, 1 < p < inf.
    """

    joint = True

    def __init__(self, setting: Setting) -> None:
        p = setting.terms.norm.power
        assert p is not None
        self._alpha = 1.0 / p
        self.degree = 3 * int(np.prod(setting.reduced.shape))
        self.extend(setting)

    def extend(self, setting: Setting) -> None:
        """Take the constraints of another setting."""
        self._setting, self._system = setting, DiagonalNormal(setting.reduced)

    @property
    def V(self) -> np.ndarray:
        """The primal iterate, (p, r)."""
        return self.s[V]

    def start(self, V: np.ndarray, mu: float) -> None:
        """Begin at V with room in every cone."""
        p = 1.0 / self._alpha
        size = self._setting.terms.norm.value(V)
        t = 2.0 * size + mu
        part = t * (np.abs(V) / t) ** p
        r = part + (t - float(part.sum())) / V.size
        self.s = np.stack([r, np.full(V.shape, t), V])
        z = self._shadow_dual(self.s)
        self.z = z / float(z[T].sum() + z[R].mean())
        self.eta = float(self.z[R].mean())
        self.tie = np.zeros(len(self._system.basis))

    def complementarity(self) -> float:
        """Inner product of s and z."""
        return float((self.s * self.z).sum())

    def _room(self, s: np.ndarray) -> np.ndarray:
        """Return the argument of the barrier's logarithm over its first part: positive inside."""
        a = self._alpha
        return 1.0 - (s[V] / (s[R] ** a * s[T] ** (1.0 - a))) ** 2

    def _dual_room(self, z: np.ndarray) -> np.ndarray:
        a = self._alpha
        return 1.0 - (z[V] / ((z[R] / a) ** a * (z[T] / (1.0 - a)) ** (1.0 - a))) ** 2

    def _shadow_dual(self, s: np.ndarray) -> np.ndarray:
        a, room = self._alpha, self._room(s)
        phi = s[R] ** (2.0 * a) * s[T] ** (2.0 - 2.0 * a)
        return np.stack(
            [(2.0 * a / room + 1.0 - a) / s[R], (2.0 * (1.0 - a) / room + a) / s[T], -2.0 * s[V] / (phi * room)]
        )

    def _shadow_primal(self, z: np.ndarray) -> np.ndarray:
        """Solve -grad f(s) = z: one equation an entry in c = -v y, by Newton in log c."""
        a = self._alpha
        square = np.maximum(z[V] ** 2, 1e-300)
        level = 2.0 * a * np.log(z[R]) + 2.0 * (1.0 - a) * np.log(z[T]) - np.log(square)
        top = 2.0 * a * np.log(1.0 + a) + 2.0 * (1.0 - a) * np.log(2.0 - a) - level
        c = np.expm1(0.5 * np.log1p(np.exp(top)))
        for _ in range(CONJUGATE_STEPS):
            left, right = 1.0 + a + a * c, 2.0 - a + (1.0 - a) * c
            F = 2.0 * a * np.log(left) + 2.0 * (1.0 - a) * np.log(right) - np.log(c) - np.log(2.0 + c) - level
            slope = 2.0 * a**2 / left + 2.0 * (1.0 - a) ** 2 / right - 1.0 / c - 1.0 / (2.0 + c)
            step = -F / slope
            c = np.maximum(c + step, 0.1 * c)
            if float(np.abs(step / c).max()) < 1e-13:
                break
        v = np.where(z[V] != 0, -c / np.where(z[V] != 0, z[V], 1.0), 0.0)
        return np.stack([(1.0 + a + a * c) / z[R], (2.0 - a + (1.0 - a) * c) / z[T], v])

    def _hessian(self, s: np.ndarray) -> np.ndarray:
        """Return the Hessian of the barrier, (3, 3, p, r)."""
        a = self._alpha
        phi, room = s[R] ** (2.0 * a) * s[T] ** (2.0 - 2.0 * a), self._room(s)
        psi = phi * room
        first = np.stack([2.0 * a * phi / s[R], 2.0 * (1.0 - a) * phi / s[T], -2.0 * s[V]]) / psi  # grad psi / psi
        H = first[:, None] * first[None]
        H[R, R] -= 2.0 * a * (2.0 * a - 1.0) * phi / s[R] ** 2 / psi - (1.0 - a) / s[R] ** 2
        H[T, T] -= 2.0 * (1.0 - a) * (1.0 - 2.0 * a) * phi / s[T] ** 2 / psi - a / s[T] ** 2
        mixed = 4.0 * a * (1.0 - a) * phi / (s[R] * s[T]) / psi
        H[R, T] -= mixed
        H[T, R] -= mixed
        H[V, V] += 2.0 / psi
        return H

    def _correction(self, before: ConesMove) -> np.ndarray:
        """Half the third derivative of the barrier along the predictor's ds and the ds that its dz stands for."""
        s, a = self.s, self._alpha
        unit = np.stack([s[R], s[T], np.ones_like(s[R])])
        x = before.s / unit
        A, B = 2.0 * a, 2.0 - 2.0 * a
        phi = s[R] ** A * s[T] ** B
        psi = phi * self._room(s)
        slope = np.stack([A * phi, B * phi, -2.0 * s[V]]) / psi
        mixed = A * B * phi / psi
        left, right = A * (A - 1.0) * phi / psi, B * (B - 1.0) * phi / psi

        # The Hessian is M + slope slope^T, M well-conditioned where the sum is not (Sherman and Morrison).
        first, last = 1.0 - a - left, a - right
        determinant = first * last - mixed**2

        def solved(w: np.ndarray) -> np.ndarray:
            return np.stack(
                [
                    (last * w[R] + mixed * w[T]) / determinant,
                    (first * w[T] + mixed * w[R]) / determinant,
                    0.5 * psi * w[V],
                ]
            )

        u, along = solved(before.z * unit), solved(slope)
        u = u - along * ((slope * u).sum(axis=0) / (1.0 + (slope * along).sum(axis=0)))

        def curved(w: np.ndarray) -> np.ndarray:
            return np.stack([left * w[R] + mixed * w[T], mixed * w[R] + right * w[T], -2.0 / psi * w[V]])

        both = x[R] * u[T] + x[T] * u[R]
        twice = np.stack(
            [
                left * (A - 2.0) * x[R] * u[R] + left * B * both + mixed * (B - 1.0) * x[T] * u[T],
                mixed * (A - 1.0) * x[R] * u[R] + right * A * both + right * (B - 2.0) * x[T] * u[T],
                np.zeros_like(phi),
            ]
        )
        along_x, along_u, bent = (slope * x).sum(axis=0), (slope * u).sum(axis=0), curved(u)
        third = -twice + (x * bent).sum(axis=0) * slope + along_x * bent + along_u * curved(x)
        third -= 2.0 * along_x * along_u * slope
        third[R] -= 2.0 * (1.0 - a) * x[R] * u[R]
        third[T] -= 2.0 * a * x[T] * u[T]
        return 0.5 * third / unit

    def _scaling(self) -> np.ndarray:
        s, z = self.s, self.z
        shadow_z, shadow_s = self._shadow_dual(s), self._shadow_primal(z)
        inner = (s * z).sum(axis=0)
        mu, shadow_mu = inner / 3.0, (shadow_s * shadow_z).sum(axis=0) / 3.0
        hessian = self._hessian(s)
        dz, ds = z - mu * shadow_z, s - mu * shadow_s
        apart = (dz * ds).sum(axis=0)
        turned = np.einsum("ab...,b...->a...", hessian, shadow_s)
        excess = turned - shadow_mu * shadow_z
        curvature = (shadow_s * turned).sum(axis=0) - 3.0 * shadow_mu**2
        good = (np.abs(mu * shadow_mu - 1.0) > CENTRAL) & (np.abs(curvature) > 1e-14) & (apart > 0)
        curvature, apart = np.where(good, curvature, 1.0), np.where(good, apart, 1.0)
        rest = hessian - shadow_z[:, None] * shadow_z[None] / 3.0 - excess[:, None] * excess[None] / curvature
        axis = np.cross(s, shadow_s, axis=0)
        axis /= np.maximum(np.sqrt((axis**2).sum(axis=0)), 1e-300)
        length = mu * np.sqrt((rest**2).sum(axis=(0, 1)))
        H = z[:, None] * z[None] / inner + dz[:, None] * dz[None] / apart + length * axis[:, None] * axis[None]
        return np.where(good, H, mu * hessian)

    def factor(self, theta: np.ndarray) -> None:
        """Factor diag(h) + A^T Theta A and what borders it."""
        self._theta = theta
        H = self._H = self._scaling()
        self._m, self._n = H[V, R] / H[R, R], H[T, R] / H[R, R]
        self._b = H[V, T] - self._m * H[R, T]
        h = np.maximum(H[V, V] - self._m * H[R, V], 1e-16 * H[V, V])
        self._solve = self._system.factor(h, theta)
        self._along_eta, self._along_t = self._solve(self._m), self._solve(self._b)
        q = float((H[T, T] - self._n * H[R, T]).sum())
        spread = float(self._n.sum()) + 1.0
        (x_eta, _), (x_t, _) = self._along_eta, self._along_t
        self._border = np.array(
            [
                [spread - float((self._b * x_eta).sum()), float((self._b * x_t).sum()) - q],
                [-float((1.0 / H[R, R]).sum()) - float((self._m * x_eta).sum()), float((self._m * x_t).sum()) - spread],
            ]
        )
        self._gradient = -self._shadow_dual(self.s)

    def direction(self, centre: float, before: ConesMove | None, g: np.ndarray, adjoint: np.ndarray) -> ConesMove:
        """Solve for the direction."""
        H, s, z = self._H, self.s, self.z
        c = -z - centre * self._gradient
        if before is not None:
            c = c + self._correction(before)
        off = self.eta - z[R]
        start = c[R] - off
        lack = z[V] + adjoint + self._system.adjoint(self.tie)
        rhs = lack + self._setting.reduced.adjoint(self._theta * g) + c[V] - self._m * start
        X, tie = self._solve(rhs)
        right = np.array(
            [
                1.0 - self.eta - float(z[T].sum()) - float((c[T] - self._n * start).sum()) + float((self._b * X).sum()),
                float(s[T, 0, 0]) - float(s[R].sum()) - float((start / H[R, R]).sum()) + float((self._m * X).sum()),
            ]
        )
        eta, t = np.linalg.solve(self._border, right)
        dV = X + eta * self._along_eta[0] - t * self._along_t[0]
        tie = tie + eta * self._along_eta[1] - t * self._along_t[1]
        r = (start - eta - H[R, T] * t - H[R, V] * dV) / H[R, R]
        ds = np.stack([r, np.full(dV.shape, t), dV])
        dz = c - np.einsum("ab...,b...->a...", H, ds)
        dz[R] = eta + off
        return ConesMove(dV, tie, ds, dz, float(eta))

    def after(self, move: ConesMove, primal: float, dual: float) -> float:
        """Inner product of s and z after a step."""
        return float(((self.s + primal * move.s) * (self.z + dual * move.z)).sum())

    def lengths(self, move: ConesMove) -> tuple[float, float]:
        """Largest step, by bisection, that keeps s and z in the cones."""
        with np.errstate(invalid="ignore"):
            if self._inside(move, FULL):
                return FULL, FULL
            low, high = 0.0, FULL
            while high - low > RESOLUTION * high and high > SHORTEST:
                middle = 0.5 * (low + high)
                low, high = (middle, high) if self._inside(move, middle) else (low, middle)
        return low, low

    def _inside(self, move: ConesMove, step: float) -> bool:
        s, z = self.s + step * move.s, self.z + step * move.z
        if not ((s[:2] > 0).all() and (z[:2] > 0).all()):
            return False
        return bool((self._room(s) > 0).all() and (self._dual_room(z) > 0).all())

    def advance(self, move: ConesMove, primal: float, dual: float, adjoint: np.ndarray) -> None:
        """Take the step."""
        self.s, self.z = self.s + primal * move.s, self.z + dual * move.z
        self.eta, self.tie = self.eta + dual * move.eta, self.tie + dual * move.tie
