r"""Newton on the dual of the Frobenius problem, with multipliers in a box.

The dual is :math:`\max c^\top\lambda - \tfrac12\lambda^\top(K + \epsilon I)\lambda` over :math:`0 \le \lambda \le C`,
with C infinite for a hard margin. It is solved on a working set J: the multipliers strictly between their bounds, the
tied ones, and the largest violations, whose slopes lead off a bound. :math:`K_{JJ} = (DD^\top)\circ(ZZ^\top)` is small
enough to factor. All other multipliers enter only through :math:`W = A^\top\lambda`, so the many multipliers at C of a
selection far from separable add no work. Each step is projected onto the box and shortened until the dual ascends
(Bertsekas, SIAM J. Control Optim. 20, 1982). A full step is a step of the primal-dual active-set method (Hintermueller,
Ito and Kunisch, SIAM J. Optim. 13, 2002). Whole groups of multipliers leave and reach their bounds, and once the set is
right one step solves the problem to rounding. A ridge at rounding level keeps a dependent set solvable; repeated steps,
each a proximal step, remove its effect.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from functools import partial

import numpy as np
from scipy.linalg import LinAlgError

from attsvm.core.block_gram import BlockGram
from attsvm.core.cholesky import PROXIMAL, factor, refined
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.interior_point.engine import longest
from attsvm.solvers.schedule import BLAS_RATE, BLOCK_FACTOR, OVERHEAD, REFINABLE, SINGLE_ROWS, WORKING_SET, Steps

Gram = np.ndarray | BlockGram

# Largest number of Newton steps on one working set.
INNER_STEPS = 12
# Number of violations that may join a working set of any size.
SMALLEST_GROWTH = 64
# Slope, over the requested margins, below which it is rounding.
SLOPE_LEVEL = 1e-13
# Ridges of a factor in single precision, and residual of the step that is refined with it, over the right-hand side.
SINGLE_RIDGES, SOLVED_RESIDUAL = (1e-9,), 1e-13
# Operations per system over the cube of its size: two factorisations, since single precision is tried first.
FACTOR = 2 / 3
# Lengths of a step that are tried if the whole step does not ascend or is cut off at a bound.
LENGTHS = tuple(0.5**k for k in range(13))


def newton(setting: Setting, dual: np.ndarray, control: Control, *, rounds: int) -> Steps:
    """Improve multipliers (n, T) in place by Newton steps on ``rounds`` growing working sets.

    The given multipliers satisfy their bounds; ``control`` stores the best ones.
    """
    reduced, terms = setting.reduced, setting.terms
    level = SLOPE_LEVEL * max(1.0, float(np.abs(terms.cost).max()))
    V = reduced.adjoint(dual)
    if setting.report(V, dual, control, adjoint=V):
        return None
    for _ in range(rounds):
        slope = terms.cost - reduced.apply(V) - terms.shift * np.where(terms.rejected, dual, 0.0)
        rows, columns = _choose(setting, dual, slope, level)
        if not 0 < len(rows) <= WORKING_SET:  # empty if the multipliers have overflowed
            return None
        gram = gram_of(setting, rows, columns)
        yield OVERHEAD + len(rows) ** 2 * sum(reduced.shape) / BLAS_RATE
        before = dual[rows, columns]
        after = yield from ascend(gram, slope[rows, columns], before, reduced.tied[rows, columns], terms.upper, level)
        if (after == before).all():
            return None
        dual[rows, columns] = after
        V = reduced.adjoint(dual)
        if setting.report(V, dual, control, adjoint=V) or refine(setting, V, dual, control):
            return None
    return None


def gram_of(setting: Setting, rows: np.ndarray, columns: np.ndarray) -> Gram:
    """Return the matrix of Newton's system for constraints (rows, columns), in blocks where these are cheaper."""
    reduced, shift = setting.reduced, setting.terms.shift
    diagonal = np.where(reduced.tied[rows, columns], 0.0, shift)
    dense = FACTOR * len(rows) ** 3 / BLAS_RATE
    blocks = reduced.block_gram(rows, columns, diagonal) if dense > OVERHEAD else None
    if blocks is not None and work_of(blocks) < dense:
        return blocks
    gram = reduced.gram(rows, columns)
    gram[np.diag_indices(len(rows))] += diagonal
    return gram


def work_of(gram: Gram) -> float:
    """Estimate the work of solving a system with the matrix."""
    if isinstance(gram, BlockGram):
        count, r = gram.coupling
        operations = BLOCK_FACTOR * float((gram.sizes.astype(float) ** 3).sum()) + count**2 * (count / 3.0 + r)
        return OVERHEAD + operations / BLAS_RATE
    return FACTOR * len(gram) ** 3 / BLAS_RATE


def onto_bounds(setting: Setting, dual: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Move multipliers (n, T) of an interior point to the bounds that they tend to.

    A multiplier tends to a bound if a step of coordinate descent from V (p, r) would take it there.
    """
    terms, squares = setting.terms, setting.reduced.lengths**2
    slope = terms.cost - setting.reduced.apply(V) - terms.shift * dual
    goal = dual + slope / np.where(terms.rejected, squares + terms.shift, 1.0)
    projection = np.where(goal <= 0.0, 0.0, np.where(goal >= terms.upper, terms.upper, dual))
    return np.where(terms.rejected, projection, dual)


def refine(setting: Setting, V: np.ndarray, dual: np.ndarray, control: Control) -> bool:
    """Move V onto the margins of the inner multipliers, to the accuracy of V itself; True if the gap closes.

    V = A^T lam carries the rounding of lam, whose entries are of the size of ||V||^2. Iterative refinement on the
    residual of the margins replaces it by the rounding of V. The bound needs no refinement: its error is of second
    order.
    """
    reduced, terms = setting.reduced, setting.terms
    rows, columns = np.nonzero(setting.inner(dual))
    size = len(rows)
    if size == 0 or size > REFINABLE or terms.shift > 0:
        return False
    cost = terms.cost[rows, columns]
    error = cost - reduced.apply(V)[rows, columns]
    if not np.abs(error).max() < 0.5 * np.abs(terms.cost).max():
        return False  # not near a solution: dependent or wrong supports
    gram, change = gram_of(setting, rows, columns), np.zeros(dual.shape)
    solve = partial(_solve, gram) if isinstance(gram, BlockGram) else factor(gram, PROXIMAL)
    for _ in range(4):
        change[rows, columns] = solve(error)
        trial = V + reduced.adjoint(change)
        lacking = cost - reduced.apply(trial)[rows, columns]
        if not np.abs(lacking).max() < 0.5 * np.abs(error).max():
            return False
        V, error = trial, lacking
        if setting.report(V, dual, control):
            return True
    return False


def _choose(setting: Setting, dual: np.ndarray, slope: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Choose inner multipliers and ties, and at most the same number of multipliers that leave a bound most steeply."""
    terms = setting.terms
    working = setting.inner(dual)
    leaving = terms.rejected & ~working & np.where(dual > 0, slope < -level, slope > level)
    size = int(working.sum())
    count = min(int(leaving.sum()), max(SMALLEST_GROWTH, size), max(0, WORKING_SET - size))
    if count > 0:
        strength = np.where(leaving, np.abs(slope), -np.inf).ravel()
        working.ravel()[np.argpartition(strength, -count)[-count:]] = True
    rows, columns = np.nonzero(working)
    return rows, columns


def ascend(
    gram: Gram, slope: np.ndarray, start: np.ndarray, free: np.ndarray, upper: float, level: float
) -> Generator[float, None, np.ndarray]:
    """Maximise slope.e - e.gram.e/2 over steps e that keep start + e within 0 and ``upper``; return start + e, (J,).

    Multipliers marked ``free`` have no bounds. A slope below ``level`` is rounding. Yields the work of every
    factorisation.
    """
    value, current = start, slope
    for _ in range(INNER_STEPS):
        moving = free | ((value > 0) | (current > 0)) & ((value < upper) | (current < 0))
        if not moving.any():
            break
        target = value.copy()
        part = gram if moving.all() else _part(gram, moving)
        target[moving] += _solve(part, current[moving])
        yield work_of(part)
        best, image = _longest_ascent(gram, current, value, target, free, upper)
        if best is None:
            break
        whole = bool((best == target).all())
        value, current = best, current - image
        if whole and not (~free & ((value == 0) & (current > level) | (value == upper) & (current < -level))).any():
            break
    return value


def _solve(gram: Gram, slope: np.ndarray) -> np.ndarray:
    if isinstance(gram, BlockGram):
        with suppress(LinAlgError):
            return gram.solve(slope)
        gram = gram.dense()
    return proximal_solve(gram, slope)


def _part(gram: Gram, chosen: np.ndarray) -> Gram:
    return gram.part(chosen) if isinstance(gram, BlockGram) else gram[np.ix_(chosen, chosen)]


def _longest_ascent(
    gram: Gram, slope: np.ndarray, value: np.ndarray, target: np.ndarray, free: np.ndarray, upper: float
) -> tuple[np.ndarray | None, np.ndarray]:
    """Project parts of the step to ``target`` onto the box; return the first that ascends, and its image under gram.

    If the whole step ascends although bounds cut it off, shorter steps may be better, and the best of the first few is
    returned.
    """
    step = target - value
    best, best_gain, best_image = None, 0.0, np.zeros_like(value)
    above, below = ~free & (value > 0), ~free & (value < upper)
    nearest = min(1.0, longest(value[above], step[above]), longest(upper - value[below], -step[below]))
    for length in (*LENGTHS, nearest):
        trial = value + length * step if length < 1.0 else target
        trial = np.where(free, trial, np.clip(trial, 0.0, upper))
        change = trial - value
        image = gram @ change
        gain = float(slope @ change - 0.5 * change @ image)
        if gain > best_gain:
            best, best_gain, best_image = trial, gain, image
        elif best is not None:
            break
        if length == nearest == 1.0:
            break
    return best, best_image


def proximal_solve(gram: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Solve K e = slope by proximal steps, or with a refined factor in single precision if that is accurate enough."""
    if len(gram) >= SINGLE_ROWS:
        enough = SOLVED_RESIDUAL * float(np.abs(slope).max())
        with suppress(LinAlgError):
            single = factor(gram.astype(np.float32), SINGLE_RIDGES)
            (step,) = refined(
                lambda rest: (single(rest.astype(np.float32)).astype(float),),
                lambda step: (slope - gram @ step,),
                (slope,),
                enough,
            )
            # A factor in double precision also leaves the rounding of K e.
            rounding = np.finfo(float).eps * float(gram.diagonal().max() * np.abs(step).sum())
            if float(np.abs(slope - gram @ step).max()) <= max(enough, rounding):
                return step
    solve = factor(gram, PROXIMAL)
    step = solve(slope)
    for _ in range(2):
        step = step + solve(slope - gram @ step)
    return step
