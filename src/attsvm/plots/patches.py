"""Selected and support patches, drawn on their images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import AbstractPathEffect, withStroke

from attsvm.data.dataset import Dataset
from attsvm.data.images import Patches
from attsvm.plots.style import FIRST, INK, SECOND, house_style, is_wide, new_figure
from attsvm.study.results import DecidingInstance, Run, Setup

# Size of a patch in inches from which lines have full width, and the smallest line width.
FULL_PATCH, HAIR = 0.3, 0.2
# Ratios of height to width outside which an image is stretched: its patches would be too small to see.
FLATTEST, TALLEST = 0.3, 2.0
# Height in inches of the title over a strip of drawings.
TITLE = 0.22
# Number of positions above which image counts are written only on the most frequent ones.
MOST_NUMBERS, MOST_FREQUENT = 40, 5


def _cell_aspect(patches: Patches) -> float:
    return min(max(patches.aspect, FLATTEST), TALLEST)


def _weight(patches: Patches, width: float) -> float:
    """Return the line width on an image that is drawn `width` inches wide."""
    boxes = patches.boxes[patches.boxes[:, 2] > 0]
    smallest = float(boxes[:, 2:].min(initial=patches.images.shape[1]))
    inches = smallest * width / patches.images.shape[2]
    return min(1.0, max(HAIR, inches / FULL_PATCH))


def _image(ax: Axes, patches: Patches, image: np.ndarray) -> None:
    aspect = "equal" if _cell_aspect(patches) == patches.aspect else "auto"
    if patches.ink:
        ax.imshow(image, cmap="gray_r", vmin=0, vmax=max(float(image.max()), 1e-9) * 1.25, interpolation="nearest")
    else:
        ax.imshow(patches.shown(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect=aspect)
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set(visible=True, color="#cccccc", linewidth=0.6)


def _box(ax: Axes, box: np.ndarray, depth: float, **look: object) -> None:
    """Frame a patch, `depth` times half its shorter side inside its edge; a token with no patch gets no frame."""
    row, column, height, width = (float(number) for number in box)
    if height == 0:
        return
    inset = depth * min(height, width) / 2
    corner = (column - 0.5 + inset, row - 0.5 + inset)
    # A white halo makes frames of any colour visible on any image.
    halo: list[AbstractPathEffect] = [withStroke(linewidth=float(look["lw"]) + 1.5, foreground="white")]  # type: ignore[arg-type]
    frame = Rectangle(corner, width - 2 * inset, height - 2 * inset, fill=False, joinstyle="miter", **look)  # type: ignore[arg-type]
    frame.set_path_effects(halo)
    ax.add_patch(frame)


def _cells(patches: Patches, width: float) -> tuple[int, int]:
    """Return the number of rows and columns of images; strips of drawings are wide."""
    if patches.ink and patches.aspect < FLATTEST:
        return (6, 2) if is_wide(width) else (8, 1)
    return (2, 6) if is_wide(width) else (4, 3)


def _grid(patches: Patches, width: float, count: int) -> tuple[Figure, np.ndarray]:
    """Make a figure for `count` images with titles; returns it and its axes."""
    rows, columns = _cells(patches, width)
    cell = width / columns
    strips = columns < 3
    figure = new_figure(
        width, rows * (cell * patches.aspect + TITLE if strips else cell * (_cell_aspect(patches) + 0.13))
    )
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes[count:]:
        ax.set_axis_off()
    return figure, axes


def deciding_figure(data: Dataset, instances: Sequence[DecidingInstance], width: float) -> Figure:
    """Draw bags from the least margin to the largest, with the deciding patch framed."""
    patches = data.patches
    assert patches is not None
    rows, columns = _cells(patches, width)
    places = np.unique(np.linspace(0, len(instances) - 1, rows * columns).round().astype(int))
    with house_style():
        figure, axes = _grid(patches, width, len(places))
        for ax, one in zip(axes, (instances[place] for place in places), strict=False):
            _image(ax, patches, patches.images[one.row])
            _box(ax, patches.boxes[one.index], 0.06, ec=FIRST, lw=2.6 * _weight(patches, width / columns))
            ax.set_title(f"{one.label}, margin {one.margin:.2g}", fontsize=8, pad=2.5)
    return figure


def support_figure(setup: Setup, run: Run, width: float) -> Figure:
    """Draw the images with the largest sums of SVM multipliers.

    The selected patch has a blue frame; support patches have orange frames, thicker for a larger multiplier. If the
    selected patch is not the best one, the best has a dotted frame.
    """
    patches = setup.train.patches
    assert patches is not None
    dual = np.asarray(run.solutions[run.own].dual)
    heavy = dual.max() or 1.0
    rows, columns = _cells(patches, width)
    order = np.argsort(-dual.sum(axis=1), kind="stable")[: rows * columns]
    labels = setup.train.tokens.labels
    with house_style():
        figure, axes = _grid(patches, width, len(order))
        weight = _weight(patches, width / columns)
        for ax, i in zip(axes, order, strict=False):
            _image(ax, patches, patches.images[i])
            for t in np.flatnonzero(dual[i] > 0):
                _box(ax, patches.boxes[t], 0.12, ec=SECOND, lw=weight * (0.8 + 2.4 * dual[i, t] / heavy))
            if run.selected[i] != setup.optimal[i]:
                _box(ax, patches.boxes[setup.optimal[i]], 0.3, ec=INK, lw=1.1 * weight, ls=":")
            _box(ax, patches.boxes[run.selected[i]], 0.06, ec=FIRST, lw=2.6 * weight)
            ax.set_title(setup.train.classes[0 if labels[i] > 0 else 1], fontsize=8, pad=2.5)
    return figure


def _mean_with_counts(
    ax: Axes, patches: Patches, rows: np.ndarray, selected: np.ndarray, title: str, inches: float
) -> None:
    _image(ax, patches, patches.images[rows].mean(axis=0))
    counts = np.bincount(selected[rows], minlength=len(patches.boxes))
    weight = _weight(patches, inches)
    places = [int(t) for t in np.argsort(-counts, kind="stable") if counts[t] and patches.boxes[t, 2] > 0]
    for place, t in enumerate(places):
        row, column, height, width = patches.boxes[t]
        _box(ax, patches.boxes[t], 0.06, lw=2.0 * weight, ec=FIRST)
        if len(patches.boxes) > MOST_NUMBERS and place >= MOST_FREQUENT:
            continue
        middle = (column - 0.5 + width / 2, row - 0.5 + height / 2)
        ax.text(
            *middle, str(counts[t]), ha="center", va="center", color=FIRST, weight="bold", fontsize=4 + 6 * weight,
            bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.85},
        )  # fmt: skip
    elsewhere = int(counts.sum() - counts[places].sum())
    ax.set_title(f"{title}, {elsewhere} outside" if elsewhere else title)


def selection_figure(data: Dataset, runs: dict[str, Run], width: float) -> Figure:
    """Draw the average image of each class with the number of images in which each patch is selected."""
    patches, labels = data.patches, data.tokens.labels
    assert patches is not None
    names = {"W": "W", "KQ": "K, Q"}
    cells = [(run, side) for run in runs.values() for side in (1, -1) if (labels == side).any()]
    columns = len(cells) if is_wide(width) else 2
    rows = -(-len(cells) // columns)
    with house_style():
        figure = new_figure(width, rows * (width / columns * _cell_aspect(patches) + 0.3))
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax in axes[len(cells) :]:
            ax.set_axis_off()
        for ax, (run, side) in zip(axes, cells, strict=False):
            title = f"{data.classes[0 if side > 0 else 1]}, {names[run.parameterization]}"
            _mean_with_counts(ax, patches, np.flatnonzero(labels == side), run.selected, title, width / columns)
    return figure
