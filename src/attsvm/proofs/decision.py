r"""Exact decision over the rationals whether a small problem has a feasible W.

Gordan's theorem: exactly one of two cases holds. Either some W gives every rejected token a positive margin and every
tie the margin zero. Or some :math:`\lambda` gives :math:`A^\top\lambda = 0`, is nonnegative on rejected tokens, where
it sums to one, and has any sign on ties.

The second case is a linear system with signs. Phase one of the simplex method solves it on a tableau of integers
(Edmonds' pivoting, whose divisions have no remainder). Bland's rule (Math. Oper. Res. 2, 1977) prevents cycling. The
optimum is zero, with a basic :math:`\lambda`, or it is positive, and a W exists.
"""

from __future__ import annotations

import sys
from fractions import Fraction

import numpy as np

from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import constraint_rows
from attsvm.proofs.dyadic import Dyadic

# Largest number of tableau entries, number of bits between the largest and smallest entry of the data up to which only
# the entries count, and largest product of both; a decision takes at most .5 seconds.
TABLEAU_ENTRIES, FEW_BITS, LARGEST_BITS = 400, 256, 102_400


def decidable(problem: SelectionProblem) -> bool:
    """Tell whether a problem is small enough for an exact decision."""
    _, _, d, dz = problem.shape
    entries = d * dz * int(problem.constrained.sum())
    if entries > TABLEAU_ENTRIES:
        return False
    return entries * max(_spread(problem.tokens) + _spread(problem.queries), FEW_BITS) <= LARGEST_BITS


def contradiction(problem: SelectionProblem) -> np.ndarray | None:
    """Find multipliers (n, T) that prove a :func:`decidable` problem infeasible; None when a W exists.

    They are rounded to floats and scaled down if they would overflow. On their support, exact multipliers are unique up
    to scale.
    """
    rows, columns = np.nonzero(problem.constrained)
    x = Dyadic.of(problem.tokens).numbers[problem.sequence[rows]]
    delta = x[np.arange(len(rows)), problem.reference[rows]] - x[np.arange(len(rows)), columns]
    queries = Dyadic.of(problem.queries).numbers[rows]
    matrix = constraint_rows(delta, queries)
    free = problem.tied[rows, columns]
    weights = _phase_one(matrix, free)
    if weights is None:
        return None
    dual = np.zeros(problem.mask.shape)
    unit = max(Fraction(1), max(map(abs, weights)) / Fraction(sys.float_info.max))
    dual[rows, columns] = [float(weight / unit) for weight in weights]
    return dual


def _spread(array: np.ndarray) -> int:
    _, power = np.frexp(np.asarray(array, dtype=np.float64)[np.asarray(array) != 0])
    return int(power.max() - power.min()) if power.size else 0


def _phase_one(matrix: np.ndarray, free: np.ndarray) -> list[Fraction] | None:
    """Solve matrix^T w = 0 with w >= 0 except where free, the others summing to one; None if there is no solution.

    Parameters
    ----------
    matrix : ndarray of int, shape (k, m)
    free : ndarray of bool, shape (k,)
    """
    k, m = matrix.shape
    ties = np.flatnonzero(free)
    # Columns: weights, the negative parts of free ones, the right-hand side. Artificial variables never enter again, so
    # they need no columns.
    table = np.zeros((m + 2, k + len(ties) + 1), dtype=object)
    table[:m, :k] = matrix.T
    table[:m, k : k + len(ties)] = -matrix[ties].T
    table[m, :k] = (~free).astype(int)
    artificial = k + len(ties)
    table[m, -1] = 1
    # The last row holds reduced costs of the sum of artificial variables, negated.
    table[m + 1] = table[: m + 1].sum(axis=0)
    basis, scale = list(range(artificial, artificial + m + 1)), 1
    while True:
        improving = np.flatnonzero(table[m + 1, :artificial] > 0)
        if not len(improving) or table[m + 1, -1] == 0:
            break
        column = int(improving[0])
        rows = np.flatnonzero(table[: m + 1, column] > 0)
        row = min(rows, key=lambda r: (Fraction(table[r, -1], table[r, column]), basis[r]))
        pivot = table[row, column]
        others = np.arange(m + 2) != row
        table[others] = (table[others] * pivot - np.outer(table[others, column], table[row])) // scale
        basis[row], scale = column, pivot
    if table[m + 1, -1] > 0:
        return None
    weights = [Fraction(0)] * k
    for r, j in enumerate(basis):
        if j < k:
            weights[j] += Fraction(int(table[r, -1]), int(scale))
        elif j < artificial:
            weights[ties[j - k]] -= Fraction(int(table[r, -1]), int(scale))
    return weights
