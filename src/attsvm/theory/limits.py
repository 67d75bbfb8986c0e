r"""An interval for the limit of a share that accounts for the error of the extrapolation.

Records :math:`s_0, \ldots, s_m` at equal distances of :math:`\log k`, two per decade, have gains :math:`g_j` and ratios
:math:`q_j = g_j / g_{j-1}`. A shortfall :math:`c\,k^{-a}` has a constant ratio :math:`q`, and the remaining gain is
:math:`g\,q/(1-q)` (Aitken). Every other shortfall has a drifting ratio, for example logarithms and faster terms.
Suppose the drift :math:`\Delta` per record, as between the last two records, continued for ever. The remaining gain
would be, to first order,

.. math:: g\sum_m q^m\Bigl(1 + \frac{\Delta}{q}\,\frac{m(m+1)}{2}\Bigr)
          = g\Bigl(\frac{q}{1-q} + \frac{\Delta}{(1-q)^3}\Bigr),

as with the constant ratio :math:`q + \Delta/(1-q)`. The factor :math:`1/(1-q)` is 1.5 at :math:`k^{-1}`, 2.3 at
:math:`k^{-1/2}` and 3.6 at the slowest power that is trusted. The limit is therefore taken to lie between the values
for the ratios :math:`q \pm 3\Delta` (:data:`CAUTION`). A ratio above :data:`STEEPEST` may belong to a logarithm: the
upper ratio is then the slowest. For a mean over instances that is :data:`SLOWEST`, and for one curve :data:`ENDLESS`.

A slow term hidden under a faster one is not detected. The shortfall :math:`100/k + 0.2/\sqrt k` looks like :math:`1/k`
up to ten thousand steps, and its limit is missed by 0.001. The shortfall :math:`1/\log k + 5/\sqrt k` looks like a
power :math:`k^{-0.44}`, and its limit is missed by 0.05. No finite curve can show this. Shortfalls slower than
:math:`1/\log k`, such as :math:`\log\log k/\log k` and :math:`1/\log(100\,k)`, have more than eight gains left:
:data:`SLOWEST` misses them, :data:`ENDLESS` does not.
"""

from __future__ import annotations

import numpy as np
from scipy.interpolate import PchipInterpolator

CAUTION = 3.0
"""Allowed multiple of the ratio's drift between the last two records, on either side: the least integer for which the
interval contains the limits of synthetic curves at its stated rate."""

STEEPEST = 0.72
"""Ratio of gains, half a decade apart, up to which powers are trusted: k^-0.29."""

SLOWEST = 8 / 9
"""Ratio for which eight gains remain. A shortfall c / log k has seven left at ten thousand steps, for every c."""

ENDLESS = 50 / 51
"""Ratio for which fifty gains remain. At 10,000 steps c log log k / log k has 14 left, and c / log log k has 18."""

TRUSTED = 0.96
"""Part of the ratio of c / log k up to which powers are trusted: :data:`STEEPEST` over the ratio at 10,000 steps."""

LIMIT_FLOOR = 0.99
"""Limit of a share from which it counts as one."""

LIMIT_RECORDS = 4
"""Number of records that an interval uses."""

SHARE_DIGITS = 3
"""Digits to which the bounds of one curve are rounded outwards."""

_SPACING_SLACK = 1.05  # by which a factor between two steps may differ, since steps are integers


def bounds_of_limits(
    shares: np.ndarray, *, steepest: float = STEEPEST, slowest: float = SLOWEST
) -> tuple[np.ndarray, np.ndarray]:
    """Bound the limit of every instance.

    Parameters
    ----------
    shares : ndarray, shape (instances, records)
        At least four records, two per decade; the last four are used.
    steepest : float
        Ratio of gains up to which powers are trusted.
    slowest : float
        Ratio of gains that a slower share may have.

    Returns
    -------
    low, high : ndarray, shape (instances,)
        ``high`` may exceed one.

    Raises
    ------
    ValueError
        If there are fewer than four records.
    """
    if shares.ndim != 2 or shares.shape[1] < LIMIT_RECORDS:
        raise ValueError(f"shares has shape {shares.shape}; (instances, records) with four records was expected.")
    first, second, third = np.diff(shares[:, -LIMIT_RECORDS:], axis=1).T
    last = shares[:, -1]
    ratio, before = _quotient(third, second), _quotient(second, first)
    drift = np.where(before > 0, CAUTION * np.abs(ratio - before), np.inf)
    fast = np.clip(ratio - drift, 0.0, slowest)
    slow = np.where(ratio + drift > steepest, slowest, ratio + drift)
    near, far = (last + third * q / (1 - q) for q in (fast, slow))
    # A share that is constant or changed direction stays within the gain of the slowest trusted power.
    unclear = ~(ratio > 0)
    reach = steepest / (1 - steepest) * np.maximum(np.abs(second), np.abs(third))
    low = np.where(unclear, last - reach, np.minimum(near, far))
    return low, np.where(unclear, last + reach, np.maximum(near, far))


def limit_of_curve(steps: np.ndarray, shares: np.ndarray) -> tuple[float, float]:
    """Bound the limit of one curve, which may be slower than every power of log k.

    A curve that looks like a power may still be a logarithm under a transient (the share of gradient descent on real
    data looks so for four decades). The interval therefore also includes a rise by fifty times the size of the last
    gain, and the last share itself if its gains may be the gains of a logarithm. Two kinds of curves get wider bounds,
    by fifty times the mean gain of the last one, two or three records. A curve that changed direction may have begun a
    slow rise or fall. A curve whose ratios do not exclude a logarithm may have a last gain that noise made small.
    Bounds are rounded outwards to :data:`SHARE_DIGITS` digits, because one curve does not show its noise.

    Parameters
    ----------
    steps, shares : ndarray, shape (records,)
        At least four records, from :func:`equal_records`.

    Returns
    -------
    low, high : float
        ``high`` is at most one. ``low`` is not cut: above one, no limit agrees with the curve.
    """
    spacing = 2 * np.log10(steps[-1] / steps[-2])
    gains_left = ENDLESS / (1 - ENDLESS) / spacing
    steepest = min(STEEPEST**spacing, TRUSTED * _ratio_of_logarithm(steps))
    (low,), (high,) = bounds_of_limits(shares[None], steepest=steepest, slowest=gains_left / (1 + gains_left))
    gains, last = np.diff(shares[-LIMIT_RECORDS:]), shares[-1]
    high = max(high, last + gains_left * abs(gains[-1]))
    ratios = _quotient(gains[1:], gains[:-1])
    if not gains[-1] * gains[-2] > 0 or ratios[-1] + CAUTION * abs(ratios[-1] - ratios[-2]) > steepest:
        trends = [gains[-count:].mean() for count in range(1, LIMIT_RECORDS)]
        low, high = min(low, last + gains_left * min(trends)), max(high, last + gains_left * max(trends))
    if ratios[-1] > steepest:
        low = min(low, last)
    unit = 10.0**SHARE_DIGITS
    return float(np.floor(low * unit) / unit), min(float(np.ceil(high * unit) / unit), 1.0)


def _ratio_of_logarithm(steps: np.ndarray) -> float:
    """Return the ratio of the last two gains of c / log k at these steps, for every c; zero if the first step is 1."""
    before, middle, last = np.log(steps[-3:])
    return before * (last - middle) / (last * (middle - before))


def equal_records(steps: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Choose records at equal distances of log k that end at the last step.

    Steps at a constant factor of half a decade or more are used as they are. Shares at other steps are interpolated to
    two per decade by a monotone cubic in log k, as far back as no gap between two steps exceeds half a decade.

    Parameters
    ----------
    steps : ndarray, shape (m,)
        Positive and increasing.
    shares : ndarray, shape (m,)

    Returns
    -------
    steps, shares : ndarray, shape (records,)
    """
    half_decades = 2 * np.log10(steps)
    gaps = np.diff(half_decades)
    slack = 2 * np.log10(_SPACING_SLACK)
    if len(gaps) and gaps.min() >= 1 - slack and np.ptp(gaps) <= 2 * slack:
        return steps, shares
    start = int(np.flatnonzero(gaps > 1 + slack).max(initial=-1)) + 1
    usable, course = half_decades[start:], shares[start:]
    count = int(np.floor(np.ptp(usable) + slack)) + 1
    if count < 2:
        return steps[-1:], shares[-1:]
    marks = np.maximum(usable[-1] - np.arange(count - 1, -1, -1.0), usable[0])
    return 10 ** (marks / 2), PchipInterpolator(usable, course)(marks)


def _quotient(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divide; 0/0 is 0, so that a constant share counts as one that changed direction."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator != 0)
