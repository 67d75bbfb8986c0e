r"""Newton steps that follow the face of the nuclear-norm ball as it changes.

Newton on one face (:mod:`attsvm.solvers.nuclear.face`) needs the right face; far from the solution a few constraints of
a guess are wrong. The conditions of optimality can be written as one equation that is not smooth,

.. math:: \lambda = [\lambda + 1 - A(W)]_+, \qquad W = \mathrm{SVT}_1(W + A^\top\lambda),

whose generalised Newton method reads the face anew before every step: active are the constraints with
:math:`\lambda > A(W) - 1`, the rank is the number of singular values of :math:`W + A^\top\lambda` above one (the
primal-dual active-set strategy; Hintermueller, Ito and Kunisch, SIAM J. Optim. 13, 2002). From a gap of 1e-2 or 1e-3
the face settles within a few steps.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.norms import NUCLEAR, spectral
from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.nuclear.face import CUTOFFS, newton_step

STEPS = 9
# A first step that changes multipliers by more than this part of the largest, or a face that changes by more than this
# part of its constraints, was taken too early: from there the steps went astray in nearly all runs.
FAR = 0.2


def pursue(reduced: Reduced, W: np.ndarray, dual: np.ndarray, control: Control) -> bool:
    """Take Newton steps from a pair whose gap is moderate, while they approach a solution.

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
    length = spectral(reduced.adjoint(dual))
    if length <= 0:
        return False
    dual = dual / length
    setting = Setting.hard_margin(reduced, NUCLEAR)
    before: np.ndarray | None = None
    for _ in range(STEPS):
        strength = reduced.lengths * dual
        active = reduced.rejected & (strength > reduced.apply(W) - 1.0) | reduced.tied
        rows, columns = np.nonzero(active)
        if not len(rows) or (before is not None and (before != active).sum() > max(4, FAR * before.sum())):
            return False
        before = active
        delta, queries = reduced.delta[rows, columns], reduced.queries[rows]
        lam = dual[rows, columns]
        adjoint = delta.T @ (lam[:, None] * queries)
        U, sigma, Vt = np.linalg.svd(adjoint)
        rank = max(1, int(np.count_nonzero(np.linalg.svd(W / spectral(W) + adjoint, compute_uv=False) > 1.0)))
        inner = U[:, :rank].T @ W @ Vt[:rank].T
        singular, turn = np.linalg.eigh(0.5 * (inner + inner.T))
        if singular[-1] <= 0:
            return False
        kept = np.zeros_like(dual)
        kept[rows, columns] = lam
        W = (U[:, :rank] @ turn * singular) @ (Vt[:rank].T @ turn).T
        if setting.report(W, kept, control):
            return True
        cost = np.where(reduced.tied[rows, columns], 0.0, 1.0)
        floor = np.maximum(singular, 1e-12 * singular[-1])
        change = newton_step(delta, queries, cost, lam, (U, Vt.T), sigma, turn, floor, CUTOFFS[0])
        if change is None:
            return False
        W, d_lam = change
        size = float(np.abs(d_lam).max() / max(np.abs(lam).max(), 1e-300))
        if not size < FAR or size < 1e-15:
            return False
        dual = np.zeros_like(dual)
        dual[rows, columns] = lam + d_lam
    return False
