r"""Margins of one-hot tokens, and the curvature of their squared hinges.

Tokens are one-hot, so a constraint is :math:`a_{it} = (e_{\alpha_i} - e_t) z_i^\top`. If few margins fall short, a
product with the curvature takes two products of a sparse matrix, with one entry for each. If many do, it takes two of
dense matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from attsvm.proofs.program import Program
from attsvm.solvers.words.penalties import Matrix, Penalty, times


@dataclass(frozen=True, eq=False)
class Point:
    """Objective at V, the largest bound from multiples of its multipliers, their factor, and A^T of them, (T, dz)."""

    value: float
    bound: float
    scale: float
    adjoint: np.ndarray
    active: np.ndarray

    @property
    def gap(self) -> float:
        """Relative gap; zero where there is nothing to minimise."""
        return (self.value - self.bound) / self.value if self.value > 0 else 0.0


class Words:
    """A program over one-hot tokens; V has one row per token, (T, dz)."""

    def __init__(self, program: Program) -> None:
        problem, words = program.problem, program.problem.one_hot
        assert words is not None
        self._problem, self._axes, self._terms = problem, words.axes, program.terms
        self._queries, self._entries = problem.queries, words.entries[:, None]
        n, T = problem.mask.shape
        self.shape = T, problem.shape[3]
        self._prices = np.broadcast_to(1.0 / program.terms.shifts, (n, 1))
        self._choice = csr_array((np.ones(n), (problem.reference, np.arange(n))), shape=(T, n))

    def lift(self, V: np.ndarray) -> np.ndarray:
        """Write V as a matrix (d, dz)."""
        W = np.zeros(self._problem.shape[2:])
        W[self._axes] = V
        return W

    def margins(self, V: np.ndarray) -> np.ndarray:
        """Evaluate A(V), (n, T)."""
        return self._problem.apply(self.lift(V))

    def _shortfalls(self, margins: np.ndarray, rows: slice) -> np.ndarray:
        """Return max(0, 1 - margin) of rejected tokens in some rows, in the memory of the margins of these rows."""
        np.subtract(1.0, margins, out=margins)
        np.maximum(margins, 0.0, out=margins)
        margins *= self._terms.rejected[rows]
        return margins

    def multipliers(self, margins: np.ndarray, share: float) -> np.ndarray:
        """Return the multipliers (n, T) at C times the share, in the memory of the margins."""
        for rows in self._problem.chunks:
            self._shortfalls(margins[rows], rows)
            margins[rows] *= share * self._prices[rows]
        return margins

    def at(self, penalty: Penalty, margins: np.ndarray, share: float) -> Point:
        """Evaluate the V of a penalty, at which the margins of W are given, with C times the share."""
        adjoint, totals = np.zeros(self.shape), np.empty(len(margins))
        active = np.empty(margins.shape, dtype=bool)
        loss = 0.0
        for rows in self._problem.chunks:
            short = self._shortfalls(margins[rows].copy(), rows)
            active[rows] = short > 0
            dual = short * (share * self._prices[rows])
            loss += 0.5 * float(np.vdot(dual, short))
            adjoint -= dual.T @ self._queries[rows]
            totals[rows] = dual.sum(axis=1)
        adjoint += self._choice @ (totals[:, None] * self._queries)
        adjoint *= self._entries
        curvature, largest = penalty.dual_terms(adjoint)
        gain, curvature = 2.0 * loss + float(np.vdot(adjoint, penalty.V)), 2.0 * loss + curvature
        scale = min(largest, max(gain, 0.0) / curvature) if curvature > 0 else 0.0
        bound = scale * (gain - 0.5 * scale * curvature)
        return Point(penalty.size + loss, bound, scale, adjoint, active)

    def dense_curvature(self, active: np.ndarray, share: float) -> tuple[Matrix, np.ndarray, np.ndarray]:
        """Return products with the curvature, and one matrix (dz, dz) that, times numbers (T, 1), is nearly a block."""
        weights, queries, reference = share * self._prices, self._queries, self._problem.reference
        counts = active.T @ weights + self._choice @ (active.sum(axis=1)[:, None] * weights)
        moment = (weights * queries).T @ queries / weights.sum()

        def product(S: np.ndarray) -> np.ndarray:
            S = S * self._entries
            changes, totals = np.zeros(self.shape), np.empty((len(queries), 1))
            chosen = np.einsum("ij,ij->i", S[reference], queries)[:, None]
            for rows in self._problem.chunks:
                moves = chosen[rows] - queries[rows] @ S.T
                moves *= active[rows]
                moves *= weights[rows]
                changes -= moves.T @ queries[rows]
                totals[rows, 0] = moves.sum(axis=1)
            return self._entries * (changes + self._choice @ (totals * queries))

        return product, moment, self._entries**2 * counts

    def sparse_curvature(self, active: np.ndarray, share: float) -> tuple[Matrix, np.ndarray]:
        """Return products with the curvature, and its diagonal blocks (T, dz, dz)."""
        weights, queries, reference = share * self._prices, self._queries, self._problem.reference
        counts = active.sum(axis=1)
        places = np.concatenate([np.flatnonzero(row).astype(np.int32) for row in active])
        pointers = np.concatenate([[0], np.cumsum(counts)])
        by_query = csr_array((np.ones(len(places)), places, pointers), shape=active.shape)
        by_token, totals = by_query.T.tocsr(), weights * counts[:, None]
        upper = np.triu_indices(self.shape[1])
        squares = queries[:, upper[0]] * queries[:, upper[1]]
        sums = by_token @ (weights * squares)
        blocks = _symmetric(sums, upper)
        diagonal = _symmetric(sums + self._choice @ (totals * squares), upper)
        diagonal *= self._entries[:, :, None] ** 2

        def product(S: np.ndarray) -> np.ndarray:
            S = S * self._entries
            chosen = np.einsum("ij,ij->i", S[reference], queries)[:, None]
            others = np.einsum("ij,ij->i", by_query @ S, queries)[:, None]
            changes = times(blocks, S) - by_token @ (weights * chosen * queries)
            changes += self._choice @ ((totals * chosen - weights * others) * queries)
            return self._entries * changes

        return product, diagonal

    def slope(self, margins: np.ndarray, change: np.ndarray, length: float, share: float) -> tuple[float, float]:
        """Slope and curvature of the losses after a length of a step that changes the margins (n, T) so."""
        slope = curvature = 0.0
        for rows in self._problem.chunks:
            short, weights = change[rows] * length, share * self._prices[rows, 0]
            short += margins[rows]
            self._shortfalls(short, rows)
            slope -= float(weights @ np.einsum("ij,ij->i", short, change[rows]))
            moving = change[rows] * (short > 0)
            curvature += float(weights @ np.einsum("ij,ij->i", moving, change[rows]))
        return slope, curvature


def _symmetric(upper: np.ndarray, indices: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Write upper triangles (T, k) as symmetric matrices (T, dz, dz)."""
    size = int(indices[1][-1]) + 1
    matrices, (i, j) = np.empty((len(upper), size, size)), indices
    matrices[:, i, j] = upper
    matrices[:, j, i] = upper
    return matrices
