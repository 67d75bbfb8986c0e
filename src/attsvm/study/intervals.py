"""Sampling intervals of shares and of controls."""

from __future__ import annotations

import math

import numpy as np

# Level of every interval.
LEVEL = 0.95


def share_interval(right: int, total: int) -> tuple[float, float]:
    """Return an exact interval of a share.

    Parameters
    ----------
    right, total : int
        Number of successes and number of rows.

    Returns
    -------
    tuple of float
        The shares that neither one-sided binomial test rejects at (1 - LEVEL)/2 (Clopper and Pearson, Biometrika 26,
        1934): wide for few rows, [0, 1] for none.
    """
    from scipy.special import betaincinv

    tail = (1 - LEVEL) / 2
    low = 0.0 if right == 0 else float(betaincinv(right, total - right + 1, tail))
    high = 1.0 if right == total else float(betaincinv(right + 1, total - right, 1 - tail))
    return low, high


def difference_interval(right: tuple[int, int], totals: tuple[int, int]) -> tuple[float, float]:
    """Return an interval of the second share minus the first, if their rows differ.

    Parameters
    ----------
    right, totals : pair of int
        Number of successes and number of rows, for the first share and for the second.

    Returns
    -------
    tuple of float
        Wald's interval after adding one success and one failure to each (Agresti and Caffo, The American Statistician
        54, 2000).
    """
    shares = [(k + 1) / (n + 2) for k, n in zip(right, totals, strict=True)]
    variance = sum(p * (1 - p) / (n + 2) for p, n in zip(shares, totals, strict=True))
    return _around(shares[1] - shares[0], variance)


def paired_interval(gains: int, losses: int, total: int) -> tuple[float, float]:
    """Return an interval of the second share minus the first, if both have the same rows.

    Parameters
    ----------
    gains, losses, total : int
        Number of rows that only the second predicts right, that only the first predicts right, and in all.

    Returns
    -------
    tuple of float
        Wald's interval after adding half a row to each of the four cells (Agresti and Min, Statistics in Medicine 24,
        2005).
    """
    n = total + 2
    share = (gains - losses) / n
    return _around(share, ((gains + losses + 1) / n - share**2) / n)


def _around(share: float, variance: float) -> tuple[float, float]:
    from scipy.special import ndtri

    half = float(ndtri((1 + LEVEL) / 2)) * math.sqrt(variance)
    return max(share - half, -1.0), min(share + half, 1.0)


def mean_difference_interval(
    first: np.ndarray, second: np.ndarray, rows: tuple[int, int]
) -> tuple[float, float] | None:
    """Return an interval of the second mean share minus the first; each is a mean of several draws.

    Parameters
    ----------
    first, second : ndarray, shape (m,)
        Shares of the rows, one per draw.
    rows : pair of int
        Number of rows behind each share of the first and of the second.

    Returns
    -------
    tuple of float, or None
        Welch's interval. The variance of a draw is at least the binomial variance of its rows, because few draws may be
        equal by chance. None if a sample has fewer than two draws.
    """
    if min(len(first), len(second)) < 2:
        return None
    from scipy.special import stdtrit

    parts = []
    for draws, n in zip((first, second), rows, strict=True):
        share = (n * float(np.mean(draws)) + 1) / (n + 2)  # one more success and one more failure, as for single shares
        parts.append(max(float(np.var(draws, ddof=1)), share * (1 - share) / n) / len(draws))
    difference = float(np.mean(second) - np.mean(first))
    freedom = sum(parts) ** 2 / sum(p**2 / (len(d) - 1) for p, d in zip(parts, (first, second), strict=True))
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * math.sqrt(sum(parts))
    return difference - half, difference + half


def upper_limit(values: np.ndarray) -> float:
    r"""Return the upper end of the two-sided prediction interval for one further draw of a control.

    Parameters
    ----------
    values : ndarray, shape (m,)
        The control's draws so far.

    Returns
    -------
    float
        Student's prediction limit :math:`\bar x + t_{m-1} s \sqrt{1 + 1/m}`, or the largest draw if it is larger.
        Fewer than three draws do not determine a spread; the limit is then the largest draw.
    """
    from scipy.special import stdtrit

    count, largest = len(values), float(np.max(values))
    if count < 3:
        return largest
    spread = float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / count)
    return max(largest, float(np.mean(values)) + float(stdtrit(count - 1, (1 + LEVEL) / 2)) * spread)
