r"""The nuclear norm: which methods, in which order.

The Frobenius solution decides feasibility, shows which constraints matter, and measures how ill-conditioned they are.
Primal-dual first-order steps and an interior point share the scheduler; the method with the smaller expected work comes
first. Both approach the face (rank and active constraints) that holds the solution, and Newton on the face ends at
rounding level. Violated constraints join the working set.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.phase_one import open_with_frobenius
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.interior_point.general import interior_point, solve_general
from attsvm.solvers.interior_point.smoothing_path import resume
from attsvm.solvers.nuclear.face_newton import refine
from attsvm.solvers.nuclear.first_order import FirstOrder
from attsvm.solvers.schedule import (
    LARGE_SUPPORT,
    NUCLEAR_FIRST,
    NUCLEAR_INTERIOR,
    NUCLEAR_INTERIOR_STEPS,
    TARGETS,
    WHOLE_SET,
    Steps,
    Turn,
    nuclear_first_order_work,
    nuclear_interior_work,
    take_turns,
)

FIRST_ORDER, INTERIOR_POINT = "first order + face Newton", "interior point + face Newton"
# Size of a working set over the number of supports: late constraints take more first-order steps, and additional
# constraints take time in the interior point.
FIRST_ORDER_ROOM, INTERIOR_ROOM = 3, 2
# Number of first-order steps between tests of all constraints, and in all.
CHUNK, MAX_FIRST_ORDER = 50, 20_000


def solve_nuclear(setting: Setting, control: Control, start: np.ndarray | None, *, method: str | None = None) -> Steps:
    """Solve, leaving W and multipliers with ``control``; return a certificate of infeasibility (n, T) if there is one.

    ``start`` (n, T) are multipliers of the solution of a similar problem. If ``method`` is "first_order" or
    "interior_point", no other method runs, and ``start`` is not used.
    """
    if not setting.plain:
        return (yield from solve_general(setting, control, start))
    reduced = setting.reduced
    if method is None and start is not None and control.W is not None:
        control.method = "warm face Newton"
        if refine(setting, control.W, start, control):
            return None
    first = yield from open_with_frobenius(setting, control)
    if first.V is None or first.dual is None:
        return first.certificate
    margins = reduced.apply(first.V)
    working = _first_working_set(reduced, margins, first.dual, INTERIOR_ROOM)
    interior = interior_point(setting, control, first.V, working)
    if method == "interior_point":
        return (yield from take_turns([Turn(INTERIOR_POINT, interior, np.inf)], control))
    descent_set = _first_working_set(reduced, margins, first.dual, FIRST_ORDER_ROOM)
    descent = FirstOrder(reduced, descent_set, first.V, first.dual)
    first_order = _first_order(setting, descent, control)
    if method == "first_order":
        return (yield from take_turns([Turn(FIRST_ORDER, first_order, np.inf)], control))
    work = NUCLEAR_INTERIOR_STEPS * nuclear_interior_work(reduced.shape, int(working.sum()))
    early = descent.expected_steps * nuclear_first_order_work(reduced.shape, int(descent_set.sum())) < work
    turns = [
        Turn(INTERIOR_POINT, interior, NUCLEAR_INTERIOR * work, delay=int(early)),
        Turn(FIRST_ORDER, first_order, NUCLEAR_FIRST * work, int(not early)),
    ]
    certificate = yield from take_turns(turns, control, lambda: setting.ends_in_rounding(control))
    if certificate is None and not setting.ends_in_rounding(control):
        yield from resume(setting, control, first.V)
    return certificate


def _first_order(setting: Setting, method: FirstOrder, control: Control) -> Steps:
    """First-order steps on a growing working set, with attempts on the face as the gap falls."""
    reduced, targets, steps = setting.reduced, list(TARGETS), MAX_FIRST_ORDER
    while targets and steps > 0:
        rest = CHUNK if control.max_iter is None else max(1, min(CHUNK, control.max_iter - control.iterations))
        count = method.advance(targets[0], rest)
        steps -= count
        W, dual = method.W, method.scattered_dual()
        margins = reduced.apply(W)
        if setting.report(W, dual, control, margins=margins, steps=count):
            return None
        yield count * nuclear_first_order_work(reduced.shape, int(method.working.sum()))
        if method.gap >= targets[0]:
            continue
        target = targets.pop(0)
        smallest = float(np.min(margins, where=method.working & reduced.rejected, initial=np.inf))
        violations = reduced.rejected & ~method.working & (margins < smallest)
        if violations.any():
            method.extend(violations)
        support = int(np.count_nonzero(dual))
        if target == TARGETS[0] or (target == TARGETS[1] and support > LARGE_SUPPORT):
            continue
        if refine(setting, W / smallest, dual, control):
            return None
        yield nuclear_interior_work(reduced.shape, support)
    return None


def _first_working_set(reduced: Reduced, margins: np.ndarray, dual: np.ndarray, room: int) -> np.ndarray:
    """Return all constraints if they are few, else equalities and the smallest margins of the Frobenius solution."""
    rejected = reduced.rejected
    count, entries = int(rejected.sum()), int(np.prod(reduced.shape))
    # An interior point leaves every multiplier positive; their number need not exceed the number of entries of W.
    supports = min(int((dual[rejected] > 0).sum()), entries)
    size = max(min(WHOLE_SET, 4 * entries), room * supports)
    if size >= count:
        return rejected | reduced.tied
    threshold = np.partition(margins[rejected], size)[size]
    return rejected & (margins <= threshold) | reduced.tied


NUCLEAR_METHODS = {
    "auto": solve_nuclear,
    **{name: partial(solve_nuclear, method=name) for name in ("first_order", "interior_point")},
}
