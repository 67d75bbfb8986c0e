"""The published instances: scores, optimal tokens, and seeds that decide an instance alone."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import solve
from attsvm.core.types import AnyNorm
from attsvm_paper.published.instances import Instances, draw, draw_with, start_seeds

SEEDS = [3, 11, 2**62]
N, T, D = 3, 4, 5


@pytest.fixture(scope="module")
def instances() -> Instances:
    return draw(SEEDS, N, T, D)


def test_a_score_is_the_label_times_the_projection_of_the_token(instances: Instances) -> None:
    tokens, labels = np.asarray(instances.data.tokens), np.asarray(instances.data.labels)
    assert instances.gamma.shape == (len(SEEDS), N, T)
    assert {*labels.ravel()} == {-1.0, 1.0}
    for b, i, t in np.ndindex(instances.gamma.shape):
        assert instances.gamma[b, i, t] == pytest.approx(labels[b, i] * np.dot(instances.v[b], tokens[b, i, t]))


def test_the_optimal_token_has_no_token_with_a_higher_score(instances: Instances) -> None:
    assert instances.optimal.shape == (len(SEEDS), N)
    for b, i in np.ndindex(instances.optimal.shape):
        scores = instances.gamma[b, i].tolist()
        assert scores.index(max(scores)) == instances.optimal[b, i]


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_every_trial_is_solved_as_a_problem_of_its_own(instances: Instances, norm: AnyNorm) -> None:
    solutions = instances.solve(instances.optimal, norm)
    for b, seed in enumerate(SEEDS):
        alone = draw([seed], N, T, D)
        (problem,) = alone.problems(alone.optimal)
        # Relative duality gap 1e-9 of a strongly convex problem, or of a sharp one.
        np.testing.assert_allclose(solutions.objective[b], solve(problem, norm).objective, rtol=1e-8)


def test_a_seed_decides_its_instance_alone() -> None:
    for gap in (None, 0.1):
        together, reverse = draw(SEEDS, N, T, D, gap), draw(SEEDS[::-1], N, T, D, gap)
        for name in ("tokens", "queries", "labels"):
            np.testing.assert_array_equal(getattr(together.data, name), getattr(reverse.data, name)[::-1])
        np.testing.assert_array_equal(together.v, reverse.v[::-1])
        assert len(np.unique(together.v, axis=0)) == len(SEEDS)


def test_tokens_queries_and_head_lie_on_the_unit_sphere(instances: Instances) -> None:
    for vectors in (instances.data.tokens, instances.data.queries, instances.v):
        # Normalised in single precision.
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1.0, rtol=1e-6)
    assert instances.data.tokens.shape == (len(SEEDS), N, T, D)
    assert instances.data.queries.shape == (len(SEEDS), N, D)


def test_a_score_gap_separates_the_best_token_from_the_second() -> None:
    seeds = range(20)
    best = [np.sort(draw(seeds, N, T, D, gap).gamma, axis=-1)[..., -2:] for gap in (None, 0.1)]
    free, gapped = (np.diff(one)[..., 0] for one in best)
    assert free.min() < 0.1 <= gapped.min()


def test_any_generator_of_a_trial_gives_instances() -> None:
    def generate(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        number = rng.random()
        return np.full((2, 3, 1), number), np.full((2, 1), 2 * number), np.array([1.0, -1.0]), np.array([3 * number])

    instances = draw_with(np.array(SEEDS), generate)
    numbers = np.array([np.random.default_rng(seed).random() for seed in SEEDS])
    np.testing.assert_array_equal(instances.data.tokens[:, 1, 2, 0], numbers)
    np.testing.assert_array_equal(instances.data.queries[:, 1, 0], 2 * numbers)
    np.testing.assert_array_equal(instances.v[:, 0], 3 * numbers)
    np.testing.assert_allclose(instances.gamma[:, 1, 0], -3 * numbers**2)


def test_the_seed_of_a_start_is_the_second_child_of_the_seed() -> None:
    """A child is independent of its parent, which draws the instance."""
    children = [np.random.SeedSequence(seed).spawn(2)[1] for seed in SEEDS]
    expected = [int(child.generate_state(1, np.uint64)[0]) // 2 for child in children]
    starts = start_seeds(np.array(SEEDS))
    assert starts.dtype == np.int64
    assert starts.tolist() == expected
    assert {*starts.tolist()}.isdisjoint(SEEDS)
