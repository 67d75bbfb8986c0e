"""Exchanging many multipliers at once: its answers, against one exchange at a time, and where it has none."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers.frobenius.active_set import by_gram, least_multipliers
from attsvm.solvers.frobenius.pivoting import block_pivoting


@pytest.mark.parametrize(("size", "width", "seed"), [(1, 3, 0), (40, 60, 1), (120, 130, 2), (120, 400, 3)])
def test_multipliers_are_those_of_one_exchange_at_a_time(size: int, width: int, seed: int) -> None:
    """From nearly dependent rows, few of which are supports, to nearly orthogonal ones, most of which are."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((size, width)) + rng.standard_normal(width)
    gram = rows @ rows.T / width
    cost = 1.0 + rng.random(size)
    values = block_pivoting(gram, cost, 1e-12)
    assert values is not None
    assert (values >= 0).all()
    slope = cost - gram @ values
    # A solve is off by the rounding of the matrix, 1e-16 times its condition number of 1e5 at most.
    np.testing.assert_allclose(slope[values > 0], 0.0, atol=1e-11)
    assert slope.max() <= 1e-11
    asking_for_one = gram / np.outer(cost, cost)
    constraints = by_gram(asking_for_one, np.zeros(size, dtype=bool))
    _, one_by_one = least_multipliers(constraints, np.zeros(size), size, np.empty((0, 0)))
    np.testing.assert_allclose(values, one_by_one / cost, atol=1e-10 * values.max())


def test_dependent_constraints_are_left_to_others() -> None:
    row = np.arange(1.0, 5.0)
    assert block_pivoting(np.outer(row, row), np.ones(4), 1e-12) is None


def test_a_goal_out_of_reach_ends() -> None:
    """No slope is below zero where all multipliers are at their optimum, zero or not: the exchanges would go on."""
    rows = np.random.default_rng(0).standard_normal((6, 2)) + 1.0
    gram = rows @ rows.T + 0.1 * np.eye(6)
    assert block_pivoting(gram, np.ones(6), 1e-12) is not None
    assert block_pivoting(gram, np.ones(6), -1e3) is None
