r"""Faces of unit balls: in which directions an optimum of a norm that is not smooth may move.

A matrix G exposes the face :math:`F(G) = \{V : \|V\| \le 1, \langle G, V\rangle = \|G\|_*\}` of the unit ball, the
subdifferential of the dual norm at G. Its directions, the span of :math:`F(G) - F(G)`, are

* for l_1, the changes of the entries where :math:`|G|` is largest that keep :math:`\langle G, V\rangle`;
* for the largest entry, the changes of the entries where G is zero;
* for the nuclear norm, :math:`U_1 H V_1^\top` with H symmetric of trace zero and U_1, V_1 the singular vectors of the
  largest singular value of G;
* for the spectral norm, :math:`U_0 Y V_0^\top` with U_0, V_0 the singular vectors of the singular value zero

(Watson, Linear Algebra Appl. 170, 1992). For the others,

* a Ky Fan norm's dual is the larger of the spectral norm and a k-th of the nuclear one, so that F(G) is a face of the
  nuclear ball, of the spectral one, or where the two agree the hull of both; a face of its dual ball has the
  directions :math:`U_c H V_c^\top` with H symmetric of trace zero in the singular vectors of :math:`\sigma_k`, if there
  are more of these than fit among the first k, or :math:`U_0 Y V_0^\top` if :math:`\sigma_k = 0`;
* in a mixed norm :math:`V = (s_r v_r)` with s on the face of the l_q ball that the rows' dual norms expose, and
  :math:`v_r` on that of the l_p ball that the row of G exposes;
* weights and other coordinates carry faces over, :math:`F(G) = L^{-1} F_0(L^{-\top} G R^{-\top}) R^{-1}`;
* the dual ball of a sum of norms is the sum of the dual balls (Rockafellar, Convex Analysis, 1970, Corollary 16.4.1),
  and so are its faces; that of the larger of two norms is the hull of both, and a face of it that of the larger, or the
  hull of both where they agree.

A smooth norm, whose dual is strictly convex, has points for faces.

**Balls of sums and of the larger of two.** With an optimal split :math:`G = G_a + G_b`
(:mod:`attsvm.core.norms.composite`), V of norm one is on F(G) if and only if

.. math:: \langle G_a, V\rangle = \|G_a\|_{a*}\,s_a, \qquad \langle G_b, V\rangle = \|G_b\|_{b*}\,s_b,

where :math:`s_a = \|V\|_a, s_b = \|V\|_b` for a sum and :math:`s_a = s_b = 1` for the larger of two, since the left
sides add up to :math:`\|G\|_*` and neither exceeds the right one. For the larger of two, V therefore lies on the faces
of both balls that the parts expose, where a part that is zero exposes the whole ball. For a sum V lies on the cones
over these faces, in shares that may vary, so that the directions are those orthogonal to G in
:math:`\mathrm{span}(V, D_a) \cap \mathrm{span}(V, D_b)`, with D the directions of the two faces. This holds for every
optimal split; what one split gives contains the directions of F(G), and is nothing more for a split in the relative
interior of all.

The minimisation that splits G ends within some 1e-6 of such a split. A point V of the face says the rest: :math:`G_a`
is in the subdifferential of the first norm at V (for the larger of two, in a multiple of it), :math:`G_b` in that of
the second, and their affine hulls are known by the list above, so that the nearest split is a problem of least squares.
"""

from __future__ import annotations

import math

import numpy as np

# Directions whose part off the others is shorter than this are combinations of them.
DEPENDENT = 1e-10


def entries_face(g: np.ndarray, p: float, tolerance: float) -> np.ndarray:
    """Directions of the face that g (m,) exposes in the l_p ball, (k, m)."""
    size = np.abs(g)
    top = size.max()
    if math.isinf(p):
        return np.eye(g.size)[size <= tolerance * top]
    if p > 1:
        return np.empty((0, g.size))
    largest = np.flatnonzero(size >= (1 - tolerance) * top)
    out = np.zeros((len(largest) - 1, g.size))
    out[:, largest] = _orthogonal_to(np.sign(g[largest]))
    return out


def spectral_face(G: np.ndarray, tolerance: float) -> np.ndarray:
    """Directions of the face that G (d, dz) exposes in the spectral ball, (k, d dz)."""
    U, sigma, Vt = np.linalg.svd(G)
    rank = int(np.count_nonzero(sigma > tolerance * sigma[0]))
    left, right = U[:, rank:].T, Vt[rank:]
    return (left[:, None, :, None] * right[None, :, None, :]).reshape(-1, G.size)


def nuclear_face(G: np.ndarray, tolerance: float) -> np.ndarray:
    """Directions of the face that G (d, dz) exposes in the nuclear ball, (k, d dz)."""
    U, sigma, Vt = np.linalg.svd(G)
    count = int(np.count_nonzero(sigma >= (1 - tolerance) * sigma[0]))
    return symmetric_directions(U[:, :count], Vt[:count])


def symmetric_directions(U: np.ndarray, Vt: np.ndarray) -> np.ndarray:
    """Orthonormal U H V^T, flattened, with H symmetric of trace zero; U (d, k) and Vt (k, dz)."""
    size = len(U) * Vt.shape[1]
    return np.array([(U @ H @ Vt).ravel() for H in _traceless(U.shape[1])]).reshape(-1, size)


def orthonormal(rows: np.ndarray) -> np.ndarray:
    """Orthonormal rows that span those of (k, m)."""
    if not len(rows):
        return rows
    _, sigma, Vt = np.linalg.svd(rows, full_matrices=False)
    return Vt[sigma > DEPENDENT * sigma[0]]


def common_span(first: np.ndarray, second: np.ndarray, tolerance: float) -> np.ndarray:
    """Orthonormal rows that span what the spans of orthonormal rows (j, m) and (k, m) have in common."""
    left, sigma, _ = np.linalg.svd(first - first @ second.T @ second)
    return left.T[np.append(sigma, np.zeros(len(first) - len(sigma))) <= tolerance] @ first


def _orthogonal_to(signs: np.ndarray) -> np.ndarray:
    """Orthonormal rows that span the complement of a vector of signs (k,)."""
    return np.linalg.qr(np.column_stack([signs, np.eye(len(signs))[:, 1:]]))[0].T[1:]


def _traceless(count: int) -> list[np.ndarray]:
    """Orthonormal basis of the symmetric matrices (count, count) of trace zero."""
    basis = [np.diag(row) for row in _orthogonal_to(np.ones(count))]
    for a in range(count):
        for b in range(a):
            H = np.zeros((count, count))
            H[a, b] = H[b, a] = np.sqrt(0.5)
            basis.append(H)
    return basis
