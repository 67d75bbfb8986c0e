r"""Where a share ends: an interval of its limit that counts the extrapolation's own error.

Records :math:`s_0, \dots, s_m` at equal distances of :math:`\log k`, two to a decade, have gains :math:`g_j` and ratios
:math:`q_j = g_j / g_{j-1}`. A shortfall :math:`c\,k^{-a}` has a constant ratio :math:`q`, and what is still to come is
:math:`g\,q/(1-q)` (Aitken). No other shortfall has: logarithms and faster terms let the ratio drift. If it drifted on
for ever as between the last two records, by :math:`\Delta` a record, what is to come would be, to first order,

.. math:: g\sum_m q^m\Big(1 + \frac{\Delta}{q}\,\frac{m(m+1)}{2}\Big)
          = g\Big(\frac{q}{1-q} + \frac{\Delta}{(1-q)^3}\Big),

as with the constant ratio :math:`q + \Delta/(1-q)`, and :math:`1/(1-q)` is 1.5 at :math:`k^{-1}`, 2.3 at
:math:`k^{-1/2}` and 3.6 at the slowest power that is trusted. So the limit of one instance is taken to lie between the
values for the ratios :math:`q \pm 3\Delta` (:data:`CAUTION`). From :data:`STEEPEST` on, the upper one may be a
logarithm's: then it is :data:`SLOWEST`.

The interval of a mean over instances goes from the lower end of Student's interval of the instances' lower ends to the
upper end of that of their upper ends (as for any partially identified mean: Horowitz, Manski, *J. American Statistical
Association* 95, 2000). Upper ends are averaged as they are, above one or not: each cut down to one first, their mean
would lie below one for every rule but a perfect one.

A slow term that is hidden under a faster one is not seen. The shortfall :math:`100/k + 0.2/\sqrt k` looks like
:math:`1/k` up to ten thousand steps, and its limit is missed by 0.001; :math:`1/\log k + 5/\sqrt k` looks like a power
:math:`k^{-0.44}`, and its limit is missed by 0.05. No finite curve shows that. Shortfalls slower than
:math:`1/\log k` are missed too: of :math:`\log\log k/\log k` and of :math:`1/\log(100\,k)` there come more than eight
gains.
"""

from __future__ import annotations

import numpy as np

from attsvm.experiments.statistics import mean_interval

CAUTION = 3.0
"""How many times the drift of the ratio between the last two records is allowed on either side: the least integer with
which the interval held the limits of synthetic curves as often as it says."""

STEEPEST = 0.72
"""Ratio of gains, half a decade apart, up to which powers are trusted: k^-0.29."""

SLOWEST = 8 / 9
"""Ratio with which eight gains are still to come. Of a shortfall c / log k at ten thousand steps there come seven,
whatever c is."""


def bounds_of_limits(shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bound the limit of every instance.

    Parameters
    ----------
    shares : ndarray, shape (instances, records)
        At least four records, two to a decade; the last four are read.

    Returns
    -------
    low, high : ndarray, shape (instances,)
        High may be above one.

    Raises
    ------
    ValueError
        For fewer than four records.
    """
    if shares.ndim != 2 or shares.shape[1] < 4:
        raise ValueError(f"shares has shape {shares.shape}; (instances, records) with four records was expected.")
    first, second, third = np.diff(shares[:, -4:], axis=1).T
    last = shares[:, -1]
    ratio, before = _quotient(third, second), _quotient(second, first)
    drift = np.where(before > 0, CAUTION * np.abs(ratio - before), np.inf)
    fast = np.clip(ratio - drift, 0.0, SLOWEST)
    slow = np.where(ratio + drift > STEEPEST, SLOWEST, ratio + drift)
    near, far = (last + third * q / (1 - q) for q in (fast, slow))
    # A share that changed direction, or is constant, stays within what the slowest trusted power would still add.
    unclear = ~(ratio > 0)
    reach = STEEPEST / (1 - STEEPEST) * np.maximum(np.abs(second), np.abs(third))
    low = np.where(unclear, last - reach, np.minimum(near, far))
    return low, np.where(unclear, last + reach, np.maximum(near, far))


def limit_interval(shares: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the mean limit, whose upper end is at most one.

    Parameters
    ----------
    shares : ndarray, shape (instances, records)
        As for :func:`bounds_of_limits`.

    Returns
    -------
    low, high : float
        Of one instance, its bounds. Low is not cut: where it is above one, no limit agrees with the curves.
    """
    lows, highs = bounds_of_limits(shares)
    if len(lows) == 1:
        return float(lows[0]), min(float(highs[0]), 1.0)
    return mean_interval(lows)[0], min(mean_interval(highs)[1], 1.0)


def _quotient(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divide; 0/0 is 0, so that a constant share counts as one that changed direction."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator != 0)
