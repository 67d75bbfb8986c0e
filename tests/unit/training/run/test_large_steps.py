"""Steps that nothing interrupts are made only where time, memory and a waiting callback allow them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, solve
from attsvm.platform import memory
from attsvm.solvers.common import control
from attsvm.solvers.common.control import LONGEST_CALL, POLL, UNCHECKED_BYTES, Control
from attsvm.solvers.nuclear import face, face_newton


def problem(n: int) -> SelectionProblem:
    """Selections at random, which no W makes: a squared hinge charges nearly every token."""
    rng = np.random.default_rng(0)
    tokens, queries = rng.standard_normal((n, 9, 5)), rng.standard_normal((n, 4))
    return SelectionProblem(tokens, queries, rng.integers(9, size=n))


def sizes(monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[int]:
    """Solve a soft margin with 3200 constraints; return the active ones of every Newton step on the face."""
    counts: list[int] = []
    step = face_newton.newton_step

    def counted(delta: np.ndarray, *rest: Any) -> Any:
        counts.append(len(delta))
        return step(delta, *rest)

    # As in a study: a callback follows, and the system of all constraints would take 27 s and 800 MB here.
    monkeypatch.setattr(face_newton, "newton_step", counted)
    solution = solve(problem(400), "nuclear", C=50.0, loss="squared_hinge", **options)
    assert solution.gap < 1e-6
    return counts


def test_newton_on_the_face_leaves_out_systems_that_take_too_long_or_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "LONGEST_CALL", 0.05)
    assert sizes(monkeypatch, callback=lambda state: False, time_limit=60.0) == []
    monkeypatch.setattr(control, "available_bytes", lambda: 1e8)
    assert sizes(monkeypatch) == []


def test_a_large_singular_system_is_not_solved_by_least_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    system, rhs = np.ones((6, 6)), np.ones(6)
    assert face._by_lapack(system, rhs.copy(), np.ones(6), 1e-12)
    monkeypatch.setattr(face, "MOST_UNKNOWNS", 5)
    assert not face._by_lapack(system, rhs, np.ones(6), 1e-12)
    np.testing.assert_array_equal(rhs, 1.0)
    assert face._by_lapack(np.eye(6), rhs, np.ones(6), 1e-12)


def test_what_a_control_affords(monkeypatch: pytest.MonkeyPatch) -> None:
    free, limited, watched = Control(1e-9), Control(1e-9, time_limit=1.0), Control(1e-9, callback=lambda state: False)
    assert free.affords(1e9, 0.0)
    assert not limited.affords(1.1, 0.0)
    assert not watched.affords(1.1 * LONGEST_CALL, 0.0)
    assert not watched.inner(1e-3).affords(1.1 * LONGEST_CALL, 0.0)
    assert watched.affords(0.9 * LONGEST_CALL, 0.0)
    monkeypatch.setattr(control, "available_bytes", lambda: 1e8)
    assert free.affords(0.0, 4e7)
    assert not free.affords(0.0, 6e7)
    monkeypatch.setattr(control, "available_bytes", lambda: 0.0)
    assert free.affords(0.0, UNCHECKED_BYTES)
    assert not free.affords(0.0, 1.1 * UNCHECKED_BYTES)


def test_a_callback_has_its_turn_between_steps_that_report_nothing() -> None:
    asked: list[int] = []
    watched = Control(1e-9, callback=lambda state: asked.append(1) or len(asked) > 1)
    clock = [0.0]
    watched._watch = type("Clock", (), {"seconds": property(lambda self: clock[0])})()
    assert [watched.is_over() for _ in range(3)] == [False] * 3
    clock[0] = POLL
    assert not watched.is_over()
    assert len(asked) == 1
    clock[0] = 2.5 * POLL
    assert watched.is_over()


def test_memory_is_the_least_of_what_system_group_and_process_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:  4000 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    resource: Any = vars(memory)["resource"]
    if resource is not None:
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
    assert memory.available_bytes() == 4000 * 1024
    (tmp_path / "memory.current").write_text("1000000")
    (tmp_path / "memory.max").write_text("max")
    assert memory.available_bytes() == 4000 * 1024
    (tmp_path / "memory.max").write_text("3000000")
    assert memory.available_bytes() == 2000000
    if resource is not None:
        # The soft limit binds; this process has 300 pages of addresses, of which 20 are in memory.
        (tmp_path / "statm").write_text("300 20 10 5 0 100 0")
        monkeypatch.setattr(memory, "_STATUS", tmp_path / "statm")
        for pages, left in ((100, 0), (300, 0), (303, 3)):
            limits = pages * resource.getpagesize(), resource.RLIM_INFINITY
            monkeypatch.setattr(resource, "getrlimit", lambda kind, limits=limits: limits)
            assert memory.available_bytes() == left * resource.getpagesize()
