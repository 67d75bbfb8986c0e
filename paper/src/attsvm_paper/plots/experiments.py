"""Our curves over the published ones: the drawing functions of the experiments' figures.

Our curve is a full line with filled markers and 95 % error bars; the published one is a thin dashed line with hollow
markers of the same colour and shape.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatterSciNotation, NullLocator

from attsvm.plots.style import FIRST, INK, QUIET, SECOND, WIDE, is_wide, legend_below, new_figure
from attsvm_paper.judging.estimates import Estimate

# Blue, orange, green and purple of different lightness: they differ under every kind of colour blindness, and each has
# a different marker.
SERIES = ((FIRST, "o"), (SECOND, "s"), ("#2f9e7a", "^"), ("#7b4a8c", "D"), (INK, "v"), (QUIET, "P"))
# Letters of a bold title per inch.
TITLE_LETTERS = 12.5


@dataclass(frozen=True)
class Curve:
    """One series: our values with intervals, and the published ones.

    Attributes
    ----------
    label : str
    x, y, low, high : sequences of float
        NaN if nothing was measured.
    look : int
        Colour and marker, an index of :data:`SERIES`.
    published : tuple of two sequences, optional
        Published x and y.
    style : str
        Style of our line: "-" for exact, ":" for published numerics.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    look: int = 0
    published: tuple[Sequence[float], Sequence[float]] | None = field(default=None)
    style: str = "-"


def percent(shares: np.ndarray) -> np.ndarray:
    """Express shares in percent."""
    return 100 * shares


def curve_of(
    estimates: Mapping[Any, Estimate],
    label: str,
    look: int,
    transform: Callable[[np.ndarray], np.ndarray] = np.asarray,
    **extra: Any,
) -> Curve:
    """Make a curve of estimates by x, their values and intervals transformed."""
    values = np.array([(one.value, one.low, one.high) for one in estimates.values()]).reshape(-1, 3)
    y, low, high = transform(values).T.tolist()
    return Curve(label, list(estimates), y, low, high, look, **extra)


# Number of points above which the markers of a printed line would overlap.
MANY = 16


def draw_curve(
    ax: Axes, curve: Curve, shift: float = 0.0, line: tuple[Any, Any, tuple[Any, Any] | list[Any]] | None = None
) -> None:
    """Draw a series.

    Parameters
    ----------
    ax : Axes
    curve : Curve
    shift : float
        Moves our points sideways by this fraction of x, to separate error bars.
    line : tuple, optional
        The whole published curve with its band, instead of `curve.published`: x, y, and the band's lower and upper
        edge.
    """
    color, marker = SERIES[curve.look]
    reference = curve.published if line is None else line[:2]
    if reference is not None:
        x, y = reference
        markers = {"marker": marker, "ms": 5.5, "mfc": "white"} if len(x) < MANY else {}
        ax.plot(x, y, "--", color=color, lw=0.9 if markers else 1.3, zorder=2, **markers)
    if line is not None:
        ax.fill_between(line[0], *line[2], color=color, alpha=0.1, lw=0, zorder=1)
    x = np.asarray(curve.x, dtype=float) * (1 + shift)
    y, low, high = (np.asarray(part, dtype=float) for part in (curve.y, curve.low, curve.high))
    bars = np.maximum(np.stack([y - low, high - y]), 0.0)
    bars[~np.isfinite(bars)] = np.nan  # one trial has no interval
    faint = curve.style != "-"
    ax.errorbar(
        x, y, bars, fmt=curve.style, marker=marker, color=color, ms=3 if faint else 4, lw=1.0 if faint else 1.5,
        elinewidth=0.9, capsize=1.8, alpha=0.75 if faint else 1.0, label=curve.label, zorder=3,
    )  # fmt: skip


def value_axis(ax: Axes, values: Sequence[float], label: str, log: bool = True) -> None:
    """Put the ticks of the horizontal axis at the values of the sweep."""
    if log:
        ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(list(values), [short(value) for value in values])
    ax.set_xlabel(label)


def log_radius(path: np.ndarray) -> np.ndarray:
    """Shorten the vectors of a path (2, k), whose lengths differ by orders of magnitude, to log(1 + length)."""
    length = np.linalg.norm(path, axis=0)
    return path / np.maximum(length, np.finfo(float).tiny) * np.log1p(length)


def short(value: float) -> str:
    """Write a number for an axis: 0.001, 1e-5, 1e10."""
    mantissa, _, exponent = f"{value:g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


class _PlainLogs(LogFormatterSciNotation):
    """The default labels of a logarithmic axis, without small exponents."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return short(x) if super().__call__(x, pos) else ""


def log_axis(ax: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with labels of the usual size."""
    if which == "x":
        ax.set_xscale("log")
    else:
        ax.set_yscale("log")
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_formatter(_PlainLogs())
    axis.set_minor_formatter(_PlainLogs(labelOnlyBase=False))


def grid(
    rows: int, columns: int, height: float, title: str, width: float = WIDE, narrow_columns: int = 1
) -> tuple[Figure, Any]:
    """Make a grid of panels under a title.

    Parameters
    ----------
    rows, columns : int
    height : float
        Height of one row, in inches.
    title : str
        Its formulas must not contain spaces, because it is wrapped.
    width : float
        A narrow figure stacks its panels, row by row.
    narrow_columns : int
        Number of panels per row on a narrow figure.

    Returns
    -------
    figure : Figure
    axes : ndarray of Axes, shape (rows, columns)
        Independent of their placement.
    """
    count = rows * columns
    down, across = (rows, columns) if is_wide(width) else (-(-count // narrow_columns), min(narrow_columns, count))
    figure = new_figure(width, height * down + 0.9)
    # A no-break space holds "n = 5" and "95 %" together.
    whole = title.replace(" = ", "\xa0=\xa0").replace(" %", "\xa0%")
    lines = textwrap.fill(whole, round(TITLE_LETTERS * width))
    figure.suptitle(lines, x=0.01, ha="left", fontsize=9.5, fontweight="bold")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for ax in axes[count:]:
        ax.remove()
    return figure, axes[:count].reshape(rows, columns)


def own_legend(ax: Axes, columns: int = 1) -> None:
    """Label the series inside a panel whose colours mean something else than in the other panels."""
    ax.legend(loc="best", ncols=columns, fontsize=7, handlelength=1.6, labelspacing=0.25, columnspacing=1.0)


def legend(
    figure: Figure, axes: Sequence[Axes], columns: int = 3, other: str | None = None, band: bool = False
) -> None:
    """Put a legend below the panels that distinguishes ours from the published; `other` names our dotted lines.

    `band` adds an entry for the published standard deviations.
    """
    ax = axes[0]
    keys = [("-", QUIET, "ours, 95 % interval"), ("--", "white", "published")]
    for style, face, label in keys:
        ax.add_line(Line2D([], [], ls=style, marker="o", ms=5, color=QUIET, mfc=face, lw=1.2, label=label))
    if band:
        ax.add_line(Line2D([], [], ls="-", lw=6, alpha=0.25, color=QUIET, label="published ± one standard deviation"))
    if other is not None:
        ax.add_line(Line2D([], [], ls=":", marker="o", ms=3.5, color=QUIET, lw=1.2, label=other))
    legend_below(figure, list(axes), columns)
