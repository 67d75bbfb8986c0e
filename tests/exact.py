"""Bounds of the checker on the norms, W and multipliers of tests, called as the package calls them."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np

from attsvm import check
from attsvm.core.norms import Norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.status import Status
from attsvm.proofs import Claim
from attsvm.proofs.dyadic import Dyadic
from attsvm.proofs.objective import HARD_MARGIN, Regularisation
from attsvm.proofs.witness import data_content, question_content, witness_content
from attsvm.proofs.words import norm_proof, norm_roots, norm_words


def norm_above(norm: Norm, M: Dyadic, *, dual: bool = False) -> Fraction:
    """Bound the norm of an exact matrix as the checker does, with the evidence that a file would hold."""
    shape = M.numbers.shape
    rows = np.array(M.fractions(), dtype=object).reshape(shape).tolist()
    top = max(map(abs, M.fractions()))
    # Evidence is found in floats, in whose range every test's matrix lies once it is divided by its largest entry.
    rounded = np.array([[float(x / top) if top else 0.0 for x in row] for row in rows])
    words = check.read_norm(norm_words(norm), shape, iter(norm_roots(norm)))
    evidence = norm_proof(norm, rounded, dual=dual)
    return top * check.norm_above(
        words, check.Matrix.of([[x / (top or 1) for x in row] for row in rows]), evidence, dual=dual
    )


def dual_norm_above(norm: Norm, M: Dyadic) -> Fraction:
    return norm_above(norm, M, dual=True)


def certificate(
    problem: SelectionProblem, norm: Norm, W: np.ndarray, dual: np.ndarray, regularisation: Regularisation = HARD_MARGIN
) -> check.Certificate:
    """Read the certificate of any W and multipliers, proven or not."""
    pair: Any = SimpleNamespace(W=W, dual=dual, objective=0.0)
    claim = Claim(problem, norm, Status.UNDECIDED, pair, None, 1e-9, regularisation)
    return check.Certificate(data_content(problem), question_content(norm, regularisation), witness_content(claim))


def lower_bound(
    problem: SelectionProblem, norm: Norm, dual: np.ndarray, regularisation: Regularisation = HARD_MARGIN
) -> Fraction:
    """Bound the smallest norm, or objective, from below with multipliers (n, T)."""
    nothing = np.full(problem.shape[2:], math.nan)
    return certificate(problem, norm, nothing, np.asarray(dual, dtype=np.float64), regularisation).lower()[0]


def upper_bound(
    problem: SelectionProblem, norm: Norm, W: np.ndarray, regularisation: Regularisation = HARD_MARGIN
) -> tuple[Fraction | None, str]:
    """Bound the smallest norm, or objective, from above with W (d, dz); None and a reason when it proves nothing."""
    try:
        return certificate(problem, norm, W, np.zeros(problem.mask.shape), regularisation).upper()[0], ""
    except (check.Rejected, ValueError) as error:
        return None, str(error)
