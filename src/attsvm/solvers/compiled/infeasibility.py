"""Compiled certificates of infeasibility for instances of a stack, tested in floats."""

from __future__ import annotations

import numpy as np
from numba import boolean, float64, int64

from attsvm.core.error_free import EPS
from attsvm.platform.kernels import FAST, kernel, read_only
from attsvm.solvers.compiled.frobenius import constraints_of
from attsvm.solvers.frobenius.active_set import CONTRADICTION

INFEASIBLE = 3  # added to the states of the active-set method
# Lower bound on the eigenvalues of the support's normal matrix, over its trace, that a certificate needs.
EIGENVALUE_FLOOR = 1e-10


@kernel(inner=True, inline="always", fastmath=FAST)
def contradicts(values, constraints):
    r"""Tell whether exact multipliers that prove infeasibility lie near these, (m,).

    This is the test of :class:`attsvm.proofs.certificate.FarkasCertificate` if the support spans all entries of W. The
    rows of M are the constraints times their multipliers. A Cholesky factor of :math:`M^\top M` minus a floor bounds
    the smallest singular value. The sum of the rows, rounding included, must be shorter than this bound.
    """
    delta, queries, of, _, _, free, _ = constraints
    m, d = delta.shape
    dz = queries.shape[1]
    size = d * dz
    largest, support = 0.0, 0
    for k in range(m):
        if not free[k] and values[k] < 0.0:
            return False
        largest = max(largest, abs(values[k]))
        support += values[k] != 0.0
    if support <= size:
        return False
    normal, total, line = np.zeros((size, size)), np.zeros(size), np.empty(size)
    terms, demand = 0.0, 0.0
    for k in range(m):
        if values[k] == 0.0:
            continue
        weight = largest if free[k] else values[k]
        length = 0.0
        for a in range(d):
            for c in range(dz):
                entry = delta[k, a] * queries[of[k], c]
                line[a * dz + c] = weight * entry
                total[a * dz + c] += values[k] * entry
                length += entry * entry
        terms += weight * np.sqrt(length)
        demand += 0.0 if free[k] else values[k]
        for a in range(size):
            for c in range(a + 1):
                normal[a, c] += line[a] * line[c]
    trace, residual = 0.0, 0.0
    for a in range(size):
        trace += normal[a, a]
        residual += total[a] * total[a]
    for a in range(size):
        for c in range(a + 1):
            pivot = normal[a, c] - (EIGENVALUE_FLOOR * trace if a == c else 0.0)
            for b in range(c):
                pivot -= normal[a, b] * normal[c, b]
            if c < a:
                normal[a, c] = pivot / normal[c, c]
            elif pivot > size * EPS * trace:
                normal[a, a] = np.sqrt(pivot)
            else:
                return False
    return demand > 0.0 and np.sqrt(residual) + (support + 8) * EPS * terms < 0.5 * np.sqrt(EIGENVALUE_FLOOR * trace)


@kernel(
    (
        read_only(float64, 4), read_only(float64, 3), read_only(boolean, 3), read_only(boolean, 3),
        float64[:, :, ::1], int64[::1],
    ),
    fastmath=FAST,
)  # fmt: skip
def prove_stack(tokens, queries, selected, mask, dual, state):
    """Set the state of instances whose multipliers have vanished and prove infeasibility to INFEASIBLE."""
    for b in range(len(tokens)):
        if state[b] == CONTRADICTION:
            constraints, column = constraints_of(tokens[b], queries[b], selected[b], mask[b])
            values = np.empty(len(column))
            for k in range(len(column)):
                values[k] = dual[b, constraints.of[k], column[k]]
            if contradicts(values, constraints):
                state[b] = INFEASIBLE
