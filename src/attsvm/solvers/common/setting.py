r"""Soft margins and priors: the problem in reduced coordinates, and what a pair of iterates proves.

With :math:`V = W - W_0` and :math:`c = 1 - A(W_0)` on rejected tokens, :math:`c = -A(W_0)` on tied ones, every problem
of this family reads

.. math:: \min_V \; f(V) + \sum_{it} \ell(c_{it} - A(V)_{it}), \qquad A(V) = c \text{ on ties},

f the norm, or half the square of the Frobenius norm, and :math:`\ell` one of C max(0, u), C max(0, u)^2, or infinite
for u > 0 (hard margin). Fenchel duality (Rockafellar, *Convex Analysis*, section 31) gives the bound, for
:math:`\lambda \ge 0` on rejected tokens,

.. math:: c^\top\lambda - f^*(A^\top\lambda) - \tfrac{\epsilon}{2}\sum\lambda_{it}^2, \qquad \lambda \le C_{max},

where the hinge has :math:`C_{max} = C, \epsilon = 0`, its square :math:`C_{max} = \infty, \epsilon = 1/(2C)` (Cortes
and Vapnik, Machine Learning 20, 1995), the hard margin neither. :math:`f^*(M)` is half the squared Frobenius norm,
or zero on the unit ball of the dual norm. Multipliers are scaled to where the bound is largest before it is evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attsvm.core.norms import Norm, frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import LARGEST, SMALLEST, Reduced
from attsvm.core.rounding import EPS
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.ties import Ties

# Shortfalls below this are worth scaling away: a W with no loss at all may be better than one with rounding times C.
NEARLY_SEPARATED = 1e-4
# Units of rounding by which the smallest of many margins falls short: Newton on the face of the nuclear norm ends at 1
# to 20 of them (every family of the tests at
# (6, 8, 10) to (60, 10, 5)), and what runs after it gains a half of that.
SMALLEST_MARGIN = 8.0


@dataclass(frozen=True, eq=False)
class Terms:
    """The terms of the objective, in whichever coordinates the margins are.

    Attributes
    ----------
    norm : Norm
    squared : bool
        Half the square of the norm (Frobenius, soft margin) instead of the norm.
    rejected, tied : ndarray of bool, shape (n, T)
    cost : ndarray, shape (n, T)
        The margins V itself must reach: c of the module's derivation, zero where unconstrained.
    upper : float
        Largest multiplier; infinite but for the hinge.
    shift : float
        1/(2C) for the squared hinge, else zero.
    """

    norm: Norm
    squared: bool
    rejected: np.ndarray
    tied: np.ndarray
    cost: np.ndarray
    upper: float
    shift: float

    @classmethod
    def hard_margin(cls, norm: Norm, problem: SelectionProblem | Reduced) -> Terms:
        """Write the smallest norm at margin one, without a prior."""
        cost = np.where(problem.rejected, 1.0, 0.0)
        return cls(norm, False, problem.rejected, problem.tied, cost, np.inf, 0.0)

    @property
    def hard(self) -> bool:
        """Whether a margin below one is forbidden rather than penalised."""
        return np.isinf(self.upper) and self.shift == 0.0

    def size(self, V: np.ndarray) -> float:
        """Evaluate f(V)."""
        value = self.norm.value(V)
        return 0.5 * value * value if self.squared else value

    def loss(self, shortfall: np.ndarray) -> float:
        """Sum the losses of c - A(V), (n, T), over rejected tokens; the hard margin's is taken to be zero."""
        return self.charge(shortfall[self.rejected])

    def charge(self, shortfall: np.ndarray) -> float:
        """Sum the losses of some rejected tokens' shortfalls (k,)."""
        deficit = np.maximum(shortfall, 0.0)
        if self.shift > 0:
            return float(deficit @ deficit) / (2.0 * self.shift)
        return 0.0 if self.hard else self.upper * float(deficit.sum())

    def slope(self, shortfall: np.ndarray) -> np.ndarray:
        """Differentiate the loss at c - A(V), (n, T): the multipliers that go with V. Zero for the hard margin."""
        if self.hard:
            return np.zeros(shortfall.shape)
        deficit = np.where(self.rejected, np.maximum(shortfall, 0.0), 0.0)
        return deficit / self.shift if self.shift > 0 else np.where(deficit > 0, self.upper, 0.0)

    def central(self, shortfall: np.ndarray, mu: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Slack s, multiplier lam, loss xi and its multiplier C - lam on the central path at c - A(V), each (n, T).

        With u = c - A(V) the equations xi - s = u, s lam = mu and, for the hinge, xi (C - lam) = mu, for its square
        xi = lam/(2C), leave one quadratic equation a token. The last two are 0 and 1 where the loss has no slack of its
        own; u must be negative for the hard margin.
        """
        half, nothing = 0.5 * shortfall, np.zeros(shortfall.shape)
        if np.isfinite(self.upper):
            # mu/s + mu/(s + u) = C, and the two roots are the distances from e = mu/C.
            e = mu / self.upper
            up = np.hypot(e, half) + np.abs(half)
            down = e * (e / up)
            slack, loss = e + np.where(half > 0, down, up), e + np.where(half > 0, up, down)
            return slack, mu / slack, loss, mu / loss
        if self.shift > 0:
            # shift lam - mu / lam = u
            root = np.hypot(half, np.sqrt(mu * self.shift)) + np.abs(half)
            dual = np.where(half > 0, root / self.shift, mu / root)
            return mu / dual, dual, nothing, nothing + 1.0
        return -shortfall, -mu / shortfall, nothing, nothing + 1.0

    def may_stay(self, pull: np.ndarray) -> bool:
        """Whether V = 0 may be optimal, given the pull (d, dz) of its multipliers: their dual norm is one at most."""
        # <M, M> / |M| bounds the dual norm of M from below, at less cost than itself.
        return self.squared or not float(np.vdot(pull, pull)) > 2.0 * self.norm.value(pull)

    def clip(self, dual: np.ndarray) -> np.ndarray:
        """Multipliers of the right sign and size, (n, T)."""
        return np.where(self.rejected, np.clip(dual, 0.0, self.upper), np.where(self.tied, dual, 0.0))

    def bound(
        self, dual: np.ndarray, adjoint: np.ndarray, size: float | None = None, *, gain: float = 0.0, top: float = 0.0
    ) -> tuple[float, float]:
        """Scale admissible multipliers (n, T), with pull A^T dual, to the largest bound; returns (scale, bound).

        ``size`` is the dual norm of the pull, or a bound on it, where the caller has one; ``gain`` and ``top`` are the
        gain and the largest of multipliers that are not listed but part of the pull.
        """
        gain += float((self.cost * dual).sum())
        if gain <= 0:
            return 0.0, 0.0
        size = self.norm.dual(adjoint) if size is None else size
        values = dual[self.rejected]
        top = float(values.max(initial=top))
        # Squares of multipliers may leave the range of floats where their products with the shift do not.
        curvature = float((self.shift * values) @ values) + (size * size if self.squared else 0.0)
        limit = self.upper / top if top > 0 else np.inf
        if not self.squared:
            limit = min(limit, 1.0 / size if size > 0 else np.inf)
        scale = min(limit, gain / curvature if curvature > 0 else np.inf)
        value = scale * gain - 0.5 * scale * (scale * curvature)
        return (scale, value) if np.isfinite(value) else (0.0, 0.0)


@dataclass(frozen=True, eq=False)
class Setting:
    """A soft or prior problem in reduced coordinates.

    Attributes
    ----------
    reduced : Reduced
        Rejected tokens of length zero left out: their multipliers are known.
    terms : Terms
    prior : ndarray, shape (p, r)
    loose : float
        Loss of the tokens left out, which no W changes.
    """

    reduced: Reduced
    terms: Terms
    prior: np.ndarray
    loose: float

    @cached_property
    def ties(self) -> Ties:
        """The tied tokens as a linear space."""
        return Ties(self.reduced)

    @classmethod
    def hard_margin(cls, reduced: Reduced, norm: Norm) -> Setting:
        """Set up the smallest norm at margin one, without a prior; no rejected token may have length zero."""
        return cls(reduced, Terms.hard_margin(norm, reduced), np.zeros(reduced.shape), 0.0)

    @classmethod
    def of(cls, reduced: Reduced, terms: Terms, prior: np.ndarray) -> Setting:
        """Write terms and a prior (d, dz) of the original coordinates in reduced ones.

        Rejected tokens whose margin is zero under every W are left out.
        """
        empty = reduced.rejected & (reduced.lengths == 0.0)
        rejected = reduced.rejected & ~empty
        inner = Terms(
            norm=terms.norm.base,
            squared=terms.squared,
            rejected=rejected,
            tied=reduced.tied,
            cost=np.where(empty, 0.0, reduced.gather(terms.cost)),
            upper=terms.upper,
            shift=terms.shift,
        )
        setting = cls(replace(reduced, rejected=rejected), inner, reduced.lower(prior), 0.0)
        unit = setting.unit
        inner = replace(inner, upper=terms.upper * unit, shift=terms.shift / unit)
        return replace(setting, terms=inner, loose=inner.charge(np.ones(int(empty.sum()))))

    @property
    def plain(self) -> bool:
        """Whether it is a hard margin without a prior."""
        return self.terms.hard and not self.prior.any()

    @property
    def unit(self) -> float:
        """Factor by which C and the multipliers grow in these coordinates."""
        scale = self.reduced.scale
        return min(max(scale * scale if self.terms.norm.euclidean else scale, SMALLEST), LARGEST)

    @property
    def value_unit(self) -> float:
        """What the objective at V is divided by to be that at ``lift(V)``."""
        scale = self.reduced.scale
        return min(max(scale * scale if self.terms.squared else scale, SMALLEST), LARGEST)

    def inner(self, dual: np.ndarray) -> np.ndarray:
        """Mark multipliers (n, T) strictly between their bounds, and tied ones."""
        terms = self.terms
        return terms.rejected & (dual > 0) & (dual < terms.upper) | terms.tied

    def rounding(self, W: np.ndarray, dual: np.ndarray) -> float:
        """Relative gap that W (p, r), stored in floats, leaves where multipliers (n, T) weigh its margins, all one.

        In other norms than the Frobenius norm the smallest of all margins counts, not their weighted mean.
        """
        weight = np.abs(dual)
        units = 0.5 if self.terms.norm.euclidean else SMALLEST_MARGIN
        return units * EPS * frobenius(W) * float(np.vdot(weight, self.reduced.lengths) / weight.sum())

    def scaled(self, unit: float) -> Setting:
        """Write the problem in V / unit, for a norm that is not squared: the objective is divided by the unit too."""
        terms = replace(self.terms, cost=self.terms.cost / unit, shift=self.terms.shift / unit)
        return self._variant(self.reduced, terms, unit)

    def on(self, working: np.ndarray) -> Setting:
        """Leave out the rejected tokens outside a working set (n, T); V keeps its coordinates."""
        rejected = self.terms.rejected & working
        return self._variant(replace(self.reduced, rejected=rejected), replace(self.terms, rejected=rejected), 1.0)

    def _variant(self, reduced: Reduced, terms: Terms, unit: float) -> Setting:
        variant = Setting(reduced, terms, self.prior / unit, self.loose / unit)
        variant.__dict__["ties"] = self.ties
        return variant

    def on_ties(self, V: np.ndarray) -> np.ndarray:
        """Nearest V (p, r) at which tied scores are equal to rounding."""
        if not len(self.ties.basis):
            return V
        return self.ties.project(V + self.prior) - self.prior

    def offer(self, V: np.ndarray, control: Control, *, margins: np.ndarray | None = None) -> None:
        """Evaluate V (p, r), and leave it with the control where it is better than the best."""
        terms, reduced = self.terms, self.reduced
        shortfall = terms.cost - (reduced.apply(V) if margins is None else margins)
        smallest = 1.0 - float(np.max(shortfall, where=terms.rejected, initial=-np.inf))
        if reduced.tied.any() and not (terms.hard and smallest <= 0):
            V = self.on_ties(V)
            shortfall = terms.cost - reduced.apply(V)
            smallest = 1.0 - float(np.max(shortfall, where=terms.rejected, initial=-np.inf))
        # With a prior a W whose margins exceed one may be better as it is than scaled down.
        if not terms.hard or smallest >= 1.0:
            control.offer(V, terms.size(V) + terms.loss(shortfall) + self.loose, None, 0.0)
        if (terms.hard and smallest > 0) or 0 < 1.0 - smallest < NEARLY_SEPARATED:
            # Scaled up, W has margin one everywhere and no loss.
            scaled = V if np.isinf(smallest) else (V + self.prior) / smallest - self.prior
            control.offer(scaled, terms.size(scaled) + self.loose, None, 0.0)

    def report(
        self,
        V: np.ndarray,
        dual: np.ndarray,
        control: Control,
        *,
        margins: np.ndarray | None = None,
        adjoint: np.ndarray | None = None,
        size: float | None = None,
        steps: int = 1,
    ) -> bool:
        """Evaluate V (p, r) and multipliers (n, T), tell the control; True when it is time to stop.

        The control's objective and bound are primal and dual value; its W is V. ``margins`` (n, T) are those of V where
        the method has them, and ``adjoint`` is A^T dual, (p, r), where it has that and the multipliers have the right
        signs and sizes; ``size`` is as for :meth:`Terms.bound`.
        """
        self.offer(V, control, margins=margins)
        terms = self.terms
        if adjoint is None:
            dual = terms.clip(dual)
            adjoint = self.reduced.adjoint(dual)
        scale, bound = terms.bound(dual, adjoint, size)
        if terms.hard and terms.norm.euclidean:
            scale *= bound  # W - W0 = A^T dual
        return control.observe(None, np.inf, dual * scale, bound + self.loose, steps=steps)
