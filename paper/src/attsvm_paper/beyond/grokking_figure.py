"""The curves of the grokking experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from attsvm.plots.style import QUIET, WIDE, house_style, is_wide
from attsvm_paper.beyond.modular_addition import LOSSES, PRECISIONS
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.grouping import by, column, having
from attsvm_paper.judging.verdict import Row
from attsvm_paper.plots.experiments import SERIES, grid, short

STYLES = {"float32": "-", "float64": "--", "bfloat16": ":"}
NAMES = {"plain": "cross-entropy", "exact": "exact", "scaled": "scaled", "stablemax": "StableMax", "power": "power"}
TITLES = {"normalised": "normalised steps", "Adam": "Adam"}
Cells = dict[tuple[str, str], list[Row]]


def figure(rows: Sequence[Row], width: float = WIDE) -> Figure:
    """Draw the most common size: curves for two optimisers, the controls, and the end of every cell."""
    sizes = by(rows, "p", "width", "share")
    table = max(sizes.values(), key=len)
    p = table[0]["p"]
    with house_style():
        result, axes = grid(4, 3, 2.1, f"Addition modulo {p} without weight decay: arithmetic or tail?", width)
        for line, optimiser in zip(axes, TITLES, strict=False):
            cells = central(table, optimiser)
            for ax, field, name in zip(
                line, ("test", "margin", "lost"), ("held-out accuracy", "least margin", "zero gradients"), strict=True
            ):
                curves(ax, cells, field)
                ax.set_title(TITLES[optimiser])
                ax.set_ylabel(name)
        for ax, optimiser in zip(axes[2], TITLES, strict=False):
            curves(ax, central(table, optimiser), "normalised")
            ax.set_title(TITLES[optimiser])
            ax.set_ylabel("margin over cubed norm")
        controls(axes[2, 2], table)
        for ax, optimiser in zip(axes[3], TITLES, strict=False):
            ends(ax, central(table, optimiser))
            ax.set_title(TITLES[optimiser])
        draw_ends(axes[3, 2], table)
        handles = [Line2D([], [], color=SERIES[look][0], label=NAMES[loss]) for look, loss in enumerate(LOSSES)]
        handles += [Line2D([], [], color=QUIET, ls=STYLES[name], label=name) for name in PRECISIONS]
        result.legend(handles=handles, loc="outside lower left", ncols=4 if is_wide(width) else 2)
    return result


def central(rows: Sequence[Row], optimiser: str) -> Cells:
    """Return, per loss and precision, the rows of its cell with no decay; of several, the one with largest steps."""
    own = [row for row in having(rows, optimiser=optimiser) if not row["decay"]]
    return {
        key: list(by(cell, "lr", "steps", "epsilon").values())[-1]
        for key, cell in by([row for row in own if row["epsilon"] < 1e-20], "loss", "precision").items()
    }


def mean_curve(cell: Sequence[Row], field: str) -> tuple[Any, np.ndarray]:
    """Return steps and the mean over models."""
    return cell[0]["step"], np.mean([row[field] for row in cell], axis=0)


def curves(ax: Axes, cells: Cells, field: str) -> None:
    """Draw the mean over models of a list in the rows; margins have a wide range and get a logarithmic axis."""
    for (loss, precision), cell in cells.items():
        ax.plot(*mean_curve(cell, field), STYLES[precision], color=SERIES[LOSSES.index(loss)][0], lw=1.2)
    if field == "margin":
        ax.set_yscale("symlog", linthresh=10)
        top = max((float(np.max(mean_curve(cell, field)[1])) for cell in cells.values()), default=0.0)
        decades = [10.0**k for k in range(1, 300) if 10.0**k <= max(top, 100.0)]
        ticks = [0.0, *decades[:: 1 + len(decades) // 5]]
        ax.set_yticks(ticks, [short(tick) for tick in ticks])
        ax.minorticks_off()
        for wall in (16, 36):
            ax.axhline(wall, color=QUIET, lw=0.6)
    elif field == "normalised":
        ax.axhline(0, color=QUIET, lw=0.6)
        # Before the training pairs are learned, margins are negative, and large because the weights are still small.
        top = max((float(np.max(mean_curve(cell, field)[1])) for cell in cells.values()), default=0.0)
        if top > 0:
            ax.set_ylim(-0.5 * top, 1.1 * top)
        few_numbers(ax.yaxis)
    else:
        ax.set_ylim(-0.04, 1.04)
    ax.set_xlabel("step")
    ax.locator_params(axis="x", nbins=4)


def controls(ax: Axes, rows: Sequence[Row]) -> None:
    """Draw held-out accuracy with weight decay and with perpendicular gradients."""
    own = [row for row in rows if row["decay"] or row["optimiser"] == "perpendicular"]
    for look, ((optimiser, loss, _), cell) in enumerate(by(own, "optimiser", "loss", "precision").items()):
        label = "weight decay" if optimiser != "perpendicular" else f"perpendicular, {NAMES[loss]}"
        color, marker = SERIES[look % len(SERIES)]
        ax.plot(*mean_curve(cell, "test"), color=color, marker=marker, ms=2.5, lw=1.2, label=label)
    if own:
        ax.legend(loc="lower left", fontsize=7, handlelength=1.4, borderaxespad=0)
    # The curves rise through the whole panel, so the legend stands in a strip below zero.
    ax.set_ylim(-0.75, 1.04)
    ax.set_yticks([0, 0.5, 1])
    ax.set_title("controls")
    ax.set_ylabel("held-out accuracy")
    ax.set_xlabel("step")
    ax.locator_params(axis="x", nbins=4)


def ends(ax: Axes, cells: Cells) -> None:
    """Draw the best held-out accuracy of every loss and precision, with its 95 % interval."""
    for (loss, precision), cell in cells.items():
        best = estimate(column(cell, "best"), "bootstrap")
        place = LOSSES.index(loss) + 0.22 * (PRECISIONS.index(precision) - 1)
        middle = best.value
        low, high = (best.low, best.high) if best.count > 1 else (middle, middle)
        color, marker = SERIES[PRECISIONS.index(precision)]
        ax.errorbar(place, middle, [[max(middle - low, 0)], [max(high - middle, 0)]], fmt=marker, color=color, ms=3.5,
                    elinewidth=0.9, capsize=1.6, label=precision)  # fmt: skip
    ax.set_xticks(range(len(LOSSES)), [NAMES[loss] for loss in LOSSES], rotation=30, ha="right", rotation_mode="anchor")
    ax.set_xlim(-0.5, len(LOSSES) - 0.5)
    ax.set_ylim(-0.04, 1.04)
    ax.set_ylabel("best held-out accuracy")
    ax.set_xlabel("loss")
    handles, labels = ax.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    ax.legend(unique.values(), unique.keys(), loc="upper left", fontsize=7, handlelength=0.8)


def few_numbers(axis: Axis) -> None:
    """Put about three labels like 1e-4 on an axis."""
    axis.set_major_locator(MaxNLocator(3))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def draw_ends(ax: Axes, rows: Sequence[Row]) -> None:
    """Draw held-out accuracy against the normalised margin, one point per model at its end."""
    for look, loss in enumerate(LOSSES):
        own = [row for row in having(rows, loss=loss) if row["last_margin"] > 0]
        color, marker = SERIES[look]
        ax.plot(column(own, "last_normalised"), column(own, "last_test"), marker, color=color, ms=2.2, alpha=0.6, mew=0)
    few_numbers(ax.xaxis)
    ax.set_ylim(-0.04, 1.04)
    ax.set_title("every model at its end")
    ax.set_xlabel("margin over cubed norm")
    ax.set_ylabel("held-out accuracy")
