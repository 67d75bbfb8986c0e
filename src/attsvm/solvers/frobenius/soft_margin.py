r"""The Frobenius norm with a soft margin or a prior: which methods, in which order.

Passes of dual coordinate descent leave most multipliers at their bounds; Newton settles the others. Correlated tokens
slow the first and churn the second: then an interior point takes over and Newton finishes what it leaves.
"""

from __future__ import annotations

import numpy as np

from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.coordinate_descent import CoordinateDescent
from attsvm.solvers.frobenius.soft_newton import polish
from attsvm.solvers.interior_point.engine import SoftInteriorPoint, run
from attsvm.solvers.interior_point.terms import EuclideanTerm

BATCH = 10
MAX_PASSES = 300
NEWTON_GAP = 1e-3
NEARBY = 1e-2  # a start this good goes to Newton at once; others are cheaper to improve by passes
SLOW = 0.9  # a batch of passes that gains less than this factor in the gap has met correlated tokens
WORKING_SET = 4000
ROUNDS = 12


def solve_soft_frobenius(setting: Setting, control: Control, start: np.ndarray | None) -> None:
    """Solve, leaving V and multipliers with ``control``.

    Parameters
    ----------
    setting : Setting
    control : Control
    start : ndarray, shape (n, T), optional
        Multipliers to start from.
    """
    if start is not None:
        start = setting.terms.clip(start)
        control.method = "Newton"
        if setting.report(setting.reduced.adjoint(start), start, control):
            return
        if control.state.gap < NEARBY:
            polish(setting, start, control, rounds=ROUNDS, working_set=WORKING_SET)
            if control.solved or control.stopped:
                return
            start = _of_square(setting, control)
    _coordinate_newton(setting, control, start)
    if control.solved or control.stopped:
        return
    control.method += ", interior point"
    origin = np.zeros(setting.reduced.shape) if control.W is None else control.W
    method = SoftInteriorPoint(setting, EuclideanTerm(setting), origin)
    run(method, setting, control)
    if not (control.solved or control.stopped):
        control.method += ", Newton"
        polish(setting, setting.terms.clip(method.dual), control, rounds=ROUNDS, working_set=WORKING_SET)


def _of_square(setting: Setting, control: Control) -> np.ndarray | None:
    """Best multipliers so far, of half the square of the norm even where the norm itself is reported."""
    if control.dual is None or setting.terms.squared:
        return control.dual
    return control.dual * control.state.lower_bound


def _coordinate_newton(setting: Setting, control: Control, start: np.ndarray | None) -> None:
    control.method = "coordinate descent + Newton"
    terms = setting.terms
    dual = np.zeros(terms.cost.shape) if start is None else terms.clip(start)
    descent = CoordinateDescent(setting.reduced, dual, cost=terms.cost, upper=terms.upper, shift=terms.shift)
    target, before = NEWTON_GAP, np.inf
    for _ in range(0, MAX_PASSES, BATCH):
        descent.run(BATCH)
        if setting.report(descent.W, descent.dual, control, steps=BATCH):
            return
        gap = control.state.gap
        slow = gap > SLOW * before
        if gap < target or slow:
            polish(setting, descent.dual, control, rounds=ROUNDS, working_set=WORKING_SET)
            if control.solved or control.stopped or slow:
                return
            target /= 100.0
        before = gap
