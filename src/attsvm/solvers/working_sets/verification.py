"""What a solution to a problem in pieces claims, checked again on all shards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from attsvm.core.rounding import gamma
from attsvm.core.status import Status
from attsvm.proofs.certified import LENIENT, proven_gap
from attsvm.proofs.claim import AGREEMENT
from attsvm.proofs.proof import Proof, unproven
from attsvm.proofs.recheck import METHOD
from attsvm.solvers.working_sets.collection import Collection
from attsvm.solvers.working_sets.pool import Pool
from attsvm.solvers.working_sets.pricing import Request
from attsvm.solvers.working_sets.primal import Primal
from attsvm.solvers.working_sets.restriction import Restriction

if TYPE_CHECKING:
    from attsvm.solvers.working_sets.solution import ShardedSolution


def recheck_shards(solution: ShardedSolution, pool: Pool) -> Proof:
    """Bound the smallest objective from W, the multipliers and the shards alone, and hold the claim against that.

    Parameters
    ----------
    solution : ShardedSolution
    pool : Pool

    Returns
    -------
    Proof
    """
    problem, supports = solution.problem, solution.supports
    shards = Collection(pool, len(problem.shards), problem.shape[2:], solution.norm, solution.regularisation)
    restriction = None
    if len(supports):
        table = shards.brought(np.column_stack([supports.shard, supports.query, supports.token]))
        restriction = Restriction.of(table, shards.norm, shards.regularisation)
    if solution.status is Status.INFEASIBLE or solution.certificate is not None:
        return _recheck_certificate(solution, restriction)
    W = solution.W
    if W.shape != shards.shape or not (np.isfinite(W).all() and np.isfinite(supports.multiplier).all()):
        return unproven("W or the multipliers are not finite.", METHOD)
    with np.errstate(**LENIENT):
        request = Request(W, 0.0, 1, 1, hinge=shards.hinge, hard=shards.hard, sharp=True)
        if restriction is None:
            answer = shards.priced(request, None)
            if answer.rejected > answer.empty * (not shards.hard) or (shards.prior != W).any():
                return unproven("there are no multipliers.", METHOD)
            low = 0.0 if shards.hard else float(shards.regularisation.C or 0.0) * answer.empty
            primal = Primal(W, 0.0, low, low, 0.0)
        else:
            primal, answer = shards.judged(W, restriction, request)
            if not primal.upper_bound < math.inf:
                return unproven("the smallest margin of W is not positive beyond rounding.", METHOD)
            residual = primal.tie_residual
            low = shards.bounded(restriction, supports.multiplier, supports.anchor, answer.empty, residual).lower_bound
    fault, high = _fault(solution, primal, low), primal.upper_bound
    if fault is not None:
        return unproven(fault, METHOD, low=low, high=high)
    return Proof(True, low, high, f"The smallest objective lies in [{low:.17g}, {high:.17g}].", METHOD)


def _fault(solution: ShardedSolution, primal: Primal, low: float) -> str | None:
    """Name what of the claim the bounds do not bear out; None if nothing."""
    high = primal.upper_bound
    # W was scaled and multipliers rounded since: a few roundings of sums over the entries of W.
    agreement = AGREEMENT + gamma(8 * (solution.W.size + 8)) + solution.norm.dual_resolution
    prior = solution.regularisation.prior
    size = solution.norm.value(solution.W if prior is None else solution.W - prior)
    if not abs(solution.objective - size) <= agreement * size:
        return f"the norm is said to be {solution.objective:.17g} where it is {size:.17g}."
    # With losses, pairs of doubles may say less of W than doubles did, and its own upper bound not more.
    least = size if solution.regularisation.C is None else primal.objective
    if not least * (1 - agreement) <= solution.primal <= solution.upper_bound * (1 + agreement):
        return f"the objective at W is said to be {solution.primal:.17g} where it is {least:.17g}."
    if not (solution.lower_bound <= low * (1 + agreement) and solution.upper_bound * (1 + agreement) >= high):
        said = f"[{solution.lower_bound:.17g}, {solution.upper_bound:.17g}]"
        return f"{said} is said where [{low:.17g}, {high:.17g}] is proven."
    promise = solution.tol if solution.status is Status.OPTIMAL else math.inf
    gap = proven_gap(low, high, primal.tie_residual)
    if not max(gap, solution.gap) <= promise + agreement:
        return f"the gap is {max(gap, solution.gap):.3g} where an optimum promises {promise:.3g}."
    return None


def _recheck_certificate(solution: ShardedSolution, restriction: Restriction | None) -> Proof:
    """Test the certificate, and that its constraints are those of the shards."""
    certificate = solution.certificate
    if certificate is None or solution.status is not Status.INFEASIBLE:
        return unproven("a certificate and the status INFEASIBLE were expected together.", METHOD)
    if restriction is None:
        return unproven("the certificate's constraints are not among the supports.", METHOD)
    theirs, ours = certificate.problem, restriction.problem
    same = all(
        np.array_equal(getattr(theirs, name), getattr(ours, name)) for name in ("tokens", "queries", "selected", "mask")
    )
    if not same:
        return unproven("the certificate's constraints are not those of the shards.", METHOD)
    if not certificate.verify():
        return unproven("the certificate proves nothing.", METHOD)
    return Proof(True, math.inf, math.inf, "No W satisfies the constraints.", METHOD)
