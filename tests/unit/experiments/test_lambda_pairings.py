"""Figs 9 and 12 as wholes: rows of the concave head paired with printed numbers, joint tests, and readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from attsvm_paper.figures import lambda_verdicts
from attsvm_paper.figures.lambda_head import Config, Numerics
from attsvm_paper.figures.lambda_verdicts import (
    EDGE,
    POOLED_NOTE,
    TAU_NOTE,
    count_points,
    error_curve,
    error_points,
    joint,
    number_curve,
    number_points,
    readings,
    tau_points,
)
from attsvm_paper.judging.points import Point, by_key, next_values
from attsvm_paper.judging.verdict import Row
from concave_rows import NAMES, STEP, bounded, course, figure_rows, row, trained_cell
from printed_points import check_points

NAME = "lambda-head"


# --- pairings ---


def test_counts_are_paired_by_lambda_as_far_as_they_pass() -> None:
    cells = [row(seed, 0.4, count=4 + seed, early=5, masked=10.0 ** -(4 + seed)) for seed in range(3)]
    cells += [row(seed, 1.0, count=8, masked=None) for seed in range(2)]
    rest = [row(9, 1.2, T=9), row(9, 1.4, numerics="published"), row(9, 0.5)]
    key = "Fig. 9a: selected tokens"
    ours = count_points([*cells, *rest], 5e-5)
    check_points(ours, [(key, 0.4, {1: 5.0, 2: 6.0}), (key, 1, {0: 8.0, 1: 8.0})])
    assert {(one.margin, one.kind) for one in ours} == {(0.3, "count")}
    whole = count_points([*cells, *rest], None, "early")
    check_points(whole, [(key, 0.4, dict.fromkeys(range(3), 5.0)), (key, 1, dict.fromkeys(range(2), 8.0))])


@pytest.mark.parametrize("numerics", ["exact", "published"])
def test_distances_are_paired_by_lambda_and_iteration(numerics: Numerics) -> None:
    cell: list[Row] = [
        one | {"masked": 1e-4 if one["seed"] == 1 else 1e-6} for one in trained_cell(0.0, numerics=numerics)
    ]
    rest = [*trained_cell(0.4, numerics=numerics), *trained_cell(0.1, T=9, numerics=numerics), row(5, numerics="other")]
    for edge, seeds in ((None, (0, 1, 2)), (5e-5, (0, 2))):
        ours = error_points([*cell, *rest], numerics, edge)
        expected: list[tuple[str, float, dict[int, float]]] = [
            (error_curve(0.0, name), x, {seed: cell[seed][name][STEP.index(x + 1)] for seed in seeds})
            for name in NAMES
            for x in (100, 200, 300, 400)
        ]
        check_points(ours, expected)
        assert {(one.margin, one.kind) for one in ours} == {(0.25, "log")}
    assert len(error_points(cell[:1], numerics, None)) == 8


def test_an_instance_with_as_many_tokens_under_several_lambdas_counts_once() -> None:
    first, second = trained_cell(0.8, 9), [one | {"equivalent": course(0.9), "mm": None} for one in trained_cell(1, 9)]
    rest = [*trained_cell(0.8, 9, T=9), *trained_cell(0.8, 9, masked=1e-4), row(1, 0.8, tau=3, count=9)]
    rest += trained_cell(0.8, 9, numerics="published")
    ours = number_points([*first, *second, *rest], 5e-5)
    expected = []
    for name in NAMES:
        for x in (200, 500, 1000, 2000, 5000):
            at = STEP.index(x + 1)
            parts = {seed: [one[name][at] for one in (first[seed], second[seed]) if one[name]] for seed in range(4)}
            expected.append((number_curve(9, name), x, {seed: np.mean(part) for seed, part in parts.items() if part}))
    check_points(ours, expected)
    assert {(one.margin, one.kind) for one in ours} == {(0.25, "log")}
    assert expected[0][2][0] == pytest.approx((0.3 + 0.9) / 2 / 3)


def test_draws_of_lambda_are_paired_within_their_bounds() -> None:
    cell = [bounded(seed, 3, 2 + seed % 2, drawn) for seed, drawn in enumerate((0.2, 0.3, 0.4, 0.5, 0.6))]
    cell += [bounded(5, 3, None, None), bounded(0, 4, 3, 0.4)]
    rest = [row(7, drawn=0.4), bounded(7, 6, 3, 0.4, T=9)]
    ours = tau_points([*cell, *rest], 0.3, 0.5)
    expected: list[tuple[str, float, dict[int, float]]] = [
        ("Fig. 12a: lambda", 3, {1: 0.3, 2: 0.4, 3: 0.5}),
        ("Fig. 12a: lambda", 4, {0: 0.4}),
        ("Fig. 12b: selected tokens", 3, {1: 3, 2: 2, 3: 3}),
        ("Fig. 12b: selected tokens", 4, {0: 3}),
    ]
    shares = {2: {1: 0.0, 2: 1.0, 3: 0.0}, 3: {1: 1.0, 2: 0.0, 3: 1.0}}
    nothing = {1: 0.0, 2: 0.0, 3: 0.0}
    expected += [("Fig. 12c: tau=3", count, shares.get(count, nothing)) for count in range(2, 10)]
    check_points(ours, expected)
    kinds = dict.fromkeys((3, 4), (0.05, "mean"))
    assert [(one.margin, one.kind) for one in ours[:2]] == list(kinds.values())
    assert {(one.margin, one.kind) for one in ours[2:4]} == {(0.3, "count")}
    assert {(one.margin, one.kind) for one in ours[4:]} == {(0.1, "share")}
    # Without bounds a lambda is below 2.5.
    assert tau_points(cell)[0].values == pytest.approx(dict(enumerate((0.2, 0.3, 0.4, 0.5, 0.6))))
    assert tau_points([row(7)]) == []


# --- whole figures ---


def posed(
    _: str,
    figure: str,
    own: Sequence[Point],
    others: Mapping[str, Mapping[str, Point]],
    reading: str,
    note: str = "",
) -> Any:
    """Return what a joint test is asked, or None if no point has ten trials."""
    if not any(one.is_determinate for one in own):
        return None

    def plain(one: Point) -> Any:
        return one.published.key, one.values, one.margin, one.kind

    alternatives = {name: {key: plain(one) for key, one in points_of.items()} for name, points_of in others.items()}
    return figure, reading, note, list(map(plain, own)), alternatives


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lambda_verdicts, "joint_test", posed)


@pytest.mark.usefixtures("questions")
def test_figures_are_tested_with_and_without_the_filter() -> None:
    """v1, p. 16; the readings are those of docs/paper.md."""
    rows = figure_rows()
    trained = [one for one in rows if one["numerics"] in ("exact", "published")]
    counts = {edge: count_points(trained, edge) for edge in (EDGE, None)}
    filtered = "without instances that have an output in (7e-05, 0.001]"
    steps, number = "iteration at the next grid value", "lambda at the next grid value"

    def alone(figure: str, points: list[Point], words: str, reading: str, note: str = "") -> Any:
        return posed(NAME, figure, points, {words: next_values(points)}, reading, note)

    both = {number: next_values(counts[EDGE]), "no filter": by_key(counts[None])}
    expected = [
        posed(NAME, "Fig. 9a", counts[EDGE], both, filtered),
        alone("Fig. 9a", counts[None], number, "no filter"),
        alone("Fig. 9b", error_points(trained, "exact", None), steps, "exact arithmetic, no filter"),
        alone("Fig. 9b", error_points(trained, "published", None), steps, "published arithmetic, no filter"),
        alone("Fig. 9c", number_points(trained, EDGE), steps, f"runs of every lambda, {filtered}", POOLED_NOTE),
        alone("Fig. 9c", number_points(trained, None), steps, "runs of every lambda, no filter", POOLED_NOTE),
        alone(
            "Fig. 12", tau_points(rows), "tau, and number of tokens, off by one",
            "lambda uniform on (0, 2.5), sparsemax", TAU_NOTE,
        ),
    ]  # fmt: skip
    assert None not in expected
    assert joint(rows) == expected


@pytest.mark.usefixtures("questions")
def test_rows_of_lemma_6_and_of_the_constraint_are_no_runs() -> None:
    rows = [one for one in figure_rows() if one["numerics"] == "lemma"]
    asked: list[Any] = list(joint([*rows, *(row(seed, tau=3, drawn=0.4) for seed in range(12))]))
    assert [one[0] for one in asked] == ["Fig. 12"]
    assert joint([]) == []


# --- readings ---


LAMBDAS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5)


def readings_of(figure: str) -> list[Any]:
    return [one for one in readings() if one.figure == figure]


def test_as_many_readings_are_searched_as_the_documentation_says() -> None:
    """docs/paper.md: 13 of Fig. 9a, 6 of 9b, 4 of 9c, 18 of Fig. 12."""
    assert {figure: len(readings_of(figure)) for figure in ("Fig. 9a", "Fig. 9b", "Fig. 9c", "Fig. 12")} == {
        "Fig. 9a": 13, "Fig. 9b": 6, "Fig. 9c": 4, "Fig. 12": 18,
    }  # fmt: skip


def test_readings_of_counts_vary_the_edge_or_what_is_counted() -> None:
    edges = (5e-4, 2e-4, 1e-4, 7e-5, 6e-5, 5e-5, 3e-5, 1e-5, 1e-6, 1e-8)
    expected = [("none", words) for words in ("after 5001 steps", "after 1001 steps", "sparsemax")]
    expected += [(f"no output in ({edge:g}, 0.001]", "after 5001 steps") for edge in edges]
    ours = readings_of("Fig. 9a")
    assert [(one.factors["filter"], one.factors["counted"]) for one in ours] == expected
    assert {one.cells for one in ours} == {tuple(Config(lam, trials=200) for lam in LAMBDAS)}
    rows = [row(seed, count=6, early=8, lemma=7, masked=10.0**-seed) for seed in range(3, 10)]
    fields: list[tuple[float | None, str]] = [(None, "count"), (None, "early"), (None, "lemma")]
    fields += [(edge, "count") for edge in edges]
    for one, (edge, field) in zip(ours, fields, strict=True):
        (point,) = one.points(rows)
        assert point.values == count_points(rows, edge, field)[0].values


@pytest.mark.parametrize(("figure", "edges"), [("Fig. 9b", (None, 1e-4, EDGE)), ("Fig. 9c", (None, 2e-4, 1e-4, EDGE))])
def test_readings_of_distances_vary_the_edge(figure: str, edges: Sequence[float | None]) -> None:
    ours = readings_of(figure)
    names = ["none" if edge is None else f"no output in ({edge:g}, 0.001]" for edge in edges]
    masked = (8e-5, 1.5e-4, 6e-5, 3e-4)
    for at, one in enumerate(ours):
        edge, numerics = edges[at % len(edges)], "exact" if at < len(edges) else "published"
        assert one.factors["filter"] == names[at % len(edges)]
        rows = [
            run | {"masked": masked[run["seed"]]}
            for kind in ("exact", "published")
            for run in trained_cell(0.2, 5, numerics=kind)
        ]
        if figure == "Fig. 9b":
            assert one.factors["arithmetic"] == numerics
            assert one.cells == tuple(Config(lam, numerics) for lam in (0.0, 0.1, 0.2, 1.0))
            expected = error_points(rows, numerics, edge)
        else:
            assert one.cells == (Config(0.0), *(Config(lam, trials=200) for lam in LAMBDAS))
            expected = number_points(rows, edge)
        assert [(point.place, point.values) for point in one.points(rows)] == [
            (point.place, point.values) for point in expected
        ]
        assert len(expected) == 10


def test_readings_of_lambda_vary_its_bounds() -> None:
    ours = readings_of("Fig. 12")
    bounds = [(least, most) for least in (0.0, 0.2, 0.25, 0.3, 0.35, 0.4) for most in (1.5, 2.0, 2.5)]
    assert [one.factors["lambda"] for one in ours] == [f"uniform on ({least:g}, {most:g})" for least, most in bounds]
    cells = tuple(Config(0.0, "lemma", tau=tau, steps=0, trials=2000) for tau in range(2, 10))
    assert {one.cells for one in ours} == {cells}
    drawn = (0.1, 0.22, 0.27, 0.32, 0.37, 0.9, 1.7, 2.2)
    rows = [bounded(seed, 4, 3, lam) for seed, lam in enumerate(drawn)]
    for one, (least, most) in zip(ours, bounds, strict=True):
        assert list(one.points(rows)[0].values.values()) == [lam for lam in drawn if least <= lam <= most]
