"""Basins: what the verdicts say of hand-made rows, and what the figure shows of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.beyond.basins import PICTURES, REACH, figure
from attsvm_paper.beyond.basins import verdicts as verdicts_of
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.statistics import wilson_interval
from attsvm_paper.judging.verdict import Row
from attsvm_paper.plots.experiments import SERIES


def row_of(d: int, local: int, shares: list[float], realisable: int = 18, **other: Any) -> Row:
    return {
        "d": d, "grid": 0, "steps": 2000, "selections": 27, "realisable": realisable, "local": local,
        "feasible": True, "infeasible": False, "to_global": shares, "to_none": [0.0, 0.0, 0.25],
        "zero_global": shares[0] == 1, "reached": local, "trial": 0,
    } | other  # fmt: skip


def picture(trial: int, plane: list[int] | None, best: int = 1, grid: int = 2) -> Row:
    row = row_of(2, 3, [0.0], trial=trial, best=best, plane=plane)
    return {name: row[name] for name in row if name not in ("to_global", "to_none", "zero_global", "reached")} | {
        "grid": grid
    }


MISSING = {"feasible": False, "infeasible": True}
ROWS = [
    row_of(2, 4, [0.5, 0.25, 0.0], 9, reached=3),
    row_of(2, 2, [1.0, 0.75, 0.5], to_none=[0.0, 0.5, 0.5]),
    row_of(2, 1, [0.0, 0.0, 0.0], 0, **MISSING),
    row_of(16, 1, [1.0, 1.0, 1.0], 27),
    row_of(16, 2, [1.0, 0.5, 0.5], 27, reached=1),
    row_of(4, 2, [0.5, 0.5, 0.25]),
    row_of(4, 1, [0.75, 0.5, 0.25]),
]
PLANES = [picture(3, [0, 1, 2, -1]), picture(4, None), picture(5, [0, 0, 1, 1], 0), picture(6, [4, 9, 1, 1])]
LOCAL, ZERO = "locally optimal directions, d={}", "zero start reaches the global direction, d={}"
STARTS = "share of starts that reach the global direction, |W(0)|={}, d={}"


def test_verdicts_state_directions_and_basins_by_dimension_and_distance() -> None:
    found = verdicts_of(ROWS + PLANES)
    assert [one.quantity for one in found] == [
        *(
            text
            for d in (2, 4, 16)
            for text in (LOCAL.format(d), *(STARTS.format(at, d) for at in ("0.1", "2", "20")), ZERO.format(d))
        ),
        "instances with one locally optimal direction only, d=16",
    ]
    local, *near, zero = found[:5]
    ours = estimate([4, 2, 1], "bootstrap")
    assert (local.measured, local.low, local.high) == pytest.approx((7 / 3, ours.low, ours.high))
    assert (local.trials, local.infeasible) == (3, 1)
    # By hand: 9, 18 and none of 27 selections, and 3, 2 and 1 directions.
    assert local.note == "Of 27 selections 9.0 are realisable on average; starts reached 2.00 directions."
    assert [one.measured for one in near] == [0.75, 0.5, 0.25]
    ours = estimate([0.25, 0.75], "bootstrap")
    assert (near[1].low, near[1].high) == (ours.low, ours.high)
    assert [(one.trials, one.infeasible) for one in near] == [(3, 1)] * 3
    assert [one.note for one in near] == [
        f"{share} reach no local direction within 2000 steps." for share in ("0.0%", "25.0%", "37.5%")
    ]
    assert (zero.measured, (zero.low, zero.high)) == (0.5, wilson_interval(1, 2))
    assert (zero.trials, zero.infeasible, zero.note) == (3, 1, "")
    last = found[-1]
    assert (last.measured, (last.low, last.high), last.trials) == (0.5, wilson_interval(1, 2), 2)
    assert last.note == (
        "From d = 2 to 16 the mean number of local directions goes from 2.33 to 1.50, and the share of starts at "
        "distance 0.1 / 20 that reach the global one from 0.75 / 0.25 to 1.00 / 0.75."
    )


def test_without_a_feasible_instance_only_directions_are_counted() -> None:
    found = verdicts_of([row_of(2, 1, [0.0] * 3, **MISSING), *ROWS[3:5]])
    assert [one.quantity for one in found][:2] == [LOCAL.format(2), LOCAL.format(16)]
    # One dimension with basins is compared with no other.
    assert found[-1].quantity == ZERO.format(16)
    assert verdicts_of(ROWS[:5])[-1].note.startswith("From d = 2 to 16 the mean number")
    assert verdicts_of(PLANES) == verdicts_of([]) == []


def points(ax: Any) -> dict[str, dict[float, float]]:
    """The plotted points by label."""
    return {bars.get_label(): dict(zip(*bars.lines[0].get_data(), strict=True)) for bars in ax.containers}


def close(found: dict[float, float], expected: dict[float, float]) -> None:
    assert list(found) == pytest.approx(list(expected))
    assert list(found.values()) == pytest.approx(list(expected.values()))


@pytest.mark.parametrize(("width", "shape"), [(WIDE, (2, 3)), (NARROW, (6, 1))])
def test_the_figure_has_curves_over_the_dimension_and_planes_of_starts(width: float, shape: tuple[int, int]) -> None:
    result = figure(ROWS + PLANES, width)
    axes: Any = result.axes
    assert axes[0].get_subplotspec().get_gridspec().get_geometry() == shape
    assert all(ax.get_visible() for ax in axes)
    assert [ax.get_title("left") or ax.get_title() for ax in axes] == [
        "locally optimal directions", "share that ends globally", "share realisable",
        "trial 3: 3 directions", "trial 5: 3 directions", "trial 6: 3 directions",
    ]  # fmt: skip
    for ax in axes[:3]:
        assert ax.get_xlabel() == "dimension d"
        assert ax.get_xscale() == "log"
        assert [tick.get_text() for tick in ax.get_xticklabels()] == ["2", "4", "16"]
    (label,) = points(axes[0])
    assert label == "mean over instances"
    close(points(axes[0])[label], {2: 7 / 3, 4: 1.5, 16: 1.5})
    close(points(axes[2])[label], {2: 1 / 3, 4: 2 / 3, 16: 1})
    # Error bars of the three distances lie side by side.
    found = points(axes[1])
    values = {"0.1": (0.75, 0.625, 1.0), "2": (0.5, 0.5, 0.75), "20": (0.25, 0.25, 0.75)}
    assert list(found) == [f"starts at |W(0)| = {scale}" for scale in values]
    for one, (scale, shares) in zip((0.98, 1.0, 1.02), values.items(), strict=True):
        xs = (2 * one, 4 * one, 16 * one)
        close(found[f"starts at |W(0)| = {scale}"], dict(zip(xs, shares, strict=True)))
    looks = [bars.lines[0].get_color() for ax in axes[:2] for bars in ax.containers]
    assert looks == [color for color, _ in SERIES[:4]]
    legend = [text.get_text() for text in result.legends[0].get_texts()]
    assert legend == [
        "mean over instances", *found, "ends globally", "another local direction (other colours: others)",
    ]  # fmt: skip


def test_the_global_direction_has_the_first_colour_and_no_direction_is_grey() -> None:
    """Of a plane row by row, from below; five colours serve the directions that are not the global one."""
    axes: Any = figure(PLANES).axes
    first, others = SERIES[0][0], [color for color, _ in SERIES[1:]]
    assert len(others) == 5
    expected = [
        [others[0], first, others[2], "#e8e8e8"],
        [first, first, others[1], others[1]],
        [others[4], others[4], first, first],
    ]
    assert len(expected) == PICTURES
    for ax, colors in zip(axes, expected, strict=True):
        (image,) = ax.get_images()
        np.testing.assert_allclose(np.asarray(image.get_array()).reshape(-1, 3), [to_rgb(color) for color in colors])
        assert image.get_extent() == [-REACH, REACH, -REACH, REACH]
        assert image.origin == "lower"
        assert ax.get_xlabel() == "W(0) along the shortest"
        assert ax.get_ylabel() == "and across it"
    marks = {line.get_label(): line.get_color() for line in axes[-1].get_lines()}
    assert marks == {"ends globally": first, "another local direction (other colours: others)": others[0]}


@pytest.mark.parametrize(("rows", "width", "shape", "visible"), [
    (ROWS[:1], WIDE, (1, 3), 3),
    (ROWS[:1], NARROW, (3, 1), 3),
    (ROWS[:2] + PLANES[:1], WIDE, (2, 3), 4),
    (PLANES[:1], WIDE, (1, 1), 1),
    (PLANES[:1] + PLANES[2:3], NARROW, (2, 1), 2),
    ([PLANES[1]], WIDE, (1, 1), 0),
])  # fmt: skip
def test_panels_without_content_are_hidden(rows: list[Row], width: float, shape: tuple[int, int], visible: int) -> None:
    result: Any = figure(rows, width)
    assert result.axes[0].get_subplotspec().get_gridspec().get_geometry() == shape
    assert [ax.get_visible() for ax in result.axes] == [at < visible for at in range(shape[0] * shape[1])]
    assert len(result.legends) == (visible > 0)


def test_intervals_of_a_single_trial_end_at_zero_and_far_above() -> None:
    def ends(ax: Any) -> np.ndarray:
        return ax.containers[0].lines[2][0].get_segments()[0][:, 1]

    axes: Any = figure(ROWS[:1]).axes
    np.testing.assert_allclose(ends(axes[0]), [0, 1e6])
    # Of several trials the interval is that of the verdicts.
    first, *_ = verdicts_of(ROWS)
    np.testing.assert_allclose(ends(figure(ROWS).axes[0]), [first.low, first.high])


def test_a_dimension_without_a_feasible_instance_has_no_basins() -> None:
    axes: Any = figure([row_of(2, 1, [0.0] * 3, **MISSING), *ROWS[3:5]]).axes
    assert [x for one in points(axes[1]).values() for x in one] == pytest.approx([0.98 * 16, 16, 1.02 * 16])
    assert not figure([row_of(2, 1, [0.0] * 3, **MISSING)]).axes[1].containers
