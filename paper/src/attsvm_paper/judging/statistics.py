r"""Intervals at 95 %.

A share gets Wilson's interval: the shares p that the score test does not reject, :math:`|\hat p-p| \le
z\sqrt{p(1-p)/m}`. It stays inside [0, 1] and does not collapse at 0 of m. A mean gets Student's t interval. A median, a
fitted exponent or a mean of few skewed values gets the percentile bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

_AT_ONCE = 1 << 16  # numbers resampled in one call


def wilson_interval(hits: int, sample_size: int, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval for a share.

    Parameters
    ----------
    hits, sample_size : int
        Number of successes and of counted trials; for no trials the interval is [0, 1].
    level : float

    Returns
    -------
    tuple of float
    """
    check_share(hits, sample_size)
    if sample_size == 0:
        return 0.0, 1.0
    z2 = normal_quantile(level) ** 2
    centre = (hits + z2 / 2) / (sample_size + z2)
    half = math.sqrt(z2 * (hits * (sample_size - hits) / sample_size + z2 / 4)) / (sample_size + z2)
    # At the ends the exact bound is 0 or 1; rounding would leave 1e-17.
    return 0.0 if hits == 0 else centre - half, 1.0 if hits == sample_size else centre + half


def mean_interval(values: Any, level: float = 0.95) -> tuple[float, float]:
    """Return Student's t interval for a mean; unbounded for fewer than two values.

    Parameters
    ----------
    values : array_like, shape (m,)
    level : float

    Returns
    -------
    tuple of float
    """
    sample = vector(values)
    if len(sample) < 2:
        return -math.inf, math.inf
    half = student_quantile(level, len(sample) - 1) * sample.std(ddof=1) / math.sqrt(len(sample))
    return float(sample.mean() - half), float(sample.mean() + half)


def bootstrap_interval(
    values: Any, statistic: Callable[..., Any] = np.mean, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of any statistic; the same values give the same interval.

    Parameters
    ----------
    values : array_like, shape (m, ...)
        Resampled along the first axis.
    statistic : callable
        ``statistic(values, axis=0)``, such as ``numpy.median``.
    level : float
    resamples : int
    seed : int

    Returns
    -------
    tuple of float
        Unbounded for fewer than two values.
    """
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) < 2:
        return -math.inf, math.inf
    rng = np.random.default_rng(seed)
    if statistic in (np.mean, np.median):
        # Many resamples per call, (trials, resamples, ...), limited by memory.
        at_once = max(1, _AT_ONCE // sample.size)
        sizes = [min(at_once, resamples - size) for size in range(0, resamples, at_once)]
        picks = (rng.integers(len(sample), size=(size, len(sample))).T for size in sizes)
        draws = np.concatenate([statistic(sample[pick], axis=0) for pick in picks])
    else:
        draws = [statistic(sample[rng.integers(len(sample), size=len(sample))], axis=0) for _ in range(resamples)]
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def normal_quantile(level: float) -> float:
    """Return z with probability `level` between -z and z."""
    return float(ndtri((1 + level) / 2))


def student_quantile(level: float, freedom: int) -> float:
    """Return Student's t with probability `level` between -t and t."""
    return float(stdtrit(freedom, (1 + level) / 2))


def vector(values: Any) -> np.ndarray:
    """Return values as a finite vector.

    Raises
    ------
    ValueError
        If they have another shape, or are not finite.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not np.isfinite(sample).all():
        raise ValueError(f"values has shape {sample.shape}; a vector of finite numbers, one per trial, was expected.")
    return sample


def check_share(hits: int, sample_size: int) -> None:
    """Refuse a number of successes outside 0 to the number of trials.

    Raises
    ------
    ValueError
    """
    if not 0 <= hits <= sample_size:
        raise ValueError(f"hits is {hits} of {sample_size}; a number of successes among trials was expected.")
