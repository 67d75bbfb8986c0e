r"""Multipliers whose pull has the singular vectors and the rank that V allows, for the spectral norm.

At the optimum the singular values of :math:`A^\top\lambda` vanish where those of V stay below its norm. The dual norm
sums them, so rounding there costs the bound its first digits. The smallest relative change of the multipliers of active
constraints that aligns :math:`A^\top\lambda` with the singular vectors of V, and then Newton's method on what is left
outside its own leading ones, are least-squares problems.
"""

from __future__ import annotations

import numpy as np

from attsvm.solvers.common.setting import Setting
from attsvm.solvers.interior_point.engine import SoftInteriorPoint

CORRECTIONS = 3


def aligned_multipliers(setting: Setting, method: SoftInteriorPoint) -> np.ndarray:
    """Correct the multipliers (n, T) of an iterate that has nearly converged.

    Parameters
    ----------
    setting : Setting
        The method's own, without squared loss.
    method : SoftInteriorPoint
        With the spectral norm's term.
    """
    x, term, reduced, ties = method.point, method.term, setting.reduced, setting.ties
    active = setting.terms.rejected & (x.dual > x.slack)
    constant = np.zeros(x.dual.shape)
    if np.isfinite(setting.terms.upper):
        short = active & (x.loss > x.other)
        active, constant = active & ~short, np.where(short, setting.terms.upper, 0.0)
    rows, columns = np.nonzero(active)
    delta, queries = reduced.delta[rows, columns], reduced.queries[rows]
    held = reduced.adjoint(constant)
    basis = ties.basis.reshape(-1, *term.V.shape)
    top = float(x.dual.max(initial=0.0)) or 1.0
    scale = np.append(x.dual[rows, columns], np.full(len(term.tie), top))
    values = np.append(x.dual[rows, columns], term.tie)

    def pulled(values: np.ndarray) -> np.ndarray:
        return held + delta.T @ (values[: len(rows), None] * queries) + ties.pull(values[len(rows) :])

    U, sigma, Vt = np.linalg.svd(term.V)
    weight = np.linalg.svd(pulled(values), compute_uv=False)
    k = max(1, int(np.count_nonzero(1.0 - sigma / sigma[0] < weight / weight.sum())))
    outside = np.ones(term.V.shape, dtype=bool)
    outside[:k, :k] = False
    for _ in range(CORRECTIONS):
        turned = np.concatenate([(delta @ U)[:, :, None] * (queries @ Vt.T)[:, None, :], U.T @ basis @ Vt.T])
        fixed = U.T @ held @ Vt.T
        trace = np.trace(turned[:, :k, :k], axis1=1, axis2=2)
        matrix = np.column_stack([turned[:, outside], trace]) * scale[:, None]
        target = np.append(-fixed[outside], 1.0 - np.trace(fixed[:k, :k]))
        values = values + scale * np.linalg.lstsq(matrix.T, target - (values / scale) @ matrix, rcond=None)[0]
        U, _, Vt = np.linalg.svd(pulled(values))
        outside[:k], outside[:, :k] = False, False  # errors of the leading vectors themselves enter squared
    dual = constant
    dual[rows, columns] = values[: len(rows)]
    return dual + ties.tie_multipliers(values[len(rows) :])
