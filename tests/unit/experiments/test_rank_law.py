"""The rank of the nuclear SVM: settings, bounds, rows by another route, verdicts and curves from rows made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from attsvm import Status, correlation, solve, train
from attsvm.plots.style import FIRST, NARROW, SECOND, WIDE
from attsvm_paper.beyond import rank_law
from attsvm_paper.beyond.power_law import exponents
from attsvm_paper.beyond.rank_law import Config, axes_of, bounds, figure, fitted, least, most, sweep, trials
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.statistics import wilson_interval
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.published.instances import draw, start_seeds
from drawn import columns_of, curves, panel_height, place, ticks


def test_three_axes_cross_in_one_point() -> None:
    full = Config(20, 5, 40, 4000, 40)
    cells = [replace(full, n=n) for n in (5, 10, 20, 50, 100, 200)]
    cells += [replace(full, T=T) for T in (2, 10, 20, 50)] + [replace(full, d=d) for d in (10, 20, 80, 160)]
    assert sweep("full") == cells
    small = [replace(one, steps=2000, trials=6) for one in cells if one.n <= 100 and one.T <= 20 and one.d <= 80]
    assert sweep("quick") == small


@pytest.mark.parametrize("change", [{"n": 0}, {"T": 1}, {"d": 0}])
def test_impossible_sizes_are_refused(change: dict[str, int]) -> None:
    smallest = {"n": 1, "T": 2, "d": 1}
    assert Config(**smallest).steps == 4000
    with pytest.raises(ValueError, match="at least 1, 2 and 1 were expected"):
        Config(**smallest | change)


@pytest.mark.parametrize("size", [(6, 4, 4), (3, 3, 2)])
def test_ranks_are_those_of_the_certified_solutions_and_of_trained_factors(size: tuple[int, int, int]) -> None:
    seeds = np.array([1, 2, 4])
    rows = trials(Config(*size, steps=60), seeds)
    instances = draw(seeds, *size)
    trace = train(instances.data, instances.v, parameterization="KQ", steps=60, seed=start_seeds(seeds))
    for b, row in enumerate(rows):
        best = solve(instances.problems(instances.optimal)[b], "nuclear", tol=1e-12)
        W = np.asarray(trace.W)[b, -1]
        tokens, queries = instances.data.tokens[b], instances.data.queries[b]
        selected = np.einsum("ntd,de,ne->nt", tokens, W, queries).argmax(-1)
        own = solve(instances.problems(np.stack([selected] * 3))[b], "nuclear", tol=1e-12)
        # A singular value counts from a fiftieth of the largest.
        sigma = np.sqrt(np.maximum(np.linalg.eigvalsh(W.T @ W), 0))
        assert row == {
            "seed": seeds[b],
            "infeasible": False,
            "certified": True,
            "rank": np.linalg.matrix_rank(np.asarray(best.W), tol=1e-6),
            "active": (np.asarray(best.margins)[best.problem.rejected] < 1 + 1e-6).sum(),
            "trained_rank": (sigma > sigma.max() / 50).sum(),
            "own_rank": np.linalg.matrix_rank(np.asarray(own.W), tol=1e-6),
            "error": pytest.approx(1 - float(correlation(W, np.asarray(own.W))), rel=1e-6),
        }


def test_a_run_of_no_steps_has_rank_zero() -> None:
    """The product of K and Q starts at zero."""
    (row,) = trials(Config(3, 3, 4, steps=0), [1])
    assert (row["trained_rank"], row["error"]) == (0, 1)
    assert row["own_rank"] > 0


def test_an_instance_without_an_svm_has_the_rank_of_training_only() -> None:
    seed = 0
    instances = draw([seed], 2, 3, 1)
    assert solve(instances.problems(instances.optimal)[0], "nuclear").status is Status.INFEASIBLE
    (row,) = trials(Config(2, 3, 1, steps=60), [seed])
    assert (row["infeasible"], row["certified"], row["rank"], row["active"]) == (True, False, None, None)


def test_the_largest_rank_is_that_of_a_face() -> None:
    for active in range(1, 80):
        assert most(active) == max(r for r in range(20) if r * (r + 1) / 2 <= active)


@pytest.mark.parametrize(("p", "q"), [(5, 3), (3, 5), (1, 4), (4, 4), (2, 2)])
def test_the_least_rank_has_a_tangent_space_for_all_active_constraints(p: int, q: int) -> None:
    for active in range(1, p * q + 3):
        fits = [r for r in range(1, min(p, q)) if r * (p + q - r) >= active]
        assert least(active, p, q) == (min(fits) if fits else min(p, q))


@pytest.mark.parametrize(
    ("n", "T", "d", "active", "expected"),
    [
        # p = 8 differences and q = 2 queries: one rank has 9 dimensions, and 3 constraints allow rank 2.
        (2, 5, 40, 3, (1, 2)),
        (2, 5, 40, 2, (1, 1)),
        # The rank is at most q = 2, though 10 constraints allow 4.
        (2, 5, 40, 10, (2, 2)),
        # p = 32, q = 8: rank 1 has 39 dimensions, rank 2 has 76.
        (8, 5, 40, 60, (2, 8)),
        # p = q = 3 dimensions: rank 1 has 5, rank 2 has 8.
        (8, 5, 3, 6, (2, 3)),
        (8, 5, 3, 5, (1, 2)),
    ],
)
def test_bounds_follow_from_the_spanned_dimensions(n: int, T: int, d: int, active: int, expected: Any) -> None:
    assert bounds({"n": n, "T": T, "d": d, "active": active}) == expected


def made(n: int, T: int, d: int, rank: int | None, active: int | None = None, **fields: Any) -> Row:
    """Make a certified row, or one that is neither certified nor infeasible."""
    plain = {"n": n, "T": T, "d": d, "seed": 1, "steps": 70, "infeasible": False, "certified": rank is not None}
    plain |= {"rank": rank, "active": active, "trained_rank": None, "own_rank": None, "error": None}
    return plain | fields


def trained(rank: int, own: int, error: float) -> dict[str, Any]:
    return {"trained_rank": rank, "own_rank": own, "error": error}


ROWS = [
    made(8, 5, 40, 2, 5, **trained(3, 2, 1e-3)), made(8, 5, 40, 4, 60, **trained(6, 5, 3e-3)),
    made(8, 5, 40, None, infeasible=True), made(8, 5, 40, None),
    made(2, 5, 40, 1, 2), made(2, 5, 40, 2, 3, **trained(2, 1, 2e-3)),
    # Above the bound: six constraints allow rank 3.
    made(8, 10, 40, 6, 6),
]  # fmt: skip


def verdicts(rows: Sequence[Row]) -> dict[str, Verdict]:
    result = rank_law.verdicts(rows)
    by_quantity = {one.quantity: one for one in result}
    assert len(by_quantity) == len(result)
    assert {one.experiment for one in result} == {"rank-law"}
    return by_quantity


@cache
def judged() -> dict[str, Verdict]:
    """Judge the rows once: an interval takes a thousand fits."""
    return verdicts(ROWS)


def test_an_axis_has_the_cells_that_differ_in_one_size() -> None:
    axes = axes_of(ROWS)
    # Every cell has d = 40.
    assert list(axes) == ["n", "T"]
    assert axes["n"] == ROWS[:6]
    assert axes["T"] == [*ROWS[:4], ROWS[6]]
    # A single cell has one axis.
    assert axes_of(ROWS[:2]) == {"n": ROWS[:2]}
    many = [*ROWS[:4], made(8, 5, 20, 1, 1), made(8, 5, 10, 1, 1), made(2, 5, 20, 1, 1)]
    assert list(axes_of(many)) == ["n", "d"]
    assert axes_of(many)["d"] == many[:6]


def test_a_power_is_fitted_to_means_with_an_interval_over_trials() -> None:
    cells = [(1.0, np.array([1.0, 1.0, 2.0, 4.0])), (4.0, np.array([2.0, 3.0, 7.0])), (16.0, np.array([7.0, 9.0]))]
    value, low, high = fitted(cells)
    # The means 2, 4 and 8.
    assert value == pytest.approx(0.5)
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(1000):
        means = [
            float(np.mean([values[k] for k in rng.integers(len(values), size=len(values))])) for _, values in cells
        ]
        draws.append(exponents(means, [1, 4, 16])[0])
    assert (low, high) == pytest.approx((np.quantile(draws, 0.025), np.quantile(draws, 0.975)))
    assert low < 0.5 < high


def test_certified_ranks_are_counted_between_their_bounds() -> None:
    one = judged()["rank between the bounds that the active constraints set"]
    assert (one.measured, one.trials, one.discarded, one.infeasible) == (4 / 5, 7, 1, 1)
    assert (one.low, one.high) == wilson_interval(4, 5)
    assert one.note == "r(r+1)/2 <= active constraints <= r(p+q-r), in every certified instance counted."
    # A rank below its lower bound is outside too.
    low = verdicts([made(8, 5, 40, 1, 60), made(8, 5, 40, 2, 60)])
    assert low["rank between the bounds that the active constraints set"].measured == 0.5


def test_tightness_is_the_mean_share_of_the_largest_rank() -> None:
    one = judged()["certified rank over the largest r with r(r+1)/2 <= active constraints"]
    # 2 of 2, 4 of 10, 1 of 1, 2 of 2, 6 of 3.
    assert one.measured == pytest.approx(np.mean([1, 0.4, 1, 1, 2]))
    middle = estimate([1, 0.4, 1, 1, 2], "mean")
    assert (one.low, one.high) == pytest.approx((middle.low, middle.high))
    assert (one.trials, one.infeasible, one.discarded) == (7, 1, 1)
    # Of 8, 8, 2, 2, 8 the ranks are 25, 50, 50, 100 and 75 %.
    assert one.note == "Between 0.40 and 2.00 in 5 instances; of min(n, d) the rank is 60% on average."


@pytest.mark.parametrize(
    ("quantity", "cells", "count", "note"),
    [
        ("certified nuclear rank in n", [(2, [1, 2]), (8, [2, 4])], 6,
         "Mean rank grows like n^0.50: n = 2: 1.50, n = 8: 3.00."),
        ("rank of trained (K, Q) in n", [(2, [2]), (8, [3, 6])], 6,
         "Mean rank grows like n^0.58: n = 2: 2.00, n = 8: 4.50."),
        ("certified nuclear rank in T", [(5, [2, 4]), (10, [6])], 5,
         "Mean rank grows like T^1.00: T = 5: 3.00, T = 10: 6.00."),
    ],
)  # fmt: skip
def test_exponents_are_fitted_along_each_axis(
    quantity: str, cells: list[tuple[float, list[float]]], count: int, note: str
) -> None:
    found = judged()
    # Trained ranks are known at one T only.
    assert sum("exponent" in one for one in found) == 3
    one = found[f"exponent of the {quantity}"]
    expected = fitted([(x, np.array(values, dtype=float)) for x, values in cells])
    assert (one.measured, one.low, one.high) == pytest.approx(expected)
    assert (one.trials, one.infeasible, one.note) == (count, 1, note)


@pytest.mark.parametrize(
    ("size", "ranks", "count", "infeasible", "note"),
    [
        ("n=8, T=5, d=40", [2, 4], 4, 1,
         "Bounds 1.5 and 5.0, min(n, d) = 8. Trained (K, Q): 4.50 where its own SVM has 3.50, after 70 steps "
         "(1 - correlation 2.0e-03)."),
        ("n=2, T=5, d=40", [1, 2], 2, 0,
         "Bounds 1.0 and 1.5, min(n, d) = 2. Trained (K, Q): 2.00 where its own SVM has 1.00, after 70 steps "
         "(1 - correlation 2.0e-03)."),
        ("n=8, T=10, d=40", [6], 1, 0, "Bounds 1.0 and 3.0, min(n, d) = 8."),
    ],
)  # fmt: skip
def test_each_size_tells_its_bounds_and_its_trained_rank(
    size: str, ranks: list[int], count: int, infeasible: int, note: str
) -> None:
    """Of 5 and 60 active constraints the least ranks are 1 and 2, the largest 2 and 8."""
    one = judged()[f"certified nuclear rank, {size}"]
    middle = estimate(ranks, "mean")
    assert (one.measured, one.low, one.high) == (middle.value, middle.low, middle.high)
    assert (one.trials, one.infeasible, one.note) == (count, infeasible, note)


def test_rows_without_a_certified_rank_give_no_number() -> None:
    found = verdicts(ROWS[2:4])
    assert list(found) == ["rank between the bounds that the active constraints set"]
    (one,) = found.values()
    assert (one.trials, one.discarded, one.infeasible) == (2, 1, 1)


LABELS = ["certified", "trained (K, Q)", "r(r+1)/2 = active constraints", "r(p+q-r) = active constraints", "min(n, d)"]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_ranks_and_bounds_are_drawn_along_each_axis(width: float) -> None:
    drawing = figure(ROWS, width)
    first, second = drawing.axes
    assert [ax.get_title(loc="left") for ax in (first, second)] == ["T = 5, d = 40", "n = 8, d = 40"]
    assert [ax.get_xlabel() for ax in (first, second)] == ["n", "T"]
    for ax, values in ((first, (2, 8)), (second, (5, 10))):
        assert (ax.get_ylabel(), ax.get_xscale(), ax.get_yscale()) == ("mean rank", "log", "log")
        assert ticks(ax.xaxis) == {value: str(value) for value in values}
        assert ticks(ax.yaxis) == {value: str(value) for value in (1, 2, 5, 10, 20, 50)}
        assert 0.5 < ax.get_ylim()[0] < 1
        assert len(ax.yaxis.get_minorticklocs()) == 0
    drawn = curves(first)
    assert list(drawn) == LABELS[:2]
    # Blue and orange differ under every kind of colour blindness.
    assert {one.color for one in drawn.values()} == {FIRST, SECOND}
    middle = estimate([2, 4], "mean")
    assert (drawn["certified"].x, drawn["certified"].y) == ([2, 8], [1.5, 3])
    assert drawn["certified"].high[1] == pytest.approx(middle.high)
    # A single trial has a bar of no length.
    other = drawn["trained (K, Q)"]
    assert other.y == [2, 4.5]
    assert (other.low[0], other.high[0]) == (2, 2)
    assert other.high[1] == pytest.approx(estimate([3, 6], "mean").high)
    assert all(1.01 < place / value < 1.1 for place, value in zip(other.x, (2, 8), strict=True))
    lines = {str(line.get_label()): line for line in first.lines if line.get_label() in LABELS[2:]}
    for label, y in zip(LABELS[2:], ([1.5, 5], [1, 1.5], [2, 8]), strict=True):
        assert (list(np.asarray(lines[label].get_xdata())), list(np.asarray(lines[label].get_ydata()))) == ([2, 8], y)
    assert len({(line.get_linestyle(), line.get_color()) for line in lines.values()}) == 3
    along_T = {str(line.get_label()): list(np.asarray(line.get_ydata())) for line in second.lines}
    assert [along_T[label] for label in LABELS[2:]] == [[5, 3], [1.5, 1], [8, 8]]
    # Trained ranks are drawn where there is a certified one.
    assert curves(second)["trained (K, Q)"].y == [4.5]
    (legend,) = drawing.legends
    assert columns_of(legend) == (3 if width == WIDE else 1)
    assert sorted(text.get_text() for text in legend.get_texts()) == sorted(LABELS)
    assert 1.3 < panel_height(drawing) < 5
    assert {place(ax)[:2] for ax in (first, second)} == {(1, 2) if width == WIDE else (2, 1)}


def test_a_trained_rank_without_a_certified_one_is_not_drawn() -> None:
    (ax,) = figure([made(8, 5, 40, None, infeasible=True, **trained(3, 2, 1e-3))]).axes
    assert [one.x for one in curves(ax).values()] == [[], []]
    assert (ax.get_title(loc="left"), ax.get_xlabel()) == ("T = 5, d = 40", "n")
    assert ticks(ax.xaxis) == {1: "1"}
