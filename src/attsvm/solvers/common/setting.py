"""Problems of every kind in reduced coordinates, where the methods work: terms of the objective, and the prior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attsvm.core.norms import Norm, frobenius
from attsvm.core.reduction import LARGEST, SMALLEST, Reduced
from attsvm.core.rounding import EPS
from attsvm.proofs.objective import PLAIN, SEPARATION_TOL, Terms
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.ties import Ties

# Units of rounding by which the smallest of many margins falls short: Newton on the face of the nuclear norm ends at 1
# to 20 of them (most families of the tests at (6, 8, 10) to (60, 10, 5)), and what runs after it gains a half of that.
SMALLEST_MARGIN = 8.0


@dataclass(frozen=True, eq=False)
class Setting:
    """A problem of any kind in reduced coordinates.

    Attributes
    ----------
    reduced : Reduced
        Rejected tokens of length zero left out: their multipliers are known.
    terms : Terms
    prior : ndarray, shape (p, r)
    loose : float
        Loss of the tokens left out, which no W changes.
    weights : ndarray, shape (n, 1), or float
        Factors of the queries and of the margins asked of them where C differs between queries: C max(0, u)^p is that
        of the smallest C at u times the p-th root of their ratio. Multipliers are shorter by it.
    """

    reduced: Reduced
    terms: Terms
    prior: np.ndarray
    loose: float
    weights: np.ndarray | float

    @cached_property
    def ties(self) -> Ties:
        """The tied tokens as a linear space."""
        return Ties(self.reduced)

    @classmethod
    def hard_margin(cls, reduced: Reduced, norm: Norm) -> Setting:
        """Set up the smallest norm at margin one, without a prior; no rejected token may have length zero."""
        return cls(reduced, PLAIN.terms(reduced, norm), np.zeros(reduced.shape), 0.0, 1.0)

    @classmethod
    def of(cls, reduced: Reduced, terms: Terms, prior: np.ndarray) -> Setting:
        """Write terms and a prior (d, dz) of the original coordinates in reduced ones.

        Rejected tokens whose margin is zero under every W are left out.
        """
        weights = 1.0
        if terms.prices is not None:
            ratios = terms.prices[reduced.rows] / terms.prices.min()
            weights = np.sqrt(ratios) if terms.shift > 0 else ratios
            reduced = replace(reduced, queries=reduced.queries * weights)
        empty = reduced.rejected & (reduced.lengths == 0.0)
        rejected = reduced.rejected & ~empty
        inner = Terms(
            norm=terms.norm.base,
            squared=terms.squared,
            rejected=rejected,
            tied=reduced.tied,
            cost=np.where(empty, 0.0, reduced.gather(terms.cost) * weights),
            upper=terms.upper,
            shift=terms.shift,
        )
        setting = cls(replace(reduced, rejected=rejected), inner, reduced.lower(prior), 0.0, weights)
        unit = setting.unit
        inner = replace(inner, upper=terms.upper * unit, shift=terms.shift / unit)
        return replace(setting, terms=inner, loose=inner.charge(np.broadcast_to(weights, empty.shape)[empty]))

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

    def ends_in_rounding(self, control: Control) -> bool:
        """Whether the best pair of a hard margin is as good as pairs in floats are; refinement may still improve it.

        W, stored in floats, leaves a gap where multipliers weigh its margins, all one. In other norms than the
        Frobenius norm the smallest of all margins counts, not their weighted mean.
        """
        if not self.terms.hard or control.W is None or control.dual is None:
            return False
        weight, size = np.abs(control.dual), frobenius(control.W + self.prior)
        units = 1.0 if self.terms.norm.euclidean else SMALLEST_MARGIN
        mean = float(np.vdot(weight, self.reduced.lengths) / weight.sum())
        return bool(control.state.gap <= units * EPS * size * mean)

    def scaled(self, unit: float) -> Setting:
        """Write the problem in V / unit, for a norm that is not squared: the objective is divided by the unit too."""
        terms = replace(self.terms, cost=self.terms.cost / unit, shift=self.terms.shift / unit)
        return self._variant(self.reduced, terms, unit)

    def on(self, working: np.ndarray) -> Setting:
        """Leave out the rejected tokens outside a working set (n, T); V keeps its coordinates."""
        rejected = self.terms.rejected & working
        return self._variant(replace(self.reduced, rejected=rejected), replace(self.terms, rejected=rejected), 1.0)

    def _variant(self, reduced: Reduced, terms: Terms, unit: float) -> Setting:
        variant = Setting(reduced, terms, self.prior / unit, self.loose / unit, self.weights)
        variant.__dict__["ties"] = self.ties
        return variant

    def on_ties(self, V: np.ndarray) -> np.ndarray:
        """Nearest V (p, r) at which tied scores are equal to rounding."""
        if not self.ties:
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
        if (terms.hard and smallest > 0) or 0 < 1.0 - smallest < SEPARATION_TOL:
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
        """Evaluate V (p, r) and multipliers (n, T), report them to the control; True when it is time to stop.

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
