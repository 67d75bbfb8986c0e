"""Phase diagrams: planes, thresholds, verdicts and maps from rows made by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attsvm.plots.style import NARROW, WIDE, house_style
from attsvm_paper.beyond import phase_diagram
from attsvm_paper.beyond.phase_diagram import figure, half_way, planes, shares
from attsvm_paper.beyond.power_law import crossing, exponents
from attsvm_paper.judging.statistics import wilson_interval
from attsvm_paper.judging.verdict import Row, Verdict
from drawn import heat_map, panel_height, place, ticks

KEYS = ("b1_slack", "b1_strict", "random_feasible", "d_open", "global", "only_local", "neither")


def cell(n: int, T: int, d: float, hits: int, count: int, key: str = "feasible", part: str = "conditions") -> list[Row]:
    """Make `count` rows, of which the first have the key, and the last is infeasible."""
    rows = []
    for at in range(count):
        plain: Row = {"n": n, "T": T, "d": d, "part": part, "steps": 7, "feasible": None, "infeasible": at == count - 1}
        rows.append(plain | dict.fromkeys(KEYS) | {key: at < hits})
    return rows


def verdicts(rows: Sequence[Row]) -> dict[str, Verdict]:
    result = phase_diagram.verdicts(rows)
    by_quantity = {one.quantity: one for one in result}
    assert len(by_quantity) == len(result)
    assert {one.experiment for one in result} <= {"phase-diagram"}
    return by_quantity


def sizes(*pairs: tuple[int, int]) -> list[Row]:
    return [{"n": n, "T": T} for n, T in pairs]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # A single size is drawn against n only.
        (sizes((3, 4)), [("n", "T", 4)]),
        (sizes((2, 5), (4, 5), (5, 2), (5, 4)), [("n", "T", 5), ("T", "n", 5)]),
        # The fixed value is the one with most varied values, and 5 of equals.
        (sizes((2, 3), (4, 3), (6, 3), (2, 5), (4, 5)), [("n", "T", 3), ("T", "n", 2)]),
        (sizes((2, 3), (4, 3), (2, 5), (4, 5)), [("n", "T", 5), ("T", "n", 2)]),
        (sizes((2, 3), (4, 5)), [("n", "T", 5)]),
        (sizes((5, 2), (5, 3)), [("n", "T", 2), ("T", "n", 5)]),
    ],
)
def test_a_plane_has_the_most_common_value_of_what_is_fixed(rows: list[Row], expected: list[Any]) -> None:
    found = planes(rows)
    assert [plane[:3] for plane in found] == expected
    for _, fixed, value, own in found:
        assert own == [row for row in rows if row[fixed] == value]


def test_shares_count_the_rows_of_a_part_that_have_the_key() -> None:
    rows = [*cell(2, 5, 3, 1, 4), *cell(2, 5, 8, 2, 2), *cell(4, 5, 3, 3, 3, part="D"), *cell(4, 5, 8, 0, 2)]
    rows += cell(6, 5, 8, 1, 1, "global")
    assert shares(rows, "conditions", "feasible", "n") == {(2, 3): (1, 4), (2, 8): (2, 2), (4, 8): (0, 2)}
    assert shares(rows, "D", "feasible", "T") == {(5, 3): (3, 3)}
    assert shares([{"part": "W", "n": 1, "d": 1}], "W", "global", "n") == {}


def test_half_way_is_where_a_share_passes_one_half_in_the_logarithm_of_d() -> None:
    counts = {(2, 4): (0, 5), (2, 1): (0, 5), (2, 16): (5, 5), (4, 9): (4, 8), (4, 1): (0, 8), (6, 2): (1, 1)}
    assert half_way(counts) == pytest.approx({2: 8, 4: 9})


def test_resampled_shares_come_from_the_posterior_under_jeffreys_prior() -> None:
    counts = {(2, 16): (6, 6), (2, 4): (0, 6), (4, 4): (1, 6), (4, 16): (6, 6)}
    rng = np.random.default_rng(3)
    expected = {}
    for value, hits in ((2, (0, 6)), (4, (1, 6))):
        draws = [rng.beta(h + 0.5, 6 - h + 0.5) for h in hits]
        expected[value] = crossing([4, 16], draws)
    assert half_way(counts, np.random.default_rng(3)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("part", "key", "what", "line"),
    [
        ("conditions", "random_feasible", "random feasible", "d = max(T - 1, n)"),
        ("conditions", "feasible", "optimum feasible", "d = max(T - 1, n)"),
        ("conditions", "b1_strict", "B.1, strict", "d = (T + n) log(T + n)"),
        ("D", "d_open", "D not refuted", "d = (T + n) log(T + n)"),
        ("W", "global", "W: global", "d = (T + n) log(T + n)"),
        ("KQ", "global", "(K, Q): global", "d = (T + n) log(T + n)"),
    ],
)
def test_outcomes_are_compared_above_and_below_a_line(part: str, key: str, what: str, line: str) -> None:
    """At T = 6, n = 2 the first line is 5 and the second 8 log 8 = 16.6."""
    on, under = (5, 4) if "max" in line else (17, 16)
    rows = [*cell(2, 6, on, 5, 8, key, part), *cell(2, 6, under, 1, 4, key, part)]
    rows = [row | {"neither": False} for row in rows]
    found = verdicts(rows)
    above, below = found[f"{what}, at or above {line}"], found[f"{what}, below {line}"]
    assert (above.measured, above.trials, above.infeasible, above.note) == (5 / 8, 8, 1, "")
    assert (above.low, above.high) == wilson_interval(5, 8)
    assert (below.measured, below.trials, below.infeasible) == (1 / 4, 4, 1)
    assert below.note == f"{what}: 62.5% of instances at or above the line {line}, 25.0% below it."
    # Rows without the key say nothing, and one side alone has no comparison.
    (only,) = (one for one in verdicts(rows[8:]).values() if what in one.quantity)
    assert (only.quantity, only.note) == (f"{what}, below {line}", "")


def test_the_lines_are_those_of_the_docstring() -> None:
    """d = max(T - 1, n), and d = (T + n) log(T + n): the first says n where n is the larger."""
    found = verdicts([*cell(7, 6, 7, 1, 1), *cell(7, 6, 6, 0, 1), *cell(7, 6, 32, 1, 2, "b1_strict")])
    assert found["optimum feasible, at or above d = max(T - 1, n)"].measured == 1
    assert found["optimum feasible, below d = max(T - 1, n)"].measured == 0
    # 13 log 13 = 33.3
    assert found["B.1, strict, below d = (T + n) log(T + n)"].measured == 0.5


def test_runs_that_end_nowhere_are_counted_for_each_parameterisation() -> None:
    rows = [row | {"neither": at < 2, "global": at >= 2} for at, row in enumerate(cell(2, 5, 4, 0, 5, part="W"))]
    found = verdicts(rows)
    one = found["neither global nor local, W"]
    assert (one.measured, one.trials, one.infeasible) == (2 / 5, 5, 1)
    assert one.note == "After 7 steps, all cells together."
    assert "neither global nor local, KQ" not in found


def made_plane(varied: str, key: str = "feasible", part: str = "conditions") -> list[Row]:
    """Make a plane in which the share passes one half at d = 2 n, or 4 sqrt(T)."""
    rows = []
    for size in (2, 4, 8):
        half = 2 * size if varied == "n" else 4 * math.sqrt(size)
        n, T = (size, 5) if varied == "n" else (5, size)
        # A share of 1/4 at half the dimension and 3/4 at twice passes one half in between, in logarithms.
        for d, hits in ((half / 2, 3), (2 * half, 9)):
            rows += cell(n, T, d, hits, 12, key, part)
    return rows


@pytest.mark.parametrize(
    ("varied", "exponent", "note"),
    [
        (
            "n",
            1.0,
            "Half of the instances at d: n = 2: 4.0, n = 4: 8.0, n = 8: 16.0; 1.00 to 2.00 times max(T - 1, n).",
        ),
        (
            "T",
            0.5,
            "Half of the instances at d: T = 2: 5.7, T = 4: 8.0, T = 8: 11.3; 1.13 to 1.62 times max(T - 1, n).",
        ),
    ],
)
def test_the_half_way_dimension_grows_like_a_power(varied: str, exponent: float, note: str) -> None:
    """The ratios are 4/4, 8/4, 16/8 to max(4, n), and 5.66/5, 8/5 and 11.3/7 to max(T - 1, 5)."""
    rows = made_plane(varied)
    found = verdicts(rows)
    (one,) = (one for one in found.values() if "exponent" in one.quantity)
    other = "T" if varied == "n" else "n"
    assert one.quantity == f"optimum feasible: exponent of the half-way d in {varied}, {other}=5"
    assert one.measured == pytest.approx(exponent)
    assert (one.trials, one.note) == (72, note)
    # The interval is that of 300 draws of every share.
    counts, rng = shares(rows, "conditions", "feasible", varied), np.random.default_rng(0)
    draws = [half_way(counts, rng) for _ in range(300)]
    fits = [exponents(list(draw.values()), list(draw))[0] for draw in draws if len(draw) == 3]
    assert len(fits) < 300
    np.testing.assert_allclose((one.low, one.high), np.quantile(fits, [0.025, 0.975]))


def test_other_shares_are_compared_with_the_second_line() -> None:
    found = verdicts(made_plane("n", "b1_slack"))
    (one,) = (one for one in found.values() if "exponent" in one.quantity)
    assert one.quantity == "B.1, slack: exponent of the half-way d in n, T=5"
    # 4 / (7 log 7), 8 / (9 log 9), 16 / (13 log 13)
    assert one.note.endswith("; 0.29 to 0.48 times (T + n) log(T + n).")


def test_two_half_way_dimensions_give_no_exponent() -> None:
    rows = [row for row in made_plane("n") if row["n"] != 8]
    assert not any("exponent" in quantity for quantity in verdicts(rows))


XS, YS = (2, 4, 8), (2, 4, 8, 16)


def drawn_rows() -> list[Row]:
    """Make both planes at the crossing of T = 4 and n = 4, with feasible cells and three that were trained."""
    rows = [row for n in XS for d in YS for row in cell(n, 4, d, min(d, 4), 4)]
    rows += [row for T in XS if T != 4 for d in YS for row in cell(4, T, d, 1, 2)]
    return rows + [row for d in YS[:3] for row in cell(8, 4, d, 1, 4, "global", "W")]


@pytest.mark.parametrize(("width", "columns"), [(WIDE, 5), (NARROW, 2)])
def test_every_share_has_a_map_in_both_planes(width: float, columns: int) -> None:
    drawing = figure(drawn_rows(), width)
    *panels, bar = [ax for ax in drawing.axes if ax.get_visible()]
    assert [(ax.get_title(loc="left"), ax.get_xlabel()) for ax in panels] == [
        ("optimum feasible", "n   (T = 4)"), ("W: global", "n   (T = 4)"), ("optimum feasible", "T   (n = 4)"),
    ]  # fmt: skip
    assert [place(ax)[1:] for ax in panels] == [(columns, at // columns, at % columns) for at in range(3)]
    assert [ax.get_ylabel() for ax in panels] == ["" if at % columns else "d" for at in range(3)]
    first, trained, other = map(heat_map, panels)
    np.testing.assert_array_equal(first, np.repeat([[0.5], [1.0], [1.0], [1.0]], 3, axis=1))
    # Where nothing was trained a map is blank.
    np.testing.assert_array_equal(np.isnan(trained), [[True, True, False]] * 3 + [[True] * 3])
    np.testing.assert_array_equal(trained[:3, 2], [0.25] * 3)
    np.testing.assert_array_equal(other, [[0.5, 0.5, 0.5], [0.5, 1, 0.5], [0.5, 1, 0.5], [0.5, 1, 0.5]])
    for ax in panels:
        assert ticks(ax.xaxis) == {0: "2", 1: "4", 2: "8"}
        assert ticks(ax.yaxis) == {0: "2", 1: "4", 2: "8", 3: "16"}
    assert 1.3 < panel_height(drawing) < 5
    assert bar.get_xlabel() == "share of instances"
    (legend,) = drawing.legends
    assert [text.get_text() for text in legend.get_texts()] == ["d = max(T - 1, n)", "d = (T + n) log(T + n)"]


@pytest.mark.parametrize(
    ("at", "first"),
    # max(3, n) for n = 2, 4, 8, and max(T - 1, 4) for T = 2, 4, 8, as places in 2, 4, 8, 16.
    [(0, [math.log2(3) - 1, 1, 2]), (2, [1, 1, math.log2(7) - 1])],
)
def test_a_map_has_both_lines(at: int, first: list[float]) -> None:
    ax = figure(drawn_rows()).axes[at]
    lines = {str(line.get_label()): line for line in ax.lines if not str(line.get_label()).startswith("_")}
    one, two = lines["d = max(T - 1, n)"], lines["d = (T + n) log(T + n)"]
    assert (one.get_linestyle(), two.get_linestyle()) == ("-", "--")
    assert one.get_xdata() == pytest.approx([0, 1, 2])
    assert one.get_ydata() == pytest.approx(first)
    # 6 log 6 = 10.75; 8 log 8 = 16.6 and what is larger lie outside.
    assert two.get_ydata() == pytest.approx([math.log2(6 * math.log(6)) - 1, math.nan, math.nan], nan_ok=True)


def test_the_colour_bar_is_short_and_lies_just_below_the_labels() -> None:
    drawing = figure(drawn_rows())
    with house_style():
        drawing.draw_without_rendering()
    *panels, bar = [ax for ax in drawing.axes if ax.get_visible()]
    inches = bar.get_window_extent().width / drawing.dpi
    gap = (min(ax.get_window_extent().y0 for ax in panels) - bar.get_window_extent().y1) / drawing.dpi
    assert 0.4 < inches < 1.5
    # The labels of the horizontal axes take a third of an inch.
    assert 0.35 < gap < 0.45


def test_more_maps_than_columns_take_another_row_and_none_leaves_an_empty_figure() -> None:
    rows = drawn_rows()
    many = [row | {"b1_slack": True, "b1_strict": False, "random_feasible": True} for row in rows]
    drawing = figure(many)
    shown = [ax for ax in drawing.axes if ax.get_visible()]
    # Four of conditions and one trained, then four of conditions in the other plane, and the colour bar.
    assert len(shown) == 10
    assert {place(ax)[:2] for ax in shown[:9]} == {(2, 5)}
    assert sum(not ax.get_visible() for ax in drawing.axes) == 1
    empty = figure([row | {"feasible": None} for row in cell(2, 5, 3, 1, 2)])
    assert [ax.get_visible() for ax in empty.axes] == [False] * 5
    assert not empty.legends
