"""Exact solutions of small linear systems over the integers.

Independent rows and columns of a matrix are found modulo a prime, since a pivot modulo a prime is a pivot in exact
arithmetic. Fraction-free elimination (Bareiss, Math. Comp. 22, 1968) solves their square system. Its intermediate
numbers are determinants, hence no longer than necessary. Callers check the solution against all rows.
"""

from __future__ import annotations

import numpy as np

# Products of two residues stay below 2^62.
PRIME = 2_147_483_647
# Size of a system above which fraction-free elimination takes more than seconds.
ELIMINATION_ROWS = 64


def independent(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of a nonsingular square part of an integer matrix (N, m), with its rank modulo a prime."""
    work = (matrix % PRIME).astype(np.int64)
    rows: list[int] = []
    columns: list[int] = []
    free = np.ones(len(work), dtype=bool)
    for column in range(matrix.shape[1]):
        candidates = np.flatnonzero(free & (work[:, column] != 0))
        if not len(candidates):
            continue
        pivot = int(candidates[0])
        rows.append(pivot)
        columns.append(column)
        free[pivot] = False
        inverse = pow(int(work[pivot, column]), -1, PRIME)
        scaled = work[pivot] * inverse % PRIME
        others = np.flatnonzero(free)
        work[others] = (work[others] - work[others, column][:, None] * scaled % PRIME) % PRIME
    return np.array(rows, dtype=int), np.array(columns, dtype=int)


def solve(matrix: np.ndarray, rhs: np.ndarray) -> tuple[list[int], int] | None:
    """Solve a square integer system: return numerators and their common denominator, or None if it is singular."""
    size = len(matrix)
    work = [[int(a) for a in row] + [int(b)] for row, b in zip(matrix, rhs, strict=True)]
    before = 1
    for k in range(size):
        pivot = next((i for i in range(k, size) if work[i][k]), None)
        if pivot is None:
            return None
        work[k], work[pivot] = work[pivot], work[k]
        top, head = work[k], work[k][k]
        for i in range(k + 1, size):
            row = work[i]
            lead = row[k]
            for j in range(k + 1, size + 1):
                row[j] = (row[j] * head - lead * top[j]) // before
            row[k] = 0
        before = head
    # The last pivot is the determinant (up to sign); Cramer's numerators are integers.
    numerators = [0] * size
    for i in range(size - 1, -1, -1):
        row = work[i]
        total = row[size] * before - sum(row[j] * numerators[j] for j in range(i + 1, size))
        numerators[i] = total // row[i]
    return numerators, before


def kernel_vector(matrix: np.ndarray) -> list[int] | None:
    """Integers x, not all zero, with matrix @ x = 0, for an integer matrix (N, m) whose kernel is a line.

    None when the kernel is not a line, or the system is too large.
    """
    rows, columns = independent(matrix)
    m = matrix.shape[1]
    if len(columns) != m - 1 or m - 1 > ELIMINATION_ROWS:
        return None
    spare = next(iter(set(range(m)) - set(columns.tolist())))
    coordinates = solve(matrix[np.ix_(rows, columns)], -matrix[rows, spare])
    if coordinates is None:
        return None
    out = [0] * m
    out[spare] = coordinates[1]
    for column, value in zip(columns.tolist(), coordinates[0], strict=True):
        out[column] = value
    if np.any(np.dot(matrix, np.array(out, dtype=object)) != 0):
        return None
    return out
