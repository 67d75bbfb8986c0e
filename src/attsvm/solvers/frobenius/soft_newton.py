r"""Newton on the dual of the Frobenius problem with bounded multipliers.

The dual, :math:`\max c^\top\lambda - \tfrac12\lambda^\top(K + \epsilon I)\lambda` over :math:`0 \le \lambda \le C`,
is solved on a working set: the multipliers strictly between their bounds, the tied ones, and the worst of those that
want to leave a bound. All others enter through :math:`W = A^\top\lambda` alone, so the many multipliers at C that a
selection far from separable has cost nothing. Each step is projected onto the box (Bertsekas, SIAM J. Control Optim.
20, 1982); where the projected step does not ascend, the step to the nearest bound does.
"""

from __future__ import annotations

import numpy as np

from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.newton import RIDGE, regularised_solve

INNER_STEPS = 20
SMALLEST_GROWTH = 64
# A slope below this part of the margin asked for is rounding.
LEVEL = 1e-13


def polish(setting: Setting, dual: np.ndarray, control: Control, *, rounds: int, working_set: int) -> np.ndarray:
    """Improve multipliers by Newton steps on growing working sets.

    Parameters
    ----------
    setting : Setting
    dual : ndarray, shape (n, T)
        Starting multipliers, within their bounds; not modified.
    control : Control
    rounds : int
        Largest number of working sets tried.
    working_set : int
        Largest size of a working set; the method ends when more would be needed.

    Returns
    -------
    ndarray, shape (n, T)
        The last multipliers; the best ones are with ``control``.
    """
    reduced, terms = setting.reduced, setting.terms
    dual = dual.copy()
    for _ in range(rounds):
        pulled = reduced.adjoint(dual)
        if setting.report(pulled, dual, control):
            break
        slope = terms.cost - reduced.apply(pulled) - terms.shift * np.where(terms.rejected, dual, 0.0)
        rows, columns = _choose(setting, dual, slope, working_set)
        if not 0 < len(rows) <= working_set:
            break
        delta, queries = reduced.delta[rows, columns], reduced.queries[rows]
        gram = (delta @ delta.T) * (queries @ queries.T)
        free = reduced.tied[rows, columns]
        gram[np.diag_indices(len(rows))] += np.where(free, 0.0, terms.shift)
        before = dual[rows, columns]
        after = _ascend(gram, slope[rows, columns], before, free, terms.upper)
        if (after == before).all():
            break
        dual[rows, columns] = after
    return dual


def _choose(setting: Setting, dual: np.ndarray, slope: np.ndarray, working_set: int) -> tuple[np.ndarray, np.ndarray]:
    """Pick inner multipliers, ties, and the worst of those that want to leave a bound, as many again."""
    terms = setting.terms
    inner = terms.rejected & (dual > 0) & (dual < terms.upper) | terms.tied
    level = LEVEL * max(1.0, float(np.abs(terms.cost).max()))
    leaving = terms.rejected & ~inner & np.where(dual > 0, slope < -level, slope > level)
    held = int(inner.sum())
    count = min(int(leaving.sum()), max(SMALLEST_GROWTH, held), max(0, working_set - held))
    chosen = inner
    if count > 0:
        strength = np.where(leaving, np.abs(slope), -np.inf).ravel()
        chosen.ravel()[np.argpartition(strength, -count)[-count:]] = True
    rows, columns = np.nonzero(chosen)
    return rows, columns


def _ascend(gram: np.ndarray, slope: np.ndarray, start: np.ndarray, free: np.ndarray, upper: float) -> np.ndarray:
    """Maximise slope.e - e.gram.e/2 over steps e that keep start + e within its bounds; returns start + e, (J,)."""
    ridge = RIDGE * float(np.diag(gram).max())
    value = start.copy()
    for _ in range(INNER_STEPS):
        now = slope - gram @ (value - start)
        moving = free | ((value > 0) | (now > 0)) & ((value < upper) | (now < 0))
        if not moving.any():
            break
        step = np.zeros_like(value)
        held = value[moving]
        step[moving] = regularised_solve(gram[np.ix_(moving, moving)], held, now[moving], ridge) - held
        best, best_gain = None, 0.0
        for length in _lengths(value, step, free, upper):
            trial = value + length * step
            trial = np.where(free, trial, np.clip(trial, 0.0, upper))
            change = trial - value
            gain = float(now @ change - 0.5 * change @ (gram @ change))
            if gain > best_gain:
                best, best_gain = trial, gain
        if best is None:
            break
        settled = bool((best == value + step).all())
        value = best
        if settled:
            left = slope - gram @ (value - start)
            if not (~free & ((value == 0) & (left > LEVEL) | (value == upper) & (left < -LEVEL))).any():
                break
    return value


def _lengths(value: np.ndarray, step: np.ndarray, free: np.ndarray, upper: float) -> tuple[float, ...]:
    """Step lengths worth trying: the full one and fractions of it, and the one to the first bound met."""
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(step > 0, (upper - value) / step, np.where(step < 0, -value / step, np.inf))
    inner = room[~free & (room > 0)]
    nearest = float(inner.min(initial=1.0))
    return (1.0, 0.5, 0.25, 0.125, 0.03, 0.01) if nearest == 1.0 else (1.0, 0.5, 0.25, 0.125, 0.03, 0.01, nearest)
