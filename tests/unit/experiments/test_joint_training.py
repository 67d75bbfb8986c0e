"""Joint training of head and W: rows by a second route, data from their definition, sentences by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, solve, train
from attsvm.theory.prompt import v_svm
from attsvm_paper.beyond import joint_training
from attsvm_paper.beyond.joint_training import Config, accuracy, compare, planted, prepare, relaxation, sweep, trials
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.statistics import bootstrap_interval
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.published.instances import draw
from attsvm_paper.published.numerics import STEP

SIZE: dict[str, Any] = {"n": 3, "T": 3, "steps": 25}
WORDS = joint_training.FIELDS


@pytest.mark.parametrize(
    ("effort", "dimensions", "steps", "count"), [("quick", (5, 20), 2000, 30), ("full", (5, 10, 20), 4000, 200)]
)
def test_the_cells_are_three_rates_of_the_head_in_each_dimension_and_on_planted_data(
    effort: Any, dimensions: tuple[int, ...], steps: int, count: int
) -> None:
    """The docstring's fixed head and two rates; the published n = 8 and T = 6, and planted data of 20 sequences."""
    cells = [(c.kind, c.d, c.head_lr, c.n, c.T, c.steps, c.trials) for c in sweep(effort)]
    random = [("random", d, rate, 8, 6, steps, count) for d in dimensions for rate in (0.0, 0.01, 0.1)]
    assert cells == random + [("planted", 10, rate, 20, 6, steps, count) for rate in (0.0, 0.01, 0.1)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"head_lr": -0.01}, "head_lr is -0.01"), ({"kind": "planted", "d": 1}, "d is 1"), ({"T": 1}, "T is 1")],
)
def test_settings_outside_their_range_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Config(**{"d": 3, "head_lr": 0.1} | wrong)


@pytest.mark.parametrize("least", [{"d": 1}, {"d": 2, "kind": "planted"}, {"T": 2}, {"head_lr": 0.0}])
def test_the_least_settings_are_taken(least: dict[str, Any]) -> None:
    config = Config(**{"d": 3, "head_lr": 0.1} | least)
    assert all(getattr(config, name) == value for name, value in least.items())


def test_one_planted_token_of_a_sequence_tells_its_label() -> None:
    n, T, d = 900, 3, 4
    tokens, queries, labels = planted(np.random.default_rng(0), n, T, d)
    assert set(labels.tolist()) == {-1.0, 1.0}
    assert abs(labels.mean()) < 0.15
    signal = np.zeros((n, d))
    signal[:, 0], signal[:, 1] = labels, 1.0
    is_signal = (tokens == signal[:, None]).all(-1)
    assert (is_signal.sum(1) == 1).all()
    assert set(is_signal.argmax(1).tolist()) == {0, 1, 2}
    noise, query_noise = tokens[~is_signal], queries - np.eye(d)[1]
    # Deviations of 7200 and 3600 numbers; means of 1800 and 900 in each coordinate.
    assert noise.std() == pytest.approx(0.5, rel=0.05)
    assert query_noise.std() == pytest.approx(0.3, rel=0.06)
    np.testing.assert_allclose(noise.mean(0), 0, atol=0.06)
    np.testing.assert_allclose(query_noise.mean(0), 0, atol=0.05)


def test_the_head_of_planted_data_starts_at_the_mean_token_classifier() -> None:
    config = Config(4, 0.1, "planted", **SIZE)
    instances, fresh = prepare(config, [3, 8])
    for b, seed in enumerate((3, 8)):
        tokens, queries, labels = planted(np.random.default_rng(seed), 3, 3, 4)
        np.testing.assert_array_equal(instances.data.tokens[b], tokens)
        np.testing.assert_array_equal(instances.data.queries[b], queries)
        np.testing.assert_array_equal(instances.data.labels[b], labels)
        v = sum(label * sequence.mean(0) for label, sequence in zip(labels, tokens, strict=True))
        np.testing.assert_allclose(instances.v[b], v / np.linalg.norm(v))
        assert fresh[b][0].shape == (joint_training.FRESH, 3, 4)
        assert not np.array_equal(fresh[b][1][:3], queries)
    assert not np.array_equal(fresh[0][1], fresh[1][1])


def test_random_data_are_the_published_instances_without_fresh_ones() -> None:
    instances, fresh = prepare(Config(4, 0.1, **SIZE), [3, 8])
    expected = draw([3, 8], 3, 3, 4)
    np.testing.assert_array_equal(instances.data.tokens, expected.data.tokens)
    np.testing.assert_array_equal(instances.v, expected.v)
    assert fresh is None


def hits(fresh: tuple[Any, Any, Any], W: np.ndarray, v: np.ndarray) -> float:
    count = 0
    for x, z, label in zip(*fresh, strict=True):
        weights = np.exp(x @ W @ z)
        count += int(np.sign(v @ (x.T @ weights / weights.sum())) == label)
    return count / len(fresh[0])


def test_accuracy_is_of_the_sign_of_the_output() -> None:
    rng = np.random.default_rng(4)
    fresh = planted(rng, 40, 3, 4)
    W, v = rng.standard_normal((4, 4)), rng.standard_normal(4)
    share = accuracy(fresh, W, v)
    assert share == hits(fresh, W, v)
    assert accuracy(fresh, W, -v) == pytest.approx(1 - share)
    # An output of zero predicts nothing.
    assert accuracy(fresh, W, 0 * v) == 0


def cosine(A: np.ndarray, B: np.ndarray) -> float:
    return float((A * B).sum() / np.linalg.norm(A) / np.linalg.norm(B))


def check_row(row: Row, config: Config, seed: int) -> None:
    """Compare a row with training, SVMs and margins of its trial alone."""
    instances, fresh = prepare(config, [seed])
    data = instances.data
    fixed = train(data, instances.v, steps=config.steps, lr=STEP)
    joint = train(data, instances.v, steps=config.steps, lr=STEP, head_lr=config.head_lr) if config.head_lr else fixed
    W, picked, at = joint.W[0, -1], joint.selected[0], np.arange(config.n)
    v = joint.head["v"][0, -1] if config.head_lr else instances.v[0]
    tokens, queries, labels = data.tokens[0], data.queries[0], data.labels[0]
    scores = np.array([x @ W @ z for x, z in zip(tokens, queries, strict=True)])
    rivals = scores.copy()
    rivals[at, picked] = -np.inf
    leads = scores[at, picked] - rivals.max(1)
    problem = SelectionProblem(tokens, queries, picked)
    solution = solve(problem)
    feasible = bool(np.isfinite(solution.objective))
    assert row["infeasible"] == (not feasible)
    if feasible:
        W_svm = np.asarray(solution.W)
        assert row["correlation"] == pytest.approx(cosine(W, W_svm), abs=1e-6)
        share = leads.min() / np.linalg.norm(W) * np.linalg.norm(W_svm)
        assert row["margin"] == pytest.approx(share, abs=1e-6)
    else:
        assert row["correlation"] is None
        assert row["margin"] is None
    assert row["same"] == pytest.approx(np.mean(picked == fixed.selected[0]))
    best = (labels[:, None] * (tokens @ instances.v[0])).argmax(1)
    assert row["optimal"] == pytest.approx(np.mean(picked == best))
    classifier = v_svm(tokens[at, picked], labels)
    assert row["separable"] == bool(np.isfinite(classifier.objective))
    relaxed = None
    if row["separable"]:
        assert row["head"] == pytest.approx(cosine(v, np.asarray(classifier.W)[:, 0]), abs=1e-6)
        support = np.asarray(classifier.margins)[:, 1] < 1 + 1e-6
        if not support.all() and leads[support].min() > 0:
            relaxed = leads[~support].min() / leads[support].min()
    else:
        assert row["head"] is None
    assert row["relaxed"] == (None if relaxed is None else pytest.approx(relaxed, abs=1e-6))
    assert row["accuracy"] == (None if fresh is None else hits(fresh[0], W, v))


@pytest.mark.parametrize(
    ("config", "seeds"),
    [
        (Config(3, 0.1, n=4, T=3, steps=25), range(6)),
        (Config(3, 0.0, n=4, T=3, steps=25), range(3)),
        (Config(1, 0.1, n=3, T=3, steps=25), range(4)),
        (Config(3, 0.1, n=2, T=3, steps=25), range(3)),
        (Config(3, 0.1, "planted", n=4, T=3, steps=25), range(3)),
    ],
)
def test_every_number_of_a_row_comes_from_its_trial(config: Config, seeds: Sequence[int]) -> None:
    rows = trials(config, np.array(seeds))
    assert [row["seed"] for row in rows] == list(seeds)
    for row, seed in zip(rows, seeds, strict=True):
        check_row(row, config, seed)


def test_the_small_trials_contain_every_case() -> None:
    cells = [
        (Config(3, 0.1, n=4, T=3, steps=25), 6),
        (Config(1, 0.1, **SIZE), 4),
        (Config(3, 0.1, n=2, T=3, steps=25), 3),
    ]
    rows = [row for config, count in cells for row in trials(config, np.arange(count))]
    assert {row["infeasible"] for row in rows} == {row["separable"] for row in rows} == {True, False}
    assert any(row["relaxed"] is not None for row in rows)
    assert any(row["separable"] and row["relaxed"] is None for row in rows)
    assert any(row["same"] < 1 for row in rows)
    assert {type(row["same"]) for row in rows} == {float}


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.2, 0.9, "smaller"),
        (1.1, 2.0, "larger"),
        (0.5, 1.0, "neither smaller nor larger for certain"),
        (1.0, 1.5, "neither smaller nor larger for certain"),
    ],
)
def test_margins_are_called_smaller_or_larger_only_for_certain(low: float, high: float, word: str) -> None:
    assert relaxation(low, high) == (
        f"Margins of W are {word} where the classifier has no support; trials without both kinds are left out."
    )


def of(values: Sequence[float | None], first: int = 0) -> list[Row]:
    return [{"seed": first + k, "margin": value} for k, value in enumerate(values)]


@pytest.mark.parametrize(("sign", "word"), [(1, "raises"), (-1, "lowers")])
def test_a_change_is_stated_with_its_interval(sign: int, word: str) -> None:
    fixed = of([0.1, 0.2, 0.3, 0.5, None])
    joint = of([0.1 + 0.3 * sign, 0.2 + 0.4 * sign, 0.3 + 0.8 * sign, None, 0.7, 0.9])
    low, high = bootstrap_interval(sign * np.array([0.3, 0.4, 0.8]))
    assert compare("margin", joint, fixed) == (
        f"Joint training {word} it by 0.5 on average (95 %: {low:.2g} to {high:.2g})."
    )


@pytest.mark.parametrize("change", [[0.0, 0.0, 0.0], [0.5, -0.5, 0.1], [0.0, 0.0, 1.0], [0.0, 0.0, -1.0]])
def test_an_interval_with_zero_shows_no_difference(change: list[float]) -> None:
    fixed = of([0.4] * 3)
    joint = of([0.4 + one for one in change])
    assert compare("margin", joint, fixed) == "Joint training makes no difference that 3 trials could show."


def test_fewer_than_two_pairs_compare_nothing() -> None:
    assert compare("margin", of([0.9, 0.8]), of([0.1, None])) == ""
    assert compare("margin", of([0.9, 0.8]), of([0.1, 0.2], first=7)) == ""
    assert compare("margin", of([0.9, 0.8]), of([0.1, 0.2])).startswith("Joint training raises it by 0.7")


def rows_of(kind: str, d: int, rate: float, columns: dict[str, list[Any]], count: int = 4) -> list[Row]:
    base: dict[str, list[Any]] = {
        "infeasible": [False] * count,
        "correlation": [0.9, 0.8, 0.95, 0.85],
        "margin": [0.5, 0.6, 0.7, 0.9],
        "same": [1.0] * count,
        "optimal": [0.5, 0.75, 1.0, 0.5],
        "head": [0.1, 0.2, 0.3, 0.4],
        "relaxed": [None] * count,
        "accuracy": [None] * count,
    }
    table = base | columns
    return [
        {"kind": kind, "d": d, "head_lr": rate, "seed": k, "trial": k} | {name: table[name][k] for name in table}
        for k in range(count)
    ]


FIXED = rows_of("random", 5, 0.0, {"relaxed": [0.5, None, 0.25, 0.75]})
JOINT = rows_of(
    "random",
    5,
    0.1,
    {
        "infeasible": [True, False, False, False],
        "correlation": [None, 0.8, 0.95, 0.85],
        "margin": [None, 0.2, 0.2, 0.3],
        "same": [1.0, 0.5, 0.75, 0.25],
        "optimal": [1.0, 1.0, 1.0, 0.75],
        "head": [0.9, 0.95, None, 0.99],
        "relaxed": [2.0, None, 3.0, 5.0],
        "accuracy": [0.7, 0.8, 0.9, 1.0],
    },
)


def verdicts_of(rows: list[Row]) -> dict[str, Verdict]:
    found = joint_training.verdicts(rows)
    assert len({one.quantity for one in found}) == len(found)
    return {one.quantity: one for one in found}


def test_the_fixed_head_is_measured_and_compared_with_nothing() -> None:
    found = verdicts_of(FIXED)
    end = ", random data, d=5, fixed head"
    assert list(found) == [
        f"{name}{end}"
        for name in (WORDS["correlation"], WORDS["margin"], WORDS["head"], f"median of {WORDS['relaxed']}")
    ]
    margin, head = found[f"{WORDS['margin']}{end}"], found[f"{WORDS['head']}{end}"]
    assert margin.measured == pytest.approx(0.675)
    assert (margin.low, margin.high) == bootstrap_interval([0.5, 0.6, 0.7, 0.9])
    assert (margin.trials, margin.discarded, margin.infeasible, margin.note) == (4, 0, 0, "")
    assert head.note == "The selected tokens are separable in 4 of 4 trials."
    ratio = found[f"median of {WORDS['relaxed']}{end}"]
    assert (ratio.measured, ratio.trials, ratio.discarded) == (0.5, 4, 1)
    middle = estimate([0.5, 0.25, 0.75], "median")
    assert (ratio.low, ratio.high) == (middle.low, middle.high)
    assert ratio.note == relaxation(0.25, 0.75)


def test_joint_training_is_compared_on_the_same_instances() -> None:
    # Another dimension and other data are no reference.
    strangers = rows_of("random", 9, 0.0, {"margin": [9.0] * 4}) + rows_of("planted", 5, 0.0, {"margin": [9.0] * 4})
    found = verdicts_of([*FIXED, *JOINT, *strangers])
    end = ", random data, d=5, head step 0.1"
    own = {name: found[f"{words}{end}"] for name, words in WORDS.items() if name != "relaxed"}
    own["relaxed"] = found[f"median of {WORDS['relaxed']}{end}"]
    assert all((one.trials, one.infeasible) == (4, 1) for one in own.values())
    assert {name: one.discarded for name, one in own.items()} == dict.fromkeys(WORDS, 0) | {"relaxed": 1}
    low, high = bootstrap_interval([0.2 - 0.6, 0.2 - 0.7, 0.3 - 0.9])
    assert own["margin"].note == (f"Joint training lowers it by 0.5 on average (95 %: {low:.2g} to {high:.2g}).")
    assert own["correlation"].note == "Joint training makes no difference that 3 trials could show."
    assert own["accuracy"].note == ""
    assert own["same"].note == "94 % of the tokens are the best under the head at the start."
    assert own["same"].measured == pytest.approx(0.625)
    low, high = bootstrap_interval([0.9 - 0.1, 0.95 - 0.2, 0.99 - 0.4])
    assert own["head"].note == (
        "The selected tokens are separable in 3 of 4 trials. "
        f"Joint training raises it by 0.71 on average (95 %: {low:.2g} to {high:.2g})."
    )
    assert own["relaxed"].note == relaxation(2.0, 5.0)
    assert own["relaxed"].measured == 3.0


def test_without_a_fixed_head_there_is_no_comparison() -> None:
    found = verdicts_of(JOINT)
    (margin,) = (one for quantity, one in found.items() if quantity.startswith(WORDS["margin"]))
    assert margin.note == ""
    assert math.isnan(margin.tolerance)
    assert joint_training.verdicts([]) == []
