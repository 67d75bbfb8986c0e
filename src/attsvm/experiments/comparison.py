r"""Verdicts on single numbers, whose tolerance is sampling error and nothing else.

A published number comes from the ledger, with its trials and reading error; two samples are compared, ours and theirs,
for there is sampling error in both. Three questions are asked of each:

* *Does ours differ?* A two-sample test at level 0.05 / :data:`COMPARISONS` (Bonferroni): with probability 95 % no true
  number of a whole report is called different. For shares, :math:`p_0` of N published trials and m of ours, the score
  test accepts a difference :math:`\delta` when, with :math:`a = m/(N+m)` and :math:`c = z^2(1/N+1/m)`,

  .. math:: \delta^2 \le c\,(p_0 + a\delta)(1 - p_0 - a\delta),

  and the root of that quadratic on our side is the tolerance. For means it is :math:`t\sqrt{s^2/m + s_0^2/N}`, where
  the published standard deviation :math:`s_0`, when it is not known, is taken to be ours: they ran the same experiment.
* *Is ours the same?* Equivalence by two one-sided tests at 5 % (Schuirmann, *J. Pharmacokinetics and Biopharmaceutics*
  15, 1987): the 90 % interval of the difference lies within a margin, stated with the quantity. Only then "agrees".
* *Could we have told?* The power: the probability that a true difference as large as the margin is called different.

Where neither difference nor sameness is shown, the verdict is "too weak to tell". The reading error is added to every
interval. An artefact is "corrected" by two such tests, see :func:`corrected`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

from attsvm.experiments.experiment import Kind, Verdict
from attsvm.experiments.published.ledger import LedgerNumber, of_ledger
from attsvm.experiments.statistics import (
    bootstrap_interval,
    check_share,
    mean_interval,
    normal_quantile,
    student_quantile,
    vector,
    wilson_interval,
)

COMPARISONS = 580
"""Published numbers of the ledger, rounded up to tens: the family over which errors are controlled. A report of some
experiments compares fewer, and is judged as strictly."""

LEVEL = 0.05 / COMPARISONS
"""Probability that sampling error alone makes one verdict "differs"."""

SHARE_MARGIN = 0.1
"""Margin of shares: ten trials of a hundred."""

_SLACK = 1e-12  # of subtracting two decimal numbers


def share_tolerance(published: float, sample_size: int, published_trials: int | None, above: bool) -> float:
    """Return how far our share may lie above, or below, the published one by sampling error.

    Parameters
    ----------
    published : float
        In [0, 1].
    sample_size, published_trials : int
        Trials of ours and of theirs; None for a published share that is exact.
    above : bool
        On which side of the published share ours lies.

    Returns
    -------
    float
    """
    return _share_bound(published, sample_size, published_trials, above, normal_quantile(1 - LEVEL))


def _share_bound(published: float, sample_size: int, published_trials: int | None, above: bool, z: float) -> float:
    z2 = z**2
    spread = published * (1 - published)
    if published_trials is None:
        return math.sqrt(z2 * spread / sample_size)
    a = sample_size / (sample_size + published_trials)
    c = z2 * (1 / sample_size + 1 / published_trials)
    slope = c * a * (1 - 2 * published)
    root = math.sqrt(slope**2 + 4 * (1 + c * a**2) * c * spread)
    return abs(slope + (root if above else -root)) / (2 * (1 + c * a**2))


def share_verdict(
    experiment: str,
    quantity: str,
    hits: int,
    sample_size: int,
    *,
    published: LedgerNumber | None = None,
    margin: float = SHARE_MARGIN,
    trials: int | None = None,
    discarded: int = 0,
    infeasible: int = 0,
    note: str = "",
) -> Verdict:
    """Hold a share of trials against the published one.

    Parameters
    ----------
    experiment, quantity : str
    hits, sample_size : int
        Successes among the trials that count.
    published : LedgerNumber, optional
        A share in [0, 1] of the ledger. Without it the verdict is "measured". Where the paper states no trials, it
        counts as exact.
    margin : float
        The difference that would matter.
    trials, discarded, infeasible : int
        As in :class:`Verdict`; by default `trials` is counted + discarded.
    note : str

    Returns
    -------
    Verdict
        Its measured value is NaN, and the verdict "measured", when no trial counts.

    Raises
    ------
    ValueError
        If `published` does not come from the ledger, or is no share.
    """
    check_share(hits, sample_size)
    low, high = wilson_interval(hits, sample_size)
    measured = hits / sample_size if sample_size else math.nan
    tolerance = spread = math.nan
    if of_ledger(published) is not None and published is not None and sample_size:
        value, theirs = published.value, published.trials
        if not 0 <= value <= 1:
            raise ValueError(f"published is {value!r} for {quantity!r}; a share in [0, 1] was expected.")
        sides = [True, False] if measured == value else [measured > value]
        tolerance = published.error + max(share_tolerance(value, sample_size, theirs, side) for side in sides)
        # Half a success more in each sample: the error of 0 of m is not zero.
        pooled = (hits + 0.5 + value * (theirs or 0)) / (sample_size + 1 + (theirs or 0))
        spread = math.sqrt(pooled * (1 - pooled) * (1 / sample_size + (1 / theirs if theirs else 0.0)))
    return value_verdict(
        experiment, quantity, measured, low, high, published=published, tolerance=tolerance, spread=spread,
        margin=margin, trials=sample_size + discarded if trials is None else trials, discarded=discarded,
        infeasible=infeasible, note=note,
    )  # fmt: skip


def mean_verdict(
    experiment: str,
    quantity: str,
    values: Any,
    *,
    published: LedgerNumber | None = None,
    margin: float = math.nan,
    published_deviation: float | None = None,
    assumed_trials: int | None = None,
    interval: Literal["t", "bootstrap"] = "t",
    trials: int | None = None,
    discarded: int = 0,
    infeasible: int = 0,
    note: str = "",
) -> Verdict:
    """Hold a mean over trials against the published one.

    Parameters
    ----------
    experiment, quantity : str
    values : array_like, shape (m,)
        One a trial that counts.
    published : LedgerNumber, optional
        A mean of the ledger. Without it the verdict is "measured".
    margin : float
        The difference that would matter; needed with `published`.
    published_deviation : float, optional
        Standard deviation of theirs over trials; by default the one of the ledger, and ours where that has none.
    assumed_trials : int, optional
        Theirs where the paper does not state them; without it such a mean counts as exact.
    interval : {"t", "bootstrap"}
    trials, discarded, infeasible, note
        As in :func:`share_verdict`.

    Returns
    -------
    Verdict
        "measured" when fewer than two trials count: nothing is known of the sampling error then.

    Raises
    ------
    ValueError
        If `published` does not come from the ledger, or no margin is stated for it.
    """
    sample = vector(values)
    count = len(sample)
    low, high = mean_interval(sample) if interval == "t" else bootstrap_interval(sample)
    tolerance = spread = math.nan
    if of_ledger(published) is not None and published is not None:
        if not margin > 0:
            raise ValueError(f"margin is {margin} for {quantity!r}; a positive number was expected with `published`.")
        if count >= 2:
            ours = float(sample.var(ddof=1))
            deviation = published.deviation if published_deviation is None else published_deviation
            theirs = ours if deviation is None else deviation**2
            number = published.trials or assumed_trials
            spread = math.sqrt(ours / count + (theirs / number if number is not None else 0.0))
            tolerance = published.error + student_quantile(1 - LEVEL, count - 1) * spread
    return value_verdict(
        experiment, quantity, float(sample.mean()) if count else math.nan, low, high, published=published,
        tolerance=tolerance, spread=spread, margin=margin, trials=count + discarded if trials is None else trials,
        discarded=discarded, infeasible=infeasible, note=note,
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
    sample = vector(counts)
    least = math.sqrt(published % 1 * (1 - published % 1))
    return max(least, float(sample.std(ddof=1))) if len(sample) > 1 else least


def value_verdict(
    experiment: str,
    quantity: str,
    measured: float,
    low: float,
    high: float,
    *,
    published: LedgerNumber | None = None,
    tolerance: float = 0.0,
    spread: float = 0.0,
    margin: float = math.nan,
    trials: int = 1,
    discarded: int = 0,
    infeasible: int = 0,
    note: str = "",
) -> Verdict:
    """Hold any number with its interval against the published one, under a tolerance derived by the caller.

    Parameters
    ----------
    experiment, quantity : str
    measured, low, high : float
    published : LedgerNumber, optional
        Without it the verdict is "measured".
    tolerance : float
        The difference that sampling error and reading explain; NaN or infinite where it is unknown: then "measured".
    spread : float
        Standard error of the difference.
    margin : float
        The difference that would matter.
    trials, discarded, infeasible, note
        As in :func:`share_verdict`.

    Returns
    -------
    Verdict

    Raises
    ------
    ValueError
        If `published` does not come from the ledger.
    """
    theirs = of_ledger(published)
    verdict: Kind = "measured"
    power = math.nan
    if theirs is None:
        tolerance = margin = math.nan
    elif not math.isnan(measured) and math.isfinite(tolerance):
        distance = abs(measured - theirs.value)
        if distance > tolerance + _SLACK:
            verdict = "differs"
        elif distance + normal_quantile(0.9) * spread + theirs.error <= margin + _SLACK:
            verdict = "agrees"
        else:
            verdict = "too weak to tell"
        power = _exceeds((margin - tolerance) / spread) if spread > 0 else float(margin > tolerance)
    return Verdict(
        experiment=experiment, quantity=quantity, published=None if theirs is None else theirs.value,
        measured=measured, low=low, high=high, trials=int(trials), tolerance=tolerance, verdict=verdict,
        discarded=int(discarded), infeasible=int(infeasible), note=note, key="" if theirs is None else theirs.key,
        margin=margin, power=power,
    )  # fmt: skip


def correction(truth: Verdict, restoration: Verdict, artefact: str) -> Verdict:
    """Say of a published number whether it is an artefact: by two tests, or not at all.

    Parameters
    ----------
    truth, restoration : Verdict
        Of the same published number: the certified value, and the value with the artefact put back.
    artefact : str
        What it is, in a sentence.

    Returns
    -------
    Verdict
        That of `truth`; "corrected" when it differs and `restoration` agrees. When it differs and `restoration` does
        not agree, the cause is not shown, and it stays "differs". When it does not differ, nothing is to be corrected.
    """
    result = f"With that put back {restoration.measured:.4g}: {restoration.verdict}."
    if truth.verdict == "differs" and restoration.verdict == "agrees":
        return replace(truth, verdict="corrected", note=" ".join(filter(None, (artefact, result, truth.note))))
    if truth.verdict == "differs":
        begins = "Not explained by this:" if restoration.verdict == "differs" else "Not shown to be this:"
        return replace(truth, note=" ".join(filter(None, (begins, artefact, result, truth.note))))
    return truth


def _exceeds(z: float) -> float:
    from scipy.special import ndtr

    return float(ndtr(z))
