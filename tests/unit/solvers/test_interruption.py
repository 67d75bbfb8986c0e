"""Ctrl-C and the clock: every phase ends within a second or so of a signal, and of its time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from scipy.linalg import LinAlgError, cho_factor

from attsvm import SelectionProblem, Status, solve
from attsvm.core import cholesky
from attsvm.core.reduction import reduce
from attsvm.solvers import solving
from attsvm.solvers.common.control import POLL, Control
from attsvm.solvers.frobenius import coordinate_descent
from attsvm.solvers.frobenius.coordinate_descent import DualCoordinateDescent, operations
from attsvm.solvers.schedule import LOOP_RATE
from clocks import least_seconds
from problems import FAMILIES
from settings import setting_of

TESTS = Path(__file__).parents[2]

# Each of these runs for ten seconds and more on a core of 2 to 3 GHz.
PHASES = {
    "Cholesky factor": """
from attsvm.core.cholesky import factor
matrix = np.full((7000, 7000), 0.5)
matrix[np.diag_indices(7000)] = 1.0
ready()
while True:
    factor(matrix)
""",
    "basis of the tokens": """
from attsvm.core.reduction import _row_basis
rows = np.repeat(rng.standard_normal((50000, 1)), 700, axis=1)
ready()
while True:
    _row_basis(rows)
""",
    "coordinate descent": """
from attsvm.solvers.frobenius.coordinate_descent import DualCoordinateDescent
from settings import setting_of
problem = attsvm.SelectionProblem(rng.standard_normal((20000, 16, 16)), rng.standard_normal((20000, 16)), [0] * 20000)
setting = setting_of(problem)
descent = DualCoordinateDescent(setting, np.zeros((20000, 15)))
descent.run(1)
ready()
while True:
    descent.run(300)
""",
}
PREAMBLE = """
import signal
import numpy as np
import attsvm
# A shell without job control starts what runs in the background with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
rng = np.random.default_rng(0)
def ready():
    print("ready", flush=True)
"""


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.slow
def test_every_phase_answers_an_interruption(phase: str) -> None:
    script, env = (
        PREAMBLE + PHASES[phase],
        os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
    )
    running = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        time.sleep(0.3)
        assert running.poll() is None
        spent = sum(psutil.Process(running.pid).cpu_times()[:2])
        before = sum(os.times()[2:4])  # of processes that have ended
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=120.0)
        # A second of ours, and the end of the interpreter. Of the processor, since others may be using the machine.
        assert sum(os.times()[2:4]) - before - spent < 2.0
        assert "KeyboardInterrupt" in errors
    finally:
        running.kill()


def contradictory(n: int = 96, T: int = 20, d: int = 200, distinct: int = 70) -> SelectionProblem:
    """Repeated queries, each a millionth off, that ask for other tokens of the same texts: no cycle is exact."""
    rng = np.random.default_rng(0)
    query = rng.integers(distinct, size=n)
    queries = rng.standard_normal((distinct, d))[query] * (1.0 + 1e-6 * rng.standard_normal((n, d)))
    sequence = np.arange(n) % 16
    return SelectionProblem(rng.standard_normal((16, T, d)), queries, rng.integers(T, size=n), sequence=sequence)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "max"])
def test_a_contradiction_without_a_cycle_keeps_to_its_limit(norm: str) -> None:
    problem = contradictory()
    seconds, solution = least_seconds(lambda: solve(problem, norm, time_limit=1.0), 3.0)
    assert solution.status in (Status.TIME_LIMIT, Status.INFEASIBLE, Status.OPTIMAL)
    assert seconds <= 3.0


def test_a_step_must_fit_into_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Control, "seconds", property(lambda control: 8.0))
    control = Control(1e-9, time_limit=10.0)
    assert control.affords(1.5, 0.0)
    assert not control.affords(2.5, 0.0)
    assert control.stopped is None  # only asked
    assert control.has_time_for(1.5)
    assert control.stopped is None
    assert not control.has_time_for(2.5)
    assert control.stopped is Status.TIME_LIMIT
    unlimited = Control(1e-9)
    assert unlimited.affords(1e9, 0.0)
    assert unlimited.has_time_for(1e9)


def test_a_callback_is_asked_after_every_tenth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(Control, "seconds", property(lambda control: clock[-1]))
    asked: list[float] = []
    control = Control(1e-9, callback=lambda state: asked.append(clock[-1]))
    for periods in (0.5, 1.5, 2.0, 2.4, 2.6):
        clock.append(periods * POLL)
        assert not control.is_over()
    assert asked == [1.5 * POLL, 2.6 * POLL]


def test_the_final_answer_may_be_evaluated_a_little_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Control, "seconds", property(lambda control: 10.2))
    control = Control(1e-9, time_limit=10.0)
    assert control.is_late()
    control.certify()
    assert not control.is_late()


@pytest.mark.parametrize("C", [None, 1.0])
@pytest.mark.parametrize("status", [Status.TIME_LIMIT, Status.UNDECIDED])
def test_an_earlier_answer_has_the_status_of_the_run(
    status: Status, C: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the last method ends at the time limit without a better pair, the run has met its limit."""
    rng = np.random.default_rng(0)
    problem = SelectionProblem(rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 5)), [0, 1, 2])
    known = solve(problem, "nuclear", C=C).certified
    nearby = known.W + 0.01 * rng.standard_normal(known.W.shape) * np.abs(known.W).max()

    def run(answers, *_, **__):
        answers.control.stopped = None if status is Status.UNDECIDED else status
        return None, None, None

    monkeypatch.setattr(solving, "_in_parts", lambda answers: answers.of(nearby, known.dual))
    monkeypatch.setattr(solving, "_run", run)
    solution = solve(problem, "nuclear", C=C, tol=1e-9)
    assert solution.status is status
    assert 1e-9 < solution.gap < 0.2


def test_a_pair_that_proves_nothing_is_not_kept() -> None:
    control = Control(1e-9)
    control.offer(np.ones((2, 2)), np.inf, np.ones((3, 4)), 0.0)
    assert control.W is None
    assert control.dual is None


def test_a_pass_multiplies_and_adds_twice_an_entry() -> None:
    """For the margin and u of every difference, and for W and the next u of every query."""
    reduced = reduce(SelectionProblem(np.eye(4)[None].repeat(3, axis=0), np.eye(5)[:3], [0, 0, 0]))
    (n, T, p), r = reduced.delta.shape, reduced.shape[1]
    assert (n, T, p, r) == (3, 3, 3, 3)
    multiplications = n * T * 2 * p + n * 2 * p * r
    assert operations(reduced, 1) == 2 * multiplications
    assert operations(reduced, 7) == 7 * operations(reduced, 1)


@pytest.mark.parametrize(("compiled", "looks"), [(True, 4), (False, 7)])
def test_only_compiled_passes_are_made_together(compiled: bool, looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two passes fit into the time without Ctrl-C; the clock is looked at before them."""
    setting = setting_of(FAMILIES["planted"].draw(6, 5, 4))
    monkeypatch.setattr(coordinate_descent, "compiles", lambda *_: compiled)
    monkeypatch.setattr(coordinate_descent, "UNHEARD", 2.5 * operations(setting.reduced, 1) / LOOP_RATE)
    looked: list[None] = []
    DualCoordinateDescent(setting, np.zeros(setting.terms.cost.shape)).run(7, lambda: looked.append(None) or False)
    assert len(looked) == looks


def test_factors_in_panels_are_those_of_lapack(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((90, 70))
    matrix = rows.T @ rows
    expected = np.tril(cho_factor(matrix, lower=True)[0])
    monkeypatch.setattr(cholesky, "PANELLED_ROWS", 10)
    monkeypatch.setattr(cholesky, "PANEL", 16)
    lower = np.tril(cholesky.lower_factor(matrix.copy())[0])
    # Both are off by gamma_70 times the condition number, some 500 here.
    np.testing.assert_allclose(lower, expected, rtol=1e-9, atol=1e-11)
    matrix[40, 40] = -1.0
    with pytest.raises(LinAlgError):
        cholesky.lower_factor(matrix)


@pytest.mark.parametrize(("size", "panels"), [(10, [10]), (11, [4, 4, 3])])
def test_only_large_factors_are_cut_into_panels(size: int, panels: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C waits for a panel at most; small matrices take one call of LAPACK."""
    columns: list[int] = []
    monkeypatch.setattr(cholesky, "PANELLED_ROWS", 10)
    monkeypatch.setattr(cholesky, "PANEL", 4)
    monkeypatch.setattr(cholesky, "cho_factor", lambda a, **options: columns.append(len(a)) or cho_factor(a, **options))
    cholesky.lower_factor(np.eye(size))
    assert columns == panels


@pytest.mark.parametrize("place", [(1, 0), (5, 0), (10, 9)])
def test_a_number_that_is_none_is_left_to_the_caller(place: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK either refuses such a matrix as indefinite or goes on with it."""
    monkeypatch.setattr(cholesky, "PANELLED_ROWS", 10)
    monkeypatch.setattr(cholesky, "PANEL", 4)
    matrix = np.eye(11)
    matrix[place] = matrix[place[::-1]] = np.nan
    with contextlib.suppress(LinAlgError):
        assert np.isnan(np.tril(cholesky.lower_factor(matrix)[0])).any()
