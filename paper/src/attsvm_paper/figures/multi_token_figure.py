"""The figure of distances along training under a ReLU head: Figs 8 and 11b."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from attsvm.plots.style import house_style
from attsvm_paper.figures.multi_token import DIMENSIONS, ITERATIONS, SIZE, STATES, THRESHOLDS, TINY, TITLES, WORDS
from attsvm_paper.figures.multi_token_verdicts import below, end, printed_curve, printed_scatter
from attsvm_paper.judging.estimates import Measure, along, at_records, estimate
from attsvm_paper.judging.grouping import by, having
from attsvm_paper.judging.points import FEWEST
from attsvm_paper.judging.verdict import Row
from attsvm_paper.plots.experiments import (
    SERIES,
    curve_of,
    draw_curve,
    grid,
    legend,
    log_axis,
    own_legend,
    percent,
    value_axis,
)
from attsvm_paper.published.ledger import curve


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw distances along training for every dimension, the classification of draws, and the masking threshold."""

    def course(ax: Any, sample: Sequence[Row], d: int, style: str, has_reference: bool) -> None:
        for look, what in enumerate(WORDS):
            series = at_records(sample[0]["step"], [row[what] for row in sample], "bootstrap", 400)
            ours = curve_of(series, TITLES[what] if style == "-" else "", look, style=style)
            line = printed_curve(d, what)
            if has_reference and line is not None:
                x, y = (np.array(part, dtype=float) for part in line.line_points)
                ax.plot(x[x > 0] + 1, y[x > 0], "--", color=SERIES[look][0], lw=1.3, zorder=2)
            draw_curve(ax, ours)

    def scatter(ax: Any, sample: Sequence[Row], d: int, has_reference: bool) -> None:
        look = {"s": 7, "linewidths": 0.6, "rasterized": True}
        if has_reference and d in DIMENSIONS:
            theirs = printed_scatter(d)
            ax.scatter(
                theirs["x"],
                [10.0**y for y in theirs["y"]],
                facecolors="none",
                edgecolors=SERIES[5][0],
                label="published draw",
                **look,
            )
        ours = [(math.log10(max(row["masked"], TINY)), end(row)) for row in sample]
        if ours:
            ax.scatter(*zip(*ours, strict=True), color=SERIES[0][0], alpha=0.6, label="accepted draw of ours", **look)
        log_axis(ax, "y")
        ax.set_xlim(-17.5, -5.8)
        ax.set_ylim(1e-4, 1)
        ax.set_xlabel("log10 of the largest masked probability")
        ax.set_ylabel("1 - correlation")
        ax.set_title(f"SVM equivalent by draw, d = {d}")

    main = "published" if having(rows, numerics="published") else "exact"
    cells = {d: cell for (d,), cell in by(having(rows, numerics=main), "d").items()}
    with house_style():
        n, T = rows[0]["n"], rows[0]["T"]
        title = f"Several tokens under a ReLU head, n = {n}, T = {T}, 2000 normalised steps"
        down = -(-len(cells) // 2)
        result, axes = grid(2 * down + 1, 2, 2.5, title, width)
        evolving, scatters = axes[:down].ravel(), axes[down : 2 * down].ravel()
        for ax, cloud, d in zip(evolving, scatters, cells, strict=False):
            has_reference = (n, T) == SIZE and main == "published"
            for numerics in dict.fromkeys((main, "exact")):
                sample = having(rows, numerics=numerics, d=d, state="accepted")
                if len(sample) > 1:
                    course(ax, sample, d, "-" if numerics == main else ":", has_reference and numerics == main)
            log_axis(ax, "y")
            ax.set_ylim(2e-3, 1)
            ax.set_xlim(60, ITERATIONS[-1] * 1.05)
            ax.set_xlabel("training step")
            ax.set_ylabel("mean 1 - correlation")
            ax.set_title(f"accepted draws, d = {d}")
            scatter(cloud, having(rows, numerics=main, d=d, state="accepted"), d, has_reference)
        for ax in (*evolving[len(cells) :], *scatters[len(cells) :]):
            ax.remove()
        fates, masked = axes[2 * down]
        for look, state in enumerate(STATES[:3], start=3):
            shares = along(cells, Measure(state, lambda row, state=state: row["state"] == state, "share"))
            draw_curve(fates, curve_of(shares, state, look, percent))
        fates.set_ylabel("share of draws (%)")
        fates.set_ylim(-3, 103)
        fates.set_title("what becomes of a draw")
        value_axis(fates, list(cells), "dimension d", log=False)
        for look, (d, cell) in enumerate(cells.items()):
            look = look % len(SERIES)
            ends = {t: [end(row) for row in cell if below(row, t) is not None] for t in THRESHOLDS}
            ends = {t: np.array(values, dtype=float) for t, values in ends.items() if len(values) >= FEWEST}
            line = curve(f"Fig. 11b: d={d}").line_points if d in DIMENSIONS and (n, T) == SIZE else None
            series = {t: estimate(values, "bootstrap") for t, values in ends.items()}
            draw_curve(masked, curve_of(series, f"d = {d}", look, published=line))
        log_axis(masked, "y")
        masked.set_xlabel("log10 of the masking threshold")
        masked.set_ylabel("mean 1 - correlation")
        masked.set_title("SVM equivalent by threshold")
        own_legend(fates)
        own_legend(masked)
        legend(result, list(axes[: 2 * down].ravel()), 3, "ours, exact arithmetic")
    return result
