r"""Frobenius problems larger than memory: working sets over streamed tokens.

Of n T constraints at most about d dz are active, so the problem restricted to a few tokens a query is small. Each round
runs passes of coordinate descent on the restriction (Newton, once the gap is small), then reads all tokens once, in
chunks, and lets the worst violated constraints of every query join. Where queries are many more than d, passes raise
the bound too slowly, and the interior point takes their place. The multipliers of a restriction bound the whole problem
(all others are zero), so the gap is that of the whole problem after every round; a certificate of infeasibility holds
for it too.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.norms import FROBENIUS, frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import Reduced, reduce
from attsvm.solvers.common import farkas
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.coordinate_descent import CoordinateDescent
from attsvm.solvers.frobenius.newton import newton
from attsvm.solvers.frobenius.portfolio import SUSPICIOUS_NORM, interior_point, solve_setting
from attsvm.solvers.schedule import Steps, Turn, take_turns

FIRST, JOINING = 6, 4  # tokens a query: at the start, and at most in each round
ROUNDS, PASSES = 400, 30
NEWTON_GAP = 0.02
STUCK = 6  # rounds without a smaller gap after which the whole portfolio is let loose on the working set
# After this many rounds passes should have brought the bound to within a few times this of where it will end.
OPENING, CREEPING = 10, 0.003
# The interior point's first answer is only to tell which constraints join; from the others Newton goes on.
ROUGH, FINE = 1e-3, 1e-6


def solve_streamed(problem: SelectionProblem, control: Control) -> np.ndarray | None:
    """Solve on working sets; W and multipliers (n, T) go to ``control`` in the original coordinates.

    Parameters
    ----------
    problem : SelectionProblem
    control : Control

    Returns
    -------
    ndarray, shape (n, T), or None
        Multipliers that prove infeasibility, when they do.
    """
    control.method = "working sets"
    empty = _empty(problem)
    if empty.any():
        return empty / empty.sum()
    working = problem.tied | _worst(problem, -_hebbian_margins(problem), FIRST)
    dual = np.zeros(problem.mask.shape)
    # Many queries make large norms without being infeasible, and the test is dear at this size.
    suspicious, best, exhausted, waited, bound = 10.0 * SUSPICIOUS_NORM, np.inf, None, 0, 0.0
    creeping, target = False, ROUGH
    for k in range(ROUNDS):
        reduced = reduce(problem, working=working)
        setting = Setting.hard_margin(reduced, FROBENIUS)
        inner = control.inner(0.5 * control.tol)
        if waited >= STUCK:
            if (best, bound) == exhausted:
                return None
            exhausted = best, bound
            certificate = solve_setting(setting, inner, reduced.gather(dual) * reduced.scale**2)
            if certificate is not None:
                return reduced.lift_dual(certificate)
            waited = 0
        elif creeping:
            approach = control.inner(target)
            certificate = _run(interior_point(setting, approach, dual), approach)
            if certificate is not None:
                return reduced.lift_dual(certificate)
            reached = approach.state
            inner.offer(approach.W, reached.objective, approach.dual, reached.lower_bound)
            if approach.dual is not None and target < ROUGH:
                _run(newton(setting, _likely_supports(reduced, approach.dual), inner, rounds=2), inner)
            control.method, target = "working sets by interior point", min(FINE, 0.1 * control.tol)
        else:
            descent = CoordinateDescent(setting, reduced.gather(dual) * reduced.scale**2)
            descent.run(PASSES)
            inner.offer(descent.V, np.inf, descent.dual, 1e-300)
            if control.state.gap < NEWTON_GAP:
                _run(newton(setting, descent.dual, inner, rounds=6), inner)
        if inner.dual is None:
            return None
        dual = reduced.lift_dual(inner.dual) / reduced.scale**2
        if inner.W is None:
            W = adjoint = problem.adjoint(dual)
            margins = problem.apply(W)
        else:  # Newton refines W beyond the rounding of A^T dual
            W = reduced.lift(inner.W)
            margins, adjoint = problem.evaluate(W, dual)
        smallest = float(np.min(margins, where=problem.rejected, initial=np.inf))
        total = float(dual[problem.rejected].sum())
        length = frobenius(adjoint)
        before, bound = bound, total / length if length > 0 else 0.0
        usable = smallest > 0 and float(np.abs(margins[problem.tied]).max(initial=0.0)) <= 1e-10 * smallest
        if control.observe(W if usable else None, frobenius(W) / smallest if usable else np.inf, dual, bound):
            return None
        if bound > suspicious * reduced.scale:
            certificate = farkas.certificate(reduced, inner.dual, control)
            if certificate is not None:
                return reduced.lift_dual(certificate)
            suspicious *= 10.0
        creeping |= k >= OPENING and bound > (1.0 + CREEPING) * before
        gap = control.state.gap
        # Margins are on the scale on which active ones are one.
        working &= (dual != 0) | (margins < 1.1)
        missing = problem.rejected & ~working & (margins < 1.0)
        waited = waited + 1 if gap > 0.9 * best or not (np.isfinite(gap) or missing.any()) else 0
        best = min(best, gap)
        working |= problem.tied | _worst(problem, np.where(missing, 1.0 - margins, -np.inf), JOINING)
    return None


def _run(steps: Steps, control: Control) -> np.ndarray | None:
    return take_turns([Turn("", steps, np.inf)], control)


def _empty(problem: SelectionProblem) -> np.ndarray:
    """Mark the rejected tokens that equal the selected one, or whose query is zero: (n, T)."""
    same = np.empty(problem.mask.shape, dtype=bool)
    for rows, delta in problem.differences():
        same[rows] = ~delta.any(axis=2)
    return problem.rejected & (same | ~np.any(problem.queries, axis=1, keepdims=True))


def _likely_supports(reduced: Reduced, dual: np.ndarray) -> np.ndarray:
    """Drop multipliers smaller than their slack, those an interior point is sending to zero."""
    slack = reduced.apply(reduced.adjoint(dual)) - 1.0
    return np.where(reduced.tied | (dual * reduced.lengths**2 >= slack), dual, 0.0)


def _hebbian_margins(problem: SelectionProblem) -> np.ndarray:
    """Margins of the sum of all constraints, the first W that comes to mind."""
    return problem.apply(problem.adjoint(problem.rejected.astype(float)))


def _worst(problem: SelectionProblem, violation: np.ndarray, count: int) -> np.ndarray:
    """Mark the ``count`` most violated rejected tokens of each query, (n, T)."""
    violation = np.where(problem.rejected, violation, -np.inf)
    count = min(count, violation.shape[1])
    top = np.argpartition(violation, -count, axis=1)[:, -count:]
    chosen = np.zeros(violation.shape, dtype=bool)
    np.put_along_axis(chosen, top, np.isfinite(np.take_along_axis(violation, top, axis=1)), axis=1)
    return chosen
