r"""What W and multipliers of a soft or prior problem prove, rounding included.

The objective at W from above against the bound of :mod:`attsvm.solvers.common.setting` at the multipliers from below,
both in the original coordinates; errors of the sums as in :mod:`attsvm.proofs.certified`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attsvm.core.double_double import Rows, sharp_adjoint
from attsvm.core.error_free import UNIT, Pair, error_of, sum_pairs, two_product
from attsvm.core.norms import FROBENIUS, frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.core.rounding import EPS, FEW, gamma, growth, norm_above
from attsvm.proofs.certified import LENIENT, TIE_TOLERANCE, VISIBLE, Certified, proven_gap
from attsvm.proofs.claim import AGREEMENT
from attsvm.proofs.proof import Bound, Proof, unproven
from attsvm.proofs.recheck import METHOD
from attsvm.proofs.ties import tie_move
from attsvm.solvers.common.setting import NEARLY_SEPARATED, Terms

# W is the prior when they differ by no more than this part of it.
RESOLUTION = 64 * EPS


@dataclass(frozen=True)
class CertifiedPair(Certified):
    """W and multipliers of a soft or prior problem, with the objective at the one and the bound at the others.

    ``primal`` is the objective as computed, or what is proven of a W next to it where that is less, and ``upper_bound``
    the same with every rounding counted. An objective below ``resolution``, what rounding W itself costs, counts as
    zero.
    """

    primal: float = np.inf
    resolution: float = 0.0

    @property
    def gap(self) -> float:
        """Relative gap of the bounds; zero where the objective is, as far as W in floats can tell."""
        nothing = self.primal <= self.resolution and np.isfinite(self.upper_bound)
        return 0.0 if nothing and self.tie_residual <= TIE_TOLERANCE else super().gap


@dataclass(frozen=True)
class Bulk:
    """Multipliers of constraints that are known by their sum only.

    Attributes
    ----------
    gain : float
        Sum of multipliers times what V itself must reach.
    error : float
        What rounding did to their pull at most, in the Frobenius norm.
    """

    gain: float
    error: float


def certify_pair(
    problem: SelectionProblem,
    terms: Terms,
    prior: np.ndarray,
    W: np.ndarray,
    dual: np.ndarray,
    *,
    sharp: bool = False,
) -> CertifiedPair:
    """Evaluate the objective at W and the bound at the multipliers; a hard margin's W is first scaled to margin one.

    Parameters
    ----------
    terms : Terms
        In the original coordinates.
    prior, W : ndarray, shape (d, dz)
    dual : ndarray, shape (n, T)
    sharp : bool
        Take the margins that cost something, and the multipliers' pull, in twice the working precision.
    """
    dual = terms.clip(dual)
    with np.errstate(**LENIENT):
        margins, adjoint = problem.evaluate(W, dual)
        if sharp and terms.hard:
            # W need not grow for margins that only floats take below one.
            margins = np.where(
                problem.rejected, np.maximum(margins, 1.0 - _shortfall(problem, W, margins, sharp)), margins
            )
        smallest = float(np.min(margins, where=problem.rejected, initial=np.inf))
        feasible = not terms.hard or smallest > 0
        if terms.hard and feasible and smallest < 1.0:
            W, margins = W / smallest, margins / smallest
        else:
            W = W.copy()
        feasible = feasible and bool(np.isfinite(W).all())
        V = W - prior
        primal = terms.size(V) + terms.loss(np.where(problem.rejected, 1.0 - margins, 0.0)) if feasible else np.inf
        high, residual = _primal_above(problem, terms, W, V, margins, sharp=sharp) if feasible else (np.inf, 0.0)
        # A large C makes much of the rounding of margins, which a slightly longer W does not have.
        primal = min(primal, high)
        length = terms.norm.dual(adjoint)
        scale, plain = terms.bound(dual, adjoint, length)
        dual = terms.clip(dual * scale)
        bound = dual_below(problem, terms, prior, dual, adjoint * scale, length * scale, residual, sharp=sharp)
        if terms.hard and terms.norm is FROBENIUS and VISIBLE < bound < 1.0 / VISIBLE:
            dual = dual * bound  # W - W0 = A^T dual
    for array in (W, dual, margins):
        array.setflags(write=False)
    rounding = (high - bound) - (primal - plain) if np.isfinite(high) else 0.0
    return CertifiedPair(
        W=W,
        dual=dual,
        margins=margins,
        objective=terms.norm.value(V) if feasible else np.inf,
        lower_bound=bound,
        upper_bound=high,
        tie_residual=residual,
        rounding=2.0 * max(rounding, 0.0) / primal if primal > 0 else 0.0,
        primal=primal,
        resolution=terms.size(RESOLUTION * prior),
    )


def recheck_pair(problem: SelectionProblem, terms: Terms, prior: np.ndarray, pair: CertifiedPair, tol: float) -> Proof:
    """Bound the smallest objective from W and the multipliers of a pair again, and hold what it says against that.

    The relative gap ``tol`` is promised; infinite for none.
    """
    if not (np.isfinite(pair.W).all() and np.isfinite(pair.dual).all()):
        return unproven("W or the multipliers are not finite.", METHOD)
    again = certify_pair(problem, terms, prior, pair.W, pair.dual, sharp=True)
    low, high = again.lower_bound, again.upper_bound
    if not np.isfinite(high):
        return unproven("W does not satisfy the constraints beyond rounding.", METHOD, low=low, high=high)
    fault = pair_fault(problem, terms, prior, pair, again, low, high, tol + again.rounding)
    if fault is not None:
        return unproven(fault, METHOD, low=low, high=high)
    return Proof(True, low, high, f"The smallest objective lies in [{low:.17g}, {high:.17g}].", METHOD)


def pair_fault(
    problem: SelectionProblem,
    terms: Terms,
    prior: np.ndarray,
    pair: CertifiedPair,
    again: CertifiedPair,
    low: Bound,
    high: Bound,
    tol: float,
) -> str | None:
    """Say what of a pair is not borne out by the same certified ``again``, or by an interval; None for nothing."""
    norm = terms.norm
    # The pair may be of floats, and its multipliers were scaled and rounded since: that is part of the rounding.
    rounding = max(again.rounding, certify_pair(problem, terms, prior, pair.W, pair.dual).rounding)
    agreement = AGREEMENT + norm.dual_resolution
    reach = agreement * abs(pair.primal) + 0.5 * rounding * again.primal + again.resolution
    away = (rounding + gamma(8 * (prior.size + 8))) * again.objective + norm.value(RESOLUTION * prior)
    if not abs(pair.objective - again.objective) <= away:
        return f"the objective is said to be {pair.objective:.17g} where it is {again.objective:.17g}."
    if not abs(pair.primal - again.primal) <= reach:
        return f"the objective at W is said to be {pair.primal:.17g} where it is {again.primal:.17g}."
    if not (pair.lower_bound - reach <= low and pair.upper_bound + reach >= high):
        interval = f"[{pair.lower_bound:.17g}, {pair.upper_bound:.17g}]"
        return f"{interval} is said where [{float(low):.17g}, {float(high):.17g}] is proven."
    gap = max(pair.gap, proven_gap(low, high) if pair.primal > again.resolution else 0.0)
    if not gap <= tol + agreement:
        return f"the gap is {gap:.3g} where an optimum promises {tol:.3g}."
    return None


def _primal_above(
    problem: SelectionProblem, terms: Terms, W: np.ndarray, V: np.ndarray, margins: np.ndarray, *, sharp: bool
) -> tuple[float, float]:
    """Bound the objective of a W next to the given one from above; returns it and the residual of the ties."""
    norm, rejected = terms.norm, problem.rejected
    shortfall = _shortfall(problem, W, margins, sharp)
    extra = residual = 0.0
    if problem.has_ties:
        move = tie_move(problem, W, frobenius(W))
        if move <= TIE_TOLERANCE * frobenius(W):
            shortfall = np.where(rejected, shortfall + move * problem.lengths, 0.0)
            extra = move * growth(norm, W.shape)
        else:
            residual = float((np.abs(margins) + _rounding(problem, W)).max(where=problem.tied, initial=0.0))
    grown = norm_above(norm, W, norm.value(W), sharp=sharp)
    value = norm_above(norm, V, norm.value(V), sharp=sharp) + UNIT * frobenius(V) * growth(norm, W.shape) + extra
    largest = float(shortfall.max(initial=0.0))
    if terms.hard:
        # The feasible matrix is W / floor, further from the prior than W by what it grows.
        return (grown_above(terms, value, grown, largest), residual) if largest < 1 else (math.inf, residual)
    loss = terms.loss(shortfall) * (1 + gamma(int(rejected.sum()) + 4))
    high = (size_of(terms, value) + loss) * (1 + FEW)
    if 0 < largest < NEARLY_SEPARATED:
        high = min(high, grown_above(terms, value, grown, largest))
    return high, residual


def size_of(terms: Terms, value: float) -> float:
    """Return what a norm of V adds to the objective."""
    return 0.5 * value * value if terms.squared else value


def grown_above(terms: Terms, value: float, length: float, shortfall: float) -> float:
    """Bound the objective of a W scaled up until nothing falls short; ``length`` is its norm, ``value`` that of V."""
    return size_of(terms, value + shortfall / (1.0 - shortfall) * length * (1 + FEW)) * (1 + FEW)


def _rounding(problem: SelectionProblem, W: np.ndarray) -> np.ndarray:
    """Bound the error of the margins of W as computed, (n, T)."""
    return gamma(sum(W.shape) + 6) * frobenius(W) * problem.lengths * (1 + FEW)


def _shortfall(problem: SelectionProblem, W: np.ndarray, margins: np.ndarray, sharp: bool) -> np.ndarray:
    """Bound what margins (n, T) fall short of one by; ``sharp``, in twice the precision where it may be positive."""
    shortfall = np.where(problem.rejected, 1.0 - margins + _rounding(problem, W), 0.0)
    rows, columns = np.nonzero(shortfall > 0)
    if not (sharp and len(rows)):
        return shortfall
    exact, relative = Rows.of(problem, rows, columns).margins(Pair(W, np.zeros(W.shape)))
    values = (1.0 - exact.high) - exact.low
    values += FEW * np.abs(values) + relative * frobenius(W) * problem.lengths[rows, columns]
    shortfall[rows, columns] = np.where(np.isfinite(values), values, shortfall[rows, columns])
    return shortfall


def dual_below(
    problem: SelectionProblem,
    terms: Terms,
    prior: np.ndarray,
    dual: np.ndarray,
    adjoint: np.ndarray,
    length: float,
    residual: float,
    *,
    sharp: bool = False,
    bulk: Bulk | None = None,
) -> float:
    """Bound the objective from below with multipliers that :meth:`Terms.bound` has scaled to be admissible.

    ``length`` is the dual norm of ``adjoint`` as computed, both for these multipliers or ones they round. ``adjoint``
    includes the pull of the ``bulk``, which is beside the multipliers (n, T) and known in floats only.
    """
    n, T = dual.shape
    d, dz = adjoint.shape
    size = np.abs(dual)
    if not size.any() and bulk is None:
        return 0.0
    weight = float(np.vdot(size, problem.lengths)) * (1 + gamma(n * T + 4))
    exact = sharp_adjoint(problem, dual) if sharp and bulk is None else None
    if exact is not None:
        # With the pull M = A^T dual, the cost is sum(dual) - <prior, M>.
        pull, relative = exact
        adjoint, length = pull.high, terms.norm.dual(pull.high)
        error = (relative * weight + frobenius(pull.low)) * (1 + FEW)
        high, low = two_product(prior, pull.high)
        parts = np.concatenate([dual[problem.rejected], -high.ravel(), -low.ravel()])
        total = sum_pairs(Pair(parts, np.zeros(len(parts))), 0)
        gain = float(total.high + total.low) * (1 - FEW) - error_of(len(parts), 4) * float(np.abs(parts).sum())
        gain -= frobenius(prior) * error
    else:
        # Multipliers were rounded once after A^T dual was taken.
        error = gamma(min(n + T, int(np.count_nonzero(dual))) + 8) * weight
        if bulk is not None:
            error += bulk.error * (1 + FEW)
        products = terms.cost * dual
        gain = float(products.sum()) - gamma(min(n * T, 4000) + 4) * float(np.abs(products).sum())
        gain -= gamma(d + dz + 6) * frobenius(prior) * weight
        if bulk is not None:
            gain += bulk.gain * (1.0 - math.copysign(FEW, bulk.gain))
            gain -= (bulk.error + gamma(d * dz + 8) * frobenius(adjoint)) * frobenius(prior)
    above = norm_above(terms.norm, adjoint, length, dual=True, sharp=sharp) * (1 + 2 * FEW)
    above += error * growth(terms.norm, (d, dz), True)
    if residual > 0:
        gain -= residual * float(size.sum(where=problem.tied)) * (1 + gamma(n * T))
    values = dual[problem.rejected]
    curvature = float((terms.shift * values) @ values) * (1 + gamma(n * T + 4))
    if terms.squared:
        return max(gain - 0.5 * (curvature + above * above) * (1 + FEW), 0.0)
    # The adjoint must lie in the unit ball of the dual norm: shrink by what it may stick out.
    shrink = (1.0 / above if above > 1.0 else 1.0) * (1 - FEW)
    return max(shrink * gain - 0.5 * shrink * shrink * curvature * (1 + FEW), 0.0)
