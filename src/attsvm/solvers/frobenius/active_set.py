r"""The active-set method for hard margins in the Frobenius norm, which also decides feasibility.

The least-distance problem min ||W|| s.t. a_k . W >= 1 is equivalent to nonnegative least squares (Lawson and Hanson,
*Solving Least Squares Problems*, ch. 23): with :math:`c_k = 1` on inequalities and 0 on equalities, minimise

.. math:: \tfrac{w}{2}\|A^\top\lambda\|^2 + \tfrac12(1 - c^\top\lambda)^2, \quad
   \lambda_k \ge 0 \text{ on inequalities.}

A minimiser always exists. Let :math:`\rho = 1 - c^\top\lambda`. The optimality conditions read :math:`w\, a_k\cdot
A^\top\lambda \ge \rho`, so :math:`W = w A^\top\lambda/\rho` solves the problem if :math:`\rho > 0`, and :math:`\rho =
0` makes :math:`\lambda` a Farkas certificate. A weight w near :math:`\|W\|^2` keeps :math:`\rho` near 1/2, away from
rounding, however large W is. Constraints enter and leave the passive set, whose constraints count as equalities
(:mod:`attsvm.solvers.frobenius.passive_set`).

In exact arithmetic every step lowers :math:`\rho`, since the minimum over the passive set is :math:`\rho/2`, so no set
recurs. Rounding may raise :math:`\rho`: a constraint leaves for another one on which it then depends, and the same two
sets alternate without end. The run therefore counts steps since the last record. The record is the smallest
:math:`\rho` so far, and a step sets a new one if it lowers the record by a relative ``PROGRESS``. Records lie between
``RESIDUE`` and 1, so there are at most :math:`\log(1/\mathrm{RESIDUE})/\mathrm{PROGRESS}` of them, with at most
``STALLED_UPDATES`` steps after each. This holds for all results of the arithmetic, NaN included, which is never a
record. A cycle sets no record twice and ends after ``STALLED_UPDATES`` steps.

Margins of the constraints outside the passive set come from W, as two products with n p r + m p operations; a general
quadratic program spends m p r on constraints written out. Margins of few constraints come from a Gram matrix.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, float64, int64

from attsvm.platform.kernels import FAST, kernel
from attsvm.solvers.frobenius.constraints import CONSTRAINTS, Constraints
from attsvm.solvers.frobenius.passive_set import PASSIVE_SET, append, empty_set, remove, settle
from attsvm.solvers.schedule import DEAR

# State of an instance after a compiled call.
OPEN, SOLVED, CONTRADICTION = 0, 1, 2

# Coefficient of a constraint in a dependent one, over the largest coefficient, below which it is rounding.
SMALLEST_PART = 1e-10
# Shortfall, over the requested margin, below which a constraint counts as satisfied.
PRICE_TOL = 1e-12
# rho below which no W is found, and relative fall of rho below which a step is rounding.
RESIDUE, PROGRESS = 1e-12, 1e-14
# Number of steps without a new record after which a run ends.
STALLED_UPDATES = 3
# Largest number of operations of a call that no clock interrupts, a tenth of a second.
MOST_OPERATIONS = 3e8
# Squared norm above which W is refined, and number of refinements: rounding of the multipliers moves margins by 1e-16
# of the squared norm.
REFINED_NORM, W_REFINEMENTS = 1e3, 2
# Number of constraints of the passive set per additional constraint that may enter in one step.
SHARE = 8
# Excess of a query's smallest margin over rho, relative to rho, below which the query is evaluated before all others.
RECHECK_SHARE = 0.5


# Kernels below take lists of constraints or queries, since each call counts references to all of its arrays.


@kernel(inner=True, fastmath=FAST)
def _enter(constraints, passive, size, weight, entering):
    """Let constraints enter the passive set with multiplier zero while its capacity allows; return its new size.

    Constraints that depend on the set stay outside.
    """
    delta, queries, of, _, _, tied, gram = constraints
    L, members, free, values = passive.factor, passive.members, passive.free, passive.values
    for k in entering:
        if size == len(members):
            break
        cost, square = 0.0 if tied[k] else 1.0, 0.0
        members[size], free[size], values[size] = k, tied[k], 0.0
        for a in range(size + 1):
            j = members[a]
            if len(gram) > 0:
                square = gram[k, j]
            else:
                left, right = 0.0, 0.0
                for b in range(delta.shape[1]):
                    left += delta[k, b] * delta[j, b]
                for c in range(queries.shape[1]):
                    right += queries[of[k], c] * queries[of[j], c]
                square = left * right
            L[size, a] = weight * square + (0.0 if free[a] else cost)
        size += append(passive, size, weight * square + cost, cost)
    return size


@kernel(inner=True, inline="always", fastmath=FAST)
def _replace(constraints, passive, size, weight, entering):
    r"""Let a constraint that depends on the passive set replace another one (Goldfarb and Idnani).

    If :math:`a_k = \sum_j r_j a_j`, the multipliers :math:`\lambda_k + t` and :math:`\lambda_j - t r_j` do not change
    W. The constraint whose multiplier reaches zero first leaves. Return the new size, and whether one has left.
    """
    L, part, free, values = passive.factor, passive.work[0], passive.free, passive.values
    for a in range(size):
        part[a] = L[size, a]
    largest = 0.0
    for a in range(size - 1, -1, -1):
        part[a] /= L[a, a]
        for b in range(a):
            part[b] -= part[a] * L[a, b]
        largest = max(largest, abs(part[a]))
    length, place = np.inf, np.int64(-1)
    for a in range(size):
        # A smaller coefficient is rounding: the new constraint depends on the set without this one too.
        if not free[a] and part[a] > SMALLEST_PART * largest and values[a] < length * part[a]:
            length, place = values[a] / part[a], a
    if place < 0:
        return size, False
    for a in range(size):
        values[a] -= length * part[a]
    remove(passive, size, place)
    larger = _enter(constraints, passive, size - 1, weight, entering)
    if larger == size:
        values[size - 1] = length
    return larger, True


@kernel((CONSTRAINTS, PASSIVE_SET, float64[::1], float64), fastmath=FAST)
def hold(constraints, passive, start, weight):
    """Let equalities and the support of guessed multipliers (m,) enter an empty passive set; return its size."""
    order, count = np.empty(len(start), dtype=np.int64), 0
    for k in range(len(start)):
        if constraints.tied[k]:
            order[count] = k
            count += 1
    for k in range(len(start)):
        if constraints.rejected[k] and start[k] > 0.0:
            order[count] = k
            count += 1
    size = _enter(constraints, passive, np.int64(0), weight, order[:count])
    for a in range(size):
        passive.values[a] = start[passive.members[a]] / weight
    return size


@kernel(inner=True, fastmath=FAST)
def _primal(constraints, passive, size, W, products):
    """Write W = A^T lam (p, r), or with a Gram matrix the products of W with all constraints, (m,)."""
    members, values = passive.members, passive.values
    if len(constraints.gram) > 0:
        for k in range(len(products)):
            products[k] = 0.0
        for a in range(size):
            for k in range(len(products)):
                products[k] += values[a] * constraints.gram[members[a], k]
        return
    delta, queries, of = constraints.delta, constraints.queries, constraints.of
    n, p, r = len(queries), delta.shape[1], queries.shape[1]
    adjoint, has_members = np.zeros((n, p)), np.zeros(n, dtype=np.bool_)
    for a in range(size):
        has_members[of[members[a]]] = True
        for b in range(p):
            adjoint[of[members[a]], b] += values[a] * delta[members[a], b]
    for b in range(p):
        for c in range(r):
            W[b, c] = 0.0
    for i in range(n):
        if has_members[i]:
            for b in range(p):
                for c in range(r):
                    W[b, c] += adjoint[i, b] * queries[i, c]


@kernel(inner=True, fastmath=FAST)
def _refine(constraints, passive, size, weight, rho, W):
    r"""Move W (p, r) onto the margins rho / weight of the passive set, to the accuracy of W itself.

    W = A^T lam carries the rounding of lam, whose entries are of the size of ||W||^2. Let M be the factored matrix and
    K = (M - c c^T) / w the Gram matrix of the passive set. A residual e needs the correction
    :math:`K^{-1} e = w\,(y + M^{-1} c\,(c \cdot y) / \rho),\; y = M^{-1} e` (Sherman and Morrison).
    """
    L, members, free, values, part = passive.factor, passive.members, passive.free, passive.values, passive.work[0]
    delta, queries, of = constraints.delta, constraints.queries, constraints.of
    p, r = W.shape
    step = np.empty((p, r))
    for _ in range(W_REFINEMENTS):
        for a in range(size):
            k, margin = members[a], 0.0
            for b in range(p):
                for c in range(r):
                    margin += delta[k, b] * W[b, c] * queries[of[k], c]
            part[a] = (0.0 if free[a] else rho / weight) - margin
            for b in range(a):
                part[a] -= L[a, b] * part[b]
            part[a] /= L[a, a]
        rate = 0.0
        for a in range(size - 1, -1, -1):
            part[a] /= L[a, a]
            for b in range(a):
                part[b] -= part[a] * L[a, b]
            rate += 0.0 if free[a] else part[a]
        for b in range(p):
            for c in range(r):
                step[b, c] = 0.0
        for a in range(size):
            k, change = members[a], weight * (part[a] + values[a] * rate / rho)
            for b in range(p):
                for c in range(r):
                    step[b, c] += change * delta[k, b] * queries[of[k], c]
        for b in range(p):
            for c in range(r):
                W[b, c] += step[b, c]


@kernel(inner=True, inline="always", fastmath=FAST)
def _price(constraints, W, products, waiting, order, margins, places):
    """Find the smallest margin of W among the waiting constraints of each query in ``order``, and its constraint."""
    delta, queries, first, by_gram = constraints.delta, constraints.queries, constraints.first, len(products) > 0
    p, r = W.shape
    u = np.zeros(p)
    for i in order:
        for b in range(p):
            u[b] = 0.0
            for c in range(r):
                u[b] += W[b, c] * queries[i, c]
        margins[i], places[i] = np.inf, -1
        for k in range(first[i], first[i + 1]):
            if waiting[k]:
                margin = products[k] if by_gram else 0.0
                for b in range(p):
                    margin += delta[k, b] * u[b]
                if margin < margins[i]:
                    margins[i], places[i] = margin, k


@kernel((CONSTRAINTS, PASSIVE_SET, int64, float64, float64, int64), fastmath=FAST)
def exchange(constraints, passive, size, weight, record, patience):
    r"""Minimise weight |A^T lam|^2 / 2 + (1 - c.lam)^2 / 2 over lam >= 0 on inequalities.

    Parameters
    ----------
    constraints : Constraints
    passive : PassiveSet
        Holds the result of the last step afterwards.
    size : int
        Number of constraints in the passive set.
    weight : float
    record : float
        Smallest rho of earlier steps; infinite at first.
    patience : int
        Number of evaluations of margins, at least one per step, after which the call returns.

    Returns
    -------
    size : int
    rho : float
        1 - c.lam, which is twice the minimum.
    record : float
    steps : int
        Number of evaluations of margins.
    complete : bool
        True unless ``patience`` ended the call.
    """
    m, n, p = len(constraints.rejected), len(constraints.first) - 1, constraints.delta.shape[1]
    rejected, members, free, values = constraints.rejected, passive.members, passive.free, passive.values
    W, products = np.empty((p, constraints.queries.shape[1])), np.empty(len(constraints.gram))
    waiting, margins, places = np.empty(m, dtype=np.bool_), np.empty(n), np.empty(n, dtype=np.int64)
    candidates, entering, near_count = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64), np.int64(0)
    steps, stall, rho = 0, 0, 1.0
    while True:
        size = settle(passive, size)
        rho = 1.0
        for a in range(size):
            if not free[a]:
                rho -= values[a]
        stall += 1
        if RESIDUE < rho <= (1.0 - PROGRESS) * record:
            stall, record = 0, rho
        if stall > STALLED_UPDATES or (rho <= RESIDUE and size == len(members)):
            return size, rho, record, steps, True
        if steps >= patience:
            return size, rho, record, steps, False
        for k in range(m):
            waiting[k] = rejected[k]
        for a in range(size):
            waiting[members[a]] = False
        _primal(constraints, passive, size, W, products)
        if m * p < DEAR * size * size:
            near_count = np.int64(0)
        has_changed, is_refined = False, len(products) > 0 or weight * (1.0 - rho) <= REFINED_NORM * rho
        while not has_changed and steps < patience:
            full = near_count == 0
            steps += 1
            if full:
                near_count = np.int64(n)
                for i in range(n):
                    candidates[i] = i
            _price(constraints, W, products, waiting, candidates[:near_count], margins, places)
            count, near_count, arrivals = near_count, np.int64(0), 0
            for k in range(count):
                if weight * margins[candidates[k]] < (1.0 + RECHECK_SHARE) * rho:
                    candidates[near_count] = candidates[k]
                    near_count += 1
            while arrivals < min(1 + size // SHARE, near_count):
                best = candidates[0]
                for k in range(near_count):
                    if margins[candidates[k]] < margins[best]:
                        best = candidates[k]
                if weight * margins[best] >= (1.0 - PRICE_TOL) * rho:
                    break
                entering[arrivals], waiting[places[best]], margins[best] = places[best], False, np.inf
                arrivals += 1
            larger = _enter(constraints, passive, size, weight, entering[:arrivals])
            has_changed = larger > size
            if not has_changed and arrivals > 0 and size < len(members):
                larger, has_changed = _replace(constraints, passive, size, weight, entering[arrivals - 1 : arrivals])
            size = larger
            if not has_changed and full and arrivals == 0:
                if is_refined:
                    return size, rho, record, steps, True
                _refine(constraints, passive, size, weight, rho, W)
                is_refined = True
            if not has_changed:
                near_count = np.int64(0)


@kernel((float64[:, ::1], boolean[::1]), fastmath=FAST)
def by_gram(gram, tied):
    """Return constraints that are known only by their Gram matrix (m, m), each with a query."""
    m = len(gram)
    rejected, first = np.empty(m, dtype=np.bool_), np.empty(m + 1, dtype=np.int64)
    first[0] = 0
    for k in range(m):
        rejected[k], first[k + 1] = not tied[k], k + 1
    return Constraints(np.empty((m, 0)), np.empty((m, 0)), first[:m], first, rejected, tied, gram)


@kernel((CONSTRAINTS, float64[::1], int64, float64[:, ::1]), seconds=4.0, fastmath=FAST)
def least_multipliers(constraints, start, capacity, W):
    """Find the multipliers of the smallest W from a guess (m,); at most ``capacity`` of them are positive or free.

    ``W`` (p, r) is overwritten with A^T dual, refined to the accuracy of the entries of W.

    Returns
    -------
    state : int
        SOLVED if the smallest margin of W is one. CONTRADICTION if no W exists, or if rounding hides a long W.
    dual : ndarray, shape (m,)
        Multipliers; for CONTRADICTION, multipliers that are nearly a certificate.
    """
    m, weight = len(start), 0.0
    for k in range(m):
        weight += start[k] if constraints.rejected[k] else 0.0
    weight = max(1.0, weight)
    passive = empty_set(capacity)
    size = hold(constraints, passive, start, weight)
    patience, products = 100 + 10 * m, m * constraints.delta.shape[1] + len(constraints.queries) * W.size
    if products > 0:
        patience = min(patience, int(MOST_OPERATIONS / (products + capacity * capacity)))
    size, rho, _, _, _ = exchange(constraints, passive, size, weight, np.inf, patience)
    dual, scale = np.zeros(m), weight / rho if rho > RESIDUE else 1.0
    for a in range(size):
        dual[passive.members[a]] = passive.values[a] * scale
    if rho > RESIDUE and W.size > 0:
        _primal(constraints, passive, size, W, np.empty(0))
        if weight * (1.0 - rho) > REFINED_NORM * rho:
            _refine(constraints, passive, size, weight, rho, W)
        for b in range(W.shape[0]):
            for c in range(W.shape[1]):
                W[b, c] *= scale
    return SOLVED if rho > RESIDUE else CONTRADICTION, dual
