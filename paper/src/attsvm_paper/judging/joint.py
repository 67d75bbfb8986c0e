r"""A joint test of all points of a published figure.

The points of a curve are not independent: training runs are recorded at many steps, and parameterisations are compared
on the same instances. The statistic is the mean squared difference in units of its variance.
:mod:`attsvm_paper.judging.null_law` derives its distribution under the null hypothesis. A point with fewer than
:data:`attsvm_paper.judging.points.FEWEST` of our trials does not determine its variance: it is omitted and counted.

*Power* is stated against alternatives that we have run: the protocol with one change, our curves at the next grid
value, or curves exchanged. It is the probability that numbers printed from that protocol, with the same errors, would
have been called different. Two means of ours differ by sampling errors even if the protocols do not. The difference a
of ours and the alternative has :math:`E\,a_i^2 = \delta_i^2 + \operatorname{var} a_i`. It is scaled so that the mean of
:math:`a_i^2/\Sigma_{ii}` loses the contribution of the variances.

*Equivalence* is tested for the root mean square over points of difference over margin: the figure agrees if its 95 %
bound is below 1.

A protocol that was *chosen* because it comes nearest had many chances. The controlled error is calling a wrong protocol
in agreement. It is the probability that a protocol off by the margin would have come as near as ours, times the number
of settings searched (Bonferroni). :meth:`JointTest.after_search` multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attsvm_paper.judging.null_law import null_law
from attsvm_paper.judging.points import Point
from attsvm_paper.judging.verdict import Kind

TESTS = 20
"""Number of joint tests in a full report, rounded up: the family over which errors are controlled."""

LEVEL = 0.05 / TESTS
"""Probability that sampling error alone makes a figure differ."""

AGREEMENT = 0.05
"""Probability, over all settings of a figure, that one off by the margin is called in agreement."""

DRAWS = 10_000
SHRINKAGE = 0.1


@dataclass(frozen=True)
class Power:
    """The probability that a figure printed from another protocol is called different."""

    alternative: str
    power: float


@dataclass(frozen=True)
class JointTest:
    """The verdict on all points of a figure together.

    Attributes
    ----------
    experiment, figure : str
    reading : str
        The protocol of our runs, if the paper allows several; otherwise empty.
    values : int
        Number of distinct printed numbers tested.
    left_out : int
        Number of printed numbers that our trials do not determine.
    statistic, freedom : float
        Mean of squared differences in units of their variance: F with this many degrees of freedom under the null.
    p, level : float
    distance, bound : float
        Root mean square of difference over margin, and its 95 % upper bound.
    chance : float
        Probability that a protocol off by the margin would have come as near, times ``searched``; at most one.
    powers : tuple of Power
    log_likelihood : float
        For the printed numbers under our means, Gaussian with the covariance above, correlations shrunk by a tenth.
    verdict : {"agrees", "differs", "too weak to tell"}
    note : str
    searched : int
        Number of settings of the protocol that were searched for the nearest; one for a protocol fixed in advance.
    agreeing : int or None
        Number of these settings that agree; None if the search was not run.
    """

    experiment: str
    figure: str
    reading: str
    values: int
    left_out: int
    statistic: float
    freedom: float
    p: float
    level: float
    distance: float
    bound: float
    chance: float
    powers: tuple[Power, ...]
    log_likelihood: float
    verdict: Kind
    note: str = ""
    searched: int = 1
    agreeing: int | None = None

    def after_search(self, readings: int, agreeing: int | None = None) -> JointTest:
        """Return the test of a protocol that is the nearest of ``readings`` protocols.

        Parameters
        ----------
        readings : int
            At least one.
        agreeing : int, optional
            Number of them that agree, if all were run.
        """
        chance = min(1.0, self.chance / self.searched * readings)
        return replace(self, chance=chance, searched=readings, agreeing=agreeing, verdict=_verdict(self.p, chance))


def joint_test(
    experiment: str,
    figure: str,
    points: Sequence[Point],
    alternatives: Mapping[str, Mapping[str, Point]] | None = None,
    reading: str = "",
    note: str = "",
    seed: int = 0,
) -> JointTest | None:
    """Test all points of a figure together.

    Parameters
    ----------
    experiment, figure : str
    points : sequence of Point
        If several points have one key, the first counts: a curve in two panels is one curve.
    alternatives : mapping, optional
        Maps a description of the change to its points, keyed by the published number. Points with fewer than two trials
        are replaced by ours; an alternative with no points is omitted.
    reading, note : str
    seed : int
        Seed of the draws for power and bound.

    Returns
    -------
    JointTest or None
        None if our trials determine no point.
    """
    distinct = {one.published.key: one for one in reversed(points)}
    main = [one for one in reversed(distinct.values()) if one.is_determinate]
    if not main:
        return None
    law = null_law(main)
    difference = np.array([one.mean - one.reference for one in main])
    statistic = float(law.statistic(difference))
    margins = np.array([one.margin for one in main])
    rng = np.random.default_rng(seed)
    noise = rng.multivariate_normal(np.zeros(len(main)), law.covariance, DRAWS, check_valid="ignore", method="eigh")
    powers = []
    for name, points_of in (alternatives or {}).items():
        others = {key: one for key, one in points_of.items() if len(one.values) > 1}
        if not others.keys() & {one.published.key for one in main}:
            continue  # not run
        shifts = _shifts(main, others, np.diag(law.covariance))
        powers.append(Power(name, float(np.mean(law.statistic(shifts + noise) > law.critical(LEVEL)))))
    distance = float(np.sqrt(np.mean((difference / margins) ** 2)))
    distances = np.sqrt(np.mean(((difference + noise) / margins) ** 2, axis=1))
    bound = float(np.quantile(distances, 0.95))
    # Share of draws past the margin; one is added to both counts so that it is never zero.
    chance = float((1 + np.count_nonzero(distances >= 1)) / (1 + DRAWS))
    p = law.tail(statistic)
    return JointTest(
        experiment, figure, reading, len(main), len(distinct) - len(main), statistic, law.freedom, p, LEVEL,
        distance, bound, chance, tuple(powers), float(log_likelihood(law.covariance, difference)),
        _verdict(p, chance), note,
    )  # fmt: skip


def _verdict(p: float, chance: float) -> Kind:
    return "differs" if p < LEVEL else "agrees" if chance < AGREEMENT else "too weak to tell"


def _shifts(points: Sequence[Point], others: Mapping[str, Point], scale: np.ndarray) -> np.ndarray:
    """Return the differences of another protocol, (k,), whose mean square is corrected for sampling error."""
    pairs = [(one, others.get(one.published.key, one)) for one in points]
    shifts = np.array([one.mean - other.mean for one, other in pairs])
    size = float(np.mean(shifts**2 / scale))
    error = float(np.mean([_variance(*pair) for pair in pairs] / scale))
    return shifts * math.sqrt(max(1 - error / size, 0.0)) if size > 0 else shifts


def _variance(one: Point, other: Point) -> float:
    """Return the variance of the difference of two means, accounting for trials on the same instance."""
    first, second = (np.array(list(point.deviations.values())) for point in (one, other))
    shared = sorted(one.deviations.keys() & other.deviations.keys())
    covariance = sum(one.deviations[seed] * other.deviations[seed] for seed in shared) / (len(first) * len(second))
    return max(float(first.var() / len(first) + second.var() / len(second) - 2 * covariance), 0.0)


def log_likelihood(covariance: np.ndarray, differences: np.ndarray) -> np.ndarray:
    """Return the Gaussian log-density of differences (..., k), with correlations shrunk by :data:`SHRINKAGE`.

    The estimated covariance overstates what is known about directions in which a curve hardly varies.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm_paper.judging.joint import log_likelihood
    >>> round(float(log_likelihood(np.eye(1), np.zeros(1))), 6)  # - log(2 pi) / 2
    -0.918939
    """
    variances = np.diag(np.diag(covariance))
    shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * variances
    _, size = np.linalg.slogdet(2 * np.pi * shrunk)
    square = (differences * np.linalg.solve(shrunk, differences.T).T).sum(axis=-1)
    return -0.5 * (square + size)
