"""Heat maps of the experiments: values in their squares, ticks, theoretical lines and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from attsvm.plots.style import INK
from attsvm_paper.plots.heat_maps import COLOURS, annotate, draw_line, draw_map, ink_on
from drawn import heat_map, ticks

XS, YS = [1.0, 2.0, 4.0], [0.5, 8.0]


def panel() -> Axes:
    return Figure().subplots()


def test_a_value_is_in_the_square_of_its_parameters_and_others_stay_blank() -> None:
    ax = panel()
    mesh = draw_map(ax, {(1.0, 0.5): 0.25, (4.0, 8.0): 1.0, (2.0, 0.5): 0.0, (9.0, 9.0): 0.7}, XS, YS)
    np.testing.assert_array_equal(heat_map(ax), [[0.25, 0.0, math.nan], [math.nan, math.nan, 1.0]])
    # Squares of side one around whole numbers, x to the right and y upwards.
    corners = mesh.get_coordinates()
    np.testing.assert_array_equal(corners[0, :, 0], [-0.5, 0.5, 1.5, 2.5])
    np.testing.assert_array_equal(corners[:, 0, 1], [-0.5, 0.5, 1.5])
    assert (ax.get_xlim(), ax.get_ylim()) == ((-0.5, 2.5), (-0.5, 1.5))


def test_colours_run_from_nothing_to_everything_whatever_is_drawn() -> None:
    mesh = draw_map(panel(), {(1.0, 0.5): 0.4, (2.0, 0.5): 0.6}, XS, YS)
    assert mesh.get_clim() == (0, 1)
    # Edges have the colour of their square, or they would draw a net.
    np.testing.assert_array_equal(mesh.to_rgba([0.4]), [COLOURS(0.4)])
    mesh.update_scalarmappable()
    np.testing.assert_array_equal(mesh.get_edgecolors(), mesh.get_facecolors())
    # They close the gaps between squares, and do not cover neighbours.
    assert all(0.1 < width < 1 for width in np.atleast_1d(np.asarray(mesh.get_linewidth())))


@pytest.mark.parametrize(("count", "every"), [(1, 1), (6, 1), (8, 1), (10, 2), (12, 2), (18, 3), (3, 1)])
def test_about_six_ticks_name_their_values(count: int, every: int) -> None:
    """Of 18 values every third has a tick: 18/6."""
    values = [0.5 * k for k in range(count)]
    ax = panel()
    draw_map(ax, {}, values, [2.5])
    assert ticks(ax.xaxis) == {float(k): f"{0.5 * k:g}" for k in range(0, count, every)}
    assert ticks(ax.yaxis) == {0.0: "2.5"}


def line(law: Callable[[float], float], xs: list[float], ys: list[float]) -> Axes:
    ax = panel()
    draw_line(ax, law, xs, ys, "--", "theory")
    return ax


def test_a_line_passes_between_squares_in_the_logarithms_of_their_values() -> None:
    """On powers of two, 4 x is two squares above x, and sqrt(2) x half a square."""
    powers = [1.0, 2.0, 4.0, 8.0]
    for factor, height in ((1.0, 0.0), (2.0, 1.0), (math.sqrt(2), 0.5), (4.0, 2.0)):
        ax = line(lambda x, factor=factor: factor * x, powers, powers)
        for one in ax.lines:
            expected = [k + height if k + height <= 3 else math.nan for k in range(4)]
            np.testing.assert_allclose(np.asarray(one.get_ydata(), dtype=float), expected, atol=1e-12)
            np.testing.assert_array_equal(one.get_xdata(), range(4))


def test_a_line_ends_where_it_leaves_the_map() -> None:
    ax = line(lambda x: {1.0: 0.4, 2.0: 3.0, 4.0: 9.0}[x], XS, [1.0, 9.0])
    np.testing.assert_allclose(np.asarray(ax.lines[0].get_ydata(), dtype=float), [math.nan, 0.5, 1.0])
    ax = line(lambda x: 0.0, XS, [1.0, 9.0])
    assert np.isnan(ax.lines[0].get_ydata()).all()


def test_a_map_of_one_row_has_no_line() -> None:
    assert np.isnan(line(lambda x: 1.0, XS, [1.0]).lines[0].get_ydata()).all()
    assert np.isfinite(line(lambda x: 1.0, XS, [1.0, 2.0]).lines[0].get_ydata()).all()


def test_a_line_is_one_entry_of_the_legend_over_a_broader_white_line() -> None:
    """White around the ink keeps it visible on dark squares."""
    ax = line(lambda x: x, XS, XS)
    white, ink = ax.lines
    assert ax.get_legend_handles_labels()[1] == ["theory"]
    assert (white.get_color(), ink.get_color(), ink.get_label()) == ("white", INK, "theory")
    assert white.get_linestyle() == ink.get_linestyle() == "--"
    assert 0.5 < ink.get_linewidth() < white.get_linewidth() < 5
    # Both lie over the squares.
    mesh = draw_map(ax, {(1.0, 1.0): 0.5}, XS, XS)
    assert min(white.get_zorder(), ink.get_zorder()) > mesh.get_zorder()


def test_every_finite_value_is_written_into_its_square() -> None:
    ax = panel()
    annotate(ax, np.array([[0.1, math.nan, 0.9], [math.inf, 0.25, -0.5]]), lambda value: f"{value:+.2f}")
    found = {one.get_position(): one.get_text() for one in ax.texts}
    assert found == {(0, 0): "+0.10", (2, 0): "+0.90", (1, 1): "+0.25", (2, 1): "-0.50"}
    for one in ax.texts:
        assert (one.get_horizontalalignment(), one.get_verticalalignment()) == ("center", "center")
        assert to_rgba(one.get_color()) == to_rgba("white" if one.get_text() == "+0.90" else INK)
        # Small enough for a square, large enough to read.
        assert 6 <= float(one.get_fontsize()) < 8


def test_text_is_white_from_just_above_the_middle() -> None:
    assert [ink_on(share) for share in (0.0, 0.5, 0.52, 0.53, 1.0)] == [INK, INK, INK, "white", "white"]
