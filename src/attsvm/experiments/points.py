"""Printed numbers paired with our trials of them, and the pairings of a protocol with one thing changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from attsvm.experiments.experiment import Row
from attsvm.experiments.published.ledger import LedgerNumber, PrintedCurve, of_ledger

FEWEST = 10
"""Trials of ours from which they determine the variance of a mean."""

LARGEST_ERROR = 0.3
"""Relative standard error from which the mean of a skewed distance says nothing, and is left out."""


@dataclass(frozen=True, eq=False)
class Point:
    """One printed number and our trials of it.

    Attributes
    ----------
    published : LedgerNumber
    values : mapping of int to float
        From the seed of each trial that counts to its value; equal seeds are equal instances.
    margin : float
        The difference that would matter; of logarithms for kind "log".
    kind : {"share", "count", "mean", "log"}
    place : object
        Where on its curve the point lies, and which curve: (curve, index), for alternatives that are off by a notch.
    trials : int, optional
        Theirs, where the ledger has none.
    deviation : float, optional
        Standard deviation of a trial of theirs, where it is known; for kind "log".
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
        """Trials behind the printed number."""
        return float(self.published.trials or self.trials or math.inf)

    @cached_property
    def mean(self) -> float:
        """Ours; its logarithm for kind "log"."""
        mean = float(np.mean(list(self.values.values())))
        return math.log(max(mean, np.finfo(float).tiny)) if self.kind == "log" else mean

    @property
    def reference(self) -> float:
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
    def is_determinate(self) -> bool:
        """Whether our trials determine mean and variance: :data:`FEWEST`, and for logarithms :data:`LARGEST_ERROR`."""
        count = len(self.values)
        if count < FEWEST or self.kind != "log":
            return count >= FEWEST
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
            rare = 0.5 / (count + 1)
            return max(self.published.value % 1 * (1 - self.published.value % 1), rare * (1 - rare))
        if self.deviation is not None and math.isfinite(self.theirs):
            # A few dozen skewed distances may lack the one in a hundred that makes the variance; of both samples
            # under the null there are more.
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
        From places on its axis to our rows there; other places are left out.
    value : callable
        Of a row; None where the trial does not count.
    margin, kind, trials, deviation
        As in :class:`Point`.

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
    """Return the points of a protocol by the key of the published number, as :func:`joint_test` takes alternatives."""
    return {one.published.key: one for one in points}


def notches(points: Iterable[Point], by: int = 1) -> dict[str, Point]:
    """Return for every point, by key, the one that lies `by` places further on its curve; ends keep their own."""
    by_place = {one.place: one for one in points}
    return {one.published.key: by_place.get((curve, at + by), one) for (curve, at), one in by_place.items()}


def swap(points: Iterable[Point], partner: Mapping[str, str]) -> dict[str, Point]:
    """Return the points that each curve has when the named curves are taken for one another, by key."""
    by_place = {one.place: one for one in points}
    return {
        one.published.key: by_place.get((partner.get(curve, curve), at), one) for (curve, at), one in by_place.items()
    }
