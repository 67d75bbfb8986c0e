r"""Certificate that no W exists, checked independently of the solver that found it.

Farkas' lemma: the constraints are infeasible if and only if some multipliers :math:`\lambda \ge 0` give
:math:`A^\top\lambda = 0`. The multipliers of equalities are free; the multipliers of inequalities must not all be zero.
Floating-point multipliers are only nearly exact: the check shows that *exact* multipliers exist near them.

Let :math:`M = A_J^\top \mathrm{diag}(\lambda_J)` with support J. The smallest relative correction e that solves
:math:`M(1+e) = 0` has :math:`|e| \le \|A^\top\lambda\| / \sigma`, where :math:`\sigma` is the smallest non-zero
singular value of M. If this ratio is below one, :math:`\lambda' = \lambda(1+e)` is positive and exact. If no singular
value counts as zero, the test holds for the data as given. Otherwise exact arithmetic decides small supports, and for
larger ones the certificate states the relative distance of the data for which it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attsvm.core.double_double import Rows
from attsvm.core.error_free import EPS, Pair, gamma
from attsvm.core.normal_matrix import NormalMatrix
from attsvm.core.norms import frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import Reduced, constraint_rows, reduce
from attsvm.core.rounding import FUNCTION_ROUNDING
from attsvm.platform.summary import MARKED, Summarised, Summary
from attsvm.proofs.decision import decidable
from attsvm.proofs.infeasible import prove_infeasible

# Number of entries of the support matrix above which the smallest singular value is only bounded (normal matrix).
SUPPORT_ENTRIES = 4_000_000
# Number of entries of fewer rows than columns from which a bound is tried before their singular values.
BOUNDED_ENTRIES = 100_000
# Square of the smallest singular value that is tested, relative to the largest row sum of the normal matrix.
CHOLESKY_FLOOR = 1e-10
# Largest support, number of integer operations and float ratio for which multipliers are found over the integers.
EXACT_SYSTEM, EXACT_OPERATIONS, EXACT_RATIO = 24, 1_000_000, 1.0
# Relative distance up to which nearby data count as the given data when no exact decision is possible.
NEARBY_DATA = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class FarkasCertificate(Summarised):
    """Multipliers that prove a selection problem infeasible.

    Attributes
    ----------
    problem : SelectionProblem
    dual : ndarray, shape (n, T)
        Nonnegative on rejected tokens, where they sum to one; of any sign on tied tokens.

    Examples
    --------
    >>> from attsvm import SelectionProblem, solve
    >>> problem = SelectionProblem([[[0.0], [1.0], [-1.0]]], [[1.0]], [0])
    >>> certificate = solve(problem).certificate
    >>> certificate.dual.round(9), certificate.verify()
    (array([[0. , 0.5, 0.5]]), True)
    """

    problem: SelectionProblem
    dual: np.ndarray

    @cached_property
    def residual(self) -> float:
        """Length of A^T dual divided by the summed lengths of its terms: at rounding level when the proof holds."""
        reduced = reduce(self.problem)
        dual = reduced.gather(self.dual)
        total = float((np.abs(dual) * reduced.lengths).sum())
        return float(np.linalg.norm(reduced.adjoint(dual))) / total if total > 0 else 0.0

    @cached_property
    def _admissible(self) -> bool:
        """Whether the multipliers have the required signs and A^T dual is not itself a feasible W."""
        problem, dual = self.problem, np.asarray(self.dual, dtype=np.float64)
        if dual.shape != problem.mask.shape or not np.isfinite(dual).all():
            return False
        inner = dual[problem.rejected]
        if (inner < 0).any() or not (inner > 0).any() or (dual[~problem.constrained] != 0).any():
            return False
        return not self._is_refuted(dual)

    @cached_property
    def _existence(self) -> tuple[float, bool]:
        if not self._admissible:
            return np.inf, False
        reduced, dual = reduce(self.problem), np.asarray(self.dual, dtype=np.float64)
        ratio, sure = _existence(reduced, reduced.gather(dual))
        if ratio == 0.0:
            # In reduced coordinates, short constraints are zero if others are long.
            return 0.0, _moves_nothing(self.problem, dual)
        return ratio, sure and _spans_exactly(self.problem, reduced)

    @property
    def ratio(self) -> float:
        """Existence test: below one, exact multipliers exist near ``dual``; infinite when the test does not apply."""
        return self._existence[0]

    @cached_property
    def exact(self) -> bool:
        """Whether multipliers near ``dual`` are proven to cancel exactly for the floats of the problem."""
        if not self._admissible:
            return False
        ratio, sure = self._existence
        if sure:
            return True
        dual = np.asarray(self.dual, dtype=np.float64)
        _, _, d, dz = self.problem.shape
        if np.count_nonzero(dual) ** 2 * d * dz > EXACT_OPERATIONS or not ratio < EXACT_RATIO:
            return False
        return prove_infeasible(self.problem, dual, EXACT_SYSTEM) is not None

    @cached_property
    def perturbation(self) -> float:
        r"""Relative distance to data for which ``dual`` proves that no W exists; zero for a proof for the given data.

        ``dual`` cancels constraints that differ from the :math:`\delta_{it}z_i^\top` by at most this fraction of their
        lengths. It bounds the backward error :math:`\|A^\top\lambda\|/\sum\lambda_{it}|\delta_{it}||z_i|` from above.
        """
        if self.exact:
            return 0.0
        if not self._admissible:
            return np.inf
        problem, dual = self.problem, np.asarray(self.dual, dtype=np.float64)
        rows, columns = np.nonzero(dual)
        weights = dual[rows, columns]
        constraints = Rows.of(problem, rows, columns)
        residual, error = constraints.adjoint(Pair(weights, np.zeros(len(weights))), scaled=True)
        total = float((np.abs(weights) * constraints.lengths).sum()) * (1 - gamma(sum(problem.shape) + 40))
        return (
            frobenius(residual.rounded()) * (1 + FUNCTION_ROUNDING) / total + error * (1 + FUNCTION_ROUNDING)
            if total > 0
            else np.inf
        )

    @property
    def statement(self) -> str:
        """Sentence that says what the multipliers prove."""
        if self.exact:
            return "multipliers next to the certificate's cancel exactly"
        return (
            "the certificate's multipliers cancel for data whose constraints differ from these by a relative "
            f"{self.perturbation:.1e}"
        )

    def _is_refuted(self, dual: np.ndarray) -> bool:
        """Tell whether W = A^T dual satisfies the constraints, which refutes infeasibility.

        If the data are within rounding of infeasible data, A^T dual looks like rounding error. In the original
        coordinates it may still have only positive margins.
        """
        adjoint = self.problem.adjoint(dual)
        top = np.abs(adjoint).max()
        if top == 0.0:
            return False
        margins = self.problem.apply(adjoint / top)
        return bool((margins[self.problem.rejected] > 0).all() and not margins[self.problem.tied].any())

    def verify(self) -> bool:
        """Tell whether the multipliers prove infeasibility of the data or, for a large problem, of nearby data.

        A problem small enough for exact arithmetic is infeasible only if its multipliers are exact.

        Examples
        --------
        >>> from attsvm import SelectionProblem, solve
        >>> solution = solve(SelectionProblem([[[0.0], [1.0], [-1.0]]], [[1.0]], [0]))
        >>> solution.certificate.verify()
        True
        """
        return self.exact or (self.ratio < 1.0 and self.perturbation < NEARBY_DATA and not decidable(self.problem))

    def _summary(self) -> Summary:
        facts = [("multipliers above zero", f"{np.count_nonzero(self.dual):,} of {int(self.problem.rejected.sum()):,}")]
        return Summary("FarkasCertificate", colour=MARKED, facts=facts, notes=[self.statement])


def existence_ratio(reduced: Reduced, dual: np.ndarray) -> float:
    """Bound the largest relative correction that makes ``dual`` exact; derivation: see the module.

    Parameters
    ----------
    dual : ndarray, shape (n, T)
        Multipliers of the constraints of ``reduced``.

    Returns
    -------
    float
        (||A^T dual|| + its rounding error) / sigma.
    """
    return _existence(reduced, dual)[0]


def _existence(reduced: Reduced, dual: np.ndarray) -> tuple[float, bool]:
    """Return the ratio, and whether exact multipliers are proven to exist, with no singular value counted as zero."""
    row, column = np.nonzero(dual)
    dual = np.ldexp(dual, -int(np.frexp(np.abs(dual).max())[1]))  # power of two that keeps squares in range
    weight = np.zeros(dual.shape)
    weight[row, column] = np.where(reduced.tied[row, column], np.abs(dual).max(), dual[row, column])
    terms = float((reduced.lengths * weight).sum())
    noise = 4 * EPS * terms
    if noise == 0.0:
        return 0.0, True
    residual = float(np.linalg.norm(reduced.adjoint(dual)))
    error = residual + noise
    p, r = reduced.shape
    size = p * r
    # Rotating differences and queries takes d and dz products per entry; A^T dual takes one per term.
    wide = 1 if reduced.left is None else reduced.left.shape[1]
    long = 1 if reduced.right is None else reduced.right.shape[1]
    rounding = (
        gamma(wide * p**0.5 + long * r**0.5 + min(sum(dual.shape), len(row)) + 16) * terms * (1 + FUNCTION_ROUNDING)
    )
    if len(row) >= size:
        floor = _singular_value_floor(reduced, weight)
        if floor > 0 and (residual + rounding < floor - rounding or len(row) * size > SUPPORT_ENTRIES):
            return error / floor, residual + rounding < floor - rounding
    elif len(row) * size > BOUNDED_ENTRIES:
        floor = _floor_beside_kernel(reduced, dual, weight, residual)
        if error < floor:
            return error / floor, False
    left, right = reduced.delta[row, column] * weight[row, column][:, None], reduced.queries[row]
    smallest, largest, rank = _singular_values(constraint_rows(left, right))
    # LAPACK's singular values are exact for a matrix within a few units of rounding, relative to its size, of this one.
    floor = smallest - 32 * (size + len(row)) * EPS * largest - rounding
    return error / smallest, rank == size and residual + rounding < floor


def _moves_nothing(problem: SelectionProblem, dual: np.ndarray) -> bool:
    """Tell whether every constraint with a multiplier (n, T) is zero under every W, for the floats of the problem."""
    rows, columns = np.nonzero(dual)
    moving = problem.queries[rows].any(axis=1)
    rows, columns = rows[moving], columns[moving]
    texts = problem.sequence[rows]
    return np.array_equal(problem.tokens[texts, problem.reference[rows]], problem.tokens[texts, columns])


def _spans_exactly(problem: SelectionProblem, reduced: Reduced) -> bool:
    """Tell whether the rotated coordinates have the exact dimension of the spans, so that no dimension was cut off."""
    if reduced.left is not None and np.count_nonzero(reduced.lengths) > reduced.shape[0]:
        support = np.zeros(problem.shape[2], dtype=bool)
        for _, delta in problem.differences():
            support |= delta.any(axis=(0, 1))
        if np.count_nonzero(support) > reduced.shape[0]:
            return False
    if reduced.right is not None:
        queries = problem.queries[reduced.rows]
        count = min(int(np.count_nonzero(queries.any(axis=0))), len(np.unique(queries, axis=0)))
        return count <= reduced.shape[1]
    return True


def _singular_value_floor(reduced: Reduced, weight: np.ndarray) -> float:
    """Lower bound on the smallest singular value of A^T diag(weight) when it has full row rank; 0 if not shown.

    The proof is a successful Cholesky factorisation of M M^T - floor^2 I, which costs less than a singular value
    decomposition.
    """
    normal = NormalMatrix(reduced).form(weight**2)
    return _cholesky_floor(normal, 2 * len(normal) + sum(weight.shape), float(np.abs(normal).sum(axis=1).max()))


def _floor_beside_kernel(reduced: Reduced, dual: np.ndarray, weight: np.ndarray, residual: float) -> float:
    """Lower bound on all singular values but one of M = A^T diag(weight), if that one counts as zero; 0 if not shown.

    The vector dual / weight, which M takes to A^T dual of length ``residual``, shows that one does. By interlacing, all
    others are at least the root of the smallest eigenvalue of M^T M plus a multiple of the square of this vector.
    """
    row, column = np.nonzero(dual)
    weights = weight[row, column]
    gram = reduced.gram(row, column) * weights * weights[:, None]
    kernel = dual[row, column] / weights
    length, terms = float(np.linalg.norm(kernel)), max(len(row), int(np.prod(reduced.shape)))
    if residual > length * terms * EPS * float(np.diagonal(gram).max()) ** 0.5:
        return 0.0
    largest = float(np.abs(gram).sum(axis=1).max())
    kernel *= largest**0.5 / length
    return _cholesky_floor(gram + kernel[:, None] * kernel, 3 * terms, 2 * largest)


def _cholesky_floor(normal: np.ndarray, terms: int, largest: float) -> float:
    """Lower bound on the root of the smallest eigenvalue of a matrix of sums of ``terms`` products; 0 if not shown."""
    floor_squared = CHOLESKY_FLOOR * largest
    normal[np.diag_indices(len(normal))] -= floor_squared + terms * EPS * largest
    try:
        np.linalg.cholesky(normal)
    except np.linalg.LinAlgError:
        return 0.0
    return float(np.sqrt(floor_squared))


def _singular_values(matrix: np.ndarray) -> tuple[float, float, int]:
    """Smallest singular value above rounding level, the largest, and the number above rounding level."""
    small = matrix if min(matrix.shape) == matrix.shape[0] else np.linalg.qr(matrix, mode="r")
    sigma = np.linalg.svd(small, compute_uv=False)
    above = sigma[sigma > max(matrix.shape) * EPS * sigma[0]]
    return float(above[-1]), float(sigma[0]), len(above)
