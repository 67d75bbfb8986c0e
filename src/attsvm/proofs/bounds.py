r"""What W, or multipliers, prove of the smallest objective: bounds with every rounding counted.

A margin is a sum of d dz products and off by at most :math:`\gamma_{d+dz+1}|\delta||W|_F|z|` in floats,
:math:`A^\top\lambda` by :math:`\gamma_k` of the sum of :math:`\lambda_{it}|\delta_{it}||z_i|`
(:mod:`attsvm.core.rounding`). Both are counted against the claim, so the bounds hold for the floats that the problem is
given in. With ``sharp`` the sums that matter are taken in twice the precision (:mod:`attsvm.core.double_double`).
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
from attsvm.core.rounding import FEW, SUBNORMAL, growth, norm_above, sum_below
from attsvm.proofs.objective import SEPARATION_TOL, Terms
from attsvm.proofs.ties import tie_move

# Products that may round below the normal floats, each by less than the smallest float, beside one a multiplier.
UNDERFLOWS = 16


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


def margin_allowance(W: np.ndarray, size: float) -> float:
    """Bound the rounding of margins of W, of that Frobenius norm, in parts of the constraints' lengths."""
    # Differences, their products with W z, and the scaling of W and margins.
    return gamma(sum(W.shape) + 6) * size * (1 + FEW)


def upper_bound(
    problem: SelectionProblem,
    terms: Terms,
    W: np.ndarray,
    margins: np.ndarray,
    objective: float,
    prior: np.ndarray | None = None,
    *,
    sharp: bool,
) -> tuple[float, float]:
    """Bound the smallest objective from above with W (d, dz) as it is; returns the bound and the ties' residual.

    ``objective`` is the norm of W less the prior as computed.
    """
    norm = terms.norm
    size = objective if norm is FROBENIUS and prior is None else frobenius(W)
    allowance, rejected, lengths = margin_allowance(W, size), problem.rejected, problem.lengths
    distance, above = distance_above(norm, W, objective, prior, sharp=sharp)
    # A norm alone scales with W, and its margins count from zero. Losses depend on one less the margin, whose digits
    # the margin itself would hide.
    norm_alone = terms.hard and prior is None
    origin = 0.0 if norm_alone else 1.0
    least = (margins - origin) - allowance * lengths
    move = tie_move(problem, W, size) if problem.has_ties else 0.0
    longer = move * growth(norm, W.shape) * (1 + FEW) if move > 0 else 0.0
    shift = move * lengths if 0.0 < longer <= above else 0.0
    if sharp:
        least = _sharpen(problem, W, margins, least, size, shift, origin)
    residual = 0.0
    if problem.has_ties:
        after_move = least - shift
        if longer <= above and (not terms.hard or float(after_move.min(where=rejected, initial=np.inf)) + origin > 0):
            least = after_move - FEW * np.abs(after_move)
        else:
            longer, residual = 0.0, float((np.abs(margins) + allowance * lengths).max(where=problem.tied, initial=0.0))
    floor = float(least.min(where=rejected, initial=np.inf))
    if norm_alone:
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
    terms: Terms,
    dual: np.ndarray,
    adjoint: np.ndarray,
    length: float,
    tie_residual: float,
    prior: np.ndarray | None = None,
    *,
    sharp: bool,
    bulk: Bulk | None = None,
) -> float:
    """Bound the smallest objective from below with admissible multipliers (n, T).

    ``adjoint`` (d, dz) is A^T dual and ``length`` its dual norm as computed, for these multipliers or ones that these
    are a rounded multiple of; with losses, for these or ones they round. It includes the adjoint of the ``bulk``.
    """
    norm, (n, T) = terms.norm, dual.shape
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
    if terms.hard:
        # An A^T dual of norm zero has left the range of floats, and so has a bound above their largest.
        return min(max(total / above, 0.0), sys.float_info.max) if 0.0 < above < math.inf else 0.0
    curvature = terms.curvature(dual) * (1 + gamma(n * T + 4))
    shrink = 1.0
    if terms.squared:
        curvature += above * above
    elif above > 1.0:
        # The adjoint must lie in the unit ball of the dual norm: shrink by what it may exceed that by.
        shrink = 1.0 / above * (1 - FEW)
    value = (shrink * total - 0.5 * shrink * shrink * curvature * (1 + FEW)) * (1 - FEW)
    return max(value - (len(values) + UNDERFLOWS) * SUBNORMAL, 0.0)
