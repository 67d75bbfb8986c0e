"""The passive set of the active-set method: constraints that currently count as equalities, and their factor.

The Cholesky factor of their Gram matrix gains a row when a constraint enters. Givens rotations repair it when one
leaves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import boolean, float64, int64, types

from attsvm.platform.kernels import FAST, kernel

# Written with loops, since slices take seconds to compile and are no faster.

# Cholesky pivot, over the diagonal entry, below which a constraint depends on the passive set.
DEPENDENT_PIVOT = 1e-13


class PassiveSet(NamedTuple):
    """Constraints that currently count as equalities, with a Cholesky factor of their Gram matrix.

    Attributes
    ----------
    factor : ndarray, shape (capacity, capacity)
        Lower triangle L. All loops run along rows.
    solved : ndarray, shape (capacity,)
        Solution of L solved = c.
    members : ndarray of int, shape (capacity,)
        Index of each constraint.
    free : ndarray of bool, shape (capacity,)
        Whether each constraint is an equality.
    values : ndarray, shape (capacity,)
        Multipliers.
    work : ndarray, shape (3, capacity)
        Work space.
    """

    factor: np.ndarray
    solved: np.ndarray
    members: np.ndarray
    free: np.ndarray
    values: np.ndarray
    work: np.ndarray


PASSIVE_SET = types.NamedTuple(
    (float64[:, ::1], float64[::1], int64[::1], boolean[::1], float64[::1], float64[:, ::1]), PassiveSet
)


@kernel(inner=True, fastmath=FAST)
def empty_set(capacity):
    """Allocate a passive set."""
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
    """Add a constraint to the factor, in row ``size``; False if it depends on the set.

    Parameters
    ----------
    passive : PassiveSet
        Row ``size`` of its factor holds the inner products of the new constraint with the set.
    size : int
        Number of constraints in the set.
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
    if not pivot > DEPENDENT_PIVOT * square:
        return False
    row[size] = np.sqrt(pivot)
    solved[size] = cost / row[size]
    return True


@kernel(inner=True, fastmath=FAST)
def remove(passive, size, position):
    """Remove the constraint in row ``position``; rotations of neighbouring columns restore the triangle."""
    L, solved, members, free, values, work = passive
    cosines, sines = work[1], work[2]
    for b in range(position, size - 1):
        for a in range(position):
            L[b, a] = L[b + 1, a]
        carry = L[b + 1, position]
        for a in range(position, b):
            following = L[b + 1, a + 1]
            L[b, a] = cosines[a] * carry + sines[a] * following
            carry = cosines[a] * following - sines[a] * carry
        last = L[b + 1, b + 1]
        length = np.sqrt(carry * carry + last * last)
        cosines[b], sines[b] = carry / length, last / length
        L[b, b] = length
    for a in range(position, size - 1):
        u, v = solved[a], solved[a + 1]
        solved[a] = cosines[a] * u + sines[a] * v
        solved[a + 1] = cosines[a] * v - sines[a] * u
        members[a], free[a], values[a] = members[a + 1], free[a + 1], values[a + 1]


@kernel(inner=True, inline="always", fastmath=FAST)
def settle(passive, size):
    """Move to the minimum over the passive set, without the constraints whose multipliers would turn negative.

    Parameters
    ----------
    passive : PassiveSet
    size : int
        Number of constraints in the set.

    Returns
    -------
    int
        Number of constraints in the set afterwards.
    """
    L, solved, _, free, values, work = passive
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
            if not free[a] and trial[a] <= 0.0 and not values[a] >= smallest:
                smallest, place = values[a], a
        for a in range(size - 1, -1, -1):
            if a == place or (not free[a] and trial[a] <= 0.0 and values[a] <= 1e-15 * (1.0 - trial[a])):
                remove(passive, size, np.int64(a))
                size -= 1
