r"""A W and multipliers that certify where rounding, not the solver, keeps the gap open.

First the same pair is judged in twice the working precision. If W itself is what rounding spoiled, it is corrected by
iterative refinement (Wilkinson; Higham, *Accuracy and Stability of Numerical Algorithms*, chapter 12): with B the
active constraints scaled to length one, the shortest correction :math:`E = B^\top y` with :math:`B(W + E) = b` solves
:math:`BB^\top y = b - BW`, residuals in twice the precision and corrections by a float factorisation. In the Frobenius
norm the multipliers move along, so that :math:`W = A^\top\lambda` stays.

W is stored in floats, whose rounding moves a margin by up to :math:`u|\delta||W||z|`. The target b asks each margin for
one plus that much, so that rounding cannot take it below one; near duplicates, whose :math:`|\delta|` is short, hold
nearly all of the multipliers and lose next to nothing by it.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from attsvm.core.double_double import Rows
from attsvm.core.error_free import UNIT, Pair, two_sum
from attsvm.core.norms import FROBENIUS, Norm, frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import constraint_gram
from attsvm.proofs.certified import LENIENT, Certified, certify

# Multipliers below this part of the largest, measured in lengths, are taken to be zero.
SUPPORT_CUT = 1e-12
# Rounding W to floats moves a margin by a few units of |delta||W||z| at most.
MARGIN_UNITS = 4.0
ROUNDS, CORRECTIONS = 6, 4
# Entries of the rows that are held in memory, in pairs.
LARGEST = 4_000_000


def refine(problem: SelectionProblem, norm: Norm, certified: Certified, tol: float) -> Certified:
    """Certify in twice the working precision what rounding leaves open, correcting W and the multipliers if need be."""
    best = certify(problem, norm, certified.W, certified.dual, sharp=True)
    if best.gap <= tol or not np.isfinite(certified.objective):
        return best
    with np.errstate(**LENIENT):
        for W, dual in _corrected(problem, norm, certified):
            again = certify(problem, norm, W, dual, sharp=True)
            if again.gap < best.gap:
                best = again
            if best.gap <= tol:
                break
    return best


def _corrected(problem: SelectionProblem, norm: Norm, certified: Certified):
    """Yield pairs of W and multipliers, each with the constraints added that the one before broke."""
    dual, lengths = certified.dual, problem.lengths
    weight = np.abs(dual) * lengths
    active = problem.tied | (problem.rejected & (weight > SUPPORT_CUT * weight.max()))
    W = certified.W
    for _ in range(ROUNDS):
        rows, columns = np.nonzero(active)
        if not len(rows) or len(rows) * W.size > LARGEST:
            return
        pair = _on_face(problem, norm, W, dual, rows, columns)
        if pair is None:
            return
        yield pair
        W, dual = pair
        if not np.isfinite(W).all():
            return
        margins = problem.apply(W)
        broken = problem.rejected & ~active & (margins < 1.0 + MARGIN_UNITS * UNIT * lengths * frobenius(W))
        negative = problem.rejected & active & (dual < 0)
        if not (broken.any() or negative.any()):
            return
        active = (active | broken) & ~negative


def _on_face(
    problem: SelectionProblem, norm: Norm, W: np.ndarray, dual: np.ndarray, rows: np.ndarray, columns: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Solve for the margins of the given constraints; None when their rows depend on one another."""
    faces = Rows.of(problem, rows, columns)
    lengths = problem.lengths[rows, columns]
    delta, queries = faces.delta.high / faces.lengths[:, None], faces.queries
    try:
        factor = cho_factor(constraint_gram(delta, queries), lower=True, check_finite=False)
    except (LinAlgError, ValueError):
        return None
    target = np.where(problem.rejected[rows, columns], 1.0 + MARGIN_UNITS * UNIT * lengths * frobenius(W), 0.0)
    if norm is FROBENIUS:
        weights = Pair(dual[rows, columns], np.zeros(len(rows)))
        current = faces.adjoint(weights)[0]
    else:
        weights, current = None, Pair(W, np.zeros(W.shape))
    for _ in range(CORRECTIONS):
        margins = faces.margins(current)[0]
        high, low = two_sum(target, -margins.high)
        missing = (high + (low - margins.low)) / lengths
        step = cho_solve(factor, missing, check_finite=False) / lengths
        if not np.isfinite(step).all():
            return None
        zero = np.zeros(len(step))
        if weights is not None:
            weights = weights + Pair(step, zero)
            current = faces.adjoint(weights)[0]
        else:
            current = current + faces.adjoint(Pair(step, zero))[0]
    new = dual
    if weights is not None:
        new = np.zeros_like(dual)
        new[rows, columns] = weights.rounded()
    return current.rounded(), new
