"""Realisable selections: what independence proves, against enumeration and cases made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import Status, TokenData, theory
from attsvm.core.error_free import EPS
from attsvm.data.synthetic import random_data
from attsvm.theory.separability import separates


def trial_of(seed: int, n: int, T: int, d: int) -> theory.Trial:
    return theory.Trial.of(*random_data(None, n, T, d, seed=seed))


@pytest.mark.parametrize(("n", "T", "d"), [(2, 3, 2), (3, 3, 3), (2, 4, 2), (2, 4, 3), (1, 3, 1), (3, 2, 2)])
def test_independence_is_the_dimension_condition_on_random_data(n: int, T: int, d: int) -> None:
    trial = trial_of(n + T + d, n, T, d)
    separability = theory.check_separability(trial)
    assert separability.dimension == (d >= max(T - 1, n))
    assert separability.independent_queries == (d >= n)
    assert separability.independent_tokens == (d >= T - 1)
    assert separability.every is (True if d >= max(T - 1, n) else None)
    assert separability.optimal is trial.optimal_solution.status
    landscape = theory.explore(trial)
    verdict = theory.check_separability(trial, landscape)
    assert verdict.every is bool(landscape.feasible.all())
    if separability.every is None:
        assert "enumerated" in verdict.how
    if verdict.every is False:
        assert verdict.how.startswith(f"{int(landscape.infeasible.sum())} proved infeasible")


def test_a_sample_can_disprove_and_not_prove() -> None:
    verdicts = set()
    for seed in range(4):
        # Normal tokens: on the sphere every token is an exposed point of its sequence.
        rng = np.random.default_rng(seed)
        trial = theory.Trial.of(TokenData(rng.standard_normal((2, 4, 2)), np.eye(2), [1.0, 1.0]), [1.0, 0.5])
        for count in (1, 16):
            landscape = theory.explore(trial, limit=1, samples=count)
            verdict = theory.check_separability(trial, landscape).every
            assert verdict is not True or landscape.exhaustive
            verdicts.add(verdict)
    assert False in verdicts
    assert None in verdicts


def test_dependent_queries_and_tokens_prove_nothing() -> None:
    tokens = np.random.default_rng(0).standard_normal((2, 3, 4))
    variant = TokenData(tokens, [[1.0, 0.0], [2.0, 0.0]], [1.0, 1.0])
    same = theory.check_separability(theory.Trial.of(variant, np.ones(4)))
    assert not same.independent_queries
    assert same.independent_tokens
    assert same.every is None
    absent = theory.check_separability(theory.Trial.of(TokenData(tokens, [[0.0, 0.0], [1.0, 1.0]], [1, 1]), np.ones(4)))
    assert not absent.independent_queries
    nothing = theory.check_separability(theory.Trial.of(TokenData(tokens[:1], [[0.0, 0.0]], [1.0]), np.ones(4)))
    assert not nothing.independent_queries
    tokens[1, 2] = 0.5 * (tokens[1, 0] + tokens[1, 1])
    flat = theory.check_separability(theory.Trial.of(TokenData(tokens, np.eye(2), [1.0, 1.0]), np.ones(4)))
    assert flat.independent_queries
    assert not flat.independent_tokens
    # Queries of lengths 1 and 1e-12 are independent all the same.
    short = theory.check_separability(theory.Trial.of(TokenData(tokens, np.diag([1.0, 1e-12]), [1, 1]), np.ones(4)))
    assert short.independent_queries


@pytest.mark.parametrize(("angle", "independent"), [(360 * EPS, False), (1024 * EPS, True)])
def test_queries_at_an_angle_of_rounding_size_are_dependent(angle: float, independent: bool) -> None:
    # Singular values are sqrt(2) and angle / sqrt(2). Rounding is 8 times the dimension, 32, units of the larger one.
    assert (angle / 2 > 8 * 32 * EPS) is independent
    queries = np.zeros((2, 32))
    queries[:, 0] = 1.0
    queries[1, 1] = angle
    tokens = np.random.default_rng(0).standard_normal((2, 3, 4))
    trial = theory.Trial.of(TokenData(tokens, queries, [1.0, 1.0]), np.ones(4))
    assert theory.check_separability(trial).independent_queries is independent


def test_hidden_tokens_do_not_count() -> None:
    tokens = np.random.default_rng(1).standard_normal((1, 4, 2))
    mask = np.array([[True, True, True, False]])
    separability = theory.check_separability(theory.Trial.of(TokenData(tokens, [[1.0]], [1.0], mask=mask), np.ones(2)))
    assert separability.dimension
    assert separability.independent_tokens
    # The longest visible sequence counts: three differences in the plane are too many, in one sequence of two.
    pair, pair_mask = np.concatenate([tokens, tokens]), np.array([[True, True, True, True], [True, True, False, False]])
    assert not theory.check_separability(
        theory.Trial.of(TokenData(pair, np.eye(2), [1.0, 1.0], mask=pair_mask), np.ones(2))
    ).dimension
    single = TokenData(tokens, [[1.0]], [1.0], mask=np.array([[True, False, False, False]]))
    assert theory.check_separability(theory.Trial.of(single, np.ones(2))).every


def test_the_middle_of_two_tokens_cannot_be_selected() -> None:
    tokens = np.array([[[0.0, 0.0], [1.0, 1.0], [-1.0, -1.0]]])
    trial = theory.Trial.of(TokenData(tokens, [[1.0]], [1.0]), [1.0, 0.0])
    assert separates(trial, [0]).status is Status.INFEASIBLE
    assert separates(trial, [1]).status is Status.OPTIMAL
