"""The path of smoothed norms: over what its systems are, and where it ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm.core.normal_matrix import NormalMatrix
from attsvm.core.norms import Entrywise
from attsvm.proofs.objective import Regularisation
from attsvm.solvers.common.control import Control
from attsvm.solvers.interior_point import smoothing_path
from attsvm.solvers.interior_point.smoothing_path import (
    DECREMENT,
    DEFECT,
    MOST_STAGES,
    MU_FALLS,
    SMALL_DECREMENT,
    STAGE_NEWTON_STEPS,
    STALLED_STAGES,
    PathPoint,
    SmoothingPath,
    resume,
)
from problems import FAMILIES
from settings import setting_of


@pytest.mark.parametrize(
    ("size", "closely", "is_formed"), [((6, 4, 16), False, False), ((6, 4, 16), True, True), ((20, 15, 5), False, True)]
)
def test_no_matrix_over_entries_is_formed_where_constraints_are_fewer(
    size: tuple[int, int, int], closely: bool, is_formed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except by a close run, which needs its digits."""
    formed = []
    monkeypatch.setattr(smoothing_path, "NormalMatrix", lambda reduced: formed.append(None) or NormalMatrix(reduced))
    problem, options = FAMILIES["planted"].make(np.random.default_rng(0), *size), Regularisation(1.0, "hinge", None)
    setting, control = setting_of(problem, Entrywise(1.5), options, rotate=False), Control(1e-6)
    list(SmoothingPath(setting, control, closely=closely).run(np.zeros(setting.reduced.shape)))
    assert control.solved
    assert bool(formed) == is_formed


def test_a_path_ends_after_some_values_of_mu_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SmoothingPath, "_report", lambda *_: None)
    setting = setting_of(FAMILIES["planted"].draw(6, 4, 5), Entrywise(3), Regularisation(1.0, "hinge", None))
    path = SmoothingPath(setting, Control(1e-9)).run(np.zeros(setting.reduced.shape))
    assert len(list(path)) == STALLED_STAGES + 1


@pytest.mark.parametrize(
    ("steps", "stages"), [(STAGE_NEWTON_STEPS - 1, STALLED_STAGES + 1), (STAGE_NEWTON_STEPS - 2, MOST_STAGES)]
)
def test_a_path_ends_after_some_values_of_mu_at_which_newton_takes_all_its_steps(
    steps: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the gap is below what the path promises."""
    monkeypatch.setattr(SmoothingPath, "_newton", lambda self, point, mu: (point, lambda rhs: rhs, steps))
    monkeypatch.setattr(SmoothingPath, "_predict", lambda self, point, solve, mu, careful: (point, mu))
    setting = setting_of(FAMILIES["planted"].draw(6, 4, 5), Entrywise(3), Regularisation(1.0, "hinge", None))
    control, V = Control(-1.0), np.zeros(setting.reduced.shape)  # a goal that no gap meets
    control.offer(V, 1.0 + 1e-12, np.ones(setting.terms.cost.shape), 1.0)
    assert len(list(SmoothingPath(setting, control).run(V))) == stages


def test_a_path_goes_on_from_the_best_matrix_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[np.ndarray] = []
    monkeypatch.setattr(SmoothingPath, "run", lambda self, V: starts.append(V) or iter([]))
    setting = setting_of(FAMILIES["planted"].draw(6, 4, 5), Entrywise(3))
    control, V = Control(1e-9), np.zeros(setting.reduced.shape)
    list(resume(setting, control, V))
    control.offer(V + 1.0, 1.0, None, 0.0)
    list(resume(setting, control, V))
    np.testing.assert_array_equal(starts, [V, V + 1.0])


def test_a_start_without_inequalities_stays() -> None:
    """A margin that nothing limits is no reason to shrink it."""
    setting = setting_of(FAMILIES["several"].draw(5, 6, 6, seed=1), Entrywise(3))
    ties = setting.on(np.zeros(setting.terms.cost.shape, dtype=bool))
    assert ties.ties
    V = ties.on_ties(np.random.default_rng(0).standard_normal(setting.reduced.shape))
    np.testing.assert_allclose(SmoothingPath(ties, Control(1e-9))._interior(V), V, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("tol", "expected", "is_repeated"), [(1.1, 0.0, False), (0.9, 0.0, True), (0.0, 1.1, False), (0.0, 0.9, True)]
)
def test_a_step_is_repeated_if_its_residual_exceeds_a_share_of_the_gap(
    tol: float, expected: float, is_repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the requested gap or of that expected on the path, whichever is larger; both are in units of the residual."""
    steps, step = [], SmoothingPath._stiff_step
    monkeypatch.setattr(SmoothingPath, "_stiff_step", lambda self, point: steps.append(None) or step(self, point))
    setting = setting_of(FAMILIES["planted"].draw(12, 6, 4), Entrywise(3), Regularisation(1.0, "hinge", None))
    control = Control(0.0)
    path = SmoothingPath(setting, control, closely=True)
    point = path._at(np.random.default_rng(0).normal(size=setting.reduced.shape), 0.1)
    assert point is not None
    # A step that stays leaves the gradient; l_1.5, the dual norm, is at most N^(1/1.5 - 1/2) times the l_2 norm.
    unit = point.V.size ** (1.0 / 1.5 - 0.5) * float(np.linalg.norm(point.gradient)) / DEFECT
    objective = point.norm.value + setting.terms.loss(point.shortfall)
    control.tol = tol * unit
    path._report(point, np.zeros(point.V.shape), expected * unit * objective / float(setting.terms.rejected.sum()))
    assert bool(steps) == is_repeated


@pytest.mark.parametrize(("closely", "most"), [(False, DECREMENT), (True, SMALL_DECREMENT)])
def test_predicted_points_are_so_near_the_path_that_newton_returns(
    closely: bool, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Squared decrements are in units of the new mu; where no factor keeps them small, V stays."""
    predict, falls = SmoothingPath._predict, []

    def note(self: SmoothingPath, point: PathPoint, solve: Any, mu: float, careful: int) -> Any:
        after, following = predict(self, point, solve, mu, careful)
        assert after is not None
        if after.V is not point.V:
            assert float((after.gradient * solve(after.gradient)).sum()) <= most * following
        falls.append(following / mu)
        return after, following

    monkeypatch.setattr(SmoothingPath, "_predict", note)
    setting = setting_of(FAMILIES["planted"].draw(6, 4, 5), Entrywise(8), Regularisation(1.0, "hinge", None))
    control = Control(1e-9)
    list(SmoothingPath(setting, control, closely=closely).run(np.zeros(setting.reduced.shape)))
    assert control.solved
    np.testing.assert_allclose(np.abs(np.subtract.outer(falls, MU_FALLS)).min(axis=1), 0.0, atol=1e-12)


@pytest.mark.parametrize("family", ["planted", "several"])
def test_a_step_with_stiff_weights_apart_is_the_newton_step(family: str) -> None:
    """Constraints are more than entries, so that some weights are stiff and others are not."""
    setting = setting_of(FAMILIES[family].draw(12, 6, 4), Entrywise(3), Regularisation(1.0, "hinge", None))
    reduced, ties = setting.reduced, setting.ties
    assert bool(ties) == (family == "several")
    assert reduced.rejected.sum() > np.prod(reduced.shape)
    path = SmoothingPath(setting, Control(1e-9), closely=True)
    point = path._at(setting.on_ties(np.random.default_rng(0).normal(size=reduced.shape)), 0.1)
    assert point is not None
    expected = path._factor(point)(-point.gradient)
    move, dual, tie = path._stiff_step(point)
    # At this mu both systems are well conditioned.
    np.testing.assert_allclose(move, expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(dual, point.dual - point.theta * reduced.apply(expected), rtol=0, atol=1e-10)
    change = (point.norm.hessian @ move.ravel()).reshape(move.shape)
    adjoint = reduced.adjoint(dual) + ties.adjoint(tie)
    np.testing.assert_allclose(point.norm.gradient + change, adjoint, rtol=0, atol=1e-10)
