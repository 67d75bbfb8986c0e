"""BLAS on one thread while a small problem is solved, and as before afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from threadpoolctl import ThreadpoolController

import problems
from attsvm import solve
from attsvm.platform import threads
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
    assert all(of_blas == ({1} if limit else two_threads) for of_blas in notes)
    assert _threads() == two_threads


@pytest.fixture
def two_threads_of_torch() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("limits", [True, False])
def test_one_thread_is_one_of_torch_too(
    two_threads_of_torch: None, two_threads: set[int], monkeypatch: pytest.MonkeyPatch, limits: bool
) -> None:
    """Torch is told by itself: the MKL inside it is a library that limits do not find."""
    if not limits:
        monkeypatch.setattr(threads, "threadpool_limits", lambda limits: nullcontext())
    with threads.one_thread():
        assert torch.get_num_threads() == 1
        assert _threads() == ({1} if limits else two_threads)
    assert torch.get_num_threads() == 2
    assert _threads() == two_threads
