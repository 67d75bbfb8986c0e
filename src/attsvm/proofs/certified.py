r"""The bounds that a solver's answer proves, computed from the answer itself, rounding included.

For a hard margin, any W whose smallest margin is positive can be scaled until that margin is one, and any multipliers
:math:`\lambda \ge 0` bound every feasible norm from below by :math:`1^\top\lambda / \|A^\top\lambda\|_*` (the dual
norm). The relative gap is therefore scale-free,

.. math:: \mathrm{gap} = \frac{\|W\|}{\min A(W)} \cdot \frac{\|A^\top\lambda\|_*}{1^\top\lambda} - 1 ,

and needs nothing from the solver but W and :math:`\lambda`. With a price of losses or a prior it is that of the
objective at W and of the bound of :mod:`attsvm.proofs.objective` at the multipliers, where
:math:`c^\top\lambda = \sum_{rejected}\lambda - \langle W_0, A^\top\lambda\rangle`. A margin is a sum of d dz products
and off by at most :math:`\gamma_{d+dz+1}|\delta||W|_F|z|` in floats, :math:`A^\top\lambda` by :math:`\gamma_k` of the
sum of :math:`\lambda_{it}|\delta_{it}||z_i|` (:mod:`attsvm.core.rounding`). Both are counted against the claim, so the
gap is a bound for the floats the problem is given in. Where that is too wide, the sums are taken again in twice the
precision (:mod:`attsvm.core.double_double`) for the constraints that matter.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np

from attsvm.core.double_double import Rows, sharp_adjoint
from attsvm.core.error_free import UNIT, Pair, error_of, gamma, sum_pairs, two_product
from attsvm.core.gap import relative_gap
from attsvm.core.norms import FROBENIUS, Norm, frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.core.rounding import EPS, FEW, LENIENT, SUBNORMAL, growth, norm_above, sum_below
from attsvm.proofs.objective import PLAIN, SEPARATION_TOL, Regularisation, Terms, admissible
from attsvm.proofs.proof import Bound
from attsvm.proofs.ties import onto_ties, tie_move

# Scores of tied tokens may differ by this much of the margin, one, before W counts as infeasible.
TIE_TOLERANCE = 1e-9
# Norms within this and its inverse have squares in the range of floats.
VISIBLE = 1e-140
# Products that may round below the normal floats, each by less than the smallest float, beside one a multiplier.
UNDERFLOWS = 16
# W is the prior when they differ by no more than this part of it.
RESOLUTION = 64 * EPS


@dataclass(frozen=True)
class Certified:
    """W and multipliers scaled to their conventions, with what they prove (float64, original coordinates).

    Attributes
    ----------
    W : ndarray, shape (d, dz)
    dual, margins : ndarray, shape (n, T)
    objective : float
        The norm of W, less the prior, as computed; infinite when W is not feasible.
    lower_bound, upper_bound : float
        Bounds on the smallest norm, or on the smallest objective with losses or a prior, every rounding counted.
    tie_residual : float
        Zero when the upper bound is that of a W whose ties are exact; else how far, at a margin of one, the scores of
        tied tokens may differ, and what is claimed is claimed for the problem that allows that.
    rounding : float
        Twice the allowance in the gap: rounding may have widened or narrowed it by that much.
    primal : float or None
        With losses or a prior, the objective at W as computed, or what is proven of a W next to it where that is less.
    resolution : float
        What rounding W costs beside a prior: an objective below it counts as zero.
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

    @property
    def value(self) -> float:
        """What is minimised: the primal, or the norm where nothing else is asked for."""
        return self.objective if self.primal is None else self.primal

    @property
    def gap(self) -> float:
        """Relative gap of the bounds; infinite when W is infeasible or nothing bounds what is minimised."""
        nothing = self.upper_bound < math.inf and counts_as_zero(self.primal, self.objective, self.resolution)
        return proven_gap(0.0 if nothing else self.lower_bound, 0.0 if nothing else self.upper_bound, self.tie_residual)


@dataclass(frozen=True)
class Bulk:
    """Multipliers of rejected tokens that are known by their sum only.

    Attributes
    ----------
    total : float
    adjoint : Pair, shape (d, dz)
        Their A^T dual.
    error : float
        Largest rounding error of that, in the Frobenius norm.
    """

    total: float
    adjoint: Pair
    error: float


def counts_as_zero(primal: float | None, distance: float, resolution: float) -> bool:
    """Whether an objective is zero up to what rounding W costs beside a prior, which is that far from W.

    Without a prior that is W = 0 alone: the square of a norm that is not zero may underflow.
    """
    return primal is not None and primal <= resolution and (resolution > 0.0 or distance == 0.0)


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
    regularisation: Regularisation = PLAIN,
    *,
    sharp: bool = False,
    evaluation: tuple[np.ndarray, np.ndarray] | None = None,
) -> Certified:
    """Scale W to smallest margin one and the multipliers to the dual's convention, and bound what both prove.

    Beside a prior a hard margin's W is scaled up only, where it falls short by more than rounding; with losses not.
    The Frobenius dual of a hard margin is scaled so that W, less the prior, is A^T dual at the optimum (without a prior
    its sum is then ||W||^2); every other norm's so that A^T dual has dual norm one (its sum is then ||W||), and so is
    the Frobenius dual where ||W||^2 would leave the range of floats. With losses the multipliers are scaled to where
    their bound is largest. The arrays of the result are frozen.

    Parameters
    ----------
    problem : SelectionProblem
    norm : Norm
    W : ndarray, shape (d, dz)
    dual : ndarray, shape (n, T)
    regularisation : Regularisation
    sharp : bool
        Take the sums that matter in twice the working precision.
    evaluation : tuple of ndarray, shapes (n, T) and (d, dz)
        Margins of W and A^T dual where the solver has them, summed like :meth:`SelectionProblem.evaluate` in some
        order; the multipliers must be admissible then.
    """
    if regularisation.plain and not problem.has_rejected:
        # No token is rejected: the zero matrix is the answer, and no multiplier is needed to show it.
        return Certified(np.zeros_like(W), np.zeros_like(dual), np.zeros(dual.shape), 0.0, 0.0, 0.0)
    terms = None if regularisation.plain else regularisation.terms(problem, norm)
    hard, prior, rejected = terms is None or terms.hard, regularisation.prior, problem.rejected
    signed = dual
    if evaluation is None:
        signed = admissible(dual, rejected, problem.tied, math.inf if terms is None else terms.upper)
    objective = high = math.inf
    residual = low = rounding = resolution = 0.0
    primal = None
    with np.errstate(**LENIENT):
        margins, adjoint = problem.evaluate(W, signed) if evaluation is None else evaluation
        if problem.has_ties and _loose(problem, W, margins):
            W = onto_ties(problem, W, margins)
            margins = problem.apply(W)
        unit = float(margins.min(where=rejected, initial=np.inf)) if hard else 1.0
        if prior is not None and unit > 1.0 - float((_allowance(W, frobenius(W)) * problem.lengths).max()):
            unit = 1.0  # a longer W would be further from the prior
        W, margins = (W / unit, margins / unit) if unit > 0 and unit != 1.0 else (W.copy(), margins)
        size = norm.value(W if prior is None else W - prior) if unit > 0 else math.inf
        if size < math.inf:
            objective = size
            high, residual = upper_bound(problem, norm, W, margins, size, terms, prior, sharp=sharp)
        if terms is not None:
            # A large C magnifies the rounding of margins, which a slightly longer W does not have.
            primal = min(terms.of_length(objective) + terms.loss(1.0 - margins), high) if size < math.inf else math.inf
            resolution = 0.0 if prior is None else terms.size(RESOLUTION * prior)
        length = norm.dual(adjoint)
        if terms is not None:
            scale, bound = terms.bound(signed, adjoint, length)
        else:
            bound = float(signed[rejected].sum()) / length if length > 0 else 0.0
            scale = 1.0 / length if 0 < bound < math.inf else 0.0
        if scale > 0:
            if hard and norm is FROBENIUS and VISIBLE < bound < 1.0 / VISIBLE:
                scale *= bound
            scaled = signed * scale if terms is None else terms.clip(signed * scale)
            if sharp or not hard:
                signed, adjoint, length = scaled, adjoint * scale, length * scale
            low = lower_bound(problem, norm, signed, adjoint, length, residual, terms, prior, sharp=sharp)
            signed = scaled
            if low > 0 and high < math.inf:
                rounding = 2.0 * max(high / low - (objective if primal is None else primal) / bound, 0.0)
    for array in (W, signed, margins):
        array.setflags(write=False)
    return Certified(W, signed, margins, objective, low, high, residual, rounding, primal, resolution)


def _allowance(W: np.ndarray, size: float) -> float:
    """Bound the rounding of margins of W, of that Frobenius norm, in parts of the constraints' lengths."""
    # Differences, their products with W z, and the scaling of W and margins.
    return gamma(sum(W.shape) + 6) * size * (1 + FEW)


def _loose(problem: SelectionProblem, W: np.ndarray, margins: np.ndarray) -> bool:
    """Whether W misses a tie by more than rounding alone would, so that moving it onto the ties pays."""
    allowance = _allowance(W, frobenius(W))
    return bool((np.abs(margins) > allowance * problem.lengths).any(where=problem.tied))


def upper_bound(
    problem: SelectionProblem,
    norm: Norm,
    W: np.ndarray,
    margins: np.ndarray,
    objective: float,
    terms: Terms | None = None,
    prior: np.ndarray | None = None,
    *,
    sharp: bool,
) -> tuple[float, float]:
    """Bound the smallest norm, or objective, with W (d, dz) as it is; returns the bound and the ties' residual.

    ``objective`` is the norm of W less the prior as computed. Without ``terms`` the norm alone is minimised.
    """
    size = objective if norm is FROBENIUS and prior is None else frobenius(W)
    allowance, rejected, lengths = _allowance(W, size), problem.rejected, problem.lengths
    distance, above = distance_above(norm, W, objective, prior, sharp=sharp)
    # Losses depend on one less the margin, whose digits the margin itself would hide.
    origin = 0.0 if terms is None else 1.0
    least = (margins if terms is None else margins - 1.0) - allowance * lengths
    move = tie_move(problem, W, size) if problem.has_ties else 0.0
    longer = move * growth(norm, W.shape) * (1 + FEW) if move > 0 else 0.0
    shift = move * lengths if 0.0 < longer <= above else 0.0
    if sharp:
        least = _sharpen(problem, W, margins, least, size, shift, origin)
    residual = 0.0
    if problem.has_ties:
        after_move = least - shift
        soft = terms is not None and not terms.hard
        if longer <= above and (soft or float(after_move.min(where=rejected, initial=np.inf)) + origin > 0):
            least = after_move - FEW * np.abs(after_move)
        else:
            longer, residual = 0.0, float((np.abs(margins) + allowance * lengths).max(where=problem.tied, initial=0.0))
    floor = float(least.min(where=rejected, initial=np.inf))
    if terms is None:
        return ((above + longer) / floor * (1 + FEW), residual / floor) if floor > 0 else (math.inf, residual)
    loss = terms.loss(-least) * (1 + gamma(int(np.count_nonzero(rejected)) + 4))
    return objective_above(terms, distance + longer, above + longer, loss, floor, residual)


def distance_above(
    norm: Norm, W: np.ndarray, objective: float, prior: np.ndarray | None, *, sharp: bool
) -> tuple[float, float]:
    """Bound the norms of W less the prior, ``objective`` as computed, and of W itself from above."""
    if prior is None:
        above = norm_above(norm, W, objective, sharp=sharp)
        return above, above
    V = W - prior
    distance = norm_above(norm, V, objective, sharp=sharp) + UNIT * frobenius(V) * growth(norm, W.shape)
    return distance, norm_above(norm, W, norm.value(W), sharp=sharp)


def objective_above(
    terms: Terms, distance: float, length: float, loss: float, floor: float, residual: float
) -> tuple[float, float]:
    """Bound an objective, and the ties' residual, by norms of W less the prior and of W, losses, and margins less one.

    Scaled up until its smallest margin, at least ``1 + floor``, is one, W is further from the prior by what it grows.
    """
    short = max(-floor, 0.0)
    scaled = math.inf
    if short < (1.0 if terms.hard else SEPARATION_TOL):
        scaled = terms.of_length(distance + short / (1.0 - short) * length * (1 + FEW)) * (1 + FEW)
        residual /= 1.0 - short
    high = math.inf if terms.hard else (terms.of_length(distance) + loss) * (1 + FEW)
    # The square of a norm may be subnormal, or underflow to zero, where the norm itself is neither.
    underflow = UNDERFLOWS * SUBNORMAL if terms.squared and distance > sys.float_info.min else 0.0
    return min(high, scaled) + underflow, residual


def _sharpen(
    problem: SelectionProblem,
    W: np.ndarray,
    margins: np.ndarray,
    least: np.ndarray,
    size: float,
    shift: np.ndarray | float = 0.0,
    origin: float = 0.0,
) -> np.ndarray:
    """Margins less the origin from below, in twice the precision where they, less a shift (n, T), count.

    Those that may be the smallest do, or, where losses are measured from one, those that may fall short of it.
    """
    lengths, ceiling = problem.lengths, 0.0
    if not origin:
        ceiling = float((2.0 * margins - least - shift).min(where=problem.rejected, initial=np.inf))
    rows, columns = np.nonzero(problem.rejected & (least - shift <= ceiling))
    if not len(rows):
        return least
    exact, error = Rows.of(problem, rows, columns).margins(Pair(W, np.zeros(W.shape)))
    values = (exact.high - origin) + exact.low
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
    terms: Terms | None = None,
    prior: np.ndarray | None = None,
    *,
    sharp: bool,
    bulk: Bulk | None = None,
) -> float:
    """Bound the smallest norm, or objective, from below with admissible multipliers (n, T).

    ``adjoint`` (d, dz) is A^T dual and ``length`` its dual norm as computed, for these multipliers or ones that these
    are a rounded multiple of; with losses, for these or ones they round. It includes the adjoint of the ``bulk``.
    """
    n, T = dual.shape
    values = dual[problem.rejected]
    total = sum_below(values)
    size = np.abs(dual) if problem.has_ties else dual
    weight = float(np.vdot(size, problem.lengths)) * (1 + gamma(n * T + 4))
    # Zero multipliers add nothing, rounding included.
    count = n + T if n + T < 64 else min(n + T, int(np.count_nonzero(dual)))
    error = gamma(count + 8) * weight
    if bulk is not None:
        total, error = (total + bulk.total) * (1 - FEW), (error + bulk.error + frobenius(bulk.adjoint.low)) * (1 + FEW)
    exact = sharp_adjoint(problem, dual) if sharp and dual.any() else None
    if exact is not None:
        pair, relative = exact
        error = relative * weight
        if bulk is not None:
            pair = pair + bulk.adjoint
            error += bulk.error + error_of(4, 0) * (frobenius(exact[0].high) + frobenius(bulk.adjoint.high))
        adjoint, length = pair.high, norm.dual(pair.high)
        error = (error + frobenius(pair.low)) * (1 + FEW)
    if prior is not None:
        if exact is not None:
            high, low = two_product(prior, adjoint)
            bulk_total = [] if bulk is None else [bulk.total]
            parts = np.concatenate([values, bulk_total, -high.ravel(), -low.ravel()])
            sums = sum_pairs(Pair(parts, np.zeros(len(parts))), 0)
            total = float(sums.high + sums.low) * (1 - FEW) - error_of(len(parts), 4) * float(np.abs(parts).sum())
        else:
            total -= float(np.vdot(prior, adjoint)) + gamma(adjoint.size + 8) * frobenius(prior) * frobenius(adjoint)
        total -= frobenius(prior) * error * (1 + FEW)
    above = norm_above(norm, adjoint, length, dual=True, sharp=sharp) * (1 + FEW)
    above += error * growth(norm, adjoint.shape, True)
    if tie_residual > 0:
        total -= tie_residual * float(np.abs(dual).sum(where=problem.tied)) * (1 + gamma(n * T))
    total -= FEW * abs(total)
    if terms is None or terms.hard:
        # An A^T dual of norm zero has left the range of floats, and so has a bound above their largest.
        return min(max(total / above, 0.0), sys.float_info.max) if 0.0 < above < math.inf else 0.0
    curvature = float((terms.shift * values) @ values) * (1 + gamma(n * T + 4))
    shrink = 1.0
    if terms.squared:
        curvature += above * above
    elif above > 1.0:
        # The adjoint must lie in the unit ball of the dual norm: shrink by what it may exceed that by.
        shrink = 1.0 / above * (1 - FEW)
    value = (shrink * total - 0.5 * shrink * shrink * curvature * (1 + FEW)) * (1 - FEW)
    return max(value - (len(values) + UNDERFLOWS) * SUBNORMAL, 0.0)
