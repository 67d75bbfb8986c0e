"""Proof of a solution's claim in exact arithmetic: what :mod:`attsvm.check` makes of the solution as a certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from attsvm import check
from attsvm.core.rounding import LENIENT
from attsvm.core.summary import counted
from attsvm.proofs.claim import WRONG_KIND, Claim, interval_words
from attsvm.proofs.proof import Proof, unproven
from attsvm.proofs.witness import data_content, question_content, witness_content

METHOD = "exact integers and correctly rounded roots"


@dataclass(frozen=True, eq=False)
class Examination:
    """A proof, and what it rests on.

    Attributes
    ----------
    proof : Proof
    parts : dict or None
        The certificate's data, problem and witness; None where these could not be written.
    proven : dict
        What the checker proves of each of its claims.
    """

    proof: Proof
    parts: dict[str, Any] | None
    proven: dict[str, Any]


def prove(claim: Claim) -> Proof:
    """Prove what a solution claims, as :mod:`attsvm.check` does from the solution's file.

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
    return examine(claim).proof


def examine(claim: Claim) -> Examination:
    """Write the certificate of a claim, and let the checker prove what it can."""
    fault = _fault(claim)
    if fault is not None:
        return Examination(unproven(fault, METHOD), None, {})
    try:
        with np.errstate(**LENIENT):
            witness = witness_content(claim)
        parts = {
            "data": data_content(claim.problem),
            "problem": question_content(claim.norm, claim.regularisation),
            "witness": witness,
        }
        certificate = check.Certificate(parts["data"], parts["problem"], parts["witness"])
        return _contradicted(certificate, parts) if claim.infeasible else _bounded(claim, certificate, parts)
    except (check.Rejected, ValueError, ArithmeticError, MemoryError) as error:
        return Examination(unproven(f"{error}.", METHOD), None, {})


def _fault(claim: Claim) -> str | None:
    """Say what is wrong with a claim before any arithmetic."""
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
    return Examination(Proof(True, math.inf, math.inf, statement, METHOD), parts, {})


def _bounded(claim: Claim, certificate: check.Certificate, parts: dict[str, Any]) -> Examination:
    low, adjoint = certificate.lower()
    try:
        high, W, radius = certificate.upper()
    except check.Rejected as error:
        return Examination(unproven(f"{error}.", METHOD, low=low), _without_W(parts), {"lower": low})
    proven = {"lower": low, "upper": high, **certificate.near(low, high, W, radius, adjoint)}
    return Examination(_compared(claim, low, high), parts, proven)


def _without_W(parts: dict[str, Any]) -> dict[str, Any]:
    return parts | {"witness": parts["witness"] | {"W": None, "move": None, "ties": None}}


def _compared(claim: Claim, low: Fraction, high: Fraction) -> Proof:
    """Compare what is claimed with what is proven."""
    if claim.empty:
        return Proof(True, low, high, "No token is rejected, so W = 0 satisfies everything.", METHOD)
    if low <= 0 and claim.regularisation.plain:
        return unproven("the multipliers bound nothing.", METHOD, high=high)
    fault = claim.fault(low, high)
    if fault is not None:
        return unproven(fault, METHOD, low=low, high=high)
    return Proof(True, low, high, interval_words(claim.norm, claim.regularisation, low, high), METHOD)
