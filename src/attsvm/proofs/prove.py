"""Proof of a solution's claim in exact arithmetic: its certificate is written and checked by :mod:`attsvm.check`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from attsvm import check
from attsvm.core.rounding import LENIENT
from attsvm.platform.summary import counted
from attsvm.proofs.claim import WRONG_KIND, Claim, interval_words
from attsvm.proofs.proof import Proof, unproven
from attsvm.proofs.witness import data_content, question_content, witness_content

PROOF_METHOD = "exact integers and correctly rounded roots"


@dataclass(frozen=True, eq=False)
class Examination:
    """A proof and its evidence.

    Attributes
    ----------
    parts : dict or None
        The certificate's data, problem and witness; None if these could not be written.
    proven : dict
        The results that the checker proves for each claim.
    """

    proof: Proof
    parts: dict[str, Any] | None
    proven: dict[str, Any]


def prove(claim: Claim) -> Proof:
    """Prove a solution's claim, as :mod:`attsvm.check` does from the solution's file.

    Parameters
    ----------
    claim : Claim
        W, multipliers and certificate are read as floats; none of their claimed properties is assumed.

    Returns
    -------
    Proof
        If the proof fails, ``proven`` is False and ``statement`` gives the reason; failure does not raise.

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
    return examine(claim).proof


def examine(claim: Claim) -> Examination:
    """Write the certificate of a claim, and let the checker prove it."""
    fault = _fault(claim)
    if fault is not None:
        return Examination(unproven(fault, PROOF_METHOD), None, {})
    try:
        with np.errstate(**LENIENT), claim.evaluating():
            witness = witness_content(claim)
        parts = {
            "data": data_content(claim.problem),
            "problem": question_content(claim.norm, claim.regularisation),
            "witness": witness,
        }
        certificate = check.Certificate(parts["data"], parts["problem"], parts["witness"])
        return _contradicted(certificate, parts) if claim.infeasible else _bounded(claim, certificate, parts)
    except (check.Rejected, ValueError, ArithmeticError, MemoryError) as error:
        return Examination(unproven(f"{error}.", PROOF_METHOD), None, {})


def _fault(claim: Claim) -> str | None:
    """Return what is wrong with a claim before any arithmetic."""
    if claim.infeasible:
        return claim.certificate_fault()
    if claim.mixed:
        return WRONG_KIND
    W, dual = claim.certified.W, claim.certified.dual
    if W.shape != claim.problem.shape[2:] or dual.shape != claim.problem.mask.shape:
        return f"W has shape {W.shape} and the multipliers {dual.shape}."
    return None


def _contradicted(certificate: check.Certificate, parts: dict[str, Any]) -> Examination:
    certificate.contradiction()
    count = sum(x not in ("0", "-0") for row in parts["witness"]["farkas"] for x in row)
    how = "cancel exactly" if parts["witness"]["inverse"] is None else "next to the certificate's cancel exactly"
    statement = f"No W satisfies the constraints: {counted(count, 'multiplier')} {how}."
    return Examination(Proof(True, math.inf, math.inf, statement, PROOF_METHOD), parts, {})


def _bounded(claim: Claim, certificate: check.Certificate, parts: dict[str, Any]) -> Examination:
    low, adjoint = certificate.lower()
    try:
        high, W, radius = certificate.upper()
    except check.Rejected as error:
        return Examination(unproven(f"{error}.", PROOF_METHOD, low=low), _without_W(parts), {"lower": low})
    proven = {"lower": low, "upper": high, **certificate.near(low, high, W, radius, adjoint)}
    return Examination(_compared(claim, low, high), parts, proven)


def _without_W(parts: dict[str, Any]) -> dict[str, Any]:
    return parts | {"witness": parts["witness"] | {"W": None, "move": None, "ties": None}}


def _compared(claim: Claim, low: Fraction, high: Fraction) -> Proof:
    """Compare the claimed interval with the proven one."""
    if claim.empty:
        return Proof(True, low, high, "No token is rejected, so W = 0 satisfies everything.", PROOF_METHOD)
    if low <= 0 and claim.regularisation.plain:
        return unproven("the multipliers bound nothing.", PROOF_METHOD, high=high)
    fault = claim.fault(low, high)
    if fault is not None:
        return unproven(fault, PROOF_METHOD, low=low, high=high)
    return Proof(True, low, high, interval_words(claim.program, low, high), PROOF_METHOD)
