"""The figure of convergence types: shares of outcomes and of B.1 against dimension, over the printed ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.figures.convergence_types import figure
from attsvm_paper.judging.estimates import share_estimate
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.ledger import curve
from drawn import all_curves, has_readable_panels, heading, in_one_column, legend_words, printed, ticks, titles

DIMENSIONS = (2, 3, 10)
OUTCOMES = ("global", "locally optimal (with global)", "neither")
B1 = ("average margin at most 1.1", "every margin equals 1", "SVM feasible")
FIELDS = ("global", "local", "saturated", "feasible", "b1_slack", "b1_strict")
PANELS = {"W": "5a: W", "KQ": "5b: KQ"}


def made(p: str, numerics: str, **fields: Any) -> list[Row]:
    """Make ten rows per dimension, with another number of hits in each field, dimension and parameterisation."""
    rows = []
    for d in DIMENSIONS:
        for seed in range(10):
            hits = {name: seed < (3 + at * len(p) + d) % 10 for at, name in enumerate(FIELDS)}
            place = {"parameterization": p, "numerics": numerics, "d": d, "n": 5, "T": 5, "seed": seed}
            rows.append(place | hits | fields)
    return rows


def shares(rows: list[Row], counts: Callable[[Row], bool]) -> dict[int, Any]:
    return {d: share_estimate(sum(counts(row) for row in rows if row["d"] == d), 10) for d in DIMENSIONS}


def percent(share: np.ndarray) -> np.ndarray:
    return 100 * share


MEASURES: dict[str, list[Callable[[Row], bool]]] = {
    "exact": [lambda row: row["global"], lambda row: row["local"], lambda row: not row["local"]],
    "published": [
        lambda row: row["global"] and row["saturated"],
        lambda row: row["local"] and row["saturated"],
        lambda row: not row["saturated"],
    ],
}


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_outcomes_are_above_and_b1_below(width: float) -> None:
    cells = {(p, k): made(p, k) for p in ("W", "KQ") for k in ("exact", "published")}
    drawing = figure([row for cell in cells.values() for row in cell], width)
    axes = drawing.axes
    assert in_one_column(drawing) == (width == NARROW)
    assert has_readable_panels(drawing, 4 if width == NARROW else 2)
    assert titles(axes) == [
        "training W", "training (K, Q)", "optimal tokens' SVM, Frobenius norm", "optimal tokens' SVM, nuclear norm",
    ]  # fmt: skip
    for at, p in enumerate(("W", "KQ")):
        above, below = all_curves(axes[at]), all_curves(axes[2 + at])
        assert [(one.label, one.style, one.look) for one in above] == [
            ("global", "-", 0), ("", ":", 0), (OUTCOMES[1], "-", 1), ("", ":", 1), ("neither", "-", 2), ("", ":", 2),
        ]  # fmt: skip
        for look in range(3):
            # Error bars stand side by side: a fiftieth of d to either side.
            for k, numerics in enumerate(("exact", "published")):
                values = shares(cells[p, numerics], MEASURES[numerics][look])
                above[2 * look + k].shows(values, percent, 0.02 * (look - 1))
        assert [(one.label, one.style, one.look) for one in below] == list(zip(B1, "---", (3, 4, 5), strict=True))
        for one, field in zip(below, ("b1_slack", "b1_strict", "feasible"), strict=True):
            one.shows(shares(cells[p, "exact"], lambda row, field=field: row[field]), percent)


def test_printed_shares_are_beside_ours() -> None:
    drawing = figure(made("W", "exact") + made("KQ", "exact") + made("KQ", "published"))
    names = ("global", "local, global included", "not local")
    for at, p in enumerate(("W", "KQ")):
        for ax, curves in ((drawing.axes[at], names), (drawing.axes[2 + at], ("B.1 (average margin at most 1.1)",))):
            keys = [curve(f"Fig. {PANELS[p]}, {name}") for name in curves]
            assert printed(ax) == [
                (list(map(float, one.x)), [pytest.approx(100 * value) for value in one.y]) for one in keys
            ]


def test_axes_name_what_they_show() -> None:
    drawing = figure(made("W", "exact"))
    axes = drawing.axes
    assert heading(axes) == "Selections reached by training, n = 5, T = 5, score gap at least 0.1"
    for ax in axes:
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("dimension d", "share of trials (%)")
        assert ax.get_ylim() == pytest.approx((-3, 103))
        assert ax.get_xscale() == "log"
        assert list(ticks(ax.xaxis).items()) == [(2, "2"), (3, "3"), (10, "10")]
    assert sorted(legend_words(axes)) == sorted(
        [*OUTCOMES, *B1, "ours, 95 % interval", "published", "published arithmetic and stopping"]
    )


def test_published_runs_alone_are_dotted_and_have_no_b1() -> None:
    axes = figure(made("KQ", "published")).axes
    assert [[one.style for one in all_curves(ax)] for ax in axes] == [[], [":", ":", ":"], [], []]
    assert not any(printed(ax) for ax in axes)


def test_one_trial_can_be_drawn() -> None:
    (one, *_) = made("W", "exact")
    axes = figure([one]).axes
    assert [len(all_curves(ax)) for ax in axes] == [3, 0, 3, 0]
    assert len(printed(axes[0])) == 3


@pytest.mark.parametrize("size", [{"n": 4}, {"T": 6}])
def test_other_sizes_have_no_printed_curve(size: dict[str, int]) -> None:
    axes = figure(made("W", "exact", **size)).axes
    assert [len(all_curves(ax)) for ax in axes] == [3, 0, 3, 0]
    assert not any(printed(ax) for ax in axes)
    n, T = size.get("n", 5), size.get("T", 5)
    assert heading(axes) == f"Selections reached by training, n = {n}, T = {T}, score gap at least 0.1"
