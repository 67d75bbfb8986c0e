r"""The end of a hard margin in the Frobenius norm with nearly as many active constraints as W has entries.

There Newton's method hardly ends: second derivatives :math:`A_J A_J^\top` of the multipliers in doubt are nearly
singular, so that its steps are long and soon meet a bound, and a few multipliers leave for each factor. From
multipliers near the solution, exchanges of :mod:`attsvm.solvers.frobenius.active_set` are the shorter way: LAPACK makes
one Cholesky factor of all that are positive, and each exchange changes that at the cost of its square. On the way as
many constraints may be held as W has entries; a violated one then takes the place of one that is held.

The dual :math:`\max c^\top\lambda - \tfrac12 \|A^\top\lambda\|^2` is solved as it is. As the least-squares problem that
has a solution even where there is no W, its matrix would have a condition larger by :math:`\|W\|^2`.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, solve_triangular

from attsvm.core.kernels import call
from attsvm.solvers.common.cholesky import lower_factor
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.active_set import PassiveSet, exchange_by_gram, exchange_dependent
from attsvm.solvers.frobenius.newton import newton
from attsvm.solvers.schedule import BLOCKED, COMPILED, NEARLY_SQUARE, OVERHEAD, WARM_ROUNDS, Steps

# Constraints whose Gram matrix is formed, at most.
LARGEST = 8000
# Exchanges between looks at the gap; margins may fall short by this part of the gap, or by what rounding does.
EXCHANGES, SHARE, ROUNDING = 32, 0.1, 1e-16


def nearly_square(setting: Setting, dual: np.ndarray) -> bool:
    """Whether nearly as many multipliers (n, T) are positive as V has entries, of a set whose Gram matrix is formed."""
    terms, entries = setting.terms, int(np.prod(setting.reduced.shape))
    if int((terms.rejected | terms.tied).sum()) > LARGEST:
        return False
    return int(setting.inner(dual).sum()) >= NEARLY_SQUARE * entries


def solve_by_gram(setting: Setting, control: Control, start: np.ndarray) -> Steps:
    """Solve a hard margin without a prior that has a W, leaving W and multipliers with ``control``.

    ``start`` (n, T) is near the solution's multipliers, on the scale of W = A^T start, and not modified.
    """
    reduced, terms = setting.reduced, setting.terms
    rows, columns = np.nonzero(terms.rejected | terms.tied)
    cost, free = terms.cost[rows, columns], terms.tied[rows, columns]
    gram = reduced.gram(rows, columns)
    yield OVERHEAD + len(rows) ** 2 * sum(reduced.shape) / BLOCKED
    values = terms.clip(start)[rows, columns]
    order = np.lexsort((-values, ~free))
    largest = order[free[order] | (values[order] > 0.0)][: int(np.prod(reduced.shape))]
    yield len(largest) ** 3 / 3.0 / BLOCKED
    try:
        passive = _held(gram, cost, free, values, largest, min(len(rows), int(np.prod(reduced.shape))))
    except LinAlgError:  # dependent to rounding
        yield from newton(setting, terms.clip(start), control, rounds=WARM_ROUNDS)
        return None
    size, dual = len(largest), np.zeros(terms.cost.shape)
    rounding = ROUNDING * float(np.diag(gram).max()) * float(np.abs(values).sum())
    tol, exchanges = max(SHARE * control.tol, rounding), 0
    while exchanges < len(rows):
        work = EXCHANGES * (len(rows) * size + 3.0 * size**2)
        size, steps, ended = call(exchange_by_gram, work, gram, cost, free, passive, size, tol, EXCHANGES)
        exchanges += steps
        dual[:], held = 0.0, passive.members[:size]
        dual[rows[held], columns[held]] = passive.values[:size]
        V = reduced.adjoint(dual)
        if setting.report(V, dual, control, adjoint=V, steps=steps):
            return None
        yield steps * work / EXCHANGES / COMPILED
        if ended:
            size, changed = call(exchange_dependent, work / EXCHANGES, gram, cost, free, passive, size, tol)
            if not changed:
                break
    yield from newton(setting, dual, control, rounds=WARM_ROUNDS)
    return None


def _held(
    gram: np.ndarray, cost: np.ndarray, free: np.ndarray, values: np.ndarray, members: np.ndarray, capacity: int
) -> PassiveSet:
    """Hold constraints (k,) with one factor; raises LinAlgError where they are dependent."""
    size = len(members)
    passive = PassiveSet(
        factor=np.zeros((capacity, capacity)),
        solved=np.zeros(capacity),
        members=np.zeros(capacity, dtype=np.int64),
        free=np.zeros(capacity, dtype=np.bool_),
        values=np.zeros(capacity),
        work=np.zeros((3, capacity)),
    )
    lower, _ = lower_factor(gram[np.ix_(members, members)])
    passive.factor[:size, :size] = lower
    passive.solved[:size] = solve_triangular(lower, cost[members], lower=True, check_finite=False)
    passive.members[:size], passive.free[:size], passive.values[:size] = members, free[members], values[members]
    return passive
