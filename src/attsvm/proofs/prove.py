"""Proof of a solution's claim in exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from attsvm.proofs.claim import WRONG_KIND, Claim, interval_words
from attsvm.proofs.infeasible import prove_infeasible
from attsvm.proofs.optimum import lower_bound, upper_bound
from attsvm.proofs.proof import Proof, unproven

METHOD = "exact integers and correctly rounded roots"


def prove(claim: Claim) -> Proof:
    """Prove what a solution claims.

    Parameters
    ----------
    claim : Claim
        Its W, multipliers and certificate are read as floats; nothing that they were said to satisfy is assumed.

    Returns
    -------
    Proof
        ``proven`` is False, with the reason in ``statement``, when the proof fails; no failure raises.

    Examples
    --------
    >>> from attsvm import SelectionProblem, proofs, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
    >>> solution = solve(problem)
    >>> claim = proofs.Claim(problem, solution.norm, solution.status, solution.certified, None, tol=1e-9)
    >>> proof = proofs.prove(claim)
    >>> proof.proven, type(proof.low).__name__
    (True, 'Fraction')
    """
    try:
        return _prove(claim)
    except (ArithmeticError, MemoryError, np.linalg.LinAlgError) as error:
        return unproven(f"the arithmetic failed ({error}).", METHOD)


def _prove(claim: Claim) -> Proof:
    problem, norm = claim.problem, claim.norm
    if claim.infeasible:
        fault = claim.certificate_fault()
        if fault is not None:
            return unproven(fault, METHOD)
        assert claim.certificate is not None
        how = prove_infeasible(problem, np.asarray(claim.certificate.dual, dtype=np.float64))
        if how is None:
            return unproven("no exact multipliers were found beside the certificate's.", METHOD)
        return Proof(True, math.inf, math.inf, f"No W satisfies the constraints: {how}.", METHOD)
    if claim.mixed:
        return unproven(WRONG_KIND, METHOD)
    if claim.empty:
        return Proof(True, Fraction(0), Fraction(0), "No token is rejected, so W = 0 satisfies everything.", METHOD)
    low = lower_bound(problem, norm, claim.certified.dual, claim.regularisation)
    high, reason = upper_bound(problem, norm, claim.certified.W, claim.regularisation)
    if high is None:
        return unproven(reason, METHOD, low=low)
    if low <= 0 and claim.regularisation.plain:
        return unproven("the multipliers bound nothing.", METHOD, high=high)
    fault = claim.fault(low, high)
    if fault is not None:
        return unproven(fault, METHOD, low=low, high=high)
    return Proof(True, low, high, interval_words(norm, claim.regularisation, low, high), METHOD)
