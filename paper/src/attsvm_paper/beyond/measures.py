"""Measures shared by the experiments of this section, and curves of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from attsvm.solution.solution import Solution
from attsvm_paper.judging.grouping import column
from attsvm_paper.judging.statistics import bootstrap_interval, mean_interval
from attsvm_paper.judging.verdict import Row
from attsvm_paper.plots.experiments import Curve


def margin_share(solution: Solution, W: np.ndarray) -> float:
    """Return the margin of W for the tokens of an SVM, per norm, as a share of the largest margin.

    It is 1 for the solution itself, negative where W scores another token higher; NaN for an infeasible SVM.
    """
    rejected = solution.problem.rejected
    length = float(np.linalg.norm(W))
    if not np.isfinite(solution.objective) or not rejected.any() or length == 0:
        return float("nan")
    return float(solution.problem.apply(W)[rejected].min()) / length * solution.objective


def finite_or_none(number: float) -> float | None:
    """Return a number for a row, None if it is not finite."""
    return float(number) if np.isfinite(number) else None


def curve_of(
    cells: Mapping[Any, Sequence[Row]],
    name: str,
    label: str,
    look: int,
    statistic: Literal["mean", "median"] = "mean",
    **extra: Any,
) -> Curve:
    """Make a curve of a field's mean, or median, with its 95 % interval; cells with fewer than two values are omitted.

    Parameters
    ----------
    cells : mapping
        From x, or a tuple of x alone, to rows.
    name : str
        The field.
    label : str
    look : int
    statistic : {"mean", "median"}
        A mean gets Student's interval, a median the bootstrap.
    """
    values = {key[0] if isinstance(key, tuple) else key: column(rows, name) for key, rows in cells.items()}
    values = {x: sample for x, sample in values.items() if len(sample) > 1}
    if statistic == "mean":
        bounds = [mean_interval(sample) for sample in values.values()]
        middle = [float(sample.mean()) for sample in values.values()]
    else:
        bounds = [bootstrap_interval(sample, np.median) for sample in values.values()]
        middle = [float(np.median(sample)) for sample in values.values()]
    return Curve(
        label, list(values), middle, [low for low, _ in bounds], [high for _, high in bounds], look, **extra
    )  # fmt: skip
