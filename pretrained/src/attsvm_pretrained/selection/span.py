r"""The span of the data, in which a trained W and an SVM can be compared.

Margins depend on W only through the differences of tokens and the queries. The part of a trained W outside
span{token differences} x span{queries} changes no margin, so W is projected onto the span first. Two spaces have the
same methods: :class:`ExplicitSpace` uses matrices, for heads with one W; :class:`KernelSpace` uses inner products, for
rotary heads. In the second space the squared norm of the projected W is :math:`\mathrm{tr}(V^\top G^{-1} V)`. G is the
Gram matrix of the lifted differences, and the rows of V, of rank d_h, are the trained matrix applied to them. G depends
on the tokens alone, so one Cholesky factor is used for all weights, and a norm costs O(m^2 d_h) for m differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from attsvm.core.correlation import correlation
from attsvm.core.reduction import reduce
from attsvm.core.status import Status
from attsvm.core.types import FactorNorm
from attsvm.solvers.solving import solve
from attsvm.study.controls import PRICE, hebbian
from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.heads.rotary import rotate
from attsvm_pretrained.selection.inner_products import TokenProducts
from attsvm_pretrained.selection.kernel import KernelSolution, solve_selection

# Relative gap to which an SVM is solved; its direction then errs by up to sqrt(2 gap) of its length.
SPAN_GAP = 1e-6
# Diagonal added to a Gram matrix, relative to its largest eigenvalue.
RIDGE = 1e-10
# Number of power steps that estimate the largest eigenvalue.
SPAN_POWER_STEPS = 20


@dataclass(frozen=True)
class Direction:
    """An SVM compared with the trained W.

    Attributes
    ----------
    cosine : float
        Cosine with the trained W inside the data's span.
    objective : float
        Norm of the SVM, the inverse of the largest margin of a W of norm one; infinite if there is no SVM.
    gap : float
        Certified relative gap.
    soft : bool
        Whether a soft margin replaces the SVM because no W makes the selection, or none was found in time.
    """

    cosine: float
    objective: float
    gap: float
    status: Status
    soft: bool


class Space(Protocol):
    """The methods of both spaces."""

    head: AttentionHead

    @property
    def norm(self) -> float:
        """Norm of the trained W inside the span."""
        ...

    def redrawn(self, head: AttentionHead) -> Space:
        """Return the space of the same tokens under other weights."""
        ...

    def trained_margin(self) -> float:
        """Smallest margin of the selected tokens under the trained W, over its norm inside the span."""
        ...

    def svm(self, selected: np.ndarray, norm: FactorNorm, time_limit: float | None) -> Direction:
        """Compare the trained W with the SVM of a selection, (n,) int, or (n, T) bool for the Gen-SVM."""
        ...

    def svm_scores(self, head: AttentionHead, time_limit: float | None) -> np.ndarray:
        """Return scores (n, T) of other queries under the SVM of the head's selection, at the norm of the trained W."""
        ...

    def hebbian(self) -> float:
        """Cosine of the trained W with the sum of (selected token - mean of the others) z^T."""
        ...


class ExplicitSpace:
    """Heads whose score is x^T W z."""

    def __init__(self, head: AttentionHead) -> None:
        self.head = head
        self._problem = head.problem()
        self._reduced = reduce(self._problem)
        self._trained = self._reduced.lift(self._reduced.lower(head.W))

    @property
    def norm(self) -> float:
        """Norm of the trained W inside the span."""
        return float(np.linalg.norm(self._trained))

    def redrawn(self, head: AttentionHead) -> ExplicitSpace:
        """Return the space of the same tokens under other weights."""
        return ExplicitSpace(head)

    def trained_margin(self) -> float:
        """Smallest margin over the norm."""
        margins = self._problem.apply(self.head.W)[self._problem.rejected]
        return float(margins.min()) / self.norm

    def svm(self, selected: np.ndarray, norm: FactorNorm = "frobenius", time_limit: float | None = None) -> Direction:
        """Solve the SVM of a selection; a squared hinge replaces it if it does not exist."""
        solution, soft = self._solve(selected, norm, time_limit)
        objective, gap = (np.inf, soft.gap) if soft is not None else (solution.objective, solution.gap)
        cosine = float(correlation(self._trained, (soft or solution).W))
        return Direction(cosine, objective, gap, solution.status, soft=soft is not None)

    def _solve(self, selected: np.ndarray, norm: FactorNorm, time_limit: float | None) -> tuple[Any, Any]:
        """Return the SVM of a selection, and the soft one if there is no SVM."""
        problem = self.head.problem(selected)
        tol = SPAN_GAP if norm == "frobenius" else 1e-3
        solution = solve(problem, norm, tol=tol, time_limit=time_limit)
        if np.isfinite(solution.objective):
            return solution, None
        # C is relative to the size of the data, since hidden states of different layers have different sizes.
        length = float(np.mean(self._reduced.lengths[self._reduced.rejected]) * self._reduced.scale)
        return solution, solve(problem, C=PRICE / length**2, loss="squared_hinge", tol=1e-3, time_limit=time_limit)

    def svm_scores(self, head: AttentionHead, time_limit: float | None) -> np.ndarray:
        """Score other queries by the SVM of the head's selection."""
        solution, soft = self._solve(self.head.selected, "frobenius", time_limit)
        W = (soft or solution).W
        return self.norm / float(np.linalg.norm(W)) * head.problem().scores(W)

    def hebbian(self) -> float:
        """Cosine with the Hebbian direction."""
        return float(correlation(self._trained, hebbian(self._problem)))


class KernelSpace:
    """Rotary heads, whose W over lifted tokens is never formed."""

    def __init__(self, head: AttentionHead) -> None:
        self.head = head
        rejected = head.mask.copy()
        rejected[np.arange(len(rejected)), head.selected] = False
        self._rows, self._columns = np.nonzero(rejected)
        trained_scores = head.scores()
        self._margins = (
            trained_scores[self._rows, head.selected[self._rows]] - trained_scores[self._rows, self._columns]
        )

    def redrawn(self, head: AttentionHead) -> KernelSpace:
        """Return the space of the same tokens under other weights; results for the tokens alone are shared."""
        fresh = KernelSpace(head)
        fresh.__dict__["_choices"] = self._choices
        return fresh

    @cached_property
    def _choices(self) -> _Choices:
        return _Choices(self.head)

    @property
    def norm(self) -> float:
        """Norm of the trained W inside the span."""
        return self._norm

    @cached_property
    def _norm(self) -> float:
        head, choices = self.head, self._choices
        assert head.turns is not None
        relative = head.turns.queries[:, None] * head.turns.tokens[head.sequence].conj()  # (n, T, P)
        keys = rotate((head.tokens @ head.K)[head.sequence], head.turns.pairs, relative.conj())  # (n, T, dh)
        rows, columns, first = choices.rows, choices.columns, choices.first
        factor = head.Q.T
        if head.bias is not None:  # one more coordinate of keys and queries
            keys = np.concatenate([keys, head.bias[..., None]], axis=2)
            factor = head.with_bias_row(factor)
        whitened = solve_triangular(choices.root, keys[rows, columns] - keys[rows, first[rows]], lower=True)
        return float(np.linalg.norm(whitened @ (factor @ choices.query_basis.T)))

    def trained_margin(self) -> float:
        """Smallest margin over the norm."""
        return float(self._margins.min()) / self.norm

    def svm(self, selected: np.ndarray, norm: FactorNorm = "frobenius", time_limit: float | None = None) -> Direction:
        """Solve the Frobenius SVM of a selection; a squared hinge replaces it if it does not exist.

        Raises ValueError if the norm is not "frobenius", or a query has several selected tokens.
        """
        if norm != "frobenius" or selected.ndim != 1:
            raise ValueError(f"norm is {norm!r}; 'frobenius' with one token a query was expected for a rotary head.")
        solution, soft = self._solve(selected, time_limit)
        cosine = solution.product_with_trained() / (solution.norm * self.norm)
        objective = np.inf if soft else solution.objective
        status = Status.UNDECIDED if soft else solution.status
        return Direction(cosine, objective, solution.gap, status, soft)

    def _solve(self, selected: np.ndarray, time_limit: float | None) -> tuple[KernelSolution, bool]:
        """Return the SVM of a selection, or the soft one if there is no SVM, and whether it is soft."""
        products = self._choices.products
        solution = solve_selection(self.head, selected, products, None, SPAN_GAP, time_limit)
        if np.isfinite(solution.objective):
            return solution, False
        queries = self.head.asking_vectors()
        squared = self._choices.mean_square(selected) * np.mean(np.square(queries).sum(axis=1))
        return solve_selection(self.head, selected, products, PRICE / squared, 1e-3, time_limit), True

    def svm_scores(self, head: AttentionHead, time_limit: float | None) -> np.ndarray:
        """Score other queries by the SVM of the head's selection."""
        solution, _ = self._solve(self.head.selected, time_limit)
        return self.norm / solution.norm * solution.scores(head)

    def hebbian(self) -> float:
        """Cosine with the Hebbian direction."""
        weights = 1.0 / np.bincount(self._rows, minlength=len(self.head.queries))[self._rows]
        means = self._choices.mean_products(self.head.selected)  # of selected token - mean of the others
        queries = self.head.asking_vectors()
        squared = (means * (queries @ queries.T)).sum()
        return float(weights @ self._margins) / (float(np.sqrt(squared)) * self.norm)


class _Choices:
    """Quantities that do not depend on the selection: inner products, and the span of the differences.

    Each query's tokens minus its first visible token span the differences of any selection.

    Attributes
    ----------
    products : TokenProducts
    rows, columns : ndarray of int, shape (m,)
        Query and token of each difference.
    first : ndarray of int, shape (n,)
    root : ndarray, shape (m, m)
        Lower Cholesky factor of the inner products of those differences, with a ridge.
    query_basis : ndarray, shape (r, dz)
        Orthonormal basis of the span of the queries.
    """

    def __init__(self, head: AttentionHead) -> None:
        self.products = TokenProducts(head)
        self.first = head.mask.argmax(axis=1)
        others = head.mask.copy()
        others[np.arange(len(others)), self.first] = False
        self.rows, self.columns = np.nonzero(others)
        token, first = self.products.at(self.columns, self.rows), self.products.at(self.first)[self.rows]
        half = self.products.tokens[token] - self.products.tokens[first]
        ridged = np.take(half, token, axis=1) - np.take(half, first, axis=1)
        ridged[np.diag_indices(len(ridged))] += RIDGE * _largest_eigenvalue(ridged)
        self.root = cholesky(ridged, lower=True, overwrite_a=True)
        _, sigma, basis = np.linalg.svd(head.asking_vectors(), full_matrices=False)
        self.query_basis = basis[sigma > 1e-12 * sigma[0]]

    def mean_square(self, selected: np.ndarray) -> float:
        """Return the mean squared length of the selected token minus another token."""
        tokens, rows = self.products.tokens, self.products.rows
        winners = self.products.at(selected)[rows]
        lengths = np.diag(tokens)
        squared = lengths[winners] + lengths - 2.0 * tokens[winners, np.arange(len(rows))]
        return float(squared.sum() / len(self.rows))  # zero for the selected token itself

    def mean_products(self, selected: np.ndarray) -> np.ndarray:
        """Return the inner products of the queries' (selected token - mean of the others), (n, n)."""
        rows = self.products.rows
        n, M = len(self.first), len(rows)
        others = np.bincount(rows, minlength=n) - 1.0
        weights = np.zeros((n, M))
        weights[rows, np.arange(M)] = -1.0 / others[rows]
        weights[np.arange(n), self.products.at(selected)] = 1.0
        return weights @ self.products.tokens @ weights.T


def _largest_eigenvalue(matrix: np.ndarray) -> float:
    """Estimate the largest eigenvalue of a positive matrix by power steps, from below."""
    vector = np.ones(len(matrix))
    size = 0.0
    for _ in range(SPAN_POWER_STEPS):
        vector = matrix @ vector
        size = float(np.linalg.norm(vector))
        if size == 0:
            return float(np.trace(matrix))
        vector /= size
    return size


def span(head: AttentionHead) -> Space:
    """Return the space that fits the head."""
    return KernelSpace(head) if head.rotary else ExplicitSpace(head)
