r"""Bounds that W and multipliers prove, computed only from them, with every rounding counted.

For a hard margin, any W with a positive smallest margin can be scaled until that margin is one. Any multipliers
:math:`\lambda \ge 0` bound every feasible norm from below by :math:`1^\top\lambda / \|A^\top\lambda\|_*` (the dual
norm). The relative gap is therefore scale-free,

.. math:: \mathrm{gap} = \frac{\|W\|}{\min A(W)} \cdot \frac{\|A^\top\lambda\|_*}{1^\top\lambda} - 1 ,

and needs only W and :math:`\lambda` from the solver. If there are losses or a prior, the gap compares the objective at
W with the lower bound of :mod:`attsvm.proofs.objective` at the multipliers, where :math:`c^\top\lambda =
\sum_{rejected}\lambda - \langle W_0, A^\top\lambda\rangle`. Every rounding is counted against the claim
(:mod:`attsvm.proofs.bounds`): the gap holds for the floats in which the problem is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attsvm.core.error_free import EPS
from attsvm.core.gap import relative_gap
from attsvm.core.norms import FROBENIUS, frobenius
from attsvm.core.norms.splitting import latest_split
from attsvm.core.problem import SelectionProblem
from attsvm.core.rounding import FUNCTION_ROUNDING, LENIENT
from attsvm.proofs.bounds import lower_bound, margin_allowance, upper_bound
from attsvm.proofs.program import Program
from attsvm.proofs.proof import Bound
from attsvm.proofs.ties import onto_ties

# Difference of tied tokens' scores, at margin one, above which W counts as infeasible.
TIE_TOLERANCE = 1e-9
# Norms between this and its inverse have squares in the range of floats.
SAFE_NORM = 1e-140
# Relative distance from the prior up to which W counts as equal to it.
PRIOR_RESOLUTION = 64 * EPS


@dataclass(frozen=True)
class Certified:
    """W and multipliers scaled to their conventions, with the bounds that they prove (float64, original coordinates).

    Attributes
    ----------
    W : ndarray, shape (d, dz)
    dual, margins : ndarray, shape (n, T)
    objective : float
        The computed norm of W - prior; infinite when W is not feasible.
    lower_bound, upper_bound : float
        Bounds on the smallest norm, or on the smallest objective with losses or a prior, every rounding counted.
    tie_residual : float
        Zero when the upper bound belongs to a W whose ties are exact. Otherwise the scores of tied tokens may differ by
        this much at margin one, and the claim is about the problem that allows this difference.
    rounding : float
        Twice the allowance in the gap: rounding may have changed the gap by this much.
    primal : float or None
        With losses or a prior: the computed objective at W, or a smaller value proven for a W next to it.
    resolution : float
        Rounding error of W near a prior: an objective below it counts as zero.
    split : ndarray, shape (k, d, dz), or None
        For a sum or maximum of k norms: the parts of a multiple of A^T dual, one per norm, that prove the lower bound.
    """

    W: np.ndarray
    dual: np.ndarray
    margins: np.ndarray
    objective: float
    lower_bound: float
    upper_bound: float
    tie_residual: float = 0.0
    rounding: float = 0.0
    primal: float | None = None
    resolution: float = 0.0
    split: np.ndarray | None = None

    @property
    def value(self) -> float:
        """The minimised quantity: ``primal`` with losses or a prior, otherwise the norm."""
        return self.objective if self.primal is None else self.primal

    @property
    def gap(self) -> float:
        """Relative gap of the bounds; infinite when W is infeasible or there is no lower bound."""
        nothing = self.upper_bound < math.inf and counts_as_zero(self.primal, self.objective, self.resolution)
        return proven_gap(0.0 if nothing else self.lower_bound, 0.0 if nothing else self.upper_bound, self.tie_residual)


def counts_as_zero(primal: float | None, distance: float, resolution: float) -> bool:
    """Whether an objective is zero up to the rounding error of W, which lies at ``distance`` from the prior.

    If there is no prior, only W = 0 counts: the square of a non-zero norm may underflow.
    """
    return primal is not None and primal <= resolution and (resolution > 0.0 or distance == 0.0)


def proven_gap(low: Bound, high: Bound, tie_residual: float = 0.0) -> float:
    """Relative gap of bounds with every rounding counted; infinite if the ties are too unequal.

    Bounds that cross by more than their own rounding contradict each other and prove nothing.
    """
    gap = float(relative_gap(low, high))
    return math.inf if gap < -FUNCTION_ROUNDING or tie_residual > TIE_TOLERANCE else max(gap, 0.0)


def certify(
    program: Program,
    W: np.ndarray,
    dual: np.ndarray,
    *,
    sharp: bool = False,
    evaluation: tuple[np.ndarray, np.ndarray] | None = None,
) -> Certified:
    """Scale W to smallest margin one and the multipliers to their convention, and bound the optimum with both.

    W is not scaled for losses. For a prior, a hard-margin W is only scaled up, and only if it falls short of margin one
    by more than rounding.

    The multipliers of a hard margin in the Frobenius norm are scaled so that W - prior = A^T dual at the optimum. If
    there is no prior, their sum is then ||W||^2. In every other norm, and in the Frobenius norm if ||W||^2 leaves the
    range of floats, A^T dual gets dual norm one, and the sum is ||W||. For losses the multipliers are scaled to the
    largest lower bound. The arrays of the result are read-only.

    Parameters
    ----------
    W : ndarray, shape (d, dz)
    dual : ndarray, shape (n, T)
    sharp : bool
        Take the decisive sums in twice the working precision.
    evaluation : tuple of ndarray, shapes (n, T) and (d, dz)
        Margins of W and A^T dual if the solver has them, summed as in :meth:`SelectionProblem.evaluate` in any order.
        The multipliers must then be admissible.
    """
    problem = program.problem
    if program.plain and not problem.has_rejected:
        # No token is rejected: the zero matrix is optimal, and no multiplier is needed to prove it.
        return Certified(np.zeros_like(W), np.zeros_like(dual), np.zeros(dual.shape), 0.0, 0.0, 0.0)
    terms, prior = program.terms, program.prior
    high, residual, rounding, resolution, primal = math.inf, 0.0, 0.0, 0.0, None
    with np.errstate(**LENIENT):
        dual = terms.clip(dual) if evaluation is None else dual.copy()
        margins, adjoint = problem.evaluate(W, dual) if evaluation is None else evaluation
        W, margins, objective = _scale_matrix(program, W, margins)
        if objective < math.inf:
            high, residual = upper_bound(program, W, margins, objective, sharp=sharp)
        dual, low, bound = _scale_multipliers(program, dual, adjoint, residual, sharp=sharp)
        if not program.plain:
            # A large C magnifies the rounding of margins; a slightly longer W avoids it.
            loss = terms.loss(1.0 - margins)
            primal = min(terms.of_length(objective) + loss, high) if objective < math.inf else math.inf
            resolution = 0.0 if prior is None else terms.size(PRIOR_RESOLUTION * prior)
        if low > 0 and high < math.inf:
            rounding = 2.0 * max(high / low - (objective if primal is None else primal) / bound, 0.0)
    for array in (W, dual, margins):
        array.setflags(write=False)
    parts = latest_split(program.norm) if program.norm.leaves > 1 else None
    split = None if parts is None else np.array(parts)
    return Certified(W, dual, margins, objective, low, high, residual, rounding, primal, resolution, split)


def _scale_matrix(program: Program, W: np.ndarray, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Move W (d, dz) with margins (n, T) onto the ties, and scale a hard-margin W to smallest margin one.

    Return W, its margins and the norm of W - prior, which is infinite if the smallest margin of W is not positive.
    """
    problem = program.problem
    if problem.has_ties and _loose(problem, W, margins):
        W = onto_ties(problem, W, margins)
        margins = problem.apply(W)
    unit = float(margins.min(where=problem.rejected, initial=np.inf)) if program.terms.hard else 1.0
    if program.prior is not None and unit > 1.0 - float(
        (margin_allowance(problem, frobenius(W)) * problem.lengths).max()
    ):
        unit = 1.0  # a longer W would be further from the prior
    W, margins = (W / unit, margins / unit) if unit > 0 and unit != 1.0 else (W.copy(), margins)
    size = program.distance(W) if unit > 0 else math.inf
    return W, margins, size if size < math.inf else math.inf


def _loose(problem: SelectionProblem, W: np.ndarray, margins: np.ndarray) -> bool:
    """Whether W misses a tie by more than rounding, so that it must be moved onto the ties."""
    allowance = margin_allowance(problem, frobenius(W))
    tied = problem.tied
    return bool((np.abs(margins[tied]) > allowance * problem.lengths[tied]).any())


def _scale_multipliers(
    program: Program, dual: np.ndarray, adjoint: np.ndarray, residual: float, *, sharp: bool
) -> tuple[np.ndarray, float, float]:
    """Scale admissible multipliers (n, T), with adjoint A^T dual, to their convention, in place.

    Return the multipliers, the lower bound that they prove, and the same bound as computed.
    """
    terms = program.terms
    length = terms.norm.dual(adjoint)
    if program.plain:
        bound = float(dual[terms.rejected].sum()) / length if length > 0 else 0.0
        scale = 1.0 / length if 0 < bound < math.inf else 0.0
    else:
        scale, bound = terms.bound(dual, adjoint, length)
    if not scale > 0:
        return dual, 0.0, bound
    if terms.hard and terms.norm is FROBENIUS and SAFE_NORM < bound < 1.0 / SAFE_NORM:
        scale *= bound
    if terms.hard and not sharp:
        # The bound of a hard margin does not depend on the scale; unscaled multipliers carry no rounding from scaling.
        low = lower_bound(program, dual, adjoint, length, residual, sharp=sharp)
        dual *= scale
        return dual, low, bound
    dual *= scale
    # Rounding may take a multiplier past its upper bound.
    scaled = terms.clip(dual) if terms.upper < math.inf else dual
    return scaled, lower_bound(program, scaled, adjoint * scale, length * scale, residual, sharp=sharp), bound
