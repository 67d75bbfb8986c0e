"""The figure of the concave head: counts, distances and the constraint on tau, over the printed curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.figures.lambda_figure import figure
from attsvm_paper.judging.estimates import Estimate, estimate, share_estimate
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.ledger import curve
from concave_rows import NAMES, STEP, bounded, course, row
from drawn import (
    Curve,
    all_curves,
    bands,
    has_readable_panels,
    heading,
    legend_words,
    printed,
    printed_lie_below,
    titles,
)

TITLES = [
    "how many tokens survive", r"distance from the SVM, by $\lambda$", "distance from the SVM, by tokens kept",
    r"$\lambda$ under the constraint on $\tau$", r"tokens under the constraint on $\tau$",
    "how many tokens survive, by constraint",
]  # fmt: skip


def runs(lam: float, counts: Sequence[int], **other: Any) -> list[Row]:
    """Return runs that mask one token, more than the filter allows in every third, and the last of them nothing."""
    cell = [
        row(
            seed, lam, count=count, masked=1e-4 if seed % 3 == 0 else 1e-6, equivalent=course(0.1 + 0.05 * seed**1.5),
            mm=course(0.2 + 0.1 * seed**1.5), **other,
        )
        for seed, count in enumerate(counts)
    ]  # fmt: skip
    return [*cell, row(len(counts), lam, count=10, **other)]


ROWS = [
    *runs(0.0, (1, 1, 2, 1)), *runs(0.2, (2, 3, 2, 5)), *runs(1.2, (9, 9, 5, 9, 5)), row(0, 0.6, count=4),
    *runs(0.2, (9, 9, 9), numerics="published"),
    *(row(seed, lam, numerics="lemma", lemma=lemma) for lam in (0.2, 2.8) for seed, lemma in enumerate((3, 4, 8))),
    row(0, 3.0, numerics="lemma", lemma=9),
    *(bounded(seed, 3, lemma, 0.3 + 0.1 * seed) for seed, lemma in enumerate((2, 3, 3, 2, 3))),
    *(bounded(seed, 4, lemma, 0.5 + 0.1 * seed) for seed, lemma in enumerate((2, 4, 4))),
    *(bounded(seed, 9, lemma, 0.7 + 0.1 * seed) for seed, lemma in enumerate((2, 9, 6))),
]  # fmt: skip
EXACT = [one for one in ROWS if one["numerics"] == "exact"]


def means(values: dict[Any, Sequence[float]]) -> dict[Any, Estimate]:
    return {x: estimate(part, "mean") for x, part in values.items()}


def counts_at(keep: Callable[[Row], bool]) -> dict[Any, Sequence[float]]:
    return {lam: [one["count"] for one in EXACT if one["lam"] == lam and keep(one)] for lam in (0.0, 0.2, 1.2)}


def along_training(cell: Sequence[Row], name: str) -> dict[Any, Estimate]:
    courses = [one[name] for one in cell if one[name] is not None]
    return {step: estimate([one[at] for one in courses], "bootstrap", 400) for at, step in enumerate(STEP)}


def drawn(ax: Axes) -> list[tuple[str, str]]:
    return [(one.label, one.style) for one in all_curves(ax)]


def check_printed(ax: Axes, keys: Sequence[str]) -> None:
    """Compare the dashed lines of training with the whole printed curves; iteration k is W after k + 1 steps."""
    expected = []
    for key in keys:
        x, y = (np.array(part, dtype=float) for part in curve(key).line_points)
        expected.append(((x[x > 0] + 1).tolist(), y[x > 0].tolist()))
    assert printed(ax) == expected


def check_band(ax: Axes, key: str) -> None:
    line = curve(key)
    x, y = line.line_points
    assert line.band is not None
    assert printed(ax)[0] == (list(map(float, x)), list(map(float, y)))
    edges = [(at, middle - sd, middle + sd) for at, middle, sd in zip(x, y, line.band, strict=True)]
    np.testing.assert_allclose(bands(ax)[0], edges)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_counts_are_drawn_with_and_without_the_filter_and_for_lemma_6(width: float) -> None:
    picture = figure(ROWS, width)
    axes = picture.axes
    assert titles(axes) == TITLES
    assert has_readable_panels(picture, 3 if width == WIDE else 6)
    whole, filtered, lemma = all_curves(axes[0])
    assert [(one.label, one.style) for one in (whole, filtered, lemma)] == [
        ("all trials", "-"), ("without outputs in (7e-5, 1e-3]", ":"), ("sparsemax (Lemma 6)", "-"),
    ]  # fmt: skip
    whole.shows(means(counts_at(lambda _: True)))
    filtered.shows(means(counts_at(lambda one: one["masked"] != 1e-4)))
    # A single trial has no interval and is left out.
    lemma.shows(means({0.2: [3, 4, 8], 2.8: [3, 4, 8]}))
    check_band(axes[0], "Fig. 9a: selected tokens")
    assert axes[0].get_ylim() == (0, 10.7)
    assert (axes[0].get_xlabel(), axes[0].get_ylabel()) == (r"$\lambda$", "mean number of tokens")
    assert len({whole.look, filtered.look, lemma.look}) == 3
    assert heading(axes) == (
        r"Head $v^\top\!x-\lambda\|x\|^2$ on one sequence of 10 orthonormal tokens, normalised descent"
    )


def test_distances_are_drawn_by_lambda_and_by_number_of_tokens() -> None:
    axes = figure(ROWS).axes
    by_lambda, by_tokens = all_curves(axes[1]), all_curves(axes[2])
    assert drawn(axes[1]) == [(r"$\lambda$ = 0", "-"), ("", ":"), (r"$\lambda$ = 0.2", "-"), ("", ":")]
    words = ("1 token", "2 tokens", "5 tokens", "9 tokens")
    assert drawn(axes[2]) == [pair for count in words for pair in ((count, "-"), ("", ":"))]
    pairs: list[tuple[list[Curve], str, Sequence[float]]] = [
        (by_lambda, "lam", (0.0, 0.2)),
        (by_tokens, "count", (1, 2, 5, 9)),
    ]
    for ours, field, values in pairs:
        cells = [[one for one in EXACT if one[field] == value] for value in values]
        for one, (cell, name) in zip(ours, [(cell, name) for cell in cells for name in NAMES], strict=True):
            one.shows(along_training(cell, name))
        assert len({one.look for one in ours}) == len(values)
    kinds = ("W^SVMeq", "W^mm")
    check_printed(axes[1], [f"Fig. 9b: lambda={lam}, {kind}" for lam in (0, 0.2) for kind in kinds])
    check_printed(axes[2], [f"Fig. 9c: {count} selected, {kind}" for count in (1, 2, 5, 9) for kind in kinds])
    for ax in axes[1:3]:
        assert printed_lie_below(ax)
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        low, high = ax.get_xlim()
        # From the first record that is printed to the last, iteration 5,000.
        assert 1 < low < 101 < 5001 < high < 6000
        assert ax.get_ylim() == (4e-3, 1)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("training step", "mean 1 - correlation")
        inside = ax.get_legend()
        assert inside is not None
        assert [text.get_text() for text in inside.get_texts()] == [label for label, _ in drawn(ax) if label]


def test_the_constraint_on_tau_is_drawn_with_its_distributions() -> None:
    axes = figure(ROWS).axes
    for ax, field, label, key in (
        (axes[3], "drawn", r"$\lambda$ drawn uniformly", "Fig. 12a: lambda"),
        (axes[4], "lemma", "sparsemax (Lemma 6)", "Fig. 12b: selected tokens"),
    ):
        (ours,) = all_curves(ax)
        assert ours.label == label
        ours.shows(means({tau: [one[field] for one in ROWS if one["tau"] == tau] for tau in (3, 4, 9)}))
        check_band(ax, key)
        assert ax.get_xlabel() == r"$\tau$ of Lemma 6"
    # One legend serves these panels: what Lemma 6 keeps looks the same in two of them, and lambda like nothing else.
    assert all_curves(axes[4])[0].look == all_curves(axes[0])[2].look
    assert all_curves(axes[3])[0].look not in {one.look for one in all_curves(axes[0])}
    assert (axes[3].get_ylabel(), axes[4].get_ylabel()) == (r"mean $\lambda$", "mean number of tokens")
    assert drawn(axes[5]) == [(r"$\tau$ = 3", "-"), (r"$\tau$ = 9", "-")]
    for ours, counts in zip(all_curves(axes[5]), ((2, 3, 3, 2, 3), (2, 9, 6)), strict=True):
        ours.shows({number: share_estimate(counts.count(number), len(counts)) for number in range(2, 10)})
    # The distribution at tau 4 is not printed.
    lines_of = [curve(f"Fig. 12c: tau={tau}") for tau in (3, 9)]
    assert printed(axes[5]) == [(list(map(float, one.x)), list(one.y)) for one in lines_of]
    assert (axes[5].get_xlabel(), axes[5].get_ylabel()) == ("number of tokens kept", "share of trials")
    words = legend_words(axes)
    assert len(words) == 8
    assert set(words) == {
        "all trials", "without outputs in (7e-5, 1e-3]", "sparsemax (Lemma 6)", r"$\lambda$ drawn uniformly",
        "ours, 95 % interval", "published", "published ± one standard deviation", "ours filtered; with the margin part",
    }  # fmt: skip


@pytest.mark.parametrize("other", [{"T": 6}, {"d": 12}])
def test_another_size_is_drawn_alone(other: dict[str, Any]) -> None:
    rows = [one | other for one in ROWS]
    axes = figure(rows).axes
    for ax in axes:
        assert printed(ax) == []
        assert not bands(ax)
    assert [len(all_curves(ax)) for ax in axes] == [3, 4, 0, 1, 1, 2]
    assert axes[2].get_legend() is None
    assert axes[0].get_ylim() == (0, rows[0]["T"] + 0.7)
    assert f"one sequence of {rows[0]['T']} orthonormal" in heading(axes)


def test_published_arithmetic_is_drawn_where_there_is_no_other() -> None:
    axes = figure([one for one in ROWS if one["numerics"] == "published"]).axes
    assert drawn(axes[1]) == [(r"$\lambda$ = 0.2", "-"), ("", ":")]
    assert [len(all_curves(ax)) for ax in axes] == [0, 2, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "rows",
    [
        [row(0, 0.2, equivalent=course(0.2))],
        [row(seed, 0.2, step=[], equivalent=[], mm=[], count=2) for seed in range(3)],
        [bounded(0, 3, None, None)],
    ],
)
def test_rows_that_have_no_mean_leave_their_panels_empty(rows: list[Row]) -> None:
    """One trial has no interval, a run of no steps no record, and a tau without gaps no draw."""
    axes = figure(rows).axes
    assert len(axes) == 6
    assert not any(all_curves(ax) for ax in axes[1:5])


def test_two_trials_are_enough_for_a_mean() -> None:
    axes = figure([row(seed, 0.2, count=2 + seed, equivalent=course(0.2 + seed)) for seed in range(2)]).axes
    assert [one.x for one in all_curves(axes[0])] == [[0.2], [0.2]]
    assert len(all_curves(axes[1])) == 1


def test_rows_under_the_constraint_are_no_runs_in_any_arithmetic() -> None:
    """All cells have a tau after --set tau=3."""
    axes = figure([bounded(seed, 3, 2, 0.3 + 0.1 * seed, numerics="exact") for seed in range(3)]).axes
    assert [len(all_curves(ax)) for ax in axes] == [0, 0, 0, 1, 1, 1]
