r"""A solution checked again in float64, with an allowance for rounding.

Quick, and as good as the error bounds of the sums involved: a margin is a sum of d dz products, so it is off by at
most :math:`\gamma_k |\delta||W||z|` (Higham, *Accuracy and Stability of Numerical Algorithms*, chapter 3), and norms
by a few roundings an entry. Unlike the exact proof this trusts LAPACK's singular values to their usual accuracy, and
ties to be mended by a change of W no larger than their residual over the smallest singular value of their rows.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.core.norms import frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.proofs.certified import Certified
from attsvm.proofs.claim import Claim
from attsvm.proofs.proof import Proof, interval_statement, unproven

METHOD = "float64 with an allowance for rounding"
UNIT = 2.0**-53


def recheck(claim: Claim) -> Proof:
    """Bound the smallest norm from W and the multipliers, or test the certificate, in float64."""
    if type(claim.certified) is not Certified:
        return unproven("only hard margins without a prior have proofs.", METHOD)
    problem, norm = claim.problem, claim.norm
    if not problem.rejected.any():
        return Proof(True, 0.0, 0.0, "No token is rejected, so W = 0 satisfies everything.", METHOD)
    if claim.certificate is not None:
        if not claim.certificate.verify():
            return unproven("the certificate fails its existence test.", METHOD)
        ratio = claim.certificate.ratio
        how = f"multipliers that cancel exactly lie within a relative {ratio:.1e} of the certificate's"
        return Proof(True, math.inf, math.inf, f"No W satisfies the constraints: {how}.", METHOD)
    W, dual = claim.certified.W, claim.certified.dual
    n, T, d, dz = problem.shape
    lengths = np.empty((n, T))
    for rows, delta in problem.differences():
        lengths[rows] = np.linalg.norm(delta, axis=2)
    lengths *= np.linalg.norm(problem.queries, axis=1)[:, None]  # (n, T)
    # The entries of a matrix weigh at most sqrt(d dz) times its Frobenius norm in every norm here.
    spread = math.sqrt(d * dz)
    relative = 8 * (d * dz + 8) * UNIT

    dual = np.where(problem.rejected, np.maximum(dual, 0.0), np.where(problem.tied, dual, 0.0))
    low = 0.0
    if np.isfinite(dual).all() and dual[problem.rejected].any():
        error = 2 * (n + T + 4) * UNIT * spread * float((np.abs(dual) * lengths).sum())
        length = norm.dual(problem.adjoint(dual)) * (1 + relative) + error
        low = float(dual[problem.rejected].sum()) * (1 - 2 * n * T * UNIT) / length
    if not np.isfinite(W).all():
        return unproven("there is no W to check.", METHOD, low=low)
    move = _tie_move(problem, W, lengths)
    slack = (2 * (d + dz + 4) * UNIT * frobenius(W) + move) * lengths
    smallest = float(np.min(problem.apply(W) - slack, where=problem.rejected, initial=np.inf))
    if not smallest > 0:
        return unproven("the smallest margin of W is not positive beyond rounding.", METHOD, low=low)
    high = (norm.value(W) * (1 + relative) + spread * move) / smallest * (1 + 4 * UNIT)
    if not low > 0:
        return unproven("the multipliers bound nothing.", METHOD, high=high)
    return Proof(True, low, high, interval_statement(norm.name, low, high), METHOD)


def _tie_move(problem: SelectionProblem, W: np.ndarray, lengths: np.ndarray) -> float:
    """Length of the change of W that ties exactly what must tie."""
    tied = problem.tied & (lengths > 0)
    if not tied.any():
        return 0.0
    d, dz = W.shape
    rows = []
    for block, delta in problem.differences():
        i, t = np.nonzero(tied[block])
        queries = problem.queries[block][i]
        rows.append((delta[i, t][:, :, None] * queries[:, None, :]).reshape(len(i), d * dz))
    matrix = np.concatenate(rows) / lengths[tied][:, None]
    sigma = np.linalg.svd(matrix, compute_uv=False)
    smallest = float(sigma[sigma > max(matrix.shape) * 2 * UNIT * sigma[0]][-1])
    residual = np.abs(problem.apply(W)[tied]) / lengths[tied] + 2 * (d + dz + 4) * UNIT * frobenius(W)
    return float(np.linalg.norm(residual)) / smallest
