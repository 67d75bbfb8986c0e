"""The figure of the ReLU head: distances along training, draws, what becomes of them, and the masking threshold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb

from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.figures.multi_token_figure import figure
from attsvm_paper.judging.estimates import Estimate, estimate, share_estimate
from attsvm_paper.judging.verdict import Row
from attsvm_paper.plots.experiments import SERIES, percent
from attsvm_paper.published.ledger import curve
from drawn import all_curves, has_readable_panels, heading, legend_words, printed, printed_lie_below, ticks, titles
from relu_rows import NAMES, STEP, accepted, row, upper

# Nine, ten, ten and twelve draws lie below 1e-9, 1e-8, 1e-7 and 1e-6.
MASKED = (0.0, *(10.0**-12.5,) * 8, 10.0**-8.5, 10.0**-6.5, 10.0**-6.5)


def draws(d: int, **other: Any) -> list[Row]:
    """Twelve accepted draws, two undecided, five finite and an infeasible one."""
    cell = [accepted(seed, d, 0.1 + 0.01 * seed**1.5, masked, **other) for seed, masked in enumerate(MASKED)]
    states = ["undecided"] * 2 + ["finite"] * 5 + ["infeasible"]
    return cell + [row(seed, d, state, **other) for seed, state in enumerate(states, start=12)]


def exact_draws(d: int) -> list[Row]:
    return [accepted(seed, d, 0.3 + 0.1 * seed, numerics="exact") for seed in range(3)]


def along_training(cell: Sequence[Row], name: str) -> dict[Any, Estimate]:
    courses = [one[name] for one in cell if one["state"] == "accepted"]
    return {step: estimate([one[at] for one in courses], "bootstrap", 400) for at, step in enumerate(STEP)}


def clouds(ax: Axes) -> dict[str, np.ndarray]:
    """Points (k, 2) of each scatter."""
    labelled = {str(one.get_label()): np.asarray(one.get_offsets(), dtype=float) for one in ax.collections}
    return {label: points for label, points in labelled.items() if not label.startswith("_")}


def whole(key: str) -> tuple[list[float], list[float]]:
    """Return a printed curve as it is drawn: from its first step on, iteration k as W after k + 1 steps."""
    x, y = (np.array(part, dtype=float) for part in curve(key).line_points)
    return (x[x > 0] + 1).tolist(), y[x > 0].tolist()


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_distances_are_drawn_over_the_printed_ones(width: float) -> None:
    rows = [*draws(4), *draws(6), *exact_draws(6), accepted(40, 4, numerics="exact")]
    picture = figure(rows, width)
    axes = picture.axes
    assert titles(axes) == [
        "accepted draws, d = 4", "accepted draws, d = 6", "SVM equivalent by draw, d = 4",
        "SVM equivalent by draw, d = 6", "what becomes of a draw", "SVM equivalent by threshold",
    ]  # fmt: skip
    assert has_readable_panels(picture, 3 if width == WIDE else 6)
    assert heading(axes) == "Several tokens under a ReLU head, n = 3, T = 4, 2000 normalised steps"
    words = ["SVM equivalent", "max-margin part", "SVM of the top tokens"]
    for ax, d in zip(axes, (4, 6), strict=False):
        ours = all_curves(ax)
        # One trial in exact arithmetic has no interval and is left out.
        cells = [draws(4)] if d == 4 else [draws(6), exact_draws(6)]
        assert [(one.label, one.style) for one in ours] == [
            *((label, "-") for label in words), *(("", ":") for _ in words if d == 6),
        ]  # fmt: skip
        for one, (cell, name) in zip(ours, [(cell, name) for cell in cells for name in NAMES], strict=True):
            one.shows(along_training(cell, name))
        assert len({one.look for one in ours}) == 3
        assert printed(ax) == [whole(upper(d, name)) for name in NAMES]
        assert printed_lie_below(ax)
        assert (ax.get_xscale(), ax.get_yscale(), ax.get_ylim()) == ("linear", "log", (2e-3, 1))
        low, high = ax.get_xlim()
        # From the first printed iteration to the last.
        assert 0 < low < 101 < 2001 < high < 2200
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("training step", "mean 1 - correlation")
    legend = legend_words(axes)
    assert len(legend) == 8
    assert set(legend) == {
        *words, "ours, 95 % interval", "published", "ours, exact arithmetic", "published draw", "accepted draw of ours",
    }  # fmt: skip


def test_draws_are_drawn_over_the_printed_ones() -> None:
    """A probability of zero stands at the left edge."""
    axes = figure([*draws(4), *draws(10)]).axes
    for ax, d in zip(axes[2:4], (4, 10), strict=True):
        scatter = curve(f"Fig. 8 lower: d={d}").scatter
        assert scatter is not None
        theirs, ours = clouds(ax)["published draw"], clouds(ax)["accepted draw of ours"]
        np.testing.assert_allclose(theirs, np.stack([np.array(scatter["x"]), 10 ** np.array(scatter["y"])], axis=1))
        ends = [(0.1 + 0.01 * seed**1.5) / 7 for seed in range(12)]
        np.testing.assert_allclose(ours, np.transpose([[-17.4, *np.log10(MASKED[1:])], ends]))
        low, high = ax.get_xlim()
        assert -18 < low < -17.4
        assert -6 < high < -5.5
        assert (ax.get_yscale(), ax.get_ylim()) == ("log", (1e-4, 1))
        assert ax.get_xlabel() == "log10 of the largest masked probability"
        assert ax.get_ylabel() == "1 - correlation"
        (faces,) = (one.get_facecolor() for one in ax.collections if one.get_label() == "accepted draw of ours")
        *colour, opacity = np.asarray(faces, dtype=float)[0]
        # Draws have the colour of the means of the same distance, and can be seen where they lie on others.
        assert tuple(colour) == to_rgb(SERIES[all_curves(axes[0])[0].look][0])
        assert 0.3 < opacity < 1
        (rings,) = (one for one in ax.collections if one.get_label() == "published draw")
        assert isinstance(rings, PathCollection)
        # A ring is open: its line is thinner than its radius.
        assert np.asarray(rings.get_linewidth())[0] < np.sqrt(rings.get_sizes()[0]) / 2
        # A thousand points are one image in a PDF.
        assert all(one.get_rasterized() for one in ax.collections)


def test_the_fates_of_draws_are_drawn_in_percent() -> None:
    """Of twenty draws twelve, two and five; of d = 6 all are accepted."""
    only = [accepted(seed, 6) for seed in range(4)]
    ax = figure([*draws(4), *only]).axes[4]
    ours = {one.label: one for one in all_curves(ax)}
    assert list(ours) == ["accepted", "undecided", "finite"]
    for (state, one), hits, rest in zip(ours.items(), (12, 2, 5), (4, 0, 0), strict=True):
        one.shows({4: share_estimate(hits, 20), 6: share_estimate(rest, 4)}, percent)
        assert one.y[0] == pytest.approx(5 * hits), state
    low, high = ax.get_ylim()
    # All and none of the draws are inside.
    assert -5 < low < 0
    assert 100 < high < 105
    assert (ax.get_xscale(), list(ticks(ax.xaxis).items())) == ("linear", [(4.0, "4"), (6.0, "6")])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("dimension d", "share of draws (%)")
    inside = ax.get_legend()
    assert inside is not None
    assert [text.get_text() for text in inside.get_texts()] == list(ours)


def test_thresholds_below_which_ten_draws_lie_are_drawn() -> None:
    ax = figure([*draws(4), *draws(8)]).axes[5]
    ends = [(0.1 + 0.01 * seed**1.5) / 7 for seed in range(12)]
    for one, d in zip(all_curves(ax), (4, 8), strict=True):
        assert (one.label, one.style) == (f"d = {d}", "-")
        one.shows({t: estimate(ends[:count], "bootstrap") for t, count in ((-8, 10), (-7, 10), (-6, 12))})
    theirs = [curve(f"Fig. 11b: d={d}") for d in (4, 8)]
    assert printed(ax) == [(list(map(float, one.x)), list(one.y)) for one in theirs]
    assert ax.get_yscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("log10 of the masking threshold", "mean 1 - correlation")
    assert len({one.look for one in all_curves(ax)}) == 2


def test_exact_training_alone_is_drawn_as_lines_without_the_printed_ones() -> None:
    axes = figure(exact_draws(4)).axes
    assert titles(axes)[:2] == ["accepted draws, d = 4", "SVM equivalent by draw, d = 4"]
    assert [one.style for one in all_curves(axes[0])] == ["-"] * 3
    assert printed(axes[0]) == []
    assert list(clouds(axes[1])) == ["accepted draw of ours"]


@pytest.mark.parametrize("other", [{"n": 2}, {"T": 5}, {"d": 5}])
def test_another_size_is_drawn_alone(other: dict[str, Any]) -> None:
    rows = [one | other for one in draws(4)]
    axes = figure(rows).axes
    assert [len(all_curves(ax)) for ax in axes] == [3, 0, 3, 1]
    assert not any(printed(ax) for ax in axes)
    assert list(clouds(axes[1])) == ["accepted draw of ours"]
    assert f"n = {rows[0]['n']}, T = {rows[0]['T']}," in heading(axes)


def test_panels_without_a_dimension_are_removed() -> None:
    axes = figure([one for d in (4, 6, 8) for one in (accepted(0, d), accepted(1, d))]).axes
    assert titles(axes) == [
        *(f"accepted draws, d = {d}" for d in (4, 6, 8)), *(f"SVM equivalent by draw, d = {d}" for d in (4, 6, 8)),
        "what becomes of a draw", "SVM equivalent by threshold",
    ]  # fmt: skip
    # Two draws are enough for a mean, and too few for a threshold.
    assert [len(all_curves(ax)) for ax in axes[:3]] == [3, 3, 3]
    assert all(one.x == [] for one in all_curves(axes[-1]))


@pytest.mark.parametrize("only", [accepted(0), row(0, state="finite")])
def test_a_single_draw_has_no_mean(only: Row) -> None:
    axes = figure([only]).axes
    assert all_curves(axes[0]) == []
    assert ("accepted draw of ours" in clouds(axes[1])) == (only["state"] == "accepted")
