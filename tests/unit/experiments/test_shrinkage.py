"""Runs with weight decay, dropout, early stops and several heads: each number of a row, recomputed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from attsvm import SelectionProblem, Solution, regularization_path, solve, train
from attsvm.functional import exact_softmax
from attsvm.theory import local_optimality
from attsvm.theory.tokens import Trial
from attsvm_paper.beyond import shrinkage
from attsvm_paper.beyond.descent import descend
from attsvm_paper.published.instances import Instances, draw, start_seeds
from attsvm_paper.published.numerics import STEP

CLOSE: dict[str, Any] = {"rel": 1e-6, "abs": 1e-9}


def top_tokens(instances: Instances, b: int, W: np.ndarray) -> np.ndarray:
    logits = [
        tokens @ W @ query for tokens, query in zip(instances.data.tokens[b], instances.data.queries[b], strict=True)
    ]
    return np.argmax(logits, axis=1)


def svm(instances: Instances, b: int, selected: Any, norm: str = "frobenius") -> Solution:
    problem = SelectionProblem(instances.data.tokens[b], instances.data.queries[b], np.asarray(selected))
    return solve(problem, norm)  # type: ignore[arg-type]


def risk_of(instances: Instances, b: int, W: torch.Tensor) -> torch.Tensor:
    tokens, queries = (torch.as_tensor(part[b]) for part in (instances.data.tokens, instances.data.queries))
    losses = []
    for x, z, gamma in zip(tokens, queries, torch.as_tensor(instances.gamma[b]), strict=True):
        losses.append(torch.nn.functional.softplus(-gamma @ torch.softmax(x @ W @ z, 0)))
    return torch.stack(losses).mean()


def expected_row(instances: Instances, b: int, W: np.ndarray, reference: np.ndarray | None = None) -> dict[str, Any]:
    """Judge by single problems: all that holds of a W."""
    top = top_tokens(instances, b, W)
    solution, at = svm(instances, b, top), np.arange(len(top))
    row: dict[str, Any] = dict.fromkeys(("correlation", "margin", "relative", "same"))
    row["infeasible"] = not np.isfinite(solution.objective)
    if np.isfinite(solution.objective):
        mm, length = np.asarray(solution.W), np.sqrt((W * W).sum())
        row["correlation"] = (W * mm).sum() / length / np.sqrt((mm * mm).sum())
        row["relative"] = length / np.sqrt((mm * mm).sum())
        tokens, queries = instances.data.tokens[b], instances.data.queries[b]
        logits = np.stack([x @ W @ z for x, z in zip(tokens, queries, strict=True)])
        leads = logits[at, top][:, None] - logits
        leads[at, top] = np.inf
        row["margin"] = leads.min() / length * np.sqrt((mm * mm).sum())
    row["local"] = local_optimality(Trial.of(instances.data[b], instances.v[b]), top).holds
    row["optimal"] = np.mean(top == instances.gamma[b].argmax(-1))
    if reference is not None:
        row["same"] = np.mean(top == reference)
    return row


def agrees(row: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        if value is None or isinstance(value, bool):
            assert row[name] is value, name
        else:
            assert row[name] == pytest.approx(value, **CLOSE), name


def test_a_matrix_is_judged_by_the_svm_of_its_top_tokens() -> None:
    instances = draw([9, 0, 1, 2], 3, 4, 2)
    W = np.random.default_rng(7).standard_normal((4, 2, 2))
    # All logits are equal: the first tokens count as selected, and in the first trial they have no SVM.
    W[0] = 0
    reference = np.random.default_rng(8).integers(4, size=(4, 3))
    rows = shrinkage.judge(instances, W, reference)
    for b, row in enumerate(rows):
        agrees(row, expected_row(instances, b, W[b], reference[b]))
    assert {row["infeasible"] for row in rows} == {True, False}
    assert {row["local"] for row in rows} == {True, False}
    assert len({row["same"] for row in rows}) > 1
    assert all(row["same"] is None for row in shrinkage.judge(instances, W))


@pytest.mark.parametrize("strength", [1e-1, 1e-2, 1e-4])
def test_the_regularised_solution_is_stationary(strength: float) -> None:
    instances = draw([4, 9], 3, 4, 5)
    for b in range(2):
        tokens, queries = instances.data.tokens[b], instances.data.queries[b]
        found = shrinkage.regularised_solution(tokens, queries, instances.gamma[b], strength)
        W = torch.tensor(found, requires_grad=True)
        total = risk_of(instances, b, W) + strength / 2 * (W * W).sum()
        (slope,) = torch.autograd.grad(total, W)
        # The descent stops once no entry of the gradient exceeds 1e-4 of the decay.
        assert slope.abs().max() < 1.001e-4 * strength
        assert total < risk_of(instances, b, torch.zeros_like(W))


def test_the_minimiser_starts_at_zero_and_gets_the_gradient_of_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Callable[[np.ndarray], Any], np.ndarray, dict[str, Any]]] = []

    def spy(value: Any, start: np.ndarray, **options: Any) -> Any:
        given.append((value, start.copy(), options["options"]))
        return minimize(value, start, **options)

    monkeypatch.setattr(shrinkage, "minimize", spy)
    instances, strength = draw([6], 3, 4, 2), 0.3
    shrinkage.regularised_solution(instances.data.tokens[0], instances.data.queries[0], instances.gamma[0], strength)
    ((value, start, options),) = given
    assert options["gtol"] == pytest.approx(1e-4 * strength)
    np.testing.assert_array_equal(start, np.zeros(4))
    W = torch.tensor([[0.4, -1.2], [2.0, 0.7]], dtype=torch.float64, requires_grad=True)
    total = risk_of(instances, 0, W) + strength / 2 * (W * W).sum()
    number, slope = value(W.detach().numpy().ravel())
    assert number == pytest.approx(total.item(), rel=1e-12)
    np.testing.assert_allclose(slope, torch.autograd.grad(total, W)[0].numpy().ravel(), rtol=1e-9, atol=1e-12)
    assert shrinkage.risk(instances, 0, W.detach().numpy()) == pytest.approx(risk_of(instances, 0, W).item(), rel=1e-12)


def test_decay_is_compared_with_the_path_at_its_own_norm() -> None:
    instances, strength = draw([4, 9], 3, 4, 5), 1e-3
    rows = shrinkage.decay(instances, strength)
    for b, row in enumerate(rows):
        data = instances.data[b]
        W = shrinkage.regularised_solution(data.tokens, data.queries, instances.gamma[b], strength)
        length = np.sqrt((W * W).sum())
        (point,) = regularization_path(data, instances.v[b], [length]).W
        agrees(row, expected_row(instances, b, W))
        assert row["radius"] == pytest.approx(length, rel=1e-9)
        assert row["path"] == pytest.approx((W * point).sum() / length / np.sqrt((point * point).sum()), abs=1e-9)
        losses = [float(risk_of(instances, b, torch.as_tensor(one))) for one in (W, point)]
        assert row["excess"] == pytest.approx(losses[0] - losses[1], abs=1e-9)


def test_the_excess_is_that_of_the_decay_and_not_of_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    instances = draw([4], 3, 4, 5)
    monkeypatch.setattr(shrinkage, "regularised_solution", lambda *_: np.eye(5))
    (row,) = shrinkage.decay(instances, 0.1)
    best = float(regularization_path(instances.data[0], instances.v[0], [np.sqrt(5)]).loss[0])
    own = float(risk_of(instances, 0, torch.eye(5, dtype=torch.float64)))
    assert own - best > 0.01
    assert row["excess"] == pytest.approx(own - best, rel=1e-6)


def hide(kind: str, rate: float) -> Callable[[Any, Any], Any]:
    """Drop each token with this probability: from the softmax, or its weight after it."""

    def attend(logits: torch.Tensor, noise: Any) -> tuple[torch.Tensor, None]:
        kept = noise.uniform(logits).ge(rate)
        if kind == "weights":
            return torch.softmax(logits, -1) * kept / (1 - rate), None
        shown = torch.where(kept.sum(-1, keepdim=True) == 0, True, kept)
        return exact_softmax(torch.where(shown, logits, -torch.inf)), None

    return attend


@pytest.mark.parametrize("kind", ["tokens", "weights"])
def test_dropped_tokens_leave_the_softmax_and_dropped_weights_are_zero(kind: str) -> None:
    seeds, steps, rate = [3, 8], 12, 0.6
    instances = draw(seeds, 3, 4, 3)
    rows = shrinkage.dropout(instances, kind, rate, steps, seeds)
    W = descend(instances, hide(kind, rate), steps, seeds)
    plain = train(instances.data, instances.v, steps=steps, lr=STEP).W[:, -1]
    for b, row in enumerate(rows):
        agrees(row, expected_row(instances, b, W[b], top_tokens(instances, b, plain[b])))
    assert any(row["same"] < 1 for row in rows)


class Fixed:
    """Numbers of which the first sequence loses all tokens, the second one, and the third none."""

    def uniform(self, like: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[[0.1, 0.2, 0.05], [0.9, 0.3, 0.25], [0.5, 0.6, 0.9]]], dtype=like.dtype)


@pytest.mark.parametrize(
    ("kind", "kept", "scale"),
    [("tokens", [[1, 1, 1], [1, 1, 0], [1, 1, 1]], None), ("weights", [[0, 0, 0], [1, 1, 0], [1, 1, 1]], 0.7)],
)
def test_a_token_is_kept_from_the_dropped_share_on(
    kind: str, kept: list[list[int]], scale: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence whose tokens are all hidden keeps them all; weights are divided by the kept share."""
    maps: list[Callable[[Any, Any], Any]] = []

    def spy(instances: Instances, attend: Any, steps: int, seeds: Any) -> np.ndarray:
        maps.append(attend)
        return np.zeros((1, 2, 2))

    monkeypatch.setattr(shrinkage, "descend", spy)
    shrinkage.dropout(draw([0], 3, 3, 2), kind, 0.3, 1, [0])
    plain, attend = maps
    logits = torch.tensor([[[0.0, 1.0, 2.0], [2.0, -1.0, 0.5], [0.3, 0.3, 4.0]]], dtype=torch.float64)
    weights, penalty = plain(logits, Fixed())
    np.testing.assert_allclose(weights, torch.softmax(logits, -1))
    assert penalty is None
    part = weights * torch.tensor([kept])
    weights, penalty = attend(logits, Fixed())
    np.testing.assert_allclose(weights, part / part.sum(-1, keepdim=True) if scale is None else part / scale)
    assert penalty is None


def test_nothing_is_dropped_at_rate_zero() -> None:
    seeds = [3, 8]
    instances = draw(seeds, 3, 4, 3)
    W = train(instances.data, instances.v, steps=12, lr=STEP).W[:, -1]
    for b, row in enumerate(shrinkage.dropout(instances, "weights", 0.0, 12, seeds)):
        agrees(row, expected_row(instances, b, W[b]) | {"same": 1.0})


def test_early_stops_are_judged_at_six_evenly_spaced_powers() -> None:
    """From 10 to 40 steps: 10 times 4 to the power k/5."""
    seeds = [3, 8]
    instances = draw(seeds, 3, 4, 3)
    each = shrinkage.early(instances, 40)
    assert [[row["step"] for row in rows] for rows in each] == 2 * [[10, 13, 17, 23, 30, 40]]
    final = train(instances.data, instances.v, steps=40, lr=STEP).W[:, -1]
    for at, step in ((0, 10), (5, 40)):
        W = train(instances.data, instances.v, steps=step, lr=STEP).W[:, -1]
        for b in range(2):
            agrees(each[b][at], expected_row(instances, b, W[b], top_tokens(instances, b, final[b])))
            largest = np.linalg.norm(W[b], 2)
            assert each[b][at]["stable_rank"] == pytest.approx((W[b] ** 2).sum() / largest**2, rel=1e-9)


def locally_optimal(instances: Instances, b: int) -> int:
    trial = Trial.of(instances.data[b], instances.v[b])
    n, T = trial.gamma.shape
    return sum(local_optimality(trial, np.array(one)).holds for one in itertools.product(range(T), repeat=n))


def test_sizes_give_margin_and_ranks_of_the_best_tokens_and_count_local_optima() -> None:
    # In the first trial the best tokens have no SVM, in the second its rank depends on the norm.
    seeds = [18, 3]
    instances = draw(seeds, 3, 3, 2)
    rows = shrinkage.size(instances, 1, 15, seeds)
    trace = train(instances.data, instances.v, steps=15, lr=STEP)
    for b, row in enumerate(rows):
        best, nuclear = (svm(instances, b, instances.optimal[b], norm) for norm in ("frobenius", "nuclear"))
        feasible = bool(np.isfinite(best.objective))
        assert row["infeasible"] is not feasible
        assert (row["largest"], row["rank"]) == (
            (pytest.approx(1 / np.linalg.norm(best.W)), np.linalg.matrix_rank(best.W, 1e-6))
            if feasible
            else (None, None)
        )
        assert row["nuclear_rank"] == (np.linalg.matrix_rank(nuclear.W, 1e-6) if feasible else None)
        own = expected_row(instances, b, trace.W[b, -1])
        agrees(row, {name: own[name] for name in ("margin", "optimal")} | {"agree": 1.0})
        assert row["local_optima"] == locally_optimal(instances, b)
    assert {row["infeasible"] for row in rows} == {True, False}
    assert any(row["nuclear_rank"] != row["rank"] for row in rows)


def test_several_heads_start_at_a_tenth_of_normal_numbers_and_are_judged_alone() -> None:
    seeds, heads, d = [2, 3, 5], 2, 3
    instances = draw(seeds, 3, 4, d)
    rows = shrinkage.size(instances, heads, 8, seeds)
    shares = []
    for b, (row, seed) in enumerate(zip(rows, start_seeds(seeds), strict=True)):
        start = 0.1 * np.random.default_rng(int(seed)).standard_normal((heads, d, d))
        trace = train(instances.data[b], instances.v[b], steps=8, lr=STEP, heads=heads, init=start)
        matrices = np.asarray(trace.W[-1]).reshape(heads, d, d)
        own = [expected_row(instances, b, W) for W in matrices]
        margins = [part["margin"] for part in own if part["margin"] is not None]
        assert row["margin"] == pytest.approx(np.mean(margins), rel=1e-6)
        assert row["optimal"] == pytest.approx(np.mean([part["optimal"] for part in own]))
        first, second = (top_tokens(instances, b, W) for W in matrices)
        assert row["agree"] == pytest.approx(np.mean(first == second))
        assert row["local_optima"] is None
        shares.append(row["agree"])
    assert min(shares) < 1
