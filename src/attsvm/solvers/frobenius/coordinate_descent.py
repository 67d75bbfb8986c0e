r"""Dual coordinate descent, one block per query.

The dual of the Frobenius problem, :math:`\max_\lambda c^\top\lambda - \tfrac12\|A^\top\lambda\|_F^2`, is solved one
multiplier at a time in closed form, :math:`\lambda_{it} \leftarrow [\lambda_{it} + (1 - \delta_{it}\cdot
u)/(|\delta_{it}|^2|z_i|^2)]_+` with :math:`u = W z_i` (Hsieh et al., ICML 2008, for the linear SVM). All multipliers of
a query share z_i, so u is computed once per block and updated, and W receives one rank-one update per block. Equalities
have target 0 and no sign. Soft margins bound the multipliers or add to the diagonal, and priors change the targets; the
update stays in closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import boolean, float64, int64, types

from attsvm.core.reduction import Reduced
from attsvm.platform.kernels import FAST, call, compiles, kernel
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.constraints import CONSTRAINTS, Constraints
from attsvm.solvers.schedule import LOOK_OPERATIONS, LOOP_RATE, STREAM_RATE, UPDATE_RATE

# Number of inner passes over the multipliers of one query.
INNER_SWEEPS = 2
# Largest number of seconds of passes in one compiled call, during which Ctrl-C is not handled.
UNHEARD = 0.25


class Dual(NamedTuple):
    """The dual problem in arrays.

    Attributes
    ----------
    squares : ndarray, shape (m,)
        Squared lengths of the token differences.
    cost : ndarray, shape (m,)
        Requested margins: 1 and 0, unless the margin is soft or there is a prior.
    upper, shift : float
        Largest multiplier of rejected tokens, and the number added to their part of the Gram matrix's diagonal.
    """

    constraints: Constraints
    squares: np.ndarray
    cost: np.ndarray
    upper: float
    shift: float


DUAL = types.NamedTuple((CONSTRAINTS, float64[::1], float64[::1], float64, float64), Dual)


@kernel(inner=True, inline="always", fastmath=FAST)
def sweep(problem, dual, W, order, active, full, repeats):
    """Pass once over all queries, updating ``dual`` (m,) and W = A^T dual (p, r) in place.

    Parameters
    ----------
    problem : Dual
    order : ndarray of int, shape (n,)
        Order in which queries are visited.
    active : ndarray of bool, shape (m,)
        Constraints that later passes visit: written by a full pass, read by the others (shrinking).
    full : bool
        Whether to visit every constraint.
    repeats : int
        Inner passes over a query's multipliers.
    """
    (delta, queries, _, first, rejected, tied, _), squares, cost, upper, shift = problem
    n, r = queries.shape
    p = delta.shape[1]
    before = np.empty(p)
    u = np.zeros(p)
    for a in range(p):
        for c in range(r):
            u[a] += W[a, c] * queries[order[0], c]
    for k in range(n):
        i = order[k]
        zz = 0.0
        for c in range(r):
            zz += queries[i, c] * queries[i, c]
        for a in range(p):
            before[a] = u[a]
        update = False
        for repeat in range(repeats):
            for j in range(first[i], first[i + 1]):
                fresh = full and repeat == 0
                if fresh:
                    if not (rejected[j] or tied[j]) or squares[j] * zz == 0.0:
                        continue
                elif not active[j]:
                    continue
                margin = 0.0
                for a in range(p):
                    margin += delta[j, a] * u[a]
                old = dual[j]
                if rejected[j]:
                    new = old + (cost[j] - margin - shift * old) / (squares[j] * zz + shift)
                    new = min(max(new, 0.0), upper)
                else:
                    new = old + (cost[j] - margin) / (squares[j] * zz)
                if fresh:
                    active[j] = new != 0.0 or old != 0.0 or tied[j]
                step = new - old
                if step != 0.0:
                    update = True
                    dual[j] = new
                    for a in range(p):
                        u[a] += step * zz * delta[j, a]
        # W takes its rank-one update and gives the next query its u in one pass over its entries.
        following = queries[order[min(k + 1, n - 1)]]
        for a in range(p):
            value = 0.0
            if update:
                change = (u[a] - before[a]) / zz
                for c in range(r):
                    W[a, c] += change * queries[i, c]
                    value += W[a, c] * following[c]
            else:
                for c in range(r):
                    value += W[a, c] * following[c]
            u[a] = value


@kernel((DUAL, float64[::1], float64[:, ::1], int64[:, ::1], boolean[::1], int64), fastmath=FAST)
def sweeps(problem, dual, W, orders, active, repeats):
    """Make one full pass, then passes over the active constraints; each pass takes a row of ``orders`` (passes, n)."""
    for k in range(len(orders)):
        sweep(problem, dual, W, orders[k], active, k == 0, repeats)


def operations(reduced: Reduced, passes: int) -> float:
    """Estimate the multiplications and additions of a number of passes."""
    return 4.0 * passes * (reduced.delta.size + len(reduced.delta) * float(np.prod(reduced.shape)))


class DualCoordinateDescent:
    """Passes of dual coordinate descent on one problem, with shrinking.

    Parameters
    ----------
    dual : ndarray, shape (n, T)
        Starting multipliers, within their bounds; updated in place.

    Attributes
    ----------
    dual : ndarray, shape (n, T)
    V : ndarray, shape (p, r)
        A^T dual, up to date.
    """

    def __init__(self, setting: Setting, dual: np.ndarray) -> None:
        self.reduced, terms = setting.reduced, setting.terms
        self.dual = dual
        self.V = self.reduced.adjoint(dual)
        constraints = Constraints.of_reduced(self.reduced)
        squares = np.vecdot(constraints.delta, constraints.delta)
        self._problem = Dual(constraints, squares, terms.cost.ravel(), float(terms.upper), float(terms.shift))
        self._active = np.zeros(dual.size, dtype=bool)
        self._random = np.random.default_rng(0)

    def run(self, passes: int, is_over: Callable[[], bool] = lambda: False) -> float:
        """Make one full pass and ``passes - 1`` over the active constraints, in random order, until time is over.

        Returns the work, including a test of the gap.
        """
        data = self.reduced
        orders = self._random.permuted(np.tile(np.arange(len(self.dual)), (passes, 1)), axis=1)
        compiled = compiles(sweeps, operations(data, passes))
        step = max(1, int(UNHEARD * LOOP_RATE / operations(data, 1))) if compiled else 1
        flat = self.dual.reshape(-1)
        for start in range(0, passes, step):
            if is_over():
                break
            part = orders[start : start + step]
            call(sweeps, operations(data, len(part)), self._problem, flat, self.V, part, self._active, INNER_SWEEPS)
        self.V = data.adjoint(self.dual)
        n, T, p = data.delta.shape
        visits = n * T + (INNER_SWEEPS * passes - 1) * int(self._active.sum())
        updates = 4.0 * passes * n * p * data.queries.shape[1]
        return 2.0 * visits * p / LOOP_RATE + updates / UPDATE_RATE + LOOK_OPERATIONS * n * T / STREAM_RATE
