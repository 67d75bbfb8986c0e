r"""Frobenius problems larger than memory: working sets over streamed tokens.

Of n T constraints at most about d dz are active, so the problem restricted to a few tokens a query is small. Each round
solves the restriction (:mod:`attsvm.solvers.frobenius`, warm), then reads all tokens once, in chunks, and lets the
worst violated constraints of every query join. The multipliers of a restriction bound the whole problem (all others
are zero), so the gap is that of the whole problem after every round; a certificate of infeasibility holds for it too.
"""

from __future__ import annotations

import numpy as np

from attsvm.norms import frobenius
from attsvm.problem import SelectionProblem
from attsvm.reduction import Reduced, reduce
from attsvm.solvers.control import Control
from attsvm.solvers.frobenius import solve_frobenius

FIRST, JOINING = 4, 4  # tokens a query: at the start, and at most in each round
ROUNDS = 60
# A restriction is solved to this part of the gap that the round before left over the whole problem.
ACCURACY = 0.1


def solve_sharded(problem: SelectionProblem, control: Control) -> np.ndarray | None:
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
    working = problem.tied | _worst(problem, -_hebbian_margins(problem), FIRST)
    dual = np.zeros(problem.mask.shape)
    tol = 1e-2
    for _ in range(ROUNDS):
        reduced = reduce(problem, working=working)
        inner = Control(max(tol, 0.5 * control.tol), time_limit=control.remaining)
        found = solve_frobenius(reduced, inner, reduced.gather(dual) * reduced.scale**2 if dual.any() else None)
        control.iterations += inner.iterations
        if found is not None:
            return reduced.lift_dual(found)
        if inner.W is None or inner.dual is None:
            return None
        W, dual = reduced.lift(inner.W), _rescaled(reduced, inner.dual)
        margins = problem.apply(W)
        smallest = float(np.min(margins, where=problem.rejected, initial=np.inf))
        length, total = frobenius(W), float(dual[problem.rejected].sum())
        usable = smallest > 0 and float(np.abs(margins[problem.tied]).max(initial=0.0)) <= 1e-10 * smallest
        bound = total / frobenius(problem.adjoint(dual))
        if control.observe(W if usable else None, length / smallest if usable else np.inf, dual, bound):
            return None
        held = float(np.min(margins, where=working & problem.rejected, initial=np.inf))
        missing = problem.rejected & ~working & (margins < held)
        working |= _worst(problem, np.where(missing, held - margins, -np.inf), JOINING)
        gap = control.state.gap
        tol = ACCURACY * min(gap, tol) if np.isfinite(gap) else tol
    return None


def _rescaled(reduced: Reduced, dual: np.ndarray) -> np.ndarray:
    """Multipliers of the original problem with W = A^T dual."""
    return reduced.lift_dual(dual) / reduced.scale**2


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
