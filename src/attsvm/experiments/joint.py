r"""All points of a published figure tested at once.

The points of a curve are not independent: training runs are recorded at many steps, and parameterisations are compared
on the same instances. The statistic is the mean squared difference in units of its variance;
:mod:`attsvm.experiments.null_law` derives the law that it has when nothing differs. A point of fewer than
:data:`attsvm.experiments.points.FEWEST` trials of ours does not determine its variance: it is left out, and counted.

*Power* is stated against alternatives that we have run: the protocol with one thing changed, or our curves at the next
printed place, or taken for one another. It is the probability that numbers printed from that protocol, with the same
errors, would have been called different. Two means of ours differ by their sampling errors even where the protocols do
not; a = ours less the alternative's has :math:`E\,a_i^2 = \delta_i^2 + \operatorname{var} a_i`, and is scaled so that
the mean of :math:`a_i^2/\Sigma_{ii}` loses what the variances put into it. *Equivalence* is asked
of the root mean square over points of difference over margin: the figure agrees when its 95 % bound is below 1.

A protocol that was *chosen* because it comes nearest has had many chances to. What is controlled is the chance that a
wrong one is called in agreement: the probability that a protocol off by the margin would have come as near as ours,
times the number of readings that were searched (Bonferroni). :meth:`JointTest.after_search` multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attsvm.experiments.experiment import Kind
from attsvm.experiments.null_law import null_law
from attsvm.experiments.points import Point

TESTS = 20
"""Joint tests of a full report, rounded up: the family over which errors are controlled."""

LEVEL = 0.05 / TESTS
"""Probability that sampling error alone makes a figure differ."""

AGREEMENT = 0.05
"""Chance, over all readings of a figure, that one off by the margin is called in agreement."""

DRAWS = 10_000
SHRINKAGE = 0.1


@dataclass(frozen=True)
class Power:
    """The probability that a figure printed from another protocol is called different."""

    alternative: str
    power: float


@dataclass(frozen=True)
class JointTest:
    """The verdict on all points of a figure at once.

    Attributes
    ----------
    experiment, figure : str
    reading : str
        The protocol that ours followed, where the paper allows several; empty otherwise.
    values : int
        Distinct printed numbers tested.
    left_out : int
        Those that our trials do not determine.
    statistic, freedom : float
        Mean of squared differences in units of their variance, F with so many degrees of freedom when nothing differs.
    p, level : float
    distance, bound : float
        Root mean square of difference over margin, and its 95 % upper bound.
    chance : float
        Probability that a protocol off by the margin would have come this near, times ``searched``; at most one.
    powers : tuple of Power
    log_likelihood : float
        Of the printed numbers under our means, Gaussian with the covariance above, its correlations shrunk by a tenth.
    verdict : {"agrees", "differs", "too weak to tell"}
    note : str
    searched : int
        Readings of the protocol that were searched for the nearest; one for a protocol fixed in advance.
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

    def after_search(self, readings: int) -> JointTest:
        """Return the test of a protocol that is the nearest of so many.

        Parameters
        ----------
        readings : int
            At least one.
        """
        chance = min(1.0, self.chance / self.searched * readings)
        return replace(self, chance=chance, searched=readings, verdict=_verdict(self.p, chance))


def joint_test(
    experiment: str,
    figure: str,
    points: Sequence[Point],
    alternatives: Mapping[str, Mapping[str, Point]] | None = None,
    reading: str = "",
    note: str = "",
    seed: int = 0,
) -> JointTest | None:
    """Test all points of a figure at once.

    Parameters
    ----------
    experiment, figure : str
    points : sequence of Point
        Of one key the first counts: a curve that two panels show is one curve.
    alternatives : mapping, optional
        From what is changed, in words, to the points that it gives, by key of the published number; where there is
        none of two trials at least, ours is kept, and without any the alternative is left out.
    reading, note : str
    seed : int
        Of the draws for power and bound.

    Returns
    -------
    JointTest or None
        None where no point is determined by our trials.
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
    # The share of draws past the margin, one more counted on both sides so that it is never zero.
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
    """Return by how much another protocol differs, (k,), in the mean square as large as without sampling error."""
    pairs = [(one, others.get(one.published.key, one)) for one in points]
    shifts = np.array([one.mean - other.mean for one, other in pairs])
    size = float(np.mean(shifts**2 / scale))
    error = float(np.mean([_variance(*pair) for pair in pairs] / scale))
    return shifts * math.sqrt(max(1 - error / size, 0.0)) if size > 0 else shifts


def _variance(one: Point, other: Point) -> float:
    """Return the variance of the difference of two means, trials of the same instance counted as such."""
    first, second = (np.array(list(point.deviations.values())) for point in (one, other))
    shared = sorted(one.deviations.keys() & other.deviations.keys())
    covariance = sum(one.deviations[seed] * other.deviations[seed] for seed in shared) / (len(first) * len(second))
    return max(float(first.var() / len(first) + second.var() / len(second) - 2 * covariance), 0.0)


def log_likelihood(covariance: np.ndarray, differences: np.ndarray) -> np.ndarray:
    """Gaussian log-density of differences (..., k), their correlations shrunk by :data:`SHRINKAGE`.

    Directions in which a curve hardly varies are not known as well as the estimated covariance says.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.experiments.joint import log_likelihood
    >>> round(float(log_likelihood(np.eye(1), np.zeros(1))), 6)  # - log(2 pi) / 2
    -0.918939
    """
    variances = np.diag(np.diag(covariance))
    shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * variances
    _, size = np.linalg.slogdet(2 * np.pi * shrunk)
    square = (differences * np.linalg.solve(shrunk, differences.T).T).sum(axis=-1)
    return -0.5 * (square + size)
