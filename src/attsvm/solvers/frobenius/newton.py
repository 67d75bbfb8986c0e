r"""Projected Newton on the dual of the Frobenius problem.

On the working set J (supports and violators) the Gram matrix :math:`K_{JJ} = (DD^\top)\circ(ZZ^\top)` is small enough
to factor. The step :math:`\hat\lambda - \lambda`, with :math:`K_{JJ}\hat\lambda = c_J`, is projected onto
:math:`\lambda \ge 0` and backtracked on the dual (Bertsekas, SIAM J. Control Optim. 20, 1982; with a full step it is
the primal-dual active-set method of Hintermueller, Ito and Kunisch, SIAM J. Optim. 13, 2002). Constraints leave and
enter by whole groups, and once the set is right one step solves the problem to rounding. A ridge at rounding level
stands for the proximal term that keeps a dependent set solvable; repeated steps remove its effect.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from attsvm.core.norms import FROBENIUS
from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.evaluation import report

RIDGE = 1e-13
INNER_STEPS = 12
REFINABLE = 2000  # supports up to which W is refined
# From this size on a factor in single precision saves more than the gradient steps it needs cost.
LARGE, SINGLE_RIDGE, GRADIENT_STEPS, SOLVED = 200, 3e-7, 12, 1e-13


def polish(reduced: Reduced, dual: np.ndarray, control: Control, *, rounds: int, working_set: int) -> np.ndarray:
    """Improve multipliers by Newton steps on growing working sets.

    Parameters
    ----------
    reduced : Reduced
    dual : ndarray, shape (n, T)
        Starting multipliers; not modified.
    control : Control
    rounds : int
        Largest number of working sets tried.
    working_set : int
        Largest size of a working set; the method ends when more would be needed.

    Returns
    -------
    ndarray, shape (n, T)
        The last multipliers; the best ones are with ``control``.
    """
    dual = dual.copy()
    W = reduced.adjoint(dual)
    margins = reduced.apply(W)
    if report(reduced, FROBENIUS, W, dual, control, margins=margins):
        return dual
    for _ in range(rounds):
        rows, columns = _choose(reduced, margins, dual, working_set)
        if not 0 < len(rows) <= working_set:  # none is left when the multipliers have overflowed
            break
        delta, queries = reduced.delta[rows, columns], reduced.queries[rows]
        gram = delta @ delta.T
        gram *= queries @ queries.T
        free = reduced.tied[rows, columns]
        values = _projected_newton(gram, dual[rows, columns], free)
        dual[...] = 0.0
        dual[rows, columns] = values
        W = reduced.adjoint(dual)
        margins = reduced.apply(W)
        if report(reduced, FROBENIUS, W, dual, control, margins=margins) or refine(reduced, W, dual, control):
            break
    return dual


def refine(reduced: Reduced, W: np.ndarray, dual: np.ndarray, control: Control) -> bool:
    """Move W onto the supports of ``dual`` to the accuracy of W itself; True when that closes the gap.

    W = A^T lam carries the rounding of lam, whose entries are of the size of ||W||^2. Iterative refinement on the
    residual of the margins replaces it by the rounding of W. The bound needs no such care: its error is of second
    order.
    """
    rows, columns = np.nonzero((dual > 0) & reduced.rejected | reduced.tied)
    size = len(rows)
    if size == 0 or size > REFINABLE:
        return False
    delta, queries = reduced.delta[rows, columns], reduced.queries[rows]
    cost = np.where(reduced.tied[rows, columns], 0.0, 1.0)
    error = cost - reduced.apply(W)[rows, columns]
    if not np.abs(error).max() < 0.5:
        return False  # not near a solution: dependent or wrong supports
    gram = (delta @ delta.T) * (queries @ queries.T)
    try:
        gram[np.diag_indices(size)] += RIDGE * float(np.diag(gram).max())
        factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return False
    for _ in range(4):
        step = cho_solve(factor, error, check_finite=False)
        trial = W + delta.T @ (step[:, None] * queries)
        margins = reduced.apply(trial)
        left = cost - margins[rows, columns]
        if not np.abs(left).max() < np.abs(error).max():
            return False
        W, error = trial, left
        if report(reduced, FROBENIUS, W, dual, control, margins=margins):
            return True
    return False


def _choose(reduced: Reduced, margins: np.ndarray, dual: np.ndarray, working_set: int) -> tuple[np.ndarray, np.ndarray]:
    """Pick supports, equalities, and the worst violators, as many again as there are supports."""
    held = (dual > 0) & reduced.rejected | reduced.tied
    shortfall = np.where(reduced.rejected & ~held, 1.0 - margins, -np.inf)
    count = min(int((shortfall > 0).sum()), max(64, int(held.sum())), max(0, working_set - int(held.sum())))
    if count > 0:
        flat = np.argpartition(shortfall.ravel(), -count)[-count:]
        held.ravel()[flat] = True
    rows, columns = np.nonzero(held)
    return rows, columns


def _projected_newton(gram: np.ndarray, dual: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Maximise c.lam - lam.K.lam/2 over lam >= 0 (free entries unsigned) from ``dual``, all (J,)."""
    cost = np.where(free, 0.0, 1.0)
    ridge = RIDGE * float(np.diag(gram).max())
    value = _objective(gram, cost, dual)
    for _ in range(INNER_STEPS):
        slope = cost - gram @ dual
        moving = free | (dual > 0) | (slope > 0)
        system = gram if moving.all() else gram[np.ix_(moving, moving)]
        target = regularised_solve(system, dual[moving], slope[moving], ridge)
        step, best, best_value = 1.0, None, value
        for _ in range(25):
            trial = dual.copy()
            trial[moving] = dual[moving] + step * (target - dual[moving])
            trial[~free] = np.maximum(trial[~free], 0.0)
            trial_value = _objective(gram, cost, trial)
            if trial_value > best_value:
                best, best_value = trial, trial_value
                break
            step *= 0.5
        if best is None:
            return dual
        settled = step == 1.0 and bool((target[~free[moving]] >= 0).all())
        dual, value = best, best_value
        if settled and not ((cost - gram @ dual)[(dual == 0) & ~free] > 1e-12).any():
            return dual
    return dual


def _objective(gram: np.ndarray, cost: np.ndarray, dual: np.ndarray) -> float:
    return float(cost @ dual - 0.5 * dual @ (gram @ dual))


def regularised_solve(gram: np.ndarray, start: np.ndarray, slope: np.ndarray, ridge: float) -> np.ndarray:
    """Solve K lam = c from ``start`` with residual ``slope``; by proximal steps of weight ``ridge`` if singular."""
    size = len(gram)
    if size >= LARGE:
        solution = _by_single_precision(gram, start, slope)
        if solution is not None:
            return solution
    while True:
        try:
            matrix = gram.copy()
            matrix[np.diag_indices(size)] += ridge
            factor = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
            break
        except LinAlgError:
            ridge *= 100.0
    solution = start + cho_solve(factor, slope, check_finite=False)
    for _ in range(2):
        slope = slope - gram @ (solution - start)
        start = solution
        solution = start + cho_solve(factor, slope, check_finite=False)
    return solution


def _by_single_precision(gram: np.ndarray, start: np.ndarray, slope: np.ndarray) -> np.ndarray | None:
    """Conjugate gradients with a single-precision Cholesky factor as preconditioner, half the work of a double one.

    None when K is too near singular for that: the factor fails, or a few steps do not reach rounding.
    """
    matrix = gram.astype(np.float32)
    matrix[np.diag_indices(len(gram))] += SINGLE_RIDGE * float(np.diag(gram).max())
    try:
        factor = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    solution, residual = start.copy(), slope.copy()
    goal = SOLVED * float(np.linalg.norm(slope))
    direction, before = np.zeros_like(slope), 1.0
    for _ in range(GRADIENT_STEPS):
        step = cho_solve(factor, residual.astype(np.float32), check_finite=False).astype(np.float64)
        decrease = float(residual @ step)
        if not decrease > 0:
            return None
        direction = step + (decrease / before) * direction
        image = gram @ direction
        curvature = float(direction @ image)
        if not curvature > 0:
            return None
        solution += (decrease / curvature) * direction
        residual -= (decrease / curvature) * image
        before = decrease
        if float(np.linalg.norm(residual)) <= goal:
            return solution
    return None
