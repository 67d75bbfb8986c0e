"""Verdicts on single selections, and on all of them, against linear programs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from attsvm import Status, theory
from attsvm.data.synthetic import random_data
from oracle import reference


@pytest.mark.parametrize(("n", "T", "d"), [(2, 4, 2), (3, 3, 2), (4, 2, 2), (4, 3, 3)])
def test_every_selection_against_a_linear_program(n: int, T: int, d: int) -> None:
    trial = theory.Trial.of(*random_data(None, n, T, d, seed=n * T))
    landscape = theory.explore(trial)
    assert landscape.undecided == 0
    verdicts = {
        tuple(s.tolist()): status is Status.OPTIMAL
        for s, status in zip(landscape.selections, landscape.statuses, strict=True)
    }
    assert len(verdicts) == T**n
    for selected in product(range(T), repeat=n):
        assert reference(trial.problem(list(selected)), "frobenius").feasible == verdicts[selected]
        assert (theory.separates(trial, list(selected)).status is Status.OPTIMAL) == verdicts[selected]
    assert theory.check_separability(trial, landscape).every == all(verdicts.values())


def test_the_share_of_separable_instances_is_the_published_one() -> None:
    """P(feasible) at (n, T) = (10, 5): 0.10 at d = 3, 0.85 at d = 4 (argmax tokens)."""
    trials = 120
    for d, low, high in ((3, 0.02, 0.22), (4, 0.72, 0.95)):
        data, v = random_data(trials, 10, 5, d, seed=d)
        solvable = [theory.Trial.of(data[j], v[j]).optimal_solution.status is Status.OPTIMAL for j in range(trials)]
        # Four standard deviations of a binomial share: 0.11 at 0.10, 0.13 at 0.85.
        assert low <= np.mean(solvable) <= high


def test_the_published_dimension_suffices_and_is_not_needed() -> None:
    enough = theory.check_separability(theory.Trial.of(*random_data(None, 4, 4, 4, seed=0)))
    assert enough.dimension
    assert enough.every
    short = [theory.Trial.of(*random_data(None, 5, 5, 4, seed=seed)) for seed in range(10)]
    assert not any(theory.check_separability(trial).dimension for trial in short)
    assert any(trial.optimal_solution.status is Status.OPTIMAL for trial in short)
