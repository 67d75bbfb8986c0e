r"""The Frobenius norm, hard or soft margin, with or without a prior: its methods and their budgets.

A few passes of dual coordinate descent, each about one read of the tokens, show how many constraints will be active. If
they are few, the active-set method finishes or finds a certificate; otherwise passes go on until Newton on their
working set can finish. Correlated tokens slow the active-set method and the passes, and change Newton's working set
often. The interior point in the space of W does not slow down with them, and its work is known in advance. A diverging
dual is tested for infeasibility between passes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm.platform.kernels import spares
from attsvm.solvers.common import farkas
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.compiled.soft_margin import solve_on_path, suits_path
from attsvm.solvers.frobenius.coordinate_descent import DualCoordinateDescent, operations, sweeps
from attsvm.solvers.frobenius.exchanges import solve_by_exchanges
from attsvm.solvers.frobenius.newton import newton, onto_bounds
from attsvm.solvers.interior_point.engine import CENTRE, STALLED_STEPS
from attsvm.solvers.interior_point.euclidean import FrobeniusInteriorPoint, work_of_a_step
from attsvm.solvers.schedule import (
    ACTIVE_SET_TURN,
    CROWD,
    CROWD_RATIO,
    EARLY_GAP,
    FEW_SUPPORTS,
    FEW_W_ENTRIES,
    FIRST_TURN,
    FREE_RATIO,
    INTERIOR_STEPS,
    INTERIOR_TURN,
    NEARLY_SQUARE,
    NEWTON_GAP,
    SECOND_TURN,
    SLOW,
    SMALL_FACTOR,
    UNCOMPILED_SHARE,
    WARM_GAP,
    WARM_ROUNDS,
    Steps,
    Turn,
    take_turns,
)

# Number of passes after which the support is known well enough.
OPENING = 10
# Number of passes between tests of the gap, one of them over all constraints.
PASSES_PER_TEST = 10
MAX_PASSES = 3000
# Smallest first mu from a V near the solution, over the objective per token; from a smaller mu, a hinge whose C has
# grown tenfold takes more steps than from the zero matrix.
NEAR_CENTRE = 0.1
# Share of the capacity that a guess fills: fewer constraints enter later than would have to leave a full set.
OPENING_SHARE = 1 / 3
# Bound on ||W|| above which the normalised dual is tested as a certificate; data are scaled to length one.
SUSPICIOUS_NORM = 1e3

Method = Callable[[Setting, Control, np.ndarray], Steps]


def solve_setting(setting: Setting, control: Control, start: np.ndarray | None, *, method: str | None = None) -> Steps:
    """Solve any problem in this norm, leaving V and multipliers with ``control``.

    ``start`` (n, T) are multipliers from which methods start. ``method``, a key of :data:`FROBENIUS_METHODS`, excludes
    all other methods. Returns multipliers (n, T) that prove infeasibility, if they do.
    """
    dual = np.zeros(setting.terms.cost.shape)
    if start is not None:
        dual = setting.terms.clip(start)
        V = setting.reduced.adjoint(dual)
        if setting.report(V, dual, control, adjoint=V, steps=0):
            return None
        if control.dual is not None:
            dual = control.dual.copy()
    near = control.state.gap < WARM_GAP and not _is_crowded(setting, dual)
    if start is not None and (near or _nearly_square(setting, dual)):
        certificate = yield from take_turns([Turn(*_finishing(setting, control, dual), np.inf)], control)
        if certificate is not None or control.solved or control.stopped:
            return certificate
    if method is None and not control.is_watched and suits_path(setting):
        control.enter("one-call interior point")
        V, central, steps = solve_on_path(setting)
        if setting.report(V, onto_bounds(setting, central, V), control, steps=steps):
            return None
    if method is not None:
        name, run = FROBENIUS_METHODS[method]
        return (yield from take_turns([Turn(name, run(setting, control, dual), np.inf)], control))
    work = INTERIOR_STEPS * work_of_a_step(setting.reduced)
    order = ["coordinate_newton", "interior_point"]
    is_uncompiled = start is None and spares(sweeps, operations(setting.reduced, OPENING), work)
    if is_uncompiled or (start is not None and not setting.terms.hard):
        order.reverse()  # Newton has just been tried from the start, and passes only lead to Newton
    if is_uncompiled:
        if setting.plain:
            order.append("active_set")
    elif setting.terms.hard:
        DualCoordinateDescent(setting, dual).run(OPENING, control.is_over)
        if setting.plain:
            order.insert(0 if _suits_exchanges(setting, dual) else 1, "active_set")
    turns = []
    # In later rounds the first method comes after the others.
    for key in [*order[1:], order[0]]:
        name, run = FROBENIUS_METHODS[key]
        first = ACTIVE_SET_TURN if key == "active_set" else FIRST_TURN
        share, delay = INTERIOR_TURN if key == "interior_point" else first if key == order[0] else SECOND_TURN
        if is_uncompiled and key == "interior_point":
            share = UNCOMPILED_SHARE
        turns.append(Turn(name, run(setting, control, dual.copy()), share * work, 0 if key == order[0] else delay))
    return (yield from take_turns(turns, control, lambda: setting.ends_in_rounding(control)))


def _is_crowded(setting: Setting, dual: np.ndarray) -> bool:
    """Tell whether Newton's matrix over the multipliers would be far larger than the interior point's over W.

    A squared hinge has a multiplier for every margin that falls short.
    """
    few = max(CROWD, CROWD_RATIO * int(np.prod(setting.reduced.shape)))
    return bool(setting.terms.shift > 0 and np.count_nonzero(dual) > few)


def _few_supports(setting: Setting, dual: np.ndarray, factor: int = 1) -> bool:
    """Tell whether few constraints will be active: independent ones never outnumber the entries of W."""
    entries = int(np.prod(setting.reduced.shape))
    return entries <= FEW_W_ENTRIES or min(int(np.count_nonzero(dual)), entries) <= factor * FEW_SUPPORTS


def _suits_exchanges(setting: Setting, dual: np.ndarray) -> bool:
    """Tell whether active-set updates are the fastest method, since few constraints will be active.

    A large bound after a few passes indicates near duplicates, on which passes converge slowly.
    """
    bound = setting.terms.bound(dual, setting.reduced.adjoint(dual))[1]
    return _few_supports(setting, dual, 2 if bound > SUSPICIOUS_NORM else 1)


def _nearly_square(setting: Setting, dual: np.ndarray) -> bool:
    """Tell whether the number of active constraints is so near the number of entries of W that only updates finish."""
    entries = int(np.prod(setting.reduced.shape))
    return setting.plain and int(setting.inner(dual).sum()) >= NEARLY_SQUARE * entries


def _finishing(setting: Setting, control: Control, dual: np.ndarray) -> tuple[str, Steps]:
    """Name and set up the method that ends a run from multipliers near the solution."""
    if setting.plain and (_few_supports(setting, dual) or _nearly_square(setting, dual)):
        return "active set", solve_by_exchanges(setting, control, dual)
    return "Newton", newton(setting, dual, control, rounds=WARM_ROUNDS)


def active_set(setting: Setting, control: Control, dual: np.ndarray) -> Steps:
    """Update the active set one constraint at a time, from the support that coordinate descent leaves."""
    if not setting.plain:
        return None
    if not dual.any():
        yield DualCoordinateDescent(setting, dual).run(OPENING, control.is_over)
    return (yield from solve_by_exchanges(setting, control, dual, OPENING_SHARE))


def coordinate_newton(setting: Setting, control: Control, dual: np.ndarray) -> Steps:
    """Run coordinate descent down to a small gap, then Newton; test infeasibility when the dual diverges."""
    terms = setting.terms
    descent = DualCoordinateDescent(setting, dual)
    suspicious, target, before = SUSPICIOUS_NORM, EARLY_GAP, np.inf
    effort, last = 0.0, 0.0
    entries = int(np.prod(setting.reduced.shape))
    most, few = max(SMALL_FACTOR, FREE_RATIO * entries), SMALL_FACTOR if terms.hard else min(SMALL_FACTOR, entries)
    for batch in range(MAX_PASSES // PASSES_PER_TEST):
        if batch > 0 or not descent.dual.any():
            work = descent.run(PASSES_PER_TEST, control.is_over)
            effort += work
            yield work
        if setting.report(descent.V, descent.dual, control, adjoint=descent.V):
            return None
        if terms.hard and terms.bound(descent.dual, descent.V)[1] > suspicious:
            multipliers = farkas.certificate(setting.reduced, descent.dual, control)
            if multipliers is not None:
                return multipliers
            yield farkas.work(setting.reduced, descent.dual)
            suspicious *= 10.0
        gap = control.state.gap
        size = int(setting.inner(descent.dual).sum())
        is_near = gap < target and (gap < NEWTON_GAP or size <= few)
        slow = gap > SLOW * before
        if effort >= last and size <= most and (is_near or slow):
            last = 0.0
            for work in newton(setting, descent.dual.copy(), control, rounds=6):
                last += work
                yield work
            if control.solved or control.stopped:
                return None
            effort, target = 0.0, min(target, gap) / 100.0
        before = gap
    return None


def interior_point(setting: Setting, control: Control, dual: np.ndarray) -> Steps:
    """Run the interior point, then Newton; soft margins start from the best V so far."""
    work = work_of_a_step(setting.reduced)
    centre = CENTRE if control.W is None else min(CENTRE, max(NEAR_CENTRE, control.state.gap))
    method = FrobeniusInteriorPoint(setting, control.W, centre)
    suspicious, stall = SUSPICIOUS_NORM**2, 0
    best = np.array([np.inf, np.inf])
    while stall <= STALLED_STEPS:
        if method.report(control):
            return None
        yield work
        # The gap shows progress late if a margin is small; the residuals of margins and products show it earlier.
        progress = np.array([method.distance(), control.state.gap])
        stall = 0 if (progress < 0.9 * best).any() else stall + 1
        best = np.minimum(best, progress)
        if setting.terms.hard and control.state.lower_bound * control.unit > suspicious:
            multipliers = farkas.certificate(setting.reduced, method.scattered_dual(setting), control)
            yield work
            if multipliers is not None:
                return multipliers
            suspicious *= SUSPICIOUS_NORM
        if not method.step():
            break
    dual = setting.terms.clip(method.scattered_dual(setting))
    if setting.terms.hard:
        multipliers = farkas.certificate(setting.reduced, dual, control)
        if multipliers is not None:
            return multipliers
    yield from newton(setting, onto_bounds(setting, dual, method.term.V), control, rounds=12)
    return None


FROBENIUS_METHODS: dict[str, tuple[str, Method]] = {
    "active_set": ("active set", active_set),
    "coordinate_newton": ("coordinate descent + Newton", coordinate_newton),
    "interior_point": ("interior point", interior_point),
}
