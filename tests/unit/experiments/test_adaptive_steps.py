"""Adaptive steps from random starts: the two settings' data, the ends and rates of runs, their verdicts and figure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, TokenData, solve, train
from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.beyond import adaptive_steps
from attsvm_paper.beyond.adaptive_steps import NOISE, RULES, SETTINGS, SIGNAL, Config, draw_data, figure, sweep, trials
from attsvm_paper.beyond.adaptive_steps import verdicts as verdicts_of
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.statistics import wilson_interval
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.instances import start_seeds

SEEDS = [3, 8]


@pytest.mark.parametrize(("effort", "steps", "count"), [("full", 30_000, 60), ("quick", 2000, 24)])
def test_both_settings_run_under_all_rules(effort: Any, steps: int, count: int) -> None:
    """docs/findings.md: 60 starts in each of six cells, 30,000 steps; a quick run of 2,000 steps."""
    cells = sweep(effort)
    assert [(one.setting, one.rule) for one in cells] == [(setting, rule) for setting in SETTINGS for rule in RULES]
    assert len(cells) == 6
    assert {(one.steps, one.trials) for one in cells} == {(steps, count)}


def test_the_least_sizes_are_taken_and_smaller_ones_refused() -> None:
    least = {"n": 1, "T": 2, "d": 2}
    Config("gaussian", "plain", **least)
    for name, size in least.items():
        with pytest.raises(ValueError, match="at least 1, 2 and 2 were expected"):
            Config("gaussian", "plain", **least | {name: size - 1})


@pytest.mark.parametrize(("setting", "rule"), [("uniform", "plain"), ("gaussian", "adam")])
def test_unknown_settings_and_rules_are_refused(setting: Any, rule: Any) -> None:
    with pytest.raises(ValueError, match=f"setting is '{setting}' and rule '{rule}'"):
        Config(setting, rule)


def test_orthogonal_tokens_are_orthonormal_and_all_but_the_best_score_zero() -> None:
    n, T = 3, 4
    tokens, queries, labels, head = draw_data(np.random.default_rng(5), "orthogonal", n, T, 99)
    rows = tokens.reshape(n * T, n * T)
    np.testing.assert_allclose(rows @ rows.T, np.eye(n * T), atol=1e-14)
    np.testing.assert_array_equal(queries, tokens[:, 0])
    scores = np.sort(labels[:, None] * (tokens @ head), axis=1)
    # The head is the sum of the best tokens, each with its label.
    np.testing.assert_allclose(scores, np.broadcast_to([0.0] * (T - 1) + [1.0], (n, T)), atol=1e-14)


def test_every_draw_follows_its_seed_in_a_fixed_order() -> None:
    """Labels come first, then the best tokens, the directions and the noise."""
    n, T, d, seed = 3, 4, 5, 2
    for setting in SETTINGS:
        rng = np.random.default_rng(seed)
        labels, best = rng.choice([-1.0, 1.0], n), rng.integers(T, size=n)
        tokens, queries, drawn, head = draw_data(np.random.default_rng(seed), setting, n, T, d)
        np.testing.assert_array_equal(drawn, labels)
        np.testing.assert_array_equal(queries, tokens[:, 0])
        if setting == "orthogonal":
            np.testing.assert_array_equal((labels[:, None] * (tokens @ head)).argmax(1), best)
            continue
        direction = rng.standard_normal(d)
        direction /= np.linalg.norm(direction)
        assert abs(direction @ head) == pytest.approx(1)
        noise = NOISE * rng.standard_normal((n, T, d)) * d**-0.5
        noise[range(n), best] += SIGNAL * labels[:, None] * head
        np.testing.assert_allclose(tokens, noise, rtol=1e-14)


def line(x: Any, y: Any) -> float:
    """Slope of the least squares line."""
    x, y = np.asarray(x) - np.mean(x), np.asarray(y) - np.mean(y)
    return float(x @ y / (x @ x))


@pytest.mark.parametrize(
    ("setting", "rule", "steps"),
    [
        ("orthogonal", "plain", 47),
        ("orthogonal", "polyak", 23),
        ("gaussian", "normalised", 47),
        ("gaussian", "plain", 2),
    ],
)
def test_a_row_states_share_and_slopes_of_the_last_decade(setting: Any, rule: Any, steps: int) -> None:
    n, T, d = 2, 3, 4
    rows = trials(Config(setting, rule, n, T, d, steps=steps), SEEDS)
    # Seven records at equal ratios, between a tenth of the steps and the last one.
    first = max(steps // 10, 1)
    marks = sorted({round(first * (steps / first) ** (k / 6)) for k in range(7)})
    for row, seed, start_seed in zip(rows, SEEDS, start_seeds(SEEDS), strict=True):
        tokens, queries, labels, head = draw_data(np.random.default_rng(seed), setting, n, T, d)
        width = tokens.shape[2]
        start = np.random.default_rng(start_seed).standard_normal((width, width))
        trace = train(TokenData(tokens, queries, labels), head, optimizer=RULES[rule], steps=steps, record_every=marks,
                      init=start / np.sqrt((start**2).sum()))  # fmt: skip
        best = (labels[:, None] * (tokens @ head)).argmax(1)
        least = solve(SelectionProblem(tokens, queries, best)).objective
        norms, shares, left = [], [], []
        for W, attention in zip(np.asarray(trace.W)[1:], np.asarray(trace.attention)[1:], strict=True):
            scores = np.einsum("itd,de,ie->it", tokens, W, queries)
            margins = [scores[i, best[i]] - scores[i, t] for i in range(n) for t in range(T) if t != best[i]]
            norms.append(np.sqrt((W**2).sum()))
            shares.append(min(margins) / norms[-1] * least)
            left.append(max(np.delete(attention[i], best[i]).sum() for i in range(n)))
        assert row["seed"] == seed
        assert row["feasible"]
        assert row["selects"] == bool((np.asarray(trace.selected) == best).all())
        # The norm of the SVM is certified to 1e-9.
        assert row["share"] == pytest.approx(shares[-1], rel=1e-8)
        if row["selects"]:
            assert row["rate"] == pytest.approx(line(np.log(marks), np.log(1 - np.array(shares))), rel=1e-3)
            slope = line(np.array(norms) / least, np.log(left))
            assert row["sparsification"] == pytest.approx(slope, rel=1e-5)
        else:
            assert row["rate"] is row["sparsification"] is None


def test_a_row_does_not_depend_on_the_batch_it_is_computed_in() -> None:
    config = Config("gaussian", "normalised", 2, 3, 4, steps=20)
    alone = trials(config, SEEDS[1:])[0]
    assert trials(config, SEEDS)[1] == pytest.approx(alone, rel=1e-9)


def test_runs_of_one_step_are_lengthened_to_two(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def watch(*arguments: Any, **options: Any) -> Any:
        seen.update(options)
        return train(*arguments, **options)

    monkeypatch.setattr(adaptive_steps, "train", watch)
    trials(Config("orthogonal", "plain", 2, 2, steps=1), [1])
    assert (seen["steps"], seen["record_every"]) == (2, [1, 2])
    trials(Config("orthogonal", "plain", 2, 2, steps=60), [1])
    assert (seen["steps"], seen["record_every"]) == (60, [6, 9, 13, 19, 28, 41, 60])


def rows_of_records(
    monkeypatch: pytest.MonkeyPatch, shortfalls: list[float], left: list[float], selects: bool = True
) -> Row:
    """The row of one sequence of two orthonormal tokens whose W have these shortfalls and leave this attention."""
    rng = np.random.default_rng(4)
    tokens, queries, labels, head = draw_data(rng, "orthogonal", 1, 2, 2)
    best = int((labels * (tokens[0] @ head)).argmax())
    apart = tokens[0, best] - tokens[0, 1 - best]
    # The smallest W of margin one is apart queries^T / 2; across it lies the sum of the tokens.
    along = np.outer(apart, queries[0]) / np.sqrt(2)
    across = np.outer(tokens[0].sum(0), queries[0]) / np.sqrt(2)
    angles = [np.arccos(1 - short) for short in shortfalls]
    W = [length * (np.cos(a) * along + np.sin(a) * across) for length, a in enumerate(angles, 1)]
    attention = np.zeros((len(left), 1, 2))
    attention[:, 0, 1 - best] = left
    attention[:, 0, best] = 1 - np.array(left)
    trace = SimpleNamespace(
        W=np.stack([0 * along, *W])[None],
        attention=np.concatenate([np.full((1, 1, 2), 0.5), attention])[None],
        selected=np.array([[best if selects else 1 - best]]),
    )
    monkeypatch.setattr(adaptive_steps, "train", lambda *_, **__: trace)
    # The draw of seed 4 is the one above; there are as many records as the last decade of steps has.
    (row,) = trials(Config("orthogonal", "plain", 1, 2, 2, steps=len(left)), [4])
    return row


def test_records_nearer_to_the_svm_than_its_accuracy_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: at steps 1, 2 and 3 W has the lengths 1, 2 and 3, and the SVM's norm is 1/sqrt(2)."""
    row = rows_of_records(monkeypatch, [0.1, 0.01, 1e-10], [0.2, 0.02, 0.002])
    assert row["share"] == pytest.approx(1, abs=1e-8)
    assert row["rate"] == pytest.approx(np.log(0.1) / np.log(2), rel=1e-5)
    # A factor of ten for every sqrt(2) of the norm.
    assert row["sparsification"] == pytest.approx(np.log(0.1) / np.sqrt(2), rel=1e-6)
    # One record has no slope.
    row = rows_of_records(monkeypatch, [0.1, 1e-10, 1e-11], [0.2, 0.02, 0.002])
    assert row["rate"] is None
    assert row["sparsification"] is not None


def test_records_that_leave_no_attention_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    row = rows_of_records(monkeypatch, [0.4, 0.2, 0.1], [0.2, 0.1, 0.0])
    assert row["sparsification"] == pytest.approx(np.log(0.5) / np.sqrt(2), rel=1e-6)
    row = rows_of_records(monkeypatch, [0.4, 0.2, 0.1], [0.2, 0.0, 0.0])
    assert row["sparsification"] is None
    assert row["rate"] is not None


def test_runs_that_end_at_other_tokens_have_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    row = rows_of_records(monkeypatch, [0.4, 0.2, 0.1], [0.2, 0.1, 0.05], selects=False)
    assert not row["selects"]
    assert row["share"] == pytest.approx(0.9)
    assert row["rate"] is row["sparsification"] is None


def test_an_infeasible_instance_has_neither_share_nor_rates() -> None:
    # Thirty tokens in the plane lie on all sides of the best ones.
    rows = trials(Config("gaussian", "plain", 6, 5, 2, steps=20), range(6))
    infeasible = [row for row in rows if not row["feasible"]]
    assert infeasible
    assert all(row["share"] is row["rate"] is row["sparsification"] is None for row in infeasible)


def row_of(setting: str, rule: str, rate: float | None = None, **other: Any) -> Row:
    return {
        "setting": setting, "rule": rule, "n": 6, "T": 5, "d": 40, "trials": 3, "selects": True, "feasible": True,
        "rate": rate, "share": 0.5, "sparsification": None,
    } | other  # fmt: skip


ROWS = [
    row_of("gaussian", "normalised", -1.1, share=0.75, sparsification=-1.0),
    row_of("gaussian", "normalised", -0.9, share=0.25, sparsification=-1.02),
    row_of("gaussian", "normalised", share=None, selects=False, feasible=False),
    row_of("orthogonal", "normalised", -2.0, share=0.99),
    row_of("orthogonal", "normalised", -2.2, share=0.97),
    row_of("orthogonal", "plain", -0.36, share=0.9, d=7),
    row_of("orthogonal", "plain", -0.2, share=0.8, d=7),
]


def test_verdicts_state_ends_and_rates_with_what_was_predicted() -> None:
    found = {one.quantity: one for one in verdicts_of(ROWS)}
    where = "normalised steps, gaussian data, n=6, T=5, d=40"
    other, plain = "normalised steps, orthogonal data, n=6, T=5", "plain steps, orthogonal data, n=6, T=5"
    selects = "share of random starts that select the optimal tokens"
    rate = "slope of the margin's log shortfall over log steps"
    sparsification = "slope of the log of attention left over the norm in units of the SVM's"
    assert list(found) == [
        f"{selects}, {where}", f"{rate}, {where}", f"{sparsification}, {where}",
        f"{selects}, {other}", f"{rate}, {other}", f"{selects}, {plain}", f"{rate}, {plain}",
    ]  # fmt: skip
    share = found[f"{selects}, {where}"]
    assert (share.measured, (share.low, share.high)) == (2 / 3, wilson_interval(2, 3))
    assert share.note.startswith("Predicted by theorem: 0.85 to 1, undecided. arXiv 2402.05738")
    one = found[f"{rate}, {where}"]
    ours = estimate([-1.1, -0.9], "bootstrap")
    assert (one.measured, one.low, one.high, one.trials, one.infeasible) == (-1.0, ours.low, ours.high, 3, 1)
    assert one.note.startswith("Share of the largest margin at the end 0.5000. Predicted by calculation: -1.3 to -0.7,")
    assert one.note == (
        "Share of the largest margin at the end 0.5000. Predicted by calculation: -1.3 to -0.7, hit. The norm grows "
        "like k, and the margin of a linear model lacks a constant over its norm."
    )
    one = found[f"{sparsification}, {where}"]
    assert (one.measured, one.trials, one.infeasible) == (pytest.approx(-1.01), 3, 1)
    assert "Predicted by calculation: -1.05 to -0.95, hit." in one.note
    one = found[f"{rate}, {other}"]
    assert (one.measured, one.trials, one.infeasible) == (pytest.approx(-2.1), 2, 0)
    assert "at the end 0.9800. Predicted by calculation: -1.3 to -0.7, miss." in one.note
    # The interval holds one mean below the bound and one within.
    assert "at the end 0.8500. Predicted by calculation: -0.35 to 0, undecided." in found[f"{rate}, {plain}"].note
    assert verdicts_of([]) == []


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_figure_puts_both_settings_next_to_each_other(width: float) -> None:
    axes: Any = figure(ROWS, width).axes
    assert [ax.get_title("left") for ax in axes] == ["margin at the end", "rate", "sparsification"]
    assert [ax.get_ylabel() for ax in axes] == ["share of the largest", "slope over log steps", "slope over the norm"]
    # Names are below the middle of their two settings; -0.08 is the first's place beside it, 0.08 the second's.
    points = [
        {"orthogonal data": {-0.08: 0.85, 0.92: 0.98}, "gaussian data": {1.08: 0.5}},
        {"orthogonal data": {-0.08: -0.28, 0.92: -2.1}, "gaussian data": {1.08: -1.0}},
        {"gaussian data": {1.08: -1.01}},
    ]
    for ax, expected, level in zip(axes, points, (1, -1, -1), strict=True):
        found = {}
        for bars in ax.containers:
            line = bars.lines[0]
            assert line.get_linestyle() == "None"
            found[bars.get_label()] = dict(zip(*line.get_data(), strict=True))
        assert list(found) == list(expected)
        for label, values in expected.items():
            assert list(found[label]) == pytest.approx(list(values))
            assert list(found[label].values()) == pytest.approx(list(values.values()))
        assert list(ax.get_xticks()) == [0, 1, 2]
        assert [tick.get_text() for tick in ax.get_xticklabels()] == ["plain", "normalised", "polyak"]
        assert ax.get_xlim() == (-0.5, 2.5)
        assert ax.get_xlabel() == "steps"
        *_, rule = ax.get_lines()
        assert list(rule.get_ydata()) == [level, level]
        # A rule of reference is thinner than a curve.
        assert rule.get_linewidth() < 1
    colors = {bars.get_label(): bars.lines[0].get_color() for bars in axes[0].containers}
    assert len(set(colors.values())) == 2
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == list(points[0])
    assert axes[1].get_legend() is axes[2].get_legend() is None


def test_a_figure_without_any_margin_has_no_legend() -> None:
    (first, *_) = figure([row_of("gaussian", "plain", share=None, feasible=False)]).axes
    assert first.get_legend() is None
