r"""Newton on the face of the nuclear-norm ball that holds the solution.

At the optimum k singular values of :math:`M = A^\top\lambda` equal one. Let U and V be their singular vectors. Then
:math:`W = U S V^\top` with S positive definite, and a set J of constraints is active. For :math:`W = KQ^\top` the
conditions

.. math:: MQ = K, \quad M^\top K = Q, \quad a_j(KQ^\top) = c_j \; (j \in J)

are smooth, and Newton on them converges quadratically once k and J are right. The Hessian :math:`Z = [[I, -M],
[-M^\top, I]]` is diagonal in the singular vectors of M. Its positive part is eliminated, which leaves a symmetric
system in the |J| multipliers and the k(k+1)/2 entries of S; common rotations of K and Q do not change W and are left
out. The blocks of the system are entrywise products of Gram matrices, so its cost does not depend on the p r entries of
W. Only the right singular vectors V are formed, together with MV. Left vectors outside the leading k enter through
:math:`u\sigma = Mv` and through the token Gram matrix: no basis is completed, and nothing is divided by a small
singular value.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, types
from scipy.linalg import get_lapack_funcs, lstsq, lu_solve

from attsvm.platform.kernels import FAST, kernel
from attsvm.solvers.nuclear.matrices import (
    add_products,
    combination,
    eigenvectors,
    eliminate,
    outer,
    products,
    rows_at,
    scaled,
    total,
    weighted,
)
from attsvm.solvers.schedule import MOST_UNKNOWNS

# Smallest unit of a multiplier's change in a least-squares solution, over the largest multiplier.
MEASURE_FLOOR = 1e-3
# Reciprocal condition numbers below which a system counts as singular; the second is for constraints that depend on
# each other only at the solution, whose systems are ill-conditioned near it.
CUTOFFS = (1e-12, 1e-5)
# Smallest diagonal entry of S, over the largest, and smallest distance from one of a singular value off the face.
SINGULAR_FLOOR, TAIL_FLOOR = 1e-12, 1e-14
# Bytes of a step in NumPy per entry of its system: ten matrices of doubles.
SYSTEM_BYTES = 80


class Face(NamedTuple):
    """The singular vectors of M, and S = U^T W V on the leading k of them, rotated so that S is diagonal.

    Attributes
    ----------
    left, right : ndarray, shapes (k, p) and (k, r)
        Leading singular vectors, in rows.
    images, vectors : ndarray, shapes (t, p) and (t, r)
        (M V)^T and V^T of the other singular vectors.
    sigma : ndarray, shape (t,)
        Singular values of the others.
    singular : ndarray, shape (k,)
        The diagonal of S, descending.
    curvature : ndarray, shape (k, k)
        I minus the leading singular values, in the same rotated basis.
    """

    left: np.ndarray
    right: np.ndarray
    images: np.ndarray
    vectors: np.ndarray
    sigma: np.ndarray
    singular: np.ndarray
    curvature: np.ndarray


FACE = types.NamedTuple(
    (
        float64[:, ::1], float64[:, ::1], float64[:, ::1], float64[:, ::1],
        float64[::1], float64[::1], float64[:, ::1],
    ),
    Face,
)  # fmt: skip


def system_size(active: int, k: int) -> int:
    """Count the unknowns: a multiplier for each active constraint, and the entries of S (k, k)."""
    return active + k * (k + 1) // 2


def _by_lapack(system: np.ndarray, rhs: np.ndarray, lam: np.ndarray, cutoff: float) -> bool:
    """Solve with refinement, in place; False if the result is not finite.

    If constraints depend on each other, the multipliers are not unique: the smallest change relative to the multipliers
    is returned, which keeps multipliers of an interior point positive. If the residual is larger than the omitted
    singular values explain, no W has all of these margins, and a constraint leaves.
    """
    if not np.isfinite(system).all():
        return False
    getrf, gecon, lange = get_lapack_funcs(("getrf", "gecon", "lange"), (system,))
    factor, pivots, info = getrf(system)
    if not info and gecon(factor, lange("1", system))[0] > cutoff:
        solution = lu_solve((factor, pivots), rhs, check_finite=False)
        solution += lu_solve((factor, pivots), rhs - system @ solution, check_finite=False)
    elif len(rhs) > MOST_UNKNOWNS:
        return False
    else:
        measure = np.ones(len(rhs))
        measure[: len(lam)] = np.maximum(np.abs(lam) / max(float(np.abs(lam).max()), 1e-300), MEASURE_FLOOR)
        # A QR factor with column pivots takes less than half the time of a singular value decomposition.
        measured = measure[:, None] * system * measure
        least: Any = lstsq(measured, measure * rhs, cond=cutoff, lapack_driver="gelsy", check_finite=False)
        solution, lack = measure * least[0], measure * rhs - measured @ least[0]
        if np.abs(lack).max() > cutoff * lange("1", measured) * np.abs(least[0]).max():
            _leave(measure * lack, lam, solution)
    rhs[:] = solution
    return bool(np.isfinite(solution).all())


def _leave(ray: np.ndarray, lam: np.ndarray, change: np.ndarray) -> None:
    """Move along the residual of the equations, in place, until the first multiplier is zero.

    The system is symmetric, so its residual is in its kernel: M does not change, and the sum of the multipliers rises.
    """
    along, after = ray[: len(lam)], np.maximum(lam + change[: len(lam)], 0.0)
    falling = (along < 0.0) & (lam >= 0.0)
    steps = np.divide(after, -along, out=np.full(len(lam), np.inf), where=falling)
    leaving = int(steps.argmin())
    if np.isfinite(steps[leaving]):
        change += steps[leaving] * ray
        change[leaving] = -lam[leaving]


def _couple(side, query_lead, query_side, lead, cross, swap, of):
    pairs = np.ix_(of, of)
    product = cross[:, of] * swap[of]
    return side * query_lead[pairs] + query_side[pairs] * lead + product + product.T


def _pairs(a, b, root):
    both = a[:, None, :] * b[:, :, None]
    return ((both + both.transpose(0, 2, 1)) * (np.sqrt(0.5) * root[:, None])).reshape(len(a), -1)


def _bordered(upper, border, lower):
    return np.block([[upper, border], [border.T, -lower]])


@kernel(inner=True, inline="always", fastmath=FAST)
def face_at(W, vectors, images, sigma, k):
    """Read S off W (p, r), in the leading k singular vectors of M as :func:`.matrices.right_singular` has them."""
    left = weighted(images[:k], 1.0 / sigma[:k])
    inner = products(combination(left, W), vectors[:k])
    for i in range(k):
        for j in range(i):
            inner[i, j] = inner[j, i] = 0.5 * (inner[i, j] + inner[j, i])
    turn, singular = eigenvectors(inner)
    curvature = products(scaled(turn, 1.0 - sigma[:k]), turn)
    return Face(
        combination(turn, left), combination(turn, vectors[:k]), images[k:], vectors[k:], sigma[k:], singular, curvature
    )


@kernel(inner=True, inline="always", fastmath=FAST)
def matrix_of(face):
    """U S V^T, (p, r)."""
    return outer(weighted(face.left, face.singular), face.right)


@kernel(inner=True, inline="always", fastmath=FAST, plain=_couple)
def _coupling(side, query_lead, query_side, lead, cross, swap, of):
    """Second derivatives among the multipliers (J, J), from Gram matrices of tokens (J, J) and of queries (n, n)."""
    out = np.empty(side.shape)
    for j in range(len(of)):
        i = of[j]
        for m in range(len(of)):
            h = of[m]
            value = side[j, m] * query_lead[i, h] + query_side[i, h] * lead[j, m]
            out[j, m] = value + cross[j, h] * swap[i, m] + cross[m, i] * swap[h, j]
    return out


@kernel(inner=True, inline="always", fastmath=FAST, plain=_pairs)
def _margins_along(a, b, root):
    """Margins (J, k k) of the entries of Y^T, flattened, from projections (J, k) and the root of S."""
    active, k = a.shape
    out = np.empty((active, k * k))
    for m in range(active):
        for j in range(k):
            for i in range(k):
                out[m, j * k + i] = np.sqrt(0.5) * root[j] * (a[m, i] * b[m, j] + b[m, i] * a[m, j])
    return out


@kernel(inner=True, inline="always", fastmath=FAST)
def _directions(root):
    """Basis of the Y that do not merely rotate K and Q: each Y^T, flattened, in a row, (k (k + 1) / 2, k k).

    Rotations are Y = diag(s) times a skew matrix, s the root of S; their complement is spanned by E_ii and by
    weight E_ij + other E_ji with weight / other = s_j / s_i.
    """
    k = len(root)
    out = np.zeros((k * (k + 1) // 2, k * k))
    q = 0
    for i in range(k):
        out[q, i * k + i] = 1.0
        q += 1
        for j in range(i + 1, k):
            length = np.sqrt(root[i] * root[i] + root[j] * root[j])
            out[q, j * k + i] = root[j] / length
            out[q, i * k + j] = root[i] / length
            q += 1
    return out


@kernel(inner=True, inline="always", fastmath=FAST, plain=_bordered)
def _system(upper, border, lower):
    """Join the symmetric matrix [[upper, border], [border^T, -lower]]."""
    active, size = border.shape
    out = np.empty((active + size, active + size))
    for i in range(active):
        for j in range(active):
            out[i, j] = upper[i, j]
        for q in range(size):
            out[i, active + q] = out[active + q, i] = border[i, q]
    for q in range(size):
        for s in range(size):
            out[active + q, active + s] = -lower[q, s]
    return out


@kernel(inner=True, inline="always", fastmath=FAST, plain=_by_lapack)
def _solve(system, rhs, lam, cutoff):
    """Solve the Newton system in place of its right-hand side; False when it is singular."""
    return eliminate(system, rhs)


@kernel(inner=True, inline="always", fastmath=FAST)
def newton_step(delta, of, queries, cost, lam, shift, face, cutoff):
    """Take one Newton step; return whether it is possible, the new W (p, r), and the change of the multipliers (J,).

    Parameters
    ----------
    delta : ndarray, shape (J, p)
        Active constraints.
    of : ndarray of int, shape (J,)
        Query of each constraint.
    queries : ndarray, shape (n, r)
    cost, lam : ndarray, shape (J,)
        Right-hand sides and current multipliers.
    shift : ndarray, shape (J,)
        Margins may fall short by this times the multiplier (soft margins with squared loss).
    face : Face
    cutoff : float
        Relative size below which singular values of a large system count as zero.
    """
    k, active = len(face.singular), len(cost)
    root, leak = np.empty(k), np.empty(len(face.sigma))
    for c in range(k):
        root[c] = np.sqrt(max(face.singular[c], SINGULAR_FLOOR * face.singular[0]))
    for c in range(len(leak)):
        leak[c] = 1.0 / np.sqrt(max(1.0 - face.sigma[c] * face.sigma[c], TAIL_FLOOR))
    # The inverse of Z off its kernel: eigenvalue 2 on (u, -v) of the leading pairs, 1 -+ sigma on the others.
    a, b = products(delta, face.left), products(queries, face.right)
    tail = scaled(products(delta, face.images), leak)
    query_tail = scaled(products(queries, face.vectors), leak)
    heavy, query_heavy = scaled(a, root), scaled(b, root)
    side = products(delta, delta)
    add_products(side, a, a, -0.75)
    add_products(side, tail, tail, 1.0)
    query_side = products(query_tail, query_tail)
    add_products(query_side, b, b, 0.25)
    cross = products(tail, query_tail)
    add_products(cross, a, b, -0.25)
    swap = products(query_heavy, heavy)  # (n, J)
    upper = _coupling(
        side, products(query_heavy, query_heavy), query_side, products(heavy, heavy), cross, swap, of
    )  # fmt: skip
    # The part of (K, Q) along the kernel of Z is (U; V) Y / sqrt(2).
    basis = _directions(root)
    border = products(_margins_along(a, rows_at(b, of), root), basis)
    lower = products(basis, combination(basis.reshape(len(basis) * k, k), face.curvature).reshape(basis.shape))
    change = np.zeros(active + len(basis))
    for j in range(active):
        change[j] = cost[j] + swap[of[j], j] - shift[j] * lam[j]
        upper[j, j] += shift[j]
    if not _solve(_system(upper, border, lower), change, lam, cutoff):
        return False, np.zeros((delta.shape[1], queries.shape[1])), change
    K = outer(weighted(rows_at(query_heavy, of), change[:active]), delta)
    Q = outer(weighted(heavy, change[:active]), rows_at(queries, of))
    on_left, on_right = products(K, face.left), products(Q, face.right)
    cross_terms = products(K, face.images)
    add_products(cross_terms, Q, face.vectors, 1.0)
    cross_terms = scaled(cross_terms, leak * leak)
    Y = combination(change[active:].reshape(1, len(basis)), basis).reshape(k, k)
    for c in range(k):
        for e in range(k):
            lead, along = 0.25 * (on_left[c, e] - on_right[c, e]), np.sqrt(0.5) * Y[c, e]
            on_left[c, e], on_right[c, e] = along + lead - on_left[c, e], along - lead
    K = total(K, total(combination(on_left, face.left), combination(cross_terms, face.images), 1.0), 1.0)
    Q = total(combination(on_right, face.right), combination(cross_terms, face.vectors), 1.0)
    return True, outer(K, Q), change[:active]
