r"""The proximal maps of norms of singular values.

The map of a norm subtracts from a vector its projection on a multiple of the unit ball of the dual norm (Moreau 1962).
The dual ball of the sum of the k largest is :math:`\{|x_i| \le 1, \sum|x_i| \le k\}`; its projection subtracts a common
amount from the sizes and cuts them at one. The nuclear norm has k infinite, the spectral norm one. Schatten-p norms, 1
< p < inf, are minimised through :math:`\tfrac1p\sum\sigma_i^p`, whose map takes every singular value by itself to the
root of :math:`x + sx^{p-1} = \sigma`.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.core.norms import Norm
from attsvm.core.norms.entrywise import Entrywise, LargestEntries

SHRINK_STEPS = 60


def largest_sum(norm: Norm) -> float | None:
    """Return the k of a norm that sums the k largest singular values, infinite for all of them; None for others."""
    profile = norm.profile
    if isinstance(profile, LargestEntries):
        return float(profile.k)
    return {1.0: math.inf, math.inf: 1.0}.get(profile.p) if isinstance(profile, Entrywise) else None


def shrink(sigma: np.ndarray, weight: float, k: float) -> np.ndarray:
    """Proximal map of 1/weight times the sum of the k largest at sigma (m,), nonnegative and descending."""
    cut = sigma * weight
    if np.minimum(cut, 1.0).sum() <= k:
        return sigma - np.minimum(cut, 1.0) / weight
    # The sum of clip(cut - t, 0, 1) falls from more than k to zero, linearly between cut - 1 and cut.
    kinks = np.sort(np.concatenate([cut, np.maximum(cut - 1.0, 0.0)]))
    sums = np.clip(cut[None, :] - kinks[:, None], 0.0, 1.0).sum(axis=1)
    t = float(np.interp(-k, -sums, kinks))
    return sigma - np.clip(cut - t, 0.0, 1.0) / weight


def shrink_power(sigma: np.ndarray, weight: float, p: float) -> np.ndarray:
    """Proximal map of 1/weight times the sum of p-th powers over p at sigma (m,), nonnegative."""
    low, high = np.zeros_like(sigma), sigma.copy()
    x = 0.5 * sigma
    for _ in range(SHRINK_STEPS):
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            excess = x + x ** (p - 1.0) / weight - sigma
            slope = 1.0 + (p - 1.0) * x ** (p - 2.0) / weight
            new = x - excess / slope
        low, high = np.where(excess <= 0, x, low), np.where(excess >= 0, x, high)
        inside = (new > low) & (new < high)
        new = np.where(inside, new, 0.5 * (low + high))
        if (np.abs(new - x) <= 4 * np.spacing(sigma)).all():
            break
        x = new
    return new
