"""Heat maps of shares and scores over a grid of two parameters, with theoretical lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from attsvm.plots.style import FIRST, INK

# Larger values contrast more with the background, which is white here and black on a dark page, where lightness is
# inverted. Zero differs slightly from the background, which marks cells with no value.
COLOURS = LinearSegmentedColormap.from_list("shares", ["#e9eff6", "#8db3da", FIRST, "#0a2747"])
DARK = 0.52
"""Share from which white text is more readable on its colour than dark text."""


def draw_map(ax: Axes, cells: Mapping[Any, float], xs: Sequence[float], ys: Sequence[float]) -> Any:
    """Draw values in [0, 1] as equal squares, x to the right and y upwards; cells with no value stay blank.

    Parameters
    ----------
    ax : Axes
    cells : mapping from (x, y) to a value
    xs, ys : sequences of float
        The values along the axes, ascending.

    Returns
    -------
    QuadMesh
        For a colour bar.
    """
    table = np.array([[cells.get((x, y), np.nan) for x in xs] for y in ys])
    places = np.arange(len(xs) + 1) - 0.5, np.arange(len(ys) + 1) - 0.5
    # Edges in the colour of the squares close gaps that browsers leave between them.
    mesh = ax.pcolormesh(*places, table, cmap=COLOURS, edgecolors="face", lw=0.4)
    mesh.set_clim(0, 1)
    for side, values in ((ax.xaxis, xs), (ax.yaxis, ys)):
        every = max(1, round(len(values) / 6))
        side.set_ticks(list(range(0, len(values), every)), [f"{value:g}" for value in values[::every]])
    ax.set_xlim(-0.5, len(xs) - 0.5)
    ax.set_ylim(-0.5, len(ys) - 0.5)
    return mesh


def draw_line(
    ax: Axes, line: Callable[[float], float], xs: Sequence[float], ys: Sequence[float], style: str, label: str
) -> None:
    """Draw y = line(x) across such a map, interpolated in the logarithms of the values."""
    places = np.arange(len(xs), dtype=float)
    heights = np.log([max(line(x), 1e-300) for x in xs])
    logarithms = np.log(np.asarray(ys, dtype=float))
    inside = (
        np.interp(heights, logarithms, np.arange(len(ys)), left=np.nan, right=np.nan)
        if len(ys) > 1
        else heights * np.nan
    )
    for color, width in (("white", 2.6), (INK, 1.3)):
        ax.plot(places, inside, style, color=color, lw=width, label=label if color == INK else None, zorder=3)


def annotate(ax: Axes, table: np.ndarray, text: Callable[[float], str]) -> None:
    """Write every value of a table (rows upwards) into its square, light text on dark squares and dark on light."""
    for (row, column), value in np.ndenumerate(table):
        if np.isfinite(value):
            ax.text(column, row, text(float(value)), ha="center", va="center", fontsize=7, color=ink_on(float(value)))


def ink_on(share: float) -> str:
    """Return the text colour on the colour of a share in [0, 1]."""
    return "white" if share > DARK else INK
