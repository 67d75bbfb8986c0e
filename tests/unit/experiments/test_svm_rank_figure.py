"""The figure of ranks: both norms and the share of infeasible instances against dimension."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.figures.svm_rank import figure
from attsvm_paper.judging.estimates import estimate, share_estimate
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.ledger import curve
from drawn import all_curves, has_readable_panels, heading, in_one_column, legend_words, printed, ticks, titles

SIZES = ((5, 5), (10, 5), (15, 5), (5, 10), (5, 15))
COLUMNS = (((5, 5), (10, 5), (15, 5)), ((5, 5), (5, 10), (5, 15)))
KEYS = {
    (5, 5): "Fig. 4{}: {}=5, ",
    (10, 5): "Fig. 4a: n=10, ",
    (15, 5): "Fig. 4a: n=15, ",
    (5, 10): "Fig. 4b: T=10, ",
    (5, 15): "Fig. 4b: T=15, ",
}
COLOURED = ((0, 1, 2), (0, 3, 4))


def made(n: int, T: int, d: int, trials: int = 6, missing: int = 1, **fields: Any) -> list[Row]:
    rng = np.random.default_rng([n, T, d])
    rows: list[Row] = []
    for seed in range(trials):
        there = seed >= missing
        row: Row = {"n": n, "T": T, "d": d, "gap": 0.1, "seed": seed, "infeasible": not there}
        for norm in ("frobenius", "nuclear"):
            row[f"{norm}_rank"] = int(rng.integers(1, 5)) if there else None
            row[f"{norm}_published_count"] = int(rng.integers(2, 6)) if there else 1
        rows.append(row | fields)
    return rows


def mean(cells: list[list[Row]], field: str) -> dict[int, Any]:
    values = {cell[0]["d"]: [row[field] for row in cell if row[field] is not None] for cell in cells}
    return {d: estimate(column, "mean") for d, column in values.items() if column}


def percent(share: np.ndarray) -> np.ndarray:
    return 100 * share


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_norms_are_above_each_other_and_infeasible_shares_below(width: float) -> None:
    cells = {size: [made(*size, 4), made(*size, 10, missing=2)] for size in SIZES}
    rows = [row for pair in cells.values() for cell in pair for row in cell]
    drawing = figure(rows + made(5, 5, 6) + made(5, 5, 4, gap=0.0), width)
    axes = np.array(drawing.axes).reshape(3, 2)
    assert in_one_column(drawing) == (width == NARROW)
    assert has_readable_panels(drawing, 6 if width == NARROW else 3)
    assert titles(axes.ravel()) == [
        f"{what}, {varies}"
        for what in ("Frobenius norm", "nuclear norm", "certified infeasible")
        for varies in ("T = 5", "n = 5")
    ]
    for across, sizes in enumerate(COLUMNS):
        for down, norm in enumerate(("frobenius", "nuclear")):
            drawn = all_curves(axes[down, across])
            labels = [(f"n = {n}, T = {T}", "-") for n, T in sizes]
            assert [(one.label, one.style) for one in drawn[::2]] == labels
            assert [(one.label, one.style) for one in drawn[1::2]] == [("", ":")] * 3
            assert [one.look for one in drawn[::2]] == [one.look for one in drawn[1::2]] == list(COLOURED[across])
            for at, size in enumerate(sizes):
                drawn[2 * at].shows(mean(cells[size], f"{norm}_rank"))
                drawn[2 * at + 1].shows(mean(cells[size], f"{norm}_published_count"))
            word = "Frobenius" if norm == "frobenius" else "nuclear"
            keys = [curve(KEYS[size].format("a", "n") + word) for size in sizes]
            assert printed(axes[down, across]) == [(list(map(float, one.x)), list(one.y)) for one in keys]
        shares = all_curves(axes[2, across])
        assert [(one.label, one.style, one.look) for one in shares] == [("", "-", look) for look in COLOURED[across]]
        for at, (one, size) in enumerate(zip(shares, sizes, strict=True)):
            # Error bars stand side by side.
            one.shows({d: share_estimate(missing, 6) for d, missing in ((4, 1), (10, 2))}, percent, 0.03 * (at - 1))
            assert size in cells


def test_axes_name_what_they_show() -> None:
    rows = made(5, 5, 1) + made(5, 5, 15)
    axes = figure(rows).axes
    assert heading(axes) == "Rank of the SVM solution of the optimal tokens (score gap at least 0.1)"
    assert [ax.get_ylabel() for ax in axes] == ["mean rank"] * 4 + ["share of instances (%)"] * 2
    for ax in axes:
        assert (ax.get_xlabel(), ax.get_xscale()) == ("dimension d", "log")
        assert list(ticks(ax.xaxis).items()) == [(1, "1"), (15, "15")]
    for ax in axes[:4]:
        # Ranks are integers; ticks have at most five intervals.
        locator = ax.yaxis.get_major_locator()
        assert list(locator.tick_values(2, 3)) == [2, 3]
        assert len(locator.tick_values(0, 6)) <= 6
    for ax in axes[4:]:
        assert ax.get_ylim() == pytest.approx((-3, 103))
    assert sorted(legend_words(axes)) == [
        "n = 5, T = 5", "ours, 95 % interval", "ours, published way of counting", "published",
    ]  # fmt: skip


def test_ranks_not_counted_as_published_have_no_dotted_line() -> None:
    axes = np.array(figure(made(10, 5, 4, nuclear_published_count=None, gap=0.0)).axes).reshape(3, 2)
    assert [[one.style for one in all_curves(ax)] for ax in axes[:, 0]] == [["-", ":"], ["-"], ["-"]]
    assert not any(all_curves(ax) for ax in axes[:, 1])


def test_other_sizes_have_a_panel_of_their_own_without_printed_curves() -> None:
    rows = [row for n in (2, 3, 4, 6, 7, 8, 9) for row in made(n, 3, 4)]
    axes = figure(rows).axes
    sizes = "n = 2, T = 3, n = 3, T = 3"
    assert titles(axes) == [f"Frobenius norm, {sizes}", f"nuclear norm, {sizes}", f"certified infeasible, {sizes}"]
    # Looks begin again after six.
    assert [one.look for one in all_curves(axes[2])] == [0, 1, 2, 3, 4, 5, 0]
    assert not any(printed(ax) for ax in axes)


def test_dimensions_of_the_joint_test_are_drawn_only_if_there_are_no_others() -> None:
    rows = made(5, 5, 6) + made(5, 5, 11)
    axes = figure(rows).axes
    assert all_curves(axes[0])[0].x == [6, 11]
    assert list(ticks(axes[0].xaxis).items()) == [(6, "6"), (11, "11")]
    assert all_curves(figure(rows + made(5, 5, 10)).axes[0])[0].x == [10]
