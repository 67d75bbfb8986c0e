"""BLAS on one thread while a small problem is solved, and as before afterwards."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import problems
from attsvm import solve
from attsvm.solvers import solving
from attsvm.solvers.common.control import IterationState


def _threads() -> set[int]:
    return {library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()}


@pytest.fixture
def two_threads():
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        yield


@pytest.mark.parametrize(("limit", "expected"), [(10_000, {1}), (0, {2})], ids=["small", "large"])
def test_small_problems_are_solved_on_one_thread(
    two_threads: None, monkeypatch: pytest.MonkeyPatch, limit: int, expected: set[int]
) -> None:
    monkeypatch.setattr(solving, "ONE_THREAD", limit)
    noted: list[set[int]] = []

    def note(state: IterationState) -> None:
        noted.append(_threads())

    problem = problems.planted(np.random.default_rng(0), 10, 5, 4)
    solve(problem, "spectral", callback=note)
    assert noted
    assert all(threads == expected for threads in noted)
    assert _threads() == {2}
