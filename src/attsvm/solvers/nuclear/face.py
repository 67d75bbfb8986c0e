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

import numpy as np
from scipy.linalg import get_lapack_funcs, lu_solve, solve_triangular

MEASURE_FLOOR = 1e-3
# Systems nearer to singular than this hold dependent constraints (well-posed ones seen are above 1e-9). Those that
# depend on each other only at the solution leave earlier systems merely ill-conditioned, by as much as the iterates are
# off: then Newton is tried on the well-conditioned part, and the multipliers are recovered from the W it finds.
CUTOFFS = (1e-12, 1e-5)
# Cholesky factors nearer to singular than this are left to the factorisation of the whole system, which looks closer.
SOUND = 1e-9
WORTH_ELIMINATING = 100  # constraints


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
    k, active, half = len(singular), len(cost), np.sqrt(0.5)
    Uk, Vk = bases[0][:, :k] @ turn, bases[1][:, :k] @ turn
    rest_u, rest_v = bases[0][:, k:], bases[1][:, k:]
    # The inverse of Z off its kernel: eigenvalue 2 on (u, -v) of the leading pairs, 1 -+ sigma on the others.
    both = len(sigma) - k
    tail = np.zeros(max(rest_u.shape[1], rest_v.shape[1]))
    tail[:both] = sigma[k:]
    inverse = 1.0 / np.maximum(1.0 - tail**2, 1e-14)
    a, b = delta @ Uk, queries @ Vk  # (J, k)
    rest_a, rest_b = delta @ rest_u, queries @ rest_v
    c = np.sqrt(2.0 * singular)  # K = Uk diag(c)/sqrt(2), Q likewise
    root = np.sqrt(inverse)
    schur = _gram(np.hstack([0.5 * a, rest_a * root[: rest_a.shape[1]]]))
    schur *= _gram(b * (half * c))
    other_side = _gram(np.hstack([0.5 * b, rest_b * root[: rest_b.shape[1]]]))
    other_side *= _gram(a * (half * c))
    schur += other_side
    cross = np.hstack([-0.25 * a, rest_a[:, :both] * (tail * inverse)[:both]]) @ np.hstack([b, rest_b[:, :both]]).T
    cross *= (b * (0.5 * c**2)) @ a.T
    schur += cross
    schur += cross.T
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

    margin = np.einsum("ka,a->k", a * b, singular)
    rhs = np.concatenate([cost + margin - shift * lam, np.zeros(len(i))])
    solution = _eliminate(schur, border, kernel, rhs, lam)
    if solution is None:
        weight_of = np.maximum(np.abs(lam) / max(float(np.abs(lam).max()), 1e-300), MEASURE_FLOOR)
        system = np.block([[schur, border], [border.T, -kernel]])
        solution = _solve(system, rhs, np.append(weight_of, np.ones(len(i))), cutoff)
    if solution is None:
        return None
    d_lam, Y = solution[:active], np.tensordot(solution[active:], basis, 1)
    token, query = half * delta.T @ (d_lam[:, None] * (b * c)), half * queries.T @ (d_lam[:, None] * (a * c))
    along_u, along_v = rest_u.T @ token, rest_v.T @ query
    lead = 0.25 * (Uk.T @ token - Vk.T @ query)
    mixed = (tail * inverse)[:both, None]
    rest_k, rest_q = along_u * inverse[: len(along_u), None], along_v * inverse[: len(along_v), None]
    rest_k[:both] += mixed * along_v[:both]
    rest_q[:both] += mixed * along_u[:both]
    K = Uk @ (half * Y + lead) + rest_u @ rest_k
    Q = Vk @ (half * Y - lead) + rest_v @ rest_q
    return K @ Q.T, d_lam


def _gram(rows: np.ndarray) -> np.ndarray:
    return rows @ rows.T


def _eliminate(
    schur: np.ndarray, border: np.ndarray, kernel: np.ndarray, rhs: np.ndarray, lam: np.ndarray
) -> np.ndarray | None:
    r"""Solve by a Cholesky factorisation of the upper block, where that is sound: half the work of factoring the whole.

    On the face the multipliers themselves are in the kernel of the upper block S (MQ = K, M^T K = Q: they move K and Q
    along the kernel of Z only). With the border B, the lower block -C and :math:`u \propto B^\top\lambda`, the second
    equation :math:`B^\top x = C y` times :math:`\gamma B u u^\top` is added to the first: S gains
    :math:`\gamma (Bu)(Bu)^\top`, which lifts that direction.
    """
    active = len(schur)
    if active < WORTH_ELIMINATING:
        return None
    direction = border.T @ lam
    direction /= max(float(np.linalg.norm(direction)), 1e-300)
    along, against = border @ direction, kernel @ direction
    potrf, pocon, lange = get_lapack_funcs(("potrf", "pocon", "lange"), (schur,))
    length = float(lange("1", schur))
    square = float(along @ along)
    if not (np.isfinite(length) and square > 0.0):
        return None
    lift = length / square
    lifted = schur + np.outer(lift * along, along)
    factor, failed = potrf(lifted.T, lower=True, overwrite_a=True, clean=False)
    if failed or pocon(factor, length, uplo="L")[0] < SOUND:
        return None
    bent = solve_triangular(factor, border, lower=True, check_finite=False)
    inner = bent.T @ bent
    inner -= np.outer(lift * (inner @ direction), against)
    inner += kernel
    pivots = _sound_lu(inner, SOUND)
    if pivots is None:
        return None
    solution = np.zeros_like(rhs)
    for _ in range(2):
        upper, lower = solution[:active], solution[active:]
        first = rhs[:active] - schur @ upper - border @ lower
        second = rhs[active:] - border.T @ upper + kernel @ lower
        first += along * (lift * float(direction @ second))
        first = solve_triangular(factor, first, lower=True, check_finite=False)
        below = lu_solve(pivots, bent.T @ first - second, check_finite=False)
        first -= bent @ below - (bent @ direction) * (lift * float(against @ below))
        above = solve_triangular(factor, first, lower=True, trans=1, check_finite=False)
        solution = solution + np.concatenate([above, below])
    return solution if np.isfinite(solution).all() else None


def _solve(system: np.ndarray, rhs: np.ndarray, measure: np.ndarray, cutoff: float) -> np.ndarray | None:
    """Solve with one refinement.

    When constraints depend on each other the multipliers are not unique: then the change that is smallest relative to
    ``measure`` is taken, which keeps multipliers from an interior point positive.
    """
    if not np.isfinite(system).all():
        return None
    factor = _sound_lu(system, cutoff)
    if factor is not None:
        solution = lu_solve(factor, rhs, check_finite=False)
        solution += lu_solve(factor, rhs - system @ solution, check_finite=False)
    else:
        weighted = measure[:, None] * system * measure
        solution = measure * np.linalg.lstsq(weighted, measure * rhs, rcond=cutoff)[0]
    return solution if np.isfinite(solution).all() else None


def _sound_lu(system: np.ndarray, cutoff: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Factors of a matrix unless it is nearer to singular than the cutoff."""
    getrf, gecon, lange = get_lapack_funcs(("getrf", "gecon", "lange"), (system,))
    factor, pivots, failed = getrf(system)
    if failed or not gecon(factor, lange("1", system))[0] > cutoff:
        return None
    return factor, pivots
