r"""All points of a published figure tested at once.

The points of a curve are not independent: training runs are recorded at many steps, and parameterisations are compared
on the same instances. With :math:`\delta` the differences of our means from the printed ones and :math:`S` the
covariance of one trial, estimated from ours over the seeds that points share,

.. math:: \Sigma_{ij} = S_{ij}\Big(\frac{m_{ij}}{m_i m_j} + \frac1N\Big) + r_i^2 [i=j],

where :math:`m_i` trials of ours count at point i, :math:`m_{ij}` at both, N are theirs and r is the reading error.
The statistic is the mean of :math:`\delta_i^2/\Sigma_{ii}` over the k points. Under the null it is, by Box (*Ann. Math.
Stat.* 25, 1954), about F with :math:`\nu = k^2/\sum_{ij} R_{ij}^2` degrees of freedom, R the correlations, and those of
the estimated variances: many points that move together count as the few that they are. Hotelling's statistic would
spend its power on the many directions in which a curve of correlated points hardly varies.

A variance estimated as 0 is no certainty: shares take half a success more, counts vary at least as integers of the
printed mean must. Values on a logarithmic axis are compared as logarithms; where one run in a hundred is twenty times
the mean, the statistic has a longer tail than F, and is divided by what two bootstrap samples of ours show that tail to
be (their quantile at :data:`TAIL` over the nominal one).

*Power* is stated against alternatives that we have run: the protocol with one thing changed, or our curves at the next
printed place, or taken for one another. It is the probability that numbers printed from that protocol, with the same
errors, would have been called different. Two means of ours differ by their sampling errors even where the protocols do
not; a = ours less the alternative's has :math:`E\,a_i^2 = \delta_i^2 + \operatorname{var} a_i`, and is scaled so that
the mean of :math:`a_i^2/\Sigma_{ii}` loses what the variances put into it. *Equivalence* is asked
of the root mean square over points of difference over margin: the figure agrees when its 95 % bound is below 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from attsvm.experiments.experiment import Kind, Row
from attsvm.experiments.published.ledger import Printed, PrintedCurve, of_ledger

TESTS = 20
"""Joint tests of a full report, rounded up: the family over which errors are controlled."""

LEVEL = 0.05 / TESTS
"""Probability that sampling error alone makes a figure differ."""

DRAWS = 1000
SHRINKAGE = 0.1
TAIL = 0.99
LARGEST_ERROR = 0.3
"""Relative standard error from which the mean of a skewed distance says nothing, and is left out."""


@dataclass(frozen=True, eq=False)
class Point:
    """One printed number and our trials of it.

    Attributes
    ----------
    published : Printed
    values : mapping of int to float
        From the seed of each trial that counts to its value; equal seeds are equal instances.
    margin : float
        The difference that would matter; of logarithms for kind "log".
    kind : {"share", "count", "mean", "log"}
    place : object
        Where on its curve the point lies, and which curve: (curve, index), for alternatives that are off by a notch.
    trials : int, optional
        Theirs, where the ledger has none.
    """

    published: Printed
    values: Mapping[int, float]
    margin: float
    kind: Literal["share", "count", "mean", "log"] = "mean"
    place: tuple[str, int] = ("", 0)
    trials: int | None = None

    def __post_init__(self) -> None:
        if of_ledger(self.published) is None:
            raise ValueError(f"published is None for {self.place}; a number of the ledger was expected.")
        if not self.margin > 0:
            raise ValueError(f"margin is {self.margin} for {self.published.key}; a positive number was expected.")

    @property
    def theirs(self) -> float:
        """Trials behind the printed number."""
        return float(self.published.trials or self.trials or math.inf)

    @cached_property
    def mean(self) -> float:
        """Ours; its logarithm for kind "log"."""
        mean = float(np.mean(list(self.values.values())))
        return math.log(max(mean, np.finfo(float).tiny)) if self.kind == "log" else mean

    @property
    def printed(self) -> float:
        """Theirs, in the same unit."""
        return math.log(self.published.value) if self.kind == "log" else self.published.value

    @property
    def reading(self) -> float:
        """Reading error in that unit."""
        return self.published.error / self.published.value if self.kind == "log" else self.published.error

    @cached_property
    def deviations(self) -> dict[int, float]:
        """What each trial adds to the mean: value less mean, of logarithms in first order."""
        values = np.array(list(self.values.values()), dtype=float)
        scale = max(float(values.mean()), np.finfo(float).tiny) if self.kind == "log" else 1.0
        return dict(zip(self.values, ((values - values.mean()) / scale).tolist(), strict=True))

    @property
    def determined(self) -> bool:
        """Whether our trials determine the mean: for logarithms, a standard error below :data:`LARGEST_ERROR`."""
        count = len(self.values)
        if count < 2 or self.kind != "log":
            return count > 1
        return float(np.std(list(self.deviations.values()))) / math.sqrt(count) < LARGEST_ERROR

    @property
    def floor(self) -> float:
        """Least variance of one trial."""
        count = len(self.values)
        if self.kind == "share":
            theirs = self.theirs if math.isfinite(self.theirs) else 0.0
            pooled = (sum(self.values.values()) + 0.5 + self.published.value * theirs) / (count + 1 + theirs)
            return pooled * (1 - pooled)
        if self.kind == "count":
            return self.published.value % 1 * (1 - self.published.value % 1)
        return 0.0


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
    statistic, freedom : float
        Mean of squared differences in units of their variance, F with so many degrees of freedom when nothing differs.
    p, level : float
    distance, bound : float
        Root mean square of difference over margin, and its 95 % upper bound.
    powers : tuple of Power
    log_likelihood : float
        Of the printed numbers under our means, Gaussian with the covariance above, its correlations shrunk by a tenth.
    verdict : {"agrees", "differs", "too weak to tell"}
    note : str
    """

    experiment: str
    figure: str
    reading: str
    values: int
    statistic: float
    freedom: float
    p: float
    level: float
    distance: float
    bound: float
    powers: tuple[Power, ...]
    log_likelihood: float
    verdict: Kind
    note: str = ""


@dataclass(frozen=True, eq=False)
class _Law:
    """The law of the differences when nothing differs."""

    covariance: np.ndarray
    trials: int
    stretch: float = 1.0

    @cached_property
    def freedom(self) -> float:
        """Degrees of freedom of the statistic."""
        scale = np.sqrt(np.diag(self.covariance))
        return len(scale) ** 2 / float(np.sum((self.covariance / np.outer(scale, scale)) ** 2))

    def statistic(self, differences: np.ndarray) -> np.ndarray:
        """Return the mean square of differences (..., k) in units of their variance."""
        return (differences**2 / np.diag(self.covariance)).mean(-1) / self.stretch

    def tail(self, statistic: float) -> float:
        """Return the probability of a larger statistic."""
        from scipy.special import fdtrc

        return float(fdtrc(self.freedom, max(self.trials - 1, 1), statistic))

    @property
    def critical(self) -> float:
        """The statistic from which a figure differs."""
        from scipy.special import fdtri

        return float(fdtri(self.freedom, max(self.trials - 1, 1), 1 - LEVEL))


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
    known = [one for one in reversed(distinct.values()) if one.determined]
    if not known:
        return None
    law = _law(known)
    difference = np.array([one.mean - one.printed for one in known])
    statistic = float(law.statistic(difference))
    margins = np.array([one.margin for one in known])
    rng = np.random.default_rng(seed)
    noise = rng.multivariate_normal(np.zeros(len(known)), law.covariance, DRAWS, check_valid="ignore", method="eigh")
    powers = []
    for name, points_of in (alternatives or {}).items():
        others = {key: one for key, one in points_of.items() if len(one.values) > 1}
        if not others.keys() & {one.published.key for one in known}:
            continue  # not run
        away = _away(known, others, np.diag(law.covariance))
        powers.append(Power(name, float(np.mean(law.statistic(away + noise) > law.critical))))
    distance = float(np.sqrt(np.mean((difference / margins) ** 2)))
    bound = float(np.quantile(np.sqrt(np.mean(((difference + noise) / margins) ** 2, axis=1)), 0.95))
    p = law.tail(statistic)
    verdict: Kind = "differs" if p < LEVEL else "agrees" if bound < 1 else "too weak to tell"
    return JointTest(
        experiment, figure, reading, len(known), statistic, law.freedom, p, LEVEL, distance, bound, tuple(powers),
        _log_likelihood(law.covariance, difference), verdict, note,
    )  # fmt: skip


def curve_points(
    curve: PrintedCurve,
    cells: Mapping[Any, Sequence[Row]],
    value: Callable[[Row], float | bool | None],
    margin: float,
    kind: Literal["share", "count", "mean", "log"] = "mean",
    trials: int | None = None,
) -> list[Point]:
    """Pair the numbers of a printed curve with our rows.

    Parameters
    ----------
    curve : PrintedCurve
    cells : mapping
        From places on its axis to our rows there; other places are left out.
    value : callable
        Of a row; None where the trial does not count.
    margin, kind, trials
        As in :class:`Point`.

    Returns
    -------
    list of Point
    """
    made = []
    for at, (x, printed) in enumerate(curve.points.items()):
        if x in cells:
            values = {row["seed"]: known for row in cells[x] if (known := value(row)) is not None}
            plain = {seed: float(known) for seed, known in values.items()}
            made.append(Point(printed, plain, margin, kind, (curve.key, at), trials))
    return made


def by_key(points: Iterable[Point]) -> dict[str, Point]:
    """Return the points of a protocol by the key of the published number, as :func:`joint_test` takes alternatives."""
    return {one.published.key: one for one in points}


def notches(points: Iterable[Point], by: int = 1) -> dict[str, Point]:
    """Return for every point, by key, the one that lies `by` places further on its curve; ends keep their own."""
    placed = {one.place: one for one in points}
    return {one.published.key: placed.get((curve, at + by), one) for (curve, at), one in placed.items()}


def swapped(points: Iterable[Point], partner: Mapping[str, str]) -> dict[str, Point]:
    """Return the points that each curve has when the named curves are taken for one another, by key."""
    placed = {one.place: one for one in points}
    return {one.published.key: placed.get((partner.get(curve, curve), at), one) for (curve, at), one in placed.items()}


def _away(points: Sequence[Point], others: Mapping[str, Point], scale: np.ndarray) -> np.ndarray:
    """Return by how much another protocol differs, (k,), in the mean square as large as without sampling error."""
    pairs = [(one, others.get(one.published.key, one)) for one in points]
    away = np.array([one.mean - other.mean for one, other in pairs])
    size = float(np.mean(away**2 / scale))
    error = float(np.mean([_variance(*pair) for pair in pairs] / scale))
    return away * math.sqrt(max(1 - error / size, 0.0)) if size > 0 else away


def _variance(one: Point, other: Point) -> float:
    """Return the variance of the difference of two means, trials of the same instance counted as such."""
    first, second = (np.array(list(point.deviations.values())) for point in (one, other))
    shared = sorted(one.deviations.keys() & other.deviations.keys())
    covariance = sum(one.deviations[seed] * other.deviations[seed] for seed in shared) / (len(first) * len(second))
    return max(float(first.var() / len(first) + second.var() / len(second) - 2 * covariance), 0.0)


def _law(points: Sequence[Point]) -> _Law:
    """Estimate the law from what each trial adds to each mean."""
    every = sorted(set().union(*(one.values for one in points)))
    table = np.array([[one.deviations.get(seed, np.nan) for one in points] for seed in every])  # (seeds, k)
    stretch = _stretch(points, table) if any(one.kind == "log" for one in points) else 1.0
    return _Law(_covariance(points, table), min(len(one.values) for one in points), stretch)


def _stretch(points: Sequence[Point], table: np.ndarray) -> float:
    """Return by how much the tail of the statistic is longer than nominal, from pairs of bootstrap samples of ours."""
    from scipy.special import fdtri

    rng = np.random.default_rng(0)
    logs = np.array([one.kind == "log" for one in points])
    theirs = np.array([one.theirs for one in points])
    there = np.isfinite(table)
    count = there.sum(0)
    # Points have trials of their own: each trial gets a Poisson weight, which does not fix their number.
    values = np.where(there, np.where(logs, 1 + table, table), 0.0)
    share = np.minimum(theirs / count, 1.0)
    squared = np.empty(DRAWS)
    variance = np.diag(_covariance(points, table))
    for draw in range(DRAWS):
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
    law = _Law(_covariance(points, table), int(count.min()))
    nominal = float(fdtri(law.freedom, max(law.trials - 1, 1), TAIL))
    return max(1.0, float(np.quantile(squared, TAIL)) / nominal)


def _covariance(points: Sequence[Point], table: np.ndarray) -> np.ndarray:
    """Return the covariance of the differences of a block from what each trial adds to each mean, (seeds, k)."""
    there = np.isfinite(table)
    filled = np.where(there, table, 0.0)
    shared = there.T.astype(float) @ there  # trials that count at both
    moments = filled.T @ filled / np.maximum(shared - 1, 1)
    own = np.diag(moments).copy()
    least = np.array([one.floor for one in points])
    scale = np.sqrt(np.maximum(own, least) / np.maximum(own, np.finfo(float).tiny))
    scale[own == 0] = 1.0
    moments *= np.outer(scale, scale)
    moments[np.diag_indices_from(moments)] = np.maximum(own, least)
    count = np.diag(shared)
    theirs = np.array([one.theirs for one in points])
    weight = shared / np.outer(count, count) + (shared > 0) / np.sqrt(np.outer(theirs, theirs))
    covariance = moments * weight
    if not there.all():
        # Estimated from other trials for every pair, it may be no covariance: the nearest one is.
        values, vectors = np.linalg.eigh(covariance)
        own = np.diag(covariance).copy()
        covariance = (vectors * np.maximum(values, 0.0)) @ vectors.T
        covariance[np.diag_indices_from(covariance)] = np.maximum(own, np.diag(covariance))
    reading = np.array([one.reading for one in points])
    # What is left of a difference of two decimal numbers.
    covariance[np.diag_indices_from(covariance)] += reading**2 + np.finfo(float).eps
    return covariance


def _log_likelihood(covariance: np.ndarray, difference: np.ndarray) -> float:
    """Gaussian, with correlations shrunk: directions in which a curve hardly varies are not known that well."""
    own = np.diag(np.diag(covariance))
    shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * own
    _, size = np.linalg.slogdet(2 * np.pi * shrunk)
    return -0.5 * (float(difference @ np.linalg.solve(shrunk, difference)) + float(size))
