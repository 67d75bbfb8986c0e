"""What a figure shows, read from matplotlib's objects: curves with error bars, other lines, ticks, words and places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from attsvm_paper.judging.estimates import Estimate
from attsvm_paper.plots.experiments import SERIES


@dataclass(frozen=True)
class Curve:
    """A curve: its label in the legend, points, ends of its error bars (NaN where there is none), and look."""

    label: str
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    style: str
    color: Any
    marker: Any

    @property
    def look(self) -> int:
        """The place of its marker among those of a series."""
        return [marker for _, marker in SERIES].index(str(self.marker))

    def shows(
        self,
        estimates: Mapping[Any, Estimate],
        transform: Callable[[np.ndarray], np.ndarray] = np.asarray,
        shift: float = 0.0,
    ) -> None:
        """Assert that the curve consists of these estimates by x, moved sideways by a fraction of x."""
        assert self.x == pytest.approx([x * (1 + shift) for x in estimates])
        for drawn, name in ((self.y, "value"), (self.low, "low"), (self.high, "high")):
            expected = transform(np.array([getattr(one, name) for one in estimates.values()]))
            assert drawn == pytest.approx(expected.tolist(), abs=1e-9), name


def all_curves(ax: Axes) -> list[Curve]:
    """Read the curves of a panel in the order in which they are drawn."""
    found = []
    for container in ax.containers:
        assert isinstance(container, ErrorbarContainer)
        line, _, (bars,) = container.lines
        assert line is not None
        x, y = (np.asarray(part, dtype=float).tolist() for part in line.get_data())
        ends = [part[:, 1] if len(part) == 2 else [np.nan, np.nan] for part in bars.get_segments()]
        low, high = np.sort(np.array(ends, dtype=float).reshape(-1, 2), axis=1).T.tolist()
        label, style = str(container.get_label() or ""), str(line.get_linestyle())
        look = line.get_color(), line.get_marker()
        found.append(Curve("" if label.startswith("_") else label, x, y, low, high, style, *look))
    return found


def curves(ax: Axes) -> dict[str, Curve]:
    """Read the curves of a panel by their labels, which differ."""
    found = all_curves(ax)
    by_label = {one.label: one for one in found}
    assert len(by_label) == len(found)
    return by_label


def printed(ax: Axes) -> list[tuple[list[float], list[float]]]:
    """Read the printed curves, which are dashed; an entry of the legend has no points."""
    data = [line.get_data() for line in ax.lines if line.get_linestyle() == "--"]
    points = [(np.asarray(x, dtype=float).tolist(), np.asarray(y, dtype=float).tolist()) for x, y in data]
    return [(x, y) for x, y in points if x]


def printed_lie_below(ax: Axes) -> bool:
    """Whether the printed curves, which are dashed, lie below our error bars."""
    bars = [bar for one in ax.containers if isinstance(one, ErrorbarContainer) for bar in one.lines[2]]
    dashed = [line for line in ax.lines if line.get_linestyle() == "--"]
    orders = [line.get_zorder() for line in dashed if str(line.get_label()).startswith("_")]
    return max(orders) < min(bar.get_zorder() for bar in bars)


def bands(ax: Axes) -> list[list[tuple[float, float, float]]]:
    """Read the bands of the printed curves: x, lower and upper edge."""
    found = []
    for one in ax.collections:
        if isinstance(one, PolyCollection):
            corners: dict[float, list[float]] = {}
            for x, y in np.asarray(one.get_paths()[0].vertices):
                corners.setdefault(float(x), []).append(float(y))
            found.append([(x, min(ys), max(ys)) for x, ys in sorted(corners.items())])
    return found


def levels(ax: Axes) -> dict[str, float]:
    """Read the horizontal lines across a panel by their labels; an unlabelled line has an empty one."""
    found = {}
    for line in ax.lines:
        x, y = (np.asarray(part, dtype=float).tolist() for part in line.get_data())
        if x == [0, 1] and y[0] == y[1] and line.get_transform() == ax.get_yaxis_transform(which="grid"):
            # It can be seen, and is thinner than a curve of 1.5 points.
            assert 0.3 < line.get_linewidth() < 1.5
            label = str(line.get_label())
            found["" if label.startswith("_") else label] = y[0]
    return found


def heat_map(ax: Axes) -> np.ndarray:
    """Read the table of a heat map, rows upwards; NaN where there is no value."""
    (mesh,) = ax.collections
    return np.ma.filled(np.ma.asarray(mesh.get_array(), dtype=float), np.nan)


def ticks(axis: Any) -> dict[float, str]:
    """Read the labels of an axis at its major ticks."""
    return {float(at): label.get_text() for at, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)}


def legend_words(axes: Iterable[Axes]) -> list[str]:
    """Read the entries of the legends of the figure to which the panels belong, not those of its panels."""
    figure = next(iter(axes)).figure
    assert figure is not None
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def titles(axes: Iterable[Axes]) -> list[str]:
    """Read the titles of the panels in their order."""
    return [ax.get_title("left") for ax in axes]


def heading(axes: Sequence[Axes]) -> str:
    """Read the title of the whole figure as one line of plain spaces."""
    figure = axes[0].get_figure()
    assert figure is not None
    return " ".join(figure.get_suptitle().split())


def place(ax: Axes) -> tuple[int, int, int, int]:
    """Tell the rows and columns of a panel's grid, and its row and column."""
    spec = ax.get_subplotspec()
    assert spec is not None
    rows, columns = spec.get_gridspec().get_geometry()
    return rows, columns, spec.rowspan.start, spec.colspan.start


def in_one_column(figure: Figure) -> bool:
    """Whether the panels stand below each other."""
    return all(ax.get_subplotspec() is not None and place(ax)[1] == 1 for ax in figure.axes)


def panel_height(figure: Figure) -> float:
    """Tell the height of a figure in inches, shared among the rows of its panels."""
    return float(figure.get_figheight()) / max(place(ax)[0] for ax in figure.axes if ax.get_subplotspec())


def has_readable_panels(figure: Figure, rows: int) -> bool:
    """Whether a row of panels is between two and four inches high."""
    return 2 < figure.get_figheight() / rows < 4


def columns_of(legend: Legend) -> int:
    """Tell the number of columns of a legend, for which matplotlib has no public name."""
    return vars(legend)["_ncols"]
