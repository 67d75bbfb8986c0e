r"""Equal scores of tied tokens as a linear space: BW = 0 with orthonormal rows B.

The rows of the ties may depend on each other; an orthonormal basis B of their span does not, so its multipliers
:math:`\nu` are unique and Newton systems stay solvable. :math:`B^\top\nu` is the adjoint of the ties' own multipliers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import numpy as np
from scipy.linalg import LinAlgError

from attsvm.core.cholesky import PROXIMAL, factor
from attsvm.core.error_free import EPS
from attsvm.core.reduction import Reduced

# Maps a right-hand side (p, r) to x (p, r) and the ties' nu (k,).
Solver = Callable[[np.ndarray], tuple[np.ndarray, ...]]
# Maps a right-hand side (N,) and the target of the ties' rows, (k,) or a number, to x (N,) and nu (k,).
Bordered = Callable[[np.ndarray, np.ndarray | float], tuple[np.ndarray, np.ndarray]]
# Singular value of the unit rows, over the largest, below which it is rounding.
RANK = 1e-12
# Residual of a tie, over its length times the norm of W and the root of the sizes, up to which it is rounding.
TIE_ROUNDING = 4.0 * EPS
# Largest number of projections by the Gram matrix; each leaves the rounding of one solution.
PROJECTIONS = 4


class Ties:
    """The tied tokens of a reduced problem.

    Attributes
    ----------
    shape : tuple
        (p, r).
    """

    def __init__(self, reduced: Reduced) -> None:
        self.shape = reduced.shape
        self._reduced = reduced
        self._where = np.nonzero(reduced.tied & (reduced.lengths > 0.0))

    def __bool__(self) -> bool:
        return len(self._where[0]) > 0

    @cached_property
    def _row_space(self) -> tuple[np.ndarray, np.ndarray]:
        return _row_space(self._reduced.constraint_rows(*self._where))

    @property
    def basis(self) -> np.ndarray:
        """B (k, p r) of the module; W is flattened row by row."""
        return self._row_space[0]

    @cached_property
    def _solve(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """Function that solves with the Gram matrix of the ties' rows; None if rounding makes the matrix indefinite."""
        rows, columns = self._where
        blocks = self._reduced.block_gram(rows, columns, np.zeros(len(rows)))
        if blocks is not None:
            return partial(blocks.solve, steps=1)
        try:
            return factor(self._reduced.gram(rows, columns), PROXIMAL)
        except LinAlgError:
            return None

    def project(self, W: np.ndarray) -> np.ndarray:
        """Return the nearest W (p, r) with tied scores equal to rounding."""
        if not self:
            return W
        if "_row_space" not in self.__dict__:
            projection = self._project_by_gram(W)
            if projection is not None:
                return projection
        flat = W.ravel()
        for _ in range(2):
            flat = flat - self.basis.T @ (self.basis @ flat)
        return flat.reshape(W.shape)

    def _project_by_gram(self, W: np.ndarray) -> np.ndarray | None:
        """Subtract the ties' rows times their multipliers; None if nearly dependent ties leave more than rounding."""
        if self._solve is None:
            return None
        lengths = self._reduced.lengths[self._where]
        noise = TIE_ROUNDING * sum(self.shape) ** 0.5 * float(np.linalg.norm(W)) * lengths
        share = np.zeros(self._reduced.tied.shape)
        for _ in range(PROJECTIONS):
            residual = self._reduced.apply(W)[self._where]
            if (np.abs(residual) <= noise).all():
                return W
            try:
                share[self._where] = self._solve(residual)
            except LinAlgError:
                return None
            W = W - self._reduced.adjoint(share)
        return W if (np.abs(self._reduced.apply(W)[self._where]) <= noise).all() else None

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
        out[self._where] = self._row_space[1] @ tie
        return out

    def from_multipliers(self, dual: np.ndarray) -> np.ndarray:
        """Return the nu (k,) whose B^T nu is the adjoint of the tied part of multipliers (n, T)."""
        return self.basis @ self._reduced.adjoint(np.where(self._reduced.tied, dual, 0.0)).ravel()


def bordered_solver(
    inverse: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, compliance: np.ndarray | float = 0.0
) -> Bordered:
    """Solve K x - R^T nu = r with Rx + compliance nu = target; ``inverse`` solves with K for (N,) and (N, k).

    Raises scipy.linalg.LinAlgError when rounding makes R K^-1 R^T + diag(compliance) indefinite.
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
