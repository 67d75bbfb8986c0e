"""The style shared by all figures, and their output formats."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

INK = "#1c1c1c"
QUIET = "#8a8a8a"
# Blue and orange differ under every common kind of colour blindness and in grey. Blue is the Frobenius norm and the
# selection, orange the nuclear norm and competing tokens.
FIRST = "#1f5a99"
SECOND = "#c8641b"
NORM_COLOURS = {"frobenius": FIRST, "nuclear": SECOND}
NORM_TITLES = {"frobenius": "Frobenius", "nuclear": "nuclear"}

WIDE, NARROW = 7.6, 3.7
"""Widths in inches: a page's column, and a telephone."""

_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "attsvm",
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw and save in the shared style, independent of the caller's settings."""
    settings: Any = {**mpl.rcParamsDefault, **_STYLE, "backend": mpl.rcParams["backend"]}
    with mpl.rc_context(settings):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of the given size in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def panels(width: float, height: float, count: int) -> tuple[Figure, list[Axes]]:
    """Make `count` panels of the given height: side by side on a wide figure, stacked on a narrow one."""
    rows, columns = (1, count) if is_wide(width) else (count, 1)
    figure = new_figure(width, height * rows + (0.3 if rows > 1 else 0.0))
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.ravel())


def is_wide(width: float) -> bool:
    """Return whether a width is a page's column rather than a telephone."""
    return width > (WIDE + NARROW) / 2


def legend_below(figure: Figure, axes: list[Axes], columns: int) -> None:
    """Put one legend for all panels below them; equal labels appear once."""
    entries: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower left",
        ncols=columns if is_wide(figure.get_figwidth()) else 1, handlelength=2.4, labelspacing=0.35, columnspacing=1.6,
    )  # fmt: skip


def step_axis(ax: Axes, last: float) -> None:
    """Make the horizontal axis logarithmic for training steps, labelled 1, 10, 100, 1,000."""
    ax.set_xscale("log")
    ax.set_xlim(1, max(last, 2))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    ax.set_xlabel("training step")


def _settle(figure: Figure) -> None:
    """Compute the layout once for all formats (with the engine "none" each format would be drawn twice)."""
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine(None)


def as_svg(figure: Figure) -> str:
    """Return the figure as an SVG document; the same figure gives the same text."""
    stream = io.StringIO()
    with house_style():
        _settle(figure)
        figure.savefig(stream, format="svg", dpi=200, metadata={"Date": None})
    return stream.getvalue()


def as_png(figure: Figure) -> bytes:
    """Return the figure as a PNG image of 200 dots per inch."""
    stream = io.BytesIO()
    with house_style():
        _settle(figure)
        figure.savefig(stream, format="png", dpi=200)
    return stream.getvalue()


def save(figure: Figure, directory: Path, name: str) -> None:
    """Write NAME.png at 200 dots per inch and NAME.pdf."""
    with house_style():
        _settle(figure)
        figure.savefig(directory / f"{name}.png", dpi=200)
        figure.savefig(directory / f"{name}.pdf", metadata={"CreationDate": None})
