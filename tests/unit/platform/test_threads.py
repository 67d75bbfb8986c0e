"""BLAS on one thread while a small problem is solved, and as before afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import problems
from attsvm import solve
from attsvm.solvers import options
from attsvm.solvers.common.control import IterationState


def _threads() -> set[int]:
    return {library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()}


@pytest.fixture
def two_threads() -> Iterator[set[int]]:
    """Two threads for every BLAS that can have them; yields what they have."""
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        before = _threads()
        assert before != {1}
        yield before


@pytest.mark.parametrize("limit", [10_000, 0], ids=["small", "large"])
def test_small_problems_are_solved_on_one_thread(
    two_threads: set[int], monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(options, "ONE_THREAD", limit)
    notes: list[set[int]] = []

    def note(state: IterationState) -> None:
        notes.append(_threads())

    problem = problems.planted(np.random.default_rng(0), 10, 5, 4)
    solve(problem, "spectral", callback=note)
    assert notes
    assert all(threads == ({1} if limit else two_threads) for threads in notes)
    assert _threads() == two_threads
