"""Shares of margins, single results, and the style that all figures share: data, limits, labels and legends."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from attsvm import SelectionProblem, plots, solve
from attsvm.plots.style import (
    FIRST,
    NARROW,
    SECOND,
    WIDE,
    as_png,
    house_style,
    is_wide,
    legend_below,
    panels,
    step_axis,
)
from drawn import ticks


def panel() -> Axes:
    return Figure().subplots()


def data(line: Line2D) -> tuple[list[float], list[float]]:
    return np.asarray(line.get_xdata(), dtype=float).tolist(), np.asarray(line.get_ydata(), dtype=float).tolist()


def bars(ax: Axes) -> list[Rectangle]:
    return [bar for bar in ax.patches if isinstance(bar, Rectangle)]


def legend(ax: Axes) -> list[str] | None:
    found = ax.get_legend()
    return None if found is None else [text.get_text() for text in found.get_texts()]


@pytest.mark.parametrize(("least", "left"), [(0.25, 0.0), (-0.5, -0.5)])
def test_shares_are_bars_from_the_first_norm_down(least: float, left: float) -> None:
    known = tuple(SimpleNamespace(norm=norm, share=share) for norm, share in (("a", 0.5), ("b", 0.9), ("c", least)))
    report: Any = SimpleNamespace(known=known, nearest="b")
    ax = plots.shares(report, panel())
    assert [bar.get_width() for bar in bars(ax)] == [0.5, 0.9, least]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c"]
    assert ax.yaxis_inverted()
    colours = [to_hex(bar.get_facecolor()) for bar in ax.patches]
    assert colours[1] == FIRST
    assert colours[0] == colours[2] != FIRST
    assert ax.get_xlim() == (left, 1.02)
    assert ax.get_xlabel() == "share of the largest margin"


def margin_path(
    shares: dict[str, list[float]], lows: list[float], steps: tuple[int, ...] = (1, 10, 100), separable: Any = None
) -> Any:
    limits = [SimpleNamespace(norm=norm, low=low, high=0.99) for norm, low in zip(shares, lows, strict=True)]
    return SimpleNamespace(
        steps=np.array(steps), shares=lambda norm: np.array(shares[norm]), limits=limits, separable=separable
    )


def test_shares_over_steps_have_the_intervals_of_their_limits_to_the_right() -> None:
    shares = {"frobenius": [0.1, 0.5, 0.8], "max": [0.2, 0.3, 0.4], "nuclear": [0.2, math.nan, 0.5]}
    ax = plots.share_path(margin_path(shares, [0.9, -math.inf, 0.45]), panel())
    first, bar, second, third, last, *rates = ax.lines
    for line, (norm, values) in zip((first, second, third), shares.items(), strict=True):
        assert line.get_label() == norm
        x, y = data(line)
        assert x == [1, 10, 100]
        np.testing.assert_array_equal(y, values)
    assert data(bar)[1] == [0.9, 0.99]
    assert data(last)[1] == [0.45, 0.99]
    assert (bar.get_color(), last.get_color()) == (first.get_color(), third.get_color())
    # Both beyond the last step, next to one another, within a decade.
    (left, _), (right, _) = data(bar)[0], data(last)[0]
    assert 100 < left < right < 1000
    assert data(bar)[0] == [left, left]
    assert len(rates) == 3
    assert (ax.get_xscale(), ax.get_ylim()) == ("log", (0, 1.02))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "share of the largest margin")
    assert legend(ax) == [*shares, "rate 1/log k", "rate 1/sqrt(k)", "rate 1/k"]


def test_the_rates_of_theory_go_through_the_largest_share_at_the_end() -> None:
    shares = {"frobenius": [0.1, 0.5, 0.8], "max": [0.2, 0.3, math.nan]}
    ax = plots.share_path(margin_path(shares, [-math.inf] * 2), panel())
    laws = {"rate 1/log k": lambda k: 1 / np.log(k), "rate 1/sqrt(k)": lambda k: k**-0.5, "rate 1/k": lambda k: 1 / k}
    lines = {str(line.get_label()): line for line in ax.lines[2:]}
    assert list(lines) == list(laws)
    assert len({line.get_linestyle() for line in lines.values()}) == 3
    for name, law in laws.items():
        steps, values = map(np.array, data(lines[name]))
        # 1/log k is infinite at one; the lines go on to twice the last step.
        assert (steps[0], steps[-1]) == pytest.approx((3, 200))
        np.testing.assert_allclose((1 - values) / law(steps), 0.2 / law(100.0), rtol=1e-12)
        assert lines[name].get_zorder() < ax.lines[0].get_zorder()
    assert lines["rate 1/k"].get_linewidth() < ax.lines[0].get_linewidth()
    late = plots.share_path(margin_path({"max": [0.2, 0.3, 0.5]}, [-math.inf], (5, 10, 20)), panel())
    assert data(late.lines[-1])[0][0] == pytest.approx(5)


@pytest.mark.parametrize(
    ("last", "steps", "count"),
    [(0.5, (1, 2, 4), 3), (0.5, (1, 2, 3), 0), (1.0, (1, 2, 4), 0), (0.0, (1, 2, 4), 0), (-0.5, (1, 2, 4), 0)],
)
def test_no_rate_is_drawn_without_a_share_to_go_through(last: float, steps: tuple[int, ...], count: int) -> None:
    ax = plots.share_path(margin_path({"max": [0.1, 0.2, last]}, [-math.inf], steps), panel())
    assert len(ax.lines) == 1 + count


def test_on_inseparable_constraints_the_separable_part_is_drawn() -> None:
    part = margin_path({"max": [0.2, 0.3, 0.4]}, [-math.inf])
    ax = plots.share_path(margin_path({"frobenius": [0.0] * 3}, [-math.inf], separable=part), panel())
    assert data(ax.lines[0])[1] == [0.2, 0.3, 0.4]


TOKENS = np.array([[[1.0, 1.0], [0.0, 0.0], [-3.0, 0.5]], [[1.0, 0.0], [-3.0, 0.0], [-1.0, 1.0]]])


def solution(masked: bool = False) -> Any:
    mask = np.ones((2, 3), bool)
    mask[0, 2] = not masked
    return solve(SelectionProblem(TOKENS, np.array([[1.0], [2.0]]), [0, 0], mask=mask))


def test_margins_are_counted_in_forty_bins_on_a_logarithmic_axis() -> None:
    one = solution()
    ax = plots.margins(one, panel())
    edges = [bar.get_x() for bar in bars(ax)[:40]]
    values = np.asarray(one.margins)[one.problem.rejected]
    np.testing.assert_allclose(edges, np.geomspace(values.min(), values.max(), 41)[:-1], rtol=1e-6)
    assert len(ax.patches) == 80
    assert ax.get_xscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == (
        "margin", "rejected tokens", "Margins, frobenius norm",
    )  # fmt: skip
    assert legend(ax) == ["other rejected tokens", "support tokens"]
    assert to_hex(ax.patches[-1].get_facecolor()) == FIRST


def test_margins_that_are_not_positive_are_left_out() -> None:
    problem = SimpleNamespace(rejected=np.ones((1, 4), bool))
    certified = SimpleNamespace(margins=np.array([[-1.0, 2.0, 4.0, math.inf]]))
    words = {"norm": SimpleNamespace(name="max"), "status": SimpleNamespace(name="DONE")}
    for objective in (1.0, math.inf):
        one: Any = SimpleNamespace(
            problem=problem, certified=certified, support=np.zeros((1, 4), bool), objective=objective, **words
        )
        if objective == 1.0:
            assert sum(bar.get_height() for bar in bars(plots.margins(one, panel()))) == 2
        else:
            with pytest.raises(ValueError, match="status DONE and no positive margin; a W was expected"):
                plots.margins(one, panel())


def test_equal_margins_have_bins_of_some_width() -> None:
    one: Any = solve(SelectionProblem([[[1.0], [0.0]]], [[1.0]], [0]))
    first = bars(plots.margins(one, panel()))[:40]
    assert sum(bar.get_height() for bar in first) == 1
    assert 0 < first[-1].get_x() + first[-1].get_width() - first[0].get_x() < 0.05


def test_the_plane_has_tokens_selected_tokens_and_support_tokens() -> None:
    one = solution(masked=True)
    ax = plots.plane(one, sequences=(1, 0, 7), ax=panel())
    groups = [np.asarray(group.get_offsets()).tolist() for group in ax.collections]
    support = np.asarray(one.support)
    expected = []
    for i, visible in ((1, [0, 1, 2]), (0, [0, 1])):
        expected += [TOKENS[i, visible].tolist(), [TOKENS[i, 0].tolist()], TOKENS[i, support[i]].tolist()]
    assert groups == expected
    assert legend(ax) == ["query 1", "query 0"]
    assert ax.get_title() == "Filled: selected; ringed: support; dotted: margin one"
    assert ax.get_aspect() == 1
    for number, (i, style) in enumerate(((1, "-"), (1, ":"), (0, "-"), (0, ":"))):
        line = ax.lines[number]
        assert line.get_linestyle() == style
        ends = np.array(data(line)).T
        w = np.asarray(one.W)[:, 0] * (1.0, 2.0)[i]
        # It is level in the direction of w, and three long to both sides, the size of the largest coordinate.
        np.testing.assert_allclose((TOKENS[i, 0] - ends) @ w, float(style == ":"), atol=1e-9)
        assert np.linalg.norm(ends[1] - ends[0]) == pytest.approx(6)
        middle = TOKENS[i, 0] - (style == ":") * w / (w @ w)
        np.testing.assert_allclose(ends.mean(axis=0), middle, atol=1e-9)


def test_a_query_without_a_direction_has_no_lines() -> None:
    one = solution()
    zero = SimpleNamespace(
        problem=one.problem, support=one.support, certified=SimpleNamespace(W=np.zeros((2, 1))), objective=1.0
    )
    ax = plots.plane(zero, ax=panel())  # type: ignore[arg-type]
    assert len(ax.lines) == 0
    zero.certified.W = np.full((2, 1), math.nan)
    assert len(plots.plane(zero, ax=panel()).lines) == 0  # type: ignore[arg-type]


def traced(tokens: int = 2, batch: tuple[int, ...] = ()) -> Any:
    attention = np.arange(3 * 2 * tokens, dtype=float).reshape(3, 2, tokens)
    return SimpleNamespace(
        data=SimpleNamespace(n=2, batch_shape=batch), step=np.array([0, 10, 100]), attention=attention,
        norm=np.array([0.0, 1.0, 2.0]), W=np.array([[[0.0], [0.0]], [[1.0], [0.0]], [[1.0], [1.0]]]), optimizer="gd",
    )  # fmt: skip


def test_training_is_drawn_over_steps_from_one_half() -> None:
    one = solution()
    norm, angle = plots.path(traced(), ax=panel()), plots.path(traced(), one, panel())
    assert data(norm.lines[0]) == ([0.5, 10, 100], [0, 1, 2])
    W = np.asarray(one.W)[:, 0]
    expected = [math.nan, *(np.array([[1, 0], [1, 1]]) @ W / np.linalg.norm(W) / [1, math.sqrt(2)])]
    np.testing.assert_allclose(data(angle.lines[0])[1], expected)
    assert [ax.get_ylabel() for ax in (norm, angle)] == ["norm of W", "correlation with the frobenius SVM"]
    for ax in (norm, angle):
        assert (ax.get_xscale(), ax.get_xlabel(), ax.get_title()) == ("log", "step", "Training by gd")


@pytest.mark.parametrize(("tokens", "named"), [(2, True), (8, True), (9, False)])
def test_attention_has_a_line_for_each_token_and_a_legend_of_few(tokens: int, named: bool) -> None:
    trace = traced(tokens)
    for query in (0, 1):
        ax = plots.attention(trace, query, panel())
        for t, line in enumerate(ax.lines):
            assert data(line) == ([0.5, 10, 100], trace.attention[:, query, t].tolist())
        assert len(ax.lines) == tokens
        assert legend(ax) == ([f"token {t}" for t in range(tokens)] if named else None)
        assert (ax.get_xscale(), ax.get_ylim(), ax.get_title()) == ("log", (-0.02, 1.02), f"Attention of query {query}")
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "attention")


def test_queries_outside_and_several_trials_are_refused() -> None:
    for query in (-1, 2):
        with pytest.raises(ValueError, match=f"query is {query}; a number from 0 to 1 was expected"):
            plots.attention(traced(), query)
    for draw in (plots.attention, plots.path):
        with pytest.raises(ValueError, match=r"trace is of trials \(4,\); one trial was expected"):
            draw(traced(batch=(4,)))
    several: Any = SimpleNamespace(loss=np.zeros((4, 5, 3)))
    with pytest.raises(ValueError, match=r"path is of trials \(4, 5\); one trial was expected"):
        plots.regularisation(several)


def test_a_path_of_radii_names_its_norm() -> None:
    path: Any = SimpleNamespace(
        loss=np.array([0.5, 0.25]), radius=np.array([1.0, 10.0]), norm=SimpleNamespace(name="nuclear"),
        distance=lambda solution: np.array([0.75, 0.125]),
    )  # fmt: skip
    risk, distance = plots.regularisation(path, ax=panel()), plots.regularisation(path, solution(), panel())
    assert [data(ax.lines[0]) for ax in (risk, distance)] == [([1, 10], [0.5, 0.25]), ([1, 10], [0.75, 0.125])]
    assert [ax.get_ylabel() for ax in (risk, distance)] == ["risk", "distance from the nuclear SVM's direction"]
    for ax in (risk, distance):
        assert (ax.get_xscale(), ax.get_xlabel()) == ("log", "nuclear norm of W, at most")


def test_singular_values_have_their_number_and_one_under_rounding_is_left_out() -> None:
    eps = float(np.finfo(float).eps)
    ax = plots.spectrum(np.diag([8.0, 2.0, 8 * 4.1 * eps, 8 * 3.9 * eps]), ax=panel())
    x, y = data(ax.lines[0])
    assert x == [1, 2, 3]
    np.testing.assert_allclose(y, [8, 2, 8 * 4.1 * eps])
    assert (ax.get_yscale(), ax.get_xlabel(), ax.get_ylabel()) == ("log", "number", "singular value")
    assert legend(ax) is None
    assert all(float(at).is_integer() for at in ax.get_xticks())
    assert legend(plots.spectrum(np.eye(2), "W", panel())) == ["W"]
    single = plots.spectrum(np.diag(np.array([1.0, 1e-7], dtype=np.float32)), ax=panel())
    assert data(single.lines[0])[0] == [1]


def test_a_matrix_of_zeros_has_a_scale_and_one_of_numbers_has_its_own() -> None:
    for entries, largest in ((np.zeros((2, 3)), 1.0), (np.array([[0.5, -0.25]]), 0.5)):
        ax = plots.matrix(entries, panel())
        (image,) = ax.images
        np.testing.assert_array_equal(image.get_array(), entries)
        assert image.get_clim() == (-largest, largest)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("query coordinate", "token coordinate")
        assert len(ax.figure.axes) == 2  # with the colour bar
        blue, red = (np.asarray(image.get_cmap()(end)) for end in (1.0, 0.0))
        assert blue[2] > blue[0]
        assert red[0] > red[2]


@pytest.mark.parametrize(("width", "geometry"), [(WIDE, (1, 3)), (NARROW, (3, 1))])
def test_panels_stand_side_by_side_on_a_page_and_below_each_other_on_a_telephone(
    width: float, geometry: tuple[int, int]
) -> None:
    figure, axes = panels(width, 2.0, 3)
    assert figure.axes == axes
    place = axes[0].get_subplotspec()
    assert place is not None
    assert place.get_gridspec().get_geometry() == geometry
    assert figure.get_figwidth() == width
    # Stacked panels share a legend, which needs some room.
    extra = figure.get_figheight() - 2.0 * geometry[0]
    assert 0.1 < extra < 1 if geometry[0] > 1 else extra == 0
    alone, pair = (panels(NARROW, 2.0, count)[0] for count in (1, 2))
    assert alone.get_figheight() == 2.0
    assert 0.1 < pair.get_figheight() - 4.0 < 1


def test_a_width_is_that_of_a_page_above_the_middle() -> None:
    middle = (WIDE + NARROW) / 2
    assert [is_wide(width) for width in (NARROW, middle, middle + 0.01, WIDE, 1.2 * WIDE)] == [False] * 2 + [True] * 3


@pytest.mark.parametrize(("width", "columns"), [(WIDE, 2), (NARROW, 1)])
def test_equal_labels_appear_once_in_the_legend(width: float, columns: int) -> None:
    figure, axes = panels(width, 2.0, 2)
    for ax, labels in zip(axes, (("a", "b"), ("b", "c")), strict=True):
        for label in labels:
            ax.plot([0, 1], color=FIRST if ax is axes[0] else SECOND, label=label)
    legend_below(figure, axes, 2)
    (one,) = figure.legends
    assert [text.get_text() for text in one.get_texts()] == ["a", "b", "c"]
    assert [handle.get_color() for handle in one.legend_handles] == [FIRST, FIRST, SECOND]  # type: ignore[union-attr]
    figure.draw_without_rendering()
    assert len({round(float(text.get_window_extent().x0)) for text in one.get_texts()}) == columns
    # Two letters of sample show whether a line is dashed; entries do not touch.
    assert 1.5 < one.handlelength < 5
    assert 0.1 < one.labelspacing < 1
    assert 0.5 < one.columnspacing < 4


@pytest.mark.parametrize(("last", "right"), [(2000, 2000), (1, 2), (0, 2)])
def test_steps_have_a_logarithmic_axis_with_whole_numbers(last: float, right: float) -> None:
    ax = panel()
    step_axis(ax, last)
    assert (ax.get_xscale(), ax.get_xlim(), ax.get_xlabel()) == ("log", (1, right), "training step")
    if last == 2000:
        assert {text for at, text in ticks(ax.xaxis).items() if 1 <= at <= 2000} == {"1", "10", "100", "1,000"}
    assert ax.get_xticks(minor=True).tolist() == []


def test_the_style_is_the_same_whatever_the_caller_has_set() -> None:
    with mpl.rc_context({"font.size": 30, "lines.dashed_pattern": [1, 1], "axes.grid": True}):
        with house_style():
            inside = dict(mpl.rcParams)
        assert mpl.rcParams["font.size"] == 30
    with house_style():
        outside = dict(mpl.rcParams)
    assert inside == outside
    assert not inside["axes.grid"]
    assert as_png(Figure(figsize=(1.0, 0.5)))[16:24] == (200).to_bytes(4, "big") + (100).to_bytes(4, "big")
