r"""Newton with conjugate gradients for squared hinges over one-hot tokens: classes or words, and many entries of W.

Let :math:`V = W - W_0` and let :math:`u = \max(0, c - A(V))` be the shortfalls. The objective
:math:`\tfrac12\|V\|_F^2 + \sum C_i u_{it}^2` has the gradient :math:`V - A^\top\lambda` with the multipliers
:math:`\lambda = 2 C_i u`. The gap of V and these multipliers is :math:`\tfrac12\|V - A^\top\lambda\|_F^2`, so it falls
with the square of the gradient. Newton's matrix is :math:`I + \sum 2 C_i a_{it} a_{it}^\top` over the margins that fall
short (Keerthi and DeCoste, JMLR 6, 2005). Conjugate gradients solve for a step to a share of the gradient (Lin, Weng
and Keerthi, JMLR 9, 2008).

Tokens are one-hot, so a constraint is :math:`a_{it} = (e_{\alpha_i} - e_t) z_i^\top`. If few margins fall short, a
product with Newton's matrix takes two products of a sparse matrix, with one entry for each, and the preconditioner is
the inverse of the diagonal blocks, one per token. If many do, a product takes two of dense matrices, and all diagonal
blocks are approximated by multiples of one matrix. C grows to its value tenfold at a time, since steps are short while
many margins fall short by far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from attsvm.core.norms import FROBENIUS
from attsvm.core.reduction import SMALLEST
from attsvm.proofs.program import Program
from attsvm.solvers.common.control import Control

# Largest share of the gradient that a step leaves, largest number of steps, and of conjugate gradients in a step.
RESIDUAL, NEWTON_STEPS, CONJUGATE_STEPS = 0.1, 300, 500
# The first C over the C at which norm and losses of the first multipliers are equal, the gap at which C grows, and its
# factor.
FIRST, STAGE_GAP, GROWTH = 10.0, 0.3, 10.0
# Ratio of slopes at which a search along a step ends, and its largest number of trials.
FLAT, SEARCHES = 0.03, 30
# Share of the margins that fall short up to which they are entries of a sparse matrix.
FEW_SHORT = 0.05

Matrix = Callable[[np.ndarray], np.ndarray]


def suits_words(program: Program) -> bool:
    """Tell whether a program is a squared hinge in the Frobenius norm over one-hot tokens, without ties."""
    problem = program.problem
    return (
        program.norm is FROBENIUS and program.terms.shift > 0 and not problem.has_ties and problem.one_hot is not None
    )


def memory_of(program: Program) -> int:
    """Estimate the bytes of margins, their changes and multipliers, of squares of queries and of diagonal blocks."""
    n, T, _, dz = program.problem.shape
    return 8 * (3 * n * T + (n // 2 + 2 * T) * dz**2)


def truncated_newton(program: Program, control: Control) -> tuple[np.ndarray, np.ndarray] | None:
    """Minimise a program that :func:`suits_words`; return W (d, dz) and multipliers (n, T).

    Returns None if squares leave the range of floats; methods that scale the problem go on.
    """
    control.enter("truncated Newton")
    words = _Words(program)
    V, margins = np.zeros(words.shape), program.problem.apply(program.origin)
    share = min(1.0, FIRST * words.at(V, margins, 1.0).scale)
    if not share > SMALLEST:
        return None
    point = words.at(V, margins, share)
    for _ in range(NEWTON_STEPS):
        if not math.isfinite(point.value):
            return None
        while share < 1.0 and point.gap < STAGE_GAP:
            share = min(1.0, share * GROWTH)
            point = words.at(V, margins, share)
        # The adjoint takes the place of the multipliers, whose copy would be as large as the margins.
        best = (V, point.value, point.adjoint, point.bound) if share == 1.0 else (None, np.inf, None, 0.0)
        if control.observe(*best):
            break
        step = words.step(V, point, share)
        change = words.margins(step)
        change *= (length := words.length(V, point, step, margins, change, share))
        V = V + length * step
        margins += change
        point = words.at(V, margins, share)
    control.W = control.dual = None
    return program.origin + words.lift(V), point.scale * words.multipliers(margins, share)


@dataclass(frozen=True, eq=False)
class _Point:
    """Objective at V, the largest bound from multiples of its multipliers, their factor, and A^T of them, (T, dz)."""

    value: float
    bound: float
    scale: float
    adjoint: np.ndarray
    active: np.ndarray

    @property
    def gap(self) -> float:
        return (self.value - self.bound) / self.value if self.value > 0 else 0.0


class _Words:
    """A program over one-hot tokens; V has one row per token, (T, dz)."""

    def __init__(self, program: Program) -> None:
        problem, words = program.problem, program.problem.one_hot
        assert words is not None
        self._problem, self._axes, self._terms = problem, words.axes, program.terms
        self._queries, self._entries = problem.queries, words.entries[:, None]
        n, T = problem.mask.shape
        self.shape = T, problem.shape[3]
        self._weights = np.broadcast_to(1.0 / program.terms.shifts, (n, 1))
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
            margins[rows] *= share * self._weights[rows]
        return margins

    def at(self, V: np.ndarray, margins: np.ndarray, share: float) -> _Point:
        """Evaluate V, at which the margins of W are given, with C times the share."""
        adjoint, totals = np.zeros(self.shape), np.empty(len(margins))
        active = np.empty(margins.shape, dtype=bool)
        loss = 0.0
        for rows in self._problem.chunks:
            short = self._shortfalls(margins[rows].copy(), rows)
            active[rows] = short > 0
            dual = short * (share * self._weights[rows])
            loss += 0.5 * float(np.vdot(dual, short))
            adjoint -= dual.T @ self._queries[rows]
            totals[rows] = dual.sum(axis=1)
        adjoint += self._choice @ (totals[:, None] * self._queries)
        adjoint *= self._entries
        gain, curvature = 2.0 * loss + float(np.vdot(adjoint, V)), 2.0 * loss + float(np.vdot(adjoint, adjoint))
        scale = max(gain, 0.0) / curvature if curvature > 0 else 0.0
        return _Point(0.5 * float(np.vdot(V, V)) + loss, 0.5 * scale * gain, scale, adjoint, active)

    def step(self, V: np.ndarray, point: _Point, share: float) -> np.ndarray:
        """Solve for Newton's step (T, dz) by conjugate gradients, to a share of the gradient."""
        weights = share * self._weights
        is_sparse = np.count_nonzero(point.active) <= FEW_SHORT * point.active.size
        product, inverse = (self._sparse if is_sparse else self._dense)(point.active, weights)
        residual = point.adjoint - V
        step, direction = np.zeros(self.shape), inverse(residual)
        square = float(np.vdot(residual, direction))
        last = min(RESIDUAL**2, point.gap) * square
        for _ in range(CONJUGATE_STEPS):
            image = product(direction)
            length = square / float(np.vdot(direction, image))
            step += length * direction
            residual -= length * image
            image = inverse(residual)
            before, square = square, float(np.vdot(residual, image))
            if not square > last:
                break
            direction = image + (square / before) * direction
        return step

    def _dense(self, active: np.ndarray, weights: np.ndarray) -> tuple[Matrix, Matrix]:
        """Products with Newton's matrix and with the inverse of an approximation of its diagonal blocks."""
        queries, reference = self._queries, self._problem.reference
        counts = active.T @ weights + self._choice @ (active.sum(axis=1)[:, None] * weights)
        sizes, vectors = np.linalg.eigh((weights * queries).T @ queries / weights.sum())
        blocks = 1.0 + self._entries**2 * counts * np.maximum(sizes, 0.0)

        def product(P: np.ndarray) -> np.ndarray:
            Q = P * self._entries
            changes, totals = np.zeros(self.shape), np.empty((len(queries), 1))
            chosen = np.einsum("ij,ij->i", Q[reference], queries)[:, None]
            for rows in self._problem.chunks:
                moves = chosen[rows] - queries[rows] @ Q.T
                moves *= active[rows]
                moves *= weights[rows]
                changes -= moves.T @ queries[rows]
                totals[rows, 0] = moves.sum(axis=1)
            return P + self._entries * (changes + self._choice @ (totals * queries))

        return product, lambda residual: (residual @ vectors / blocks) @ vectors.T

    def _sparse(self, active: np.ndarray, weights: np.ndarray) -> tuple[Matrix, Matrix]:
        """Products with Newton's matrix and with the inverse of its diagonal blocks."""
        queries, reference, size = self._queries, self._problem.reference, self.shape[1]
        counts = active.sum(axis=1)
        places = np.concatenate([np.flatnonzero(row).astype(np.int32) for row in active])
        pointers = np.concatenate([[0], np.cumsum(counts)])
        by_query = csr_array((np.ones(len(places)), places, pointers), shape=active.shape)
        by_token, totals = by_query.T.tocsr(), weights * counts[:, None]
        upper = np.triu_indices(size)
        squares = queries[:, upper[0]] * queries[:, upper[1]]
        sums = by_token @ (weights * squares)
        blocks = _symmetric(sums, upper)
        diagonal = _symmetric(sums + self._choice @ (totals * squares), upper) * self._entries[:, :, None] ** 2
        diagonal[:, range(size), range(size)] += 1.0
        inverses = np.linalg.inv(diagonal)

        def product(P: np.ndarray) -> np.ndarray:
            Q = P * self._entries
            chosen = np.einsum("ij,ij->i", Q[reference], queries)[:, None]
            others = np.einsum("ij,ij->i", by_query @ Q, queries)[:, None]
            changes = _times(blocks, Q) - by_token @ (weights * chosen * queries)
            changes += self._choice @ ((totals * chosen - weights * others) * queries)
            return P + self._entries * changes

        return product, lambda residual: _times(inverses, residual)

    def length(
        self, V: np.ndarray, point: _Point, step: np.ndarray, margins: np.ndarray, change: np.ndarray, share: float
    ) -> float:
        """Minimise the objective along a step (T, dz) by safeguarded Newton steps; its slope is piecewise linear."""
        first, square = float(np.vdot(V, step)), float(np.vdot(step, step))
        steepest, low, high, length = float(np.vdot(V - point.adjoint, step)), 0.0, math.inf, 1.0
        for _ in range(SEARCHES):
            slope, curvature = first + length * square, square
            for rows in self._problem.chunks:
                short, weights = change[rows] * length, share * self._weights[rows, 0]
                short += margins[rows]
                self._shortfalls(short, rows)
                slope -= float(weights @ np.einsum("ij,ij->i", short, change[rows]))
                moving = change[rows] * (short > 0)
                curvature += float(weights @ np.einsum("ij,ij->i", moving, change[rows]))
            if abs(slope) <= FLAT * abs(steepest):
                break
            low, high = (length, high) if slope < 0 else (low, length)
            new = length - slope / curvature
            length = new if low < new < high else 0.5 * (low + high) if math.isfinite(high) else 2.0 * length
        return length


def _symmetric(upper: np.ndarray, indices: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Write upper triangles (T, k) as symmetric matrices (T, dz, dz)."""
    size = int(indices[1][-1]) + 1
    matrices, (i, j) = np.empty((len(upper), size, size)), indices
    matrices[:, i, j] = upper
    matrices[:, j, i] = upper
    return matrices


def _times(matrices: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Multiply every row (T, dz) by its matrix (T, dz, dz)."""
    return np.matmul(matrices, rows[:, :, None])[:, :, 0]
