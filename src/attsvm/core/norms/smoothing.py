r"""Smooth approximations of norms: absolute values, gauges of nonnegative numbers, and their composition.

A method needs a convex approximation of the norm, with gradient and Hessian, for every :math:`\mu > 0`:

.. math:: f_\mu(V) \to \|V\| \quad (\mu \to 0), \qquad \|\nabla f_\mu(V)\|_* \le 1, \qquad
   \nabla f_{c\mu}(cV) = \nabla f_\mu(V) \quad (c > 0),

The first property makes a minimiser of :math:`f_\mu` nearly a minimiser of the norm. The second makes its gradient a
dual point. The third gives the tangent of the path of minimisers, :math:`\mu\,\partial_\mu\nabla f_\mu(V) = -\nabla^2
f_\mu(V) V` (Euler). Such functions are composed of the two functions below and of gauges.

All are optimal values of barrier problems with weight :math:`\mu`, or compositions of such values. They are therefore
convex and satisfy :math:`f_{c\mu}(cx) = c f_\mu(x)` (logarithms are in units of :math:`\mu`):

.. math:: |x| \approx h_\mu(x) = \min_r\; r - \mu\log\frac{r^2 - x^2}{2\mu^2}, \qquad
   \max(0, x) \approx \min_u\; u - \mu\log\frac{u}{\mu} - \mu\log\frac{u - x}{\mu}.

Let :math:`R = \sqrt{\mu^2 + x^2}`. The first has the minimiser :math:`r = \mu + R`, slope :math:`x/r` and curvature
:math:`\mu/(Rr)`, with no cancellation. The sum of the k largest of nonnegative numbers is :math:`\min_s ks +
\sum\max(0, x_i - s)`, smoothed term by term; the maximum is the case k = 1. The l_p gauge, p < inf, is smooth at
positive values, and smoothed absolute values are positive. Gauges increase in each argument, so a gauge of smooth
convex functions is convex. Slopes of smoothed absolute values are below one, so the gradient stays inside the unit ball
of the dual norm.

The second derivative of a function of singular values is due to Lewis and Sendov (SIAM J. Matrix Anal. 23, 2001).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from attsvm.core.error_free import EPS

# Contribution of each norm to a gradient, and the product of its derivative with a direction.
Parts = tuple[tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]], ...]

# Largest number of Newton steps for the threshold s of the k largest numbers, and its relative error.
ROOT_STEPS, GAUGE_TOLERANCE = 200, 64 * EPS
# Difference of singular values, relative to the largest, below which a divided difference is replaced by its limit.
CLOSE = 1e-7


@dataclass(frozen=True)
class Smooth:
    """A smooth approximation of a norm at one matrix V (p, r).

    Attributes
    ----------
    value : float
    gradient : ndarray, shape (p, r)
        Its dual norm is at most one.
    curvature : ndarray, shape (p r, p r), or callable
        The Hessian, V flattened row by row, or a function that returns it.
    parts : tuple of (ndarray, callable)
        For a composed norm, one pair per norm: its contribution (p, r) to the gradient, and the product of the
        contribution's derivative with a direction (p r,).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import norms
    >>> smooth = norms.Schatten(2).smoothing(np.array([[3.0], [4.0]]), 1e-8)
    >>> type(smooth).__name__, round(smooth.value, 6), smooth.gradient.round(6).ravel().tolist()
    ('Smooth', 5.0, [0.6, 0.8])
    """

    value: float
    gradient: np.ndarray
    curvature: np.ndarray | Callable[[], np.ndarray]
    parts: Parts = ()

    @cached_property
    def hessian(self) -> np.ndarray:
        """The Hessian, computed on first use."""
        return self.curvature() if callable(self.curvature) else self.curvature

    @property
    def leaves(self) -> Parts:
        """Contributions of all component norms; of the norm itself if it is not composed."""
        return self.parts or ((self.gradient, lambda step: self.hessian @ step),)


@dataclass(frozen=True)
class GaugeValue:
    """A smooth gauge at nonnegative numbers x (m,), with the Hessian diag(diagonal) - coefficient u u^T.

    Attributes
    ----------
    weight : ndarray, shape (m,)
        The gradient, nonnegative.
    diagonal, u : ndarray, shape (m,)
    """

    value: float
    weight: np.ndarray
    diagonal: np.ndarray
    u: np.ndarray
    coefficient: float


Gauge = Callable[[np.ndarray, float], GaugeValue]


def smooth_absolute(x: np.ndarray, mu: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value, slope and curvature of the smooth absolute value."""
    root = np.hypot(mu, x)
    r = mu + root
    return r - mu * np.log(r / mu), x / r, mu / (root * r)


def smooth_positive(x: np.ndarray, mu: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Value, slope, one minus the slope, and curvature of the smooth positive part."""
    upper, lower = _around(x, mu)
    return upper - mu * np.log(upper / mu) - mu * np.log(lower / mu), *_slopes(upper, lower, mu)


def _around(x: np.ndarray, mu: float) -> tuple[np.ndarray, np.ndarray]:
    """Return u and u - x, of which the smooth positive part consists."""
    half = 0.5 * x
    root, size = np.hypot(mu, half), np.abs(half)
    far = mu + root + size
    near = mu + mu * (mu / (root + size))
    positive = x > 0
    return np.where(positive, far, near), np.where(positive, near, far)


def _slopes(upper: np.ndarray, lower: np.ndarray, mu: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Slope, one minus the slope, and curvature of the smooth positive part."""
    return mu / lower, mu / upper, 1.0 / (upper * (upper / mu) + lower * (lower / mu))


def power_gauge(p: float) -> Gauge:
    """Return the l_p gauge of positive numbers, 1 <= p < inf."""

    def gauge(x: np.ndarray, mu: float) -> GaugeValue:
        if p == 1:
            return GaugeValue(float(x.sum()), np.ones(len(x)), np.zeros(len(x)), np.zeros(len(x)), 0.0)
        top = float(x.max())
        value = top * float(((x / top) ** p).sum()) ** (1.0 / p)
        part = x / value
        weight = part ** (p - 1.0)
        return GaugeValue(value, weight, (p - 1.0) / value * part ** (p - 2.0), weight, (p - 1.0) / value)

    return gauge


def top_gauge(k: int) -> Gauge:
    """Return the smooth sum of the k largest of nonnegative numbers."""

    def gauge(x: np.ndarray, mu: float) -> GaugeValue:
        if k >= len(x):
            return power_gauge(1.0)(x, mu)
        rest = len(x) - k
        order = np.argsort(x)
        pivot = float(x[order[-k]])
        offset = x - pivot
        among = np.zeros(len(x), dtype=bool)
        among[order[-k:]] = True
        # The weights sum to at least k at ``low`` and to at most k at ``high``: the root of sum(weight) = k is between.
        low, high = float(offset.min()) - len(x) * mu, float(offset.max()) + len(x) * mu
        s = 0.5 * float(offset[order[-k - 1]])
        for _ in range(ROOT_STEPS):
            weight, missing, curvature = _slopes(*_around(offset - s, mu), mu)
            excess = float(weight[~among].sum()) - float(missing[among].sum())
            low, high = (s, high) if excess > 0 else (low, s)
            # Newton's method for 1/(m - S) - 1/S, S the sum of m weights: this function of s is linear if all x agree.
            total, short = k + excess, rest - excess
            slope = (1.0 / short**2 + 1.0 / total**2) * float(curvature.sum())
            after = s + excess * (1.0 / (rest * short) + 1.0 / (k * total)) / slope
            if abs(after - s) <= GAUGE_TOLERANCE * max(abs(s), mu):
                break
            s = after if low < after < high else 0.5 * (low + high)
        positive, weight, _, curvature = smooth_positive(offset - s, mu)
        total = float(curvature.sum())
        return GaugeValue(k * (pivot + s) + float(positive.sum()), weight, curvature, curvature, 1.0 / total)

    return gauge


def norm_gauge(p: float) -> Gauge:
    """Return the l_p gauge, p in [1, inf]."""
    return top_gauge(1) if math.isinf(p) else power_gauge(p)


def entrywise_parts(
    gauge: Gauge, V: np.ndarray, mu: float, weights: np.ndarray | float = 1.0
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Smooth the gauge of the absolute entries of V (p, r), times positive weights.

    Return (value, gradient (p, r), h (p r,), b (p r,)), where the Hessian is diag(h) - b b^T.
    """
    scale = np.broadcast_to(weights, V.shape).ravel()
    absolute, slope, curvature = smooth_absolute(scale * V.ravel(), mu)
    outer = gauge(absolute, mu)
    slope = slope * scale
    diagonal = outer.weight * curvature * scale**2 + outer.diagonal * slope**2
    gradient = (outer.weight * slope).reshape(V.shape)
    return outer.value, gradient, diagonal, math.sqrt(outer.coefficient) * (outer.u * slope)


def entrywise_smoothing(gauge: Gauge, V: np.ndarray, mu: float, weights: np.ndarray | float = 1.0) -> Smooth:
    """Smooth the gauge of the weighted absolute entries of V (p, r), with the full Hessian."""
    value, gradient, diagonal, curvature = entrywise_parts(gauge, V, mu, weights)
    return Smooth(value, gradient, lambda: np.diag(diagonal) - np.outer(curvature, curvature))


def compose(gauge: Gauge, inner: list[tuple[np.ndarray, Smooth]], shape: tuple[int, int], mu: float) -> Smooth:
    """Smooth the gauge of several smooth norms.

    Parameters
    ----------
    inner : list of (ndarray of int, Smooth)
        Flat indices of the entries of V that a norm reads, and its smoothing at them.
    shape : tuple
        Shape of V.
    """
    outer = gauge(np.array([part.value for _, part in inner]), mu)
    slopes = np.zeros((len(inner), math.prod(shape)))
    for slope, (where, part) in zip(slopes, inner, strict=True):
        slope[where] = part.gradient.ravel()

    def hessian() -> np.ndarray:
        matrix = (slopes.T * outer.diagonal) @ slopes
        for weight, (where, part) in zip(outer.weight, inner, strict=True):
            matrix[np.ix_(where, where)] += weight * part.hessian
        curvature = outer.u @ slopes
        return matrix - outer.coefficient * np.outer(curvature, curvature)

    return Smooth(outer.value, (outer.weight @ slopes).reshape(shape), hessian)


def largest_smoothing(first: Smooth, second: Smooth, mu: float) -> Smooth:
    """Smooth the maximum of two smooth norms, with the parts of all their component norms."""
    outer = top_gauge(1)(np.array([first.value, second.value]), mu)
    # The weights sum to one, so they change by opposite amounts, at the rate c = d_1 d_2 / (d_1 + d_2).
    rate = float(outer.diagonal[0] * outer.coefficient * outer.diagonal[1])
    apart = (first.gradient - second.gradient).ravel()
    gradient = outer.weight[0] * first.gradient + outer.weight[1] * second.gradient

    def hessian() -> np.ndarray:
        inner = outer.weight[0] * first.hessian + outer.weight[1] * second.hessian
        return inner + rate * np.outer(apart, apart)

    def parts() -> Iterator[tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]]:
        for inner, weight, change in zip((first, second), outer.weight, (rate * apart, -rate * apart), strict=True):
            for slope, derivative in inner.leaves:
                yield weight * slope, partial(_weighted, weight, change, slope.ravel(), derivative)

    return Smooth(outer.value, gradient, hessian, tuple(parts()))


def _weighted(
    weight: float,
    change: np.ndarray,
    slope: np.ndarray,
    derivative: Callable[[np.ndarray], np.ndarray],
    step: np.ndarray,
) -> np.ndarray:
    """Differentiate a changing weight times a slope (p r,) in a direction (p r,)."""
    return weight * derivative(step) + float(change @ step) * slope


def spectral_smoothing(profile: Callable[[np.ndarray, float], Smooth], V: np.ndarray, mu: float) -> Smooth:
    """Smooth a function of the singular values of V (p, r), given its smoothing as a function of a row."""
    p, r = V.shape
    count = min(p, r)
    U, sigma, Vt = np.linalg.svd(V)
    inner = profile(sigma[None], mu)
    g = inner.gradient[0]

    def hessian() -> np.ndarray:
        # In the bases U and V, the profile's Hessian couples the entries (i, i), and divided differences couple (i, j)
        # with (j, i). Entries beyond the square get g_i / sigma_i.
        curvature = inner.hessian
        diagonal = np.diag(curvature)
        ratio = np.where(sigma > 0, g / np.where(sigma > 0, sigma, 1.0), diagonal)
        total = sigma[:, None] + sigma
        differences = sigma[:, None] - sigma
        limit = 0.5 * (diagonal[:, None] + diagonal) - curvature
        close = np.abs(differences) <= CLOSE * float(sigma[0])
        minus = np.where(close, limit, (g[:, None] - g) / np.where(close, 1.0, differences))
        plus = np.where(total > 0, (g[:, None] + g) / np.where(total > 0, total, 1.0), minus)
        own = np.broadcast_to(ratio[:, None] if p <= r else ratio, (p, r)).copy()
        own[:count, :count] = 0.5 * (minus + plus)
        across = 0.5 * (minus - plus)
        np.fill_diagonal(own, 0.0)
        np.fill_diagonal(across, 0.0)
        left, right = (rows[:, :, None] * rows[:, None, :] for rows in (U.T, Vt))  # (p, p, p), (r, r, r)
        matrix = np.tensordot(np.tensordot(left, own, axes=(0, 0)), right, axes=(2, 0)).transpose(0, 2, 1, 3)
        pairs = (U[:, None, :count] * Vt[:count].T).reshape(p * r, count)  # u_i v_i^T
        matrix = matrix + ((pairs @ across) @ pairs.T).reshape(p, r, p, r).transpose(0, 3, 2, 1)
        return matrix.reshape(p * r, p * r) + (pairs @ curvature) @ pairs.T

    gradient = (U[:, :count] * g) @ Vt[:count]
    return Smooth(inner.value, gradient, hessian)
