r"""Small Frobenius problems: an active-set method on the Gram matrix that decides feasibility by itself.

The least-distance problem min ||W|| s.t. a_k . W >= 1 is a nonnegative least-squares problem in disguise (Lawson and
Hanson, *Solving Least Squares Problems*, ch. 23): with :math:`c_k = 1` on inequalities and 0 on equalities, minimise

.. math:: \tfrac12\|A^\top\lambda\|^2 + \tfrac12(1 - c^\top\lambda)^2, \quad \lambda_k \ge 0 \text{ on inequalities.}

It always has a solution. With :math:`\rho = 1 - c^\top\lambda` its optimality conditions read
:math:`a_k\cdot A^\top\lambda \ge \rho`, so :math:`W = A^\top\lambda/\rho` solves the problem when :math:`\rho > 0`, and
:math:`\rho = 0` makes :math:`\lambda` a Farkas certificate. The Cholesky factor of the Gram matrix of the
passive set (the constraints that count as equalities for the moment) grows by a column when one enters and is repaired
by Givens rotations when one leaves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.core.kernels import FAST, kernel

# Written with loops, not slices: those take seconds to compile and are no faster.

# A constraint whose Cholesky pivot falls below this part of its diagonal depends on the passive set, to rounding.
DEPENDENT = 1e-13
# A member's part in a dependent constraint below this share of the largest is rounding.
SMALLEST_PART = 1e-10


class PassiveSet(NamedTuple):
    """Constraints that count as equalities for the moment, by position, with a Cholesky factor of their Gram matrix.

    Attributes
    ----------
    factor : ndarray, shape (capacity, capacity)
        Its lower triangle L. All loops run along rows.
    solved : ndarray, shape (capacity,)
        L solved = c.
    members : ndarray of int, shape (capacity,)
        The constraint in each position.
    free : ndarray of bool, shape (capacity,)
        Which of them are equalities.
    values : ndarray, shape (capacity,)
        Their multipliers.
    work : ndarray, shape (3, capacity)
        Work space.
    """

    factor: np.ndarray
    solved: np.ndarray
    members: np.ndarray
    free: np.ndarray
    values: np.ndarray
    work: np.ndarray


@kernel(inner=True, fastmath=FAST)
def empty_set(capacity):
    """Make room for a passive set."""
    return PassiveSet(
        np.empty((capacity, capacity)),
        np.empty(capacity),
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.bool_),
        np.empty(capacity),
        np.empty((3, capacity)),
    )


@kernel(inner=True, fastmath=FAST)
def append(passive, size, square, cost):
    """Add a constraint to the factor, in row ``size``; False when it depends on the members.

    Parameters
    ----------
    passive : PassiveSet
        Row ``size`` of its factor comes with the new constraint's inner products with the members.
    size : int
        How many members there are.
    square, cost : float
        The new constraint's inner product with itself, and its entry of c.
    """
    L, solved = passive.factor, passive.solved
    row = L[size]
    pivot = square
    for a in range(size):
        value = row[a]
        for b in range(a):
            value -= L[a, b] * row[b]
        value /= L[a, a]
        row[a] = value
        pivot -= value * value
        cost -= value * solved[a]
    if pivot <= DEPENDENT * square:
        return False
    row[size] = np.sqrt(pivot)
    solved[size] = cost / row[size]
    return True


@kernel(inner=True, fastmath=FAST)
def remove(passive, size, position):
    """Take out the constraint in row ``position``; rotations of neighbouring columns restore the triangle."""
    L, solved, cosines, sines = passive.factor, passive.solved, passive.work[1], passive.work[2]
    for b in range(position, size - 1):
        for a in range(position):
            L[b, a] = L[b + 1, a]
        carried = L[b + 1, position]
        for a in range(position, b):
            following = L[b + 1, a + 1]
            L[b, a] = cosines[a] * carried + sines[a] * following
            carried = cosines[a] * following - sines[a] * carried
        last = L[b + 1, b + 1]
        length = np.sqrt(carried * carried + last * last)
        cosines[b], sines[b] = carried / length, last / length
        L[b, b] = length
    for a in range(position, size - 1):
        u, v = solved[a], solved[a + 1]
        solved[a] = cosines[a] * u + sines[a] * v
        solved[a + 1] = cosines[a] * v - sines[a] * u


@kernel(inner=True, fastmath=FAST)
def settle(passive, size):
    """Move to the minimum over the passive set, leaving out those whose multiplier would turn negative.

    Parameters
    ----------
    passive : PassiveSet
    size : int
        How many members there are.

    Returns
    -------
    int
        How many there are now.
    """
    L, solved, members, free, values, work = passive
    trial = work[0]
    while True:
        for a in range(size):
            trial[a] = solved[a]
        for a in range(size - 1, -1, -1):
            trial[a] /= L[a, a]
            for b in range(a):
                trial[b] -= trial[a] * L[a, b]
        step = 1.0
        for a in range(size):
            if not free[a] and trial[a] <= 0.0:
                step = min(step, values[a] / (values[a] - trial[a]) if values[a] > trial[a] else 0.0)
        if step == 1.0:
            for a in range(size):
                values[a] = trial[a]
            return size
        smallest, place = np.inf, -1
        for a in range(size):
            values[a] += step * (trial[a] - values[a])
            if not free[a] and trial[a] <= 0.0 and values[a] < smallest:
                smallest, place = values[a], a
        for a in range(size - 1, -1, -1):
            if a == place or (not free[a] and trial[a] <= 0.0 and values[a] <= 1e-15 * (1.0 - trial[a])):
                remove(passive, size, a)
                for b in range(a, size - 1):
                    members[b], free[b], values[b] = members[b + 1], free[b + 1], values[b + 1]
                size -= 1


@kernel(fastmath=FAST)
def nonnegative_least_squares(gram, cost, free, start, tol, max_iter):
    """Solve the disguised problem for its multipliers.

    Parameters
    ----------
    gram : ndarray, shape (m, m)
        Inner products of the constraints plus ``cost cost^T``.
    cost : ndarray, shape (m,)
        c above.
    free : ndarray of bool, shape (m,)
        Equalities.
    start : ndarray, shape (m,)
        A guess; its support opens the passive set.
    tol : float
        Largest tolerated violation of an optimality condition.
    max_iter : int

    Returns
    -------
    dual : ndarray, shape (m,)
    iterations : int
        Negative when max_iter was reached.
    """
    m = len(cost)
    passive = empty_set(m)
    L, members, signless, values = passive.factor, passive.members, passive.free, passive.values
    size = np.int64(0)  # for a literal 0 numba would compile the callees once more
    for equalities in (True, False):
        for k in range(m):
            if free[k] == equalities and (free[k] or start[k] > 0.0):
                for a in range(size):
                    L[size, a] = gram[members[a], k]
                if append(passive, size, gram[k, k], cost[k]):
                    members[size], signless[size], values[size] = k, free[k], start[k]
                    size += 1
    size, steps, complete = exchange_by_gram(gram, cost, free, passive, size, tol, max_iter)
    dual = np.zeros(m)
    for a in range(size):
        dual[members[a]] = values[a]
    return dual, (steps if complete else -max_iter)


@kernel(fastmath=FAST)
def exchange_by_gram(gram, cost, free, passive, size, tol, patience):
    """Exchange constraints one by one until no multiplier wants to grow, and none to turn negative.

    Parameters
    ----------
    gram, cost, free, tol
        As above.
    passive : PassiveSet
        With room for all that are independent; it is left as the last step has it.
    size : int
        How many members there are.
    patience : int
        Steps at most.

    Returns
    -------
    size, steps : int
    complete : bool
    """
    m, capacity = len(cost), len(passive.members)
    L, members, signless, values = passive.factor, passive.members, passive.free, passive.values
    slope, idle, blocked = np.empty(m), np.ones(m, dtype=np.bool_), np.zeros(m, dtype=np.bool_)
    steps, entering = 0, -1
    while steps < patience:
        steps += 1
        size = settle(passive, size)
        for k in range(m):
            slope[k] = cost[k]
            idle[k] = True
        for a in range(size):
            idle[members[a]] = False
            for k in range(m):
                slope[k] -= values[a] * gram[members[a], k]
        if entering >= 0 and not idle[entering]:
            for k in range(m):
                blocked[k] = False
        while True:
            best, entering = tol, -1
            for k in range(m):
                if idle[k] and not free[k] and not blocked[k] and slope[k] > best:
                    best, entering = slope[k], k
            if entering < 0:
                return size, steps, True
            blocked[entering] = True
            if size == capacity:
                continue
            for a in range(size):
                L[size, a] = gram[members[a], entering]
            if append(passive, size, gram[entering, entering], cost[entering]):
                members[size], signless[size], values[size] = entering, False, 0.0
                size += 1
                break
    return size, steps, False


@kernel(fastmath=FAST)
def exchange_dependent(gram, cost, free, passive, size, tol):
    r"""Let the most violated constraint in where it depends on the members: one of these goes (Goldfarb and Idnani).

    With :math:`a_k = \sum_j r_j a_j` the multipliers :math:`\lambda_k + t` and :math:`\lambda_j - t r_j` leave W as it
    is, and the dual grows with t. At the first multiplier that has come to zero, its constraint is what k stands for.

    Parameters
    ----------
    gram : ndarray, shape (m, m)
        Without ``cost cost^T``, in whose presence no dependent constraint is violated.
    cost, free, passive, size, tol
        As above; multipliers are those of the minimum over the members.

    Returns
    -------
    size : int
    changed : bool
        False where none is violated, or where the dual grows without end: the constraints contradict one another.
    """
    m, L, members, signless, values = len(cost), passive.factor, passive.members, passive.free, passive.values
    part = passive.work[0]
    slope, entered, best = cost.copy(), -1, tol
    for a in range(size):
        for k in range(m):
            slope[k] -= values[a] * gram[members[a], k]
    for a in range(size):
        slope[members[a]] = 0.0
    for k in range(m):
        if not free[k] and slope[k] > best:
            best, entered = slope[k], k
    if entered < 0:
        return size, False
    for a in range(size):
        part[a] = gram[members[a], entered]
        for b in range(a):
            part[a] -= L[a, b] * part[b]
        part[a] /= L[a, a]
    largest = 0.0
    for a in range(size - 1, -1, -1):
        part[a] /= L[a, a]
        for b in range(a):
            part[b] -= part[a] * L[a, b]
        largest = max(largest, abs(part[a]))
    length, place = np.inf, -1
    for a in range(size):
        # A smaller part is rounding, and what stays would depend on the new constraint as the whole does.
        if not signless[a] and part[a] > SMALLEST_PART * largest and values[a] < length * part[a]:
            length, place = values[a] / part[a], a
    if place < 0:
        return size, False
    for a in range(size):
        values[a] -= length * part[a]
    remove(passive, size, place)
    for b in range(place, size - 1):
        members[b], signless[b], values[b] = members[b + 1], signless[b + 1], values[b + 1]
    size -= 1
    for a in range(size):
        L[size, a] = gram[members[a], entered]
    if append(passive, size, gram[entered, entered], cost[entered]):
        members[size], signless[size], values[size] = entered, False, length
        size += 1
    return size, True
