r"""The spectral norm from the solution of a similar problem: Newton on the face.

With :math:`s = \|W\|` and :math:`\|A^\top\lambda\|_* = 1` the conditions of optimality are

.. math:: W = \mathrm{clip}_s(W + A^\top\lambda), \qquad \lambda = [\lambda + 1 - A(W)]_+,

where :math:`\mathrm{clip}_s` cuts singular values off at s (the projection onto the ball of radius s). Neither equation
is smooth; the generalised Newton method reads the face anew before every step: active are the constraints with
:math:`\lambda > A(W) - 1` in common units, and the k singular values of :math:`Z = W + A^\top\lambda` above s (the
primal-dual active-set strategy; Hintermueller, Ito and Kunisch, SIAM J. Optim. 13, 2002). In the singular vectors of Z
the derivative of the clip scales the symmetric and the antisymmetric part of every pair of entries (i, j), (j, i): by 0
and :math:`2s/(\sigma_i+\sigma_j)` when both values are cut off, by :math:`(s\mp\sigma_j)/(\sigma_i\mp\sigma_j)` when
only the first is, by 1 when none is. With :math:`M = A_J^\top\lambda` a step therefore solves

.. math:: W_{11}^{sym} = sI, \quad W_{11}^{anti} = \frac{2s}{\sigma_i+\sigma_j-2s} M_{11}^{anti}, \quad
   W_{12}^{sym,anti} = \frac{s\mp\sigma_j}{\sigma_i-s} M_{12}^{sym,anti}, \quad M_{22} = 0, \quad
   \mathrm{tr}\,M_{11} = 1, \quad A_J(W) = 1:

a symmetric system in :math:`\lambda`, the free block :math:`W_{22}` and s.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.norms import SPECTRAL, nuclear, spectral
from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.evaluation import report
from attsvm.solvers.common.ties import Ties

STEPS = 10
# Gap of the earlier pair above which its face says too little.
FAR = 0.3
# Multipliers below this part of the largest, and singular values of A^T lam, are zero in an interior point's solution.
ZERO = 1e-6
# A step must shrink to this part of the one before, from the fourth on: slower is not Newton's method near a solution.
SHRINK = 0.5
# Weights of the proximal terms: of the free block and s, which the equations often determine badly, and of the
# multipliers in parts of their curvature.
PROXIMAL, RIDGE = 1e-5, 1e-12
# Singular values of A^T lam smaller than this are rounding.
ROUNDING = 1e-14


def pursue_spectral(reduced: Reduced, W: np.ndarray, dual: np.ndarray, control: Control) -> bool:
    """Take Newton steps from the solution of a similar problem while they approach this one's.

    Parameters
    ----------
    reduced : Reduced
    W : ndarray, shape (p, r)
        Feasible.
    dual : ndarray, shape (n, T)
        Of any scale.
    control : Control

    Returns
    -------
    bool
        Whether the gap closed (or the run is to stop); the best pair is with ``control``.
    """
    if not control.state.gap < FAR:
        return False
    length = nuclear(reduced.adjoint(dual))
    if length <= 0:
        return False
    ties = Ties(reduced)
    unit = spectral(W) / reduced.min_margin(reduced.apply(W))
    # In these units W has norm about one, as has the pull.
    W, dual, s = W / spectral(W), np.where(reduced.rejected, np.maximum(dual, 0.0), dual) / length, 1.0
    nu = ties.from_multipliers(dual)
    before = np.inf
    for step in range(STEPS):
        strength = np.where(reduced.rejected, dual * reduced.lengths, 0.0)
        top = float(strength.max())
        level = ZERO * top if step == 0 else top * (unit * reduced.apply(W) - 1.0)
        rows, columns = np.nonzero(reduced.rejected & (strength > level))
        # Rows of length one, so that multipliers and what they lack compare.
        lengths = np.append(reduced.lengths[rows, columns], np.ones(len(nu)))
        matrix = ties.constraints(rows, columns) / lengths[:, None]  # (J + k, p r)
        now = np.append(dual[rows, columns], nu) * lengths
        pulled = (now @ matrix).reshape(W.shape)
        U, sigma, Vt = np.linalg.svd(W + pulled)
        rank = int(np.count_nonzero(sigma > s * (1.0 + ZERO if step == 0 else 1.0)))
        cost = np.append(np.full(len(rows), 1.0 / unit), np.zeros(len(nu))) / lengths
        found = _step(matrix, cost, W, now, (U, sigma, Vt), max(rank, 1), s)
        if found is None:
            return False
        W, held, s = found
        change = float(np.abs(held - now).max() / top)
        if not (change < FAR and s > 0) or (step > 2 and change > SHRINK * before):
            return False
        before = change
        dual = np.zeros_like(dual)
        values = held / lengths
        dual[rows, columns], nu = values[: len(rows)], values[len(rows) :]
        if report(reduced, SPECTRAL, ties.project(W), dual + ties.tie_multipliers(nu), control):
            return True
    return False


def _step(
    matrix: np.ndarray,
    cost: np.ndarray,
    W: np.ndarray,
    held: np.ndarray,
    svd: tuple[np.ndarray, np.ndarray, np.ndarray],
    k: int,
    s: float,
) -> tuple[np.ndarray, np.ndarray, float] | None:
    """Solve the system of the module's derivation at Z = U diag(sigma) Vt of rank k beyond s.

    What it leaves open stays near W (p, r) and the multipliers ``held`` (J,), by proximal terms.

    Returns
    -------
    tuple or None
        W (p, r), multipliers (J,) and s; None when the system is singular all the same.
    """
    U, sigma, Vt = svd
    p, r = W.shape
    count, free = len(matrix), (p - k) * (r - k)
    turned = U.T @ matrix.reshape(count, p, r) @ Vt.T
    rows = turned.reshape(count, p * r)
    border = np.empty((count, free + 1))
    border[:, :free] = turned[:, k:, k:].reshape(count, free)
    border[:, free] = np.trace(turned[:, :k, :k], axis1=1, axis2=2)
    inner = np.append((U[:, k:].T @ W @ Vt[k:].T).ravel(), s)
    size = count + free + 1
    system = np.zeros((size, size))
    system[:count, :count] = curved = rows @ _followed(turned, sigma, k, s).reshape(count, p * r).T
    system[:count, count:], system[count:, :count] = border, border.T
    right = np.concatenate([cost - curved @ held - border @ inner, -held @ border])
    right[-1] += 1.0
    ridge = np.full(count, RIDGE * float(np.trace(curved)) / count)
    system[np.arange(size), np.arange(size)] += np.append(ridge, np.full(free + 1, -PROXIMAL))
    try:
        found = np.linalg.solve(system, right)
    except np.linalg.LinAlgError:
        return None
    if not np.isfinite(found).all():
        return None
    held, inner = held + found[:count], inner + found[count:]
    turned_W = _followed((held @ rows).reshape(p, r), sigma, k, s)
    turned_W[np.arange(k), np.arange(k)] += inner[-1]
    turned_W[k:, k:] = inner[:-1].reshape(p - k, r - k)
    return U @ turned_W @ Vt, held, float(inner[-1])


def _followed(M: np.ndarray, sigma: np.ndarray, k: int, s: float) -> np.ndarray:
    """Turn pulls M (..., p, r), in the singular vectors of Z, into W outside its symmetric and its free block."""
    W = np.zeros_like(M)
    q = len(sigma)
    above = np.maximum(sigma[:k] - s, ROUNDING * s)
    below = np.minimum(sigma[k:], s)
    corner = M[..., :k, :k]
    W[..., :k, :k] = (s / (above[:, None] + above)) * (corner - np.swapaxes(corner, -1, -2))
    right, left = M[..., :k, k:q], np.swapaxes(M[..., k:q, :k], -1, -2)
    same = 0.5 * ((s - below) / above[:, None]) * (right + left)
    other = 0.5 * ((s + below) / above[:, None]) * (right - left)
    W[..., :k, k:q], W[..., k:q, :k] = same + other, np.swapaxes(same - other, -1, -2)
    W[..., :k, q:] = (s / above)[:, None] * M[..., :k, q:]
    W[..., q:, :k] = (s / above) * M[..., q:, :k]
    return W
