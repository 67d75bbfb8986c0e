r"""Entrywise l_p norms, 1 < p < inf, in the soft-margin interior point.

V goes with a bound :math:`\tau \ge \|V\|_p`, the pull :math:`M = A^\top\lambda + B^\top\nu` with the ball
:math:`\|M\|_q \le 1`, and at the optimum :math:`V = \tau\varphi_q(M)`, :math:`M = \varphi_p(V/\tau)`, where
:math:`\varphi_r(X) = \mathrm{sign}(X)|X|^{r-1}`. One of the two maps is smooth, and the barrier stands on its side:

.. math:: p < 2: \quad V = \tau\varphi_q(M), \quad \tau\,\tfrac1q\big(1 - \textstyle\sum|M|^q\big) = \mu; \qquad
   p > 2: \quad M = \varphi_p(V/\tau), \quad \tau\,\tfrac1q\big(1 - \textstyle\sum|V/\tau|^p\big) = \mu.

The first pair is the central path of the dual problem with a barrier on its ball, the second that of the primal problem
in which :math:`\|V\|_p = \min_\tau \tfrac1p\sum|V|^p\tau^{1-p} + \tfrac1q\tau` and :math:`\tau` has a barrier. With
:math:`u = \varphi_q(M)` or :math:`V/\tau`, H the diagonal derivative and :math:`\kappa` what :math:`\tau` is multiplied
with above, both Newton steps have the form

.. math:: (H + A^\top\Theta A)\,dV - Hu\,d\tau - B^\top d\nu = \dots, \qquad
   (e + u^\top H u)\,d\tau - u^\top H\,dV = \dots,

with :math:`e = \kappa/\tau` or :math:`\mu/\tau^2`. :mod:`attsvm.solvers.interior_point.power_barrier` takes the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.core.norms import entrywise
from attsvm.solvers.common.diagonal_normal import DiagonalNormal
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.interior_point.terms import Move

# Curvatures below this part of the largest are rounding.
FLOOR = 1e-13
HALVINGS = 60


@dataclass
class PowerMove(Move):
    """The same with the bound tau."""

    bound: float


class PowerTerm:
    """The entrywise l_p norm, 1 < p < inf.

    Parameters
    ----------
    setting : Setting
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.system = DiagonalNormal(setting.reduced)
        p = setting.terms.norm.power
        assert p is not None
        self.p, self.q = p, p / (p - 1.0)
        self.primal_side = p > 2

    def start(self, V: np.ndarray, mu: float) -> None:
        """Begin at V on the central path: with the tau that goes with it and mu."""
        self.V, self.tie, self.pull = V, np.zeros(len(self.system.basis)), np.zeros(V.shape)
        # tau kappa = mu, by bisection on the part t = |V| / tau.
        size = entrywise(V, self.p)
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            t = 0.5 * (low + high)
            low, high = (t, high) if size * (1.0 - t**self.p) > mu * self.q * t else (low, t)
        self.tau = size / low if low > 0 else self.q * mu

    def room(self, tau: float, V: np.ndarray, pull: np.ndarray) -> float:
        """Kappa of the module's derivation."""
        held = np.abs(V / tau) ** self.p if self.primal_side else np.abs(pull) ** self.q
        return (1.0 - float(held.sum())) / self.q

    def factor(self, theta: np.ndarray) -> None:
        """Factor H + A^T Theta A."""
        self._theta = theta
        r = self.p if self.primal_side else self.q
        argument = self.V / self.tau if self.primal_side else self.pull
        size = np.abs(argument)
        curvature = (r - 1.0) * np.maximum(size ** (r - 2.0), FLOOR * float(size.max()) ** (r - 2.0))
        self._image = signed_power(argument, r)
        self._h = curvature / self.tau if self.primal_side else 1.0 / (self.tau * curvature)
        self._partner = argument if self.primal_side else self._image
        self._border = self._h * self._partner
        self._solve = self.system.factor(self._h, theta)
        self._follow = self._solve(self._border)
        self._kappa = self.room(self.tau, self.V, self.pull)

    def direction(self, centre: float, before: None, g: np.ndarray, pulled: np.ndarray) -> PowerMove:
        """Solve for the direction; there is no predictor."""
        h, tau, border = self._h, self.tau, self._border
        reduced = self._setting.reduced
        total = pulled + self.system.pull(self.tie)
        given = centre / tau - self._kappa
        if self.primal_side:
            lack = total - self._image
        else:
            off = tau * self._image - self.V
            lack = total - self.pull + h * off
            given -= float((border * off).sum())
        V, tie = self._solve(lack + reduced.adjoint(self._theta * g))
        along, along_tie = self._follow
        own = centre / tau**2 if self.primal_side else self._kappa / tau
        # What the bound costs once V follows it: positive, but the difference of near equals.
        pivot = max(own + float((border * (self._partner - along)).sum()), 1e-300)
        bound = (given + float((border * V).sum())) / pivot
        V, tie = V + bound * along, tie + bound * along_tie
        return PowerMove(V, tie, bound)


def signed_power(X: np.ndarray, r: float) -> np.ndarray:
    """Return phi_r(X) of the module's derivation."""
    return np.sign(X) * np.abs(X) ** (r - 1.0)
