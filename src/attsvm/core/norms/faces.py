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
from collections.abc import Callable

import numpy as np

from attsvm.core.error_free import UNIT
from attsvm.core.norms.composite import Largest, Sum
from attsvm.core.norms.entrywise import Entrywise, Weighted, entrywise
from attsvm.core.norms.ky_fan import KyFan
from attsvm.core.norms.mahalanobis import Mahalanobis
from attsvm.core.norms.mixed import Mixed
from attsvm.core.norms.norm import Norm, conjugate
from attsvm.core.norms.schatten import NUCLEAR, SPECTRAL

# Directions whose part off the others is shorter than this are combinations of them.
DEPENDENT = 1e-10
# How far, relatively, the computed split may be from an optimal one.
SPLIT = 1e-5


def face_directions(
    norm: Norm, G: np.ndarray, tolerance: float, *, dual: bool = False, point: np.ndarray | None = None
) -> np.ndarray:
    """Directions of the face that G exposes in the unit ball of a norm, or of its dual.

    Parameters
    ----------
    norm : Norm
        Any of :mod:`attsvm.norms`.
    G : ndarray, shape (d, dz)
        Not zero.
    tolerance : float
        Relative to the largest entry or singular value of G: what is this near to the largest counts as largest, what
        is this near to zero as zero.
    dual : bool
        Take the ball of the dual norm.
    point : ndarray, shape (d, dz), optional
        A positive multiple of a point of the face, inside it if possible; needed for the ball of a sum of norms or of
        the larger of two.

    Returns
    -------
    ndarray, shape (k, d dz)
        Orthonormal rows, flattened matrices; none for a smooth norm. They span the directions of the face; of a sum or
        the larger of two they may span more.

    Raises
    ------
    ValueError
        If the faces of the norm are not known here, or the point is on no face that G exposes.
    """
    if norm.smooth:
        return np.empty((0, G.size))
    if isinstance(norm, Weighted):
        scale = norm.weights if dual else 1.0 / norm.weights
        return _carried(Entrywise(norm.p), G, tolerance, dual, lambda M: scale * M)
    if isinstance(norm, Mahalanobis):
        inner = None if point is None else norm.seen(point)
        return _carried(norm.inner, G, tolerance, dual, lambda M: norm.seen(M, dual=not dual), inner)
    if isinstance(norm, KyFan):
        return _of_ky_fan(G, min(norm.k, *G.shape), tolerance, dual)
    if norm in (NUCLEAR, SPECTRAL):
        return _of_nuclear(G, tolerance) if (norm == NUCLEAR) != dual else _of_spectral(G, tolerance)
    if isinstance(norm, Entrywise):
        return _of_entries(G.ravel(), conjugate(norm.p) if dual else norm.p, tolerance)
    if isinstance(norm, Mixed):
        p, q = (conjugate(norm.p), conjugate(norm.q)) if dual else (norm.p, norm.q)
        rows = _of_rows(G if norm.axis == "rows" else G.T, p, q, tolerance)
        return (rows if norm.axis == "rows" else rows.swapaxes(1, 2)).reshape(-1, G.size)
    if isinstance(norm, (Sum, Largest)) and dual:
        return _of_dual_pair(norm, G, tolerance)
    if isinstance(norm, (Sum, Largest)) and point is not None:
        return _of_pair(norm, G, point, tolerance)
    raise ValueError(
        f"norm is {norm.name!r}; one of attsvm.norms was expected, and a point for a sum or the larger of two."
    )


def dual_at(norm: Norm, G: np.ndarray, V: np.ndarray, tolerance: float) -> float:
    """Bound a dual norm from above; that of a sum or of the larger of two by the split that a point of the face shows.

    Parameters
    ----------
    norm : Norm
    G : ndarray, shape (d, dz)
    V : ndarray, shape (d, dz)
        Nearly with the largest product with G of all matrices of its norm.
    tolerance : float
        As for :func:`face_directions`.
    """
    if isinstance(norm, Mahalanobis):
        return dual_at(norm.inner, norm.seen(G, dual=True), norm.seen(V), tolerance)
    if not isinstance(norm, (Sum, Largest)):
        return norm.dual(G)
    scale = norm.value(V) / float((G * V).sum())
    first, _ = _split(norm, G * scale, V / norm.value(V), tolerance)
    sizes = dual_at(norm.a, first, V, tolerance), dual_at(norm.b, G * scale - first, V, tolerance)
    return (max(sizes) if isinstance(norm, Sum) else sum(sizes)) / scale


def _of_pair(norm: Sum | Largest, G: np.ndarray, V: np.ndarray, tolerance: float) -> np.ndarray:
    """Directions of the face, with V on it, that G exposes in the ball of a sum or of the larger of two norms."""
    G, V = G * (norm.value(V) / float((G * V).sum())), V / norm.value(V)
    parts, sizes = (norm.a, norm.b), (norm.a.value(V), norm.b.value(V))
    if isinstance(norm, Largest) and min(sizes) < 1 - tolerance:
        return face_directions(parts[int(np.argmax(sizes))], G, tolerance, point=V)
    if isinstance(norm, Sum) and (norm.a.smooth or norm.b.smooth):
        return np.empty((0, G.size))
    room, shares = max(tolerance, SPLIT), _split(norm, G, V, tolerance)
    error = float(np.linalg.norm(G - shares[0] - shares[1]) / np.linalg.norm(G))
    if error > SPLIT:
        raise ValueError(
            f"point misses the faces that G exposes by {error:.1e}; at most {SPLIT}, as at a small gap, was expected."
        )
    spans = [
        face_directions(part, share, room, point=V)
        for part, share in zip(parts, shares, strict=True)
        if isinstance(norm, Sum) or float((share * V).sum()) > room
    ]
    if isinstance(norm, Largest):
        return spans[0] if len(spans) == 1 else _common(spans[0], spans[1], room)
    first, second = (_orthonormal(np.concatenate([V.reshape(1, -1), span])) for span in spans)
    cone = _common(first, second, room)
    return np.linalg.svd((cone @ G.ravel()).reshape(1, -1))[2][1:] @ cone


def _split(norm: Sum | Largest, G: np.ndarray, V: np.ndarray, tolerance: float) -> list[np.ndarray]:
    """Split G between multiples of the affine hulls of both norms' subdifferentials at V, as the minimisation does."""
    shares, hulls = [], []
    for part, guess in zip((norm.a, norm.b), norm.split(G), strict=True):
        anchor = part.smoothing(V, UNIT * np.abs(V).max()).gradient.reshape(1, -1)
        hull = face_directions(part, V, tolerance, dual=True)
        if isinstance(norm, Largest):  # any multiple
            anchor, hull = np.zeros_like(anchor), _orthonormal(np.concatenate([hull, anchor]))
        hulls.append(hull)
        shares.append(anchor + (guess.reshape(1, -1) - anchor) @ hull.T @ hull)
    system = np.concatenate(hulls)
    missing = (G.reshape(1, -1) - shares[0] - shares[1])[0]
    weights = np.linalg.lstsq(system.T, missing, rcond=SPLIT)[0]
    first = shares[0] + weights[: len(hulls[0])] @ hulls[0]
    second = shares[1] + weights[len(hulls[0]) :] @ hulls[1]
    return [first.reshape(G.shape), second.reshape(G.shape)]


def _common(first: np.ndarray, second: np.ndarray, tolerance: float) -> np.ndarray:
    """Orthonormal rows that span what the spans of orthonormal rows (j, m) and (k, m) have in common."""
    left, sigma, _ = np.linalg.svd(first - first @ second.T @ second)
    return left.T[np.append(sigma, np.zeros(len(first) - len(sigma))) <= tolerance] @ first


def _of_dual_pair(norm: Sum | Largest, V: np.ndarray, tolerance: float) -> np.ndarray:
    """Directions of the face that V exposes in the dual ball of a sum or of the larger of two norms."""
    parts = [face_directions(part, V, tolerance, dual=True) for part in (norm.a, norm.b)]
    if isinstance(norm, Sum):
        return _orthonormal(np.concatenate(parts))
    sizes = norm.a.value(V), norm.b.value(V)
    if abs(sizes[0] - sizes[1]) > tolerance * max(sizes):
        return parts[0] if sizes[0] > sizes[1] else parts[1]
    # The gradient of a smoothing is a point of the dual ball, in the limit one of the face.
    first, second = (part.smoothing(V, tolerance**2 * np.abs(V).max()).gradient for part in (norm.a, norm.b))
    return _orthonormal(np.concatenate([*parts, (first - second).reshape(1, -1)]))


def _carried(
    inner: Norm,
    G: np.ndarray,
    tolerance: float,
    dual: bool,
    carry: Callable[[np.ndarray], np.ndarray],
    point: np.ndarray | None = None,
) -> np.ndarray:
    """Faces of a norm whose coordinates are the inner one's after a self-adjoint map."""
    parts = face_directions(inner, carry(G), tolerance, dual=dual, point=point)
    return _orthonormal(np.array([carry(part.reshape(G.shape)).ravel() for part in parts]).reshape(-1, G.size))


def _of_entries(g: np.ndarray, p: float, tolerance: float) -> np.ndarray:
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


def _of_rows(G: np.ndarray, p: float, q: float, tolerance: float) -> np.ndarray:
    """Directions of the face that G (a, b) exposes in the ball of the mixed norm of its rows, (k, a, b)."""
    heights = np.array([entrywise(row, conjugate(p)) for row in G])
    zero = heights <= tolerance * heights.max()
    full = heights >= (1 - tolerance) * heights.max() if q == 1 else ~zero
    parts = [(r, part) for r in np.flatnonzero(full) for part in _of_entries(G[r], p, tolerance)]
    if math.isinf(q):
        parts += [(r, part) for r in np.flatnonzero(zero) for part in np.eye(G.shape[1])]
    out = np.zeros((len(parts), *G.shape))
    for k, (r, part) in enumerate(parts):
        out[k, r] = part
    if q > 1:
        return out
    # Rows of the largest dual norm share the length one: each has its point of the l_p ball, and these are independent.
    points = np.zeros((np.count_nonzero(full), *G.shape))
    for k, r in enumerate(np.flatnonzero(full)):
        points[k, r] = _exposed(G[r], p)
    steps = (points[1:] - points[:1]).reshape(-1, G.size)
    return _orthonormal(np.concatenate([out.reshape(-1, G.size), steps])).reshape(-1, *G.shape)


def _exposed(g: np.ndarray, p: float) -> np.ndarray:
    """Return a point of the l_p ball with the largest product with g (m,)."""
    if math.isinf(p):
        return np.sign(g)
    if p == 1:
        return np.sign(g) * (np.arange(g.size) == np.abs(g).argmax())
    point = np.sign(g) * (np.abs(g) / np.abs(g).max()) ** (1.0 / (p - 1.0))
    return point / entrywise(point, p)


def _of_spectral(G: np.ndarray, tolerance: float) -> np.ndarray:
    U, sigma, Vt = np.linalg.svd(G)
    rank = int(np.count_nonzero(sigma > tolerance * sigma[0]))
    left, right = U[:, rank:].T, Vt[rank:]
    return (left[:, None, :, None] * right[None, :, None, :]).reshape(-1, G.size)


def _of_nuclear(G: np.ndarray, tolerance: float) -> np.ndarray:
    U, sigma, Vt = np.linalg.svd(G)
    count = int(np.count_nonzero(sigma >= (1 - tolerance) * sigma[0]))
    return _symmetric(U[:, :count], Vt[:count])


def _of_ky_fan(G: np.ndarray, k: int, tolerance: float, dual: bool) -> np.ndarray:
    U, sigma, Vt = np.linalg.svd(G)
    room = tolerance * sigma[0]
    if dual:
        if sigma[k - 1] <= room:
            return _of_spectral(G, tolerance)
        same = np.flatnonzero(np.abs(sigma - sigma[k - 1]) <= room)
        return _symmetric(U[:, same], Vt[same]) if same[-1] >= k else np.empty((0, G.size))
    excess = sigma[0] - sigma.sum() / k
    parts = [_of_nuclear(G, tolerance)] if excess >= -room else []
    parts += [_of_spectral(G, tolerance)] if excess <= room else []
    if len(parts) == 2:
        step = np.outer(U[:, 0], Vt[0]) - U[:, : len(sigma)] @ Vt[: len(sigma)] / k
        parts.append(step.reshape(1, -1))
    return _orthonormal(np.concatenate(parts))


def _symmetric(U: np.ndarray, Vt: np.ndarray) -> np.ndarray:
    """Orthonormal U H V^T, flattened, with H symmetric of trace zero; U (d, k) and Vt (k, dz)."""
    size = len(U) * Vt.shape[1]
    return np.array([(U @ H @ Vt).ravel() for H in _traceless(U.shape[1])]).reshape(-1, size)


def _orthonormal(rows: np.ndarray) -> np.ndarray:
    """Orthonormal rows that span those of (k, m)."""
    if not len(rows):
        return rows
    _, sigma, Vt = np.linalg.svd(rows, full_matrices=False)
    return Vt[sigma > DEPENDENT * sigma[0]]


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
