"""Lemmas of the theory as properties of random instances."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attsvm import TokenData, theory, train
from attsvm.core.norms import FROBENIUS
from attsvm.data.synthetic import random_data
from attsvm.theory.conditions import initial_gradient
from attsvm.training.paths.balls import ball_of
from attsvm.training.paths.path import _Sphere
from attsvm.training.risk.objective import Objective

seeds = st.integers(0, 10_000)
sizes = st.tuples(st.integers(1, 4), st.integers(2, 5), st.integers(2, 6))


def trial_of(seed: int, size: tuple[int, int, int]) -> theory.Trial:
    return theory.Trial.of(*random_data(None, *size, seed=seed))


@given(seeds, sizes)
def test_the_optimal_tokens_are_locally_optimal_whenever_they_are_feasible(seed: int, size) -> None:
    """Lemma 7: nothing scores higher than the optimal tokens, so no neighbour does."""
    trial = trial_of(seed, size)
    locality = theory.local_optimality(trial, trial.optimal)
    assert locality.holds == locality.feasible
    assert not locality.violations.any()


@given(seeds, sizes)
def test_optimal_tokens_minimise_the_risk_and_their_svm_attains_it_in_the_limit(seed: int, size) -> None:
    """No W reaches the risk of full attention to the optimal tokens; R W_mm tends to it as R grows."""
    trial = trial_of(seed, size)
    objective = Objective.from_data(trial.data, trial.v)
    rng = np.random.default_rng(seed)
    for scale in (0.0, 1.0, 30.0, 1e4):
        W = torch.as_tensor(scale * rng.standard_normal((1, size[2], size[2])))
        assert (objective.excess(W)[0] > 0).all()
    direction = theory.local_optimality(trial, trial.optimal)
    if direction.feasible:
        scaled = [objective.excess(torch.as_tensor(R * direction.W)[None]) for R in (1.0, 10.0, 100.0, 1e5)]
        logs = np.array([float(scale + mantissa.log()) for mantissa, scale in scaled])
        # Margins of R at least: the excess is below c e^-R with c = n (T - 1) times gaps and slopes, both at most 2.
        assert (logs <= np.log(4 * size[0] * size[1]) - np.array([1.0, 10.0, 100.0, 1e5]) * (1 - 1e-9)).all()


@given(st.integers(0, 500))
@settings(max_examples=10)
def test_a_local_cone_holds_its_direction_and_keeps_the_risk_above_that_of_its_tokens(seed: int) -> None:
    """What the local regularisation path rests on (Theorems 9 and 10).

    In cone_epsilon(alpha) a low token is ahead of every high one by epsilon ||W||, so what attention to high tokens
    gains is smaller than what the low one costs once e^(epsilon ||W||) exceeds T Gamma. The SVM direction of an alpha
    that is not locally optimal, with a high token for a neighbour, lies in no such cone.
    """
    trial = trial_of(seed, (2, 3, 4))
    objective, rng = Objective.from_data(trial.data, trial.v), np.random.default_rng(seed)
    epsilon = 1e-3
    for direction in map(partial(theory.local_optimality, trial), np.ndindex(3, 3)):
        if not direction.feasible:
            continue
        alpha = torch.as_tensor(direction.selected.copy())[None]
        cone = _Sphere(objective, ball_of(FROBENIUS, 4, 4, None), alpha, epsilon)
        if not direction.holds:
            assert not cone.in_cone(torch.as_tensor(direction.W))
        gap = np.abs(trial.gamma[np.arange(2), direction.selected][:, None] - trial.gamma)
        Gamma = gap.max() / gap[gap > 0].min() * np.exp(np.ptp(trial.gamma))
        radius = 2 * np.log(3 * Gamma) / epsilon
        for size in (0.0, 0.1, 0.5):
            W = direction.W / np.linalg.norm(direction.W) + size * rng.standard_normal((4, 4))
            W = torch.as_tensor(radius * W / np.linalg.norm(W))
            if cone.in_cone(W):
                assert (objective.excess(W[None], alpha)[0] > 0).all()


@given(seeds, sizes)
def test_scaling_scores_and_renaming_tokens_changes_nothing(seed: int, size) -> None:
    trial = trial_of(seed, size)
    order = np.random.default_rng(seed).permutation(size[1])
    other = theory.Trial.of(TokenData(trial.tokens[:, order], trial.queries, trial.labels), 8.0 * np.asarray(trial.v))
    first, second = theory.check_conditions(trial), theory.check_conditions(other)
    for name in ("B.1", "B.1 (slack)", "B.2", "E"):
        assert first[name].holds == second[name].holds
    assert theory.norm_diverges(trial).holds == theory.norm_diverges(other).holds


@given(seeds, st.tuples(st.integers(1, 4), st.integers(2, 4), st.integers(2, 5)))
def test_independence_proves_what_enumeration_finds(seed: int, size) -> None:
    trial = trial_of(seed, size)
    landscape = theory.explore(trial)
    proof, enumeration = theory.check_separability(trial), theory.check_separability(trial, landscape)
    if proof.every:
        assert landscape.feasible.all()
        assert enumeration.every
    if landscape.infeasible.any():
        assert not proof.every
        assert enumeration.every is False
    # Random data are in general position: the dimension decides independence.
    assert proof.dimension == (proof.independent_queries and proof.independent_tokens)


@given(seeds, sizes)
def test_no_finite_matrix_is_stationary_where_the_norm_must_diverge(seed: int, size) -> None:
    trial = trial_of(seed, size)
    assume(theory.norm_diverges(trial).holds)
    rng = np.random.default_rng(seed)
    for scale in (0.0, 1.0, 4.0):
        W = scale * rng.standard_normal((size[2], size[2]))
        assert np.linalg.norm(initial_gradient(trial, W=W)) > 0
    assert theory.norm_bounded(trial).holds is None


@given(st.integers(0, 300))
@settings(max_examples=8)
@pytest.mark.slow
def test_a_certified_bound_is_kept_by_descent(seed: int) -> None:
    """One dimension: many sequences pull either way, and the risk rises at both ends."""
    rng = np.random.default_rng(seed)
    tokens = rng.standard_normal((4, 3, 1))
    data = TokenData(tokens, rng.standard_normal((4, 1)), rng.choice([-1.0, 1.0], 4))
    trial = theory.Trial.of(data, [1.0])
    assume(theory.norm_bounded(trial).holds)
    step = 1 / theory.smoothness(trial).L_W
    trace = train(data, [1.0], optimizer="gd", lr=step, steps=2000, record_every=1000)
    assert (np.diff(trace.loss) <= 1e-15).all()
    # Every W of the sublevel set is kept off both ends by the rise of the risk there.
    assert trace.loss[-1] <= min(_logistic(trial, -1e4), _logistic(trial, 1e4))
    further = train(data, [1.0], optimizer="gd", lr=step, steps=2000, init=trace.W[-1])
    assert abs(further.norm[-1] - trace.norm[-1]) < abs(trace.norm[-1] - trace.norm[0]) + 1e-12


def _logistic(trial: theory.Trial, w: float) -> float:
    logits = trial.logits(np.array([[w]]))
    s = np.exp(logits - logits.max(axis=1, keepdims=True))
    s /= s.sum(axis=1, keepdims=True)
    return float(np.log1p(np.exp(-(s * trial.gamma).sum(axis=1))).mean())
