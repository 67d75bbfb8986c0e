"""Selected and support patches, drawn on the images they come from."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attsvm.data.dataset import Dataset, Patches
from attsvm.plots.style import FIRST, INK, SECOND, house_style, is_wide, new_figure
from attsvm.study.results import Run, Setup


def _image(ax: Axes, image: np.ndarray) -> None:
    ax.imshow(image, cmap="gray_r", vmin=0, vmax=max(float(image.max()), 1e-9) * 1.25, interpolation="nearest")
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set(visible=True, color="#cccccc", linewidth=0.6)


def _box(ax: Axes, box: np.ndarray, inset: float, **look: object) -> None:
    row, column, height, width = (float(number) for number in box)
    corner = (column - 0.5 + inset, row - 0.5 + inset)
    ax.add_patch(Rectangle(corner, width - 2 * inset, height - 2 * inset, fill=False, joinstyle="miter", **look))  # type: ignore[arg-type]


def support_figure(setup: Setup, run: Run, width: float) -> Figure:
    """Draw the images that carry most of the SVM's multipliers.

    The selected patch is framed in blue, each support patch in orange, the heavier its multiplier the thicker; where
    the selected patch is not the best one, the best is dotted.
    """
    patches = setup.train.patches
    assert patches is not None
    dual = np.asarray(run.solutions[run.own].dual)
    heavy = dual.max() or 1.0
    rows, columns = (2, 6) if is_wide(width) else (4, 3)
    order = np.argsort(-dual.sum(axis=1), kind="stable")[: rows * columns]
    labels = setup.train.tokens.labels
    with house_style():
        figure = new_figure(width, rows * width / columns * 1.13)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax in axes[len(order) :]:
            ax.set_axis_off()
        for ax, i in zip(axes, order, strict=False):
            _image(ax, patches.images[i])
            for t in np.flatnonzero(dual[i] > 0):
                _box(ax, patches.boxes[t], 0.12, ec=SECOND, lw=0.8 + 2.4 * dual[i, t] / heavy)
            if run.selected[i] != setup.optimal[i]:
                _box(ax, patches.boxes[setup.optimal[i]], 0.3, ec=INK, lw=1.1, ls=":")
            _box(ax, patches.boxes[run.selected[i]], 0.06, ec=FIRST, lw=2.6)
            ax.set_title(setup.train.classes[0 if labels[i] > 0 else 1], fontsize=8, pad=2.5)
    return figure


def _mean_with_counts(ax: Axes, patches: Patches, rows: np.ndarray, selected: np.ndarray, title: str) -> None:
    mean = patches.images[rows].mean(axis=0)
    _image(ax, mean)
    counts = np.bincount(selected[rows], minlength=len(patches.boxes))
    for t in np.flatnonzero(counts):
        row, column, height, width = patches.boxes[t]
        look = {"lw": 2.0, "ec": FIRST}
        _box(ax, patches.boxes[t], 0.06, **look)
        middle = (column - 0.5 + width / 2, row - 0.5 + height / 2)
        ax.text(
            *middle, str(counts[t]), ha="center", va="center", color=FIRST, weight="bold", fontsize=10,
            bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.85},
        )  # fmt: skip
    ax.set_title(title)


def selection_figure(data: Dataset, runs: dict[str, Run], width: float) -> Figure:
    """Draw the average image of each class with the number of images in which each patch is selected."""
    patches, labels = data.patches, data.tokens.labels
    assert patches is not None
    names = {"W": "W", "KQ": "K, Q"}
    cells = [(run, side) for run in runs.values() for side in (1, -1) if (labels == side).any()]
    columns = len(cells) if is_wide(width) else 2
    rows = -(-len(cells) // columns)
    with house_style():
        figure = new_figure(width, rows * (width / columns + 0.3))
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax in axes[len(cells) :]:
            ax.set_axis_off()
        for ax, (run, side) in zip(axes, cells, strict=False):
            title = f"{data.classes[0 if side > 0 else 1]}, {names[run.parameterization]}"
            _mean_with_counts(ax, patches, np.flatnonzero(labels == side), run.selected, title)
    return figure
