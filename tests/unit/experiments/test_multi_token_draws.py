"""Draws of the ReLU head: instances, the filter of the paper, and what a row says of an accepted draw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, TokenData, correlation, solve, svm_equivalent, train
from attsvm.data.synthetic import random_trial
from attsvm.nn.heads import ReLUHead
from attsvm_paper.figures import multi_token
from attsvm_paper.figures.multi_token import FULL_DRAWS, QUICK_DRAWS, Config, Numerics, instance, sweep, trials
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.instances import start_seeds
from attsvm_paper.published.numerics import descent

SEEDS = np.array([2, 3, 5, 7, 11])
NOTHING = dict.fromkeys(("equivalent", "mm", "single", "step", "masked", "selected"))


def test_the_sweep_has_the_published_settings_and_about_500_accepted_draws() -> None:
    """v1, p. 14: n = 3, T = 4, d = 4 to 10, 2,000 iterations, 500 accepted; docs/paper.md has the shares accepted."""
    for cells, draws, exact in ((sweep("full"), FULL_DRAWS, 1000), (sweep("quick"), QUICK_DRAWS, 200)):
        assert {(cell.n, cell.T, cell.steps) for cell in cells} == {(3, 4, 2001)}
        assert [(cell.d, cell.trials) for cell in cells if cell.numerics == "published"] == list(draws.items())
        assert [(cell.d, cell.trials) for cell in cells if cell.numerics == "exact"] == [(4, exact), (6, exact)]
    assert tuple(FULL_DRAWS) == (4, 6, 8, 10)
    for share, draws in zip((0.24, 0.11, 0.05, 0.02), FULL_DRAWS.values(), strict=True):
        assert share * draws == pytest.approx(500, rel=0.15)


def test_labels_are_redrawn_until_one_is_negative() -> None:
    """v1, p. 14; V has norm one."""
    redrawn = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        tokens, queries, labels, _ = random_trial(rng, 2, 3, 4)
        while labels.tolist() == [1.0, 1.0]:
            labels = np.where(rng.integers(0, 2, 2) == 0, -1.0, 1.0)
            redrawn += 1
        V = rng.standard_normal((4, 4))
        ours = instance(seed, 2, 3, 4)
        for one, other in zip(ours, (tokens, queries, labels, V / np.sqrt((V**2).sum())), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-14)
    assert redrawn > 1


def dead(seed: int, attention: np.ndarray, n: int, T: int, d: int) -> int:
    """Number of queries all of whose units are in the flat part of the ReLU."""
    tokens, _, _, V = instance(seed, n, T, d)
    return int(((np.einsum("nt,ntd->nd", attention, tokens) @ V) <= 0).all(1).sum())


@pytest.mark.parametrize("numerics", ["exact", "published"])
def test_a_draw_is_a_run_from_the_seeds_own_start(numerics: Numerics) -> None:
    """Linear's default start and normalised descent with step 0.1: each seed trained alone. Ten steps mask nothing."""
    rows = trials(Config(3, numerics, n=2, T=3, steps=10), SEEDS[:3])
    for seed, row in zip(SEEDS, rows, strict=False):
        tokens, queries, labels, V = instance(int(seed), 2, 3, 3)
        trace = train(
            TokenData(tokens, queries, labels), ReLUHead(V), steps=10, init="torch",
            seed=int(start_seeds([seed])[0]), **descent(numerics, "W"),
        )  # fmt: skip
        size = float(np.sqrt((np.asarray(trace.W[-1]) ** 2).sum()))
        number = dead(int(seed), np.asarray(trace.attention[-1]), 2, 3, 3)
        assert row == {
            "seed": seed,
            "dead": number,
            "norm": pytest.approx(size, rel=1e-9),
            "state": "finite",
            **NOTHING,
        }


ENDS = np.array(
    [
        # An output at the upper edge is not selected yet, one at the lower edge is masked.
        [[1 - 1e-3, 1e-3, 0.0], [0.4, 0.3, 0.3]],
        [[0.5, 0.5 - 1e-6, 1e-6], [0.4, 0.3, 0.3]],
        [[0.2, 0.3, 0.5], [0.4, 0.3, 0.3]],
        [[0.3, 0.7, 0.0], [1e-9, 1e-8, 1 - 1.1e-8]],
        [[0.0, 1.0, 0.0], [0.8, 0.0, 0.2]],
    ]
)


def rows_of(monkeypatch: pytest.MonkeyPatch, steps: int = 250) -> tuple[list[Row], np.ndarray, dict[str, Any]]:
    """Rows of runs that end with the attention of ENDS, their W (B, records, d, d), and the options of training."""
    said: dict[str, Any] = {}
    W = np.random.default_rng(1).standard_normal((5, 30, 4, 4))

    def ended(data: TokenData, head: ReLUHead, **options: Any) -> SimpleNamespace:
        said.update(options, data=data, head=head)
        step = np.array([0, *options["record_every"]])
        attention = np.full((5, len(step), 2, 3), 1 / 3)
        attention[:, -1] = ENDS
        return SimpleNamespace(attention=attention, W=W[:, : len(step)], step=step)

    monkeypatch.setattr(multi_token, "train", ended)
    return trials(Config(4, n=2, T=3, steps=steps), SEEDS), W, said


def test_draws_are_classified_by_their_last_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """v1, pp. 14 to 16: selected above 1e-3, masked up to 1e-6. A token exactly there has no SVM equivalent."""
    rows, W, _ = rows_of(monkeypatch)
    assert [row["state"] for row in rows] == ["undecided", "infeasible", "finite", "accepted", "accepted"]
    for b, (seed, row) in enumerate(zip(SEEDS, rows, strict=True)):
        assert row["seed"] == seed
        assert row["norm"] == pytest.approx(np.sqrt((W[b, 4] ** 2).sum()))
        assert row["dead"] == dead(int(seed), ENDS[b], 2, 3, 4)
        if row["state"] != "accepted":
            assert {name: row[name] for name in NOTHING} == NOTHING
    assert [row["masked"] for row in rows[3:]] == [1e-8, 0.0]
    assert [row["selected"] for row in rows[3:]] == [1.5, 1.5]


def test_queries_without_gradient_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_token, "instance", lambda seed, n, T, d: drawn[int(seed)])
    drawn = {int(seed): instance(int(seed), 2, 3, 4) for seed in SEEDS}
    for at, (tokens, _, _, V) in enumerate(drawn.values()):
        # Tokens that every unit of V maps to the same sign: queries below `at` are dead.
        tokens[:] = np.linalg.solve(V.T, -np.ones(4))
        tokens[min(at, 2) :] *= -1
    rows, _, _ = rows_of(monkeypatch)
    assert [row["dead"] for row in rows] == [0, 1, 2, 2, 2]


def test_records_are_those_of_figure_8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations 0 to 2,000 by 100; iteration k is W after k + 1 steps."""
    rows, _, said = rows_of(monkeypatch)
    assert said["record_every"] == rows[3]["step"] == [1, 101, 201, 250]
    assert rows_of(monkeypatch, 2001)[2]["record_every"] == [1 + 100 * k for k in range(21)]
    np.testing.assert_array_equal(said["data"].labels, [instance(int(seed), 2, 3, 4)[2] for seed in SEEDS])


def test_w_is_compared_with_its_svm_equivalent_both_parts_and_the_top_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coefficient of W^mm is that of least squares, as in the official code."""
    rows, W, _ = rows_of(monkeypatch)
    for b in (3, 4):
        tokens, queries, labels, _ = instance(int(SEEDS[b]), 2, 3, 4)
        finite = np.asarray(svm_equivalent(TokenData(tokens, queries, labels), ENDS[b], W[b, 4]).W_fin)
        mm = np.asarray(solve(SelectionProblem(tokens, queries, ENDS[b] > 1e-3)).W)
        single = np.asarray(solve(SelectionProblem(tokens, queries, [(1, 2), (1, 0)][b - 3])).W)
        coefficient = (mm * (W[b, 4] - finite)).sum() / (mm**2).sum()
        for name, target in (("equivalent", finite + coefficient * mm), ("mm", mm), ("single", single)):
            expected = [1 - float(correlation(one, target)) for one in W[b, 1:5]]
            assert rows[b][name] == pytest.approx(expected, abs=1e-6)


def test_top_tokens_without_an_svm_make_a_draw_infeasible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_token, "solve", lambda _: SimpleNamespace(objective=np.inf, W=np.full((4, 4), np.nan)))
    rows, _, _ = rows_of(monkeypatch)
    assert [row["state"] for row in rows] == ["undecided", "infeasible", "finite", "infeasible", "infeasible"]
    assert {name: rows[3][name] for name in NOTHING} == NOTHING
