r"""Bounds on the smallest objective from W or from multipliers, with every rounding counted.

A computed margin is a sum of d dz products: its error is at most :math:`\gamma_{d+dz+1}|\delta||W|_F|z|`. The error of
:math:`A^\top\lambda` is at most :math:`\gamma_k` times the sum of :math:`\lambda_{it}|\delta_{it}||z_i|`
(:mod:`attsvm.core.rounding`). Both errors are counted against the claim, so the bounds hold for the floats in which the
problem is given. If ``sharp``, the decisive sums are taken in twice the precision (:mod:`attsvm.core.double_double`).
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np

from attsvm.core.double_double import Rows, sharp_adjoint
from attsvm.core.error_free import UNIT, Pair, error_of, gamma, sum_pairs, two_product
from attsvm.core.norms import FROBENIUS, Norm, frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.core.rounding import FUNCTION_ROUNDING, SUBNORMAL, growth, norm_above, sum_below
from attsvm.proofs.objective import SEPARATION_TOL, Terms
from attsvm.proofs.program import Program
from attsvm.proofs.ties import tie_move

# Number of products, in addition to one per multiplier, that may underflow; each loses less than the smallest float.
UNDERFLOWS = 16


@dataclass(frozen=True)
class Bulk:
    """Multipliers of rejected tokens that are known by their sum only.

    Attributes
    ----------
    adjoint : Pair, shape (d, dz)
        A^T dual of these multipliers.
    error : float
        Largest rounding error of ``adjoint``, in the Frobenius norm.
    """

    total: float
    adjoint: Pair
    error: float


def margin_allowance(problem: SelectionProblem, size: float) -> float:
    """Bound the rounding of margins of W, whose Frobenius norm is ``size``, relative to the constraints' lengths."""
    # Differences, their products with W z, and the scaling of W and margins.
    return gamma(problem.roundings[0] + 6) * size * (1 + FUNCTION_ROUNDING)


def upper_bound(
    program: Program, W: np.ndarray, margins: np.ndarray, objective: float, *, sharp: bool
) -> tuple[float, float]:
    """Bound the smallest objective from above with W (d, dz) as given; return the bound and the residual of the ties.

    ``objective`` is the computed norm of W - prior.
    """
    problem, norm, terms, prior = program.problem, program.norm, program.terms, program.prior
    size = objective if norm is FROBENIUS and prior is None else frobenius(W)
    allowance, rejected, lengths = margin_allowance(problem, size), problem.rejected, problem.lengths
    distance, above = distance_above(norm, W, objective, prior, sharp=sharp)
    # A norm scales with W, so margins count from zero. Losses depend on 1 - margin, and the margin itself would lose
    # digits of this difference.
    origin = 0.0 if program.plain else 1.0
    least = -allowance * lengths
    if program.plain:
        least += margins
    else:
        for rows in problem.chunks:
            least[rows] += margins[rows] - origin
    move = tie_move(problem, W, size) if problem.has_ties else 0.0
    longer = move * growth(norm, W.shape) * (1 + FUNCTION_ROUNDING) if move > 0 else 0.0
    shift = move * lengths if 0.0 < longer <= above else 0.0
    if sharp:
        least = _sharpen(problem, W, margins, least, size, shift, origin)
    residual = 0.0
    if problem.has_ties:
        after_move = least - shift if longer > 0.0 else least
        if longer <= above and (not terms.hard or float(after_move.min(where=rejected, initial=np.inf)) + origin > 0):
            least = after_move
            for rows in problem.chunks:
                least[rows] -= FUNCTION_ROUNDING * np.abs(least[rows])
        else:
            tied = problem.tied
            longer, residual = 0.0, float((np.abs(margins[tied]) + allowance * lengths[tied]).max(initial=0.0))
    floor = float(least.min(where=rejected, initial=np.inf))
    if program.plain:
        return (
            ((above + longer) / floor * (1 + FUNCTION_ROUNDING), residual / floor)
            if floor > 0
            else (math.inf, residual)
        )
    loss = terms.loss(np.negative(least, out=least)) * (1 + gamma(int(np.count_nonzero(rejected)) + 4))
    return objective_above(terms, distance + longer, above + longer, loss, floor, residual)


def distance_above(
    norm: Norm, W: np.ndarray, objective: float, prior: np.ndarray | None, *, sharp: bool
) -> tuple[float, float]:
    """Bound the norms of W - prior (``objective`` as computed) and of W from above."""
    if prior is None:
        above = norm_above(norm, W, objective, sharp=sharp)
        return above, above
    V = W - prior
    distance = norm_above(norm, V, objective, sharp=sharp) + UNIT * frobenius(V) * growth(norm, W.shape)
    return distance, norm_above(norm, W, norm.value(W), sharp=sharp)


def objective_above(
    terms: Terms, distance: float, length: float, loss: float, floor: float, residual: float
) -> tuple[float, float]:
    """Bound an objective and the residual of the ties by the norms of W - prior and W, the losses, and margins - 1.

    The smallest margin is at least ``1 + floor``. Scaling W until this margin is one moves W away from the prior by at
    most the growth of W.
    """
    short = max(-floor, 0.0)
    scaled = math.inf
    if short < (1.0 if terms.hard else SEPARATION_TOL):
        scaled = terms.of_length(distance + short / (1.0 - short) * length * (1 + FUNCTION_ROUNDING)) * (
            1 + FUNCTION_ROUNDING
        )
        residual /= 1.0 - short
    high = math.inf if terms.hard else (terms.of_length(distance) + loss) * (1 + FUNCTION_ROUNDING)
    # The square of a norm may be subnormal or zero although the norm is neither.
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
    """Bound margins - origin from below, in twice the precision at the entries that decide; ``shift`` is (n, T).

    An entry decides if it may be the smallest margin or, where losses are measured from one, if it may fall short of
    one.
    """
    lengths, ceiling = problem.lengths, 0.0
    if not origin:
        ceiling = float((2.0 * margins - least - shift).min(where=problem.rejected, initial=np.inf))
    rows, columns = np.nonzero(problem.rejected & (least - shift <= ceiling))
    if not len(rows):
        return least
    exact, error = Rows.of(problem, rows, columns).margins(Pair(W, np.zeros(W.shape)))
    values = (exact.high - origin) + exact.low
    values = values - 4 * UNIT * np.abs(values) - error * size * lengths[rows, columns] * (1 + FUNCTION_ROUNDING)
    least = least.copy()
    least[rows, columns] = np.where(np.isfinite(values), values, least[rows, columns])
    return least


def lower_bound(
    program: Program,
    dual: np.ndarray,
    adjoint: np.ndarray,
    length: float,
    tie_residual: float,
    *,
    sharp: bool,
    bulk: Bulk | None = None,
) -> float:
    """Bound the smallest objective from below with admissible multipliers (n, T).

    ``adjoint`` (d, dz) is A^T dual and ``length`` its computed dual norm. For a hard margin both may be scaled by one
    factor. For losses they belong to these multipliers up to rounding. ``adjoint`` includes the adjoint of the
    ``bulk``.
    """
    problem, norm, terms, prior = program.problem, program.norm, program.terms, program.prior
    n, T = dual.shape
    total = sum_below(dual[problem.rejected])
    weight, lengths = 0.0, problem.lengths
    for rows in problem.chunks:
        weight += float(np.vdot(np.abs(dual[rows]), lengths[rows]))
    weight *= 1 + gamma(n * T + 4)
    # Zero multipliers add no rounding.
    longest = problem.roundings[1]
    count = longest if longest < 64 else min(longest, int(np.count_nonzero(dual)))
    error = gamma(count + 8) * weight
    if bulk is not None:
        total, error = (
            (total + bulk.total) * (1 - FUNCTION_ROUNDING),
            (error + bulk.error + frobenius(bulk.adjoint.low)) * (1 + FUNCTION_ROUNDING),
        )
    exact = sharp_adjoint(problem, dual) if sharp and dual.any() else None
    if exact is not None:
        pair, relative = exact
        error = relative * weight
        if bulk is not None:
            pair = pair + bulk.adjoint
            error += bulk.error + error_of(4, 0) * (frobenius(exact[0].high) + frobenius(bulk.adjoint.high))
        adjoint, length = pair.high, norm.dual(pair.high)
        error = (error + frobenius(pair.low)) * (1 + FUNCTION_ROUNDING)
    if prior is not None:
        if exact is not None:
            high, low = two_product(prior, adjoint)
            bulk_total = [] if bulk is None else [bulk.total]
            parts = np.concatenate([dual[problem.rejected], bulk_total, -high.ravel(), -low.ravel()])
            sums = sum_pairs(Pair(parts, np.zeros(len(parts))), 0)
            total = float(sums.high + sums.low) * (1 - FUNCTION_ROUNDING) - error_of(len(parts), 4) * float(
                np.abs(parts).sum()
            )
        else:
            total -= float(np.vdot(prior, adjoint)) + gamma(adjoint.size + 8) * frobenius(prior) * frobenius(adjoint)
        total -= frobenius(prior) * error * (1 + FUNCTION_ROUNDING)
    above = norm_above(norm, adjoint, length, dual=True, sharp=sharp) * (1 + FUNCTION_ROUNDING)
    above += error * growth(norm, adjoint.shape, True)
    if tie_residual > 0:
        total -= tie_residual * float(np.abs(dual).sum(where=problem.tied)) * (1 + gamma(n * T))
    total -= FUNCTION_ROUNDING * abs(total)
    if terms.hard:
        # A^T dual of norm zero has underflowed; a bound above the largest float has overflowed.
        return min(max(total / above, 0.0), sys.float_info.max) if 0.0 < above < math.inf else 0.0
    curvature = terms.curvature(dual) * (1 + gamma(n * T + 4))
    shrink = 1.0
    if terms.squared:
        curvature += above * above
    elif above > 1.0:
        # The adjoint must lie in the unit ball of the dual norm: divide it by the bound on its dual norm.
        shrink = 1.0 / above * (1 - FUNCTION_ROUNDING)
    value = (shrink * total - 0.5 * shrink * shrink * curvature * (1 + FUNCTION_ROUNDING)) * (1 - FUNCTION_ROUNDING)
    return max(value - (int(np.count_nonzero(problem.rejected)) + UNDERFLOWS) * SUBNORMAL, 0.0)
