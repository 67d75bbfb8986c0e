r"""Norms of the entries in closed form, for constraints that separate over columns.

The norm is the l_q norm of the l_p norms of the columns; l_p itself is the case q = p. It is smallest if the l_p norm
of every column is. In a column, preferred scores rise to a threshold t and others fall to it, as in
:mod:`.projection`. The threshold balances :math:`\sum|\Delta s|^{p-1}` over rising and falling scores: it is a median
for p = 1, and halfway between the extreme scores for the largest entry. These powers, scaled to dual norm one, are the
adjoint of the multipliers that prove it (Rockafellar, *Convex Analysis*, theorem 27.4). Columns are weighted by the
gradient of the outer norm.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.core.columns import Columns
from attsvm.core.norms import Norm
from attsvm.core.norms.entrywise import Entrywise
from attsvm.core.norms.mixed import Mixed

# Number of halvings of a threshold's bracket: to the last bit of a double.
BRACKET_HALVINGS = 80


def exponents_of(norm: Norm) -> tuple[float, float] | None:
    """Return p within a column and q across columns; None for other norms."""
    if isinstance(norm, Entrywise):
        return norm.p, norm.p
    return (norm.p, norm.q) if isinstance(norm, Mixed) and norm.axis == "columns" else None


def least_change(columns: Columns, V: np.ndarray, p: float, q: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the least change of scores V (T, G) that satisfies the constraints, and the adjoint that proves it."""
    value = V - columns.demand
    t = {1.0: _median, math.inf: _middle}.get(p, lambda *arguments: _balance(*arguments, p=p))(columns, value)
    rise = t - value
    equal = columns.preferred & columns.tied
    change = np.where(equal | (columns.preferred & (rise > 0)) | (columns.others & (rise < 0)), rise, 0.0)
    if math.isinf(p):
        adjoint = _ends(columns, value)
    elif p == 1.0:
        adjoint = _signs(columns, change, rise == 0)
    else:
        adjoint = np.sign(change) * (np.abs(change) / np.maximum(_sizes(change, p), np.finfo(float).tiny)) ** (p - 1.0)
    size = _sizes(change, p)
    top = float(size.max())
    if top == 0.0:
        return change, np.zeros(change.shape)
    weight = (
        np.arange(len(size)) == size.argmax() if math.isinf(q) else np.where(size > 0, (size / top) ** (q - 1.0), 0)
    )
    return change, adjoint * weight


def _sizes(change: np.ndarray, p: float) -> np.ndarray:
    """Measure each column of (T, G) in l_p."""
    top = np.abs(change).max(axis=0)
    if math.isinf(p):
        return top
    return top * ((np.abs(change) / np.where(top > 0, top, 1.0)) ** p).sum(axis=0) ** (1.0 / p)


def _ceilings(columns: Columns, value: np.ndarray) -> np.ndarray:
    """Scores minus their demands (T, G) if they may have to fall, else minus infinity."""
    return np.where(columns.others | (columns.preferred & columns.tied), value, -np.inf)


def _floors(columns: Columns, value: np.ndarray) -> np.ndarray:
    """Scores minus their demands (T, G) if they may have to rise, else infinity."""
    return np.where(columns.preferred, value, np.inf)


def _middle(columns: Columns, value: np.ndarray) -> np.ndarray:
    """Thresholds (G,) halfway between the extreme scores that move."""
    low = _floors(columns, value).min(axis=0)
    return low + 0.5 * np.maximum(_ceilings(columns, value).max(axis=0) - low, 0.0)


def _ends(columns: Columns, value: np.ndarray) -> np.ndarray:
    """Adjoints (T, G) on the two scores of each column that violate the constraints most."""
    out, all_columns = np.zeros(value.shape), np.arange(value.shape[1])
    out[_floors(columns, value).argmin(axis=0), all_columns] = 0.5
    out[_ceilings(columns, value).argmax(axis=0), all_columns] -= 0.5
    return out


def _median(columns: Columns, value: np.ndarray) -> np.ndarray:
    """Thresholds (G,) to which the same number of scores rise and fall."""
    equal = columns.preferred & columns.tied
    involved = columns.preferred | columns.others
    order = np.where(involved, value, np.inf).argsort(axis=0, kind="stable")
    steps = np.take_along_axis(np.where(equal, 2, involved), order, axis=0).cumsum(axis=0)
    first = (steps >= (columns.others | equal).sum(axis=0)).argmax(axis=0)
    return np.take_along_axis(np.take_along_axis(value, order, axis=0), first[None], axis=0)[0]


def _signs(columns: Columns, change: np.ndarray, at_threshold: np.ndarray) -> np.ndarray:
    """Signs of the changes (T, G); signs at the threshold are divided so that every column sums to zero."""
    signs = np.sign(change)
    excess = signs.sum(axis=0)
    up, down = at_threshold & columns.preferred, at_threshold & (columns.others | (columns.preferred & columns.tied))
    share = np.where(excess < 0, up, down)
    return signs - np.where(share, excess / np.maximum(share.sum(axis=0), 1), 0.0)


def _balance(columns: Columns, value: np.ndarray, *, p: float) -> np.ndarray:
    """Thresholds (G,) at which powers of the changes sum to zero."""
    low, high = _floors(columns, value).min(axis=0), _ceilings(columns, value).max(axis=0)
    high = np.maximum(high, low)
    equal = columns.preferred & columns.tied
    unit = np.maximum(high - low, np.finfo(float).tiny)
    for _ in range(BRACKET_HALVINGS):
        t = 0.5 * (low + high)
        rise = (t - value) / unit
        moves = equal | (columns.preferred & (rise > 0)) | (columns.others & (rise < 0))
        excess = np.where(moves, np.sign(rise) * np.abs(rise) ** (p - 1.0), 0.0).sum(axis=0)
        low, high = np.where(excess <= 0, t, low), np.where(excess > 0, t, high)
    return 0.5 * (low + high)
