"""Lemmas of the theory as properties of random instances."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attsvm import TokenData, correlation, theory, train
from attsvm.data.synthetic import random_data
from attsvm.theory.conditions import initial_gradient
from attsvm.training.objective import Objective

seeds = st.integers(0, 10_000)
sizes = st.tuples(st.integers(1, 4), st.integers(2, 5), st.integers(2, 6))


def trial_of(seed: int, size: tuple[int, int, int]) -> theory.Trial:
    return theory.Trial.of(*random_data(None, *size, seed=seed))


@given(seeds, sizes)
def test_the_optimal_tokens_are_locally_optimal_whenever_they_are_feasible(seed: int, size) -> None:
    """Lemma 7."""
    trial = trial_of(seed, size)
    found = theory.local_optimality(trial, trial.optimal)
    assert found.holds == found.feasible
    assert not found.violations.any()


@given(st.integers(0, 500))
@settings(max_examples=4)
def test_local_paths_end_in_locally_optimal_directions_and_leave_all_others(seed: int) -> None:
    """Theorems 9 and 10: minimise the risk over the sphere ||W|| = R, starting at the SVM direction of a selection.

    The soft minimum of margins differs from the minimum by log(number of constraints) / R, so the minimiser near a
    locally optimal direction closes in on it as R grows. A neighbour that scores at least as high draws W to itself.
    """
    trial = trial_of(seed, (2, 3, 3))
    for found in map(partial(theory.local_optimality, trial), np.ndindex(3, 3)):
        if not found.feasible:
            continue
        ends = [_descend_on_the_sphere(trial, found.W, 1e3 * share) for share in (0.05, 1.0)]
        near = [float(correlation(end, found.W)) for end in ends]
        if found.holds:
            assert near[1] > 0.999
            assert near[1] > near[0] - 1e-6
        else:
            assert (trial.logits(ends[1]).argmax(axis=1) != found.selected).any() or near[1] < 0.999


def _descend_on_the_sphere(trial: theory.Trial, W: np.ndarray, radius: float) -> np.ndarray:
    """Riemannian descent with shrinking unit steps; the exact gradient's direction survives any radius."""
    objective = Objective.from_data(trial.data, trial.v)
    size = radius * np.linalg.norm(W)
    V = W / np.linalg.norm(W)
    for k in range(150):
        slope = objective.gradient(torch.as_tensor(size * V)[None]).W[0].numpy()
        along = slope - (slope * V).sum() * V
        length = np.linalg.norm(along)
        if length == 0:
            break
        V = V - 0.2 * 0.94**k * along / length
        V /= np.linalg.norm(V)
    return V


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
    proved, counted = theory.check_separability(trial), theory.check_separability(trial, landscape)
    if proved.every:
        assert landscape.feasible.all()
        assert counted.every
    if landscape.infeasible.any():
        assert not proved.every
        assert counted.every is False
    # Random data are in general position: the dimension decides independence.
    assert proved.dimension == (proved.independent_queries and proved.independent_tokens)


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
