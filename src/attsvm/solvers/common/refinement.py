r"""Corrected W and multipliers if rounding, not the solver, keeps the gap open.

First the same pair is certified in twice the working precision. If W is not accurate enough, iterative refinement
corrects it (Wilkinson; Higham, *Accuracy and Stability of Numerical Algorithms*, chapter 12). Let B be the active
constraints scaled to length one. The shortest correction :math:`E = B^\top y` with :math:`B(W + E) = b` solves
:math:`BB^\top y = b - BW`, with residuals in twice the precision and a factorisation in floats. In the Frobenius norm
the multipliers move too, so that :math:`W = A^\top\lambda` still holds. If there is a prior, only W moves: scaling W up
for the rounding of its margins would move it away from the prior.

W is stored in floats, whose rounding moves a margin by up to :math:`u|\delta||W||z|`. The target b of each margin is
one plus this amount, so that rounding cannot take the margin below one. Near duplicates have a short :math:`|\delta|`
and nearly all of the multipliers, so they lose almost nothing. If long constraints have large multipliers, the amount
is smaller.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from attsvm.core.double_double import Rows
from attsvm.core.error_free import UNIT, Pair, two_sum
from attsvm.core.norms import FROBENIUS, frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import constraint_gram
from attsvm.core.rounding import LENIENT
from attsvm.proofs.certified import Certified, certify
from attsvm.proofs.objective import Terms
from attsvm.proofs.program import Program
from attsvm.solvers.schedule import REFINED_ENTRIES

# Multiplier times length, over the largest, below which a multiplier counts as zero.
SUPPORT_CUT = 1e-12
# Relative distance of a multiplier from its upper bound up to which it counts as equal to it.
AT_BOUND = 1e-6
# Smallest and largest amount added to a margin, in units of u|delta||W||z|: rounding moves a margin by the smallest
# amount on average, and never by more than the largest. The third number is the share of tol that the total loss takes.
LEAST_UNITS, MARGIN_UNITS, LOSS = 0.25, 4.0, 0.25
MULTIPLIER_CORRECTIONS = 4


def refine(program: Program, W: np.ndarray, dual: np.ndarray, tol: float) -> Certified:
    """Certify in twice the working precision, and correct W and the multipliers if the gap stays open.

    Parameters
    ----------
    W : ndarray, shape (d, dz)
    dual : ndarray, shape (n, T)
    tol : float
        Gap at which to stop.
    """
    best = certify(program, W, dual, sharp=True)
    if best.gap <= tol or not np.isfinite(best.objective):
        return best
    problem, terms = program.problem, program.terms
    # W = A^T dual, and the multipliers move along with W.
    along = program.norm is FROBENIUS and program.plain
    with np.errstate(**LENIENT):
        pair = _correct(problem, terms, W, dual, tol, along=along)
    candidate = best if pair is None else certify(program, *pair, sharp=True)
    return candidate if candidate.gap < best.gap else best


def _correct(
    problem: SelectionProblem, terms: Terms, W: np.ndarray, dual: np.ndarray, tol: float, *, along: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """Solve for the margins of the active constraints; None when there are too many or their rows depend on others."""
    weight = np.abs(dual) * problem.lengths
    # The margin of a multiplier at its upper bound falls short.
    loss = (1.0 + AT_BOUND) * dual >= terms.uppers
    rows, columns = np.nonzero(problem.tied | (terms.rejected & ~loss & (weight > SUPPORT_CUT * weight.max())))
    if not 0 < len(rows) * W.size <= REFINED_ENTRIES:
        return None
    active = Rows.of(problem, rows, columns)
    lengths = problem.lengths[rows, columns]
    delta, queries = active.delta.high / active.lengths[:, None], active.queries
    try:
        factor = cho_factor(constraint_gram(delta, queries), lower=True, check_finite=False)
    except (LinAlgError, ValueError):
        return None
    unit = UNIT * frobenius(W)
    units = np.clip(LOSS * tol * np.abs(dual).sum() / (unit * weight.sum()), LEAST_UNITS, MARGIN_UNITS)
    demand = 1.0 - (terms.shifts * dual)[rows, columns] + units * unit * lengths
    target = np.where(problem.rejected[rows, columns], demand, 0.0)
    if along:
        weights = Pair(dual[rows, columns], np.zeros(len(rows)))
        current = active.adjoint(weights)[0]
    else:
        weights, current = None, Pair(W, np.zeros(W.shape))
    for _ in range(MULTIPLIER_CORRECTIONS):
        margins = active.margins(current)[0]
        high, low = two_sum(target, -margins.high)
        missing = (high + (low - margins.low)) / lengths
        step = cho_solve(factor, missing, check_finite=False) / lengths
        if not np.isfinite(step).all():
            return None
        zero = np.zeros(len(step))
        if weights is not None:
            weights = weights + Pair(step, zero)
            current = active.adjoint(weights)[0]
        else:
            current = current + active.adjoint(Pair(step, zero))[0]
    new = dual
    if weights is not None:
        new = np.zeros_like(dual)
        new[rows, columns] = weights.rounded()
    return current.rounded(), new
