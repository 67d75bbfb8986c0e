r"""Whether a small problem has a W at all, decided over the rationals.

By Gordan's theorem either some W gives every rejected token a positive margin and every tie the margin zero, or some
:math:`\lambda \ge 0`, free on ties and summing to one over rejected tokens, has :math:`A^\top\lambda = 0`. The second
is a linear system with signs: phase one of the simplex method on a tableau of integers (Edmonds' pivoting, whose
divisions have no remainder), by Bland's rule (Math. Oper. Res. 2, 1977), which cannot cycle. Its optimum is zero with a
basic :math:`\lambda`, or positive, and a W exists.
"""

from __future__ import annotations

import sys
from fractions import Fraction

import numpy as np

from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import constraint_rows
from attsvm.proofs.dyadic import Dyadic

# Entries of the tableau, and these times the bits between the largest and the smallest entry of the data (or the first
# number, where those are fewer), that take at most .5 seconds.
LARGEST, FEW_BITS, LARGEST_BITS = 400, 256, 102_400


def decidable(problem: SelectionProblem) -> bool:
    """Tell whether a problem is small enough to be decided over the rationals."""
    _, _, d, dz = problem.shape
    entries = d * dz * int(problem.constrained.sum())
    if entries > LARGEST:
        return False
    return entries * max(_spread(problem.tokens) + _spread(problem.queries), FEW_BITS) <= LARGEST_BITS


def contradiction(problem: SelectionProblem) -> np.ndarray | None:
    """Find multipliers (n, T) that prove a :func:`decidable` problem infeasible; None when it has a W.

    They are rounded to floats, smaller ones where these would leave their range; their support is one on which exact
    ones are unique up to scale.
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
    """Solve matrix^T w = 0, w >= 0 but where free, the others summing to one; None when that has no solution.

    Parameters
    ----------
    matrix : ndarray of int, shape (k, m)
    free : ndarray of bool, shape (k,)
    """
    k, m = matrix.shape
    ties = np.flatnonzero(free)
    # Columns: weights, the negative parts of free ones, artificial variables, the right-hand side.
    table = np.zeros((m + 2, k + len(ties) + m + 2), dtype=object)
    table[:m, :k] = matrix.T
    table[:m, k : k + len(ties)] = -matrix[ties].T
    table[m, :k] = (~free).astype(int)
    artificial = k + len(ties)
    table[np.arange(m + 1), artificial + np.arange(m + 1)] = 1
    table[m, -1] = 1
    # The last row holds reduced costs of the sum of artificial variables, negated.
    table[m + 1] = table[: m + 1].sum(axis=0)
    table[m + 1, artificial : artificial + m + 1] = 0
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
