r"""The finite part of a trained W: the smallest matrix with prescribed score differences.

Where several tokens of a query keep attention, their logits differ by :math:`\log(s_{it}/s_{i\tau})` for good. The part
of W that says so is the smallest matrix with

.. math:: (x_{i\alpha_i} - x_{it})^\top W z_i = r_{it} \quad\text{for every tied token t of query i}

(arXiv 2308.16898, Section 6, W^fin). In the Frobenius norm that is a least-squares solve: W is the minimum-norm
solution of linear equations, and lies in the span of the tied :math:`\delta_{it}z_i^\top`.

In the nuclear norm the dual is :math:`\max r^\top\lambda` over :math:`\|A^\top\lambda\|_{op} \le 1`. With :math:`M =
A^\top\lambda` and the barrier :math:`-\log\det(I - M^\top M)` of that ball, Newton follows the maximisers of
:math:`t\,r^\top\lambda + \log\det(I - M^\top M)` as t grows. On that path :math:`W = \frac2t (I-MM^\top)^{-1} M` solves
the equations, and its nuclear norm exceeds :math:`r^\top\lambda` by at most :math:`2\min(d,d_z)/t`. The gap reported is
computed from W and the multipliers, whatever the iteration did.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import Reduced, reduce
from attsvm.core.types import FactorNorm

NORMS = ("frobenius", "nuclear")

# The weight of the objective grows by this after each centring. Past the last one, 1 - sigma is mostly rounding.
GROWTH = 100.0
LAST = 1e8
MAX_STEPS = 400
# Newton decrement at which a point is close enough to the path to move on, and to stop.
CENTRED = 0.1
FINISHED = 1e-6
POLISH = 8


@dataclass(frozen=True, eq=False)
class FinitePart:
    """The smallest matrix with prescribed score differences.

    Attributes
    ----------
    W : ndarray, shape (d, dz)
        For inconsistent equations, the smallest least-squares solution.
    residual : float
        Largest deviation from a prescribed difference.
    gap : float
        Certified relative gap of the norm; 0 for the Frobenius norm, whose solve is direct.
    """

    W: np.ndarray
    residual: float
    gap: float


def finite_part(problem: SelectionProblem, differences: np.ndarray, norm: FactorNorm = "frobenius") -> FinitePart:
    """Find the smallest matrix whose tied tokens trail the reference token by given amounts.

    Parameters
    ----------
    problem : SelectionProblem
        Its tied tokens are the equations; rejected tokens play no part.
    differences : ndarray, shape (n, T)
        Score of the reference token less the token's, read at tied tokens.
    norm : {"frobenius", "nuclear"}

    Raises
    ------
    ValueError
        If `norm` is another one.
    """
    if norm not in NORMS:
        raise ValueError(f"norm is {norm!r}; 'frobenius' or 'nuclear' was expected for a finite part.")
    _, _, d, dz = problem.shape
    if not problem.tied.any():
        return FinitePart(np.zeros((d, dz)), 0.0, 0.0)
    ties = SelectionProblem(
        problem.tokens,
        problem.queries,
        problem.selected,
        mask=problem.selected,
        sequence=problem.sequence,
    )
    reduced = reduce(ties)
    where = np.nonzero(reduced.tied)
    target = reduced.gather(differences)[where]  # (m,)
    system = reduced.constraint_rows(*where)
    start = np.linalg.lstsq(system, target, rcond=None)[0]
    residual = float(np.abs(system @ start - target).max())
    if norm == "frobenius" or not start.any():
        return FinitePart(reduced.lift(start.reshape(reduced.shape)), residual, 0.0)
    # Equations that the data cannot meet exactly are met as well as least squares meets them.
    W, gap = _nuclear(system, system @ start, reduced, start)
    return FinitePart(reduced.lift(W), float(np.abs(system @ W.ravel() - target).max()), gap)


def _nuclear(system: np.ndarray, wanted: np.ndarray, reduced: Reduced, start: np.ndarray) -> tuple[np.ndarray, float]:
    """Minimise the nuclear norm under ``system @ vec(W) = wanted``; return W (p, r) and its certified gap."""
    _, sigma, right = np.linalg.svd(system, full_matrices=False)
    basis = right[sigma > max(system.shape) * np.finfo(float).eps * sigma[0]]  # orthonormal rows of the system
    target = basis @ start
    p, r = reduced.shape
    rows = basis.reshape(-1, p, r)
    scale = float(np.linalg.norm(target))
    target = target / scale
    multipliers, t = np.zeros(len(target)), 1.0
    for _ in range(MAX_STEPS):
        barrier = _Barrier(np.tensordot(multipliers, rows, axes=1), rows)
        ascent = t * target - 2.0 * np.tensordot(rows, barrier.gradient_matrix, axes=2)
        step = np.linalg.lstsq(barrier.hessian, ascent, rcond=None)[0]
        decrement = float(np.sqrt(max(ascent @ step, 0.0)))
        if t >= LAST and decrement < FINISHED:
            break
        if t < LAST and decrement < CENTRED:
            t *= GROWTH
            continue
        # Damped Newton on a self-concordant function stays inside and decreases it.
        multipliers = multipliers + step / (1.0 + decrement if decrement > 0.25 else 1.0)
    central = (2.0 / t) * _Barrier(np.tensordot(multipliers, rows, axes=1), rows).gradient_matrix
    best, gap = central, np.inf
    for near, dual in ((central, multipliers), _on_face(central, multipliers, rows, target)):
        # Whatever the arithmetic left of the equations is put right, then both sides are measured.
        W = near + ((target - basis @ near.ravel()) @ basis).reshape(p, r)
        length = float(np.linalg.norm(np.tensordot(dual, rows, axes=1), 2))
        lower = float(target @ dual) / length if length > 0 else 0.0
        excess = float(np.linalg.svd(W, compute_uv=False).sum()) / lower - 1.0 if lower > 0 else np.inf
        if excess < gap:
            best, gap = W, excess
    return best * scale, gap


def _on_face(
    W: np.ndarray, multipliers: np.ndarray, rows: np.ndarray, target: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    r"""Newton on the optimality conditions at fixed rank: :math:`MQ = K`, :math:`M^\top K = Q`, equations on K Q^T.

    The rank is that of the face: singular values of W above the distance of those of M from one. Factors are determined
    up to a rotation; the minimum-norm step leaves it alone.
    """
    left, sigma, right = np.linalg.svd(W, full_matrices=False)
    slack = 1.0 - np.linalg.svd(np.tensordot(multipliers, rows, axes=1), compute_uv=False)
    rank = max(1, int((sigma / sigma[0] > slack).sum()))
    p, r = W.shape
    K = left[:, :rank] * np.sqrt(sigma[:rank])  # (p, rank)
    Q = right[:rank].T * np.sqrt(sigma[:rank])  # (r, rank)
    eye = np.eye(rank)
    for _ in range(POLISH):
        M = np.tensordot(multipliers, rows, axes=1)
        wrong = np.concatenate(
            [(M @ Q - K).ravel(), (M.T @ K - Q).ravel(), np.tensordot(rows, K @ Q.T, axes=2) - target]
        )
        adjoint, pushed = rows @ Q, rows.swapaxes(1, 2) @ K  # (m, p, rank), (m, r, rank)
        m = len(rows)
        slope = np.block(
            [
                [-np.eye(p * rank), np.kron(M, eye), adjoint.reshape(m, -1).T],
                [np.kron(M.T, eye), -np.eye(r * rank), pushed.reshape(m, -1).T],
                [adjoint.reshape(m, -1), pushed.reshape(m, -1), np.zeros((m, m))],
            ]
        )
        step = np.linalg.lstsq(slope, -wrong, rcond=None)[0]
        K = K + step[: p * rank].reshape(p, rank)
        Q = Q + step[p * rank : (p + r) * rank].reshape(r, rank)
        multipliers = multipliers + step[(p + r) * rank :]
    return K @ Q.T, multipliers


class _Barrier:
    """-log det(I - M^T M) at M, its gradient and Hessian along ``rows`` (m, p, r)."""

    def __init__(self, M: np.ndarray, rows: np.ndarray) -> None:
        left, self.sigma, right = np.linalg.svd(M)
        p, r = M.shape
        thin = len(self.sigma)
        room = (1.0 - self.sigma) * (1.0 + self.sigma)
        across, down = np.ones(p), np.ones(r)
        across[:thin] = down[:thin] = 1.0 / room
        pull = self.sigma / room  # eigenvalues of (I - M M^T)^-1 M
        self.gradient_matrix = (left[:, :thin] * pull) @ right[:thin]
        rotated = left.T @ rows @ right.T  # (m, p, r)
        flat = rotated.reshape(len(rows), -1)
        curved = (rotated * across[:, None] * down).reshape(len(rows), -1)
        square = rotated[:, :thin, :thin]
        crossed = (square * pull[:, None] * pull).swapaxes(1, 2).reshape(len(rows), -1)
        self.hessian = 2.0 * (flat @ curved.T + square.reshape(len(rows), -1) @ crossed.T)
