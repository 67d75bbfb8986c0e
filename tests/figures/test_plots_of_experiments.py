"""Curves of experiments over the published ones: data, error bars, looks, axes, grids and legends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from attsvm.plots.style import NARROW, WIDE, house_style
from attsvm_paper.judging.estimates import Estimate
from attsvm_paper.plots.experiments import (
    MANY,
    SERIES,
    Curve,
    curve_of,
    draw_curve,
    grid,
    legend,
    log_axis,
    log_radius,
    own_legend,
    percent,
    short,
    value_axis,
)
from drawn import curves, ticks

NONE = np.empty(0)


def panel() -> Axes:
    return Figure().subplots()


def ours(ax: Axes) -> Line2D:
    (container,) = ax.containers
    assert isinstance(container, ErrorbarContainer)
    assert container.lines[0] is not None
    return container.lines[0]


def points(line: Line2D) -> list[list[float]]:
    return np.asarray(line.get_xydata(), dtype=float).tolist()


def check_visible(line: Line2D) -> None:
    """Print hides lines under half a point, and lines above three look like bands."""
    assert 0.5 <= line.get_linewidth() <= 3
    assert 2.5 <= line.get_markersize() <= 8
    assert 0.5 <= (line.get_alpha() or 1.0) <= 1


def test_a_curve_has_the_transformed_values_and_intervals() -> None:
    estimates = {4: Estimate(0.5, 0.25, 0.625, 8, NONE), 16: Estimate(1.0, 0.75, 1.0, 9, NONE)}
    curve = curve_of(estimates, "W", 2, percent, style=":", published=([4], [50.0]))
    assert curve == Curve("W", [4, 16], [50.0, 100.0], [25.0, 75.0], [62.5, 100.0], 2, ([4], [50.0]), ":")
    assert curve_of(estimates, "W", 0) == Curve("W", [4, 16], [0.5, 1.0], [0.25, 0.75], [0.625, 1.0])
    assert curve_of({}, "W", 1) == Curve("W", [], [], [], [], 1)


CURVE = Curve("mine", [1.0, 2.0, 8.0], [3.0, 5.0, 4.0], [2.0, 4.5, 4.0], [3.5, 6.0, 4.25], 1)


def test_error_bars_end_at_the_interval() -> None:
    ax = panel()
    draw_curve(ax, CURVE)
    one = curves(ax)["mine"]
    assert (one.x, one.y, one.low, one.high) == (CURVE.x, CURVE.y, CURVE.low, CURVE.high)
    assert (one.color, one.marker) == SERIES[1]
    assert len(ax.lines) == 3  # the curve and the caps of its bars
    assert not [one for one in ax.collections if isinstance(one, PolyCollection)]


def test_a_curve_is_shifted_by_a_fraction_of_x() -> None:
    ax = panel()
    draw_curve(ax, CURVE, shift=0.25)
    assert curves(ax)["mine"].x == [1.25, 2.5, 10.0]


def test_a_value_outside_its_interval_or_without_one_has_no_bar_on_that_side() -> None:
    """A median may lie outside a bootstrap's interval by rounding; one trial has no interval."""
    ax = panel()
    draw_curve(ax, Curve("a", [1, 2, 3], [1.0, 1.0, math.nan], [1.5, -math.inf, math.nan], [2.0, math.inf, math.nan]))
    one = curves(ax)["a"]
    np.testing.assert_array_equal(one.low, [1.0, math.nan, math.nan])
    np.testing.assert_array_equal(one.high, [2.0, math.nan, math.nan])
    assert points(ours(ax))[:2] == [[1.0, 1.0], [2.0, 1.0]]


def test_the_published_curve_is_thin_dashed_and_hollow_under_ours() -> None:
    ax = panel()
    printed = ([1.0, 2.0], [2.5, 5.5])
    draw_curve(ax, Curve("mine", CURVE.x, CURVE.y, CURVE.low, CURVE.high, 3, printed))
    theirs, own = ax.lines[0], ours(ax)
    assert points(theirs) == [[1.0, 2.5], [2.0, 5.5]]
    assert (theirs.get_linestyle(), own.get_linestyle()) == ("--", "-")
    assert (theirs.get_color(), theirs.get_marker()) == (own.get_color(), own.get_marker()) == SERIES[3]
    assert (theirs.get_markerfacecolor(), own.get_markerfacecolor()) == ("white", SERIES[3][0])
    assert str(theirs.get_label()).startswith("_")
    assert theirs.get_linewidth() < own.get_linewidth()
    # Error bars and the curve lie over it.
    assert theirs.get_zorder() < min(part.get_zorder() for part in (own, *ax.collections))
    for line in (theirs, own):
        check_visible(line)


def test_error_bars_are_thinner_than_their_curve_and_end_in_small_caps() -> None:
    ax = panel()
    draw_curve(ax, CURVE)
    (container,) = ax.containers
    assert isinstance(container, ErrorbarContainer)
    line, caps, (bars,) = container.lines
    assert line is not None
    for width in np.atleast_1d(np.asarray(bars.get_linewidth())):
        assert 0.5 <= width < line.get_linewidth()
    assert len(caps) == 2
    for cap in caps:
        assert 1 < cap.get_markersize() < 8


def test_a_printed_line_of_many_points_has_no_markers_and_is_still_thinner_than_ours() -> None:
    """Without markers the line itself is a little thicker."""
    widths = []
    for count, marker in ((MANY - 1, SERIES[0][1]), (MANY, "None")):
        ax = panel()
        x = np.arange(count)
        draw_curve(ax, Curve("", [], [], [], [], published=(x.tolist(), (x**2).tolist())))
        assert ax.lines[0].get_marker() == marker
        assert points(ax.lines[0]) == [[k, k**2] for k in range(count)]
        assert ax.lines[0].get_linewidth() < ours(ax).get_linewidth()
        check_visible(ax.lines[0])
        widths.append(ax.lines[0].get_linewidth())
    assert widths[0] < widths[1]


def test_a_whole_line_and_its_band_replace_the_printed_points() -> None:
    ax = panel()
    curve = Curve("", [1.0], [1.0], [1.0], [1.0], published=([1.0], [9.0]))
    draw_curve(ax, curve, line=([1.0, 3.0], [5.0, 6.0], ([4.0, 5.5], [7.0, 8.0])))
    assert points(ax.lines[0]) == [[1.0, 5.0], [3.0, 6.0]]
    assert ax.lines[0].get_linestyle() == "--"
    (band,) = (one for one in ax.collections if isinstance(one, PolyCollection))
    corners = {tuple(corner) for corner in np.asarray(band.get_paths()[0].vertices).tolist()}
    assert corners == {(1.0, 4.0), (1.0, 7.0), (3.0, 5.5), (3.0, 8.0)}
    # It hides neither curve.
    assert band.get_zorder() < ax.lines[0].get_zorder()
    assert 0.05 <= float(band.get_alpha() or 1.0) <= 0.5
    # An outline would look like curves of its own.
    assert not np.any(band.get_linewidth())


def test_published_arithmetic_is_dotted_and_fainter() -> None:
    axes = [panel(), panel()]
    for ax, style in zip(axes, "-:", strict=True):
        draw_curve(ax, Curve("", [1.0], [1.0], [1.0], [1.0], style=style))
    exact, published = map(ours, axes)
    assert (exact.get_linestyle(), published.get_linestyle()) == ("-", ":")
    assert published.get_markersize() < exact.get_markersize()
    assert published.get_linewidth() < exact.get_linewidth()
    assert (published.get_alpha() or 1.0) < (exact.get_alpha() or 1.0)
    for line in (exact, published):
        check_visible(line)


@pytest.mark.parametrize("log", [True, False])
def test_ticks_stand_at_the_values_of_the_sweep(log: bool) -> None:
    ax = panel()
    value_axis(ax, (0.001, 0.5, 20), "step size", log)
    assert ticks(ax.xaxis) == {0.001: "0.001", 0.5: "0.5", 20.0: "20"}
    assert ax.get_xticks(minor=True).tolist() == []
    assert ax.get_xlabel() == "step size"
    assert ax.get_xscale() == ("log" if log else "linear")


def test_the_axis_of_values_is_logarithmic_unless_said_otherwise() -> None:
    ax = panel()
    value_axis(ax, [1, 2], "")
    assert ax.get_xscale() == "log"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.001, "0.001"),
        (1e-5, "1e-5"),
        (2.5e-12, "2.5e-12"),
        (3e7, "3e7"),
        (1e12, "1e12"),
        (-2e-10, "-2e-10"),
        (5, "5"),
    ],
)
def test_numbers_of_an_axis_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_lengths_are_shortened_and_directions_kept() -> None:
    path = np.array([[3.0, -0.6, 0.0, 3e8], [4.0, 0.8, 0.0, 4e8]])
    shown = log_radius(path)
    np.testing.assert_allclose(np.hypot(*shown), np.log([6.0, 2.0, 1.0, 1 + 5e8]), atol=1e-15)
    np.testing.assert_allclose(shown[:, [0, 1, 3]], [[0.6, -0.6, 0.6], [0.8, 0.8, 0.8]] * np.hypot(*shown)[[0, 1, 3]])


@pytest.mark.parametrize("which", ["x", "y"])
def test_a_logarithmic_axis_has_labels_without_exponents_in_small_print(which: Any) -> None:
    ax = panel()
    log_axis(ax, which)
    ax.set(xlim=(0.02, 50), ylim=(0.02, 50))
    scales = {"x": ax.get_xscale(), "y": ax.get_yscale()}
    assert scales.pop(which) == "log"
    assert [*scales.values()] == ["linear"]
    axis = ax.xaxis if which == "x" else ax.yaxis
    major = [text for at, text in ticks(axis).items() if 0.02 <= at <= 50]
    assert major == ["0.1", "1", "10"]
    minor = [label.get_text() for label in axis.get_minorticklabels()]
    assert not any(minor)  # three decades leave no room for the numbers between


def test_an_axis_of_less_than_a_decade_labels_numbers_between_powers() -> None:
    ax = panel()
    log_axis(ax, "x")
    ax.set_xlim(0.2, 0.9)
    assert {"0.2", "0.3", "0.4", "0.6"} <= {label.get_text() for label in ax.xaxis.get_minorticklabels()}


def shape(axes: Sequence[Axes]) -> tuple[int, int]:
    """Read how many panels the figure has room for, down and across."""
    places = [ax.get_subplotspec() for ax in axes]
    assert all(place is not None and place.num1 == place.num2 == k for k, place in enumerate(places))
    assert places[0] is not None
    return places[0].get_gridspec().get_geometry()


@pytest.mark.parametrize(
    ("rows", "columns", "width", "narrow", "room"),
    [
        (2, 3, WIDE, 1, (2, 3)),
        (2, 3, NARROW, 1, (6, 1)),
        (2, 3, NARROW, 2, (3, 2)),
        (1, 3, NARROW, 2, (2, 2)),
        (1, 1, NARROW, 2, (1, 1)),
        (1, 3, WIDE, 2, (1, 3)),
    ],
)
def test_a_narrow_figure_stacks_its_panels_row_by_row(
    rows: int, columns: int, width: float, narrow: int, room: tuple[int, int]
) -> None:
    figure, axes = grid(rows, columns, 1.5, "title", width, narrow)
    assert axes.shape == (rows, columns)
    assert figure.axes == [*axes.ravel()]
    assert shape(figure.axes) == room
    assert figure.get_figwidth() == width
    # Title and legend have a strip of their own, below an inch and a half.
    assert 0.5 < figure.get_figheight() - 1.5 * room[0] < 1.5


def test_a_grid_is_wide_and_stacked_on_a_telephone_unless_said_otherwise() -> None:
    figure, _ = grid(1, 2, 1.0, "title")
    assert figure.get_figwidth() == WIDE
    assert shape(grid(1, 2, 1.0, "title", NARROW)[0].axes) == (2, 1)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_title_is_wrapped_to_the_width_and_keeps_numbers_with_their_names(width: float) -> None:
    words = "Share of global convergence after training W, with n = 5 and intervals at 95 % " * 3
    with house_style():
        figure, _ = grid(1, 1, 3.0, words.strip(), width)
        (title,) = (one for one in figure.texts if isinstance(one, Text))
        lines = title.get_text().split("\n")
        assert " ".join(lines).replace("\xa0", " ") == words.strip()
        assert "n\xa0=\xa05" in title.get_text()
        assert "95\xa0%" in title.get_text()
        assert len(lines) > 1
        renderer = FigureCanvasAgg(figure).get_renderer()
        ends = []
        for line in lines:
            title.set_text(line)
            ends.append(title.get_window_extent(renderer))
    # The title begins at the left edge; a line that is full ends in the last third.
    page = figure.bbox.width
    assert all(0 <= box.x0 < 0.05 * page for box in ends)
    assert all(box.x1 <= page for box in ends)
    assert max(box.x1 for box in ends[:-1]) > 2 / 3 * page


def words(axes: Axes | Figure) -> list[str]:
    found = axes.get_legend() if isinstance(axes, Axes) else axes.legends[0]
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def test_the_legend_tells_ours_from_the_published() -> None:
    figure, axes = grid(1, 2, 2.0, "title")
    for ax, label in zip(axes[0], ("W", "K, Q"), strict=True):
        draw_curve(ax, Curve(label, [1.0], [1.0], [1.0], [1.0]))
    legend(figure, axes[0], 3)
    assert words(figure) == ["ours, 95 % interval", "published", "W", "K, Q"]
    (one,) = figure.legends
    own, theirs = one.legend_handles[:2]
    assert isinstance(own, Line2D)
    assert isinstance(theirs, Line2D)
    assert (own.get_linestyle(), theirs.get_linestyle()) == ("-", "--")
    assert theirs.get_markerfacecolor() == "white" != own.get_markerfacecolor()
    assert own.get_color() == theirs.get_color() == own.get_markerfacecolor()
    for line in (own, theirs):
        check_visible(line)
        assert line.get_marker() == "o"
    # Keys of the legend are no data.
    assert [points(line) for line in axes[0, 0].lines[-2:]] == [[], []]


def test_a_band_and_published_arithmetic_have_entries_of_their_own() -> None:
    figure, axes = grid(1, 1, 2.0, "title")
    draw_curve(axes[0, 0], Curve("W", [1.0], [1.0], [1.0], [1.0]))
    legend(figure, axes[0], 2, other="published arithmetic", band=True)
    assert words(figure) == [
        "ours, 95 % interval", "published", "published ± one standard deviation", "published arithmetic", "W",
    ]  # fmt: skip
    band, other = figure.legends[0].legend_handles[2:4]
    assert isinstance(band, Line2D)
    assert isinstance(other, Line2D)
    assert (band.get_linestyle(), other.get_linestyle(), other.get_marker()) == ("-", ":", "o")
    # A band is broad and pale, as it is drawn.
    assert 4 < band.get_linewidth() < 10
    assert 0.05 < (band.get_alpha() or 1.0) < 0.5
    check_visible(other)


@pytest.mark.parametrize(("width", "columns"), [(WIDE, 3), (NARROW, 1)])
def test_the_legend_has_three_columns_on_a_page_and_one_on_a_telephone(width: float, columns: int) -> None:
    figure, axes = grid(1, 1, 2.0, "title", width)
    draw_curve(axes[0, 0], Curve("W", [1.0], [1.0], [1.0], [1.0]))
    legend(figure, axes[0])
    assert words(figure) == ["ours, 95 % interval", "published", "W"]
    assert len(_columns(figure)) == columns


def _columns(figure: Figure) -> set[float]:
    """Where the columns of the legend begin."""
    FigureCanvasAgg(figure).draw()
    return {round(float(one.get_window_extent().x0)) for one in figure.legends[0].get_texts()}


@pytest.mark.parametrize("columns", [1, 2])
def test_a_panel_may_have_a_legend_of_its_own(columns: int) -> None:
    with house_style():
        figure = Figure(figsize=(4, 3))
        ax = figure.subplots()
        for label in ("first", "second"):
            ax.plot([0, 1], label=label)
        own_legend(ax, *([columns] if columns > 1 else []))
        FigureCanvasAgg(figure).draw()
    found = ax.get_legend()
    assert found is not None
    assert words(ax) == ["first", "second"]
    first, second = (text.get_window_extent() for text in found.get_texts())
    if columns == 1:
        # Lines follow each other closely, and do not touch.
        gap = (first.y0 - second.y1) / first.height
        assert first.x0 == second.x0
        assert 0 < gap < 1
    else:
        assert first.y0 == pytest.approx(second.y0, abs=first.height / 2)
        letters = (second.x0 - first.x1) / first.height
        # A sample of the line, and a gap.
        assert 1.5 < letters < 6
    # A sample shows whether its line is dashed.
    assert found.handlelength >= 1
    # It is smaller than the text around it, and can be read.
    assert 6 <= float(found.get_texts()[0].get_fontsize()) < 8
