r"""Least-squares corrections of a nearly converged pair, if rounding ends the interior point early.

In the spectral norm, the corrected multipliers have an adjoint with the singular vectors and the rank that V permits.
At the optimum the singular values of :math:`A^\top\lambda` vanish wherever the singular values of V are below the norm.
The dual norm sums them, so their rounding affects the first digits of the bound. Two kinds of least-squares problems
correct it. The first is the smallest relative change of the multipliers of active constraints that aligns
:math:`A^\top\lambda` with the singular vectors of V. The second is Newton's method on the part of :math:`A^\top\lambda`
outside its leading singular vectors.

The sum of absolute entries and the largest entry give linear programs. The active constraints, and the entries that are
not zero (or below the bound), determine a vertex. V and the multipliers each solve a linear system there.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.reduction import constraint_rows
from attsvm.solvers.common.relative_change import relative_change
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.common.ties import Ties
from attsvm.solvers.interior_point.engine import InteriorPoint

ALIGNMENT_CORRECTIONS = 3
# Change of the objective along a face below which it counts as flat, and number of ends of faces visited.
FLAT_CHANGE, PIVOTS = 1e-12, 10


class Active:
    """The multipliers that a correction may change: of active constraints (rows, columns) and of the ties' basis.

    Parameters
    ----------
    dual, slack : ndarray, shape (n, T)
        Multipliers and slacks of the inequalities. An inequality is active if its multiplier exceeds its slack.
    tie : ndarray, shape (k,)
    constant : ndarray, shape (n, T), optional
        Fixed multipliers of constraints that keep a loss; zero elsewhere.

    Attributes
    ----------
    values, size : ndarray, shape (J + k,)
        The multipliers that change, and the unit of each change.
    """

    def __init__(
        self, ties: Ties, dual: np.ndarray, slack: np.ndarray, tie: np.ndarray, constant: np.ndarray | None = None
    ) -> None:
        self._ties = ties
        self.constant = np.zeros(dual.shape) if constant is None else constant
        self.rows, self.columns = np.nonzero((dual > slack) & (self.constant == 0.0))
        values = dual[self.rows, self.columns]
        self.values = np.append(values, tie)
        self.size = np.append(values, np.full(len(tie), float(dual.max(initial=0.0)) or 1.0))

    @classmethod
    def of(cls, setting: Setting, method: InteriorPoint) -> Active:
        """Read the active constraints from an iterate."""
        x, upper = method.point, setting.terms.upper
        short = (x.dual > x.slack) & (x.loss > x.other) & setting.terms.rejected & np.isfinite(upper)
        return cls(setting.ties, x.dual, x.slack, method.term.tie, np.where(short, upper, 0.0))

    def join(self, row: int, column: int) -> None:
        """Let another multiplier change."""
        count = len(self.rows)
        self.values = np.insert(self.values, count, self.constant[row, column])
        self.size = np.insert(self.size, count, self.size.max(initial=0.0) or 1.0)
        self.rows, self.columns = np.append(self.rows, row), np.append(self.columns, column)
        self.constant[row, column] = 0.0

    def move(self, rows: np.ndarray, target: np.ndarray) -> None:
        """Change the multipliers as little as possible, relatively, so that multipliers @ rows (J + k, N) = target."""
        self.values = self.values + self.size * relative_change(rows, self.values, self.size, target)

    def scatter(self) -> np.ndarray:
        """Multipliers of every constraint, (n, T)."""
        dual, count = self.constant.copy(), len(self.rows)
        dual[self.rows, self.columns] = self.values[:count]
        return dual + self._ties.tie_multipliers(self.values[count:])


def aligned_multipliers(setting: Setting, method: InteriorPoint) -> np.ndarray:
    """Correct the multipliers (n, T) of an iterate that has nearly converged.

    Parameters
    ----------
    setting : Setting
        The method's setting, without squared loss.
    method : InteriorPoint
        A method with the spectral norm's term.
    """
    V, reduced, active = method.term.V, setting.reduced, Active.of(setting, method)
    delta, queries = reduced.factors_at(active.rows, active.columns)
    basis = setting.ties.basis.reshape(-1, *V.shape)
    force = reduced.adjoint(active.constant)
    U, sigma, Vt = np.linalg.svd(V)
    weight = np.linalg.svd(reduced.adjoint(active.scatter()), compute_uv=False)
    k = max(1, int(np.count_nonzero(1.0 - sigma / sigma[0] < weight / weight.sum())))
    outside = np.ones(V.shape, dtype=bool)
    outside[:k, :k] = False
    for _ in range(ALIGNMENT_CORRECTIONS):
        rows = constraint_rows(delta @ U, queries @ Vt.T).reshape(-1, *V.shape)
        rotations = np.concatenate([rows, U.T @ basis @ Vt.T])
        fixed = U.T @ force @ Vt.T
        trace = np.trace(rotations[:, :k, :k], axis1=1, axis2=2)
        target = np.append(-fixed[outside], 1.0 - np.trace(fixed[:k, :k]))
        active.move(np.column_stack([rotations[:, outside], trace]), target)
        U, _, Vt = np.linalg.svd(reduced.adjoint(active.scatter()))
        outside[:k], outside[:, :k] = False, False  # errors of the leading vectors themselves enter squared
    return active.scatter()


def vertex(setting: Setting, method: InteriorPoint, shared: bool) -> tuple[np.ndarray, np.ndarray]:
    """Solve for V (p, r) and multipliers (n, T) at the vertex that an iterate has nearly reached.

    If the multipliers' system has no solution, the iterate is on a face along which the objective falls too slowly to
    converge. V then moves to the end of the face, as in a step of the primal simplex method.

    Parameters
    ----------
    setting : Setting
        The method's setting, without squared loss.
    method : InteriorPoint
        A method with the term of a linear program.
    shared : bool
        Whether the norm is the largest entry, not the sum of absolute entries.
    """
    term, active = method.term, Active.of(setting, method)
    if shared:
        free = np.minimum(term.above, term.below) > np.maximum(term.upper, term.lower)
    else:
        free = np.minimum(term.upper, term.lower) < np.maximum(term.above, term.below)
    V, fall = _nearest_vertex(setting, term.V, active, free, shared)
    for _ in range(PIVOTS):
        if not np.abs(fall).max() > FLAT_CHANGE or not _pivot(setting, V, fall, active, free, shared):
            break
        V, fall = _nearest_vertex(setting, V, active, free, shared)
    return V, active.scatter()


def _nearest_vertex(
    setting: Setting, V: np.ndarray, active: Active, free: np.ndarray, shared: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Solve for V (p, r) and multipliers with given active constraints and free entries, bool (p, r).

    Returns V, and the direction (p, r) along which the objective still falls while these constraints stay active: the
    residual of the multipliers' system, zero if it has a solution.
    """
    reduced, ties, rows, columns = setting.reduced, setting.ties, active.rows, active.columns
    flat, force, loose = V.ravel(), reduced.adjoint(active.constant).ravel(), free.ravel()
    side = np.where(loose, 0.0, np.sign(flat))
    token, query = np.divmod(np.flatnonzero(loose), V.shape[1])
    delta, queries = reduced.factors_at(rows, columns)
    matrix = np.vstack([delta[:, token] * queries[:, query], ties.basis[:, loose]])
    entries, right = flat[loose], np.sign(flat[loose]) - force[loose]
    if shared:
        along = np.append(reduced.apply(side.reshape(V.shape))[rows, columns], ties.basis @ side)
        matrix = np.column_stack([matrix, along])
        entries, right = np.append(entries, np.abs(flat).max()), np.append(-force[loose], 1.0 - force @ side)
    demand = np.append(setting.terms.cost[rows, columns], -(ties.basis @ setting.prior.ravel()))
    size = np.abs(entries)
    entries = entries + size * relative_change(matrix.T, entries, size, demand)
    active.move(matrix, right)

    def scatter(entries: np.ndarray) -> np.ndarray:
        out = entries[-1] * side if shared else np.zeros(flat.shape)
        out[loose] = entries[:-1] if shared else entries
        return out.reshape(V.shape)

    return scatter(entries), scatter(active.values @ matrix - right)


def _pivot(setting: Setting, V: np.ndarray, fall: np.ndarray, active: Active, free: np.ndarray, shared: bool) -> bool:
    """Move V (p, r), in place, along ``fall`` to the first bound or constraint, which becomes free or active."""
    if shared and free.all():
        return False
    with np.errstate(divide="ignore", invalid="ignore"):
        if shared:
            level, change = np.abs(V).max(), float((fall * np.sign(V))[~free][0])
            steps = np.minimum(_until_zero(level - V, change - fall), _until_zero(level + V, change + fall))
        else:
            steps = _until_zero(V, fall)
        slack = setting.reduced.apply(V) - setting.terms.cost
        waits = _until_zero(slack, setting.reduced.apply(fall))
    steps, idle = np.where(free, steps, np.inf), setting.terms.rejected.copy()
    idle[active.rows, active.columns] = False
    waits = np.where(idle, waits, np.inf)
    step = min(float(steps.min()), float(waits.min()))
    if not np.isfinite(step):
        return False
    V += step * fall
    if steps.min() <= waits.min():
        entry = divmod(int(steps.argmin()), V.shape[1])
        free[entry] = False
        V[entry] = np.sign(V[entry]) * np.abs(V).max() if shared else 0.0
    else:
        active.join(*divmod(int(waits.argmin()), waits.shape[1]))
    return True


def _until_zero(value: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Compute the step lengths after which values reach zero, infinite for values that move away from zero."""
    return np.where(value * change < 0, -value / change, np.inf)
