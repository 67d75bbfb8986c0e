r"""The active-set method of :mod:`attsvm.solvers.frobenius.active_set` without the Gram matrix.

Prices come from W: margins of all constraints are two products with W = A^T lam, n p r + n T p operations, where a
general quadratic program spends n T p r on constraints written out. Inner products are needed of the constraints held
only, at most p r + 1 of them, and are (delta . delta)(z . z). Coordinate descent supplies the first guess, so that few
constraints enter one at a time.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.kernels import FAST, call, kernel
from attsvm.core.reduction import Reduced
from attsvm.solvers.common import farkas
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.active_set import append, empty_set, settle
from attsvm.solvers.frobenius.coordinate_descent import INNER_SWEEPS, Dual, sweeps
from attsvm.solvers.frobenius.newton import newton
from attsvm.solvers.schedule import COMPILED, FEW_HELD, FEW_SUPPORTS, PRICED, Steps

# What has become of an instance in a compiled call.
OPEN, SOLVED, VANISHED = 0, 1, 2
PRICE_TOL = 1e-11  # in units of the margin asked for
# With 1 - c.lam below this no W is near; an exchange that does not lower it by this part of itself is rounding.
RESIDUE, PROGRESS = 1e-12, 1e-14
# One violated constraint enters at a time, and another for every so many that are held.
SHARE = 8
# Queries whose best price is above minus this part of rho are looked at again before all are priced anew, where pricing
# costs more than so many times what the factor of the constraints held does. With half the supports as the guess:
# 1000 queries of one direction in 20 dimensions 2.9 ms instead of 5.1, planted (5000, 16, 4) 14 instead of 22; as
# much with .1 and .02.
CLOSE, DEAR = 0.5, 4
CAPACITY = 2000  # constraints held, where memory would otherwise be the limit
# Of the constraints that may be held, the part that a guess opens with: what enters by price is fewer than what would
# have to leave (planted (200, 32, 24) seed 2, 439 of 577 held in the end: 21 ms instead of 45, 13 steps instead of 10).
OPENING_SHARE = 1 / 3
DOUBTFUL = 1e-3  # a rho that may be on its way to zero
ATTEMPTS = 3
EXPECTED = 6  # steps of most runs from a guess
EXCHANGES = 0.02  # seconds of work after which other methods, and the clock, have their turn


def solve_by_prices(setting: Setting, control: Control, start: np.ndarray, share: float = OPENING_SHARE) -> Steps:
    """Solve a hard margin without a prior, leaving W and multipliers with ``control``.

    ``start`` (n, T) is a guess of the multipliers, on the scale of W = A^T start, and not modified. Of the constraints
    that may be held it opens with the part ``share``: one where it comes from the solution of a similar problem.
    """
    reduced = setting.reduced
    n, T, p = reduced.delta.shape
    capacity = min(CAPACITY, int(np.prod(reduced.shape)) + 1, int((reduced.rejected | reduced.tied).sum()))
    pricing = 2.0 * (n * T * p + 2 * n * int(np.prod(reduced.shape)))
    guess = setting.terms.clip(start)
    # Weighing the constraints by the expected norm keeps rho near 1/2, away from rounding, however large W is.
    weight = max(1.0, float(guess[reduced.rejected].sum()))
    guess = _largest(guess, reduced, int(share * capacity)) / weight
    for _ in range(ATTEMPTS):
        while True:
            # Taking up a run again factors the supports anew: that must stay a small part of what it does between.
            size = min(int(np.count_nonzero(guess)), capacity)
            patience = max(8, int(EXCHANGES * COMPILED / (pricing + size * size)), size // 4)
            dual, rho, steps, complete = call(
                exchange,
                min(patience, EXPECTED) * (pricing + size * size) + size**3 / 3.0,
                reduced.delta,
                reduced.queries,
                reduced.rejected,
                reduced.tied,
                guess,
                weight,
                capacity,
                patience,
            )
            control.iterations += steps
            size = max(size, int(np.count_nonzero(dual)))
            yield steps * pricing / PRICED + (4.0 * steps * size**2 + size**3 / 3.0) / COMPILED
            if complete:
                break
            guess = dual
        if rho > RESIDUE:
            values = dual * (weight / rho)
            V = reduced.adjoint(values)
            if setting.report(V, values, control, adjoint=V, steps=0):
                return None
            yield from newton(setting, values, control, rounds=3)
            if control.solved or control.stopped:
                return None
        if rho < DOUBTFUL:
            multipliers = farkas.certificate(reduced, dual, control)
            if multipliers is not None:
                return multipliers
            yield farkas.work(reduced, dual)
        guess, weight = dual, weight * max(1.0, 1.0 / max(rho, RESIDUE) - 1.0)
    return None


def _largest(guess: np.ndarray, reduced: Reduced, count: int) -> np.ndarray:
    """Keep the multipliers (n, T) of so many constraints on rejected tokens, those that move W most."""
    strength = np.where(reduced.rejected, guess * reduced.lengths, 0.0).ravel()
    if np.count_nonzero(strength) <= count:
        return guess
    strongest = reduced.tied.ravel().copy()
    strongest[np.argpartition(strength, -count)[-count:]] = True
    return np.where(strongest.reshape(guess.shape), guess, 0.0)


@kernel(inner=True, fastmath=FAST)
def least_multipliers_by_prices(delta, queries, row, column, free, T, square, passes):
    """Multipliers (m,) of the smallest W, for constraints listed as (delta, row, column).

    They are in units of one over ``square``, the largest square of a constraint. Returns (state, multipliers) as
    :func:`attsvm.solvers.compiled.frobenius.least_multipliers` does; OPEN where Newton would be better.
    """
    m, d = delta.shape
    n, dz = queries.shape
    unit = np.sqrt(square)
    spread, squares, cost = np.zeros((n, T, d)), np.zeros((n, T)), np.zeros((n, T))
    rejected, tied = np.zeros((n, T), dtype=np.bool_), np.zeros((n, T), dtype=np.bool_)
    for k in range(m):
        i, t = row[k], column[k]
        tied[i, t], rejected[i, t] = free[k], not free[k]
        cost[i, t] = 0.0 if free[k] else 1.0
        for a in range(d):
            spread[i, t, a] = delta[k, a] / unit
            squares[i, t] += spread[i, t, a] * spread[i, t, a]
    guess, W, alive = np.zeros((n, T)), np.zeros((d, dz)), np.zeros((n, T), dtype=np.bool_)
    orders = np.empty((passes, n), dtype=np.int64)
    for k in range(passes):
        for i in range(n):
            orders[k, i] = i
    problem = Dual(spread, squares, queries, rejected, tied, cost, np.inf, 0.0)
    sweeps(problem, guess, W, orders, alive, INNER_SWEEPS)
    count, total = 0, 0.0
    for k in range(m):
        value = guess[row[k], column[k]]
        count += value != 0.0
        total += 0.0 if free[k] else value
    values = np.zeros(m)
    if count > FEW_SUPPORTS and d * dz > FEW_HELD:
        return OPEN, values
    weight = max(1.0, total)
    for k in range(m):
        guess[row[k], column[k]] /= weight
    dual, rho, _, _ = exchange(spread, queries, rejected, tied, guess, weight, min(m, d * dz + 1), 1 << 30)
    scale = weight / rho if rho > RESIDUE else 1.0
    for k in range(m):
        values[k] = dual[row[k], column[k]] * scale
    return SOLVED if rho > RESIDUE else VANISHED, values


@kernel(fastmath=FAST)
def exchange(delta, queries, rejected, tied, start, weight, capacity, patience):
    r"""Minimise weight |A^T lam|^2 / 2 + (1 - c.lam)^2 / 2 over lam >= 0 on ``rejected``.

    Parameters
    ----------
    delta : ndarray, shape (n, T, p)
    queries : ndarray, shape (n, r)
    rejected, tied : ndarray of bool, shape (n, T)
    start : ndarray, shape (n, T)
        The support of this guess opens the set of constraints held.
    weight : float
    capacity : int
        Constraints held at most.
    patience : int
        Steps at most.

    Returns
    -------
    dual : ndarray, shape (n, T)
    rho : float
        1 - c.lam, which is twice the minimum.
    steps : int
    complete : bool
        Whether no step is left to take, other than for want of patience.
    """
    n, T, p = delta.shape
    r = queries.shape[1]
    passive = empty_set(capacity)
    members, free, values = passive.members, passive.free, passive.values
    idle, blocked = np.ones((n, T), dtype=np.bool_), np.zeros((n, T), dtype=np.bool_)
    adjoint, W, u = np.empty((n, p)), np.empty((p, r)), np.empty(p)
    prices, places = np.empty(n), np.empty(n, dtype=np.int64)
    candidates, near = np.empty(n, dtype=np.int64), np.int64(0)
    size, steps, rho = np.int64(0), 0, 1.0  # for a literal 0 numba would compile the callees once more
    for equalities in (True, False):
        for i in range(n):
            for t in range(T):
                opens = tied[i, t] if equalities else rejected[i, t] and start[i, t] > 0.0
                if opens and size < capacity and _enter(passive, size, delta, queries, tied, weight, i, t):
                    members[size], free[size], values[size] = i * T + t, equalities, start[i, t]
                    size += 1
    complete = True
    while True:
        size = settle(passive, size)
        if steps == patience:
            complete = False
            break
        steps += 1
        before, rho = rho, 1.0
        for i in range(n):
            for b in range(p):
                adjoint[i, b] = 0.0
            for t in range(T):
                idle[i, t] = True
        for a in range(size):
            i, t = members[a] // T, members[a] % T
            idle[i, t] = False
            if not free[a]:
                rho -= values[a]
            for b in range(p):
                adjoint[i, b] += values[a] * delta[i, t, b]
        if rho <= RESIDUE or (steps > 1 and rho > (1.0 - PROGRESS) * before):
            break
        for b in range(p):
            for c in range(r):
                W[b, c] = 0.0
        for i in range(n):
            for b in range(p):
                for c in range(r):
                    W[b, c] += adjoint[i, b] * queries[i, c]
        quota, arrivals = 1 + size // SHARE, 0
        if n * T * p < DEAR * size * size:
            near = np.int64(0)
        while arrivals == 0:
            full = near == 0
            count, near = n if full else near, np.int64(0)
            for k in range(count):
                i = np.int64(k) if full else candidates[k]
                for b in range(p):
                    u[b] = 0.0
                    for c in range(r):
                        u[b] += W[b, c] * queries[i, c]
                prices[i], places[i] = PRICE_TOL * rho, -1
                highest = -1.0
                for t in range(T):
                    if rejected[i, t] and idle[i, t] and not blocked[i, t]:
                        margin = 0.0
                        for b in range(p):
                            margin += delta[i, t, b] * u[b]
                        highest = max(highest, rho - weight * margin)
                        if rho - weight * margin > prices[i]:
                            prices[i], places[i] = rho - weight * margin, t
                if highest > -CLOSE * rho:
                    candidates[near] = i
                    near += 1
            while arrivals < quota and size < capacity:
                best = np.int64(-1)
                for k in range(near):
                    j = candidates[k]
                    if places[j] >= 0 and (best < 0 or prices[j] > prices[best]):
                        best = j
                if best < 0:
                    break
                t = places[best]
                places[best] = -1
                if _enter(passive, size, delta, queries, tied, weight, best, t):
                    members[size], free[size], values[size] = best * T + t, False, 0.0
                    size += 1
                    arrivals += 1
                else:
                    blocked[best, t] = True
            if full:
                break
            near = near if arrivals > 0 else np.int64(0)
        if arrivals == 0:
            break
    dual = np.zeros((n, T))
    for a in range(size):
        dual[members[a] // T, members[a] % T] = values[a]
    return dual, rho, steps, complete


@kernel(inner=True, fastmath=FAST)
def _enter(passive, size, delta, queries, tied, weight, i, t):
    """Write the inner products of constraint (i, t) with the members, and let it into the factor if independent."""
    L, members = passive.factor, passive.members
    _, T, p = delta.shape
    r = queries.shape[1]
    cost = 0.0 if tied[i, t] else 1.0
    for a in range(size):
        j, s = members[a] // T, members[a] % T
        left, right = 0.0, 0.0
        for b in range(p):
            left += delta[i, t, b] * delta[j, s, b]
        for c in range(r):
            right += queries[i, c] * queries[j, c]
        L[size, a] = weight * left * right + (0.0 if tied[j, s] else cost)
    left, right = 0.0, 0.0
    for b in range(p):
        left += delta[i, t, b] * delta[i, t, b]
    for c in range(r):
        right += queries[i, c] * queries[i, c]
    return append(passive, size, weight * left * right + cost, cost)
