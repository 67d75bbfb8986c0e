"""Benign overfitting: the data of both settings, descent, certified interpolators, thresholds and their exponents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, solve, train
from attsvm_paper.beyond import benign_overfitting
from attsvm_paper.beyond.benign_overfitting import (
    BENIGN,
    RATIOS,
    SIZES,
    WEAK,
    Config,
    exponents,
    labels_of,
    sequences,
    sweep,
    threshold,
    trials,
)
from attsvm_paper.judging.verdict import Row


@pytest.fixture
def few_fresh(monkeypatch: pytest.MonkeyPatch) -> int:
    """Thirty fresh sequences instead of hundreds."""
    monkeypatch.setattr(benign_overfitting, "FRESH", 30)
    return 30


@pytest.mark.parametrize(("effort", "d", "steps", "count"), [("full", 2000, 2000, 20), ("quick", 400, 500, 6)])
def test_every_ratio_is_trained_and_certified_at_every_size(effort: Any, d: int, steps: int, count: int) -> None:
    """docs/findings.md: d = 2000, twenty instances, 20 sequences, ratios from 0.05 to 0.8, n up to 80."""
    cells = sweep(effort)
    assert {(one.d, one.trials) for one in cells} == {(d, count)}
    ours = [one for one in cells if one.setting == "trained"]
    assert [one.ratio for one in ours] == [0.05, 0.1, 0.2, 0.4, 0.8]
    assert {(one.n, one.steps) for one in ours} == {(20, steps)}
    pairs = [(one.n, one.ratio) for one in cells if one.setting == "two tokens"]
    assert pairs == [(n, ratio) for n in SIZES for ratio in RATIOS]
    assert max(SIZES) == 80


def test_the_least_sizes_are_taken_and_smaller_ones_refused() -> None:
    least = {"ratio": 1e-3, "n": 2, "T": 3, "d": 2}
    for setting in ("trained", "two tokens"):
        Config(setting, **least)
    for name, value in {"ratio": 0.0, "n": 1, "T": 2, "d": 1}.items():
        with pytest.raises(ValueError, match="at least 2, 3 and 2, and a positive ratio, were expected"):
            Config("trained", **least | {name: value})
    with pytest.raises(ValueError, match="setting is 'one token'"):
        Config("one token", 1.0)  # pyright: ignore


def test_half_of_the_classes_are_positive_and_a_share_of_the_labels_is_flipped() -> None:
    classes, labels = labels_of(np.random.default_rng(3), 10, 0.2)
    assert classes.tolist() == [1.0, -1.0] * 5
    flipped = np.random.default_rng(3).permutation(10).tolist()
    assert (classes != labels).tolist() == [place < 2 for place in flipped]
    assert set(np.abs(labels)) == {1.0}
    classes, labels = labels_of(np.random.default_rng(3), 4, 0.0)
    assert (classes == labels).all()


def test_signals_are_added_to_gaussian_tokens() -> None:
    """By hand: mu is ratio sqrt(d) long, and lies along the first axis for class 1, along the second for class -1."""
    n, T, d, ratio = 5, 4, 3, 0.7
    rng = np.random.default_rng(9)
    classes, labels = labels_of(rng, n, 0.4)
    expected = rng.standard_normal((n, T, d))
    for i, own in enumerate(classes):
        axis, other = (0, 1) if own > 0 else (1, 0)
        expected[i, 0, axis] += ratio * d**0.5
        expected[i, 1, axis] += WEAK * ratio * d**0.5
        expected[i, 2, other] += WEAK * ratio * d**0.5
    tokens, drawn = sequences(np.random.default_rng(9), n, T, d, ratio, 0.4)
    np.testing.assert_allclose(tokens, expected, rtol=1e-14)
    np.testing.assert_array_equal(drawn, labels)


def accuracy(tokens: np.ndarray, labels: np.ndarray, w: np.ndarray, v: np.ndarray) -> float:
    """Share of the sequences whose label the head gives to the tokens that attention averages."""
    weights = np.exp(tokens @ w)
    outputs = ((tokens @ v) * weights).sum(-1) / weights.sum(-1)
    return sum(y * output > 0 for y, output in zip(labels, outputs, strict=True)) / len(labels)


def hard_accuracy(tokens: np.ndarray, labels: np.ndarray, w: np.ndarray, v: np.ndarray) -> float:
    return sum(
        y * (max(sequence, key=lambda x: x @ w) @ v) > 0 for sequence, y in zip(tokens, labels, strict=True)
    ) / len(labels)


def test_descent_and_the_certified_interpolator_are_tried_on_the_same_fresh_sequences(
    few_fresh: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """arXiv 2409.17625: a fixed query, a head along the difference of the signals, a fifth of the labels flipped."""
    n, T, d, ratio, steps = 10, 4, 30, 0.4, 25
    calls: list[Any] = []

    def watch(*arguments: Any, **options: Any) -> Any:
        calls.append((arguments, options, train(*arguments, **options)))
        return calls[-1][-1]

    monkeypatch.setattr(benign_overfitting, "train", watch)
    seeds = [4, 7]
    rows = trials(Config("trained", ratio, n, T, d, steps=steps), seeds)
    for seed, row, ((data, head), options, trace) in zip(seeds, rows, calls, strict=True):
        rng = np.random.default_rng(seed)
        tokens, labels = sequences(rng, n, T, d, ratio, 0.2)
        fresh, right = sequences(rng, few_fresh, T, d, ratio, 0.0)
        for drawn, inputs, targets in ((data, tokens, labels), (options["held_out"], fresh, right)):
            np.testing.assert_array_equal(drawn.tokens, inputs)
            np.testing.assert_array_equal(drawn.labels, targets)
            assert (np.asarray(drawn.queries) == 1).all()
            assert drawn.queries.shape == (len(inputs), 1)
        # The head has the direction of mu_+ - mu_- and the inverse length of a signal.
        assert head[0] == -head[1] > 0
        assert not head[2:].any()
        assert np.linalg.norm(head) == pytest.approx(1 / (ratio * np.sqrt(d)))
        assert (options["optimizer"], options["lr"], options["steps"]) == ("gd", 0.3, steps)
        w = np.asarray(trace.W)[-1][:, 0]
        assert row["seed"] == seed
        assert row["train"] == pytest.approx(accuracy(tokens, labels, w, head))
        assert row["held_out"] == pytest.approx(accuracy(fresh, right, w, head))
        best = [max(range(T), key=lambda t: labels[i] * (tokens[i, t] @ head)) for i in range(n)]
        solution = solve(SelectionProblem(tokens, np.ones((n, 1)), best))
        assert row["feasible"] == np.isfinite(solution.objective)
        assert row["interpolator"] == pytest.approx(hard_accuracy(fresh, right, solution.W[:, 0], head))


@pytest.mark.usefixtures("few_fresh")
def test_instances_without_an_interpolator_have_no_accuracy_of_one() -> None:
    rows = trials(Config("trained", 0.5, 12, 5, 3, steps=3), range(6))
    infeasible = [row for row in rows if not row["feasible"]]
    assert infeasible
    assert all(row["interpolator"] is None and row["train"] is not None for row in infeasible)


def pairs_of(rng: np.random.Generator, n: int, d: int, size: float, flips: float) -> tuple[np.ndarray, ...]:
    """A signal along an axis of its class, and noise across both axes."""
    classes, labels = labels_of(rng, n, flips)
    noise = rng.standard_normal((n, 2, d))[:, 1]
    noise[:, :2] = 0
    signals = np.array([[size, 0] if one > 0 else [0, size] for one in classes])
    return np.stack([np.pad(signals, ((0, 0), (0, d - 2))), noise], axis=1), classes, labels


@pytest.mark.usefixtures("few_fresh")
@pytest.mark.parametrize(("n", "d", "ratio", "seeds"), [(10, 20, 0.4, [0, 1, 2]), (8, 3, 1.0, [0, 1, 12])])
def test_two_tokens_are_read_by_the_smallest_head_and_attention(n: int, d: int, ratio: float, seeds: list[int]) -> None:
    """arXiv 2410.07746: the signal is selected where the label is right, the noise where it is flipped."""
    size = ratio * np.sqrt(d)
    found = set()
    for seed, row in zip(seeds, trials(Config("two tokens", ratio, n, 3, d), seeds), strict=True):
        rng = np.random.default_rng(seed)
        tokens, classes, labels = pairs_of(rng, n, d, size, 0.2)
        fresh, right, _ = pairs_of(rng, 30, d, size, 0.0)
        kept = [0 if a == b else 1 for a, b in zip(classes, labels, strict=True)]
        attention = solve(SelectionProblem(tokens, np.ones((n, 1)), kept))
        # A linear classifier without threshold selects x before -x for label 1, with twice the margin.
        x = tokens[range(n), kept]
        head = solve(SelectionProblem(np.stack([x, -x], 1), np.ones((n, 1)), [0 if y > 0 else 1 for y in labels]))
        feasible = [bool(np.isfinite(one.objective)) for one in (attention, head)]
        found.add(tuple(feasible))
        assert (row["seed"], row["train"], row["held_out"]) == (seed, None, None)
        assert row["feasible"] == all(feasible)
        if row["feasible"]:
            assert row["interpolator"] == hard_accuracy(fresh, right, attention.W[:, 0], head.W[:, 0])
        else:
            assert row["interpolator"] is None
    # One coordinate of noise is not enough for every attention, nor for every head.
    assert found == {(True, True)} | ({(False, True), (False, False)} if d == 3 else set())


@pytest.mark.usefixtures("few_fresh")
@pytest.mark.parametrize("setting", ["trained", "two tokens"])
def test_a_row_does_not_depend_on_the_batch_it_is_computed_in(setting: Any) -> None:
    config = Config(setting, 0.5, 4, 3, 8, steps=5)
    assert trials(config, [1, 2])[1:] == trials(config, [2])


def test_the_threshold_is_interpolated_in_logarithms_where_accuracy_first_rises_over_95_percent() -> None:
    assert pytest.approx(0.95) == BENIGN
    # Two thirds of the way from 0.1 to 0.8 lies four times 0.1.
    assert threshold({0.8: 1.0, 0.1: 0.85}) == pytest.approx(0.4)
    assert threshold({0.05: 0.5, 0.1: 0.85, 0.8: 1.0, 1.6: 0.9, 3.2: 1.0}) == pytest.approx(0.4)
    assert threshold({0.1: 0.9, 0.4: 0.95}) == pytest.approx(0.4)
    # It was passed before the first ratio, or is not reached.
    assert threshold({0.1: 0.95, 0.4: 1.0}) is None
    assert threshold({0.1: 0.5, 0.4: 0.94}) is None
    assert threshold({0.4: 1.0, 0.8: 0.9}) is None
    assert threshold({}) is None


def pair_rows(trial: int, thresholds: dict[int, float]) -> list[Row]:
    """Rows of one trial whose accuracy rises from 0.9 to 1 over a factor of four about the threshold."""
    return [
        {"setting": "two tokens", "trial": trial, "n": n, "d": 9, "T": 3, "ratio": ratio, "feasible": True,
         "interpolator": share, "train": None, "held_out": None}
        for n, at in thresholds.items() for ratio, share in ((at / 2, 0.9), (at * 2, 1.0))
    ]  # fmt: skip


def test_exponents_are_the_slopes_of_each_trial() -> None:
    rows = pair_rows(0, {10: 0.4, 40: 0.2}) + pair_rows(1, {10: 0.4, 40: 0.1, 20: 0.2}) + pair_rows(2, {10: 0.3})
    assert exponents(rows) == pytest.approx([-0.5, -1.0])
    # Infeasible cells, and sizes at which accuracy crosses nowhere, take no part.
    rows += [row | {"interpolator": None, "ratio": 0.3} for row in pair_rows(0, {10: 0.4})[:1]]
    rows += pair_rows(0, {80: 0.2})[:1]
    assert exponents(rows) == pytest.approx([-0.5, -1.0])
    assert exponents([]) == []
