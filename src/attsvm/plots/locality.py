"""Margins against scores, which show whether a selection is locally optimal."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attsvm.plots.curves import TITLES
from attsvm.plots.style import FIRST, INK, NORM_TITLES, QUIET, SECOND, house_style, legend_below, panels
from attsvm.study.results import Run
from attsvm.study.words import Nouns

_TICKS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000)


def _draw(ax: Axes, run: Run, gamma: np.ndarray, words: Nouns) -> None:
    assert run.locality is not None
    solution, near, lower = run.solutions[run.own], run.locality.neighbours, ~run.locality.violations
    gap = gamma[np.arange(len(gamma)), run.selected, None] - np.where(np.isfinite(gamma), gamma, np.nan)
    margins = np.asarray(solution.margins)
    far = solution.problem.rejected & ~near
    # Rasterised, because many points as vectors would make the SVG ten times larger.
    ax.plot(margins[far], gap[far], ".", color=QUIET, ms=2.5, alpha=0.5, label=f"other {words.tokens}", rasterized=True)
    looks = ((lower, FIRST, "neighbours that score lower"), (~lower, SECOND, "neighbours that do not"))
    for group, color, label in looks:
        points = near & group
        if points.any():
            ax.plot(margins[points], gap[points], "o", color=color, ms=4, label=label)
    ax.axhline(0, color=INK, lw=0.6)
    ax.set_xscale("log")
    ax.minorticks_off()
    widest = margins[solution.problem.rejected].max(initial=2.0)
    ticks = [tick for tick in _TICKS if tick <= widest]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.set_xlabel(f"margin under the {NORM_TITLES[run.own]} SVM")
    ax.set_ylabel("score below the selected")


def margins_figure(runs: dict[str, Run], gamma: np.ndarray, width: float, words: Nouns) -> Figure:
    """Draw, for every rejected token, its SVM margin and how far its score is below the score of the selected token.

    Local optimality concerns only the neighbours, the tokens at margin one: they must lie above zero.
    """
    drawable = [run for run in runs.values() if run.locality is not None]
    with house_style():
        figure, axes = panels(width, 2.8, len(drawable))
        for ax, run in zip(axes, drawable, strict=True):
            _draw(ax, run, gamma, words)
            ax.set_title(TITLES[run.parameterization])
        legend_below(figure, axes, 3)
    return figure
