"""The grokking figure: which cells are drawn, their curves, ends and axes, from rows made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from attsvm.plots.style import NARROW, QUIET, WIDE
from attsvm_paper.beyond.grokking import Config
from attsvm_paper.beyond.grokking_figure import central, controls, curves, draw_ends, ends, figure
from attsvm_paper.judging.statistics import bootstrap_interval
from attsvm_paper.judging.verdict import Row
from attsvm_paper.plots.experiments import SERIES
from drawn import all_curves, in_one_column, legend_words, titles

LOSSES = ["plain", "exact", "scaled", "stablemax", "power"]
NAMES = ["cross-entropy", "exact", "scaled", "StableMax", "power"]
STYLES = {"float32": "-", "float64": "--", "bfloat16": ":"}


@pytest.fixture
def ax() -> Axes:
    return Figure().subplots()


def rows_of(config: Config, tests: list[float], **fields: Any) -> list[Row]:
    """Make a row per model whose curves rise to these accuracies."""
    return [
        asdict(config)
        | {"seed": trial, "trial": trial, "step": [0.0, 10.0, 20.0], "best": test}
        | {"test": [0.0, test / 2, test], "lost": [0.0, 0.0, test / 4]}
        | {"margin": [-5.0, 8.0 + trial, 50.0 * (trial + 1)], "normalised": [-0.01, 1e-4, (trial + 1) * 1e-4]}
        | {"last_margin": 50.0, "last_normalised": (trial + 1) * 1e-4, "last_test": test}
        | fields
        for trial, test in enumerate(tests)
    ]


PLAIN, EXACT = Config("plain"), Config("exact", "float64")
CELLS = {("plain", "float32"): rows_of(PLAIN, [0.2, 0.4]), ("exact", "float64"): rows_of(EXACT, [0.6, 0.9])}


def points(line: Line2D) -> tuple[list[float], list[float]]:
    return tuple(np.asarray(part, dtype=float).tolist() for part in line.get_data())  # type: ignore[return-value]


def across(ax: Axes) -> list[float]:
    """Read the places of the horizontal lines through a panel."""
    return [points(line)[1][0] for line in ax.lines if points(line)[0] == [0, 1]]


def test_the_central_cell_has_no_decay_the_small_epsilon_and_the_largest_steps() -> None:
    own = rows_of(Config("plain", optimiser="normalised"), [0.3])
    others = [
        rows_of(Config("plain", optimiser="normalised", lr=0.005, steps=2000), [0.4]),
        rows_of(Config("plain", optimiser="normalised", steps=500), [0.5]),
        rows_of(Config("plain", optimiser="normalised", decay=0.5, steps=9000), [0.6]),
        rows_of(Config("plain", optimiser="normalised", epsilon=1e-8, steps=9000), [0.7]),
        rows_of(Config("plain", optimiser="normalised", epsilon=1e-20, steps=9000), [0.7]),
        rows_of(Config("plain", steps=9000), [0.8]),
    ]
    other = rows_of(Config("plain", "float64", "normalised"), [0.1, 0.2])
    rows = [row for part in [*others, own, other] for row in part]
    assert central(rows, "normalised") == {("plain", "float32"): own, ("plain", "float64"): other}
    assert central(rows, "perpendicular") == {}


@pytest.mark.parametrize("field", ["test", "lost", "margin", "normalised"])
def test_a_curve_is_the_mean_over_models(ax: Axes, field: str) -> None:
    curves(ax, CELLS, field)
    drawn = [line for line in ax.lines if len(points(line)[0]) == 3]
    for line, ((loss, precision), cell) in zip(drawn, CELLS.items(), strict=True):
        mean = [sum(values) / 2 for values in zip(*(row[field] for row in cell), strict=True)]
        assert points(line) == ([0, 10, 20], pytest.approx(mean))
        assert line.get_linestyle() == STYLES[precision]
        assert same_color(line.get_color(), SERIES[LOSSES.index(loss)][0])
    assert ax.get_xlabel() == "step"
    # A few round steps are labelled.
    assert len([tick for tick in ax.get_xticks() if 0 <= tick <= 20]) in (3, 4, 5)


@pytest.mark.parametrize(
    ("last", "labels"),
    [
        (20.0, ["0", "10", "100"]),
        (99_999.0, ["0", "10", "100", "1000", "10000"]),
        (100_000.0, ["0", "10", "1000", "100000"]),
        (3e7, ["0", "10", "1000", "100000", "1e7"]),
        (2e9, ["0", "10", "1000", "100000", "1e7", "1e9"]),
    ],
)
def test_margins_have_an_axis_of_decades_and_the_margins_of_rounding(ax: Axes, last: float, labels: list[str]) -> None:
    """docs/findings.md: float32 and float64 round the label's probability to one at 16 and 36."""
    rows = rows_of(PLAIN, [0.2, 0.4], margin=[-5.0, 8.0, last])
    # The largest margin decides, that of another cell or at another step.
    low = rows_of(EXACT, [0.2], margin=[3.0, 4.0, 5.0])
    curves(ax, {("plain", "float32"): rows, ("exact", "float64"): low}, "margin")
    assert [label.get_text() for label in ax.get_yticklabels()] == labels
    assert ax.get_yticks().tolist() == [float(label) for label in labels]
    assert across(ax) == [16, 36]
    assert ax.get_yscale() == "symlog"
    scale: Any = ax.yaxis.get_transform()
    assert scale.linthresh == 10
    assert len(ax.yaxis.get_minor_locator()()) == 0


def test_normalised_margins_are_shown_from_half_the_largest_below_zero(ax: Axes) -> None:
    curves(ax, CELLS, "normalised")
    assert ax.get_ylim() == pytest.approx((-0.75e-4, 1.65e-4))
    assert across(ax) == [0]
    assert len([tick for tick in ax.get_yticks() if -0.75e-4 <= tick <= 1.65e-4]) <= 4
    assert ax.yaxis.get_major_formatter()(2e-5, 0) == "2e-5"


def test_margins_that_stay_negative_keep_their_axis(ax: Axes) -> None:
    cell = rows_of(PLAIN, [0.2], normalised=[-3.0, -2.0, -1.0])
    curves(ax, {("plain", "float32"): cell}, "normalised")
    low, high = ax.get_ylim()
    assert low < -3
    assert -0.1 < high < 1


@pytest.mark.parametrize("field", ["test", "margin", "normalised"])
def test_panels_without_cells_are_drawn(ax: Axes, field: str) -> None:
    curves(ax, {}, field)
    assert ax.get_xlabel() == "step"
    if field == "margin":
        assert [label.get_text() for label in ax.get_yticklabels()] == ["0", "10", "100"]


@pytest.mark.parametrize("field", ["test", "lost"])
def test_shares_have_the_whole_range(ax: Axes, field: str) -> None:
    curves(ax, CELLS, field)
    assert ax.get_ylim() == pytest.approx((-0.04, 1.04))
    assert across(ax) == []


def test_controls_are_weight_decay_and_perpendicular_gradients(ax: Axes) -> None:
    decay = rows_of(Config("plain", decay=0.5), [0.8, 1.0])
    turned = rows_of(Config("scaled", "float64", "perpendicular"), [0.4, 0.6])
    controls(ax, [*rows_of(PLAIN, [0.1]), *turned, *decay])
    assert [line.get_label() for line in ax.lines] == ["weight decay", "perpendicular, scaled"]
    for line, look, last in zip(ax.lines, (0, 1), (0.9, 0.5), strict=True):
        assert points(line) == ([0, 10, 20], pytest.approx([0, last / 2, last]))
        assert line.get_marker() == SERIES[look][1]
        assert same_color(line.get_color(), SERIES[look][0])
    own = ax.get_legend()
    assert own is not None
    assert [text.get_text() for text in own.get_texts()] == ["weight decay", "perpendicular, scaled"]
    assert ax.get_ylim() == pytest.approx((-0.75, 1.04))
    assert ax.get_yticks().tolist() == [0, 0.5, 1]
    assert (ax.get_title("center"), ax.get_ylabel(), ax.get_xlabel()) == ("controls", "held-out accuracy", "step")
    assert len([tick for tick in ax.get_xticks() if 0 <= tick <= 20]) in (3, 4, 5)


def test_without_controls_their_panel_has_no_legend(ax: Axes) -> None:
    controls(ax, rows_of(PLAIN, [0.1]))
    assert ax.get_legend() is None
    assert len(ax.lines) == 0


def test_more_controls_than_looks_begin_again(ax: Axes) -> None:
    cells = [Config(loss, decay=0.5) for loss in ("plain", "exact", "scaled", "stablemax", "power")]
    cells += [Config("plain", name, decay=0.5) for name in ("float64", "bfloat16")]
    controls(ax, [row for config in cells for row in rows_of(config, [0.5])])
    assert [line.get_marker() for line in ax.lines] == [SERIES[k % 6][1] for k in range(7)]


def test_ends_have_the_best_accuracy_with_its_interval(ax: Axes) -> None:
    alone = ("power", "bfloat16")
    ends(ax, CELLS | {alone: rows_of(Config("power", "bfloat16"), [0.3])})
    places = {"float32": -0.22, "float64": 0.0, "bfloat16": 0.22}
    expected = {("plain", "float32"): [0.2, 0.4], ("exact", "float64"): [0.6, 0.9], alone: [0.3]}
    for curve, ((loss, precision), values) in zip(all_curves(ax), expected.items(), strict=True):
        assert curve.label == precision
        assert curve.x == pytest.approx([LOSSES.index(loss) + places[precision]])
        assert curve.y == pytest.approx([np.mean(values)])
        bounds = bootstrap_interval(values) if len(values) > 1 else (values[0], values[0])
        assert (curve.low[0], curve.high[0]) == pytest.approx(bounds)
        assert curve.look == list(places).index(precision)
        assert curve.style == "None"
    assert [label.get_text() for label in ax.get_xticklabels()] == NAMES
    assert ax.get_xticks().tolist() == [0, 1, 2, 3, 4]
    assert ax.get_xlim() == pytest.approx((-0.5, 4.5))
    assert ax.get_ylim() == pytest.approx((-0.04, 1.04))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("loss", "best held-out accuracy")


def test_a_precision_stands_once_in_the_legend(ax: Axes) -> None:
    ends(ax, CELLS | {("scaled", "float32"): rows_of(Config("scaled"), [0.3, 0.5])})
    own = ax.get_legend()
    assert own is not None
    assert [text.get_text() for text in own.get_texts()] == ["float32", "float64"]


def test_models_that_learned_their_training_pairs_are_points(ax: Axes) -> None:
    unlearned = [rows_of(PLAIN, [0.9], last_margin=margin)[0] for margin in (-1.0, 0.0)]
    draw_ends(ax, [*rows_of(PLAIN, [0.2, 0.4]), *unlearned, *rows_of(Config("stablemax"), [0.7], last_margin=0.5)])
    lines = ax.lines
    assert [points(line) for line in lines] == [
        ([1e-4, 2e-4], [0.2, 0.4]), ([], []), ([], []), ([1e-4], [0.7]), ([], []),
    ]  # fmt: skip
    assert [line.get_marker() for line in lines] == [SERIES[k][1] for k in range(5)]
    assert ax.get_ylim() == pytest.approx((-0.04, 1.04))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("margin over cubed norm", "held-out accuracy")
    assert ax.get_title("center") == "every model at its end"
    assert ax.xaxis.get_major_formatter()(2e-5, 0) == "2e-5"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Make cells of every optimiser at the small size, and one of another."""
    cells = [
        Config("plain"), Config("exact", "float64"), Config("plain", optimiser="normalised"),
        Config("power", "bfloat16", "normalised"), Config("plain", decay=0.5),
        Config("scaled", optimiser="perpendicular"),
    ]  # fmt: skip
    small = [row for k, config in enumerate(cells) for row in rows_of(config, [0.1 * k, 0.1 * k + 0.2])]
    return [*rows_of(Config("stablemax", p=113, width=200, share=0.4), [0.9] * 3), *small]


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    with mpl.rc_context():
        yield


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_most_common_size_fills_twelve_panels(rows: list[Row], width: float) -> None:
    drawn = figure(rows, width)
    assert len(drawn.axes) == 12
    assert in_one_column(drawn) == (width == NARROW)
    assert "modulo 23" in str(drawn.get_suptitle()).replace("\n", " ")
    normalised, adam = "normalised steps", "Adam"
    assert titles(drawn.axes) == [
        *[normalised] * 3, *[adam] * 3, normalised, adam, "controls", normalised, adam, "every model at its end",
    ]  # fmt: skip
    assert [ax.get_ylabel() for ax in drawn.axes] == [
        *["held-out accuracy", "least margin", "zero gradients"] * 2, "margin over cubed norm",
        "margin over cubed norm", "held-out accuracy", "best held-out accuracy", "best held-out accuracy",
        "held-out accuracy",
    ]  # fmt: skip
    # Cells of each panel: of normalised steps the third and fourth, of Adam the first and second.
    for at, (cells, field) in {
        0: ((2, 3), "test"), 1: ((2, 3), "margin"), 2: ((2, 3), "lost"), 3: ((0, 1), "test"), 4: ((0, 1), "margin"),
        5: ((0, 1), "lost"), 6: ((2, 3), "normalised"), 7: ((0, 1), "normalised"), 8: ((4, 5), "test"),
    }.items():  # fmt: skip
        drawn_y = [points(line)[1] for line in drawn.axes[at].lines if len(points(line)[0]) == 3]
        expected = [np.mean([rows[3 + 2 * k][field], rows[4 + 2 * k][field]], axis=0).tolist() for k in cells]
        np.testing.assert_allclose(sorted(drawn_y), sorted(expected))
    for at, cells in ((9, (2, 3)), (10, (0, 1))):
        assert sorted(curve.y[0] for curve in all_curves(drawn.axes[at])) == pytest.approx(
            [0.1 * k + 0.1 for k in cells]
        )
    assert sum(len(points(line)[0]) for line in drawn.axes[11].lines) == 12


def test_colours_are_losses_and_styles_precisions(rows: list[Row]) -> None:
    drawn = figure(rows)
    assert legend_words(drawn.axes) == [*NAMES, *STYLES]
    handles = drawn.legends[0].get_lines()
    assert all(same_color(line.get_color(), SERIES[k][0]) for k, line in enumerate(handles[:5]))
    assert [line.get_linestyle() for line in handles[5:]] == list(STYLES.values())
    assert all(same_color(line.get_color(), QUIET) for line in handles[5:])
    wide, narrow = (figure(rows, width).legends[0] for width in (WIDE, NARROW))
    assert [getattr(one, "_ncols") for one in (wide, narrow)] == [4, 2]  # noqa: B009


def test_lines_marks_and_words_can_be_seen_and_do_not_cover_the_panel(rows: list[Row]) -> None:
    drawn = figure(rows)
    assert 1 < drawn.get_figheight() / 4 < 4
    own = [line for ax in drawn.axes for line in ax.lines]
    assert all(0.4 <= line.get_linewidth() <= 2 for line in own if line.get_linestyle() != "None")
    assert all(1.5 <= line.get_markersize() <= 8 for line in own if line.get_marker() not in ("None", "_", "|"))
    assert all(0.3 <= (line.get_alpha() or 1) <= 1 for line in own)
    legends = [one for ax in drawn.axes if (one := ax.get_legend())]
    assert all(
        6 <= float(text.get_fontsize()) <= 12 for one in legends for text in one.findobj(Text) if isinstance(text, Text)
    )
