"""Layers as selectors: cells as stated, rows by a second route, and one layer's comparison on given attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attsvm import SelectionProblem, solve
from attsvm.study.controls import PRICE
from attsvm_paper.beyond import layers
from attsvm_paper.beyond.layered import Layers, Split, chain_task, digits_task, fit
from attsvm_paper.beyond.layers import Config, comparison, kept_sets, sweep, trials
from attsvm_paper.judging.verdict import Row

CHAIN: dict[str, Any] = {"task": "chain"}
SMALL: dict[str, Any] = {"n": 12, "T": 3, "steps": 4, "queries": 5}


@pytest.mark.parametrize(("effort", "n", "steps", "count"), [("quick", 1500, 200, 3), ("full", 3000, 400, 10)])
def test_both_tasks_have_one_to_three_layers_of_three_kinds(effort: Any, n: int, steps: int, count: int) -> None:
    """The docstring: one to three layers, three kinds of layer; a quick run varies them one at a time."""
    shapes = {(1, "linear"), (2, "residual"), (2, "linear"), (2, "mlp"), (3, "linear")}
    if effort == "full":
        shapes |= {(3, "residual"), (3, "mlp")}
    cells = sweep(effort)
    for task in ("chain", "digits"):
        own = [cell for cell in cells if cell.task == task]
        assert len(own) == len(shapes)
        assert {(cell.layers, cell.between) for cell in own} == shapes
        assert {(cell.steps, cell.trials) for cell in own} == {(steps, count)}
    # Images of 8 by 8 pixels are 16 patches; Adam takes smaller steps on them.
    assert {(c.n, c.T, c.lr) for c in cells} == {(n, 5, 0.03), (100, 16, 0.01)}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"layers": 0}, "layers is 0"),
        ({"T": 2}, "T is 2"),
        ({"task": "digits", "n": 1}, "n is 1"),
        ({"task": "digits", "n": 350}, "n is 350"),
    ],
)
def test_settings_outside_their_range_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Config(**CHAIN | wrong)


@pytest.mark.parametrize(
    "least",
    [
        {"task": "chain", "layers": 1, "T": 3, "n": 1},
        {"task": "chain", "n": 400},
        {"task": "digits", "n": 2, "T": 2},
        {"task": "digits", "n": 349},
    ],
)
def test_the_least_and_largest_settings_are_taken(least: dict[str, Any]) -> None:
    config = Config(**least)
    assert all(getattr(config, name) == value for name, value in least.items())


def test_a_kept_set_ends_with_the_token_that_reaches_nine_tenths() -> None:
    weights = np.array([[0.05, 0.89, 0.06], [0.1, 0.0, 0.9], [0.4, 0.3, 0.3], [0.5, 0.45, 0.05], [0.03, 0.02, 0.95]])
    assert kept_sets(weights).tolist() == [
        [False, True, True],
        [False, False, True],
        [True, True, True],
        [True, True, False],
        [False, False, True],
    ]


def cosine(A: Any, B: Any) -> float:
    A, B = np.asarray(A), np.asarray(B)
    return float((A * B).sum() / np.linalg.norm(A) / np.linalg.norm(B))


RNG = np.random.default_rng(5)
N, T, D = 4, 3, 6
STATES, MATRIX = RNG.standard_normal((N, T, D)), RNG.standard_normal((D, D))
ATTENTION = RNG.dirichlet(np.full(T, 0.5), (N, T))


def chosen(count: int, asking: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the queries as the layer's generator does: sequences and places."""
    picks = np.random.default_rng(seed).choice(N * asking, count, replace=False)
    return picks // asking, picks % asking


@pytest.mark.parametrize(("count", "asking"), [(5, T), (30, T), (3, 1), (5, 2)])
def test_a_layer_is_compared_with_the_svm_of_its_top_tokens(count: int, asking: int) -> None:
    row = comparison(STATES, ATTENTION, MATRIX, count, asking, np.random.default_rng(9))
    at, place = chosen(min(count, N * asking), asking, 9)
    own = ATTENTION[at, place]
    tokens, queries, top = STATES[at], STATES[at, place], own.argmax(1)
    problem = SelectionProblem(tokens, queries, top)
    solution = solve(problem)
    assert np.isfinite(solution.objective)
    assert row["infeasible"] is False
    assert row["svm"] == pytest.approx(cosine(MATRIX, solution.W), abs=1e-6)
    leads = np.array([(x[t] - np.delete(x, t, 0)) @ MATRIX @ z for x, z, t in zip(tokens, queries, top, strict=True)])
    share = leads.min() / np.linalg.norm(MATRIX) * np.linalg.norm(np.asarray(solution.W))
    assert row["margin"] == pytest.approx(share, abs=1e-6)
    mean = sum(np.outer(x[t] - np.delete(x, t, 0).mean(0), z) for x, z, t in zip(tokens, queries, top, strict=True))
    assert row["hebbian"] == pytest.approx(cosine(MATRIX, mean), abs=1e-9)
    sets = kept_sets(own)
    gen = solve(SelectionProblem(tokens, queries, sets))
    tied = np.isfinite(gen.objective) and gen.objective > 0
    assert row["gen"] == (pytest.approx(cosine(MATRIX, gen.W), abs=1e-6) if tied else None)
    assert row["kept"] == pytest.approx(np.mean([s.sum() for s in sets]))
    assert row["spread"] == pytest.approx(np.mean([np.prod(p**-p) for p in own]))
    assert row["oneself"] == pytest.approx(np.mean(top == place))
    assert row["control"] is None or -1 < row["control"] < 1


def test_the_control_is_the_mean_over_shuffled_selections(monkeypatch: pytest.MonkeyPatch) -> None:
    shuffled = [np.array([0, 1, 2, 0]), None]
    monkeypatch.setattr(layers, "shuffle", lambda top, mask, rng: shuffled[0])
    row = comparison(STATES, ATTENTION, MATRIX, 4, 1, np.random.default_rng(9))
    at, place = chosen(4, 1, 9)
    own = solve(SelectionProblem(STATES[at], STATES[at, place], shuffled[0]))
    assert row["control"] == pytest.approx(cosine(MATRIX, own.W), abs=1e-6)
    monkeypatch.setattr(layers, "shuffle", lambda top, mask, rng: None)
    assert comparison(STATES, ATTENTION, MATRIX, 4, 1, np.random.default_rng(9))["control"] is None


def test_there_are_two_shuffles(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [np.array([0, 1, 2, 0]), np.array([2, 2, 1, 0])]
    given = iter(both)
    monkeypatch.setattr(layers, "shuffle", lambda top, mask, rng: next(given))
    row = comparison(STATES, ATTENTION, MATRIX, 4, 1, np.random.default_rng(9))
    at, place = chosen(4, 1, 9)
    each = [cosine(MATRIX, solve(SelectionProblem(STATES[at], STATES[at, place], one)).W) for one in both]
    assert row["control"] == pytest.approx(np.mean(each), abs=1e-6)


def test_without_an_svm_the_soft_margin_stands_for_it() -> None:
    # Equal states with other choices.
    states = np.tile(STATES[:1], (4, 1, 1))
    attention = np.full((4, T, T), 0.2)
    for i, t in enumerate((0, 1, 0, 1)):
        attention[i, :, t] = 0.6
    row = comparison(states, attention, MATRIX, 4, 1, np.random.default_rng(0))
    assert row["infeasible"] is True
    assert row["margin"] is None
    order = np.random.default_rng(0).choice(4, 4, replace=False)
    problem = SelectionProblem(states, states[:, 0], order % 2)
    soft = solve(problem, C=PRICE, loss="squared_hinge")
    assert row["svm"] == pytest.approx(cosine(MATRIX, soft.W), abs=1e-4)
    # All tokens are kept, so nothing is asked of the Gen-SVM: it is zero and has no direction.
    assert row["kept"] == 3
    assert row["gen"] is None
    assert row["spread"] == pytest.approx(np.exp(-0.6 * np.log(0.6) - 0.4 * np.log(0.2)))
    assert row["oneself"] == 0.5


def test_attention_of_zero_has_no_entropy() -> None:
    row = comparison(STATES, np.tile(np.eye(T), (N, 1, 1)), MATRIX, 30, T, np.random.default_rng(0))
    assert row["spread"] == pytest.approx(1)
    assert (row["kept"], row["oneself"]) == (1, 1)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_layer_of_every_network_has_a_row(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config("chain", depth, "linear", **SMALL)
    calls: list[tuple[Any, ...]] = []

    def spy(*given: Any) -> Row:
        calls.append((*given[:5], given[5].random()))
        return {"svm": len(calls)}

    monkeypatch.setattr(layers, "comparison", spy)
    monkeypatch.setattr(layers, "FRESH", 8)
    seeds = np.array([3, 4])
    rows = trials(config, seeds)
    assert [(row["seed"], row["layer"]) for row in rows] == [(s, k + 1) for k in range(depth) for s in (3, 4)]
    assert [row["svm"] for row in rows] == list(range(1, 2 * depth + 1))
    for b, seed in enumerate((3, 4)):
        rng = np.random.default_rng(seed)
        train, fresh = chain_task(rng, 12, 3), chain_task(rng, 8, 3)
        model = Layers(seeds[b : b + 1], 7, depth, "linear", first=True)
        fit(model, torch.as_tensor(train.tokens[None]), torch.as_tensor(train.labels[None]), 4, config.lr)
        tokens = torch.as_tensor(fresh.tokens[None])
        states, attention = model.states(tokens)
        assert fresh.chain is not None
        for layer in range(depth):
            row, call = rows[2 * layer + b], calls[2 * layer + b]
            assert row["accuracy"] == share_right(model, fresh)
            assert row["learned"] == share_right(model, train)
            np.testing.assert_allclose(call[0], states[layer][0].detach(), atol=1e-9)
            np.testing.assert_allclose(call[1], attention[layer][0].detach(), atol=1e-9)
            np.testing.assert_allclose(call[2], model.W[layer][0].detach(), atol=1e-9)
            # The last layer of a chain answers for the first token only.
            assert call[3:5] == (5, 1 if layer == depth - 1 else 3)
            assert call[5] == np.random.default_rng((seed, layer)).random()
            # A path has two hops.
            looks_at = attention[layer][0, :, 0].argmax(-1).numpy()
            hop = float(np.mean(looks_at == fresh.chain[:, layer])) if layer < 2 else None
            assert row["hop"] == hop


def share_right(model: Layers, split: Split) -> float:
    outputs = model.predict(torch.as_tensor(split.tokens[None]))[0].detach().numpy()
    return float(np.mean(np.sign(outputs) == split.labels))


def test_images_have_no_chain_and_every_patch_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(layers, "comparison", lambda *given: calls.append(given) or {})
    (row,) = trials(Config("digits", 1, "linear", n=340, T=16, steps=2, queries=4, lr=0.01), np.array([2]))
    train, test = digits_task(np.random.default_rng(2), 340)
    model = Layers(np.array([2]), train.tokens.shape[-1], 1, "linear", first=False)
    fit(model, torch.as_tensor(train.tokens[None]), torch.as_tensor(train.labels[None]), 2, 0.01)
    assert row["hop"] is None
    assert row["accuracy"] == share_right(model, test)
    assert row["learned"] == share_right(model, train)
    np.testing.assert_array_equal(calls[0][0], test.tokens)
    assert calls[0][4] == 16
