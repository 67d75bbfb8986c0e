r"""The Frobenius norm: which methods, in which order.

A few passes of dual coordinate descent (cheap, each about one read of the tokens) show how many constraints will be
active. When those are few, the active-set method takes over, which ends with the answer or a certificate. Otherwise
passes go on until Newton on the working set they leave can finish, and the interior point is there where that does not
settle. A diverging dual is tested for infeasibility on the way.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from attsvm.core.norms import FROBENIUS
from attsvm.core.norms import frobenius as frobenius_norm
from attsvm.core.reduction import Reduced
from attsvm.solvers.common import farkas
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.evaluation import report
from attsvm.solvers.common.quadratic_program import quadratic_program
from attsvm.solvers.frobenius.coordinate_descent import CoordinateDescent
from attsvm.solvers.frobenius.newton import polish
from attsvm.solvers.frobenius.priced_active_set import FEW_SUPPORTS, solve_by_prices
from attsvm.solvers.interior_point.hard_frobenius import interior_point

OPENING = 10  # passes after which the support is known well enough
DENSE_ENTRIES = 1_000_000
WORKING_SET = 6000
BATCH = 10  # passes between looks at the gap, one of them over all constraints
MAX_PASSES = 3000
# Newton from this gap on takes one or two factorisations, and more from further off, which pays while they are small.
NEWTON_GAP, EARLY_GAP, SMALL_FACTOR = 1e-5, 1e-3, 700
# Coordinate descent that gains less than this factor in the gap, for this many batches in a row, has met correlated
# tokens; so has one that finds no positive margin, nor an end of the bound's growth, in this many batches.
# Where DAQP can take over, less is enough.
PATIENT, HASTY = (0.95, 3, 40), (0.7, 1, 3)
# Newton from multipliers that leave a margin below this would change most of its support.
NEAR = 0.5
# A bound on ||W|| beyond which the normalised dual is worth testing as a certificate: data are scaled to length one.
SUSPICIOUS_NORM = 1e3


def solve_frobenius(reduced: Reduced, control: Control, start: np.ndarray | None) -> np.ndarray | None:
    """Solve, leaving W and multipliers with ``control``.

    Parameters
    ----------
    reduced : Reduced
    control : Control
    start : ndarray, shape (n, T), optional
        Multipliers to start from.

    Returns
    -------
    ndarray or None
        Multipliers that prove infeasibility, when they do.
    """
    dual = np.zeros(reduced.rejected.shape)
    if start is not None:
        dual = start.copy()
        found = _restart(reduced, dual, control)
        if found is not None or control.solved or control.stopped:
            return found
    CoordinateDescent(reduced, dual).run(OPENING)
    dense = int((reduced.rejected | reduced.tied).sum()) * int(np.prod(reduced.shape)) <= DENSE_ENTRIES
    chain = [coordinate_newton, by_interior_point]
    if dense:
        chain = [by_daqp, *chain]
    if _few_supports(reduced, dual):
        chain = [active_set, *chain]
    elif dense:
        chain = [partial(coordinate_newton, patience=HASTY), *chain]
    for method in chain:
        found = method(reduced, control, dual)
        if found is not None or control.solved or control.stopped:
            return found
    return None


def by_interior_point(reduced: Reduced, control: Control, start: np.ndarray | None) -> np.ndarray | None:
    """Interior point, then Newton; it takes no start."""
    control.method = _chain(control.method, "interior point")
    dual = interior_point(reduced, control)
    if control.solved or control.stopped:
        return None
    found = farkas.certificate(reduced, dual)
    if found is None:
        dual = np.where(reduced.rejected, np.maximum(dual, 0.0), dual)
        polish(reduced, dual, control, rounds=5, working_set=WORKING_SET)
    return found


def by_daqp(reduced: Reduced, control: Control, start: np.ndarray | None) -> np.ndarray | None:
    """DAQP, then Newton; it takes no start."""
    control.method = _chain(control.method, "daqp")
    dual = quadratic_program(reduced, control, working_set=WORKING_SET)
    return None if control.solved or control.stopped else farkas.certificate(reduced, dual)


def _few_supports(reduced: Reduced, dual: np.ndarray) -> bool:
    """Whether few constraints will be active; independent ones are at most as many as W has entries."""
    return min(int(np.count_nonzero(dual)), int(np.prod(reduced.shape))) <= FEW_SUPPORTS


def _restart(reduced: Reduced, dual: np.ndarray, control: Control) -> np.ndarray | None:
    """Go on from given multipliers, rescaled to W = A^T dual in place; returns as :func:`solve_frobenius` does."""
    W = reduced.adjoint(dual)
    squared, total = frobenius_norm(W) ** 2, float(dual[reduced.rejected].sum())
    if squared == 0 or total <= 0:
        return None
    dual *= total / squared
    if reduced.min_margin(reduced.apply(W * (total / squared))) < NEAR:
        return None
    if _few_supports(reduced, dual):
        control.method = "warm active set"
        return solve_by_prices(reduced, control, dual, working_set=WORKING_SET)
    control.method = "warm Newton"
    dual[...] = polish(reduced, dual, control, rounds=4, working_set=WORKING_SET)
    return None


def active_set(reduced: Reduced, control: Control, start: np.ndarray | None) -> np.ndarray | None:
    """Coordinate descent to guess the support, then the active-set method."""
    control.method = _chain(control.method, "active set")
    if start is None:
        start = np.zeros(reduced.rejected.shape)
        CoordinateDescent(reduced, start).run(OPENING)
    return solve_by_prices(reduced, control, start, working_set=WORKING_SET)


def coordinate_newton(
    reduced: Reduced, control: Control, start: np.ndarray | None, *, patience: tuple[float, int, int] = PATIENT
) -> np.ndarray | None:
    """Coordinate passes down to a small gap, then Newton; the infeasibility test when the dual diverges."""
    factor, batches, blind = patience
    control.method = _chain(control.method, "coordinate descent + Newton")
    descent = CoordinateDescent(reduced, np.zeros(reduced.rejected.shape) if start is None else start)
    suspicious = SUSPICIOUS_NORM
    target, before, slow = EARLY_GAP, np.inf, 0
    for batch in range(MAX_PASSES // BATCH):
        if batch > 0 or not descent.dual.any():
            descent.run(BATCH)
        if report(reduced, FROBENIUS, descent.W, descent.dual, control, pulled=descent.W):
            return None
        total, length = float(descent.dual[reduced.rejected].sum()), frobenius_norm(descent.W)
        if total > suspicious * length:
            found = farkas.certificate(reduced, descent.dual)
            if found is not None:
                return found
            suspicious *= 10.0
        gap = control.state.gap
        slow = slow + 1 if np.isfinite(gap) and gap > factor * before else 0
        stuck = slow >= batches or (batch >= blind and not np.isfinite(gap))
        near = gap < target and (gap < NEWTON_GAP or np.count_nonzero(descent.dual) <= SMALL_FACTOR)
        if near or (stuck and patience is PATIENT):
            polish(reduced, descent.dual, control, rounds=6, working_set=WORKING_SET)
            if control.solved or control.stopped:
                return None
            target /= 100.0
        if stuck:
            return None
        before = gap
    return None


def _chain(before: str, method: str) -> str:
    return f"{before}, {method}" if before else method


METHODS = {
    "auto": solve_frobenius,
    "active_set": active_set,
    "coordinate_newton": coordinate_newton,
    "interior_point": by_interior_point,
    "daqp": by_daqp,
}
