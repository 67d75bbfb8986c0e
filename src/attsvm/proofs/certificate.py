r"""Proof that no W exists, checked without the solver that found it.

By Farkas' lemma the constraints are infeasible if and only if some multipliers :math:`\lambda \ge 0` (free on
equalities), not all zero on the inequalities, give :math:`A^\top\lambda = 0`. Floating-point multipliers only come
near: what is checked is that *exact* ones exist beside them. With :math:`M = A_J^\top \mathrm{diag}(\lambda_J)`, J the
support, the smallest relative correction e solving :math:`M(1+e) = 0` has :math:`|e| \le \|A^\top\lambda\| / \sigma`,
where :math:`\sigma` is the smallest non-zero singular value of M. If that ratio is below one, :math:`\lambda' =
\lambda(1+e)` is positive and exact. Which singular values count as zero is decided at rounding level, so the check is
as good as float64; exact arithmetic can settle what is closer than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attsvm.core.normal_matrix import NormalMatrix
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import Reduced, reduce
from attsvm.core.rounding import EPS

# Entries of the dense support matrix above which its smallest singular value is only bounded, by the normal matrix.
DENSE_ENTRIES = 4_000_000
CHOLESKY_FLOOR = 1e-10


@dataclass(frozen=True, eq=False)
class FarkasCertificate:
    """Multipliers that prove a selection problem infeasible.

    Attributes
    ----------
    problem : SelectionProblem
    dual : ndarray, shape (n, T)
        Nonnegative on rejected tokens, free on tied ones, summing to one over rejected tokens.
    """

    problem: SelectionProblem
    dual: np.ndarray

    @cached_property
    def residual(self) -> float:
        """Length of A^T dual over the summed lengths of its terms: rounding level when the proof holds."""
        reduced = reduce(self.problem)
        dual = reduced.gather(self.dual)
        total = float((np.abs(dual) * reduced.lengths).sum())
        return float(np.linalg.norm(reduced.adjoint(dual))) / total if total > 0 else 0.0

    @cached_property
    def ratio(self) -> float:
        """The existence test: below one, exact multipliers exist beside ``dual``; infinite when it cannot hold."""
        problem, dual = self.problem, np.asarray(self.dual, dtype=np.float64)
        if dual.shape != problem.mask.shape or not np.isfinite(dual).all():
            return np.inf
        if (dual[problem.rejected] < 0).any() or not (dual[problem.rejected] > 0).any():
            return np.inf
        if (dual[~problem.constrained] != 0).any():
            return np.inf
        if self._refuted(dual):
            return np.inf
        reduced = reduce(problem)
        return existence_ratio(reduced, reduced.gather(dual))

    def _refuted(self, dual: np.ndarray) -> bool:
        """Tell whether W = A^T dual, what is left over, meets the constraints: then nothing proves that no W does.

        Data within rounding of a contradiction leave a residual that looks like rounding; evaluated in the original
        coordinates it may still have every margin positive.
        """
        pulled = self.problem.adjoint(dual)
        top = np.abs(pulled).max()
        if top == 0.0:
            return False
        margins = self.problem.apply(pulled / top)
        return bool((margins[self.problem.rejected] > 0).all() and not margins[self.problem.tied].any())

    def verify(self) -> bool:
        """Tell whether the multipliers prove infeasibility."""
        return self.ratio < 1.0


def existence_ratio(reduced: Reduced, dual: np.ndarray) -> float:
    """Bound the largest relative correction that makes ``dual`` exact; see the module's derivation.

    Parameters
    ----------
    reduced : Reduced
    dual : ndarray, shape (n, T)
        On the rows of ``reduced``.

    Returns
    -------
    float
        (||A^T dual|| + its rounding error) / sigma.
    """
    row, column = np.nonzero(dual)
    weight = np.zeros(dual.shape)
    weight[row, column] = np.where(reduced.tied[row, column], np.abs(dual).max(), dual[row, column])
    noise = 4 * EPS * float((reduced.lengths * weight).sum())
    if noise == 0.0:
        return 0.0
    error = float(np.linalg.norm(reduced.adjoint(dual))) + noise
    size = int(np.prod(reduced.shape))
    if len(row) >= size:
        floor = _singular_value_floor(reduced, weight)
        if floor > 0 and (error < floor or len(row) * size > DENSE_ENTRIES):
            return error / floor
    left, right = reduced.delta[row, column] * weight[row, column][:, None], reduced.queries[row]
    return error / _smallest_singular_value((left[:, :, None] * right[:, None, :]).reshape(len(row), size))


def _singular_value_floor(reduced: Reduced, weight: np.ndarray) -> float:
    """Lower bound on the smallest singular value of A^T diag(weight) when it has full row rank; 0 when not shown.

    One Cholesky factorisation of M M^T - floor^2 I, whose success proves the bound, instead of a singular value
    decomposition of M.
    """
    normal = NormalMatrix(reduced).form(weight**2)
    size = len(normal)
    largest = float(np.abs(normal).sum(axis=1).max())
    floor_squared = CHOLESKY_FLOOR * largest
    normal[np.diag_indices(size)] -= floor_squared + size * EPS * largest
    try:
        np.linalg.cholesky(normal)
    except np.linalg.LinAlgError:
        return 0.0
    return float(np.sqrt(floor_squared))


def _smallest_singular_value(matrix: np.ndarray) -> float:
    """Smallest singular value above rounding level."""
    small = matrix if min(matrix.shape) == matrix.shape[0] else np.linalg.qr(matrix, mode="r")
    sigma = np.linalg.svd(small, compute_uv=False)
    return float(sigma[sigma > max(matrix.shape) * EPS * sigma[0]][-1])
