r"""Intervals, and verdicts whose tolerance is sampling error and nothing else.

*Intervals* are at 95 %. A share gets Wilson's: the shares p that the score test does not reject,
:math:`|\hat p-p| \le z\sqrt{p(1-p)/m}`, which stays inside [0, 1] and does not collapse at 0 of m. A mean gets
Student's t; a median, a fitted exponent or a mean of few skewed values gets the percentile bootstrap.

*Verdicts* compare two samples, ours and the published one, for there is sampling error in both. A report makes up to
:data:`COMPARISONS` comparisons; each is tested at level 0.05 / :data:`COMPARISONS` (Bonferroni), so that with
probability 95 % no true number of the whole report is called different. That makes :math:`z = 3.81`, and a tolerance
about twice the half width of the intervals shown.

For shares :math:`p_0` of N published trials and m of ours the two-sample score test accepts a difference
:math:`\delta` when, with :math:`a = m/(N+m)` and :math:`c = z^2(1/N+1/m)`,

.. math:: \delta^2 \le c\,(p_0 + a\delta)(1 - p_0 - a\delta),

and the root of that quadratic on our side is the tolerance. It depends on the published share and the numbers of
trials only. For means the tolerance is :math:`t\sqrt{s^2/m + s_0^2/N}`, where the published standard deviation
:math:`s_0`, when it is not known, is taken to be ours: they ran the same experiment.

A published number is known to its printed digits or to what can be read from a plot; `rounding`, the largest such
error, is added. Where nothing is known of N, pass None: the published number then counts as exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from attsvm.experiments.experiment import Verdict

COMPARISONS = 360
"""Published numbers that a full report holds ours against, rounded up to tens: the family over which errors are
controlled. A quick report makes fewer, and is judged as strictly."""

LEVEL = 0.05 / COMPARISONS
"""Probability that sampling error alone makes one verdict "differs"."""

_AT_ONCE = 1 << 16  # numbers resampled in one call
_SLACK = 1e-12  # of subtracting two decimal numbers


def wilson_interval(hits: int, counted: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval for a share.

    Parameters
    ----------
    hits, counted : int
        Successes among trials counted; without trials nothing is known and the interval is [0, 1].
    level : float

    Returns
    -------
    tuple of float
    """
    _check_share(hits, counted)
    if counted == 0:
        return 0.0, 1.0
    z2 = _normal(level) ** 2
    centre = (hits + z2 / 2) / (counted + z2)
    half = math.sqrt(z2 * (hits * (counted - hits) / counted + z2 / 4)) / (counted + z2)
    # At the ends the exact bound is 0 or 1; rounding would leave 1e-17.
    return 0.0 if hits == 0 else max(centre - half, 0.0), 1.0 if hits == counted else min(centre + half, 1.0)


def mean_interval(values: Any, level: float = 0.95) -> tuple[float, float]:
    """Student's t interval for a mean; unbounded for fewer than two values.

    Parameters
    ----------
    values : array_like, shape (m,)
    level : float

    Returns
    -------
    tuple of float
    """
    sample = _sample(values)
    if len(sample) < 2:
        return -math.inf, math.inf
    half = _student(level, len(sample) - 1) * sample.std(ddof=1) / math.sqrt(len(sample))
    return float(sample.mean() - half), float(sample.mean() + half)


def bootstrap_interval(
    values: Any,
    statistic: Callable[..., Any] = np.mean,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap of any statistic; the same values give the same interval.

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
        # Many resamples in one call: (trials, resamples, ...), as many as stay small in memory.
        at_once = max(1, _AT_ONCE // sample.size)
        sizes = [min(at_once, resamples - done) for done in range(0, resamples, at_once)]
        picks = (rng.integers(len(sample), size=(size, len(sample))).T for size in sizes)
        drawn = np.concatenate([statistic(sample[pick], axis=0) for pick in picks])
    else:
        drawn = [statistic(sample[rng.integers(len(sample), size=len(sample))], axis=0) for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def share_tolerance(published: float, counted: int, published_trials: int | None, above: bool) -> float:
    """Return how far our share may lie above, or below, the published one by sampling error.

    Parameters
    ----------
    published : float
        In [0, 1].
    counted, published_trials : int
        Trials of ours and of theirs; None for a published share that is exact.
    above : bool
        On which side of the published share ours lies.

    Returns
    -------
    float
    """
    z2 = _normal(1 - LEVEL) ** 2
    spread = published * (1 - published)
    if published_trials is None:
        return math.sqrt(z2 * spread / counted)
    a = counted / (counted + published_trials)
    c = z2 * (1 / counted + 1 / published_trials)
    slope = c * a * (1 - 2 * published)
    root = math.sqrt(slope**2 + 4 * (1 + c * a**2) * c * spread)
    return abs(slope + (root if above else -root)) / (2 * (1 + c * a**2))


def share_verdict(
    experiment: str,
    quantity: str,
    hits: int,
    counted: int,
    *,
    published: float | None = None,
    published_trials: int | None = None,
    rounding: float = 0.0,
    trials: int | None = None,
    discarded: int = 0,
    infeasible: int = 0,
    artefact: str = "",
    note: str = "",
) -> Verdict:
    """Hold a share of trials against the published one.

    Parameters
    ----------
    experiment, quantity : str
    hits, counted : int
        Successes among the trials that count.
    published : float, optional
        In [0, 1]. Without it the verdict is "measured".
    published_trials : int, optional
        Behind the published share; None: it counts as exact.
    rounding : float
        Error of the published share as printed or as read from a plot, in the same unit.
    trials, discarded, infeasible : int
        As in :class:`Verdict`; by default `trials` is counted + discarded.
    artefact : str
        What the published share is an artefact of: the verdict becomes "corrected", and this its note.
    note : str

    Returns
    -------
    Verdict
        Its measured value is NaN, and the verdict "measured", when no trial counts.
    """
    _check_share(hits, counted)
    low, high = wilson_interval(hits, counted)
    measured = hits / counted if counted else math.nan
    tolerance = math.nan
    if published is not None and counted:
        if not 0 <= published <= 1:
            raise ValueError(f"published is {published!r} for {quantity!r}; a share in [0, 1] was expected.")
        sides = [True, False] if measured == published else [measured > published]
        tolerance = rounding + max(share_tolerance(published, counted, published_trials, side) for side in sides)
    return value_verdict(
        experiment, quantity, measured, low, high, published=published, tolerance=tolerance,
        trials=counted + discarded if trials is None else trials, discarded=discarded, infeasible=infeasible,
        artefact=artefact, note=note,
    )  # fmt: skip


def mean_verdict(
    experiment: str,
    quantity: str,
    values: Any,
    *,
    published: float | None = None,
    published_trials: int | None = None,
    published_deviation: float | None = None,
    rounding: float = 0.0,
    interval: Literal["t", "bootstrap"] = "t",
    trials: int | None = None,
    discarded: int = 0,
    infeasible: int = 0,
    artefact: str = "",
    note: str = "",
) -> Verdict:
    """Hold a mean over trials against the published one.

    Parameters
    ----------
    experiment, quantity : str
    values : array_like, shape (m,)
        One a trial that counts.
    published : float, optional
        Without it the verdict is "measured".
    published_trials : int, optional
        Behind the published mean; None: it counts as exact.
    published_deviation : float, optional
        Standard deviation of theirs over trials; by default ours.
    rounding : float
        Error of the published mean as printed or as read from a plot.
    interval : {"t", "bootstrap"}
    trials, discarded, infeasible, artefact, note
        As in :func:`share_verdict`.

    Returns
    -------
    Verdict
        "measured" when fewer than two trials count: nothing is known of the sampling error then.
    """
    sample = _sample(values)
    count = len(sample)
    low, high = mean_interval(sample) if interval == "t" else bootstrap_interval(sample)
    tolerance = math.nan
    if published is not None and count >= 2:
        ours = float(sample.var(ddof=1))
        theirs = ours if published_deviation is None else published_deviation**2
        variance = ours / count + (theirs / published_trials if published_trials is not None else 0.0)
        tolerance = rounding + _student(1 - LEVEL, count - 1) * math.sqrt(variance)
    return value_verdict(
        experiment, quantity, float(sample.mean()) if count else math.nan, low, high, published=published,
        tolerance=tolerance, trials=count + discarded if trials is None else trials, discarded=discarded,
        infeasible=infeasible, artefact=artefact, note=note,
    )  # fmt: skip


def count_deviation(published: float, counts: Any) -> float:
    """Return a standard deviation for published counts: ours, or the least that integers of that mean have.

    Parameters
    ----------
    published : float
        Their mean.
    counts : array_like, shape (m,)
        Ours.

    Returns
    -------
    float
    """
    sample = _sample(counts)
    least = math.sqrt(published % 1 * (1 - published % 1))
    return max(least, float(sample.std(ddof=1))) if len(sample) > 1 else least


def value_verdict(
    experiment: str,
    quantity: str,
    measured: float,
    low: float,
    high: float,
    *,
    published: float | None = None,
    tolerance: float = 0.0,
    trials: int = 1,
    discarded: int = 0,
    infeasible: int = 0,
    artefact: str = "",
    note: str = "",
) -> Verdict:
    """Hold any number with its interval against the published one, under a tolerance derived by the caller.

    For a number without sampling error (a limit point, a path's end) `low` = `measured` = `high`, and the tolerance is
    the rounding of what was published; for a fitted exponent they come from :func:`bootstrap_interval`.

    Parameters
    ----------
    experiment, quantity : str
    measured, low, high : float
    published : float, optional
        Without it the verdict is "measured".
    tolerance : float
        The difference that sampling error and rounding explain; NaN or infinite where it is unknown: then "measured".
    trials, discarded, infeasible, artefact, note
        As in :func:`share_verdict`.

    Returns
    -------
    Verdict
    """
    verdict: Literal["agrees", "differs", "corrected", "measured"]
    if published is None or math.isnan(measured) or not math.isfinite(tolerance):
        verdict = "measured"
    elif artefact:
        verdict = "corrected"
    else:
        verdict = "agrees" if abs(measured - published) <= tolerance + _SLACK else "differs"
    if published is None:
        tolerance = math.nan
    return Verdict(
        experiment=experiment, quantity=quantity, published=published, measured=measured, low=low, high=high,
        trials=int(trials), tolerance=tolerance, verdict=verdict, discarded=int(discarded),
        infeasible=int(infeasible), note=" ".join(part for part in (artefact, note) if part),
    )  # fmt: skip


def _normal(level: float) -> float:
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def _student(level: float, freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def _sample(values: Any) -> np.ndarray:
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not np.isfinite(sample).all():
        raise ValueError(f"values has shape {sample.shape}; a vector of finite numbers, one a trial, was expected.")
    return sample


def _check_share(hits: int, counted: int) -> None:
    if not 0 <= hits <= counted:
        raise ValueError(f"hits is {hits} of {counted}; a number of successes among trials was expected.")
