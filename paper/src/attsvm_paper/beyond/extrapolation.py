r"""An interval for the limit of a share that accounts for the error of the extrapolation.

Records :math:`s_0, \dots, s_m` at equal distances of :math:`\log k`, two per decade, have gains :math:`g_j` and ratios
:math:`q_j = g_j / g_{j-1}`. A shortfall :math:`c\,k^{-a}` has a constant ratio :math:`q`, and the remaining gain is
:math:`g\,q/(1-q)` (Aitken). Every other shortfall has a drifting ratio, for example logarithms and faster terms.
Suppose the drift :math:`\Delta` per record, as between the last two records, continued for ever. The remaining gain
would be, to first order,

.. math:: g\sum_m q^m\Big(1 + \frac{\Delta}{q}\,\frac{m(m+1)}{2}\Big)
          = g\Big(\frac{q}{1-q} + \frac{\Delta}{(1-q)^3}\Big),

as with the constant ratio :math:`q + \Delta/(1-q)`. The factor :math:`1/(1-q)` is 1.5 at :math:`k^{-1}`, 2.3 at
:math:`k^{-1/2}` and 3.6 at the slowest power that is trusted. The limit of one instance is therefore taken to lie
between the values for the ratios :math:`q \pm 3\Delta` (:data:`CAUTION`). A ratio above :data:`STEEPEST` may belong to
a logarithm: the upper ratio is then :data:`SLOWEST`.

The interval of a mean over instances combines two Student intervals: its lower end comes from the instances' lower
ends, its upper end from their upper ends (as for any partially identified mean: Horowitz, Manski, *J. American
Statistical Association* 95, 2000). Upper ends are averaged as they are, even above one. If each were first cut to one,
their mean would lie below one for every rule except a perfect one.

A slow term hidden under a faster one is not detected. The shortfall :math:`100/k + 0.2/\sqrt k` looks like :math:`1/k`
up to ten thousand steps, and its limit is missed by 0.001. The shortfall :math:`1/\log k + 5/\sqrt k` looks like a
power :math:`k^{-0.44}`, and its limit is missed by 0.05. No finite curve can show this. Shortfalls slower than
:math:`1/\log k` are missed too: :math:`\log\log k/\log k` and :math:`1/\log(100\,k)` have more than eight gains left.
"""

from __future__ import annotations

import numpy as np

from attsvm_paper.judging.statistics import mean_interval

CAUTION = 3.0
"""Allowed multiple of the ratio's drift between the last two records, on either side: the least integer for which the
interval contains the limits of synthetic curves at its stated rate."""

STEEPEST = 0.72
"""Ratio of gains, half a decade apart, up to which powers are trusted: k^-0.29."""

SLOWEST = 8 / 9
"""Ratio for which eight gains remain. A shortfall c / log k has seven left at ten thousand steps, for every c."""


def bounds_of_limits(shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bound the limit of every instance.

    Parameters
    ----------
    shares : ndarray, shape (instances, records)
        At least four records, two per decade; the last four are used.

    Returns
    -------
    low, high : ndarray, shape (instances,)
        ``high`` may exceed one.

    Raises
    ------
    ValueError
        If there are fewer than four records.
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
    # A share that is constant or changed direction stays within the gain of the slowest trusted power.
    unclear = ~(ratio > 0)
    reach = STEEPEST / (1 - STEEPEST) * np.maximum(np.abs(second), np.abs(third))
    low = np.where(unclear, last - reach, np.minimum(near, far))
    return low, np.where(unclear, last + reach, np.maximum(near, far))


def limit_interval(shares: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the mean limit, whose upper end is at most one.

    Parameters
    ----------
    shares : ndarray, shape (instances, records)
        See :func:`bounds_of_limits`.

    Returns
    -------
    low, high : float
        The bounds, for one instance. ``low`` is not cut: above one, no limit agrees with the curves.
    """
    lows, highs = bounds_of_limits(shares)
    if len(lows) == 1:
        return float(lows[0]), min(float(highs[0]), 1.0)
    return mean_interval(lows)[0], min(mean_interval(highs)[1], 1.0)


def _quotient(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divide; 0/0 is 0, so that a constant share counts as one that changed direction."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator != 0)
