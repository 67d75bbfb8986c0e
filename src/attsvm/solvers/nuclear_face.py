r"""Newton on the face of the nuclear-norm ball that holds the solution.

At the optimum the k singular values of :math:`M = A^\top\lambda` that equal one carry W: with singular vectors U, V,
:math:`W = U S V^\top`, S positive definite, and a set J of constraints is active. Writing :math:`W = KQ^\top`, the
conditions

.. math:: MQ = K, \quad M^\top K = Q, \quad a_j(KQ^\top) = c_j \; (j \in J)

are smooth, and Newton on them converges quadratically once k and J are right. The Hessian
:math:`Z = [[I, -M], [-M^\top, I]]` is diagonal in the singular vectors of M; its positive part is eliminated, which
leaves a symmetric system in the |J| multipliers and the k(k+1)/2 entries of S (the rotations of K, Q among themselves
are the gauge and never enter). Its blocks are entrywise products of Gram matrices, so the cost does not see the p r
entries of W.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, LinAlgWarning, get_lapack_funcs, lu_factor, lu_solve
from scipy.optimize import nnls

from attsvm.norms import NUCLEAR, spectral
from attsvm.reduction import Reduced
from attsvm.solvers.control import Control
from attsvm.solvers.gauge import report

NEWTON_STEPS = 8
FACE_ROUNDS = 8
MEASURE_FLOOR = 1e-3
# A spectrum of S this far below zero, relative to its top, means that the rank is too high; anything nearer may be a
# true zero (strict complementarity fails) and Newton goes on.
NEGATIVE = 1e-6
# Margins this close to one are active when the multipliers are recovered from W alone.
ACTIVE = 1e-8
# Systems nearer to singular than this hold dependent constraints (well-posed ones seen are above 1e-9). Those that
# depend on each other only at the solution leave earlier systems merely ill-conditioned, by as much as the iterates are
# off: then Newton is tried on the well-conditioned part, and the multipliers are recovered from the W it finds.
CUTOFFS = (1e-12, 1e-5)
# A face that wants more than this part of its constraints changed was not identified: better data are needed.
MENDABLE = 0.15


@dataclass
class Face:
    """A guess of the active constraints and the rank.

    Attributes
    ----------
    active : ndarray of bool, shape (n, T)
    rank : int
    """

    active: np.ndarray
    rank: int


def identify(reduced: Reduced, W: np.ndarray, dual: np.ndarray) -> Face | None:
    """Read the face off a nearly optimal pair: whichever of the two complementary quantities is larger is not zero.

    W is taken at its own scale: the constraints of ``dual``'s support are to have smallest margin one.
    """
    pulled = reduced.adjoint(dual)
    length = spectral(pulled)
    if length <= 0:
        return None
    # Multipliers of the unit dual ball, times the constraint's length, are free of units, as margins are.
    strength = reduced.lengths * dual / length
    active = reduced.rejected & (strength > reduced.apply(W) - 1.0) | reduced.tied
    sigma_w = np.linalg.svd(W, compute_uv=False)
    sigma_m = np.linalg.svd(pulled, compute_uv=False) / length
    rank = int(np.count_nonzero(sigma_w / sigma_w[0] > 1.0 - sigma_m))
    return Face(active, max(rank, 1)) if active.any() else None


def refine(reduced: Reduced, W: np.ndarray, dual: np.ndarray, control: Control) -> bool:
    """Run Newton from a nearly optimal pair, mending the face where it shows itself a little wrong.

    Parameters
    ----------
    reduced : Reduced
    W : ndarray, shape (p, r)
        With smallest margin one on the support of ``dual``.
    dual : ndarray, shape (n, T)
    control : Control

    Returns
    -------
    bool
        Whether the gap closed (or the run is to stop); the best pair is with ``control``.
    """
    face = identify(reduced, W, dual)
    if face is None:
        return False
    dual = dual / spectral(reduced.adjoint(dual))
    return any(_mend(reduced, W, dual, face, control, cutoff) for cutoff in CUTOFFS)


def _mend(reduced: Reduced, W: np.ndarray, dual: np.ndarray, face: Face, control: Control, cutoff: float) -> bool:
    """Newton on a face, dropping and adding constraints and rank until it is right."""
    for _ in range(FACE_ROUNDS):
        outcome = _newton(reduced, W, dual, face, control, cutoff)
        if control.solved or control.stopped:
            return True
        if outcome is None:
            return False
        found_W, found_dual, singular = outcome
        if _recover_multipliers(reduced, found_W, singular, control):
            return True
        wrong = face.active & reduced.rejected & (found_dual < 0)
        violated = reduced.rejected & ~face.active & (reduced.apply(found_W) < 1.0 - 1e-12)
        spent = int(np.count_nonzero(singular < -NEGATIVE * singular[-1]))
        changes = int(wrong.sum() + violated.sum())
        if changes + spent == 0 or changes > max(6, MENDABLE * face.active.sum()) or spent >= max(2, face.rank):
            return False
        face = Face((face.active & ~wrong) | violated, max(face.rank - spent, 1))
        if not face.active.any():
            return False
    return False


def _recover_multipliers(reduced: Reduced, W: np.ndarray, singular: np.ndarray, control: Control) -> bool:
    """Find nonnegative multipliers for a W that satisfies every constraint; True when they close the gap.

    When active constraints depend on each other the multipliers are not unique and those of Newton's method may be
    negative. For W = U S V^T the condition on M is linear on the tangent space: M V = U and M^T U = V.
    """
    margins = reduced.apply(W)
    smallest = reduced.min_margin(margins)
    if smallest < 1.0 - ACTIVE:
        return False
    rows, columns = np.nonzero(reduced.rejected & (margins < smallest * (1.0 + ACTIVE)) | reduced.tied)
    free = reduced.tied[rows, columns]
    k = max(1, int(np.count_nonzero(singular > NEGATIVE * singular[-1])))
    U, _, Vt = np.linalg.svd(W)
    token, query = reduced.delta[rows, columns] @ U, reduced.queries[rows] @ Vt.T
    inner = token[:, :k, None] * query[:, None, :]  # (J, k, r)
    outer = token[:, k:, None] * query[:, None, :k]  # (J, p - k, k)
    matrix = np.concatenate([inner.reshape(len(rows), -1), outer.reshape(len(rows), -1)], axis=1).T
    target = np.zeros(len(matrix))
    target[: k * query.shape[1]] = np.eye(k, query.shape[1]).ravel()
    try:
        found, _ = nnls(np.hstack([matrix, -matrix[:, free]]), target)
    except RuntimeError:  # its iteration limit
        return False
    values = found[: len(rows)]
    values[free] -= found[len(rows) :]
    dual = np.zeros(margins.shape)
    dual[rows, columns] = values
    return report(reduced, NUCLEAR, W, dual, control)


def _newton(
    reduced: Reduced, W: np.ndarray, dual: np.ndarray, face: Face, control: Control, cutoff: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Newton steps on one face; returns W, multipliers and the spectrum of S, or None when the steps blow up."""
    rows, columns = np.nonzero(face.active)
    delta, queries = reduced.delta[rows, columns], reduced.queries[rows]
    cost = np.where(reduced.tied[rows, columns], 0.0, 1.0)
    lam = dual[rows, columns]
    singular = np.ones(face.rank)
    previous = np.inf
    for step in range(NEWTON_STEPS):
        pulled = delta.T @ (lam[:, None] * queries)
        U, sigma, Vt = np.linalg.svd(pulled)
        if not np.isfinite(sigma).all():
            return None
        k = face.rank
        inner = U[:, :k].T @ W @ Vt[:k].T
        singular, turn = np.linalg.eigh(0.5 * (inner + inner.T))
        full = np.zeros(reduced.rejected.shape)
        full[rows, columns] = lam
        W = (U[:, :k] @ turn * singular) @ (Vt[:k].T @ turn).T
        if report(reduced, NUCLEAR, W, full, control):
            return W, full, singular
        if singular[-1] <= 0 or (step and singular[0] < -NEGATIVE * singular[-1]):
            return W, full, singular
        change = newton_step(
            delta, queries, cost, lam, (U, Vt.T), sigma, turn, np.maximum(singular, 1e-12 * singular[-1]), cutoff
        )
        if change is None:
            return None
        W, d_lam = change
        size = float(np.abs(d_lam).max() / max(np.abs(lam).max(), 1e-300))
        lam = lam + d_lam
        if not np.isfinite(size) or size > 1e3:
            return None
        if size < 1e-15 or (step > 3 and size > 0.5 * previous):
            break
        previous = size
    full = np.zeros(reduced.rejected.shape)
    full[rows, columns] = lam
    return W, full, singular


def newton_step(
    delta: np.ndarray,
    queries: np.ndarray,
    cost: np.ndarray,
    lam: np.ndarray,
    bases: tuple[np.ndarray, np.ndarray],
    sigma: np.ndarray,
    turn: np.ndarray,
    singular: np.ndarray,
    cutoff: float,
    shift: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray] | None:
    """One Newton step: the new W, and the change of the multipliers.

    Parameters
    ----------
    delta, queries : ndarray, shapes (J, p) and (J, r)
    cost, lam : ndarray, shape (J,)
        Right-hand sides and current multipliers.
    bases : tuple of ndarray, shapes (p, p) and (r, r)
        All singular vectors of M, in columns.
    sigma : ndarray
        Its singular values.
    turn : ndarray, shape (k, k)
        Turns the leading k pairs so that S becomes diagonal.
    singular : ndarray, shape (k,)
        That diagonal.
    cutoff : float
        Relative size below which singular values of the system count as zero.
    shift : float or ndarray, shape (J,)
        Margins may fall short by this times the multiplier (soft margins with squared loss).
    """
    k, active = len(singular), len(cost)
    Uk, Vk = bases[0][:, :k] @ turn, bases[1][:, :k] @ turn
    Z11, Z12, Z22 = _positive_part_inverse(bases, sigma, Uk, Vk)
    a, b = delta @ Uk, queries @ Vk  # (J, k)
    c = np.sqrt(2.0 * singular)  # K = Uk diag(c)/sqrt(2), Q likewise
    cross = ((delta @ Z12) @ queries.T) * ((b * c**2) @ a.T)
    tokens = ((delta @ Z11) @ delta.T) * ((b * c**2) @ b.T)
    schur = 0.5 * (tokens + cross + cross.T + ((queries @ Z22) @ queries.T) * ((a * c**2) @ a.T))

    schur[np.diag_indices(active)] += shift

    # The part of (K, Q) along the kernel of Z is (Uk; Vk) Y / sqrt(2). Directions Y = diag(c) skew only rotate K and
    # Q; their complement is spanned by E_ii and by weight E_ij + other E_ji with weight/other = c_j/c_i.
    i, j = np.triu_indices(k)
    length = np.hypot(c[i], c[j])
    weight = np.where(i == j, 1.0, c[j] / length)
    other = np.where(i == j, 0.0, c[i] / length)
    border = 0.5 * (a[:, i] * b[:, j] + b[:, i] * a[:, j]) * (weight * c[j] + other * c[i])
    basis = np.zeros((len(i), k, k))
    basis[np.arange(len(i)), i, j] = weight
    basis[np.arange(len(i)), j, i] += other
    curvature = turn.T @ ((1.0 - sigma[:k, None]) * turn)
    kernel = basis.reshape(len(i), -1) @ np.matmul(curvature, basis).reshape(len(i), -1).T

    system = np.block([[schur, border], [border.T, -kernel]])
    margin = np.einsum("ka,ka,a->k", a, b, singular)
    weight_of = np.maximum(np.abs(lam) / max(float(np.abs(lam).max()), 1e-300), MEASURE_FLOOR)
    solution = _solve(
        system,
        np.concatenate([cost + margin - shift * lam, np.zeros(len(i))]),
        np.append(weight_of, np.ones(len(i))),
        cutoff,
    )
    if solution is None:
        return None
    d_lam, Y = solution[:active], np.tensordot(solution[active:], basis, 1)
    half = np.sqrt(0.5)
    token = half * delta.T @ (d_lam[:, None] * (b * c))
    query = half * queries.T @ (d_lam[:, None] * (a * c))
    K = half * Uk @ Y + Z11 @ token + Z12 @ query
    Q = half * Vk @ Y + Z12.T @ token + Z22 @ query
    return K @ Q.T, d_lam


def _positive_part_inverse(
    bases: tuple[np.ndarray, np.ndarray], sigma: np.ndarray, Uk: np.ndarray, Vk: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks of the inverse of Z off its kernel.

    The eigenvalue is 2 on (u, -v) of the leading pairs, and 1 -+ sigma on the others.
    """
    k = Uk.shape[1]
    rest_u, rest_v = bases[0][:, k:], bases[1][:, k:]
    both = len(sigma) - k
    tail = np.zeros(max(rest_u.shape[1], rest_v.shape[1]))
    tail[:both] = sigma[k:]
    inverse = 1.0 / np.maximum(1.0 - tail**2, 1e-14)
    Z11 = 0.25 * Uk @ Uk.T + (rest_u * inverse[: rest_u.shape[1]]) @ rest_u.T
    Z22 = 0.25 * Vk @ Vk.T + (rest_v * inverse[: rest_v.shape[1]]) @ rest_v.T
    Z12 = -0.25 * Uk @ Vk.T + (rest_u[:, :both] * (tail * inverse)[:both]) @ rest_v[:, :both].T
    return Z11, Z12, Z22


def _solve(system: np.ndarray, rhs: np.ndarray, measure: np.ndarray, cutoff: float) -> np.ndarray | None:
    """Solve with one refinement.

    When constraints depend on each other the multipliers are not unique: then the change that is smallest relative to
    ``measure`` is taken, which keeps multipliers from an interior point positive.
    """
    if not np.isfinite(system).all():
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", LinAlgWarning)
            factor = lu_factor(system, check_finite=False)
        (gecon,) = get_lapack_funcs(("gecon",), (system,))
        reciprocal, _ = gecon(factor[0], np.linalg.norm(system, 1))
        sound = reciprocal > cutoff
    except (LinAlgError, LinAlgWarning):
        sound = False
    if sound:
        solution = lu_solve(factor, rhs, check_finite=False)
        solution += lu_solve(factor, rhs - system @ solution, check_finite=False)
    else:
        weighted = measure[:, None] * system * measure
        solution = measure * np.linalg.lstsq(weighted, measure * rhs, rcond=cutoff)[0]
    return solution if np.isfinite(solution).all() else None
