"""Trials: scores and what rounding does to them, logits, and neighbours against brute force."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from attsvm import TokenData, theory
from attsvm.core.error_free import EPS
from attsvm.data.synthetic import random_data
from attsvm.nn.heads import LambdaHead, LinearHead
from attsvm.theory.tokens import local_optimality


def test_scores_are_off_by_less_than_their_error() -> None:
    """Exact products of the same floats; the error allows a product of length m its m roundings, twice."""
    rng = np.random.default_rng(0)
    for width, (n, T) in ((1, (2, 5)), (30, (5, 2)), (200, (1, 3))):
        values = rng.standard_normal((n, T, width)) * rng.uniform(0.1, 3.0, (n, T, 1))
        v = rng.standard_normal(width)
        data = TokenData(rng.standard_normal((n, T, 2)), np.ones((n, 2)), rng.choice([-1.0, 1.0], n), values=values)
        trial = theory.Trial.of(data, v)
        size = np.linalg.norm(values, axis=2).max() * np.linalg.norm(v)
        assert width * EPS * size <= trial.score_error <= 4 * (width + 2) * EPS * size
        for i in range(n):
            for t in range(T):
                exact = sum(Fraction(a) * Fraction(b) for a, b in zip(values[i, t].tolist(), v.tolist(), strict=True))
                difference = abs(Fraction(float(trial.gamma[i, t])) - int(data.labels[i]) * exact)
                assert difference <= Fraction(trial.score_error) / 2


def test_scores_of_a_head_are_its_predictions() -> None:
    data, v = random_data(None, 3, 4, 5, seed=1)
    trial = theory.Trial.of(data, LambdaHead(v, 0.3))
    expected = data.labels[:, None] * (data.tokens @ v - 0.3 * (data.tokens**2).sum(axis=2))
    np.testing.assert_allclose(trial.gamma, expected, atol=1e-14)
    assert not trial.linear
    assert EPS * np.abs(expected).max() <= trial.score_error <= 1e3 * EPS * np.abs(expected).max()
    assert theory.Trial.of(data, LinearHead(torch.as_tensor(v))).linear
    np.testing.assert_array_equal(theory.Trial.of(data, LinearHead(torch.as_tensor(v))).gamma,
                                  theory.Trial.of(data, v).gamma)  # fmt: skip


def test_hidden_tokens_have_no_score_and_no_logit() -> None:
    data, v = random_data(None, 3, 4, 5, seed=2)
    mask = np.array([[True, True, False, True], [True, False, False, False], [True] * 4])
    trial = theory.Trial.of(TokenData(data.tokens, data.queries, data.labels, mask), v)
    assert (trial.gamma[~mask] == -np.inf).all()
    assert np.isfinite(trial.gamma[mask]).all()
    W = np.random.default_rng(0).standard_normal((5, 5))
    logits = trial.logits(W)
    assert (logits[~mask] == -np.inf).all()
    for i, t in zip(*np.nonzero(mask), strict=True):
        assert logits[i, t] == pytest.approx(float(data.tokens[i, t] @ W @ data.queries[i]), abs=1e-13)
    assert trial.score_gap[1] == np.inf
    assert trial.score_gap[2] == pytest.approx(float(np.diff(np.sort(trial.gamma[2])[-2:])[0]))
    assert trial.optimal.tolist() == [int(row.argmax()) for row in trial.gamma]
    with pytest.raises(ValueError, match=r"^W has shape \(2, 2\); \(d, dz\) = \(5, 5\) was expected\.$"):
        trial.logits(np.ones((2, 2)))


def test_a_unique_best_token_leads_by_more_than_rounding() -> None:
    for lead, unique in ((0.0, False), (1e-16, False), (1e-9, True)):
        values = np.array([[[1.0], [1.0 - lead], [0.0]], [[0.0], [2.0], [1.0]]])
        data = TokenData(np.random.default_rng(0).standard_normal((2, 3, 2)), np.eye(2), [1.0, 1.0], values=values)
        assert theory.Trial.of(data, [1.0]).unique == unique
    # A head of zeros gives every token the score zero, exactly.
    data = TokenData(np.random.default_rng(0).standard_normal((2, 3, 2)), np.eye(2), [1.0, 1.0])
    assert not theory.Trial.of(data, [0.0, 0.0]).unique
    variant = TokenData(np.ones((1, 1, 2)), [[1.0]], [1.0])
    assert theory.Trial.of(variant, [1.0, 0.0]).unique
    assert theory.Trial.of(variant, [1.0, 0.0]).score_gap.tolist() == [np.inf]


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_neighbours_and_violations_by_brute_force(norm: str) -> None:
    selections = set()
    for seed in range(6):
        trial = theory.Trial.of(*random_data(None, 3, 4, 4, seed=seed))
        for selected in (trial.optimal, (trial.optimal + 1) % 4):
            locality = local_optimality(trial, selected, norm)
            assert locality.solution.norm.name == norm
            if not locality.feasible:
                assert not locality.holds
                assert np.isnan(locality.W).all()
                continue
            violated = False
            for i in range(3):
                for t in range(4):
                    margin = (trial.tokens[i, selected[i]] - trial.tokens[i, t]) @ locality.W @ trial.queries[i]
                    near = t != selected[i] and margin <= 1 + 1e-4
                    assert locality.neighbours[i, t] == near
                    better = trial.gamma[i, t] >= trial.gamma[i, selected[i]]
                    assert locality.violations[i, t] == (near and better)
                    violated |= near and better
            assert locality.holds == (not violated)
            selections.add(locality.holds)
    assert selections == {True, False}


def test_a_neighbour_of_equal_score_is_a_violation() -> None:
    """Definition 2 asks for strictly lower scores; equal to rounding is equal."""
    tokens = np.array([[[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]])
    for second, holds in ((1.0, False), (1.0 - 1e-16, False), (1.0 + 1e-16, False), (1.0 - 1e-9, True), (2.0, False)):
        values = np.array([[[1.0], [second], [0.0]]])
        trial = theory.Trial.of(TokenData(tokens, [[1.0]], [1.0], values=values), [1.0])
        assert local_optimality(trial, [0]).holds == holds


def test_data_that_is_no_trial() -> None:
    batch, v = random_data(2, 3, 4, 5, seed=0)
    with pytest.raises(ValueError, match=r"^data holds trials of shape \(2,\); one trial, data\[index\], was"):
        theory.Trial.of(batch, v)
    with pytest.raises(ValueError, match=r"^data has type int"):
        theory.Trial.of(3, v)  # type: ignore[arg-type]
    for head in (np.ones((2, 2)), np.array([1.0, np.nan, 0.0, 0.0, 0.0]), np.ones(3)):
        with pytest.raises(ValueError, match=r"^head "):
            theory.Trial.of(batch[0], head)
