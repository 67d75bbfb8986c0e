r"""Sum of absolute entries and largest entry from the solution of a similar problem: a parametric simplex method.

Both are linear programs, and a vertex is known by its tight constraints J and the state of every entry of W: zero or
of a sign (l_1), free or at :math:`\pm t` (largest entry). The vertex of the earlier pair :math:`(W', \lambda')` is
optimal for

.. math:: \min \|W\| + \mu\langle G, W\rangle \quad \text{subject to} \quad A(W) \ge 1 + \mu h, \qquad \mu = 1,

when h and G are what that pair leaves of the conditions of optimality on the new tokens. As :math:`\mu` falls to zero
the solution moves along straight lines; whenever a slack, a multiplier, an entry or a reduced cost would change its
sign, one exchange keeps the vertex optimal (the self-dual parametric simplex method: Dantzig, *Linear Programming and
Extensions*, 1963, section 11-3; Vanderbei, *Linear Programming*, chapter 7). On tokens that hardly moved the way has no
or a few exchanges, each a factorisation in the size of J. It is given up when it becomes long, or when the earlier
solution is degenerate: then no square system tells the vertex.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import get_lapack_funcs

from attsvm.core.norms import Norm
from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.evaluation import report
from attsvm.solvers.common.ties import Ties

GETRF, GETRS = get_lapack_funcs(("getrf", "getrs"), dtype=np.float64)
# Gap of the earlier pair above which its vertex says too little.
FAR = 0.3
# Parts of the largest below which multipliers, entries and distances to the bound count as zero. An interior point
# leaves them below 1e-6 when its gap is 1e-9; the others are tried where the first gives no square system.
THRESHOLDS = (1e-6, 1e-5, 1e-7)
# The way is given up after this many exchanges, or this part of the size of the basis, or when so many are in sight.
FEWEST, PART = 8, 0.15
# Conditions violated by less than this part of their scale hold to rounding.
NOISE = 1e-12


def pursue_linear(reduced: Reduced, norm: Norm, W: np.ndarray, dual: np.ndarray, control: Control) -> bool:
    """Follow the vertex of a similar problem's solution to this problem's.

    Parameters
    ----------
    reduced : Reduced
    norm : Norm
        Entrywise with p = 1 or infinite.
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
    shared = math.isinf(norm.power or 0.0)
    way = _begin(reduced, shared, W / reduced.min_margin(reduced.apply(W)), dual)
    if way is None:
        return False
    longest = max(FEWEST, int(PART * way.degree))
    for _ in range(longest):
        if not way.solve() or len(way.violated) > longest:
            return False
        if not len(way.violated):
            W, dual = way.end()
            return report(reduced, norm, W, dual, control)
        if control.observe(None, np.inf, None, 0.0):
            return True
        if not way.exchange():
            return False
    return False


def _begin(reduced: Reduced, shared: bool, W: np.ndarray, dual: np.ndarray) -> Way | None:
    """Read the vertex off a pair; None when it has no square system."""
    ties, flat = Ties(reduced), W.ravel()
    top = float(np.abs(flat).max())
    dual = np.where(reduced.rejected, np.maximum(dual, 0.0), dual)
    inner = dual[reduced.rejected]
    for threshold in THRESHOLDS:
        active = inner > threshold * float(inner.max())
        at = np.abs(flat) > (1.0 - threshold if shared else threshold) * top
        basic = 1 + np.count_nonzero(~at) if shared else np.count_nonzero(at)
        if basic == np.count_nonzero(active) + len(ties.basis):
            return Way(reduced, ties, shared, active, np.where(at, np.sign(flat), 0.0), flat, dual)
    return None


class Way:
    """The vertex on its way from mu = 1 to mu = 0.

    Conditions are kept in one array: slacks (c,), what entries leave of their upper and of their lower bound (p r,)
    each, multipliers (c,), what reduced costs leave of both bounds; zero where a condition does not apply.

    Parameters
    ----------
    reduced : Reduced
    ties : Ties
    shared : bool
        One bound t for all entries (the largest entry) instead of one each (l_1).
    active : ndarray of bool, shape (c,)
        J, among the rejected tokens.
    side : ndarray, shape (p r,)
        Signs of the entries that are not zero (l_1) or at a bound (largest entry); 0 for the others.
    W : ndarray, shape (p r,)
        Smallest margin one.
    dual : ndarray, shape (n, T)

    Attributes
    ----------
    violated : ndarray of int
        Conditions that do not hold at mu = 0 with the present vertex.
    """

    def __init__(
        self,
        reduced: Reduced,
        ties: Ties,
        shared: bool,
        active: np.ndarray,
        side: np.ndarray,
        W: np.ndarray,
        dual: np.ndarray,
    ) -> None:
        self.reduced, self.ties, self.shared = reduced, ties, shared
        self.active, self.side = active, side
        self._mu = 1.0
        self._rows, self._columns = np.nonzero(reduced.rejected)
        self._count, self._size = len(self._rows), len(W)
        at, top = side != 0, float(np.abs(W).max())
        if shared:
            W = np.where(at, top * side, W)
        else:
            W = np.where(at, W, 0.0)
        # What is violated holds at mu = 1 with as much to spare, so that exchanges come one at a time.
        short = self._margins(W) - 1.0
        self._h = np.where(active, short, np.minimum(2.0 * short, 0.0))
        self._h_tie = ties.basis @ W
        inner = np.where(reduced.rejected, 0.0, dual)
        inner[self._rows[active], self._columns[active]] = dual[self._rows[active], self._columns[active]]
        pulled = reduced.adjoint(inner).ravel()
        size = np.abs(pulled)
        if shared:
            total = max(float(size[at].sum()), 1e-300)
            self._G = (pulled - np.where(at, side * size, 0.0)) / total
        else:
            size, pulled = size / size[at].mean(), pulled / size[at].mean()
            self._G = pulled - np.where(at, side, np.sign(pulled) * np.minimum(size, 2.0 - size))
        # Multipliers sum to the norm, reduced costs to one or to one each.
        spread = top * (1.0 if shared else np.count_nonzero(at)) / max(1, np.count_nonzero(active))
        self._noise = NOISE * np.repeat(
            [1.0, top, spread, 1.0 / max(1, np.count_nonzero(at)) if shared else 1.0],
            [self._count, 2 * self._size, self._count, 2 * self._size],
        )

    @property
    def degree(self) -> int:
        """Number of tight constraints, ties included."""
        return int(np.count_nonzero(self.active)) + len(self.ties.basis)

    def _margins(self, W: np.ndarray) -> np.ndarray:
        return self.reduced.apply(W.reshape(self.reduced.shape))[self._rows, self._columns]

    def solve(self) -> bool:
        """Factor the vertex and find what it violates at mu = 0; False when its system is singular."""
        held = np.flatnonzero(self.active)
        self._tight = self.ties.constraints(self._rows[held], self._columns[held])  # (m, p r)
        self._held = held
        self._basic = np.flatnonzero((self.side == 0) == self.shared)
        system = self._tight[:, self._basic]
        if self.shared:
            system = np.column_stack([system, self._tight @ self.side])
        self._factor, self._pivots, failed = GETRF(system)
        if failed:
            return False
        ties = len(self._h_tie)
        right = np.column_stack(
            [np.append(np.ones(len(held)), np.zeros(ties)), np.append(self._h[self.active], self._h_tie)]
        )
        costs = np.zeros(self._size) if self.shared else self.side
        left = np.column_stack([self._on_basis(costs, 1.0), self._on_basis(self._G, 0.0)])
        x, y = self._solved(right), self._solved(left, transposed=True)
        self._x, self._y = x[:, 0], y[:, 0]
        now, change = [], []
        for k, out in enumerate((now, change)):
            W, t = self._entries(x[:, k])
            out.append(self._primal(W, t, 1.0 if k == 0 else self._h))
            out.append(self._dual(y[:, k], y[:, k] @ self._tight - (0.0 if k == 0 else self._G), 1.0 - k))
        self._now, self._change = np.concatenate(now), np.concatenate(change)
        self._t = self._entries(x @ [1.0, self._mu])[1]
        self.violated = np.flatnonzero(self._now < -self._noise)
        return bool(np.isfinite(self._now).all())

    def end(self) -> tuple[np.ndarray, np.ndarray]:
        """W (p, r) and multipliers (n, T) at mu = 0."""
        W, _ = self._entries(self._x)
        dual = self.ties.tie_multipliers(self._y[len(self._held) :])
        dual[self._rows[self._held], self._columns[self._held]] = self._y[: len(self._held)]
        return self.ties.project(W.reshape(self.reduced.shape)), dual

    def exchange(self) -> bool:
        """Lower mu to where the first condition fails and mend it; False when that is not possible."""
        violated, c, size = self.violated, self._count, self._size
        slope = self._change[violated]
        if not (slope > 0).all():
            return False
        at = -self._now[violated] / slope
        first = int(violated[at.argmax()])
        self._mu = min(self._mu, float(at.max()))
        values = np.maximum(self._now + self._mu * self._change, 0.0)
        half = c + 2 * size
        enters_dual = first < half
        index = first if enters_dual else first - half
        entry = (index - c) % size
        sign = 1.0 if index < c + size else -1.0
        if enters_dual:
            slope, length = self._relax_primal(index, entry, sign)
            values = values[half:]
        else:
            slope, length = self._relax_dual(index, entry, sign)
            values = values[:half]
        falling = slope < -1e-11 * float(np.abs(slope).max(initial=0.0))
        if falling.any():
            lengths = np.full(half, np.inf)
            lengths[falling] = values[falling] / -slope[falling]
            other = int(lengths.argmin())
            if lengths[other] < length:
                self._switch(other, not enters_dual)
                self._switch(index, enters_dual)
                return True
        if not np.isfinite(length):
            return False
        self.side[entry] = -self.side[entry]  # it crosses to its other side before anything else gives way
        return True

    def _switch(self, index: int, primal: bool) -> None:
        """Turn over the state of a constraint or an entry whose condition on the primal (or dual) side has failed."""
        c = self._count
        if index < c:
            self.active[index] = primal
            return
        sign = 1.0 if index < c + self._size else -1.0
        entry = (index - c) % self._size
        self.side[entry] = sign if primal == self.shared else 0.0

    def _relax_primal(self, index: int, entry: int, sign: float) -> tuple[np.ndarray, float]:
        """Rates of multipliers and reduced costs once a primal condition becomes tight, and the entry's own limit."""
        length = np.inf
        added = np.zeros(self._size)
        if index < self._count:
            row, column = self._rows[index], self._columns[index]
            added = np.outer(self.reduced.delta[row, column], self.reduced.queries[row]).ravel()
            right = -self._on_basis(added, 0.0)
        else:
            unit = np.zeros(self._size)
            if self.shared:
                unit[entry] = sign
                right = self._on_basis(unit, 0.0)
                right[-1] = -1.0
            else:
                unit[entry] = -self.side[entry]
                right = self._on_basis(unit, 0.0)
                length = 2.0
        y = self._solved(right, transposed=True)
        return self._dual(y, y @ self._tight + added, 0.0), length

    def _relax_dual(self, index: int, entry: int, sign: float) -> tuple[np.ndarray, float]:
        """Rates of slacks and entries once a multiplier or reduced cost meets its bound, and the entry's own limit."""
        length = np.inf
        unit = np.zeros(self._size)
        if index < self._count:
            right = np.zeros(len(self._tight))
            right[int(np.searchsorted(self._held, index))] = 1.0
        else:
            unit[entry] = -self.side[entry] if self.shared else sign
            right = -self._tight[:, entry] * unit[entry]
        x = self._solved(right)
        W, t = self._entries(x)
        if self.shared and index >= self._count and 2.0 * t < 1.0:
            length = 2.0 * self._t / (1.0 - 2.0 * t)
        return self._primal(W + unit, t, 0.0), length

    def _solved(self, right: np.ndarray, *, transposed: bool = False) -> np.ndarray:
        return GETRS(self._factor, self._pivots, right, trans=int(transposed))[0]

    def _entries(self, x: np.ndarray) -> tuple[np.ndarray, float]:
        """W (p r,) and t of basic variables."""
        W = np.zeros(self._size)
        if not self.shared:
            W[self._basic] = x
            return W, 0.0
        W[self._basic] = x[:-1]
        return W + x[-1] * self.side, float(x[-1])

    def _on_basis(self, costs: np.ndarray, bound: float) -> np.ndarray:
        """Costs of the basic variables, from costs (p r,) of the entries and the one of t."""
        inner = costs[self._basic]
        return np.append(inner, bound + float(costs @ self.side)) if self.shared else inner

    def _primal(self, W: np.ndarray, t: float, offset: np.ndarray | float) -> np.ndarray:
        slack = np.where(self.active, 0.0, self._margins(W) - offset)
        if self.shared:
            free = self.side == 0
            return np.concatenate([slack, np.where(free, t - W, 0.0), np.where(free, t + W, 0.0)])
        return np.concatenate([slack, self.side * W, np.zeros(self._size)])

    def _dual(self, y: np.ndarray, costs: np.ndarray, bound: float) -> np.ndarray:
        multipliers = np.zeros(self._count)
        multipliers[self._held] = y[: len(self._held)]
        if self.shared:
            return np.concatenate([multipliers, self.side * costs, np.zeros(self._size)])
        free = self.side == 0
        return np.concatenate([multipliers, np.where(free, bound - costs, 0.0), np.where(free, bound + costs, 0.0)])
