"""Printed numbers paired with our trials, and pairings under a protocol with one change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.ledger import LedgerNumber, PrintedCurve, of_ledger

FEWEST = 10
"""Least number of our trials that determines the variance of a mean."""

LARGEST_ERROR = 0.3
"""Relative standard error above which the mean of a skewed distance is omitted as meaningless."""


@dataclass(frozen=True, eq=False)
class Point:
    """One printed number and our trials for it.

    Attributes
    ----------
    published : LedgerNumber
    values : mapping of int to float
        Value of each counted trial, keyed by seed; equal seeds are equal instances.
    margin : float
        The smallest difference that matters; in logarithms for kind "log".
    kind : {"share", "count", "mean", "log"}
    place : object
        Curve and index of the point, (curve, index), for alternatives at the next grid value.
    trials : int, optional
        Their number of trials, if the ledger has none.
    deviation : float, optional
        Standard deviation of one of their trials, if known; in logarithms for kind "log".
    """

    published: LedgerNumber
    values: Mapping[int, float]
    margin: float
    kind: Literal["share", "count", "mean", "log"] = "mean"
    place: tuple[str, int] = ("", 0)
    trials: int | None = None
    deviation: float | None = None

    def __post_init__(self) -> None:
        if of_ledger(self.published) is None:
            raise ValueError(f"published is None for {self.place}; a number of the ledger was expected.")
        if not self.margin > 0:
            raise ValueError(f"margin is {self.margin} for {self.published.key}; a positive number was expected.")

    @property
    def theirs(self) -> float:
        """Number of trials behind the printed number."""
        return float(self.published.trials or self.trials or math.inf)

    @cached_property
    def mean(self) -> float:
        """Our mean; its logarithm for kind "log"."""
        mean = float(np.mean(list(self.values.values())))
        return math.log(max(mean, np.finfo(float).tiny)) if self.kind == "log" else mean

    @property
    def reference(self) -> float:
        """Their number, in the same unit."""
        return math.log(self.published.value) if self.kind == "log" else self.published.value

    @property
    def reading(self) -> float:
        """Reading error, in the same unit."""
        return self.published.error / self.published.value if self.kind == "log" else self.published.error

    @cached_property
    def deviations(self) -> dict[int, float]:
        """Contribution of each trial to the mean: value minus mean, for logarithms in first order."""
        values = np.array(list(self.values.values()), dtype=float)
        scale = max(float(values.mean()), np.finfo(float).tiny) if self.kind == "log" else 1.0
        return dict(zip(self.values, ((values - values.mean()) / scale).tolist(), strict=True))

    @property
    def is_determinate(self) -> bool:
        """Whether our trials determine mean and variance: :data:`FEWEST`, and for logarithms :data:`LARGEST_ERROR`."""
        count = len(self.values)
        if count < FEWEST or self.kind != "log":
            return count >= FEWEST
        return float(np.std(list(self.deviations.values()))) / math.sqrt(count) < LARGEST_ERROR

    @property
    def floor(self) -> float:
        """Smallest variance of one trial."""
        count = len(self.values)
        if self.kind == "share":
            theirs = self.theirs if math.isfinite(self.theirs) else 0.0
            pooled = (sum(self.values.values()) + 0.5 + self.published.value * theirs) / (count + 1 + theirs)
            return pooled * (1 - pooled)
        if self.kind == "count":
            rare = 0.5 / (count + 1)
            return max(self.published.value % 1 * (1 - self.published.value % 1), rare * (1 - rare))
        if self.deviation is not None and math.isfinite(self.theirs):
            # A few dozen skewed distances may lack the rare large one that dominates the variance. Under the null both
            # samples have the same variance, so they are pooled.
            own = float(np.var(list(self.deviations.values())))
            spread = (self.deviation / self.published.value) ** 2
            return (count * own + self.theirs * spread) / (count + self.theirs)
        return 0.0


def curve_points(
    curve: PrintedCurve,
    cells: Mapping[Any, Sequence[Row]],
    value: Callable[[Row], float | bool | None],
    margin: float,
    kind: Literal["share", "count", "mean", "log"] = "mean",
    trials: int | None = None,
    deviation: float | None = None,
) -> list[Point]:
    """Pair the numbers of a printed curve with our rows.

    Parameters
    ----------
    curve : PrintedCurve
    cells : mapping
        Our rows keyed by grid value; other grid values are omitted.
    value : callable
        Maps a row to its value; None if the trial does not count.
    margin, kind, trials, deviation
        See :class:`Point`.

    Returns
    -------
    list of Point
    """
    points = []
    for at, (x, number) in enumerate(curve.points.items()):
        if x in cells:
            values = {row["seed"]: ours for row in cells[x] if (ours := value(row)) is not None}
            plain = {seed: float(number) for seed, number in values.items()}
            points.append(Point(number, plain, margin, kind, (curve.key, at), trials, deviation))
    return points


def by_key(points: Iterable[Point]) -> dict[str, Point]:
    """Return the points of a protocol keyed by published number, as :func:`joint_test` takes alternatives."""
    return {one.published.key: one for one in points}


def next_values(points: Iterable[Point], by: int = 1) -> dict[str, Point]:
    """Return, keyed by point, the point `by` grid values further on its curve; points at the end stay."""
    by_place = {one.place: one for one in points}
    return {one.published.key: by_place.get((curve, at + by), one) for (curve, at), one in by_place.items()}


def swap(points: Iterable[Point], partner: Mapping[str, str]) -> dict[str, Point]:
    """Return the points of each curve after the named curves are exchanged, by key."""
    by_place = {one.place: one for one in points}
    return {
        one.published.key: by_place.get((partner.get(curve, curve), at), one) for (curve, at), one in by_place.items()
    }
