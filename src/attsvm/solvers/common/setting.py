"""Problems of every kind in the reduced coordinates of the methods: terms of the objective, and the prior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attsvm.core.error_free import EPS
from attsvm.core.norms import FROBENIUS, SPECTRAL, Norm, frobenius
from attsvm.core.reduction import LARGEST, SMALLEST, Reduced
from attsvm.proofs.objective import SEPARATION_TOL, Terms
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.ties import Ties

# Number of roundings by which the smallest of many margins may fall short.
SMALLEST_MARGIN = 8.0


@dataclass(frozen=True, eq=False)
class Setting:
    """A problem of any kind in reduced coordinates.

    Attributes
    ----------
    reduced : Reduced
        The problem without rejected tokens of length zero, whose multipliers are known.
    prior : ndarray, shape (p, r)
    loose : float
        Loss of the omitted tokens, which no W changes.
    weights : ndarray, shape (n, 1), or float
        Factors of the queries and of their margins if C differs between queries: the p-th root of C over the smallest
        C, since the loss is C max(0, u)^p. The multipliers are divided by the same factors.
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
    def of(cls, reduced: Reduced, terms: Terms, prior: np.ndarray) -> Setting:
        """Write terms and a prior (d, dz) in reduced coordinates.

        Rejected tokens whose margin is zero under every W are omitted.
        """
        weights = 1.0
        if terms.prices is not None:
            ratios = terms.prices[reduced.rows] / terms.prices.min()
            weights = np.sqrt(ratios) if terms.shift > 0 else ratios
            reduced = replace(reduced, queries=reduced.queries * weights)
        empty = reduced.rejected & (reduced.lengths == 0.0)
        rows = replace(reduced, rejected=reduced.rejected & ~empty)
        inner = Terms(
            norm=_of_one_value(terms.norm.base, reduced.shape),
            squared=terms.squared,
            rejected=rows.rejected,
            tied=rows.tied,
            cost=np.where(empty, 0.0, reduced.gather(terms.cost) * weights),
            upper=terms.upper,
            shift=terms.shift,
        )
        setting = cls(rows, inner, reduced.lower(prior), 0.0, weights)
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
        """The objective at V over the objective at ``lift(V)``."""
        scale = self.reduced.scale
        return min(max(scale * scale if self.terms.squared else scale, SMALLEST), LARGEST)

    def inner(self, dual: np.ndarray) -> np.ndarray:
        """Mark tied tokens and multipliers (n, T) strictly between their bounds."""
        terms = self.terms
        return terms.rejected & (dual > 0) & (dual < terms.upper) | terms.tied

    def ends_in_rounding(self, control: Control) -> bool:
        """Tell whether the best pair of a hard margin is as good as floats permit; refinement may still improve it.

        Rounding of W leaves a gap equal to the mean rounding of its margins, weighted by the multipliers. In norms
        other than the Frobenius norm the smallest margin counts instead of the mean.
        """
        if not self.terms.hard or control.W is None or control.dual is None:
            return False
        weight, size = np.abs(control.dual), frobenius(control.W + self.prior)
        units = 1.0 if self.terms.norm.euclidean else SMALLEST_MARGIN
        mean = float(np.vdot(weight, self.reduced.lengths) / weight.sum())
        return bool(control.state.gap <= units * EPS * size * mean)

    def scaled(self, unit: float) -> Setting:
        """Write the problem in V / unit, for a norm that is not squared; the objective is divided by the unit too."""
        terms = replace(self.terms, cost=self.terms.cost / unit, shift=self.terms.shift / unit)
        return self._variant(self.reduced, terms, unit)

    def on(self, working: np.ndarray) -> Setting:
        """Omit the rejected tokens outside a working set (n, T); V has the same coordinates."""
        rejected = self.terms.rejected & working
        return self._variant(replace(self.reduced, rejected=rejected), replace(self.terms, rejected=rejected), 1.0)

    def _variant(self, reduced: Reduced, terms: Terms, unit: float) -> Setting:
        variant = Setting(reduced, terms, self.prior / unit, self.loose / unit, self.weights)
        variant.__dict__["ties"] = self.ties
        return variant

    def on_ties(self, V: np.ndarray) -> np.ndarray:
        """Project V (p, r) onto the tie constraints, to rounding."""
        if not self.ties:
            return V
        return self.ties.project(V + self.prior) - self.prior

    def offer(self, V: np.ndarray, control: Control, *, margins: np.ndarray | None = None) -> None:
        """Evaluate V (p, r), and store it in the control if it improves on the best V."""
        terms, reduced = self.terms, self.reduced
        shortfall = terms.cost - (reduced.apply(V) if margins is None else margins)
        smallest = 1.0 - float(np.max(shortfall, where=terms.rejected, initial=-np.inf))
        if reduced.tied.any() and not (terms.hard and smallest <= 0):
            V = self.on_ties(V)
            shortfall = terms.cost - reduced.apply(V)
            smallest = 1.0 - float(np.max(shortfall, where=terms.rejected, initial=-np.inf))
        # If there is a prior, a W whose margins exceed one may be better unscaled.
        if not terms.hard or smallest >= 1.0:
            control.offer(V, terms.size(V) + terms.loss(shortfall) + self.loose, None, 0.0)
        if (terms.hard and smallest > 0) or 0 < 1.0 - smallest < SEPARATION_TOL:
            # W scaled up has margins of at least one and no loss.
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
        """Evaluate V (p, r) and multipliers (n, T) and report them to the control; True when it is time to stop.

        The control receives the primal and dual values, with V as its W. A method that already has the margins (n, T)
        of V passes ``margins``. A method that has A^T dual (p, r), with multipliers of the right signs and sizes,
        passes ``adjoint``. ``size`` is as for :meth:`Terms.bound`.
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


def _of_one_value(norm: Norm, shape: tuple[int, int]) -> Norm:
    """Replace a norm of the singular values of a single row or column, which has only one, by the spectral norm.

    Its interior point then has one second-order cone instead of the nuclear norm's semidefinite matrix.
    """
    equal = norm is not FROBENIUS and norm.profile is not None and norm.value(np.ones((1, 1))) == 1.0
    return SPECTRAL if 1 in shape and equal else norm
