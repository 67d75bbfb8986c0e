r"""Newton with conjugate gradients for squared hinges over one-hot tokens: classes or words, and many entries of W.

Let :math:`V = W - W_0` and let :math:`u = \max(0, c - A(V))` be the shortfalls. The objective
:math:`\tfrac12\|V\|_F^2 + \sum C_i u_{it}^2` has the gradient :math:`V - A^\top\lambda` with the multipliers
:math:`\lambda = 2 C_i u`. The gap of V and these multipliers is :math:`\tfrac12\|V - A^\top\lambda\|_F^2`, so it falls
with the square of the gradient. Newton's matrix is :math:`I + \sum 2 C_i a_{it} a_{it}^\top` over the margins that fall
short (Keerthi and DeCoste, JMLR 6, 2005). Conjugate gradients solve for a step to a share of the gradient (Lin, Weng
and Keerthi, JMLR 9, 2008).

Tokens are one-hot, so a constraint is :math:`a_{it} = (e_{\alpha_i} - e_t) z_i^\top`. A product with Newton's matrix
takes two products of a sparse matrix, with one entry per margin that falls short. The preconditioner is the inverse of
the diagonal blocks, one per token. C grows to its value tenfold at a time, since steps are short while many margins
fall short by far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from attsvm.core.norms import FROBENIUS
from attsvm.proofs.program import Program
from attsvm.solvers.common.control import Control

# Largest share of the gradient that a step leaves, and limits on steps and on those of conjugate gradients.
RESIDUAL, NEWTON_STEPS, CONJUGATE_STEPS = 0.1, 300, 500
# The first C over the C at which norm and losses of the first multipliers are equal, the gap at which C grows, and its
# factor.
FIRST, STAGE_GAP, GROWTH = 10.0, 0.3, 10.0
# Ratio of slopes at which a search along a step ends, and its largest number of trials.
FLAT, SEARCHES = 3e-3, 30


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


def truncated_newton(program: Program, control: Control) -> tuple[np.ndarray, np.ndarray]:
    """Minimise a program that :func:`suits_words`; return W (d, dz) and multipliers (n, T)."""
    control.enter("truncated Newton")
    words = _Words(program)
    V, margins = np.zeros(words.shape), np.zeros(program.problem.mask.shape)
    share = min(1.0, FIRST * words.at(V, margins, 1.0).scale)
    point = words.at(V, margins, share)
    for _ in range(NEWTON_STEPS):
        while share < 1.0 and point.gap < STAGE_GAP:
            share = min(1.0, share * GROWTH)
            point = words.at(V, margins, share)
        # The adjoint stands for the multipliers, which are as many as the margins.
        best = (V, point.value, point.adjoint, point.bound) if share == 1.0 else (None, np.inf, None, 0.0)
        if control.observe(*best):
            break
        step = words.step(V, point, share)
        change = words.margins(step)
        change *= (length := words.length(V, step, margins, change, share))
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
        self._upper = np.triu_indices(self.shape[1])
        self._squares = self._queries[:, self._upper[0]] * self._queries[:, self._upper[1]]

    def lift(self, V: np.ndarray) -> np.ndarray:
        """Write V as a matrix (d, dz)."""
        W = np.zeros(self._problem.shape[2:])
        W[self._axes] = V
        return W

    def margins(self, V: np.ndarray) -> np.ndarray:
        """Evaluate A(V), (n, T)."""
        return self._problem.apply(self.lift(V))

    def _shortfalls(self, margins: np.ndarray, rows: slice) -> np.ndarray:
        """Return max(0, c - margin) in some rows, from the margins of these rows."""
        short = self._terms.cost[rows] - margins
        np.maximum(short, 0.0, out=short)
        short[~self._terms.rejected[rows]] = 0.0
        return short

    def multipliers(self, margins: np.ndarray, share: float) -> np.ndarray:
        """Return the multipliers (n, T) at C times the share, in the memory of the margins."""
        for rows in self._problem.chunks:
            margins[rows] = share * self._weights[rows] * self._shortfalls(margins[rows], rows)
        return margins

    def at(self, V: np.ndarray, margins: np.ndarray, share: float) -> _Point:
        """Evaluate V, whose margins are A(V), with C times the share."""
        adjoint, totals = np.zeros(self.shape), np.empty(len(margins))
        active = np.empty(margins.shape, dtype=bool)
        loss = gain = 0.0
        for rows in self._problem.chunks:
            short = self._shortfalls(margins[rows], rows)
            active[rows] = short > 0
            dual = share * self._weights[rows] * short
            loss += 0.5 * float(np.vdot(dual, short))
            gain += float(np.vdot(dual, self._terms.cost[rows]))
            adjoint -= dual.T @ self._queries[rows]
            totals[rows] = dual.sum(axis=1)
        adjoint += self._choice @ (totals[:, None] * self._queries)
        adjoint *= self._entries
        curvature = 2.0 * loss + float(np.vdot(adjoint, adjoint))
        scale = gain / curvature if curvature > 0 else 0.0
        return _Point(0.5 * float(np.vdot(V, V)) + loss, 0.5 * scale * gain, scale, adjoint, active)

    def step(self, V: np.ndarray, point: _Point, share: float) -> np.ndarray:
        """Solve for Newton's step (T, dz) by conjugate gradients, to a share of the gradient."""
        weights, reference = share * self._weights, self._problem.reference
        active = _Marks(point.active)
        totals = weights * active.counts[:, None]
        sums = active.sums(weights * self._squares)
        blocks = self._full(sums)
        diagonal = self._full(sums + self._choice @ (totals * self._squares)) * self._entries[:, :, None] ** 2
        diagonal[:, range(self.shape[1]), range(self.shape[1])] += 1.0
        inverse = np.linalg.inv(diagonal)

        def product(P: np.ndarray) -> np.ndarray:
            Q = P * self._entries
            chosen = weights * np.einsum("ij,ij->i", Q[reference], self._queries)[:, None]
            others = weights * np.einsum("ij,ij->i", active.rows(Q), self._queries)[:, None]
            changes = _times(blocks, Q) - active.sums(chosen * self._queries)
            changes += self._choice @ ((active.counts[:, None] * chosen - others) * self._queries)
            return P + self._entries * changes

        residual = point.adjoint - V
        step, direction = np.zeros(self.shape), _times(inverse, residual)
        square = float(np.vdot(residual, direction))
        last = min(RESIDUAL**2, point.gap) * square
        for _ in range(CONJUGATE_STEPS):
            image = product(direction)
            length = square / float(np.vdot(direction, image))
            step += length * direction
            residual -= length * image
            image = _times(inverse, residual)
            before, square = square, float(np.vdot(residual, image))
            if not square > last:
                break
            direction = image + (square / before) * direction
        return step

    def _full(self, upper: np.ndarray) -> np.ndarray:
        """Write upper triangles (T, k) as symmetric matrices (T, dz, dz)."""
        blocks, (i, j) = np.empty((*self.shape, self.shape[1])), self._upper
        blocks[:, i, j] = upper
        blocks[:, j, i] = upper
        return blocks

    def length(self, V: np.ndarray, step: np.ndarray, margins: np.ndarray, change: np.ndarray, share: float) -> float:
        """Minimise the objective along a step (T, dz) by safeguarded Newton steps; its slope is piecewise linear."""
        first, square = float(np.vdot(V, step)), float(np.vdot(step, step))

        def slope_at(length: float) -> tuple[float, float]:
            slope, curvature = first + length * square, square
            for rows in self._problem.chunks:
                short = self._shortfalls(margins[rows] + length * change[rows], rows)
                pull = share * self._weights[rows] * change[rows]
                slope -= float(np.vdot(short, pull))
                curvature += float(np.vdot(pull, np.where(short > 0, change[rows], 0.0)))
            return slope, curvature

        steepest, low, high, length = slope_at(0.0)[0], 0.0, math.inf, 1.0
        for _ in range(SEARCHES):
            slope, curvature = slope_at(length)
            if abs(slope) <= FLAT * abs(steepest):
                break
            low, high = (length, high) if slope < 0 else (low, length)
            new = length - slope / curvature
            length = new if low < new < high else 0.5 * (low + high) if math.isfinite(high) else 2.0 * length
        return length


class _Marks:
    """Marked places (n, T) as a sparse matrix; if most are marked, the places that are not."""

    def __init__(self, marked: np.ndarray) -> None:
        self.counts = marked.sum(axis=1).astype(float)
        self._most = 2 * int(self.counts.sum()) > marked.size
        pointers = np.concatenate([[0], np.cumsum(len(marked[0]) - self.counts if self._most else self.counts)])
        columns = [np.flatnonzero(~row if self._most else row).astype(np.int32) for row in marked]
        places = np.concatenate(columns)
        self._places = csr_array((np.ones(len(places)), places, pointers.astype(np.int64)), shape=marked.shape)
        self._columns = self._places.T.tocsr()

    def rows(self, Q: np.ndarray) -> np.ndarray:
        """Sum Q (T, k) over the marked places of each row, (n, k)."""
        sums = self._places @ Q
        return Q.sum(axis=0) - sums if self._most else sums

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sum values (n, k) over the marked places of each column, (T, k)."""
        sums = self._columns @ values
        return values.sum(axis=0) - sums if self._most else sums


def _times(matrices: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Multiply every row (T, dz) by its matrix (T, dz, dz)."""
    return np.matmul(matrices, rows[:, :, None])[:, :, 0]
