r"""What a solver's answer is worth, computed from the answer itself, rounding included.

For a hard margin, any W whose smallest margin is positive can be scaled until that margin is one, and any multipliers
:math:`\lambda \ge 0` bound every feasible norm from below by :math:`1^\top\lambda / \|A^\top\lambda\|_*` (the dual
norm). The relative gap is therefore scale-free,

.. math:: \mathrm{gap} = \frac{\|W\|}{\min A(W)} \cdot \frac{\|A^\top\lambda\|_*}{1^\top\lambda} - 1 ,

and needs nothing from the solver but W and :math:`\lambda`. A margin is a sum of d dz products and off by at most
:math:`\gamma_{d+dz+1}|\delta||W|_F|z|` in floats, :math:`A^\top\lambda` by :math:`\gamma_k` of the sum of
:math:`\lambda_{it}|\delta_{it}||z_i|` (:mod:`attsvm.core.rounding`). Both are counted against the claim, so the gap is
a bound for the floats the problem is given in. Where that is too wide, the sums are taken again in twice the precision
(:mod:`attsvm.core.double_double`) for the constraints that matter.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.double_double import Rows, sharp_adjoint
from attsvm.core.error_free import UNIT, Pair
from attsvm.core.gap import relative_gap
from attsvm.core.norms import FROBENIUS, Norm, frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.core.rounding import FEW, gamma, growth, norm_above, sum_below
from attsvm.proofs.proof import Bound
from attsvm.proofs.ties import onto_ties, tie_move

# Scores of tied tokens may differ by this much of the margin, one, before W counts as infeasible.
TIE_TOLERANCE = 1e-9
# Norms within this and its inverse have squares in the range of floats.
VISIBLE = 1e-140
# At the ends of the floating-point range squares overflow; an infinite bound claims nothing.
LENIENT: dict[str, Any] = {"over": "ignore", "divide": "ignore", "invalid": "ignore", "under": "ignore"}


@dataclass(frozen=True)
class Certified:
    """W and multipliers scaled to their conventions, with what they prove (float64, original coordinates).

    Attributes
    ----------
    W : ndarray, shape (d, dz)
    dual, margins : ndarray, shape (n, T)
    objective : float
        The norm of W as computed; infinite when its smallest margin is not positive.
    lower_bound, upper_bound : float
        Bounds on the smallest norm, every rounding counted.
    tie_residual : float
        Zero when the upper bound is that of a W whose ties are exact; else how far, at a margin of one, the scores of
        tied tokens may differ, and what is claimed is claimed for the problem that allows that.
    rounding : float
        Twice the allowance in the gap: as much as rounding may have cost the claim it may have helped it.
    """

    W: np.ndarray
    dual: np.ndarray
    margins: np.ndarray
    objective: float
    lower_bound: float
    upper_bound: float
    tie_residual: float = 0.0
    rounding: float = 0.0

    @property
    def gap(self) -> float:
        """Relative gap of the bounds; infinite when W is infeasible or nothing bounds its norm."""
        return proven_gap(self.lower_bound, self.upper_bound, self.tie_residual)


def proven_gap(low: Bound, high: Bound, tie_residual: float = 0.0) -> float:
    """Relative gap of bounds with every rounding counted; infinite where the ties are too far from equal.

    Bounds that cross by more than the rounding of their own contradict each other, and prove nothing.
    """
    gap = float(relative_gap(low, high))
    return math.inf if gap < -FEW or tie_residual > TIE_TOLERANCE else max(gap, 0.0)


def certify(
    problem: SelectionProblem,
    norm: Norm,
    W: np.ndarray,
    dual: np.ndarray,
    *,
    sharp: bool = False,
    evaluation: tuple[np.ndarray, np.ndarray] | None = None,
) -> Certified:
    """Scale W to smallest margin one and the multipliers to the dual's convention, and bound what both prove.

    The Frobenius dual is scaled so that W = A^T dual at the optimum (its sum is then ||W||^2); every other norm's so
    that A^T dual has dual norm one (its sum is then ||W||), and so is the Frobenius dual where ||W||^2 would leave the
    range of floats. The arrays of the result are frozen.

    Parameters
    ----------
    problem : SelectionProblem
    norm : Norm
    W : ndarray, shape (d, dz)
    dual : ndarray, shape (n, T)
    sharp : bool
        Take the sums that matter in twice the working precision.
    evaluation : tuple of ndarray, shapes (n, T) and (d, dz)
        Margins of W and A^T dual where the solver has them, summed like :meth:`SelectionProblem.evaluate` in some
        order; multipliers of inequalities must not be negative then.
    """
    if not problem.has_rejected:
        # Nothing asks for a margin: the zero matrix is the answer, and no multiplier is needed to show it.
        return Certified(np.zeros_like(W), np.zeros_like(dual), np.zeros(dual.shape), 0.0, 0.0, 0.0)
    rejected = problem.rejected
    signed = np.where(rejected, np.maximum(dual, 0.0), 0.0)
    if problem.has_ties:
        signed = np.where(problem.tied, dual, signed)
    objective = high = math.inf
    residual = low = rounding = 0.0
    with np.errstate(**LENIENT):
        margins, adjoint = problem.evaluate(W, signed) if evaluation is None else evaluation
        if problem.has_ties and _loose(problem, W, margins):
            W = onto_ties(problem, W, margins)
            margins = problem.apply(W)
        smallest = float(margins.min(where=rejected, initial=np.inf))
        W, margins = (W / smallest, margins / smallest) if smallest > 0 else (W.copy(), margins)
        size = norm.value(W) if smallest > 0 else math.inf
        if size < math.inf:
            objective = size
            high, residual = upper_bound(problem, norm, W, margins, objective, sharp=sharp)
        values = signed[rejected]
        total, length = float(values.sum()), norm.dual(adjoint)
        if length > 0 and 0 < total < math.inf:
            # The Frobenius multipliers sum to ||W||^2; where that would leave the range of floats they sum to ||W||.
            unit = total / length if norm is FROBENIUS and VISIBLE < total / length < 1.0 / VISIBLE else 1.0
            scaled = signed * (unit / length)
            if sharp:
                signed = scaled
            low = lower_bound(problem, norm, signed, adjoint, length, residual, sharp=sharp)
            if low > 0:
                rounding = 2.0 * max(high / low - objective / (total / length), 0.0) if high < math.inf else 0.0
            signed = scaled
    for array in (W, signed, margins):
        array.setflags(write=False)
    return Certified(W, signed, margins, objective, low, high, residual, rounding)


def _loose(problem: SelectionProblem, W: np.ndarray, margins: np.ndarray) -> bool:
    """Whether W misses a tie by more than rounding alone would, so that moving it onto the ties is worth its cost."""
    d, dz = W.shape
    allowance = gamma(d + dz + 6) * frobenius(W)
    return bool((np.abs(margins) > allowance * problem.lengths).any(where=problem.tied))


def upper_bound(
    problem: SelectionProblem, norm: Norm, W: np.ndarray, margins: np.ndarray, objective: float, *, sharp: bool
) -> tuple[float, float]:
    """Bound the smallest norm with W of smallest margin one, as computed; returns the bound and the ties' residual."""
    d, dz = W.shape
    size = objective if norm is FROBENIUS else frobenius(W)
    # Differences, their products with W z, and the scaling of W and margins.
    allowance = gamma(d + dz + 6) * size * (1 + FEW)
    rejected, lengths = problem.rejected, problem.lengths
    above = norm_above(norm, W, objective, sharp=sharp)
    least = margins - allowance * lengths
    move = tie_move(problem, W, size) if problem.has_ties else 0.0
    longer = move * growth(norm, W.shape) * (1 + FEW) if move > 0 else 0.0
    shift = move * lengths if 0.0 < longer < above else 0.0
    if sharp:
        least = _sharpened(problem, W, margins, least, size, shift)
    floor, residual = float(least.min(where=rejected, initial=np.inf)), 0.0
    if problem.has_ties:
        moved = float((least - shift).min(where=rejected, initial=np.inf)) if longer < above else 0.0
        if moved > 0:
            floor, above = moved * (1 - FEW), above + longer
        else:
            residual = float((np.abs(margins) + allowance * lengths).max(where=problem.tied, initial=0.0))
    if not floor > 0:
        return math.inf, residual
    return above / floor * (1 + FEW), residual / floor


def _sharpened(
    problem: SelectionProblem,
    W: np.ndarray,
    margins: np.ndarray,
    least: np.ndarray,
    size: float,
    shift: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Margins from below, in twice the precision where they, less a shift (n, T), may be the smallest."""
    lengths = problem.lengths
    ceiling = float((2.0 * margins - least - shift).min(where=problem.rejected, initial=np.inf))
    rows, columns = np.nonzero(problem.rejected & (least - shift <= ceiling))
    exact, error = Rows.of(problem, rows, columns).margins(Pair(W, np.zeros(W.shape)))
    values = exact.rounded()
    values = values - 4 * UNIT * np.abs(values) - error * size * lengths[rows, columns] * (1 + FEW)
    least = least.copy()
    least[rows, columns] = np.where(np.isfinite(values), values, least[rows, columns])
    return least


def lower_bound(
    problem: SelectionProblem,
    norm: Norm,
    dual: np.ndarray,
    adjoint: np.ndarray,
    length: float,
    tie_residual: float,
    *,
    sharp: bool,
) -> float:
    """Bound the smallest norm with multipliers (n, T) of the right sign.

    ``adjoint`` (d, dz) is A^T dual and ``length`` its dual norm as computed, for these multipliers or ones that these
    are a rounded multiple of.
    """
    n, T = dual.shape
    values = dual[problem.rejected]
    total = sum_below(values)
    size = np.abs(dual) if problem.has_ties else dual
    weight = float(np.vdot(size, problem.lengths)) * (1 + gamma(n * T + 4))
    # Zero multipliers add nothing, rounding included.
    terms = n + T if n + T < 64 else min(n + T, int(np.count_nonzero(dual)))
    error = gamma(terms + 8) * weight
    if sharp:
        exact = sharp_adjoint(problem, dual)
        if exact is not None:
            pair, relative = exact
            adjoint, length = pair.high, norm.dual(pair.high)
            error = (relative * weight + frobenius(pair.low)) * (1 + FEW)
    above = norm_above(norm, adjoint, length, dual=True, sharp=sharp) * (1 + FEW)
    above += error * growth(norm, adjoint.shape, True)
    if tie_residual > 0:
        total -= tie_residual * float(np.abs(dual).sum(where=problem.tied)) * (1 + gamma(n * T))
    # An A^T dual of norm zero has left the range of floats, and so has a bound above their largest.
    return min(max(total / above * (1 - FEW), 0.0), sys.float_info.max) if 0.0 < above < math.inf else 0.0
