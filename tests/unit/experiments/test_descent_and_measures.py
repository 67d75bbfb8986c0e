"""Descent through any map to attention weights, step by step in numpy, and what is measured of a trial."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from attsvm import SelectionProblem, solve
from attsvm.data.token_data import TokenData
from attsvm_paper.beyond.descent import Noise, descend
from attsvm_paper.beyond.measures import finite_or_none, margin_share
from attsvm_paper.published.instances import Instances, draw
from attsvm_paper.published.numerics import STEP

SEEDS = [3, 8]
PRICE = 0.7


def penalised_softmax(logits: Tensor, _: Noise) -> tuple[Tensor, Tensor]:
    return torch.softmax(logits, -1), PRICE * logits.square().sum((-2, -1))


def step_by_step(tokens: np.ndarray, queries: np.ndarray, gamma: np.ndarray, steps: int, price: float) -> np.ndarray:
    """Take normalised steps on one trial, from the derivatives of loss, softmax and penalty."""
    n, _, d = tokens.shape
    W = np.zeros((d, d))
    for _ in range(steps):
        gradient = np.zeros((d, d))
        for x, z, score in zip(tokens, queries, gamma, strict=True):
            logits = x @ W @ z
            p = np.exp(logits) / np.exp(logits).sum()
            output = score @ p
            slope = -p * (score - output) / (1 + np.exp(output)) / n + 2 * price * logits
            gradient += np.outer(x.T @ slope, z)
        W -= STEP * gradient / np.linalg.norm(gradient)
    return W


def test_each_step_has_the_published_length_against_the_gradient_of_risk_and_penalty() -> None:
    instances = draw(SEEDS, 3, 4, 5)
    data = instances.data
    W = descend(instances, penalised_softmax, 12, SEEDS)
    for b in range(2):
        expected = step_by_step(data.tokens[b], data.queries[b], instances.gamma[b], 12, PRICE)
        np.testing.assert_allclose(W[b], expected, rtol=1e-9, atol=1e-12)
    assert np.linalg.norm(descend(instances, penalised_softmax, 1, SEEDS), axis=(1, 2)) == pytest.approx([STEP] * 2)


def test_a_gradient_of_zero_leaves_W_where_it_is() -> None:
    instances = draw(SEEDS, 3, 4, 5)
    still = Instances(instances.data, np.zeros_like(instances.v))
    W = descend(still, lambda logits, _: (torch.softmax(logits, -1), None), 2, SEEDS)
    np.testing.assert_array_equal(W, np.zeros((2, 5, 5)))


def test_noise_is_uniform_and_each_trial_has_its_own() -> None:
    like = torch.zeros(2, 40, 25)
    first = Noise(SEEDS)
    draws = first.uniform(like)
    assert draws.shape == like.shape
    assert 0 < draws.min() < 0.01
    assert 0.99 < draws.max() <= 1
    # Alone in its batch a trial has the same numbers; the next call has others.
    assert torch.equal(Noise(SEEDS[1:]).uniform(like[1:])[0], draws[1])
    assert not torch.equal(first.uniform(like), draws)
    assert not torch.equal(draws[0], draws[1])


def test_the_noise_is_handed_to_the_map() -> None:
    instances = draw(SEEDS, 3, 4, 5)

    def noisy(logits: Tensor, noise: Noise) -> tuple[Tensor, None]:
        return torch.softmax(logits - noise.uniform(logits).log(), -1), None

    both = descend(instances, noisy, 3, SEEDS)
    data = TokenData(instances.data.tokens[1:], instances.data.queries[1:], instances.data.labels[1:])
    alone = descend(Instances(data, instances.v[1:]), noisy, 3, SEEDS[1:])
    np.testing.assert_allclose(both[1], alone[0], atol=1e-14)


def test_the_share_of_a_margin_is_that_of_the_nearest_rival() -> None:
    tokens = np.array([[[0.0, 0.0], [-2.0, 0.0], [-1.0, -1.0]]])
    solution = solve(SelectionProblem(tokens, np.ones((1, 1)), np.array([0])))
    # The shortest W with 2 w_1 >= 1 and w_1 + w_2 >= 1 is (1/2, 1/2), of margin sqrt(2) per norm.
    assert np.asarray(solution.W).ravel() == pytest.approx([0.5, 0.5])
    # (3, 1) has the margins 6 and 4.
    assert margin_share(solution, np.array([[3.0], [1.0]])) == pytest.approx(4 / np.sqrt(10) / np.sqrt(2))
    assert margin_share(solution, np.array([[0.6], [0.8]])) == pytest.approx(1.2 / np.sqrt(2))
    assert math.isnan(margin_share(solution, np.zeros((2, 1))))


def test_a_selection_without_rivals_has_no_share() -> None:
    solution = solve(SelectionProblem(np.ones((1, 1, 2)), np.ones((1, 1)), np.array([0])))
    assert math.isnan(margin_share(solution, np.ones((2, 1))))


@pytest.mark.parametrize(("number", "expected"), [(2.5, 2.5), (0.0, 0.0), (math.inf, None), (math.nan, None)])
def test_a_row_holds_finite_numbers_or_none(number: float, expected: float | None) -> None:
    assert finite_or_none(number) == expected
    assert type(finite_or_none(np.float64(1.0))) is float
