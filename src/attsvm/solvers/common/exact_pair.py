r"""Proof of a soft margin or a prior in exact arithmetic: an interval for the smallest objective.

*Above*: the objective at W, in rational numbers but for roots and powers, which are rounded up
(:mod:`attsvm.proofs.norm_bounds`). Ties are restored exactly by a small move, which costs at most its size. A hard
margin m < 1 is scaled to one, where :math:`\|W/m - W_0\| \le \|W - W_0\| + (1/m - 1)\|W\|`.

*Below*: the dual bound of :mod:`attsvm.solvers.common.setting` at the multipliers, clipped to their bounds. With
:math:`M = A^\top\lambda` exact, :math:`c^\top\lambda = \sum_{rejected}\lambda - \langle W_0, M\rangle`; half the square
of the Frobenius norm needs no root at all, any other norm divides by an upper bound on the dual norm of M.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from attsvm.core.norms import FROBENIUS
from attsvm.core.problem import SelectionProblem
from attsvm.proofs.dyadic import Dyadic
from attsvm.proofs.norm_bounds import dual_norm_above, norm_above
from attsvm.proofs.optimum import exact_adjoint, exact_margins
from attsvm.proofs.proof import Proof, unproven
from attsvm.proofs.prove import METHOD
from attsvm.solvers.common.certified_pair import CertifiedPair, certify_pair, pair_fault
from attsvm.solvers.common.setting import Terms


def prove_pair(problem: SelectionProblem, terms: Terms, prior: np.ndarray, pair: CertifiedPair, tol: float) -> Proof:
    """Bound the smallest objective exactly, and compare what a pair says with the interval.

    W and the multipliers of the pair are read as floats, nothing else of it is believed; the relative gap ``tol`` is
    promised, infinite for none.
    """
    if not (np.isfinite(pair.W).all() and np.isfinite(pair.dual).all()):
        return unproven("W or the multipliers are not finite.", METHOD)
    try:
        high = objective_above(problem, terms, prior, pair.W)
        low = objective_below(problem, terms, prior, pair.dual)
    except (ArithmeticError, MemoryError, np.linalg.LinAlgError) as error:
        return unproven(f"the arithmetic failed ({error}).", METHOD)
    if isinstance(high, str):
        return unproven(high, METHOD, low=low)
    again = certify_pair(problem, terms, prior, pair.W, pair.dual, sharp=True)
    fault = pair_fault(problem, terms, prior, pair, again, low, high, tol)
    if fault is not None:
        return unproven(fault, METHOD, low=low, high=high)
    statement = f"The smallest objective lies in [{float(low):.17g}, {float(high):.17g}]."
    return Proof(True, low, high, statement, METHOD)


def objective_above(problem: SelectionProblem, terms: Terms, prior: np.ndarray, W: np.ndarray) -> Fraction | str:
    """Bound the smallest objective from above with W (d, dz); a reason where it proves nothing."""
    exact = Dyadic.of(W)
    bounds = exact_margins(problem, exact)
    if isinstance(bounds, str):
        return bounds
    margins, move = bounds
    change = move.above(terms.norm)
    distance = norm_above(terms.norm, exact - Dyadic.of(prior)) + change
    shortfalls = [1 - margin for margin in margins if margin < 1]
    scaled = None
    if max(shortfalls, default=Fraction(0)) < 1:
        smallest = 1 - max(shortfalls, default=Fraction(0))
        scaled = _size(terms, distance + (1 / smallest - 1) * (norm_above(terms.norm, exact) + change))
    if terms.hard:
        return "the smallest margin of W is not positive." if scaled is None else scaled
    loss = sum(shortfalls, Fraction(0)) * Fraction(terms.upper) if terms.shift == 0 else Fraction(0)
    if terms.shift > 0:
        loss = sum((u * u for u in shortfalls), Fraction(0)) / (2 * Fraction(terms.shift))
    high = _size(terms, distance) + loss
    return high if scaled is None else min(high, scaled)


def objective_below(problem: SelectionProblem, terms: Terms, prior: np.ndarray, dual: np.ndarray) -> Fraction:
    """Bound the smallest objective from below with multipliers (n, T); zero when they say nothing."""
    weights = Dyadic.of(terms.clip(dual))
    if not weights.numbers.any():
        return Fraction(0)
    adjoint, origin = exact_adjoint(problem, weights), Dyadic.of(prior)
    inner = Dyadic(adjoint.numbers * origin.numbers, adjoint.exponent + origin.exponent)
    values = weights.numbers[problem.rejected]
    gain = weights.value(int(values.sum())) - inner.value(int(inner.numbers.sum()))
    if gain <= 0:
        return Fraction(0)
    curvature = Fraction(terms.shift) * weights.value(1) ** 2 * int((values * values).sum())
    if terms.norm is FROBENIUS and terms.squared:
        curvature += adjoint.value(1) ** 2 * int((adjoint.numbers * adjoint.numbers).sum())
        return max(gain - curvature / 2, Fraction(0))
    length = dual_norm_above(terms.norm, adjoint)
    if terms.squared:
        return max(gain - (curvature + length * length) / 2, Fraction(0))
    if terms.hard:
        return gain / length if length > 0 else Fraction(0)
    scale = 1 / max(length, Fraction(1))
    return max(scale * gain - scale * scale * curvature / 2, Fraction(0))


def _size(terms: Terms, length: Fraction) -> Fraction:
    return length * length / 2 if terms.squared else length
