"""BLAS and torch on one thread during small work, and as before afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
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


def test_torch_has_one_thread_whenever_it_is_imported() -> None:
    """Work that needs no torch does not wait for its import."""
    code = """
import sys
from importlib.util import find_spec
from attsvm.platform.threads import one_thread

with one_thread():
    pass
assert "torch" not in sys.modules
finders = list(sys.meta_path)
with one_thread(), one_thread():
    assert find_spec("torch").name == "torch"  # as transformers asks, without importing it
    import torch
    assert torch.get_num_threads() == 1
assert sys.meta_path == finders
before = torch.get_num_threads()
torch.set_num_threads(3)
with one_thread():
    assert torch.get_num_threads() == 1
assert torch.get_num_threads() == 3
print(before)
"""
    environment = {name: value for name, value in os.environ.items() if name != "MKL_NUM_THREADS"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=environment | {"OMP_NUM_THREADS": "2"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "2\n"
