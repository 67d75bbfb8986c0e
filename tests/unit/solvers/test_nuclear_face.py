"""Newton on the face of the nuclear norm's ball: how the face is read, and its systems where they are singular."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem
from attsvm.core.norms import NUCLEAR
from attsvm.platform.kernels import call, interpreted
from attsvm.proofs.objective import Regularisation
from attsvm.solvers.common.control import Control
from attsvm.solvers.nuclear import face, face_newton
from attsvm.solvers.nuclear.face import MEASURE_FLOOR, SYSTEM_BYTES, _by_lapack, _leave
from attsvm.solvers.nuclear.face_newton import Demand, _activate, _on_face, refine
from attsvm.solvers.nuclear.portfolio import solve_nuclear
from attsvm.solvers.nuclear.steps import StepConstraints
from attsvm.solvers.schedule import FACE_GAP, finish
from problems import FAMILIES
from settings import setting_of


def matrix_with_zeros() -> tuple[SelectionProblem, np.ndarray]:
    """One constraint along each axis, and W, the matrix of least nuclear norm that meets both: the identity."""
    tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]])
    return SelectionProblem(tokens, np.eye(2), [0, 0]), np.eye(2)


def test_newton_reaches_a_matrix_with_zeros() -> None:
    problem, W = matrix_with_zeros()
    setting, control = setting_of(problem, NUCLEAR, rotate=False), Control(1e-12)
    dual = np.where(setting.reduced.rejected, [[1.0], [1.1]], 0.0)
    assert refine(setting, 1.01 * setting.reduced.lower(W), dual, control)
    assert control.W is not None
    np.testing.assert_allclose(setting.reduced.lift(control.W), W, atol=1e-12)


def test_newton_takes_no_step_beyond_the_memory() -> None:
    """Two multipliers and the three entries of S: five unknowns."""
    problem, W = matrix_with_zeros()
    setting = setting_of(problem, NUCLEAR, rotate=False)
    dual = np.where(setting.reduced.rejected, [[1.0], [1.1]], 0.0)
    for most, is_enough in ((SYSTEM_BYTES * 25 - 1, False), (SYSTEM_BYTES * 25, True)):
        control = Control(1e-12)
        control.most_bytes = most
        assert refine(setting, 1.01 * setting.reduced.lower(W), dual, control) == is_enough
        assert (control.iterations > 1) == is_enough


@pytest.mark.parametrize(("share", "is_compiled"), [(0.5, False), (2.0, True)])
def test_newton_near_the_solution_solves_by_lapack(
    share: float, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elimination in a compiled call would end at a singular system."""
    calls = []
    monkeypatch.setattr(face_newton, "call", lambda step, *rest: calls.append(step) or call(step, *rest))
    problem, W = matrix_with_zeros()
    setting, control = setting_of(problem, NUCLEAR, rotate=False), Control(1e-12)
    dual = np.where(setting.reduced.rejected, [[1.0], [1.1]], 0.0)
    V = 1.01 * setting.reduced.lower(W)
    control.offer(V, NUCLEAR.value(V), dual, NUCLEAR.value(V) / (1.0 + share * FACE_GAP))
    refine(setting, V, dual, control)
    assert bool(calls) == is_compiled


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_a_solution_with_losses_is_seen_at_its_own_multipliers(loss: Any) -> None:
    """Those of a hard margin may have any scale, those of losses have not."""
    setting = setting_of(FAMILIES["planted"].draw(6, 5, 4), NUCLEAR, Regularisation(0.5, loss, None))
    control, after = Control(1e-11), Control(1e-9)
    assert finish(solve_nuclear(setting, control, None)) is None
    assert control.solved
    assert control.W is not None
    assert control.dual is not None
    assert refine(setting, control.W, control.dual, after)
    assert after.iterations == 1


@pytest.mark.parametrize(("upper", "shift"), [(np.inf, 0.0), (1.5, 0.0), (np.inf, 0.7)])
def test_arrays_and_loops_identify_one_face(upper: float, shift: float) -> None:
    setting = setting_of(FAMILIES["several"].draw(6, 6, 5), NUCLEAR)
    reduced = setting.reduced
    constraints = StepConstraints.of_reduced(reduced, np.nonzero(reduced.rejected | reduced.tied))
    count, random = len(constraints.of), np.random.default_rng(0)
    demand = Demand(np.where(constraints.free, 0.0, 1.0), upper, shift)
    margins, start = random.normal(1.0, 0.5, count), np.minimum(random.exponential(1.0, count), upper)
    marks = random.random(count) < 0.3
    # Newton lets a constraint leave by a multiplier of exactly zero.
    leaving = marks & ~constraints.free & (np.arange(count) % 2 == 0)
    assert leaving.any()
    start[leaving] = 0.0
    results = []
    for function in (_activate.py_func, interpreted(_activate)):
        dual, active = start.copy(), marks.copy()
        results.append((*function(constraints, demand, margins, dual, active), dual, active))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    index = results[0][0]
    assert not leaving[index].any()
    delta, of, queries = interpreted(_on_face)(constraints, index)
    np.testing.assert_array_equal(delta, constraints.delta[index])
    np.testing.assert_array_equal(queries[of], constraints.queries[constraints.of[index]])
    assert len(queries) == len(np.unique(constraints.of[index]))


def dependent(size: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """A symmetric matrix of half the rank, but for one equation of its own, and a right-hand side in its range."""
    random = np.random.default_rng(size)
    rows = random.normal(size=(size, size // 2))
    system = np.zeros((size + 1, size + 1))
    system[:size, :size] = rows @ rows.T
    system[size, size] = 1.0
    rhs = np.append(rows @ random.normal(size=size // 2), 0.0)
    return system, rhs, random


@pytest.mark.parametrize("unit", [1.0, 1e6])
@pytest.mark.parametrize("size", [6, 10, 14])
def test_dependent_constraints_change_their_multipliers_by_the_smallest_share(size: int, unit: float) -> None:
    system, rhs, random = dependent(size)
    rhs *= unit
    lam = np.append(10.0 ** random.uniform(-2.0, 2.0, size // 2), 0.0)
    units = np.ones(size + 1)
    units[: len(lam)] = np.maximum(lam / lam.max(), MEASURE_FLOOR)
    change = rhs.copy()
    assert _by_lapack(system, change, lam, 1e-12)
    # The equations hold, although one unknown is zero: rounding makes no constraint leave.
    np.testing.assert_allclose(system @ change, rhs, rtol=0, atol=1e-8 * unit)
    # In these units the smallest change is orthogonal to every other solution's difference from it.
    null = np.linalg.svd(system[:size, :size])[0][:, size // 2 :]
    np.testing.assert_allclose(null.T @ (change / units**2)[:size], 0.0, atol=1e-6 * np.abs(change / units**2).max())


def test_systems_out_of_range_are_not_solved() -> None:
    system, rhs, _ = dependent(6)
    for value in (np.inf, np.nan):
        with np.errstate(invalid="ignore"):  # as in every call of a kernel in the interpreter
            assert not _by_lapack(np.eye(2), np.array([1.0, value]), np.ones(2), 1e-12)
        system[1, 1] = value
        assert not _by_lapack(system, rhs.copy(), np.ones(3), 1e-12)


def test_a_regular_system_is_solved_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face, "MOST_UNKNOWNS", 2)
    system, expected = np.diag([1.0, -2.0, 4.0]), np.array([1.0, 2.0, 3.0])
    solution = system @ expected
    assert _by_lapack(system, solution, np.ones(2), 1e-12)
    np.testing.assert_allclose(solution, expected, rtol=1e-14)


def test_a_system_whose_elimination_loses_digits_is_solved_with_all_of_them() -> None:
    """In Wilkinson's matrix the last column of the factor grows by two in every row, to 2^24."""
    size = 25
    system = np.eye(size) - np.tril(np.ones((size, size)), -1)
    system[:, -1] = 1.0
    rhs = np.random.default_rng(0).normal(size=size)
    solution = rhs.copy()
    assert _by_lapack(system, solution, np.ones(size), 1e-12)
    np.testing.assert_allclose(system @ solution, rhs, rtol=0, atol=1e-14)


def test_equations_that_contradict_each_other_lose_the_first_constraint_at_zero() -> None:
    """Two constraints ask the same of W with other margins; the third, apart, and its multiplier stay as they are."""
    system = np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    lam, change = np.ones(3), np.array([-1.0, -3.0, 0.0])
    assert _by_lapack(system, change, lam, 1e-12)
    # Of the right-hand side, (1, -1) is in the range of the system, and a quarter of (-2, -2) in its kernel is gone.
    np.testing.assert_allclose(change, [0.5 - 0.5, -0.5 - 0.5, 0.0], rtol=0, atol=1e-14)


def test_the_first_multiplier_that_falls_to_zero_leaves() -> None:
    """After 1/2 and 3/8 of the residual; one rises, and that of a tie, which is negative, may fall on."""
    lam, change = np.array([0.25, 0.75, 0.5, -0.25]), np.array([0.25, 0.0, 0.0, 0.0, 1.25])
    _leave(np.array([-1.0, -2.0, 1.0, -4.0, 0.5]), lam, change)
    np.testing.assert_array_equal(change, [0.25 - 0.375, -0.75, 0.375, -1.5, 1.4375])
