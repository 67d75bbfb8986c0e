r"""The distribution of a figure's statistic under the null hypothesis, estimated from our trials.

Let :math:`\delta` be the differences of our means from the printed ones and :math:`S` the covariance of one trial,
estimated from ours over the seeds that points share. Then

.. math:: \Sigma_{ij} = S_{ij}\Bigl(\frac{m_{ij}}{m_i m_j} + \frac1N\Bigr) + r_i^2 [i=j],

where :math:`m_i` of our trials count at point i, :math:`m_{ij}` at both points, N is their number of trials and r the
reading error. The statistic is the mean of :math:`\delta_i^2/\Sigma_{ii}` over the k points. Under the null it is
approximately F (Box, *Ann. Math. Stat.* 25, 1954). Its degrees of freedom are :math:`\nu = k^2/\sum_{ij} R_{ij}^2`,
with the correlations R, and the degrees of freedom of the estimated variances. Many points that move together therefore
count as few. Hotelling's statistic would lose power in the many directions in which a curve of correlated points hardly
varies.

Points have different numbers of trials. Each adds a squared t with :math:`f_i = m_i - 1` degrees of freedom, whose mean
is :math:`f_i/(f_i-2)`. The second degrees of freedom of F are chosen so that its mean is the average of these means.
One point with ten trials among many with a hundred therefore changes little.

An estimated variance of 0 does not mean certainty. For shares and counts, half a trial that differs by one is added.
Counts have at least the variance that integers with the printed mean must have. Values on a logarithmic axis are
compared as logarithms. If one run in a hundred is twenty times the mean, the statistic has a longer tail than F. It is
then divided by a ratio of quantiles at :data:`TAIL`: between two bootstrap samples of ours, over the nominal one. A few
dozen trials may lack such a run. If the printed scatter shows their trials, the variance is estimated from both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import fdtrc, fdtri

from attsvm_paper.judging.points import Point

BOOTSTRAPS = 1000
TAIL = 0.99


@dataclass(frozen=True, eq=False)
class NullLaw:
    """The distribution of the differences under the null hypothesis.

    Attributes
    ----------
    covariance : numpy.ndarray, shape (k, k)
        Covariance of the differences.
    trials : numpy.ndarray, shape (k,)
        Number of our trials at each point, at least :data:`attsvm_paper.judging.points.FEWEST`.
    stretch : float
        Divisor of the statistic.
    """

    covariance: np.ndarray
    trials: np.ndarray
    stretch: float = 1.0

    @cached_property
    def freedom(self) -> float:
        """Degrees of freedom of the statistic."""
        scale = np.sqrt(np.diag(self.covariance))
        return len(scale) ** 2 / float(np.sum((self.covariance / np.outer(scale, scale)) ** 2))

    @cached_property
    def error_freedom(self) -> float:
        """Degrees of freedom of the estimated variances, for which F has the mean of the points' squared t."""
        own = self.trials - 1.0
        mean = float(np.mean(own / (own - 2)))
        return 2 * mean / (mean - 1)

    def statistic(self, differences: np.ndarray) -> np.ndarray:
        """Return the mean square of differences (..., k) in units of their variance."""
        return (differences**2 / np.diag(self.covariance)).mean(-1) / self.stretch

    def tail(self, statistic: float) -> float:
        """Return the probability of a larger statistic."""
        return float(fdtrc(self.freedom, self.error_freedom, statistic))

    def critical(self, level: float) -> float:
        """Return the statistic that is exceeded with the given probability."""
        return float(fdtri(self.freedom, self.error_freedom, 1 - level))


def null_law(points: Sequence[Point]) -> NullLaw:
    """Estimate the distribution from the contribution of each trial to each mean.

    Parameters
    ----------
    points : sequence of Point
        Determined points.

    Returns
    -------
    NullLaw
    """
    every = sorted(set().union(*(one.values for one in points)))
    table = np.array([[one.deviations.get(seed, np.nan) for one in points] for seed in every])  # (seeds, k)
    law = NullLaw(_covariance(points, table), np.array([len(one.values) for one in points]))
    return replace(law, stretch=_stretch(points, table, law)) if any(one.kind == "log" for one in points) else law


def _stretch(points: Sequence[Point], table: np.ndarray, law: NullLaw) -> float:
    """Return the ratio of the statistic's tail to the nominal one, from pairs of bootstrap samples of ours."""
    rng = np.random.default_rng(0)
    logs = np.array([one.kind == "log" for one in points])
    theirs = np.array([one.theirs for one in points])
    there = np.isfinite(table)
    count = there.sum(0)
    # Points have different trials: each trial gets a Poisson weight, which does not fix their number.
    values = np.where(there, np.where(logs, 1 + table, table), 0.0)
    share = np.minimum(theirs / count, 1.0)
    squared = np.empty(BOOTSTRAPS)
    variance = np.diag(law.covariance)
    for draw in range(BOOTSTRAPS):
        means, spreads = [], []
        for rate in (np.ones_like(share), share):
            weight = rng.poisson(1.0, len(table))[:, None] * (rng.random((len(table), 1)) < rate)
            total = np.maximum((weight * there).sum(0), 1)
            mean = (weight * values).sum(0) / total
            spreads.append((weight * (values - mean * there) ** 2).sum(0) / total)
            means.append(np.where(logs, np.log(np.maximum(mean, np.finfo(float).tiny)), mean))
        own = spreads[0] * (1 / count + 1 / theirs)
        difference = means[0] - means[1]
        squared[draw] = np.mean(difference**2 / np.maximum(own, 1e-3 * variance))
    return max(1.0, float(np.quantile(squared, TAIL)) / law.critical(1 - TAIL))


def _covariance(points: Sequence[Point], table: np.ndarray) -> np.ndarray:
    """Return the covariance of a block's differences from the contributions of each trial to each mean, (seeds, k)."""
    there = np.isfinite(table)
    table_or_zero = np.where(there, table, 0.0)
    shared = there.T.astype(float) @ there  # trials that count at both points
    moments = table_or_zero.T @ table_or_zero / np.maximum(shared - 1, 1)
    own = np.diag(moments).copy()
    least = np.array([one.floor for one in points])
    scale = np.sqrt(np.maximum(own, least) / np.where(own > 0, own, 1.0))
    moments *= np.outer(scale, scale)
    moments[np.diag_indices_from(moments)] = np.maximum(own, least)
    count = np.diag(shared)
    theirs = np.array([one.theirs for one in points])
    weight = shared / np.outer(count, count) + 1 / np.sqrt(np.outer(theirs, theirs))
    covariance = moments * weight
    if not there.all():
        # Entries are estimated from different trials, so this may not be a covariance: take the nearest one.
        values, vectors = np.linalg.eigh(covariance)
        own = np.diag(covariance).copy()
        covariance = (vectors * np.maximum(values, 0.0)) @ vectors.T
        covariance[np.diag_indices_from(covariance)] = np.maximum(own, np.diag(covariance))
    reading = np.array([one.reading for one in points])
    # Rounding of a difference of two decimal numbers.
    covariance[np.diag_indices_from(covariance)] += reading**2 + np.finfo(float).eps
    return covariance
