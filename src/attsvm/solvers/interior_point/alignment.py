r"""Least-squares corrections of a nearly converged pair, where rounding ends the interior point early.

Spectral norm: multipliers whose pull has the singular vectors and the rank that V allows.

At the optimum the singular values of :math:`A^\top\lambda` vanish where those of V stay below its norm. The dual norm
sums them, so rounding there costs the bound its first digits. The smallest relative change of the multipliers of active
constraints that aligns :math:`A^\top\lambda` with the singular vectors of V, and then Newton's method on what is left
outside its own leading ones, are least-squares problems.

Sum of absolute entries and largest entry: both are linear programs, whose vertex is known by the active constraints and
the entries that are not zero (or below the bound). V and the multipliers each solve a linear system there.
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
    active, constant = _kinds(setting, method)
    rows, columns = np.nonzero(active)
    delta, queries = reduced.delta[rows, columns], reduced.queries[rows]
    force = reduced.adjoint(constant)
    basis = ties.basis.reshape(-1, *term.V.shape)
    top = float(x.dual.max(initial=0.0)) or 1.0
    scale = np.append(x.dual[rows, columns], np.full(len(term.tie), top))
    values = np.append(x.dual[rows, columns], term.tie)

    def adjoint(values: np.ndarray) -> np.ndarray:
        return force + delta.T @ (values[: len(rows), None] * queries) + ties.adjoint(values[len(rows) :])

    U, sigma, Vt = np.linalg.svd(term.V)
    weight = np.linalg.svd(adjoint(values), compute_uv=False)
    k = max(1, int(np.count_nonzero(1.0 - sigma / sigma[0] < weight / weight.sum())))
    outside = np.ones(term.V.shape, dtype=bool)
    outside[:k, :k] = False
    for _ in range(CORRECTIONS):
        rotations = np.concatenate([(delta @ U)[:, :, None] * (queries @ Vt.T)[:, None, :], U.T @ basis @ Vt.T])
        fixed = U.T @ force @ Vt.T
        trace = np.trace(rotations[:, :k, :k], axis1=1, axis2=2)
        matrix = np.column_stack([rotations[:, outside], trace]) * scale[:, None]
        target = np.append(-fixed[outside], 1.0 - np.trace(fixed[:k, :k]))
        values = values + scale * np.linalg.lstsq(matrix.T, target - (values / scale) @ matrix, rcond=None)[0]
        U, _, Vt = np.linalg.svd(adjoint(values))
        outside[:k], outside[:, :k] = False, False  # errors of the leading vectors themselves enter squared
    dual = constant
    dual[rows, columns] = values[: len(rows)]
    return dual + ties.tie_multipliers(values[len(rows) :])


def _kinds(setting: Setting, method: SoftInteriorPoint) -> tuple[np.ndarray, np.ndarray]:
    """Mark the active constraints, bool (n, T), and give the multipliers of those that keep a loss, (n, T)."""
    x, upper = method.point, setting.terms.upper
    active = setting.terms.rejected & (x.dual > x.slack)
    if np.isinf(upper):
        return active, np.zeros(x.dual.shape)
    short = active & (x.loss > x.other)
    return active & ~short, np.where(short, upper, 0.0)


def vertex(setting: Setting, method: SoftInteriorPoint, shared: bool) -> tuple[np.ndarray, np.ndarray]:
    """Solve for V (p, r) and multipliers (n, T) at the vertex that an iterate has nearly reached.

    Parameters
    ----------
    setting : Setting
        The method's own, without squared loss.
    method : SoftInteriorPoint
        With the term of a linear program.
    shared : bool
        The largest entry instead of the sum of absolute entries.
    """
    x, term, reduced, ties = method.point, method.term, setting.reduced, setting.ties
    active, constant = _kinds(setting, method)
    rows, columns = np.nonzero(active)
    flat, force = term.V.ravel(), reduced.adjoint(constant).ravel()
    if shared:
        free = np.minimum(term.above, term.below).ravel() > np.maximum(term.upper, term.lower).ravel()
    else:
        free = np.minimum(term.upper, term.lower).ravel() < np.maximum(term.above, term.below).ravel()
    side = np.where(free, 0.0, np.sign(flat))
    token, query = np.divmod(np.flatnonzero(free), term.V.shape[1])
    matrix = np.vstack([reduced.delta[rows, columns][:, token] * reduced.queries[rows][:, query], ties.basis[:, free]])
    entries, right = flat[free], np.sign(flat[free]) - force[free]
    if shared:
        along = np.append(reduced.apply(side.reshape(term.V.shape))[rows, columns], ties.basis @ side)
        matrix = np.column_stack([matrix, along])
        entries, right = np.append(entries, np.abs(flat).max()), np.append(-force[free], 1.0 - force @ side)
    demand = np.append(setting.terms.cost[rows, columns], -(ties.basis @ setting.prior.ravel()))
    size = np.abs(entries)
    entries = entries + size * np.linalg.lstsq(matrix * size, demand - matrix @ entries, rcond=None)[0]
    values = np.append(x.dual[rows, columns], term.tie)
    size = np.append(x.dual[rows, columns], np.full(len(term.tie), float(x.dual.max(initial=0.0)) or 1.0))
    values = values + size * np.linalg.lstsq(matrix.T * size, right - values @ matrix, rcond=None)[0]
    V = entries[-1] * side if shared else np.zeros(flat.shape)
    V[free] = entries[:-1] if shared else entries
    dual = constant
    dual[rows, columns] = values[: len(rows)]
    return V.reshape(term.V.shape), dual + ties.tie_multipliers(values[len(rows) :])
