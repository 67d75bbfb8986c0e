"""Fig. 10: rows of training K and Q, its verdicts and pairings, and its figure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from attsvm import SelectionProblem, correlation, solve, train
from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.figures import rank_budget
from attsvm_paper.figures.rank_budget import (
    Config,
    Numerics,
    figure,
    first_enough,
    joint,
    points,
    readings,
    sweep,
    trials,
    verdicts,
)
from attsvm_paper.judging.comparison import mean_verdict, value_verdict
from attsvm_paper.judging.estimates import Estimate, estimate
from attsvm_paper.judging.points import Point, by_key, next_values, swap
from attsvm_paper.judging.statistics import bootstrap_interval
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.published.instances import draw, start_seeds
from attsvm_paper.published.ledger import LedgerNumber, curve
from attsvm_paper.published.numerics import descent
from drawn import all_curves, has_readable_panels, heading, legend_words, ticks
from drawn import printed as printed_lines

NAME = "rank-budget"
SIZES = ((5, 5), (10, 5), (15, 5), (5, 10), (5, 15))
LINES = {
    (5, 5): "Fig. 10 lower: n=5", (10, 5): "Fig. 10 lower: n=10", (15, 5): "Fig. 10 lower: n=15",
    (5, 10): "Fig. 10 upper: T=10", (5, 15): "Fig. 10 upper: T=15",
}  # fmt: skip


# --- settings and rows ---


@pytest.mark.parametrize(
    ("effort", "count", "widths", "exact"),
    [("full", 100, tuple(range(1, 11)), (5, 10, 15)), ("quick", 30, (1, 2, 3, 4, 5, 6, 8, 10), (5,))],
)
def test_the_sweep_has_the_published_sizes_and_widths(
    effort: Effort, count: int, widths: tuple[int, ...], exact: tuple[int, ...]
) -> None:
    """v1, Fig. 10: d = 20, m = 1 to 10, T = 5 and n = 5; the score gap is that of p. 53."""
    cells = sweep(effort)
    assert {(cell.d, cell.gap, cell.steps, cell.trials) for cell in cells} == {(20, 0.1, 2000, count)}
    ours = [(cell.n, cell.T, cell.m) for cell in cells if cell.numerics == "published"]
    assert ours == [(*size, m) for size in SIZES for m in widths]
    assert [(cell.n, cell.T, cell.m) for cell in cells if cell.numerics == "exact"] == [
        (n, 5, m) for n in exact for m in widths
    ]


@pytest.mark.parametrize(("numerics", "m", "size"), [("exact", 1, (2, 2, 3)), ("published", 2, (3, 4, 2))])
def test_a_row_compares_one_run_with_the_nuclear_svm_of_its_own_tokens(
    numerics: Numerics, m: int, size: tuple[int, int, int]
) -> None:
    """Each seed trained alone; W itself separates what it selects."""
    n, T, d = size
    seeds = np.arange(3, 8)
    rows = trials(Config(m, n, T, numerics, d=d, gap=0.05, steps=6), seeds)
    for seed, row in zip(seeds, rows, strict=True):
        one = draw([int(seed)], n, T, d, 0.05)
        data = one.data[0]
        trace = train(
            data,
            one.v[0],
            rank=m,
            steps=6,
            init="torch",
            seed=int(start_seeds([int(seed)])[0]),
            **descent(numerics, "KQ"),
        )
        W = np.asarray(trace.W[-1])
        assert np.linalg.matrix_rank(W) == min(m, d)
        best = (np.asarray(data.labels)[:, None] * (np.asarray(data.tokens) @ one.v[0])).argmax(1)
        solution = solve(SelectionProblem(data.tokens, data.queries, trace.selected), "nuclear")
        singular = np.linalg.svd(np.asarray(solution.W), compute_uv=False)
        assert row == {
            "seed": seed, "feasible": True, "rank": (singular > 1e-5 * singular[0]).sum(),
            "global": (np.asarray(trace.selected) == best).all(),
            "error": pytest.approx(1 - float(correlation(W, solution.W)), abs=1e-6),
        }  # fmt: skip
    assert {row["global"] for row in rows} == {True, False}


def test_tokens_that_cannot_be_separated_have_neither_error_nor_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    data = draw([1], 3, 4, 2, 0.1).data[0]

    def separable(selected: Sequence[int]) -> bool:
        return math.isfinite(solve(SelectionProblem(data.tokens, data.queries, selected), "nuclear").objective)

    hopeless = next(selected for selected in itertools.product(range(4), repeat=3) if not separable(selected))
    ended = SimpleNamespace(selected=np.array([hopeless]), W=np.ones((1, 2, 2, 2)))
    monkeypatch.setattr(rank_budget, "train", lambda *_, **__: ended)
    (row,) = trials(Config(1, 3, 4, d=2), np.array([1]))
    assert (row["feasible"], row["error"], row["rank"]) == (False, None, None)


def test_a_width_is_enough_where_the_mean_is_below_one_per_cent() -> None:
    assert first_enough([[0.01, 0.01], [0.5, 0.002], [0.01, 0.008], [0.0, 0.0]], (1, 2, 4, 8)) == 4
    assert math.isnan(first_enough([[0.01], [0.02]], (1, 2)))


# --- verdicts ---


def row(seed: int, m: int, error: float | None, size: tuple[int, int] = (5, 5), **other: Any) -> Row:
    n, T = size
    fields = {"numerics": "published", "d": 20, "gap": 0.1, "trial": seed, "global": True}
    answer = {"feasible": error is not None, "error": error, "rank": None if error is None else 3 + seed % 2}
    return {"seed": seed, "m": m, "n": n, "T": T, **fields, **answer} | other


def printed(size: tuple[int, int], m: int) -> LedgerNumber:
    number = curve(LINES[size]).at(m)
    assert number is not None
    return number


def distance(m: int, size: str, values: Sequence[float], numerics: str, **other: Any) -> Verdict:
    reference = other.get("published")
    return mean_verdict(
        NAME, f"1 - correlation with the nuclear SVM, m={m}, {size}{numerics} numerics", values, interval="bootstrap",
        assumed_trials=100, margin=1.0 if reference is None else reference.value / 4, **other,
    )  # fmt: skip


def check(ours: Sequence[Verdict], expected: Sequence[Verdict]) -> None:
    """Compare whole verdicts; their repr has NaN equal to NaN."""
    assert [one.quantity for one in ours] == [one.quantity for one in expected]
    for one, other in zip(ours, expected, strict=True):
        assert repr(one) == repr(other)


ERRORS = {1: (0.5, 0.3, 0.4, 0.45), 3: (0.02, 0.001, 0.003, None), 4: (0.001, 0.002, None, 0.001)}


@pytest.mark.parametrize("size", SIZES)
def test_errors_of_a_printed_size_are_compared_width_by_width(size: tuple[int, int]) -> None:
    """Trials 0 and 1 have a solution at all widths, and mean errors of 0.4, 0.0105 and 0.0015."""
    rows = [row(seed, m, error, size) for m, errors in ERRORS.items() for seed, error in enumerate(errors)]
    name = f"n={size[0]}, T={size[1]}, "
    expected = [
        distance(
            m, name, [error for error in errors if error is not None], "published", published=printed(size, m),
            trials=4, infeasible=errors.count(None),
        )
        for m, errors in ERRORS.items()
    ]  # fmt: skip
    both = np.array([[0.5, 0.02, 0.001], [0.3, 0.001, 0.002]])

    def first(sample: np.ndarray, axis: int) -> float:
        return next(m for m, error in zip(ERRORS, sample.mean(axis), strict=True) if error < 0.01)

    low, high = bootstrap_interval(both, first)
    # Ranks 3, 4, 3, 4; 3, 4, 3 and 3, 4, 4.
    note = "Mean rank of the nuclear SVM 3.50."
    quantity = f"first m with 1 - correlation below 0.01, {name}published numerics"
    expected.append(value_verdict(NAME, quantity, 4.0, low, high, trials=2, note=note))
    check(verdicts(rows), expected)
    assert (low, high) == (3.0, 4.0)


@pytest.mark.parametrize("other", [{"numerics": "exact"}, {"gap": 0.0}, {"d": 12}, {"n": 4}, {"T": 6}])
def test_other_settings_are_measured_only(other: dict[str, Any]) -> None:
    rows = [row(seed, 2, 0.001 * (1 + seed), **{**other}) for seed in range(2)]
    n, T, gap = (rows[0][name] for name in ("n", "T", "gap"))
    name = f"n={n}, T={T}, " + ("gap 0, " if gap == 0 else "")
    numerics = rows[0]["numerics"]
    quantity = f"first m with 1 - correlation below 0.01, {name}{numerics} numerics"
    note = "Mean rank of the nuclear SVM 3.50."
    expected = [
        distance(2, name, [0.001, 0.002], numerics, trials=2),
        value_verdict(NAME, quantity, 2.0, 2.0, 2.0, trials=2, note=note),
    ]
    check(verdicts(rows), expected)


def test_a_width_that_is_enough_needs_two_trials_with_a_solution_at_all_widths() -> None:
    rows = [row(0, 1, 0.5), row(1, 1, None), row(0, 2, 0.001), row(1, 2, 0.001)]
    assert [one.quantity[:1] for one in verdicts(rows)] == ["1", "1"]
    rows[1] = row(1, 1, 0.5)
    assert [one.quantity[:1] for one in verdicts(rows)] == ["1", "1", "f"]
    (only,) = verdicts([row(0, 1, None)])
    assert (only.verdict, only.infeasible, only.trials) == ("measured", 1, 1)
    assert verdicts([]) == []


# --- pairings ---


def full_rows(numerics: str = "published", gap: float = 0.1) -> list[Row]:
    """Return twelve trials of every size at three widths, with one that has no solution."""

    def error(seed: int, n: int, T: int, m: int) -> float | None:
        return None if seed == 11 else 0.1 * (numerics == "exact") + gap + 0.01 * seed + 0.001 * n * T / m

    return [
        row(seed, m, error(seed, *size, m), size, numerics=numerics, gap=gap)
        for size in SIZES
        for m in (1, 2, 3)
        for seed in range(12)
    ]  # fmt: skip


def test_errors_are_paired_by_size_and_width() -> None:
    rows = [*full_rows(), row(0, 1, 0.3, (5, 6)), row(0, 1, 0.3, d=12)]
    ours = points(rows)
    sizes = sorted(SIZES)
    assert [one.place for one in ours] == [(LINES[size], m - 1) for size in sizes for m in (1, 2, 3)]
    for one, (size, m) in zip(ours, [(size, m) for size in sizes for m in (1, 2, 3)], strict=True):
        cell = [r for r in rows if (r["n"], r["T"], r["m"], r["d"]) == (*size, m, 20)]
        assert one.values == {r["seed"]: r["error"] for r in cell[:11]}
        assert one.published == printed(size, m)
        assert (one.margin, one.kind, one.trials) == (0.25, "log", 100)


def posed(
    _: str, name: str, own: Sequence[Point], others: Mapping[str, Mapping[str, Point]], reading: str, note: str = ""
) -> Any:
    """Return what a joint test is asked, or None if no point has ten trials."""
    if not any(one.is_determinate for one in own):
        return None
    alternatives = {words: {key: one.values for key, one in points_of.items()} for words, points_of in others.items()}
    return name, reading, note, [(one.published.key, one.values) for one in own], alternatives


def test_the_figure_is_tested_against_other_widths_sizes_and_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_budget, "joint_test", posed)
    parts = {(numerics, gap): full_rows(numerics, gap) for numerics in ("exact", "published") for gap in (0.0, 0.1)}
    main, exact = points(parts["published", 0.1]), points(parts["exact", 0.1])
    ten, fifteen = LINES[10, 5], LINES[15, 5]
    alternatives = {
        "m off by one": next_values(main),
        "n = 10 and 15 exchanged": swap(main, {ten: fifteen, fifteen: ten}),
        "exact arithmetic, K and Q normalised together": by_key(exact),
    }
    note = "The paper does not state its trials; they are taken to be 100."
    expected = posed(NAME, "Fig. 10", main, alternatives, "published arithmetic, score gap 0.1", note)
    assert joint([one for part in parts.values() for one in part]) == [expected]
    assert joint(parts["exact", 0.1]) == joint([]) == []


def test_as_many_readings_are_searched_as_the_documentation_says() -> None:
    """docs/paper.md: 12 of Fig. 10, by score gap, arithmetic and steps."""
    ours = readings()
    choices = [
        (gap, numerics, steps)
        for gap in (0.0, 0.1)
        for numerics in ("exact", "published")
        for steps in (1000, 2000, 4000)
    ]
    assert [one.name for one in ours] == [
        f"score gap {gap:g}, arithmetic {numerics}, steps {steps}" for gap, numerics, steps in choices
    ]
    for one, (gap, numerics, steps) in zip(ours, choices, strict=True):
        assert one.figure == "Fig. 10"
        assert one.cells == tuple(
            Config(m, n, T, cast("Numerics", numerics), gap=gap, steps=steps, trials=40)
            for n, T in ((5, 5), (15, 5), (5, 15))
            for m in (1, 2, 3, 4, 6, 10)
        )
        assert len(one.points(full_rows())) == 15


# --- figure ---


def mean_of(rows: Sequence[Row], size: tuple[int, int], numerics: str, m: int) -> Estimate:
    own = [r for r in rows if (r["n"], r["T"], r["numerics"], r["m"]) == (*size, numerics, m)]
    values = [r["error"] for r in own if r["error"] is not None]
    return estimate(values, "bootstrap")


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_mean_errors_are_drawn_over_the_printed_ones(width: float) -> None:
    """Exact arithmetic is dotted, and stands with T = 5 only."""
    rows = full_rows() + [one for one in full_rows("exact") if one["T"] == 5]
    picture = figure(rows, width)
    assert has_readable_panels(picture, 1 if width == WIDE else 2)
    panels = {"T = 5": ((5, 5), (10, 5), (15, 5)), "n = 5": ((5, 5), (5, 10), (5, 15))}
    for ax, (title, sizes) in zip(picture.axes, panels.items(), strict=True):
        assert ax.get_title(loc="left") == title
        styles = [("-", "published"), (":", "exact")] if title == "T = 5" else [("-", "published")]
        expected = [(size, *pair) for size in sizes for pair in styles]
        ours = all_curves(ax)
        assert [(one.label, one.style) for one in ours] == [
            (f"n = {n}, T = {T}" if style == "-" else "", style) for (n, T), style, _ in expected
        ]
        for one, (size, _, numerics) in zip(ours, expected, strict=True):
            one.shows({m: mean_of(rows, size, numerics, m) for m in (1, 2, 3)})
        references = [curve(LINES[size]) for size in sizes]
        assert printed_lines(ax) == [(list(map(float, one.x)), list(one.y)) for one in references]
        assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")
        assert list(ticks(ax.xaxis).items()) == [(1.0, "1"), (2.0, "2"), (3.0, "3")]
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("width m of K and Q", "mean 1 - correlation")
    # The size that both panels share looks the same in them, and no other size looks like another.
    first, second = ({one.label: one.look for one in all_curves(ax) if one.label} for ax in picture.axes)
    assert first["n = 5, T = 5"] == second["n = 5, T = 5"]
    assert len({*first.values(), *second.values()}) == 5
    assert set(legend_words(picture.axes)) == {
        *first, *second, "ours, 95 % interval", "published", "ours, exact arithmetic",
    }  # fmt: skip
    assert heading(picture.axes) == (
        "Width of K and Q against distance from the nuclear SVM, d = 20, score gap at least 0.1"
    )


def test_another_size_is_drawn_alone() -> None:
    (ax,) = figure([row(0, 2, 0.5, (4, 3), d=7)]).axes
    assert ax.get_title(loc="left") == "n = 4, T = 3"
    (only,) = all_curves(ax)
    assert (only.label, only.x, only.y) == ("n = 4, T = 3", [2.0], [0.5])
    assert printed_lines(ax) == []
    (other, _) = figure([row(seed, 2, 0.5, d=7) for seed in range(2)]).axes
    assert printed_lines(other) == []
