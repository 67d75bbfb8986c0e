"""The concave head: its instances, the attention that Lemma 6 names, and what a row says of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attsvm import TokenData, correlation, train
from attsvm.data.synthetic import random_trial
from attsvm.nn.heads import LambdaHead
from attsvm.theory.equivalence import EquivalenceStatus
from attsvm_paper.figures import lambda_head
from attsvm_paper.figures.lambda_head import Config, best_attention, constrained, instance, sweep, trials
from attsvm_paper.published.instances import start_seeds
from attsvm_paper.published.numerics import descent

PRINTED_LAMBDAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5)
SEEDS = np.array([3, 5, 8, 9])


def kept(gamma: Any, lam: float) -> int:
    """Size of the support of sparsemax(gamma / (2 lambda)): the largest k whose k-th score exceeds the threshold."""
    ordered = np.sort(gamma)[::-1]
    sizes = np.arange(1, len(ordered) + 1)
    return int(sizes[ordered * sizes > np.cumsum(ordered) - 2 * lam].max(initial=1))


# --- settings ---


def test_a_full_run_has_the_published_settings() -> None:
    """v1, pp. 15 and 54: n = 1, T = d = 10, 5,000 iterations; the shares of Fig. 12 are multiples of 1/500."""
    cells = sweep("full")
    assert {(cell.T, cell.d) for cell in cells} == {(10, 10)}
    trained = [cell for cell in cells if cell.numerics != "lemma"]
    assert {cell.steps for cell in trained} == {5001}
    exact = {cell.lam: cell.trials for cell in trained if cell.numerics == "exact"}
    assert set(exact) == {*PRINTED_LAMBDAS, 0.1, 2.8, 3.0}
    # 100 trials are printed; a quarter of ours is more than the least share that the filter accepts.
    assert set(exact.values()) == {400}
    published = {cell.lam: cell.trials for cell in trained if cell.numerics == "published"}
    assert published == dict.fromkeys((0.0, 0.1, 0.2, 1.0), 100)
    bounded = [cell for cell in cells if cell.tau]
    assert [(cell.tau, cell.lam, cell.numerics, cell.steps, cell.trials) for cell in bounded] == [
        (tau, 0.0, "lemma", 0, 500) for tau in range(2, 10)
    ]
    free = [cell for cell in cells if cell.numerics == "lemma" and not cell.tau]
    assert [(cell.lam, cell.steps, cell.trials) for cell in free] == [
        (lam, 0, 1000) for lam in (*PRINTED_LAMBDAS, 2.8, 3.0)
    ]


def test_a_quick_run_has_a_hundred_trials_of_fewer_lambdas() -> None:
    quick, full = sweep("quick"), sweep("full")
    exact = [cell for cell in quick if cell.numerics == "exact"]
    assert [cell.lam for cell in exact] == [0.0, 0.1, 0.2, 0.4, 0.6, 1.0, 1.2, 1.4, 2.0, 3.0]
    assert {cell.trials for cell in exact} == {cell.trials for cell in quick if cell.tau} == {100}
    rest, others = ([cell for cell in cells if cell.numerics != "exact" and not cell.tau] for cells in (quick, full))
    assert rest == others


# --- instances ---


def test_an_instance_is_an_orthonormalised_draw() -> None:
    tokens, queries, v = instance(7, 3, 5)
    rng = np.random.default_rng(7)
    _, expected_queries, _, expected_v = random_trial(rng, 1, 1, 5)
    assert tokens.shape == (1, 3, 5)
    np.testing.assert_array_equal(queries, expected_queries)
    np.testing.assert_array_equal(v, expected_v)
    np.testing.assert_allclose(tokens[0] @ tokens[0].T, np.eye(3), atol=1e-14)
    # Q of the QR decomposition: each token is orthogonal to the columns before its own.
    np.testing.assert_allclose(np.tril(tokens[0] @ rng.standard_normal((5, 3)), -1), 0.0, atol=1e-14)


@pytest.mark.parametrize(
    ("lam", "expected"),
    [(0.0, (1.0, 0.0, 0.0)), (0.25, (1.0, 0.0, 0.0)), (0.5, (3 / 4, 1 / 4, 0.0)), (1.0, (7 / 12, 4 / 12, 1 / 12))],
)
def test_the_best_attention_is_sparsemax_of_the_scores(lam: float, expected: Sequence[float]) -> None:
    """Scores 1, 1/2 and 0, in two orders; sparsemax of 2, 1, 0, of 1, 1/2, 0 and of 1/2, 1/4, 0 by hand."""
    scores = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.5]])
    tokens = np.broadcast_to(np.eye(3), (2, 1, 3, 3))
    best = best_attention(tokens, scores, lam)
    np.testing.assert_allclose(best, np.stack([expected, np.roll(expected, 1)]), atol=1e-15)


@pytest.mark.parametrize(("tau", "T", "d"), [(2, 4, 5), (3, 4, 5), (4, 6, 6)])
def test_a_constrained_draw_is_the_first_that_satisfies_equation_8(tau: int, T: int, d: int) -> None:
    """Pairs of an instance, seeded by an integer below 2^62, and lambda uniform on (0, 2.5): the first that passes."""
    redrawn = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        while True:
            tokens, _, v = instance(int(rng.integers(4**31)), T, d)
            largest = sorted(tokens[0] @ v, reverse=True)
            lam = rng.uniform(0, 2.5)
            if largest[0] - largest[1] < lam < tau * (largest[tau - 1] - largest[tau]) / 2:
                break
            redrawn += 1
        drawn, own_tokens, own_v = constrained(seed, tau, T, d)
        assert drawn == pytest.approx(lam, rel=1e-15)
        np.testing.assert_array_equal(own_tokens, tokens)
        np.testing.assert_array_equal(own_v, v)
    assert redrawn


# --- rows without training ---


def test_a_row_under_the_constraint_has_lambda_and_the_tokens_of_lemma_6() -> None:
    seeds = np.arange(12)
    rows = trials(Config(0.0, "lemma", tau=3, T=4, d=5, steps=0), seeds)
    for seed, row in zip(seeds, rows, strict=True):
        lam, tokens, v = constrained(int(seed), 3, 4, 5)
        assert row == {"seed": seed, "lemma": kept((tokens @ v)[0], lam), "drawn": lam}
    assert {row["lemma"] for row in rows} == {2, 3}


@pytest.mark.parametrize(("tau", "T", "d"), [(3, 3, 5), (5, 3, 4), (3, 5, 3), (4, 5, 3)])
def test_a_tau_that_has_no_gap_of_its_own_gives_rows_with_nothing(tau: int, T: int, d: int) -> None:
    """At most d tokens are orthonormal; k of them have k - 1 gaps."""
    rows = trials(Config(0.0, "lemma", tau=tau, T=T, d=d, steps=0), SEEDS[:2])
    assert rows == [{"seed": seed, "lemma": None, "drawn": None} for seed in SEEDS[:2]]


@pytest.mark.parametrize(("T", "d"), [(3, 5), (5, 3)])
def test_the_largest_tau_that_has_a_gap_is_drawn(T: int, d: int) -> None:
    (row,) = trials(Config(0.0, "lemma", tau=2, T=T, d=d, steps=0), SEEDS[:1])
    assert row["lemma"] == 2
    assert 0 < row["drawn"] < 2.5


@pytest.mark.parametrize("lam", [0.0, 0.2, 1.0])
def test_a_row_without_training_counts_the_tokens_of_lemma_6(lam: float) -> None:
    rows = trials(Config(lam, "lemma", T=6, d=7, steps=0), SEEDS)
    parts = [instance(int(seed), 6, 7) for seed in SEEDS]
    assert rows == [
        {"seed": seed, "lemma": kept((tokens @ v)[0], lam)} for seed, (tokens, _, v) in zip(SEEDS, parts, strict=True)
    ]


# --- rows of training ---


@pytest.mark.parametrize("numerics", ["exact", "published"])
def test_a_row_is_of_a_run_from_the_seeds_own_start(numerics: lambda_head.Numerics) -> None:
    """Label one, Linear's default start, normalised descent with step 0.1: each seed trained alone."""
    lam, steps = 0.3, 12
    rows = trials(Config(lam, numerics, T=3, d=4, steps=steps), SEEDS[:2])
    for seed, row in zip(SEEDS[:2], rows, strict=True):
        tokens, queries, v = instance(int(seed), 3, 4)
        trace = train(
            TokenData(tokens, queries, np.ones(1)), LambdaHead(v, lam), steps=steps, init="torch",
            seed=int(start_seeds([seed])[0]), **descent(numerics, "W"),
        )  # fmt: skip
        best = best_attention(tokens[None], v[None], lam)[0]
        assert row["seed"] == seed
        assert row["off"] == pytest.approx(np.abs(trace.attention[-1, 0] - best).max(), rel=1e-9)
        assert row["step"] == [1, steps]
        # Twelve steps mask no token.
        assert (row["count"], row["early"], row["masked"], row["decided"]) == (3, 3, None, True)
        assert row["lemma"] == kept((tokens @ v)[0], lam)
        assert row["equivalent"] is row["mm"] is None


ENDS = np.array(
    [
        [0.75, 0.25 - 1e-8, 1e-8, 0.0],
        [0.25 - 5e-9, 0.75, 0.0, 5e-9],
        [0.1, 0.2, 0.3, 0.4],
        [0.7, 0.001, 0.299, 0.0],
    ]
)
EARLY_ENDS = np.array([[0.25, 0.25, 0.25, 0.25], [0.001, 0.998, 0.0, 0.001], [0.5, 0.0, 0.5, 0.0], [0.4, 0.3, 0.3, 0]])


def rows_of(monkeypatch: pytest.MonkeyPatch, steps: int) -> tuple[list[dict[str, Any]], np.ndarray, dict[str, Any]]:
    """Rows of runs that end with the attention of ENDS, their W (B, records, d, d), and the options of training."""
    said: dict[str, Any] = {}
    W = np.random.default_rng(0).standard_normal((4, 40, 5, 5))

    def ended(data: TokenData, head: LambdaHead, **options: Any) -> SimpleNamespace:
        said.update(options, labels=data.labels, lam=head.lam)
        step = np.array([0, *options["record_every"]])
        attention = np.full((4, len(step), 1, 4), np.nan)
        attention[:, step == 1001] = EARLY_ENDS[:, None, None]
        attention[:, -1] = ENDS[:, None]
        return SimpleNamespace(attention=attention, W=W[:, : len(step)], step=step)

    monkeypatch.setattr(lambda_head, "train", ended)
    rows = trials(Config(0.3, T=4, d=5, steps=steps), SEEDS)
    return rows, W, said


def test_tokens_above_a_thousandth_are_selected_and_those_below_1e_8_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """v1, p. 16; an output at an edge is neither."""
    rows, _, said = rows_of(monkeypatch, 1300)
    assert [row["count"] for row in rows] == [2, 2, 4, 2]
    assert [row["early"] for row in rows] == [4, 1, 2, 3]
    assert [row["masked"] for row in rows] == [1e-8, 5e-9, None, 0.001]
    assert [row["decided"] for row in rows] == [False, True, True, False]
    for seed, row, end in zip(SEEDS, rows, ENDS, strict=True):
        tokens, _, v = instance(int(seed), 4, 5)
        best = best_attention(tokens[None], v[None], 0.3)[0]
        assert row["off"] == pytest.approx(np.abs(end - best).max())
    np.testing.assert_array_equal(said["labels"], np.ones((4, 1)))
    assert float(said["lam"]) == 0.3


def test_records_are_those_of_figure_9b(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations 0, 100 to 600, and 800 to 5,000 by 200; iteration k is W after k + 1 steps."""
    rows, _, said = rows_of(monkeypatch, 1300)
    assert said["record_every"] == [1, 101, 201, 301, 401, 501, 601, 801, 1001, 1201, 1300]
    assert [row["step"] for row in rows] == [said["record_every"]] * 4
    assert rows_of(monkeypatch, 5001)[2]["record_every"][-2:] == [4801, 5001]


def test_a_short_run_counts_its_last_tokens_as_the_early_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _, said = rows_of(monkeypatch, 150)
    assert said["record_every"] == [1, 101, 150]
    assert [row["early"] for row in rows] == [row["count"] for row in rows] == [2, 2, 4, 2]


def test_w_is_compared_with_the_svm_equivalent_of_the_last_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """One query and orthonormal tokens: W is (sum of c_t x_t) z^T, and both parts have closed forms.

    Of k selected and m masked tokens the smallest c with margin one is m / (k + m) and -k / (k + m). The finite part
    has the centred logarithms of the selected probabilities.
    """
    rows, W, _ = rows_of(monkeypatch, 150)
    for b, (seed, row, end) in enumerate(zip(SEEDS, rows, ENDS, strict=True)):
        tokens, queries, _ = instance(int(seed), 4, 5)
        selected = end > 1e-3
        k = int(selected.sum())
        # No token is masked, or one is at the edge.
        if k == 4 or (end == 1e-3).any():
            assert row["equivalent"] is row["mm"] is None
            continue
        logs = np.where(selected, np.log(np.where(selected, end, 1.0)), 0.0)
        centred = np.where(selected, logs - logs.sum() / k, 0.0)
        # The query has norm one up to the rounding of float32.
        query = queries[0] / (queries[0] @ queries[0])
        mm, finite = (np.outer(c @ tokens[0], query) for c in (np.where(selected, 4 - k, -k) / 4, centred))
        coefficient = (mm * (W[b, 3] - finite)).sum() / (mm**2).sum()
        for name, target in (("mm", mm), ("equivalent", finite + coefficient * mm)):
            expected = [1 - float(correlation(one, target)) for one in W[b, 1:4]]
            assert row[name] == pytest.approx(expected, abs=1e-6)
            assert all(math.isfinite(value) for value in row[name])


def test_a_run_without_an_svm_equivalent_has_no_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = SimpleNamespace(status=EquivalenceStatus.NO_SVM, W=np.ones((5, 5)), W_mm=np.ones((5, 5)))
    monkeypatch.setattr(lambda_head, "svm_equivalent", lambda *_, **__: nothing)
    rows, _, _ = rows_of(monkeypatch, 150)
    assert [(row["equivalent"], row["mm"]) for row in rows] == [(None, None)] * 4
