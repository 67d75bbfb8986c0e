"""Measures of an experiment: each is stated once and estimated once per cell, for verdicts and for the figure.

An experiment lists its measures by name. :class:`Estimates` groups the rows into cells and estimates a measure in a
cell on its first use. Verdicts state the estimate, and the figure draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from attsvm_paper.judging.grouping import by
from attsvm_paper.judging.statistics import bootstrap_interval, check_share, mean_interval, vector, wilson_interval
from attsvm_paper.judging.verdict import Row

Statistic = Literal["share", "mean", "bootstrap", "median"]
"""A share with Wilson's interval, a mean with Student's or the bootstrap's, a median with the bootstrap's."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """A number and its 95 % interval.

    Attributes
    ----------
    value, low, high : float
        NaN and the widest interval if no trial counts.
    count : int
        Number of counted trials.
    values : ndarray, shape (count,)
        One value per counted trial; empty for a share, which hits and count determine.
    hits : int or None
        Number of successes of a share.
    """

    value: float
    low: float
    high: float
    count: int
    values: np.ndarray
    hits: int | None = None


def share_estimate(hits: int, count: int) -> Estimate:
    """Estimate a probability from a number of successes."""
    check_share(hits, count)
    return Estimate(hits / count if count else np.nan, *wilson_interval(hits, count), count, np.empty(0), int(hits))


def estimate(values: Any, statistic: Statistic, resamples: int = 2000) -> Estimate:
    """Estimate a measure from one value per counted trial.

    Parameters
    ----------
    values : array_like, shape (m,)
        Truth values for a share.
    statistic : {"share", "mean", "bootstrap", "median"}
    resamples : int
        Number of bootstrap resamples.
    """
    if statistic == "share":
        return share_estimate(sum(map(bool, values)), len(values))
    sample = vector(values)
    middle = np.median if statistic == "median" else np.mean
    student = statistic == "mean"
    low, high = mean_interval(sample) if student else bootstrap_interval(sample, middle, resamples=resamples)
    return Estimate(float(middle(sample)) if len(sample) else np.nan, low, high, len(sample), sample)


def at_records(steps: Sequence[Any], table: Any, statistic: Statistic, resamples: int = 2000) -> dict[Any, Estimate]:
    """Estimate a measure at each record of training, from its values (trials, records)."""
    columns = np.asarray(table, dtype=float).T
    return {step: estimate(values, statistic, resamples) for step, values in zip(steps, columns, strict=True)}


@dataclass(frozen=True)
class Measure:
    """A measure of a trial, and the statistic that is estimated.

    Attributes
    ----------
    words : str
        Name in verdicts and legends.
    value : str or callable
        A field of the rows, or ``value(row)``; None if the trial does not count.
    statistic : {"share", "mean", "bootstrap", "median"}
    """

    words: str
    value: str | Callable[[Row], Any]
    statistic: Statistic = "bootstrap"

    def values(self, rows: Sequence[Row]) -> list[Any]:
        """Return the value of every trial that counts."""
        read = self.value if callable(self.value) else lambda row, field=self.value: row[field]
        return [value for row in rows if (value := read(row)) is not None]


def along(cells: Mapping[Any, Sequence[Row]], measure: Measure) -> dict[Any, Estimate]:
    """Estimate a measure in each of some cells, keyed by x or (x,).

    Cells in which no trial counts are left out.
    """
    return _drawable(
        {
            x[0] if isinstance(x, tuple) else x: estimate(measure.values(rows), measure.statistic)
            for x, rows in cells.items()
        }
    )


def _drawable(series: Mapping[Any, Estimate]) -> dict[Any, Estimate]:
    return {x: one for x, one in series.items() if one.count}


class Estimates:
    """Estimates of measures by cell.

    Parameters
    ----------
    rows : sequence of dict
    keys : sequence of str
        Fields whose values the rows of a cell share.
    measures : mapping of str to Measure

    Attributes
    ----------
    cells : dict
        Rows of each cell by the tuple of its fields, in order of those values.
    """

    def __init__(self, rows: Sequence[Row], keys: Sequence[str], measures: Mapping[str, Measure]) -> None:
        self.keys, self.measures = tuple(keys), measures
        self.cells = by(rows, *keys)
        self._known: dict[tuple[tuple[Any, ...], str], Estimate] = {}

    def of(self, cell: tuple[Any, ...], name: str) -> Estimate:
        """Return the estimate of a measure in a cell."""
        if (cell, name) not in self._known:
            measure = self.measures[name]
            self._known[cell, name] = estimate(measure.values(self.cells[cell]), measure.statistic)
        return self._known[cell, name]

    def along(self, field: str, name: str, **fixed: Any) -> dict[Any, Estimate]:
        """Return the estimates of a measure against a field, in the cells whose other fields have these values.

        Cells that differ in another field are estimated together.
        """
        series: dict[Any, list[tuple[Any, ...]]] = {}
        for cell in self.cells:
            place = dict(zip(self.keys, cell, strict=True))
            if all(place[key] == value for key, value in fixed.items()):
                series.setdefault(place[field], []).append(cell)
        return _drawable({x: self._together(cells, name) for x, cells in series.items()})

    def _together(self, cells: Sequence[tuple[Any, ...]], name: str) -> Estimate:
        if len(cells) == 1:
            return self.of(cells[0], name)
        measure = self.measures[name]
        return estimate(measure.values([row for cell in cells for row in self.cells[cell]]), measure.statistic)


def estimates_by(
    keys: Sequence[str],
    measures: Mapping[str, Measure],
    choose: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows,
) -> Callable[[Sequence[Row]], Estimates]:
    """Return a function that estimates the measures of rows by cell, and keeps the estimates of its last rows.

    Verdicts, wide figure and narrow figure of one run are made from the same list of rows.

    Parameters
    ----------
    keys, measures
        See :class:`Estimates`.
    choose : callable
        Maps the rows to those that are estimated.
    """
    last: list[Any] = [None, None]

    def estimates(rows: Sequence[Row]) -> Estimates:
        if last[0] is not rows:
            last[:] = rows, Estimates(choose(rows), keys, measures)
        return last[1]

    return estimates
