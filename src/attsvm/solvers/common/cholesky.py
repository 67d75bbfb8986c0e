"""Cholesky factors: of Newton matrices whose entries span many decades, of singular ones, and of large ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular

# Ridges, relative to the equilibrated diagonal and the size of the matrix, tried in turn until rounding leaves it
# positive definite. A smaller one loses less of the curvature that large weights hide.
RIDGES = (1e-16, 1e-15, 1e-13)
# What a ridge grows by where it is too small.
GROWTH = 100.0
# LAPACK hears no Ctrl-C: larger matrices are factored in panels of so many columns, half a second each at most.
LARGE, PANEL = 4000, 256


def lower_factor(matrix: np.ndarray) -> tuple[np.ndarray, bool]:
    """Factor a symmetric positive definite matrix, which is overwritten, as :func:`scipy.linalg.cho_factor` does.

    Raises
    ------
    scipy.linalg.LinAlgError
        When the matrix is not positive definite to rounding.
    """
    size = len(matrix)
    if size <= LARGE:
        # Transposed it is the same matrix, in the order of LAPACK, which is spared a copy.
        return cho_factor(matrix.T, lower=True, overwrite_a=True, check_finite=False)
    for start in range(0, size, PANEL):
        panel, below = slice(start, start + PANEL), slice(start + PANEL, size)
        if start:
            matrix[start:, panel] -= matrix[start:, :start] @ matrix[panel, :start].T
        corner, _ = cho_factor(matrix[panel, panel], lower=True, check_finite=False)
        matrix[panel, panel] = corner
        if start + PANEL < size:
            matrix[below, panel] = solve_triangular(corner, matrix[below, panel].T, lower=True, check_finite=False).T
    return matrix, True


def factor(matrix: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Factor a symmetric positive definite matrix, which is overwritten; the result solves for vectors or columns.

    Raises
    ------
    scipy.linalg.LinAlgError
        When rounding makes the matrix indefinite.
    """
    diagonal = np.diag_indices(len(matrix))
    scale = 1.0 / np.sqrt(matrix[diagonal])
    matrix *= scale
    matrix *= scale[:, None]
    for ridge in RIDGES:
        matrix[diagonal] = 1.0 + ridge * len(matrix)
        try:
            lower = lower_factor(matrix.copy())
            break
        except LinAlgError:
            if ridge == RIDGES[-1]:
                raise

    def solve(rhs: np.ndarray) -> np.ndarray:
        factors = scale if rhs.ndim == 1 else scale[:, None]
        return factors * cho_solve(lower, factors * rhs, check_finite=False)

    return solve


def ridged(matrix: np.ndarray, ridge: float) -> Callable[[np.ndarray], np.ndarray]:
    """Factor a positive semidefinite matrix with the smallest ridge, from ``ridge`` up, that makes it definite."""
    diagonal = np.diag_indices(len(matrix))
    while True:
        definite = matrix.copy()
        definite[diagonal] += ridge
        try:
            lower = lower_factor(definite)
            return lambda rhs: cho_solve(lower, rhs, check_finite=False)
        except LinAlgError:
            ridge *= GROWTH
