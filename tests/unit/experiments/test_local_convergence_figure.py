"""The figure of Fig. 7: our curves in both arithmetics over the printed ones, and its axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.text import Annotation

from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.figures.local_convergence import _table, figure
from attsvm_paper.judging.estimates import at_records
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.ledger import curve
from drawn import all_curves, bands, has_readable_panels, heading, in_one_column, legend_words, printed, ticks, titles

STEPS = [1, 51, 101, 600]
# The curves by parameterisation and SVM, as the notebook draws them.
KEYS = {
    ("W", "frobenius"): "Fig. 7b: W, Frobenius SVM",
    ("W", "nuclear"): "Fig. 7b: KQ, Frobenius SVM",
    ("KQ", "frobenius"): "Fig. 7c: W, nuclear SVM",
    ("KQ", "nuclear"): "Fig. 7c: KQ, nuclear SVM",
    ("W", "attention"): "Fig. 7a: W, largest softmax",
    ("KQ", "attention"): "Fig. 7a: KQ, largest softmax",
}
TITLES = ["training W: direction", "training (K, Q): direction", "training W: attention", "training (K, Q): attention"]


def made(p: str, numerics: str, trials: int = 3, end: float = 0.99, **fields: Any) -> list[Row]:
    """Make rows whose Frobenius correlations end at `end`, and the nuclear ones at 0.9."""
    rows = []
    for seed in range(trials):
        spread = 1e-3 * (seed - 1) * (1 if numerics == "exact" else 2)
        row: Row = {
            "parameterization": p, "numerics": numerics, "gap": 0.1, "start": "torch", "n": 6, "T": 8, "d": 10,
            "seed": seed, "step": STEPS, "frobenius": [0.1 + spread, 0.5, 0.8 + spread, end + spread],
            "nuclear": [0.2, 0.4 + spread, 0.6, 0.9 + spread], "attention": [0.3, 0.5 + spread, 0.7, 0.95 + spread],
        }  # fmt: skip
        rows.append(row | fields)
    return rows


def nines(values: Any) -> Any:
    return -np.log10(1 - np.asarray(values))


def mean(rows: list[Row], what: str) -> Any:
    return at_records(rows[0]["step"], [row[what] for row in rows], "mean")


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_both_arithmetics_of_both_parameterisations_have_a_panel(width: float) -> None:
    cells = {(p, k): made(p, k) for p in ("W", "KQ") for k in ("exact", "published")}
    drawing = figure([row for cell in cells.values() for row in cell], width)
    axes = drawing.axes
    assert titles(axes) == TITLES
    assert in_one_column(drawing) == (width == NARROW)
    assert has_readable_panels(drawing, 4 if width == NARROW else 2)
    for at, p in enumerate(("W", "KQ")):
        above, below = all_curves(axes[at]), all_curves(axes[2 + at])
        assert [(one.label, one.style, one.look) for one in above] == [
            ("Frobenius SVM", "-", 0), ("nuclear SVM", "-", 1), ("", ":", 0), ("", ":", 1),
        ]  # fmt: skip
        assert [(one.label, one.style, one.look) for one in below] == [
            ("top softmax probability", "-", 2),
            ("", ":", 2),
        ]
        for k, numerics in enumerate(("exact", "published")):
            above[2 * k].shows(mean(cells[p, numerics], "frobenius"), nines)
            above[2 * k + 1].shows(mean(cells[p, numerics], "nuclear"), nines)
            below[k].shows(mean(cells[p, numerics], "attention"))


def test_printed_curves_are_drawn_once_where_the_notebook_has_them() -> None:
    axes = figure([row for p in ("W", "KQ") for k in ("exact", "published") for row in made(p, k)]).axes
    for at, p in enumerate(("W", "KQ")):
        for ax, fields in ((axes[at], ("frobenius", "nuclear")), (axes[2 + at], ("attention",))):
            assert len(printed(ax)) == len(bands(ax)) == len(fields)
            for what, (x, y), band in zip(fields, printed(ax), bands(ax), strict=True):
                one = curve(KEYS[p, what])
                assert one.band is not None
                points = list(zip(*one.line_points, one.band, strict=True))
                # W of iteration k is W after k + 1 steps; attention before the first step has no place on the axis.
                late = 0 if what == "attention" else 1
                shown = [(k + late, value, sd) for k, value, sd in points if k + late > 0]
                scale = np.asarray if what == "attention" else nines
                top = 1 - 1e-9
                assert x == [k for k, _, _ in shown]
                assert y == pytest.approx([float(scale(min(value, top))) for _, value, _ in shown], rel=1e-12)
                edges = [(k, float(scale(value - sd)), float(scale(min(value + sd, top)))) for k, value, sd in shown]
                # Rounding of 1 - 1e-9 is a ten millionth of the distance.
                np.testing.assert_allclose(band, edges, rtol=1e-7, atol=1e-12)
                assert len(shown) == len(points) - (what == "attention")


def test_axes_name_what_they_show() -> None:
    figures = figure(made("W", "exact", end=0.9995) + made("W", "published", end=0.99))
    axes = figures.axes
    assert heading(axes) == (
        "Correlation with the SVM of the selected tokens, n = 6, T = 8, d = 10, score gap at least 0.1"
    )
    assert [ax.get_ylabel() for ax in axes] == ["mean correlation"] * 2 + ["mean top probability"] * 2
    assert {ax.get_xlabel() for ax in axes} == {"training step"}
    assert {ax.get_xscale() for ax in axes} == {"log"}
    assert [ax.get_xlim() for ax in axes] == [pytest.approx((1, 12_000))] * 4
    assert [ax.get_ylim() for ax in axes[2:]] == [pytest.approx((0, 1.04))] * 2
    top = float(nines(0.9995))
    assert axes[0].get_ylim() == pytest.approx((-0.05, 1.12 * top))
    # 0.999 is the last that is at most a tenth above the curve; a panel without a curve goes to 0.9.
    assert list(ticks(axes[0].yaxis).items()) == [
        (pytest.approx(nines(t), abs=1e-12), f"{t:g}") for t in (0, 0.5, 0.9, 0.99, 0.999)
    ]
    assert axes[1].get_ylim() == pytest.approx((-0.05, 1.12))
    assert [label for _, label in list(ticks(axes[1].yaxis).items())] == ["0", "0.5", "0.9"]
    for ax in axes[:2]:
        # A panel without a curve is marked, too.
        assert any(
            line.get_linestyle() == ":" and list(np.asarray(line.get_xdata())) == [600, 600] for line in ax.lines
        )
        (note,) = [one for one in ax.texts if isinstance(one, Annotation)]
        assert (note.get_text(), note.xy) == ("printed axis ends", (600, 0))
        assert note.get_horizontalalignment() == "right"
    assert sorted(legend_words(axes)) == [
        "Frobenius SVM", "nuclear SVM", "ours, 95 % interval", "ours, published arithmetic", "published",
        "published ± one standard deviation", "top softmax probability",
    ]  # fmt: skip


@pytest.mark.parametrize(("end", "last"), [(1 - 10**-4.54, 4), (1 - 10**-4.56, 5), (1 - 1e-6, 5)])
def test_the_highest_tick_is_at_most_a_tenth_above_the_curves(end: float, last: int) -> None:
    axes = figure(made("W", "exact", trials=1, end=end + 1e-3)).axes
    assert list(ticks(axes[0].yaxis).items())[-1][0] == pytest.approx(last)
    assert list(ticks(axes[0].yaxis).items())[-1][1] == {4: "0.9999", 5: "0.99999"}[last]


def test_published_arithmetic_alone_has_the_printed_curves() -> None:
    axes = figure(made("KQ", "published")).axes
    assert [one.label for one in all_curves(axes[1])] == ["", ""]
    assert [len(printed(ax)) for ax in axes] == [0, 2, 0, 1]
    assert [len(all_curves(ax)) for ax in axes] == [0, 2, 0, 1]


def test_other_sizes_have_no_printed_curve() -> None:
    axes = figure(made("W", "published", n=3) + made("W", "exact", n=3)).axes
    assert [len(all_curves(ax)) for ax in axes] == [4, 0, 2, 0]
    assert not any(printed(ax) for ax in axes)
    assert heading(axes).endswith("n = 3, T = 8, d = 10, score gap at least 0.1")


def test_the_setting_drawn_is_that_of_the_first_row_with_the_least_d_and_the_largest_gap() -> None:
    own = made("W", "exact", gap=0.2, d=9, end=0.95)
    changes: list[dict[str, Any]] = [
        {"gap": 0.0}, {"d": 11}, {"d": 10}, {"n": 5}, {"T": 7}, {"start": "small"},
    ]  # fmt: skip
    others = [row for fields in changes for row in made("W", "exact", **({"gap": 0.2, "d": 9} | fields))]
    axes = figure(own + others).axes
    assert heading(axes).endswith("n = 6, T = 8, d = 9, score gap at least 0.2")
    (frobenius, _) = all_curves(axes[0])
    frobenius.shows(mean(own, "frobenius"), nines)
    assert heading(figure(made("W", "exact", gap=0.0)).axes).endswith("d = 10, no score gap")


def test_without_an_svm_only_attention_is_drawn() -> None:
    rows = made("W", "exact", trials=2, frobenius=None, nuclear=None)
    axes = figure(rows).axes
    assert [len(all_curves(ax)) for ax in axes] == [0, 0, 1, 0]
    assert _table(rows, "nuclear").shape == (0, len(STEPS))
    assert _table(rows[:1], "nuclear").shape == (0, len(STEPS))
    assert _table(rows, "attention").tolist() == [row["attention"] for row in rows]
    one_missing = made("W", "exact", trials=2) + made("W", "exact", trials=1, frobenius=None)
    all_curves(figure(one_missing).axes[0])[0].shows(mean(made("W", "exact", trials=2), "frobenius"), nines)
