r"""Margins of one-hot tokens, and the curvature of their squared hinges.

Tokens are one-hot, so a constraint is :math:`a_{it} = (e_{\alpha_i} - e_t) z_i^\top`. If few margins fall short, a
product with the curvature takes one inner product and one sum for each. If many do, it takes two dense matrix products
in numbers of four bytes, since a step only needs a share of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

import numpy as np
from scipy.sparse import csr_array

from attsvm.core.norms import FROBENIUS, NUCLEAR
from attsvm.platform.kernels import call, frozen
from attsvm.proofs.program import Program
from attsvm.solvers.common.control import Control
from attsvm.solvers.words.losses import add_curvature, loss_of, slope_of, subtract_active

Matrix = Callable[[np.ndarray], np.ndarray]
Method = Callable[[Program, Control], tuple[np.ndarray, np.ndarray] | None]


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


def suits_words(program: Program) -> bool:
    """Tell whether a program is a squared hinge in the Frobenius or nuclear norm over one-hot tokens, without ties."""
    problem = program.problem
    is_smooth = program.norm in (FROBENIUS, NUCLEAR) and program.terms.shift > 0
    return is_smooth and not problem.has_ties and problem.one_hot is not None


def within_range(method: Method) -> Method:
    """Let a method return None if squares leave the range of floats; methods that scale the problem go on."""

    @wraps(method)
    def run(program: Program, control: Control) -> tuple[np.ndarray, np.ndarray] | None:
        try:
            return method(program, control)
        except (np.linalg.LinAlgError, ZeroDivisionError):
            return None

    return run


# Number of tokens whose margins are copied at a time to lie one token after another.
COLUMNS = 64


class Words:
    """A program over one-hot tokens; V has one row per token, (T, dz)."""

    def __init__(self, program: Program) -> None:
        problem, words = program.problem, program.problem.one_hot
        assert words is not None
        self._problem, self.axes, self.rejected = problem, words.axes, frozen(program.terms.rejected)
        self.chunks = problem.chunks
        self.queries, self.reference = frozen(problem.queries), frozen(problem.reference)
        self.entries = words.entries[:, None]
        n, T = problem.mask.shape
        self.shape = T, problem.shape[3]
        self.prices = np.broadcast_to(1.0 / program.terms.shifts, (n, 1))[:, 0].copy()
        self.choice = csr_array((np.ones(n), (problem.reference, np.arange(n))), shape=(T, n))

    def lift(self, V: np.ndarray) -> np.ndarray:
        """Write V as a matrix (d, dz)."""
        W = np.zeros(self._problem.shape[2:])
        W[self.axes] = V
        return W

    def start(self, origin: np.ndarray) -> np.ndarray:
        """Evaluate A(W) at the origin (d, dz), (n, T)."""
        return self.margins(origin[self.axes])

    def margins(self, V: np.ndarray) -> np.ndarray:
        """Evaluate A(V), (n, T); differences of scores where the problem has no constraint."""
        V = V * self.entries
        margins, chosen = np.empty(self._problem.mask.shape), self._chosen(V, self.queries)
        for rows in self.chunks:
            np.matmul(self.queries[rows], V.T, out=margins[rows])
            np.subtract(chosen[rows, None], margins[rows], out=margins[rows])
        return margins

    def _chosen(self, V: np.ndarray, queries: np.ndarray) -> np.ndarray:
        """Score of each query's selected token (n,), for V (T, dz) times the tokens' entries."""
        return np.einsum("ij,ij->i", V[self.reference], queries)

    def multipliers(self, margins: np.ndarray, share: float) -> np.ndarray:
        """Return the multipliers (n, T) at C times the share, in the memory of the margins."""
        for rows in self.chunks:
            self._loss(margins[rows], rows, share, margins[rows], np.empty(margins[rows].shape, dtype=bool))
        return margins

    def _loss(self, margins: np.ndarray, rows: slice, share: float, dual: np.ndarray, active: np.ndarray) -> float:
        """Loss of some rows; sets their multipliers and whether their margins fall short."""
        prices = share * self.prices[rows]
        return call(loss_of, 3 * margins.size, margins, self.rejected[rows], prices, dual, active)

    def at(self, V: np.ndarray, margins: np.ndarray, share: float) -> Point:
        """Evaluate V (T, dz), at which the margins of W are given, with C times the share."""
        adjoint, totals = np.zeros(self.shape), np.empty(len(margins))
        active = np.empty(margins.shape, dtype=bool)
        loss = 0.0
        for rows in self.chunks:
            dual = np.empty_like(margins[rows])
            loss += self._loss(margins[rows], rows, share, dual, active[rows])
            adjoint -= dual.T @ self.queries[rows]
            totals[rows] = dual.sum(axis=1)
        adjoint += self.choice @ (totals[:, None] * self.queries)
        adjoint *= self.entries
        gain = 2.0 * loss + float(np.vdot(adjoint, V))
        curvature = 2.0 * loss + float(np.vdot(adjoint, adjoint))
        scale = max(gain, 0.0) / curvature if curvature > 0 else 0.0
        bound = scale * (gain - 0.5 * scale * curvature)
        return Point(0.5 * float(np.vdot(V, V)) + loss, bound, scale, adjoint, active)

    def dense_curvature(self, active: np.ndarray, share: float) -> Matrix:
        """Return products with the curvature, from dense matrix products."""
        prices, totals = share * self.prices, np.empty(len(active), dtype=np.float32)
        # Numbers of four bytes need sizes near one.
        length, most = float(np.abs(self.queries).max()), float(prices.max())
        queries = (self.queries / length).astype(np.float32)
        weighted = (prices / most).astype(np.float32)[:, None] * queries

        def product(S: np.ndarray) -> np.ndarray:
            S = S * self.entries
            size = float(np.abs(S).max()) or 1.0
            small, changes = (S / size).astype(np.float32), np.zeros(self.shape)
            chosen = self._chosen(small, queries)
            for rows in self.chunks:
                moves = queries[rows] @ small.T
                call(subtract_active, moves.size, moves, chosen[rows], active[rows])
                changes -= moves.T @ weighted[rows]
                totals[rows] = moves.sum(axis=1)
            changes += self.choice @ (totals[:, None] * weighted)
            changes *= size * most * length**2
            return self.entries * changes

        return product

    def sparse_curvature(self, active: np.ndarray, share: float) -> Matrix:
        """Return products with the curvature, from one inner product for each margin that falls short."""
        prices, (places, pointers) = share * self.prices, _places(active)

        def product(S: np.ndarray) -> np.ndarray:
            changes = np.zeros(self.shape)
            arrays = places, pointers, S * self.entries, self.queries, self.reference, prices, changes
            call(add_curvature, 4 * len(places) * self.shape[1], *arrays)
            return self.entries * changes

        return product

    def multiples(self, active: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
        """Return one matrix (dz, dz) that, times numbers (T, 1), is nearly the diagonal blocks of the curvature."""
        prices = share * self.prices
        counts = self.choice @ (active.sum(axis=1) * prices)
        for rows in self.chunks:
            counts += prices[rows] @ active[rows]
        moment = (prices[:, None] * self.queries).T @ self.queries / prices.sum()
        return moment, self.entries**2 * counts[:, None]

    def blocks(self, active: np.ndarray, share: float) -> np.ndarray:
        """Return the diagonal blocks of the curvature (T, dz, dz)."""
        queries = np.sqrt(share * self.prices)[:, None] * self.queries
        repeated = np.sqrt(active.sum(axis=1))[:, None] * queries
        (T, dz), chosen, ends = self.shape, self.choice.indices, self.choice.indptr
        blocks = np.empty((T, dz, dz))
        for start in range(0, T, COLUMNS):
            for t, short in enumerate(np.ascontiguousarray(active[:, start : start + COLUMNS].T), start):
                rows = np.concatenate([queries[short], repeated[chosen[ends[t] : ends[t + 1]]]])
                np.matmul(rows.T, rows, out=blocks[t])
        blocks *= self.entries[:, :, None] ** 2
        return blocks

    def slope(self, margins: np.ndarray, change: np.ndarray, length: float, share: float) -> tuple[float, float]:
        """Slope and curvature of the losses after a length of a step that changes the margins (n, T) so."""
        slope = curvature = 0.0
        for rows in self.chunks:
            part = margins[rows], change[rows], self.rejected[rows], share * self.prices[rows], length
            first, second = call(slope_of, 5 * change[rows].size, *part)
            slope, curvature = slope + first, curvature + second
        return slope, curvature

    def advance(self, margins: np.ndarray, change: np.ndarray, length: float) -> None:
        """Add a length of a change to the margins (n, T)."""
        for rows in self.chunks:
            change[rows] *= length
            margins[rows] += change[rows]


def _places(active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns of the margins that fall short, row after row, and where each row begins, (n + 1,)."""
    places = np.concatenate([np.flatnonzero(row).astype(np.int32) for row in active])
    return places, np.concatenate([[0], np.cumsum(active.sum(axis=1))])
