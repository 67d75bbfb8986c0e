r"""Directions inside the span of the data, where a trained W and an SVM can be compared.

Margins see W only through the differences of tokens and the queries. Whatever a trained W does outside
span{token differences} x span{queries} no SVM can or should match, so it is projected there first. Both spaces below
answer the same questions: :class:`ExplicitSpace` with matrices, for heads with one W; :class:`KernelSpace` with inner
products, for rotary heads, where the projected norm is :math:`\mathrm{tr}(V^\top G^+ V)` with G the Gram matrix of the
lifted differences and the rows of V the trained matrix applied to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from attsvm.core.correlation import correlation
from attsvm.core.reduction import reduce
from attsvm.core.status import Status
from attsvm.core.types import FactorNorm
from attsvm.pretrained.head import AttentionHead, turned
from attsvm.pretrained.kernel import features, inner_products, solve_kernel
from attsvm.solvers.solving import solve
from attsvm.study.controls import PRICE, hebbian

# A direction is off by up to sqrt(2 gap), here a thousandth of its length.
GAP = 1e-6
# Eigenvalues of a Gram matrix are squares: directions along which the lifted differences reach less than 1e-5 of their
# largest extent cannot be told from rounding, and count as outside the span.
RANK = 1e-10


@dataclass(frozen=True)
class Direction:
    """An SVM beside the trained W.

    Attributes
    ----------
    cosine : float
        With the trained W inside the data's span.
    objective : float
        Norm of the SVM, one over the largest margin of a W of norm one; infinite where there is none.
    gap : float
        Certified.
    status : Status
    soft : bool
        Whether no W makes the selection (or none was found in time), so that a soft margin stands for it.
    """

    cosine: float
    objective: float
    gap: float
    status: Status
    soft: bool


class Space(Protocol):
    """What both spaces answer."""

    head: AttentionHead

    @property
    def size(self) -> int:
        """Dimension of the space in which directions are compared."""
        ...

    def trained_margin(self) -> float:
        """Smallest margin of the selected tokens under the trained W, over its norm inside the span."""
        ...

    def svm(self, selected: np.ndarray, norm: FactorNorm, time_limit: float | None) -> Direction:
        """Compare the trained W with the SVM of a selection, (n,) int, or (n, T) bool for the Gen-SVM."""
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
    def size(self) -> int:
        """Product of the dimensions of both spans."""
        return int(np.prod(self._reduced.shape))

    def trained_margin(self) -> float:
        """Smallest margin over the norm; the additive term of the scores plays no part."""
        margins = self._problem.apply(self.head.W)[self._problem.rejected]
        return float(margins.min()) / float(np.linalg.norm(self._trained))

    def svm(self, selected: np.ndarray, norm: FactorNorm = "frobenius", time_limit: float | None = None) -> Direction:
        """Solve the SVM of a selection; a squared hinge stands for it where there is none."""
        problem = self.head.problem(selected)
        tol = GAP if norm == "frobenius" else 1e-3
        solution = solve(problem, norm, tol=tol, time_limit=time_limit)
        if np.isfinite(solution.objective):
            cosine = float(correlation(self._trained, solution.W))
            return Direction(cosine, solution.objective, solution.gap, solution.status, soft=False)
        # Prices are relative to the size of the data, which real hidden states have in every layer another of.
        length = float(np.mean(self._reduced.lengths[self._reduced.rejected]) * self._reduced.scale)
        soft = solve(problem, C=PRICE / length**2, loss="squared_hinge", tol=1e-3, time_limit=time_limit)
        return Direction(float(correlation(self._trained, soft.W)), np.inf, soft.gap, solution.status, soft=True)

    def hebbian(self) -> float:
        """Cosine with the Hebbian direction."""
        return float(correlation(self._trained, hebbian(self._problem)))


class KernelSpace:
    """Rotary heads: W over lifted tokens, never formed."""

    def __init__(self, head: AttentionHead) -> None:
        self.head = head
        rejected = head.mask.copy()
        rejected[np.arange(len(rejected)), head.selected] = False
        self._rows, self._columns = np.nonzero(rejected)
        own_scores = head.scores() - (0.0 if head.bias is None else head.bias)
        self._margins = own_scores[self._rows, head.selected[self._rows]] - own_scores[self._rows, self._columns]

    @cached_property
    def _products(self) -> np.ndarray:
        """Inner products of the lifted differences, (m, m), without those of the queries."""
        ups = features(self.head, self._rows, self.head.selected[self._rows])
        downs = features(self.head, self._rows, self._columns)
        return inner_products(ups, downs, queries=False)

    @cached_property
    def _spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = np.linalg.eigh(self._products)
        keep = values > RANK * values[-1]
        return values[keep], vectors[:, keep]

    @cached_property
    def _query_basis(self) -> np.ndarray:
        _, sigma, basis = np.linalg.svd(self.head.queries, full_matrices=False)
        return basis[sigma > 1e-12 * sigma[0]]

    @property
    def size(self) -> int:
        """Product of the dimensions of both spans."""
        return len(self._spectrum[0]) * len(self._query_basis)

    @cached_property
    def _norm(self) -> float:
        """Norm of the trained W inside the span."""
        values, vectors = self._spectrum
        projection = (vectors.T @ self._trained_rows()) @ self._query_basis.T
        return float(np.sqrt((projection**2 / values[:, None]).sum()))

    def _trained_rows(self) -> np.ndarray:
        """Trained W^T applied to the lifted differences, (m, dz)."""
        head = self.head
        assert head.turns is not None
        relative = head.turns.queries[:, None] * head.turns.tokens[head.sequence].conj()  # (n, T, P)
        keys = turned((head.tokens @ head.K)[head.sequence], head.turns.pairs, relative.conj())  # (n, T, dh)
        difference = keys[self._rows, head.selected[self._rows]] - keys[self._rows, self._columns]
        return difference @ head.Q.T

    def trained_margin(self) -> float:
        """Smallest margin over the norm; the additive term of the scores plays no part."""
        return float(self._margins.min()) / self._norm

    def svm(self, selected: np.ndarray, norm: FactorNorm = "frobenius", time_limit: float | None = None) -> Direction:
        """Solve the Frobenius SVM of a selection; a squared hinge stands for it where there is none.

        Raises
        ------
        ValueError
            For another norm or several selected tokens, of which there is no kernel form here.
        """
        if norm != "frobenius" or selected.ndim != 1:
            raise ValueError(f"norm is {norm!r}; 'frobenius' with one token a query was expected for a rotary head.")
        solution = solve_kernel(self.head, selected, tol=GAP, time_limit=time_limit)
        soft = not np.isfinite(solution.objective)
        if soft:
            length = float(np.mean(np.diag(self._products)) * np.mean(np.square(self.head.queries).sum(axis=1)))
            solution = solve_kernel(self.head, selected, C=PRICE / length, tol=1e-3, time_limit=time_limit)
        cosine = solution.product_with_trained() / (solution.norm * self._norm)
        objective = np.inf if soft else solution.objective
        status = Status.UNDECIDED if soft else solution.status
        return Direction(cosine, objective, solution.gap, status, soft)

    def hebbian(self) -> float:
        """Cosine with the Hebbian direction."""
        weights = 1.0 / np.bincount(self._rows, minlength=len(self.head.queries))[self._rows]
        queries = self.head.queries[self._rows]
        squared = weights @ (self._products * (queries @ queries.T)) @ weights
        return float(weights @ self._margins) / (float(np.sqrt(squared)) * self._norm)


def span(head: AttentionHead) -> Space:
    """Return the space that fits the head."""
    return KernelSpace(head) if head.rotary else ExplicitSpace(head)
