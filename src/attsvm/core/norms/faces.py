r"""Faces of unit balls: the directions in which an optimum of a non-smooth norm may move.

A matrix G exposes the face :math:`F(G) = \{V : \|V\| \le 1, \langle G, V\rangle = \|G\|_*\}` of the unit ball, which is
the subdifferential of the dual norm at G. Its directions, the span of :math:`F(G) - F(G)`, are

* for l_1, the changes of the entries where :math:`|G|` is largest that keep :math:`\langle G, V\rangle`;
* for the largest entry, the changes of the entries where G is zero;
* for the nuclear norm, :math:`U_1 H V_1^\top` with H symmetric of trace zero and U_1, V_1 the singular vectors of the
  largest singular value of G;
* for the spectral norm, :math:`U_0 Y V_0^\top` with U_0, V_0 the singular vectors of the singular value zero

(Watson, Linear Algebra Appl. 170, 1992). Other norms:

* Ky Fan norm: its dual is the maximum of the spectral norm and the nuclear norm divided by k. F(G) is therefore a face
  of the nuclear ball or of the spectral ball or, if the two agree, the hull of both. A face of the dual ball has
  directions in the singular vectors of :math:`\sigma_k`. They are :math:`U_c H V_c^\top` with H symmetric of trace zero
  if more singular values equal :math:`\sigma_k` than belong to the first k, or :math:`U_0 Y V_0^\top` if
  :math:`\sigma_k = 0`.
* Mixed norm: :math:`V = (s_r v_r)`, with s on the face of the l_q ball that the rows' dual norms expose, and
  :math:`v_r` on the face of the l_p ball that the row of G exposes.
* Weights and other coordinates transform faces: :math:`F(G) = L^{-1} F_0(L^{-\top} G R^{-\top}) R^{-1}`.
* Sum of norms: the dual ball is the sum of the dual balls (Rockafellar, Convex Analysis, 1970, Corollary 16.4.1), and
  each face is the sum of their faces.
* Maximum of two norms: the dual ball is the hull of both dual balls. A face is the face of the larger norm, or the hull
  of both faces if the norms agree.

A smooth norm, whose dual is strictly convex, has only single points as faces.

**Balls of sums and maxima.** Let :math:`G = G_a + G_b` be an optimal split (:mod:`attsvm.core.norms.composite`). V of
norm one is on F(G) if and only if

.. math:: \langle G_a, V\rangle = \|G_a\|_{a*}\,s_a, \qquad \langle G_b, V\rangle = \|G_b\|_{b*}\,s_b,

where :math:`s_a = \|V\|_a, s_b = \|V\|_b` for a sum and :math:`s_a = s_b = 1` for a maximum: the left sides add up to
:math:`\|G\|_*`, and neither exceeds its right side. For a maximum, V therefore lies on the faces of both balls that
:math:`G_a` and :math:`G_b` expose; a zero matrix exposes the whole ball. For a sum, V lies on the cones over these
faces, with shares that may vary. The directions are then the ones orthogonal to G in :math:`\mathrm{span}(V, D_a) \cap
\mathrm{span}(V, D_b)`, where D are the directions of the two faces. This holds for every optimal split. The result of
one split contains the directions of F(G), and equals them for a split in the relative interior of all optimal splits.

The minimisation that splits G ends within about 1e-6 of such a split. A point V of the face determines the split
exactly. :math:`G_a` is in the subdifferential of the first norm at V (for a maximum, in a multiple of it), and
:math:`G_b` in the subdifferential of the second. Their affine hulls follow from the list above, so the nearest split is
a least-squares problem.
"""

from __future__ import annotations

import math

import numpy as np

# Length of a direction, orthogonal to the others, below which it counts as a combination of them.
DEPENDENT_LENGTH = 1e-10


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
    """Orthonormal rows with the same span as rows (k, m)."""
    if not len(rows):
        return rows
    _, sigma, Vt = np.linalg.svd(rows, full_matrices=False)
    return Vt[sigma > DEPENDENT_LENGTH * sigma[0]]


def common_span(first: np.ndarray, second: np.ndarray, tolerance: float) -> np.ndarray:
    """Orthonormal rows that span the intersection of the spans of orthonormal rows (j, m) and (k, m)."""
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
