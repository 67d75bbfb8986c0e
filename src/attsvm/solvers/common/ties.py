r"""Equal scores of tied tokens as a linear space: BW = 0 with orthonormal rows B.

The rows of the ties may depend on each other; an orthonormal basis B of their span does not, so its multipliers
:math:`\nu` are unique and Newton systems stay solvable. :math:`B^\top\nu` is the adjoint of the ties' own multipliers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm.core.cholesky import factor
from attsvm.core.reduction import Reduced

# Maps a right-hand side (p, r) to x (p, r) and the ties' nu (k,).
Solver = Callable[[np.ndarray], tuple[np.ndarray, ...]]
# Maps a right-hand side (N,) and what the ties' rows are to be, (k,) or a number, to x (N,) and nu (k,).
Bordered = Callable[[np.ndarray, np.ndarray | float], tuple[np.ndarray, np.ndarray]]
# Singular values of the unit rows below this part of the largest are rounding.
RANK = 1e-12


class Ties:
    """The tied tokens of a reduced problem.

    Attributes
    ----------
    basis : ndarray, shape (k, p r)
        B; W is flattened row by row.
    shape : tuple
        (p, r).
    """

    def __init__(self, reduced: Reduced) -> None:
        self.shape = reduced.shape
        self._reduced = reduced
        rows, columns = np.nonzero(reduced.tied)
        self._where = rows, columns
        self.basis, self._to_rows = _row_space(reduced.constraint_rows(rows, columns))

    def project(self, W: np.ndarray) -> np.ndarray:
        """Return the nearest W (p, r) with tied scores equal to rounding."""
        if not len(self.basis):
            return W
        flat = W.ravel()
        for _ in range(2):
            flat = flat - self.basis.T @ (self.basis @ flat)
        return flat.reshape(W.shape)

    def eliminate(self, inverse: Callable[[np.ndarray], np.ndarray]) -> Solver:
        """Solve K x - B^T nu = r with Bx = 0, x and r (p, r); see :func:`bordered_solver`."""
        solve = bordered_solver(inverse, self.basis)

        def on_ties(rhs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            x, tie = solve(rhs.ravel(), 0.0)
            return self.project(x.reshape(rhs.shape)), tie

        return on_ties

    def adjoint(self, tie: np.ndarray) -> np.ndarray:
        """Return B^T nu as a matrix (p, r)."""
        return (self.basis.T @ tie).reshape(self.shape)

    def tie_multipliers(self, tie: np.ndarray) -> np.ndarray:
        """Return multipliers (n, T) on the tied tokens whose adjoint is B^T nu."""
        out = np.zeros(self._reduced.tied.shape)
        out[self._where] = self._to_rows @ tie
        return out

    def from_multipliers(self, dual: np.ndarray) -> np.ndarray:
        """Return the nu (k,) whose B^T nu is the adjoint of the tied part of multipliers (n, T)."""
        return self.basis @ self._reduced.adjoint(np.where(self._reduced.tied, dual, 0.0)).ravel()


def bordered_solver(
    inverse: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, compliance: np.ndarray | float = 0.0
) -> Bordered:
    """Solve K x - R^T nu = r with Rx + compliance nu = target, from what solves with K for (N,) and columns (N, k).

    Raises
    ------
    scipy.linalg.LinAlgError
        When rounding makes R K^-1 R^T + diag(compliance) indefinite.
    """
    if not len(rows):
        return lambda rhs, target: (inverse(rhs), np.zeros(0))
    images = inverse(rows.T)
    small = factor(rows @ images + np.diag(np.broadcast_to(compliance, len(rows))))

    def solve(rhs: np.ndarray, target: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
        x = inverse(rhs)
        tie = small(target - rows @ x)
        return x + images @ tie, tie

    return solve


def _row_space(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal basis (k, size) of the row space, and the matrix (rows, k) that turns nu into row multipliers."""
    if not rows.any():
        return np.zeros((0, rows.shape[1])), np.zeros((len(rows), 0))
    length = np.linalg.norm(rows, axis=1)
    length[length == 0] = 1.0
    left, sigma, basis = np.linalg.svd(rows / length[:, None], full_matrices=False)
    rank = int(np.count_nonzero(sigma > RANK * sigma[0]))
    return basis[:rank], left[:, :rank] / sigma[:rank] / length[:, None]
