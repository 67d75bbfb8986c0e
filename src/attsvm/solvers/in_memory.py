"""A problem whose tokens are in memory: reduced, solved by a method of its norm, and lifted."""

from __future__ import annotations

import numpy as np

from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import independent_ties, reduce
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting, Terms
from attsvm.solvers.working_sets.rounds import Method

# Multipliers (n, T) that may prove infeasibility, W (d, dz) and multipliers (n, T), each None where there is none.
Outcome = tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]


def solve_in_memory(
    problem: SelectionProblem,
    terms: Terms,
    prior: np.ndarray,
    control: Control,
    method: Method,
    start: tuple[np.ndarray, np.ndarray] | None,
) -> Outcome:
    """Solve in reduced coordinates.

    Parameters
    ----------
    problem : SelectionProblem
    terms : Terms
        In the original coordinates.
    prior : ndarray, shape (d, dz)
    control : Control
        Keeps the best iterates, in reduced coordinates.
    method : callable
    start : tuple of ndarray, shapes (d, dz) and (n, T), or None
        W and multipliers of a similar problem, which are judged as they stand: that ends a refit.
    """
    norm = terms.norm
    reduced = independent_ties(reduce(problem, rotate=norm.base.invariant, transform=norm.transform))
    setting = Setting.of(reduced, terms, prior)
    control.unit = setting.value_unit
    # Rejected tokens that no W moves.
    loose = reduced.rejected & (reduced.lengths == 0.0)
    if terms.hard and loose.any():
        control.method = "closed form"
        return reduced.lift_dual(loose / loose.sum()), None, None
    # Multipliers of any length say the same of a plain hard margin.
    unit = 1.0 if setting.plain else setting.unit
    guess = None
    if start is not None:
        guess = reduced.gather(start[1]) * unit
        control.method = control.method or "warm start"
        setting.report(reduced.lower(start[0]) - setting.prior, guess, control)
    certificate = None
    if not (control.solved or control.stopped):
        certificate = method(setting, control, guess)
    dual = np.where(reduced.lift_dual(loose), terms.slope(terms.cost), 0.0)
    if control.dual is not None:
        dual += reduced.lift_dual(control.dual) / (1.0 if terms.hard else unit)
    return (
        None if certificate is None else reduced.lift_dual(certificate),
        None if control.W is None else prior + reduced.lift(control.W),
        dual,
    )
