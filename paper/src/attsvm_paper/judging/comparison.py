r"""Verdicts on single numbers, with a tolerance that follows from sampling error alone.

A published number comes from the ledger, with its number of trials and reading error. Both samples, ours and theirs,
have sampling errors. Three questions are asked for each number:

* *Does ours differ?* A two-sample test at level 0.05 / :data:`COMPARISONS` (Bonferroni): with probability 95 % no
  correct number of a whole report is called different. For shares, let :math:`p_0` be the share of N published trials
  and m our number of trials. The score test accepts a difference :math:`\delta` if, with :math:`a = m/(N+m)` and
  :math:`c = z^2(1/N+1/m)`,

  .. math:: \delta^2 \le c\,(p_0 + a\delta)(1 - p_0 - a\delta).

  The root of this quadratic on our side is the tolerance. For means the tolerance is :math:`t\sqrt{s^2/m + s_0^2/N}`.
  If the published standard deviation :math:`s_0` is unknown, ours replaces it: both ran the same experiment.
* *Is ours the same?* Equivalence by two one-sided tests at 5 % (Schuirmann, *J. Pharmacokinetics and Biopharmaceutics*
  15, 1987): the 90 % interval of the difference lies within a margin, stated with the quantity. Only then the verdict
  is "agrees".
* *Could a difference have been detected?* The power: the probability that a true difference as large as the margin is
  called different.

If neither difference nor equivalence is shown, the verdict is "too weak to tell". The reading error is added to every
interval. The verdict "corrected" needs two such tests, see :func:`correction`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

from scipy.special import ndtr

from attsvm_paper.judging.estimates import Estimate, estimate, share_estimate
from attsvm_paper.judging.statistics import normal_quantile, student_quantile, vector
from attsvm_paper.judging.verdict import Kind, Verdict
from attsvm_paper.published.ledger import LedgerNumber, of_ledger

COMPARISONS = 580
"""Number of published numbers in the ledger, rounded up to tens: errors are controlled over this family, also in a
report of fewer experiments."""

LEVEL = 0.05 / COMPARISONS
"""Probability that sampling error alone makes one verdict "differs"."""

SHARE_MARGIN = 0.1
"""Margin of shares: ten trials of a hundred."""

_SLACK = 1e-12  # rounding of the difference of two decimal numbers


def share_tolerance(published: float, sample_size: int, published_trials: int | None, above: bool) -> float:
    """Return how far sampling error allows our share to lie above, or below, the published one.

    Parameters
    ----------
    published : float
        In [0, 1].
    sample_size, published_trials : int
        Our trials and theirs; None for a published share that is exact.
    above : bool
        Whether ours lies above the published share.

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
    """Compare a share of trials with the published one.

    Parameters
    ----------
    experiment, quantity : str
    hits, sample_size : int
        Successes among the counted trials.
    published : LedgerNumber, optional
        A share in [0, 1] of the ledger. If None, the verdict is "measured". If the paper states no number of trials,
        the share counts as exact.
    margin : float
        The smallest difference that matters.
    trials, discarded, infeasible : int
        See :class:`Verdict`; by default `trials` is counted + discarded.
    note : str

    Returns
    -------
    Verdict
        If no trial counts, the measured value is NaN and the verdict "measured".

    Raises
    ------
    ValueError
        If `published` does not come from the ledger, or is not a share.
    """
    return estimate_verdict(
        experiment, quantity, share_estimate(hits, sample_size), published=published, margin=margin, trials=trials,
        discarded=discarded, infeasible=infeasible, note=note,
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
    """Compare a mean over trials with the published one.

    Parameters
    ----------
    experiment, quantity : str
    values : array_like, shape (m,)
        One per counted trial.
    published : LedgerNumber, optional
        A mean of the ledger. If None, the verdict is "measured".
    margin : float
        The smallest difference that matters; required with `published`.
    published_deviation : float, optional
        Standard deviation of their trials; by default the one in the ledger, or ours if it has none.
    assumed_trials : int, optional
        Their number of trials if the paper does not state it; otherwise such a mean counts as exact.
    interval : {"t", "bootstrap"}
    trials, discarded, infeasible, note
        See :func:`share_verdict`.

    Returns
    -------
    Verdict
        "measured" if fewer than two trials count: the sampling error is then unknown.

    Raises
    ------
    ValueError
        If `published` does not come from the ledger, or has no margin.
    """
    return estimate_verdict(
        experiment, quantity, estimate(values, "mean" if interval == "t" else "bootstrap"), published=published,
        margin=margin, published_deviation=published_deviation, assumed_trials=assumed_trials, trials=trials,
        discarded=discarded, infeasible=infeasible, note=note,
    )  # fmt: skip


def estimate_verdict(
    experiment: str,
    quantity: str,
    ours: Estimate,
    *,
    published: LedgerNumber | None = None,
    margin: float = math.nan,
    published_deviation: float | None = None,
    assumed_trials: int | None = None,
    trials: int | None = None,
    discarded: int = 0,
    infeasible: int = 0,
    note: str = "",
) -> Verdict:
    """Compare an estimated share or mean with the published one, or state an estimate that nobody has published.

    Parameters
    ----------
    experiment, quantity : str
    ours : Estimate
    published, margin, published_deviation, assumed_trials, trials, discarded, infeasible, note
        See :func:`share_verdict` and :func:`mean_verdict`.

    Returns
    -------
    Verdict

    Raises
    ------
    ValueError
        If `published` does not come from the ledger, is no share where ours is one, or has no margin.
    """
    tolerance = spread = math.nan
    count = ours.count
    published = of_ledger(published)
    if published is not None:
        value, theirs = published.value, published.trials
        if ours.hits is None and not margin > 0:
            raise ValueError(f"margin is {margin} for {quantity!r}; a positive number was expected with `published`.")
        if ours.hits is not None and count:
            if not 0 <= value <= 1:
                raise ValueError(f"published is {value!r} for {quantity!r}; a share in [0, 1] was expected.")
            sides = [True, False] if ours.value == value else [ours.value > value]
            tolerance = published.error + max(share_tolerance(value, count, theirs, side) for side in sides)
            # Half a success is added to each sample: the error of 0 of m is not zero.
            pooled = (ours.hits + 0.5 + value * (theirs or 0)) / (count + 1 + (theirs or 0))
            spread = math.sqrt(pooled * (1 - pooled) * (1 / count + (1 / theirs if theirs else 0.0)))
        elif ours.hits is None and count >= 2:
            variance = float(ours.values.var(ddof=1))
            deviation = published.deviation if published_deviation is None else published_deviation
            number = theirs or assumed_trials
            error = variance if deviation is None else deviation**2
            spread = math.sqrt(variance / count + (error / number if number is not None else 0.0))
            tolerance = published.error + student_quantile(1 - LEVEL, count - 1) * spread
    return value_verdict(
        experiment, quantity, ours.value, ours.low, ours.high, published=published, tolerance=tolerance, spread=spread,
        margin=margin, trials=count + discarded if trials is None else trials, discarded=discarded,
        infeasible=infeasible, note=note,
    )  # fmt: skip


def count_deviation(published: float, counts: Any) -> float:
    """Return a standard deviation for published counts: ours, or the least possible for integers of that mean.

    Parameters
    ----------
    published : float
        Their mean.
    counts : array_like, shape (m,)
        Our counts.

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
    """Compare any number and its interval with the published one, under a tolerance derived by the caller.

    Parameters
    ----------
    experiment, quantity : str
    measured, low, high : float
    published : LedgerNumber, optional
        If None, the verdict is "measured".
    tolerance : float
        The difference that sampling and reading errors explain; NaN or infinite if unknown: then "measured".
    spread : float
        Standard error of the difference.
    margin : float
        The smallest difference that matters.
    trials, discarded, infeasible, note
        See :func:`share_verdict`.

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
    """Decide by two tests whether a published number is an artefact.

    Parameters
    ----------
    truth, restoration : Verdict
        For the same published number: the certified value, and the value with the artefact restored.
    artefact : str
        Description of the artefact, in a sentence.

    Returns
    -------
    Verdict
        The verdict of `truth`, or "corrected" if it differs and `restoration` agrees. If it differs and `restoration`
        does not agree, the cause is not shown, and it stays "differs". If it does not differ, there is nothing to
        correct.
    """
    result = f"With that put back {restoration.measured:.4g}: {restoration.verdict}."
    if truth.verdict == "differs" and restoration.verdict == "agrees":
        return replace(truth, verdict="corrected", note=" ".join(filter(None, (artefact, result, truth.note))))
    if truth.verdict == "differs":
        begins = "Not explained by this:" if restoration.verdict == "differs" else "Not shown to be this:"
        return replace(truth, note=" ".join(filter(None, (begins, artefact, result, truth.note))))
    return truth


def _exceeds(z: float) -> float:
    return float(ndtr(z))
