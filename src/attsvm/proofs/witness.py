r"""Evidence from which :mod:`attsvm.check` proves a claim: the problem in rational numbers, and witnesses.

The floats of the data, W and the multipliers are rational numbers and are written as such. Two witnesses are added
because floats are only approximate. The first is the change that moves W onto its ties
(:mod:`attsvm.proofs.tie_moves`). The second is integer multipliers that cancel, or a right inverse of their equations,
which proves that such multipliers exist (:mod:`attsvm.proofs.infeasible`).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from attsvm.core.double_double import Rows
from attsvm.core.error_free import Pair
from attsvm.core.norms import Norm
from attsvm.core.problem import SelectionProblem
from attsvm.proofs.certified import SAFE_NORM
from attsvm.proofs.claim import Claim
from attsvm.proofs.infeasible import cancelling_inverse, exact_multipliers
from attsvm.proofs.objective import Regularisation
from attsvm.proofs.tie_moves import tie_witness
from attsvm.proofs.words import norm_proof, norm_roots, norm_words, singular_vectors, table

# Empty witness: each claim fills the parts that it needs.
NOTHING: dict[str, Any] = dict.fromkeys(("W", "move", "ties", "dual", "farkas", "inverse"))


def data_content(problem: SelectionProblem) -> dict[str, Any]:
    """Write tokens, queries, selection, mask and sequences."""
    return {
        "tokens": [table(rows) for rows in problem.tokens],
        "queries": table(problem.queries),
        "selected": (problem.selected & problem.mask).astype(int).tolist(),
        "mask": problem.mask.astype(int).tolist(),
        "sequence": problem.sequence.tolist(),
    }


def question_content(norm: Norm, asked: Regularisation) -> dict[str, Any]:
    """Write the minimised objective; raise ValueError if the checker does not know the norm."""
    return {
        "norm": norm_words(norm),
        "C": _price_words(asked.C),
        "loss": asked.loss,
        "prior": None if asked.prior is None else table(asked.prior),
    }


def _price_words(C: float | np.ndarray | None) -> str | list[str] | None:
    if isinstance(C, np.ndarray):
        return [str(Fraction(price)) for price in C.tolist()]
    return None if C is None else str(Fraction(C))


def witness_content(claim: Claim) -> dict[str, Any]:
    """Write the checker's evidence: W and multipliers, or multipliers that cancel.

    Raises ValueError if there are too many ties to solve for, or no multipliers that cancel were found.
    """
    proof = _contradiction(claim) if claim.infeasible else _optimum(claim)
    return NOTHING | {"roots": norm_roots(claim.norm), "vectors": dict.fromkeys(("V", "W", "adjoint"))} | proof


def _optimum(claim: Claim) -> dict[str, Any]:
    problem, norm, W = claim.problem, claim.norm, claim.certified.W
    given = np.where(np.isfinite(claim.certified.dual).all(), claim.certified.dual, 0.0)
    clipped = claim.program.terms.clip(given)
    # If clipping changes no number, keep the given multipliers with the signs of their zeros.
    dual = given if (clipped == given).all() else clipped
    vectors: dict[str, Any] = {"V": None, "W": None, "adjoint": norm_proof(norm, _adjoint(problem, dual), dual=True)}
    out: dict[str, Any] = {"dual": table(dual), "vectors": vectors}
    if np.isfinite(W).all() and np.isfinite(claim.certified.objective):
        vectors |= {"W": singular_vectors(W), "V": norm_proof(norm, W - claim.program.origin)}
        move, ties = tie_witness(problem, W)
        out |= {"W": table(W), "move": move, "ties": ties}
    return out


def _adjoint(problem: SelectionProblem, dual: np.ndarray) -> np.ndarray:
    """Return A^T dual (d, dz), from which its norm is bounded, scaled if it leaves the range of floats."""
    rows, columns = np.nonzero(dual)
    if not len(rows):
        return np.zeros(problem.shape[2:])
    weights, constraints = dual[rows, columns], Rows.of(problem, rows, columns)
    unit = 2.0 ** np.frexp(np.abs(weights).max())[1]
    scaled = constraints.adjoint(Pair(weights / unit, np.zeros(len(weights))), scaled=True)[0].rounded()
    adjoint = scaled * unit * constraints.scale[0] * constraints.scale[1]
    return adjoint if SAFE_NORM < np.abs(adjoint).max() < math.inf else scaled


def _contradiction(claim: Claim) -> dict[str, Any]:
    dual = None if claim.certificate is None else np.asarray(claim.certificate.dual, dtype=np.float64)
    exact = None if dual is None else exact_multipliers(claim.problem, dual)
    if exact is not None:
        return {"farkas": [[str(x) for x in row] for row in exact.tolist()]}
    near = None if dual is None else cancelling_inverse(claim.problem, dual)
    if near is None:
        raise ValueError("multipliers that cancel exactly were not found near the certificate's")
    return {"farkas": table(near[0]), "inverse": table(near[1])}
