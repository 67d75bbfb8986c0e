r"""Newton systems of entrywise norms: a diagonal plus the normal matrix, on the space of equal tied scores.

An entrywise norm contributes a diagonal h > 0 to the Hessian in W, the margins contribute :math:`A^\top\Theta A`, and
tied tokens require :math:`BW = 0`, B an orthonormal basis of the ties' rows:

.. math:: (\mathrm{diag}(h) + A^\top \Theta A)\, x - B^\top \nu = r, \qquad B x = 0 .

If constraints are fewer than entries of W, the same step is computed from :math:`\Theta^{-1} + A\,
\mathrm{diag}(h)^{-1} A^\top`. Each pair of queries has a block of this matrix: products of token differences with one
weight per axis. The unknown is then the change of the multipliers, :math:`\Theta(g - A(x))`; computed as the difference
of two large multiplier vectors it would have no correct digits near the end. Cholesky's rounding error does not depend
on the scaling of rows and columns, so h may span many decades.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.linalg import LinAlgError

from attsvm.core import cholesky as equilibrated
from attsvm.core.normal_matrix import NormalMatrix
from attsvm.core.reduction import Reduced
from attsvm.solvers.common.ties import Ties
from attsvm.solvers.schedule import ROW_ENTRIES

# Maps r (p, r) and g (n, T), zero by default, to x (p, r), nu (k,) and Theta (g - A(x)), (n, T).
Step = Callable[..., tuple[np.ndarray, ...]]
UNREFINED_RESIDUAL = 1e-12  # residual, over the right-hand side, up to which no refinement is needed


class DiagonalNormal(Ties):
    """Factors and solves the systems above for one reduced problem.

    Parameters
    ----------
    fewer, least : float
        The system over the constraints is factored if ``fewer`` times their number is below the number of entries of W,
        and W has more than ``least`` entries.

    Attributes
    ----------
    few : bool
        Whether the system over the constraints is factored.
    """

    def __init__(self, reduced: Reduced, fewer: float = 1.0, least: int = ROW_ENTRIES) -> None:
        super().__init__(reduced)
        size = int(np.prod(reduced.shape))
        count = int(reduced.rejected.sum())
        self._rows = np.nonzero(reduced.rejected)
        self.few = size > least and (count + len(self.basis)) * fewer < size
        if not self.few:
            self._normal = NormalMatrix(reduced)

    def factor(self, h: np.ndarray | float, theta: np.ndarray, vector: np.ndarray | None = None) -> Step:
        """Factor for h > 0, (p, r) or a number, and theta (n, T) >= 0.

        The rank-one matrix vector vector^T, if given, is subtracted from diag(h) (Sherman and Morrison).

        Raises scipy.linalg.LinAlgError when rounding makes the matrix indefinite.
        """
        once = self._factor_rows(h, theta) if self.few else self._factor_entries(h, theta)
        if vector is not None:
            once = _less_rank_one(once, vector)

        def solve(r: np.ndarray, g: np.ndarray | float = 0.0) -> tuple[np.ndarray, ...]:
            def lack(x: np.ndarray, tie: np.ndarray, dual: np.ndarray) -> tuple[np.ndarray, ...]:
                residual = r - h * x + self._reduced.adjoint(dual) + self.adjoint(tie)
                residual = residual if vector is None else residual + vector * float((vector * x).sum())
                if not self.few:
                    return (residual,)
                lag = g - self._reduced.apply(x) - dual / np.maximum(theta, 1e-300)
                return residual, np.where(theta > 0, lag, 0.0)

            whole = r + self._reduced.adjoint(theta * g)
            return equilibrated.refined(once, lack, (r, g), UNREFINED_RESIDUAL * float(np.abs(whole).max()))

        return solve

    def _factor_entries(self, h: np.ndarray | float, theta: np.ndarray) -> Step:
        reduced, matrix = self._reduced, self._normal.form(theta)
        matrix[np.diag_indices(len(matrix))] += np.ravel(h)
        inverse = self.eliminate(equilibrated.factor(matrix))

        def solve(r: np.ndarray, g: np.ndarray | float = 0.0) -> tuple[np.ndarray, ...]:
            x, tie = inverse(r if isinstance(g, float) else r + reduced.adjoint(theta * g))
            return x, tie, theta * (g - reduced.apply(x))

        return solve

    def _factor_rows(self, h: np.ndarray | float, theta: np.ndarray) -> Step:
        reduced, where, basis = self._reduced, self._rows, self.basis
        count = len(where[0])
        compliance = 1.0 / h
        matrix = np.empty((count + len(basis),) * 2)
        matrix[:count, :count] = self._gram(compliance) if isinstance(compliance, np.ndarray) else self._plain / h
        inner = np.arange(count)
        matrix[inner, inner] += 1.0 / np.maximum(theta[where], 1e-300)
        image = basis * np.ravel(compliance)
        for k, row in enumerate(image, start=count):
            matrix[:count, k] = matrix[k, :count] = reduced.apply(row.reshape(reduced.shape))[where]
        matrix[count:, count:] = image @ basis.T
        inverse = equilibrated.factor(matrix)

        def solve(r: np.ndarray, g: np.ndarray | float = 0.0) -> tuple[np.ndarray, ...]:
            image = compliance * r
            lacking = (g - reduced.apply(image))[where]
            multipliers = inverse(np.append(lacking, -(basis @ image.ravel())))
            dual = np.zeros(theta.shape)
            dual[where], tie = multipliers[:count], multipliers[count:]
            x = compliance * (r + reduced.adjoint(dual) + self.adjoint(tie))
            return self.project(x), tie, dual

        return solve

    @cached_property
    def _plain(self) -> np.ndarray:
        """A A^T, (m, m)."""
        return self._reduced.gram(*self._rows)

    def _gram(self, compliance: np.ndarray) -> np.ndarray:
        """Return A diag(compliance) A^T, (m, m), query by query: a constraint's p r entries are never written out."""
        rows, columns = self._rows
        delta, queries = self._reduced.delta[rows, columns], self._reduced.queries
        gram = np.empty((len(rows), len(rows)))
        bounds = np.searchsorted(rows, np.arange(len(queries) + 1))
        for i, (first, last) in enumerate(pairwise(bounds)):
            weights = (queries * queries[i]) @ compliance.T  # (n, p)
            gram[first:last] = delta[first:last] @ (delta * weights[rows]).T
        return gram


def _less_rank_one(inverse: Step, vector: np.ndarray) -> Step:
    """Solve with another solver's matrix minus vector vector^T, for a vector (p, r)."""
    along = inverse(vector)
    pivot = 1.0 - float((vector * along[0]).sum())
    if not pivot > 0.0:
        raise LinAlgError("the matrix is not positive definite to rounding")

    def solve(r: np.ndarray, g: np.ndarray | float = 0.0) -> tuple[np.ndarray, ...]:
        step = inverse(r, g)
        weight = float((vector * step[0]).sum()) / pivot
        return tuple(one + weight * more for one, more in zip(step, along, strict=True))

    return solve
