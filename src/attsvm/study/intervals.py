"""How far a share and a control can be off by chance."""

from __future__ import annotations

import math

import numpy as np

LEVEL = 0.95


def share_interval(right: int, counted: int, level: float = LEVEL) -> tuple[float, float]:
    """Exact interval of a share.

    Parameters
    ----------
    right, counted : int
        Successes among the rows counted.
    level : float

    Returns
    -------
    tuple of float
        The shares that neither one-sided binomial test rejects at (1 - level)/2 (Clopper and Pearson, Biometrika 26,
        1934): few rows give a wide interval, none gives [0, 1].
    """
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = 0.0 if right == 0 else float(betaincinv(right, counted - right + 1, tail))
    high = 1.0 if right == counted else float(betaincinv(right + 1, counted - right, 1 - tail))
    return low, high


def upper_limit(values: np.ndarray, level: float = LEVEL) -> float:
    r"""Bound one further draw of a control from above.

    Parameters
    ----------
    values : ndarray, shape (m,)
        The control's draws so far.
    level : float
        Of the two-sided interval whose upper end this is.

    Returns
    -------
    float
        :math:`\bar x + t_{m-1} s \sqrt{1 + 1/m}`, Student's prediction limit, or the largest draw where that is larger;
        for fewer than three draws, which say nothing of their spread, the largest draw.
    """
    from scipy.special import stdtrit

    count, largest = len(values), float(np.max(values))
    if count < 3:
        return largest
    spread = float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / count)
    return max(largest, float(np.mean(values)) + float(stdtrit(count - 1, (1 + level) / 2)) * spread)
