"""Ours over the published curve: the drawing that the figures of experiments share.

Ours is a full line with filled markers and 95 % error bars; what was published a thin dashed line with hollow markers
of the same colour and shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from attsvm.plots.style import FIRST, INK, QUIET, SECOND, WIDE, legend_below, new_figure

# Blue, orange, green and purple of different lightness: they keep apart for every kind of colour blindness, and each
# has its own marker besides.
SERIES = ((FIRST, "o"), (SECOND, "s"), ("#2f9e7a", "^"), ("#7b4a8c", "D"), (INK, "v"), (QUIET, "P"))


@dataclass(frozen=True)
class Curve:
    """One series, ours with its intervals and the published one.

    Attributes
    ----------
    label : str
    x, y, low, high : sequences of float
        NaN where nothing was measured.
    look : int
        Colour and marker, an index of :data:`SERIES`.
    published : tuple of two sequences, optional
        x and y as published.
    style : str
        Of our line: "-" for exact, ":" for published numerics.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    look: int = 0
    published: tuple[Sequence[float], Sequence[float]] | None = field(default=None)
    style: str = "-"


def draw_curve(ax: Axes, curve: Curve, shift: float = 0.0) -> None:
    """Draw a series; `shift` moves ours sideways by that share of x, to keep error bars apart."""
    color, marker = SERIES[curve.look]
    if curve.published is not None:
        x, y = curve.published
        ax.plot(x, y, "--", marker=marker, color=color, mfc="white", ms=5.5, lw=0.9, zorder=2)
    x = np.asarray(curve.x, dtype=float) * (1 + shift)
    y, low, high = (np.asarray(part, dtype=float) for part in (curve.y, curve.low, curve.high))
    bars = np.maximum(np.stack([y - low, high - y]), 0.0)
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
    ax.set_xticks(list(values), [f"{value:g}" for value in values])
    ax.set_xlabel(label)


def grid(rows: int, columns: int, height: float, title: str, width: float = WIDE) -> tuple[Figure, Any]:
    """Make a grid of panels under a title; `height` is that of one row. Returns the figure and a 2-d array of axes."""
    figure = new_figure(width, height * rows + 0.9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=9.5, fontweight="bold")
    return figure, figure.subplots(rows, columns, squeeze=False)


def legend(figure: Figure, axes: Sequence[Axes], columns: int = 3, other: str | None = None) -> None:
    """Put a legend below that also tells ours from the published; `other` names our dotted lines."""
    ax = axes[0]
    keys = [("-", QUIET, "ours, 95 % interval"), ("--", "white", "published")]
    for style, face, label in keys:
        ax.add_line(Line2D([], [], ls=style, marker="o", ms=5, color=QUIET, mfc=face, lw=1.2, label=label))
    if other is not None:
        ax.add_line(Line2D([], [], ls=":", marker="o", ms=3.5, color=QUIET, lw=1.2, label=other))
    legend_below(figure, list(axes), columns)
