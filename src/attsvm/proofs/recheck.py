r"""Recheck of a solution in floats, with every rounding counted.

The bounds of :mod:`attsvm.proofs.certified` are recomputed in twice the working precision from W, the multipliers and
the data alone, and compared with the claim. Unlike the exact proof, this check accepts a certificate of infeasibility
that holds for data within rounding of the given data, if exact arithmetic would take long. The statement then gives the
distance.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.core.rounding import LENIENT
from attsvm.proofs.bounds import lower_bound, upper_bound
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.claim import WRONG_KIND, Claim, interval_words
from attsvm.proofs.proof import Proof, unproven

RECHECK_METHOD = "floats in twice the working precision, with bounds on rounding"


def recheck(claim: Claim) -> Proof:
    """Bound the smallest norm from W and the multipliers, or test the certificate, and compare with the claim.

    Parameters
    ----------
    claim : Claim

    Returns
    -------
    Proof
        If the claim does not hold, ``proven`` is False and ``statement`` gives the reason.

    Examples
    --------
    >>> from attsvm import SelectionProblem, proofs, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
    >>> solution = solve(problem)
    >>> claim = proofs.Claim(problem, solution.norm, solution.status, solution.certified, None, tol=1e-9)
    >>> proofs.recheck(claim).proven
    True
    """
    if claim.infeasible:
        return _recheck_certificate(claim)
    program, problem = claim.program, claim.problem
    if claim.mixed:
        return unproven(WRONG_KIND, RECHECK_METHOD)
    if claim.empty:
        return Proof(True, 0.0, 0.0, "No token is rejected, so W = 0 satisfies everything.", RECHECK_METHOD)
    W, dual = claim.certified.W, claim.certified.dual
    if W.shape != problem.shape[2:] or dual.shape != problem.mask.shape:
        return unproven(f"W has shape {W.shape} and the multipliers {dual.shape}.", RECHECK_METHOD)
    signed = program.terms.clip(dual)
    low, high, residual = 0.0, math.inf, 0.0
    with np.errstate(**LENIENT), claim.evaluating():
        if np.isfinite(W).all():
            margins = problem.apply(W)
            if not program.terms.hard or margins.min(where=problem.rejected, initial=np.inf) > 0:
                high, residual = upper_bound(program, W, margins, program.distance(W), sharp=True)
        if np.isfinite(signed).all() and signed.any():
            adjoint = problem.adjoint(signed)
            low = lower_bound(program, signed, adjoint, program.norm.dual(adjoint), residual, sharp=True)
    if not high < math.inf:
        return unproven("the smallest margin of W is not positive beyond rounding.", RECHECK_METHOD, low=low)
    if program.plain and not low > 0:
        return unproven("the multipliers bound nothing.", RECHECK_METHOD, high=high)
    if residual > claim.certified.tie_residual * 2:
        return unproven(f"tied tokens differ by {residual:.3g} of the margin.", RECHECK_METHOD, low=low, high=high)
    fault = claim.fault(low, high)
    if fault is not None:
        return unproven(fault, RECHECK_METHOD, low=low, high=high)
    statement = interval_words(program, low, high)
    if residual > 0:
        statement += f" Scores of tied tokens may differ by {residual:.3g} of the margin."
    return Proof(True, low, high, statement, RECHECK_METHOD)


def _recheck_certificate(claim: Claim) -> Proof:
    fault = claim.certificate_fault()
    if fault is not None:
        return unproven(fault, RECHECK_METHOD)
    assert claim.certificate is not None
    certificate = FarkasCertificate(claim.problem, claim.certificate.dual)
    if not certificate.verify():
        return unproven("the certificate fails its test.", RECHECK_METHOD)
    return Proof(True, math.inf, math.inf, f"No W satisfies the constraints: {certificate.statement}.", RECHECK_METHOD)
