"""Trained embeddings: settings, sentences, rows recomputed from the closed first step, verdicts and figure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, TokenData, solve, train
from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.beyond import trained_embeddings
from attsvm_paper.beyond.predictions import predictions
from attsvm_paper.beyond.trained_embeddings import Config, sentences
from attsvm_paper.judging.statistics import bootstrap_interval
from drawn import curves, in_one_column, levels, panel_height, ticks, titles


@pytest.mark.parametrize(("effort", "steps", "trials"), [("quick", 10_000, 10), ("full", 100_000, 40)])
def test_the_sweep_starts_at_four_sizes(effort: Any, steps: int, trials: int) -> None:
    """docs/findings.md: sizes 0, 0.01, 0.1 and 1; 40 instances and 100,000 steps in full, 10,000 in quick runs."""
    cells = trained_embeddings.sweep(effort)
    assert [one.start for one in cells] == [0.0, 0.01, 0.1, 1.0]
    assert {(one.n, one.T, one.d, one.steps, one.trials) for one in cells} == {(60, 8, 24, steps, trials)}


@pytest.mark.parametrize(("name", "least", "less"), [("n", 2, 1), ("T", 4, 3), ("d", 2, 1), ("start", 0.0, -0.01)])
def test_sizes_and_starts_have_a_least(name: str, least: Any, less: Any) -> None:
    sizes: dict[str, Any] = {"start": 0.0, "n": 2, "T": 4, "d": 2}
    assert getattr(Config(**sizes), name) == least
    with pytest.raises(ValueError, match="at least 2, 4, 2 and 0 were expected"):
        Config(**sizes | {name: less})


def test_a_sentence_has_one_to_three_words_of_its_class_and_neutral_ones() -> None:
    """Words 0 and 1 are of the positive class, 2 and 3 of the negative one, and six others neutral."""
    words, labels = sentences(np.random.default_rng(3), 600, 5)
    assert words.shape == (600, 5)
    assert labels.tolist() == 300 * [1.0, -1.0]
    telling = words < 4
    counts = telling.sum(1)
    # Of 600 sentences a third each; five standard errors are 58.
    assert np.bincount(counts, minlength=4).tolist() == [0, *(pytest.approx(200, abs=58) for _ in range(3))]
    for label, own in ((1.0, {0, 1}), (-1.0, {2, 3})):
        assert set(words[labels == label][telling[labels == label]]) == own
    assert set(words[~telling]) == set(range(4, 10))
    # Every place holds the same share.
    np.testing.assert_allclose(telling.mean(0), counts.mean() / 5, atol=0.1)


def first_step(words: np.ndarray, labels: np.ndarray, table: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Take a step of 30 down the logistic risk of uniform attention."""
    step = np.zeros_like(table)
    for own, label in zip(words, labels, strict=True):
        output = (table[own] @ v).mean()
        for word in own:
            step[word] += label / (1 + np.exp(label * output)) / len(own) / len(words) * v
    return table + 30 * step


@pytest.mark.parametrize("start", [0.0, 0.1, 3.0])
def test_a_row_has_the_first_step_the_top_words_and_the_margin(start: float) -> None:
    config = Config(start, n=10, T=4, d=6, steps=40)
    rows = trained_embeddings.trials(config, np.array([2, 5]))
    assert [row["seed"] for row in rows] == [2, 5]
    for row in rows:
        rng = np.random.default_rng(row["seed"])
        words, labels = sentences(rng, 10, 4)
        v = rng.standard_normal(6)
        # The reflection of a QR decomposition gives the column the sign opposite to its first entry.
        v *= -np.sign(v[0]) / np.sqrt((v * v).sum())
        table = start * rng.standard_normal((10, 6)) / np.sqrt(6)
        E = first_step(words, labels, table, v)
        shares = np.array([[(own == word).mean() for word in range(10)] for own in words])
        frequency = (labels[:, None] * shares).mean(0)
        assert row["first"] == pytest.approx(np.corrcoef(E @ v, frequency)[0, 1], abs=1e-8)
        tokens, ask = E[words], np.ones((10, 1))
        p = np.asarray(train(TokenData(tokens, ask, labels), v, steps=40).W[-1])[:, 0]
        logits = tokens @ p
        top = words[np.arange(10), logits.argmax(1)]
        assert row["telling"] == np.mean(top < 4)
        chosen = words == top[:, None]
        solution = solve(SelectionProblem(tokens, ask, chosen))
        assert row["feasible"] is bool(np.isfinite(solution.objective))
        if not row["feasible"]:
            assert row["share"] is None
            continue
        leads = (logits.max(1)[:, None] - logits)[~chosen]
        share = leads.min() / np.sqrt((p * p).sum()) * np.sqrt((np.asarray(solution.W) ** 2).sum())
        assert row["share"] == pytest.approx(share, rel=1e-5)
    # Words of equal frequency are equal after a start at zero, and their selection has no SVM.
    assert all(row["feasible"] for row in rows) is (start > 0)
    if start == 0:
        assert all(row["first"] == pytest.approx(1, abs=1e-9) for row in rows)


def row(start: float, first: float, telling: float, share: float | None, **values: Any) -> dict[str, Any]:
    fixed = {"start": start, "n": 60, "T": 8, "d": 24, "feasible": True}
    return fixed | {"first": first, "telling": telling, "share": share} | values


ROWS = [
    row(0.0, 1.0, 0.5, None, feasible=False), row(0.0, 1.0, 0.5, None, feasible=False),
    row(0.1, 0.9995, 0.95, 0.96), row(0.1, 0.9993, 0.85, 0.98), row(0.1, 0.9991, 0.75, None, feasible=False),
    row(1.0, 0.97, 1.0, 0.5), row(1.0, 0.96, 1.0, 0.6),
]  # fmt: skip


def test_verdicts_state_three_measures_with_their_predictions() -> None:
    names = {
        "first": "correlation of E v with the signed frequencies after one step",
        "selection": "share of sequences that select a word of their class",
        "margin": "margin of p as a share of the largest",
    }
    bounds = {"first": "0.999 to 1.0001", "selection": "0.9 to 1", "margin": "0.95 to 1.01"}
    expected = [
        (
            f"{names[name]}, start {start}, n=60, T=8, d=24",
            pytest.approx(value),
            trials,
            infeasible,
            f"Predicted by theorem: {bounds[name]}, {outcome}. {predictions()['trained-embeddings'][name].reason}",
        )
        for start, name, value, trials, infeasible, outcome in (
            ("0", "first", 1.0, 2, 2, "hit"),
            ("0", "selection", 0.5, 2, 2, "miss"),
            ("0.1", "first", 0.9993, 3, 1, "hit"),
            ("0.1", "selection", 0.85, 3, 1, "undecided"),
            ("0.1", "margin", 0.97, 3, 1, "hit"),
            ("1", "first", 0.965, 2, 0, "miss"),
            ("1", "selection", 1.0, 2, 0, "hit"),
            ("1", "margin", 0.55, 2, 0, "miss"),
        )
    ]
    verdicts = trained_embeddings.verdicts(ROWS)
    assert [(one.quantity, one.measured, one.trials, one.infeasible, one.note) for one in verdicts] == expected
    assert (verdicts[4].low, verdicts[4].high) == bootstrap_interval([0.96, 0.98])
    assert {one.experiment for one in verdicts} == {"trained-embeddings"}


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_figure_spaces_starts_evenly(width: float) -> None:
    figure = trained_embeddings.figure(ROWS, width)
    assert titles(figure.axes) == ["after one step", "after training p", "margin of p"]
    assert in_one_column(figure) is (width == NARROW)
    assert 2.4 < panel_height(figure) < 3.5
    assert [ax.get_ylabel() for ax in figure.axes] == [
        "correlation of E v with frequency", "share selecting a telling word", "share of the largest"
    ]  # fmt: skip
    drawn = [curves(ax) for ax in figure.axes]
    assert [list(own) for own in drawn] == [["first"], ["selection"], ["margin"]]
    first, selection, margin = (own[name] for own, name in zip(drawn, ("first", "selection", "margin"), strict=True))
    assert (first.x, first.y) == ([0, 1, 2], pytest.approx([1.0, 0.9993, 0.965]))
    assert (selection.x, selection.y) == ([0, 1, 2], pytest.approx([0.5, 0.85, 1.0]))
    assert (first.look, selection.look, margin.look) == (0, 1, 2)
    # Without a margin at zero there is no point.
    assert (margin.x, margin.y) == ([1, 2], pytest.approx([0.97, 0.55]))
    assert (margin.low[0], margin.high[0]) == pytest.approx(bootstrap_interval([0.96, 0.98]))
    for ax in figure.axes:
        assert ticks(ax.xaxis) == {0: "0", 1: "0.1", 2: "1"}
        assert ax.get_xlabel() == "size of the start"
        assert levels(ax) == {"": 1.0}
        assert ax.get_ylim() == (0, 1.08)


def test_a_measure_without_values_has_an_empty_panel() -> None:
    assert [len(curves(ax)) for ax in trained_embeddings.figure(ROWS[:2]).axes] == [1, 1, 0]
