"""Mirror descent (arXiv 2410.14581): what a trial records, the places of the norms, and the figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from attsvm import SelectionProblem, TokenData, solve, train
from attsvm.data.synthetic import random_trial
from attsvm.plots.style import NARROW, WIDE
from attsvm.training.optimisers.steepest import MirrorDescent
from attsvm_paper.figures.mirror_descent import Config, figure, sweep, trials, verdicts
from attsvm_paper.judging.comparison import mean_verdict, share_verdict, value_verdict
from attsvm_paper.judging.estimates import at_records
from attsvm_paper.judging.statistics import bootstrap_interval
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.published.instances import draw, start_seeds
from drawn import all_curves, heading, in_one_column, legend_words, ticks, titles

NAME = "mirror-descent"
NORMS = (1.75, 2.0, 3.0)
WORDS = ("l1.75", "l2", "l3")


@pytest.mark.parametrize("effort", ["quick", "full"])
def test_both_sizes_run_the_potentials_of_the_paper(effort: Any) -> None:
    """arXiv 2410.14581: p = 1.75, 2 and 3 with n = 6, T = 8, d = 10, 100 trials."""
    cells = sweep(effort)
    assert [cell.p for cell in cells] == [1.75, 2.0, 3.0]
    assert {(c.n, c.T, c.d, c.trials, c.lr, c.steps) for c in cells} == {(6, 8, 10, 100, 0.1, 10_000)}


@pytest.mark.parametrize("p", [1.0, 1.5, 4.0])
def test_other_potentials_are_refused(p: float) -> None:
    with pytest.raises(ValueError, match=f"p is {p:g}; one of 1.75, 2, 3 was expected"):
        Config(p)


@pytest.mark.parametrize(
    "config", [Config(1.75, 2, 3, 3, steps=22), Config(3.0, 2, 3, 2, lr=0.3, steps=10), Config(2.0, 1, 3, 1, steps=5)]
)
def test_a_row_has_the_correlations_with_the_svm_of_its_tokens_in_each_norm(config: Config) -> None:
    seeds = [3, 4, 5, 6, 7, 8]
    found = trials(config, np.array(seeds))
    assert [row["seed"] for row in found] == seeds
    instances = draw(seeds, config.n, config.T, config.d)
    trace = train(
        instances.data, instances.v, steps=config.steps, optimizer=MirrorDescent(lr=config.lr, p=config.p),
        init="torch", seed=start_seeds(seeds), record_every=1,
    )  # fmt: skip
    records = sorted({step for step in (1, 2, 5, 10, 20) if step <= config.steps} | {config.steps})
    for row, W in zip(found, np.asarray(trace.W), strict=True):
        *parts, _ = random_trial(np.random.default_rng(row["seed"]), config.n, config.T, config.d)
        data = TokenData(*parts)
        attention = softmax(np.einsum("ntd,de,ne->nt", data.tokens, W[-1], data.queries), -1)
        assert row["step"] == records
        assert row["attention"] == pytest.approx(attention.max(-1).mean())
        problem = SelectionProblem(data.tokens, data.queries, attention.argmax(-1))
        for q, word in zip(NORMS, WORDS, strict=True):
            solution = solve(problem, q)
            assert row["feasible"] == bool(np.isfinite(solution.objective))
            if not row["feasible"]:
                assert row[word] is None
                continue
            target = np.asarray(solution.W)
            cosines = [(w * target).sum() / np.linalg.norm(w) / np.linalg.norm(target) for w in W[records]]
            assert row[word] == pytest.approx(cosines, abs=1e-5)
    assert {row["feasible"] for row in found} == ({True, False} if config.d == 1 else {True})


def made(p: float, ends: Sequence[Sequence[float] | None], steps: Sequence[int] = (1, 10, 100)) -> list[Row]:
    """Make a row for each triple of last correlations; None has no SVM."""
    rows: list[Row] = []
    for seed, triple in enumerate(ends):
        row: Row = {"p": p, "n": 6, "T": 8, "d": 10, "seed": seed, "step": list(steps), "feasible": triple is not None}
        for at, word in enumerate(WORDS):
            before = [0.1 + 0.05 * at + 0.01 * seed, 0.5 + 0.02 * seed]
            row[word] = None if triple is None else [*before[: len(steps) - 1], triple[at]]
        rows.append(row)
    return rows


ENDS = [(0.9, 0.99, 0.7), (0.95, 0.98, 0.8), None, (0.97, 0.96, 0.9), (0.93, 0.99, 0.95)]


@pytest.mark.parametrize(
    # The means are 0.9375, 0.98 and 0.8375; of four trials the second norm is closest in three.
    ("p", "word", "place", "first"),
    [(1.75, "l1.75", 2.0, 1), (2.0, "l2", 1.0, 3), (3.0, "l3", 3.0, 0)],
)
def test_norms_are_placed_by_mean_correlation(p: float, word: str, place: float, first: int) -> None:
    found = verdicts(made(p, ENDS))
    ends = np.array([triple for triple in ENDS if triple is not None])
    own = WORDS.index(word)

    def place_of(values: np.ndarray, axis: int = 0) -> float:
        return 1.0 + sorted(values.mean(axis), reverse=True).index(values.mean(axis)[own])

    assert place_of(ends) == place
    low, high = bootstrap_interval(ends, place_of)
    expected: list[Verdict] = [
        value_verdict(
            NAME, f"place of the {word} SVM among three by mean correlation, {word} descent", place, low, high,
            trials=5, infeasible=1,
        ),
        share_verdict(
            NAME, f"share of trials closest to the {word} SVM, {word} descent", first, 4, trials=5, infeasible=1
        ),
    ]  # fmt: skip
    expected += [
        mean_verdict(
            NAME, f"1 - correlation with the {other} SVM, {word} descent", 1 - ends[:, at], interval="bootstrap",
            trials=5, infeasible=1,
        )
        for at, other in enumerate(WORDS)
    ]  # fmt: skip
    assert found == expected


def test_a_norm_that_ties_with_another_is_not_behind_it() -> None:
    place, _, *others = verdicts(made(3.0, [(0.9, 0.9, 0.9), (0.8, 0.8, 0.8)]))
    assert (place.measured, place.low, place.high) == (1.0, 1.0, 1.0)
    assert [one.measured for one in others] == [pytest.approx(0.15)] * 3


def test_a_descent_without_an_svm_has_no_verdict() -> None:
    assert verdicts(made(2.0, [None, None])) == []
    found = verdicts([*made(3.0, ENDS), *made(1.75, [None]), *made(2.0, ENDS)])
    assert [one.quantity.split(", ")[1] for one in found] == ["l2 descent"] * 5 + ["l3 descent"] * 5


def nines(values: np.ndarray) -> np.ndarray:
    # An interval may end beyond a correlation of one, which has no logarithm.
    return -np.log10(np.maximum(1 - values, 1e-12))


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_each_descent_has_a_panel_with_the_three_norms(width: float) -> None:
    cells = {p: made(p, ENDS[at:], steps) for at, (p, steps) in enumerate(((2.0, (1, 100)), (3.0, (1, 10, 1000))))}
    drawing = figure([row for cell in reversed(cells.values()) for row in cell], width)
    axes = drawing.axes
    assert in_one_column(drawing) == (width == NARROW)
    assert 2 < drawing.get_figheight() / (2 if width == NARROW else 1) < 4
    assert titles(axes) == ["mirror descent, p = 2", "mirror descent, p = 3"]
    assert heading(axes) == (
        "Mirror descent and the SVM of its norm, n = 6, T = 8, d = 10 (mean over trials, 95 % interval)"
    )
    labels = [rf"$\ell_{{{q}}}$ SVM" for q in ("1.75", "2", "3")]
    for ax, cell in zip(axes, cells.values(), strict=True):
        assert [(one.label, one.style, one.look) for one in all_curves(ax)] == [
            (label, "-", look) for look, label in enumerate(labels)
        ]
        for one, word in zip(all_curves(ax), WORDS, strict=True):
            one.shows(at_records(cell[0]["step"], [row[word] for row in cell if row["feasible"]], "mean"), nines)
        assert ax.get_xlim() == pytest.approx((1, 1.2 * cell[0]["step"][-1]))
        assert ax.get_ylim() == pytest.approx((-0.05, 5.6))
        assert list(ticks(ax.yaxis).items()) == [
            (pytest.approx(nines(np.array(tick))), label)
            for tick, label in (
                (0, "0"), (0.9, "0.9"), (0.99, "0.99"), (0.999, "0.999"), (0.9999, "0.9999"), (0.99999, "0.99999"),
            )
        ]  # fmt: skip
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("training step", "mean correlation")
    assert legend_words(axes) == labels


def test_a_descent_without_an_svm_has_an_empty_panel() -> None:
    axes = figure([*made(1.75, ENDS), *made(3.0, [None])]).axes
    assert [len(all_curves(ax)) for ax in axes] == [3, 0]
    assert axes[1].get_xlim() == pytest.approx((1, 120))


def test_one_trial_can_be_drawn() -> None:
    (ax,) = figure(made(2.0, ENDS[:1])).axes
    assert [one.y[-1] for one in all_curves(ax)] == pytest.approx([1, 2, -np.log10(0.3)])
