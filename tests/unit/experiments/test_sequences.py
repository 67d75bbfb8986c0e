"""Every token a query: settings, corpora, rows recomputed, verdicts and figure of rows made by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, TokenData, solve, train
from attsvm.data.synthetic import random_trial
from attsvm.plots.style import NARROW, WIDE
from attsvm.solution.problem_batch import ProblemBatch
from attsvm.solvers.batching import solve_batch
from attsvm.study.controls import shuffle
from attsvm.theory.finite_part import finite_part
from attsvm.theory.graph import graph_svm
from attsvm_paper.beyond import sequences
from attsvm_paper.beyond.sequences import Config
from attsvm_paper.judging.statistics import bootstrap_interval
from attsvm_paper.published.instances import start_seeds
from drawn import all_curves, curves, in_one_column, legend_words, levels, panel_height, titles

NEXT: dict[str, Any] = {"d": 6, "n": 12, "T": 4, "vocabulary": 4}


def cosine(A: Any, B: Any) -> float:
    return float((A * B).sum() / np.sqrt((A * A).sum() * (B * B).sum()))


@pytest.mark.parametrize(("effort", "trials", "long"), [("quick", 20, 4000), ("full", 100, 30_000)])
def test_the_sweep_has_three_dimensions_per_query_setting_and_one_vocabulary(
    effort: Any, trials: int, long: int
) -> None:
    """Plain descent on cyclic data takes more steps, because its norm grows like log k."""
    cells = sequences.sweep(effort)
    assert [(one.setting, one.d, one.n, one.T, one.vocabulary, one.steps) for one in cells] == [
        *((setting, d, 4, 5, 6, 3000) for setting in ("sequence", "causal") for d in (5, 10, 20)),
        ("acyclic", 6, 48, 4, 4, 2000),
        ("cyclic", 6, 48, 4, 4, long),
    ]
    assert {one.trials for one in cells} == {trials}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"setting": "acyclic", "vocabulary": 1}, "vocabulary is 1; at least 2"),
        ({"setting": "cyclic", "vocabulary": 1}, "vocabulary is 1; at least 2"),
        ({"setting": "sequence", "d": 1}, "d and T are 1 and 5"),
        ({"setting": "causal", "T": 1}, "d and T are 10 and 1"),
        ({"setting": "sequence", "steps": 30}, "steps is 30; more than 30"),
    ],
)
def test_sizes_too_small_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Config(**given)


def test_the_least_sizes_are_taken() -> None:
    assert Config("causal", vocabulary=1, steps=31).steps == 31
    assert Config("cyclic", d=2, T=2, vocabulary=2).vocabulary == 2


def test_steps_are_recorded_at_thirds_of_powers_of_ten_before_the_end() -> None:
    assert sequences.records(31) == [30]
    assert sequences.records(1000) == [30, 100, 300]
    assert sequences.records(30_001) == [30, 100, 300, 1000, 3000, 10_000, 30_000]


@pytest.mark.parametrize("causal", [False, True])
def test_each_query_of_each_token_is_compared_with_the_svm_of_all(causal: bool) -> None:
    seeds, steps = [0, 3], 40
    config = Config("causal" if causal else "sequence", d=4, n=2, T=3, steps=steps)
    rows = sequences.trials(config, np.array(seeds))
    for row, seed in zip(rows, seeds, strict=True):
        rng = np.random.default_rng(seed)
        tokens, _, _, v = random_trial(rng, 2, 3, 4, "self")
        labels = rng.choice(np.array([-1.0, 1.0]), (2, 3))
        queries, repeated = tokens.reshape(6, 4), np.repeat(tokens, 3, axis=0)
        mask = np.tile(np.tri(3, dtype=bool), (2, 1)) if causal else np.ones((6, 3), dtype=bool)
        data = TokenData(repeated, queries, labels.ravel(), mask)
        trace = train(data, v, steps=steps, lr=0.1, record_every=[30])
        W = np.asarray(trace.W)
        logits = np.where(mask, np.stack([x @ W[-1] @ z for x, z in zip(repeated, queries, strict=True)]), -np.inf)
        top = logits.argmax(1)
        mm = solve(SelectionProblem(repeated, queries, top, mask=mask))
        other = shuffle(top, mask, np.random.default_rng(int(start_seeds([seed])[0])))
        assert other is not None
        control = solve(SelectionProblem(repeated, queries, other, mask=mask))
        scores = np.where(mask, labels.ravel()[:, None] * (repeated @ v), -np.inf)
        assert row["seed"] == seed
        assert row["infeasible"] is not bool(np.isfinite(mm.objective))
        assert row["step"] == [0, 30, 40]
        assert row["curve"] == pytest.approx([0.0, cosine(W[1], mm.W), cosine(W[2], mm.W)], abs=1e-6)
        assert row["correlation"] == row["curve"][-1]
        feasible = np.isfinite(control.objective)
        assert row["control"] == (pytest.approx(cosine(W[2], control.W), abs=1e-6) if feasible else None)
        assert row["optimal"] == np.mean(top == scores.argmax(1))
        assert all(row[name] is None for name in ("acyclic", "whole", "finite", "finite_early", "finite_share"))


def test_selections_without_an_svm_or_a_shuffle_leave_their_fields_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config("sequence", d=4, n=2, T=3, steps=31)
    whole = sequences.trials(config, [0, 3])
    monkeypatch.setattr(sequences, "shuffle", lambda *_: None)
    rows = sequences.trials(config, [0, 3])
    assert [row["control"] for row in rows] == [None, None]
    assert [row["correlation"] for row in rows] == [row["correlation"] for row in whole]

    def unsolved(problems: Any) -> Any:
        """Solve another problem that has no solution: equal sequences, different tokens."""
        B, n = problems.queries.shape[:2]
        equal = np.broadcast_to(np.eye(3, 4), (B, n, 3, 4)).copy()
        tops = np.broadcast_to(np.arange(n) % 2, (B, n)).copy()
        return solve_batch(ProblemBatch(equal, np.ones((B, n, 4)), tops))

    monkeypatch.undo()
    monkeypatch.setattr(sequences, "solve_batch", unsolved)
    rows = sequences.trials(config, [0, 3])
    for row in rows:
        assert row["infeasible"] is True
        assert (row["curve"], row["correlation"], row["control"]) == (None, None, None)


@pytest.mark.parametrize("setting", ["acyclic", "cyclic"])
def test_the_label_is_the_first_token_in_the_order_of_the_last_one(setting: Any) -> None:
    config = Config(setting, d=5, n=400, T=4, vocabulary=5)
    embeddings, words, targets = sequences.corpus(np.random.default_rng(8), config)
    assert embeddings.shape == (5, 5)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1)
    assert words.shape == (400, 4)
    assert set(words.ravel()) == set(range(5))
    ahead = {last: np.zeros((5, 5), dtype=bool) for last in range(5)}
    for sequence, target in zip(words, targets, strict=True):
        assert target in sequence
        ahead[sequence[-1]][target, sequence] = True
    for last, before in ahead.items():
        np.fill_diagonal(before, False)
        # Both orders of two tokens occur in pairs alone; three tokens never lie on a cycle.
        mutual = before & before.T
        assert mutual.sum(1).max() <= 1
        assert mutual.any() == (setting == "cyclic")
        strict = before & ~mutual
        # Five tokens: chains of strict precedence end.
        assert not np.linalg.matrix_power(strict.astype(int), 5).any(), last


def test_orders_depend_on_the_last_token() -> None:
    config = Config("acyclic", d=3, n=600, T=3, vocabulary=4)
    _, words, targets = sequences.corpus(np.random.default_rng(1), config)
    first = {}
    for last in range(4):
        own = [(set(sequence), target) for sequence, target in zip(words, targets, strict=True) if sequence[-1] == last]
        first[last] = {(min(pair), max(pair)): target for pair, target in own if len(pair) == 2}
    shared = (0, 1)
    assert (
        len({first[last].get(shared) for last in (0, 1)} | {tuple(sorted(one.items())) for one in first.values()}) > 2
    )


def test_both_tokens_of_a_leading_pair_are_labels_about_equally_often() -> None:
    config = Config("cyclic", d=3, n=2000, T=4, vocabulary=2)
    _, words, targets = sequences.corpus(np.random.default_rng(3), config)
    mixed = words.min(1) != words.max(1)
    # Of some 1750 sequences with both tokens half have the label 1; five standard errors are 0.06. An even draw among
    # places gives a token its share of the sequence.
    assert targets[mixed].mean() == pytest.approx(0.5, abs=0.06)
    shares = np.array([(row == target).mean() for row, target in zip(words[mixed], targets[mixed], strict=True)])
    assert shares.mean() == pytest.approx(
        np.mean([(row.mean() ** 2 + (1 - row.mean()) ** 2) for row in words[mixed]]), abs=0.03
    )


@pytest.mark.parametrize("setting", ["acyclic", "cyclic"])
@pytest.mark.parametrize(("steps", "kept", "early"), [(20, [0, 3, 10, 20], 1), (110, [0, 3, 10, 30, 110], 2)])
def test_both_projections_of_a_trained_w_are_compared_with_the_graph(
    setting: Any, steps: int, kept: list[int], early: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of 110 steps is after the record at 10; a tenth of 20 is before the first record, which stands for it."""
    monkeypatch.setattr(sequences, "RECORDS", (3, 10, 30))
    seeds, config = [0, 1], Config(setting, steps=steps, **NEXT)
    rows = sequences.trials(config, np.array(seeds))
    rule: dict[str, Any] = {"lr": 0.1} if setting == "acyclic" else {"lr": 1.0, "optimizer": "gd"}
    for row, seed in zip(rows, seeds, strict=True):
        parts = sequences.corpus(np.random.default_rng(seed), config)
        graph = graph_svm(*parts)
        trace = train(TokenData.next_token(*parts), [1.0], steps=steps, loss="log", record_every=kept[1:], **rule)
        W = np.asarray(trace.W)
        inside = np.stack([finite_part(graph.problem, graph.problem.apply(one)).W for one in W])
        outside, svm, fin = W - inside, np.asarray(graph.W_svm), np.asarray(graph.W_fin)
        length = np.sqrt((fin * fin).sum())
        assert (row["seed"], row["infeasible"], row["acyclic"]) == (seed, False, graph.acyclic)
        assert row["step"] == kept
        assert row["curve"] == pytest.approx([0.0, *(cosine(one, svm) for one in outside[1:])], abs=1e-6)
        assert row["correlation"] == row["curve"][-1]
        assert row["whole"] == pytest.approx(cosine(W[-1], svm), abs=1e-6)
        assert row["finite_share"] == pytest.approx(length / np.sqrt((W[-1] ** 2).sum()), rel=1e-6)
        assert (row["control"], row["optimal"]) == (None, None)
        if graph.acyclic:
            assert (row["finite"], row["finite_early"]) == (None, None)
        else:
            first, last = (np.sqrt(((inside[at] - fin) ** 2).sum()) / length for at in (early, -1))
            assert (row["finite"], row["finite_early"]) == pytest.approx((last, first), rel=1e-6)
            assert first != pytest.approx(last, rel=1e-3)
    assert all(row["acyclic"] for row in rows) is (setting == "acyclic")


def row(setting: str, d: int = 10, **values: Any) -> dict[str, Any]:
    fixed: dict[str, Any] = {"setting": setting, "d": d, "n": 4, "T": 5, "seed": 0, "infeasible": False}
    fixed |= dict.fromkeys(sequences.FIELDS) | {"step": [0, 30, 100], "curve": None, "correlation": None}
    return fixed | values


def test_verdicts_of_queries_state_controls_and_best_tokens() -> None:
    rows = [
        row("causal", correlation=0.9, control=0.2, optimal=0.5),
        row("causal", correlation=0.7, control=0.4, optimal=1.0),
        row("causal", infeasible=True, optimal=0.9),
        row("sequence", correlation=0.6, optimal=0.25),
    ]
    causal, sequence = sequences.verdicts(rows)
    assert causal.quantity == "correlation of W with its SAtt-SVM, causal, d=10, n=4, T=5"
    assert (causal.measured, causal.trials, causal.infeasible) == (pytest.approx(0.8), 3, 1)
    assert (causal.low, causal.high) == bootstrap_interval([0.9, 0.7])
    assert causal.note == (
        "Shuffled selections: 0.30. 2 of 3 selections have an SVM. 80 % of the queries select their best token."
    )
    assert sequence.quantity == "correlation of W with its SAtt-SVM, sequence, d=10, n=4, T=5"
    assert sequence.note == "1 of 1 selections have an SVM. 25 % of the queries select their best token."
    assert {one.experiment for one in (causal, sequence)} == {"sequences"}


def test_verdicts_of_next_tokens_state_cycles_and_the_finite_part() -> None:
    rows = [
        row("cyclic", acyclic=False, correlation=0.9, whole=0.8, finite=0.3, finite_early=0.5, finite_share=0.25),
        row("cyclic", acyclic=False, correlation=0.8, whole=0.7, finite=0.5, finite_early=0.6, finite_share=0.15),
        row("cyclic", acyclic=True, infeasible=True, finite_share=0.0),
        row("acyclic", acyclic=True, finite_share=0.0),
    ]
    empty, outside, inside = sequences.verdicts(rows)
    assert empty.quantity == "correlation with the Graph-SVM outside the span of ties, acyclic, d=10, n=4, T=5"
    assert math.isnan(empty.measured)
    assert empty.note == "The graphs have no cycle in 1 of 1 trials."
    assert outside.quantity == "correlation with the Graph-SVM outside the span of ties, cyclic, d=10, n=4, T=5"
    assert (outside.measured, outside.trials, outside.infeasible) == (pytest.approx(0.85), 3, 1)
    assert (outside.low, outside.high) == bootstrap_interval([0.9, 0.8])
    assert outside.note == ("The graphs have no cycle in 1 of 3 trials. W as a whole, finite part included: 0.750.")
    assert inside.quantity == (
        "distance of W inside the span of ties from W^fin, relative to W^fin, cyclic, d=10, n=4, T=5"
    )
    assert (inside.measured, inside.trials, inside.infeasible) == (pytest.approx(0.4), 3, 0)
    assert (inside.low, inside.high) == bootstrap_interval([0.3, 0.5])
    assert inside.note == (
        "0.55 after a tenth of the steps. W^fin is 0.13 of the length of W; none would be at distance 1."
    )


FIGURE = [
    row("cyclic", 6, curve=[0.0, 0.5, 0.75]),
    row("cyclic", 6, curve=[0.0, 0.25, 0.5]),
    row("cyclic", 6, curve=[0.0, 0.75, 0.625]),
    row("causal", 5, curve=[0.0, 0.9, 0.99], control=0.25),
    row("causal", 5, infeasible=True, control=0.5),
    row("causal", 20, curve=[0.0, 0.5, 0.875]),
    row("sequence", 20, curve=[0.0, 0.5, 0.875]),
]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_figure_has_one_panel_per_setting_of_the_rows(width: float) -> None:
    figure = sequences.figure(FIGURE, width)
    names = ["every token is a query", "every token is a query, causal", "next token, cycles"]
    assert titles(figure.axes) == names
    assert in_one_column(figure) is (width == NARROW)
    assert {place.get_gridspec().ncols for ax in figure.axes if (place := ax.get_subplotspec())} == {
        1 + (width == WIDE)
    }
    assert 2.4 < panel_height(figure) < 3.5
    assert {(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes} == {("step", "median 1 - correlation")}
    assert {(ax.get_xscale(), ax.get_yscale()) for ax in figure.axes} == {("log", "log")}
    assert set(legend_words(figure.axes)) == {"d = 5", "d = 6", "d = 20", "shuffled selections"}
    (alone,) = sequences.figure(FIGURE[:3], width).axes
    assert alone.get_title("left") == "next token, cycles"
    (acyclic,) = sequences.figure([row("acyclic", curve=[0.0, 0.5, 0.5])], width).axes
    assert acyclic.get_title("left") == "next token, no cycles"


def test_curves_are_medians_of_errors_after_the_start() -> None:
    sequence, causal, cyclic = sequences.figure(FIGURE).axes
    drawn = curves(cyclic)["d = 6"]
    # The record at step 0 has no place on a logarithmic axis.
    assert (drawn.x, drawn.y) == ([30, 100], [0.5, 0.375])
    assert (drawn.low[0], drawn.high[0]) == (0.25, 0.75)
    looks = {(ax.get_title("left"), one.label): one.look for ax in (sequence, causal, cyclic) for one in all_curves(ax)}
    assert [looks[key] for key in looks] == [2, 0, 2, 1]
    assert curves(causal)["d = 5"].y == pytest.approx([0.1, 0.01])
    assert levels(causal) == {"shuffled selections": 0.625}
    assert levels(sequence) == levels(cyclic) == {}
