"""The figure of joint training: medians against the step of the head, from rows made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.beyond.joint_training import figure
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.verdict import Row
from drawn import curves, in_one_column, legend_words, levels, ticks, titles

PANELS = {
    "margin": ("W: margin", "share of the largest (median)"),
    "same": ("same token as under the fixed head", "share of sequences (median)"),
    "head": ("v against the classifier", "correlation (median)"),
    "relaxed": ("margins where v has no support", "relative to its supports (median)"),
}


def rows_of(kind: str, d: int, rate: float, values: list[float]) -> list[Row]:
    return [
        {"kind": kind, "d": d, "head_lr": rate, "seed": seed, "trial": seed}
        | {"margin": value, "same": value / 2, "head": value - 1, "relaxed": 2 * value if rate else None}
        | {"correlation": value, "accuracy": None, "optimal": 1.0, "infeasible": False}
        for seed, value in enumerate(values)
    ]


TABLE: dict[tuple[str, int], dict[float, list[float]]] = {
    ("planted", 10): {0.1: [0.2, 0.3, 0.9]},
    ("random", 5): {0.0: [0.1, 0.5, 0.6], 0.1: [0.3, 0.4, 0.8, 0.9]},
}
ROWS = [
    row
    for (kind, d), cells in TABLE.items()
    for rate, values in cells.items()
    for row in rows_of(kind, d, rate, values)
]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_each_kind_of_data_has_a_curve_of_medians(width: float) -> None:
    drawn = figure(ROWS, width)
    assert titles(drawn.axes) == [title for title, _ in PANELS.values()]
    assert in_one_column(drawn) == (width == NARROW)
    for ax, (field, (_, label)) in zip(drawn.axes, PANELS.items(), strict=True):
        assert ax.get_ylabel() == label
        assert ax.get_xlabel() == "step of the head (that of W is 0.1)"
        assert ticks(ax.xaxis) == {0.0: "fixed", 1.0: "0.1"}
        assert ax.get_xlim() == pytest.approx((-0.2, 1.2))
        assert ax.get_yscale() == ("log" if field == "relaxed" else "linear")
        assert levels(ax) == ({"": 1.0} if field == "relaxed" else {})
        found = curves(ax)
        assert list(found) == ["planted data, d = 10", "random data, d = 5"]
        for look, ((kind, d), cells) in enumerate(TABLE.items()):
            curve = found[f"{kind} data, d = {d}"]
            shown = {rate: values for rate, values in cells.items() if rate or field != "relaxed"}
            assert curve.look == look
            assert curve.x == [0 if rate == 0 else 1 for rate in shown]
            for at, (rate, values) in enumerate(shown.items()):
                expected = estimate([row[field] for row in rows_of(kind, d, rate, values)], "median")
                assert (curve.y[at], curve.low[at], curve.high[at]) == pytest.approx(
                    (expected.value, expected.low, expected.high)
                )
    assert legend_words(drawn.axes) == ["planted data, d = 10", "random data, d = 5"]


def test_a_fixed_head_alone_has_one_tick() -> None:
    drawn = figure(rows_of("random", 5, 0.0, [0.2, 0.4]))
    for ax in drawn.axes:
        assert ticks(ax.xaxis) == {0.0: "fixed"}
        assert ax.get_xlim() == pytest.approx((-0.2, 0.2))


def test_looks_begin_again_after_six_curves() -> None:
    rows = [row for d in range(1, 9) for row in rows_of("random", d, 0.1, [0.2, 0.4])]
    found: Any = curves(figure(rows).axes[0])
    assert [found[f"random data, d = {d}"].look for d in range(1, 9)] == [0, 1, 2, 3, 4, 5, 0, 1]


def test_panels_have_the_height_of_their_number_of_rows() -> None:
    heights = {width: figure(ROWS, width).get_figheight() for width in (WIDE, NARROW)}
    # Two rows and four, of one to four inches each.
    assert 2 < heights[WIDE] < 8
    assert heights[NARROW] == pytest.approx(2 * heights[WIDE], rel=0.1)
    # The level line is thinner than the curves.
    line = next(line for line in figure(ROWS).axes[3].lines if line.get_linestyle() == ":")
    assert 0.3 < line.get_linewidth() < 1.5
