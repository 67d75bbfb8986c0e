r"""Faces of unit balls: in which directions an optimum of a norm that is not smooth may move.

A matrix G exposes the face :math:`F(G) = \{V : \|V\| \le 1, \langle G, V\rangle = \|G\|_*\}` of the unit ball, the
subdifferential of the dual norm at G. Its directions, the span of :math:`F(G) - F(G)`, are

* for l_1, the changes of the entries where :math:`|G|` is largest that keep :math:`\langle G, V\rangle`;
* for the largest entry, the changes of the entries where G is zero;
* for the nuclear norm, :math:`U_1 H V_1^\top` with H symmetric of trace zero and U_1, V_1 the singular vectors of the
  largest singular value of G;
* for the spectral norm, :math:`U_0 Y V_0^\top` with U_0, V_0 the singular vectors of the singular value zero

(Watson, Linear Algebra Appl. 170, 1992). A smooth norm, whose dual is strictly convex, has points for faces.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.norms.norm import Norm

# The ball of each norm that is not smooth, and that of its dual.
_DUALS = {"l_1": "max", "max": "l_1", "nuclear": "spectral", "spectral": "nuclear"}
POLYHEDRAL_OR_SPECTRAL = tuple(_DUALS)


def face_directions(norm: Norm, G: np.ndarray, tolerance: float, *, dual: bool = False) -> np.ndarray:
    """Directions of the face that G exposes in the unit ball of a norm, or of its dual.

    Parameters
    ----------
    norm : Norm
        Smooth, or l_1, max, nuclear or spectral.
    G : ndarray, shape (d, dz)
        Not zero.
    tolerance : float
        Relative to the largest entry or singular value of G: what is this near to the largest counts as largest, what
        is this near to zero as zero.
    dual : bool
        Take the ball of the dual norm.

    Returns
    -------
    ndarray, shape (k, d dz)
        Orthonormal rows, flattened matrices; none for a smooth norm.

    Raises
    ------
    ValueError
        If the faces of the norm are not known here.
    """
    if norm.smooth:
        return np.empty((0, G.size))
    if norm.name not in _DUALS:
        known = ", ".join(map(repr, _DUALS))
        raise ValueError(f"norm is {norm.name!r}; a smooth norm or one of {known} was expected.")
    name = _DUALS[norm.name] if dual else norm.name
    if name in ("l_1", "max"):
        size = np.abs(G).ravel()
        top = size.max()
        if name == "max":
            return np.eye(G.size)[size <= tolerance * top]
        largest = np.flatnonzero(size >= (1 - tolerance) * top)
        out = np.zeros((len(largest) - 1, G.size))
        out[:, largest] = _orthogonal_to(np.sign(G.ravel()[largest]))
        return out
    U, sigma, Vt = np.linalg.svd(G)
    if name == "spectral":
        rank = int(np.count_nonzero(sigma > tolerance * sigma[0]))
        left, right = U[:, rank:].T, Vt[rank:]
        return (left[:, None, :, None] * right[None, :, None, :]).reshape(-1, G.size)
    count = int(np.count_nonzero(sigma >= (1 - tolerance) * sigma[0]))
    return np.array([(U[:, :count] @ H @ Vt[:count]).ravel() for H in _traceless(count)]).reshape(-1, G.size)


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
