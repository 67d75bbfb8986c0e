"""Singular values of the two SVM solutions and of the trained matrix."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from attsvm.plots.curves import TITLES
from attsvm.plots.style import NORM_COLOURS, NORM_TITLES, QUIET, house_style, legend_below, panels
from attsvm.study.results import Run
from attsvm.study.spectrum import certified_rank, singular_values

SMALLEST_SHOWN = 1e-6
MOST_VALUES = 30


def _draw(ax: Axes, W: np.ndarray, marker: str, color: str, size: float, label: str) -> tuple[int, float]:
    values = singular_values(W)[:MOST_VALUES]
    values = values[values > SMALLEST_SHOWN]
    face = "none" if marker == "o" else color
    ax.plot(np.arange(1, len(values) + 1), values, marker, color=color, ms=size, mfc=face, label=label)
    return len(values), float(values[-1]) if len(values) else SMALLEST_SHOWN  # for a W that is still zero


def spectrum_figure(runs: dict[str, Run], width: float) -> Figure:
    """Draw singular values divided by the largest, on a logarithmic axis that ends at 1e-6."""
    with house_style():
        figure, axes = panels(width, 2.8, len(runs))
        for ax, run in zip(axes, runs.values(), strict=True):
            _draw(ax, np.asarray(run.trace.W[-1]), "o", QUIET, 6.0, "trained")
            for norm, marker in (("frobenius", "s"), ("nuclear", "D")):
                if norm in run.curves:
                    solution, color = run.solutions[norm], NORM_COLOURS[norm]
                    last = _draw(ax, solution.W, marker, color, 3.2, f"{NORM_TITLES[norm]} SVM")
                    # The label is below the last value; for a first value it is to the right, because the axis and
                    # another value are below.
                    to_the_right = last[0] < 2
                    ax.annotate(
                        f"rank {certified_rank(solution)}", last, xytext=(8, 0) if to_the_right else (0, -8),
                        textcoords="offset points", ha="left" if to_the_right else "center",
                        va="center" if to_the_right else "top", color=color, weight="bold", fontsize=8,
                    )  # fmt: skip
            ax.set_yscale("log")
            ax.set_ylim(SMALLEST_SHOWN, 2)
            ax.yaxis.set_minor_locator(NullLocator())
            ax.set_xlim(0, ax.get_xlim()[1] + 0.5)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            ax.set_title(TITLES[run.parameterization])
            ax.set_xlabel("number of the singular value")
            ax.set_ylabel("size over the largest")
        legend_below(figure, axes, 3)
    return figure
