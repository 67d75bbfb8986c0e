r"""The nearest scores that meet the constraints of every column, all columns at once.

The constraints of a column are :math:`s_k \ge t + h_k` for preferred scores (:math:`s_k = t + h_k` if tied) and
:math:`s_o \le t` for others, with some threshold t. At :math:`v` with :math:`v' = v - h`, the nearest point has
:math:`s_k = h_k + \max(v'_k, t)` and :math:`s_o = \min(v'_o, t)`. The threshold is the mean of :math:`v'` over the
scores that move, which is the root of a monotone piecewise linear function. If there are losses, the score of another
token moves by :math:`\mathrm{clip}(w(v'_o - t), 0, u)` with :math:`w = 1/(1 + \rho\epsilon)` and :math:`u =
C_{max}/\rho`; :math:`\rho` is the weight of half the squared distance (:mod:`attsvm.proofs.objective` has
:math:`\epsilon` and :math:`C_{max}`). Newton's method from the last threshold is exact once the set of moving scores no
longer changes, and a bracket safeguards it.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.columns import Columns
from attsvm.core.error_free import EPS
from attsvm.proofs.objective import Terms

PROJECTION_STEPS = 100


class Projection:
    """Moves scores (T, G) to the nearest scores that satisfy the constraints, or that minimise distance plus losses.

    The terms are in the coordinates of the problem; with losses every column has one query.
    """

    def __init__(self, columns: Columns, terms: Terms) -> None:
        self._demand, self._others, scale = columns.demand, columns.others, columns.scale
        self._involved = columns.preferred | columns.others
        # Tied scores move either way, and so does a preferred score with losses.
        self._equal = columns.preferred & (columns.tied | (not terms.hard))
        self._above = columns.preferred & ~self._equal
        self._upper = terms.upper * columns.copies * scale if np.isfinite(terms.upper) else None
        self._shift = terms.shift / (columns.copies * scale**2)
        self._threshold: np.ndarray | None = None

    def __call__(self, V: np.ndarray, weight: float = 1.0) -> np.ndarray:
        """Return the change of V (T, G); times the weight it is the adjoint of multipliers."""
        value, slope = V - self._demand, 1.0 / (1.0 + weight * self._shift)
        # Factors that are all one are left out, since arrays may be large.
        share = 1.0 if (slope == 1.0).all() else np.where(self._others, slope, 1.0)
        low = np.min(value, axis=0, where=self._involved, initial=np.inf)
        high = np.max(value, axis=0, where=self._involved, initial=-np.inf)
        noise = 4.0 * EPS * np.maximum(np.abs(low), np.abs(high))
        t = 0.5 * (low + high) if self._threshold is None else np.clip(self._threshold, low, high)
        # An end at which the function has been found not to be zero is left out, or two ends may take turns for ever.
        low, high = np.nextafter(low, -np.inf), np.nextafter(high, np.inf)
        before = np.zeros(value.shape, dtype=np.int8)
        for _ in range(PROJECTION_STEPS):
            state = self._state(value - t, slope, weight)
            if (state == before).all():
                break
            before, moves = state, state == 1
            part = share * moves
            steepness = part.sum(axis=0)
            part *= value
            excess = t * steepness - part.sum(axis=0)
            if self._upper is not None:
                excess -= self._upper / weight * (state == 2).sum(axis=0)
            low, high = np.where(excess < 0, t, low), np.where(excess > 0, t, high)
            new = t - excess / np.where(steepness > 0, steepness, np.inf)
            t, last = np.where((new > low) & (new < high), new, 0.5 * (low + high)), t
            # A score at the threshold may move and stay by turns for ever, since the threshold is rounded.
            if (np.abs(t - last) <= noise).all():
                break
        self._threshold = t
        change = np.subtract(t, value, out=value)
        change *= share
        change[before != 1] = 0.0
        return change if self._upper is None else np.where(before == 2, -self._upper / weight, change)

    def _state(self, excess: np.ndarray, slope: np.ndarray, weight: float) -> np.ndarray:
        """Mark scores that stay (0), move towards the threshold (1), or move by the upper bound of the losses (2)."""
        falls = self._others & (excess > 0)
        state = (self._equal | (self._above & (excess < 0)) | falls).astype(np.int8)
        if self._upper is not None:
            state += falls & (slope * excess >= self._upper / weight)
        return state
