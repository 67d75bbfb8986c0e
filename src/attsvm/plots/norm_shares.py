"""Pictures of shares of the largest margin, of one matrix and over training; each function returns the axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from attsvm.plots.results import axes_or_new
from attsvm.plots.style import FIRST, QUIET

if TYPE_CHECKING:
    from attsvm.theory.margin_path import MarginPath
    from attsvm.theory.margin_report import MarginReport

# Rates of theory at which 1 - share falls: gradient descent (arXiv 1710.10345), normalised steepest descent with
# decaying steps (2502.04664) and with constant steps (1906.04540).
_RATES: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    ("1/log k", lambda k: 1 / np.log(k), "dotted"),
    ("1/sqrt(k)", lambda k: k**-0.5, "dashdot"),
    ("1/k", lambda k: 1.0 / k, "dashed"),
)
# First step at which 1/log k is drawn; it is infinite at step one.
_FIRST_STEP = 3


def shares(report: MarginReport, ax: Axes | None = None) -> Axes:
    """Draw the share of the largest margin that W reaches in each norm, with the largest share highlighted.

    Parameters
    ----------
    report : MarginReport
    ax : Axes, optional

    Returns
    -------
    Axes

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from attsvm import SelectionProblem, margin_report, plots
    >>> problem = SelectionProblem([[[1.0, 1.0], [0.0, 0.0]]], [[1.0]], [0])
    >>> report = margin_report(np.array([[1.0], [1.0]]), problem, norms=("frobenius", "max"))
    >>> ax = plots.shares(report, Figure().subplots())
    >>> len(ax.patches)
    2
    """
    ax = axes_or_new(ax)
    names, values = [share.norm for share in report.known], [share.share for share in report.known]
    ax.barh(names, values, color=[FIRST if name == report.nearest else "0.75" for name in names])
    ax.set(xlabel="share of the largest margin", xlim=(min([0.0, *values]), 1.02))
    ax.invert_yaxis()
    return ax


def share_path(path: MarginPath, ax: Axes | None = None) -> Axes:
    """Draw the share of the largest margin in each norm over steps, with the interval of its limit at the right.

    Grey lines have the rates of theory. One minus the share is c / log k for gradient descent; for normalised steepest
    descent it is c / sqrt(k) with decaying steps and c / k with constant steps. Each c is chosen so that the line
    goes through the largest share at the end; the slope of that curve then shows the nearest rate.

    Parameters
    ----------
    path : MarginPath
    ax : Axes, optional

    Returns
    -------
    Axes

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from attsvm import SelectionProblem, margin_path, plots
    >>> problem = SelectionProblem([[[1.0, 1.0], [0.0, 0.0]]], [[1.0]], [0])
    >>> path = margin_path([[[1.0], [0.0]], [[1.0], [0.5]]], [10, 100], problem, norms=("frobenius", "max"))
    >>> len(plots.share_path(path, Figure().subplots()).lines)
    5
    """
    ax, path = axes_or_new(ax), path.separable or path
    for number, limit in enumerate(path.limits):
        (curve,) = ax.plot(path.steps, path.shares(limit.norm), marker=".", label=limit.norm)
        if np.isfinite(limit.low):
            # Intervals stand to the right of the last step, next to one another.
            position = path.steps[-1] * 10 ** (0.3 + 0.06 * number)
            ax.plot([position] * 2, [limit.low, limit.high], color=curve.get_color(), linewidth=3)
    lead = max(np.nan_to_num(path.shares(limit.norm)[-1]) for limit in path.limits)
    if 0 < lead < 1 and path.steps[-1] > _FIRST_STEP:
        steps = np.geomspace(max(path.steps[0], _FIRST_STEP), path.steps[-1] * 2)
        for name, rate, style in _RATES:
            shortfall = (1 - lead) * rate(steps) / rate(path.steps[-1])
            ax.plot(steps, 1 - shortfall, color=QUIET, linewidth=1, linestyle=style, label=f"rate {name}", zorder=1)
    ax.set(xscale="log", xlabel="step", ylabel="share of the largest margin", ylim=(0, 1.02))
    ax.legend()
    return ax
