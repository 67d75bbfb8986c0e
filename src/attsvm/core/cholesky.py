"""Cholesky factors of Newton matrices, which may be badly scaled, singular or large, and iterative refinement."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular

# Ridges, relative to each diagonal entry and the size of the matrix, tried in turn until the matrix is positive
# definite. A smaller ridge loses less curvature next to large weights.
RIDGES = (1e-16, 1e-15, 1e-13)
# Ridges of a matrix that may be singular; they lie far above rounding and select a short solution among many.
PROXIMAL = (1e-15, 1e-13, 1e-11, 1e-9)
# Number of rows above which a matrix is factored in panels, and number of columns per panel: Ctrl-C cannot interrupt
# LAPACK within a panel, which takes at most half a second.
PANELLED_ROWS, PANEL = 4000, 256
# Largest number of refinements of a solution.
REFINEMENTS = 10


def lower_factor(matrix: np.ndarray) -> tuple[np.ndarray, bool]:
    """Factor a symmetric positive definite matrix, which is overwritten, as :func:`scipy.linalg.cho_factor` does.

    Raises scipy.linalg.LinAlgError if the matrix is not positive definite to rounding.
    """
    size = len(matrix)
    if size <= PANELLED_ROWS:
        # LAPACK orders entries by columns: passing the transpose, which is the same matrix, saves a copy.
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


def factor(matrix: np.ndarray, ridges: Iterable[float] = RIDGES) -> Callable[[np.ndarray], np.ndarray]:
    """Factor a symmetric positive definite matrix; the returned function solves for vectors or columns.

    Raises scipy.linalg.LinAlgError if rounding makes the matrix indefinite with each of the ``ridges``.
    """
    diagonal, each = np.diagonal(matrix), np.diag_indices(len(matrix))
    if not np.isfinite(diagonal).all():
        raise LinAlgError("the diagonal has left the range of floats")
    failure = LinAlgError("no ridge was given")
    for ridge in ridges:
        definite = matrix.copy()
        # The rounding errors of a factor are relative to the diagonal, and so is the ridge.
        definite[each] = np.where(diagonal > 0.0, diagonal * (1.0 + ridge * len(matrix)), 1.0)
        try:
            lower = lower_factor(definite)
        except LinAlgError as error:
            failure = error
        else:
            return lambda rhs: cho_solve(lower, rhs, check_finite=False)
    raise failure


def refined(
    solve: Callable[..., tuple[Any, ...]],
    lack: Callable[..., tuple[Any, ...]],
    rhs: tuple[Any, ...],
    enough: float = 0.0,
) -> tuple[Any, ...]:
    """Solve a linear system, then refine the solution while this at least halves the residual (Wilkinson).

    Parameters
    ----------
    solve : callable
        Maps the parts of a right-hand side, arrays or numbers, to the parts of a solution.
    lack : callable
        Maps the parts of a solution to the parts of its residual.
    enough : float
        Size of the residual's largest entry below which no refinement is needed.
    """
    solution, best = solve(*rhs), np.inf
    for _ in range(REFINEMENTS):
        residual = lack(*solution)
        error = max(float(np.abs(part).max(initial=0.0)) for part in residual)
        if not error < 0.5 * best or error <= enough:
            break
        best = error
        solution = tuple(one + more for one, more in zip(solution, solve(*residual), strict=True))
    return solution
