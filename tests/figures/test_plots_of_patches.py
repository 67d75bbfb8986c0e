"""Patches framed on their images: which are framed, where, how heavily, and on which images."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attsvm.data.images import Patches
from attsvm.plots.patches import deciding_figure, selection_figure, support_figure
from attsvm.plots.style import FIRST, INK, NARROW, SECOND, WIDE

# Two patches side by side of two by three pixels, and a token without a patch.
BOXES = np.array([[0, 0, 2, 3], [0, 3, 2, 3], [0, 0, 0, 3]])


def images(count: int, height: int = 2, width: int = 6, **fields: Any) -> Patches:
    grey = np.linspace(0, 1, count * height * width).reshape(count, height, width)
    return Patches(**({"images": grey, "boxes": BOXES} | fields))


def frames(ax: Axes) -> list[tuple[str, tuple[float, float, float, float]]]:
    """Read the colours of the frames and their left, upper, right and lower edges."""
    found = []
    for patch in ax.patches:
        assert isinstance(patch, Rectangle)
        assert not patch.get_fill()
        x, y = patch.get_xy()
        found.append((to_hex(patch.get_edgecolor()), (x, y, x + patch.get_width(), y + patch.get_height())))
    return found


def inside(box: np.ndarray, depth: float) -> tuple[float, ...]:
    """Edges of a patch, by a share of half its shorter side inside it; pixels have their centres on whole numbers."""
    row, column, height, width = box.tolist()
    inset = depth * min(height, width) / 2
    left, top = column - 0.5, row - 0.5
    return pytest.approx((left + inset, top + inset, left + width - inset, top + height - inset))  # type: ignore[return-value]


def drawn(figure: Figure) -> list[Axes]:
    return [ax for ax in figure.axes if ax.images]


def pixels(ax: Axes) -> np.ndarray:
    (image,) = ax.images
    return np.asarray(image.get_array())


def widths(ax: Axes) -> list[float]:
    return [float(patch.get_linewidth()) for patch in ax.patches]


def deciding(count: int, patches: Patches, width: float = WIDE) -> Figure:
    instances: Any = [
        SimpleNamespace(row=k, index=k % 2, label=f"bag {k}", margin=k + 0.1234) for k in range(count)
    ]  # fmt: skip
    data: Any = SimpleNamespace(patches=patches)
    return deciding_figure(data, instances, width)


def test_the_deciding_patch_of_each_bag_is_framed() -> None:
    patches = images(3)
    figure = deciding(3, patches)
    assert len(figure.axes) == 12
    axes = drawn(figure)
    assert [ax.get_title("left") for ax in axes] == ["bag 0, margin 0.12", "bag 1, margin 1.1", "bag 2, margin 2.1"]
    for k, ax in enumerate(axes):
        np.testing.assert_array_equal(pixels(ax), patches.images[k])
        assert frames(ax) == [(FIRST, inside(BOXES[k % 2], 0.06))]
        assert ax.get_xticks().tolist() == ax.get_yticks().tolist() == []
    assert not any(ax.axison for ax in figure.axes[3:])
    assert all(ax.axison for ax in axes)


@pytest.mark.parametrize(
    ("count", "width", "shown"),
    [
        (13, WIDE, [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12]),
        (12, WIDE, list(range(12))),
        (23, NARROW, [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22]),
        (2, NARROW, [0, 1]),
    ],
)
def test_of_many_bags_twelve_are_drawn_evenly_from_the_first_to_the_last(
    count: int, width: float, shown: list[int]
) -> None:
    axes = drawn(deciding(count, images(count), width))
    assert [int(ax.get_title("left").split(",")[0].removeprefix("bag ")) for ax in axes] == shown


def shape(figure: Figure) -> tuple[int, int]:
    place = figure.axes[0].get_subplotspec()
    assert place is not None
    return place.get_gridspec().get_geometry()


@pytest.mark.parametrize(
    ("height", "ink", "width", "cells"),
    [
        (2, False, WIDE, (2, 6)), (2, False, NARROW, (4, 3)), (1, True, WIDE, (6, 2)), (1, True, NARROW, (8, 1)),
        (1, False, WIDE, (2, 6)), (2, True, NARROW, (4, 3)),
    ],
)  # fmt: skip
def test_strips_of_drawings_are_wide(height: int, ink: bool, width: float, cells: tuple[int, int]) -> None:
    """Of six columns, one row is flatter than .3 and two are not."""
    boxes = np.array([[0, 0, height, 3], [0, 3, height, 3]])
    figure = deciding(2, images(2, height, ink=ink, boxes=boxes), width)
    assert shape(figure) == cells
    rows, columns = cells
    # Every image has its height, and a title of at most a third of an inch.
    cell = figure.get_figheight() / rows
    own = width / columns * (height / 6 if ink and height == 1 else max(height / 6, 0.3))
    assert 0.1 < cell - own < 0.35


@pytest.mark.parametrize(("height", "width", "ratio"), [(6, 6, 1.0), (12, 6, 2.0), (30, 6, 2.0), (1, 10, 0.3)])
def test_an_image_is_stretched_where_its_patches_would_be_too_small(height: int, width: int, ratio: float) -> None:
    patches = images(2, height, width, boxes=np.array([[0, 0, 1, 1], [0, 1, 1, 1]]))
    figure = deciding(2, patches)
    own = WIDE / 6 * ratio
    assert 0.1 < figure.get_figheight() / 2 - own < 0.35
    assert drawn(figure)[0].get_aspect() == (1.0 if ratio == height / width else "auto")


def test_drawings_are_dark_on_white_and_images_have_their_own_black_and_white() -> None:
    ink, grey = images(1, ink=True), images(1, low=-1.0, high=3.0)
    (paper,), (photo,) = drawn(deciding(1, ink)), drawn(deciding(1, grey))
    # The darkest stroke is not quite black.
    assert paper.images[0].get_cmap().name == "gray_r"
    assert paper.images[0].get_clim() == (0, 1.25)
    np.testing.assert_array_equal(pixels(paper), ink.images[0])
    assert photo.images[0].get_cmap().name == "gray"
    assert photo.images[0].get_clim() == (0, 1)
    np.testing.assert_allclose(pixels(photo), (grey.images[0] + 1) / 4)
    (blank,) = drawn(deciding(1, images(1, ink=True, images=np.zeros((1, 2, 6)))))
    low, high = blank.images[0].get_clim()
    assert low == 0 < high < 1e-6
    assert all(spine.get_visible() for ax in (paper, photo) for spine in ax.spines.values())


@pytest.mark.parametrize(
    ("size", "share"),
    [
        # Of 100 pixels on 7.6/6 inches, full width belongs to .3 inches, and a fifth of it is the least.
        (50, 1.0), (24, 1.0), (12, 12 / 100 * WIDE / 6 / 0.3), (8, 8 / 100 * WIDE / 6 / 0.3), (1, 0.2),
    ],
)  # fmt: skip
def test_lines_are_thinner_on_small_patches(size: int, share: float) -> None:
    boxes = np.array([[0, 0, size, 60], [0, 0, 60, 60], [0, 0, 0, 0]])
    figure = deciding(2, images(2, 100, 100, boxes=boxes))
    full = deciding(2, images(2, 100, 100, boxes=BOXES * 30))
    for ax, other in zip(drawn(figure), drawn(full), strict=True):
        assert widths(ax)[0] == pytest.approx(share * widths(other)[0])
        # A frame of full width is seen and does not hide its patch.
        assert 2 < widths(other)[0] < 4


def supported(dual: np.ndarray, selected: list[int], optimal: list[int], patches: Patches) -> list[Axes]:
    labels = np.where(np.arange(len(dual)) % 2, -1.0, 1.0)
    train = SimpleNamespace(patches=patches, tokens=SimpleNamespace(labels=labels), classes=("cat", "dog"))
    setup: Any = SimpleNamespace(train=train, optimal=np.array(optimal))
    run: Any = SimpleNamespace(
        own="nuclear", solutions={"nuclear": SimpleNamespace(dual=dual)}, selected=np.array(selected)
    )
    return drawn(support_figure(setup, run, WIDE))


def test_images_with_the_largest_multipliers_come_first_with_their_frames() -> None:
    dual = np.array([[0.0, 0.25, 0.0], [0.5, 0.0, 0.125], [0.0, 0.0, 0.0]])
    patches = images(3, 2, 6)
    second, first, third = supported(dual, [0, 1, 0], [0, 0, 0], patches)
    assert [ax.get_title("left") for ax in (second, first, third)] == ["dog", "cat", "cat"]
    for ax, row in zip((second, first, third), (1, 0, 2), strict=True):
        np.testing.assert_array_equal(pixels(ax), patches.images[row])
    # Its support patch, the best one that is not selected, and the selected one.
    assert frames(second) == [
        (SECOND, inside(BOXES[0], 0.12)), (INK, inside(BOXES[0], 0.3)), (FIRST, inside(BOXES[1], 0.06)),
    ]  # fmt: skip
    assert [patch.get_linestyle() for patch in second.patches] == ["solid", ":", "solid"]
    assert frames(first) == [(SECOND, inside(BOXES[1], 0.12)), (FIRST, inside(BOXES[0], 0.06))]
    assert frames(third) == [(FIRST, inside(BOXES[0], 0.06))]
    heavy, dotted, chosen = widths(second)
    light = widths(first)[0]
    # From a thin line to a line four times as thick, in proportion to the multiplier.
    assert heavy / light == pytest.approx((0.8 + 2.4) / (0.8 + 1.2))
    assert 0 < dotted < chosen
    assert chosen == widths(third)[0]


def test_without_multipliers_the_images_stay_in_their_order_and_twelve_are_drawn() -> None:
    patches = images(14)
    axes = supported(np.zeros((14, 3)), [0] * 14, [0] * 14, patches)
    assert len(axes) == 12
    for ax, image in zip(axes, patches.images, strict=False):
        np.testing.assert_array_equal(pixels(ax), image)


def selection(selected: dict[str, list[int]], labels: list[int], patches: Patches, width: float = WIDE) -> Figure:
    signs = np.array(labels, dtype=float)
    data: Any = SimpleNamespace(patches=patches, tokens=SimpleNamespace(labels=signs), classes=("cat", "dog"))
    runs: Any = {
        name: SimpleNamespace(parameterization=name, selected=np.array(tokens)) for name, tokens in selected.items()
    }
    return selection_figure(data, runs, width)


def test_selected_patches_are_counted_on_the_average_image_of_each_class() -> None:
    patches = images(5)
    figure = selection({"W": [0, 1, 1, 2, 0], "KQ": [0, 0, 0, 0, 1]}, [1, 1, 1, 1, -1], patches)
    axes = drawn(figure)
    # The token without a patch is outside the image.
    assert [ax.get_title("left") for ax in axes] == ["cat, W, 1 outside", "dog, W", "cat, K, Q", "dog, K, Q"]
    for ax, rows in zip(axes, ([0, 1, 2, 3], [4]) * 2, strict=True):
        np.testing.assert_allclose(pixels(ax), patches.images[rows].mean(axis=0))
    first = axes[0]
    assert frames(first) == [(FIRST, inside(BOXES[1], 0.06)), (FIRST, inside(BOXES[0], 0.06))]
    # Numbers stand in the middle of their patches, the most frequent first.
    assert [(text.get_text(), text.get_position()) for text in first.texts] == [("2", (4.0, 0.5)), ("1", (1.0, 0.5))]
    assert all(text.get_horizontalalignment() == text.get_verticalalignment() == "center" for text in first.texts)
    assert [[text.get_text() for text in ax.texts] for ax in axes[1:]] == [["1"], ["4"], ["1"]]
    assert shape(figure) == (1, 4)


@pytest.mark.parametrize(
    ("names", "labels", "width", "cells", "count"),
    [
        (["W"], [1, -1], WIDE, (1, 2), 2), (["W", "KQ"], [1, -1], NARROW, (2, 2), 4),
        (["W"], [1, 1], NARROW, (1, 2), 1), (["W"], [-1, -1], WIDE, (1, 1), 1), (["W", "KQ"], [1, -1], WIDE, (1, 4), 4),
    ],
)  # fmt: skip
def test_every_class_has_a_panel_two_in_a_row_on_a_telephone(
    names: list[str], labels: list[int], width: float, cells: tuple[int, int], count: int
) -> None:
    figure = selection({name: [0, 1] for name in names}, labels, images(2), width)
    assert shape(figure) == cells
    assert len(drawn(figure)) == count
    assert not any(ax.axison for ax in figure.axes[count:])
    rows, columns = cells
    # Images have their height, 2/6 of their width, and a title.
    assert 0.1 < figure.get_figheight() / rows - width / columns / 3 < 0.5


@pytest.mark.parametrize(("positions", "written"), [(40, 7), (41, 5)])
def test_on_many_positions_only_the_five_most_frequent_are_written(positions: int, written: int) -> None:
    boxes = np.array([[0, t, 1, 1] for t in range(positions)])
    patches = images(28, 1, positions, boxes=boxes)
    # Token t is selected in t + 1 images.
    (ax,) = drawn(selection({"W": np.repeat(range(7), range(1, 8)).tolist()}, [1] * 28, patches))
    assert len(ax.patches) == 7
    assert [int(text.get_text()) for text in ax.texts] == list(range(7, 7 - written, -1))


def test_numbers_and_frames_are_smaller_on_small_patches() -> None:
    """At full width numbers have ten points, and frames two; at a fifth of it both can still be seen."""
    sizes = []
    for size in (50, 1):
        boxes = np.array([[0, 0, size, size]])
        (ax,) = drawn(selection({"W": [0]}, [1], images(1, 100, 100, boxes=boxes)))
        sizes.append((float(ax.texts[0].get_fontsize()), widths(ax)[0]))
    (large, thick), (small, thin) = sizes
    assert 4 <= small < large <= 12
    assert 0.2 < thin < thick < 4


def test_frames_have_a_white_halo() -> None:
    (ax,) = drawn(deciding(1, images(1)))
    (halo,) = ax.patches[0].get_path_effects()
    look = halo._gc  # type: ignore[attr-defined]
    assert look["foreground"] == "white"
    assert widths(ax)[0] < look["linewidth"] < widths(ax)[0] + 3
