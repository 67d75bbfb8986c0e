r"""Splitting for squared hinges over one-hot tokens in the nuclear norm.

The program is :math:`\min \|Y\|_* + \sum C_i \max(0, 1 - M_{it})^2` with :math:`M = A(V)` and :math:`Y = V`. The
alternating direction method of multipliers (Eckstein and Bertsekas, Mathematical Programming 55, 1992) takes three
steps in turn: a proximal step for each margin, one for the singular values, and a linear system for V. The matrix of
the system is :math:`\kappa I + \sum_{it} \rho_i c_t\, a_{it} a_{it}^\top` over *all* pairs of a query and a token,
short or not. Since :math:`a_{it} = (e_{\alpha_i} - e_t) z_i^\top`, row t of its product with V is

.. math:: v_t \Bigl(\kappa I + c_t S + \sum_s c_s S_t\Bigr) - \Bigl(\sum_s c_s v_s\Bigr) S_t - c_t \sum_s v_s S_s,
    \qquad S_t = \sum_{i: \alpha_i = t} \rho_i z_i z_i^\top, \quad S = \sum_t S_t.

The matrix is one block a token and two sums, inverted once. It does not depend on the margins that fall short, so steps
are not shortened when these change. A step visits only margins that fall short
(:mod:`attsvm.solvers.words.pairs`). The multipliers are :math:`\rho_i c_t` times the parts that the proximal steps take
off; they prove a bound after scaling.

The weights decide the number of steps. :math:`\rho_i` is one over the length of the query. :math:`c_t` and the common
factor give multipliers and margins the same size (the primal weight of Applegate et al., NeurIPS 2021, for each
token). They are set anew after the first steps. After that the common factor alone changes: it is halved while the
bound is much further from the optimum than the objective, and doubled again later.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.proofs.program import Program
from attsvm.solvers.common.control import Control
from attsvm.solvers.words.margins import Words, within_range
from attsvm.solvers.words.pairs import Pairs

# Over-relaxation of the steps, and the first weight of a margin times the length of its query.
RELAXATION, START_WEIGHT = 1.9, 0.01
# Largest number of steps, number of steps between two looks at the gap, and the steps after which weights are set anew.
SPLITTING_STEPS, LOOK, BALANCES = 10_000, 25, (20, 50, 100, 200)
# Number of looks between two changes of the common factor, and its least share of the balanced factor. The factor is
# doubled below the first ratio of the bound's error to the objective's error, and halved above the second.
CHANGE_LOOKS, LEAST_FACTOR, ERROR_RATIOS = 2, 2.0**-8, (1.0, 30.0)
# Share of the mean size that is added to sizes of margins and multipliers, and shortest query over the median length.
SIZE_SHARE, SHORTEST_QUERY = 1e-3, 1e-3


class System:
    """The inverse of the matrix of a step, for rows of V times the entries of their tokens.

    Parameters
    ----------
    rows : ndarray, shape (n,)
        Weights of the queries.
    tokens : ndarray, shape (T,)
        Weights of the tokens.
    kappa : float
    """

    def __init__(self, words: Words, rows: np.ndarray, tokens: np.ndarray, kappa: float) -> None:
        dz, order = words.shape[1], np.argsort(words.reference, kind="stable")
        self._chosen, starts = np.unique(words.reference[order], return_index=True)
        parts = np.split((np.sqrt(rows)[:, None] * words.queries)[order], starts[1:])
        # S_t is F_t^T F_t with at most dz rows, and the blocks are diagonal plus a multiple of it in the basis of S.
        parts = [part if len(part) <= dz else np.linalg.qr(part, mode="r") for part in parts]
        factors, counts = np.concatenate(parts), np.array([len(part) for part in parts])
        values, self._vectors = np.linalg.eigh(factors.T @ factors)
        self._factors, self._starts = factors @ self._vectors, np.cumsum(counts) - counts
        self._owners, self._tokens, total = np.repeat(self._chosen, counts), tokens[:, None], float(tokens.sum())
        self._values = 1.0 / (self._tokens * values + kappa / words.entries**2)
        # By Woodbury's identity the inverse of a block is diagonal less H_t^T H_t.
        divided, self._changes = self._factors * self._values[self._owners], np.empty_like(factors)
        products, sums = np.empty_like(factors), np.empty_like(factors)
        for start, count in zip(self._starts, counts, strict=True):
            rows_of = slice(start, start + count)
            F, FD = self._factors[rows_of], divided[rows_of]
            inverse = np.linalg.inv(np.linalg.cholesky(np.eye(count) / total + FD @ F.T))
            self._changes[rows_of] = inverse @ FD
            # S_t times the inverse is F_t^T times these.
            products[rows_of] = inverse.T @ self._changes[rows_of] / total
            sums[rows_of] = (products[rows_of] @ F.T) @ F
        chosen = tokens[self._owners, None]
        squares = -(chosen**2 * self._changes).T @ self._changes
        squares[range(dz), range(dz)] += (self._tokens**2 * self._values).sum(axis=0)
        mixed, unit = self._factors.T @ (chosen * products), np.eye(dz)
        coupling = np.block([[unit - mixed, -self._factors.T @ sums], [-squares, unit - mixed.T]])
        self._coupling = np.linalg.inv(coupling)

    def solve(self, right: np.ndarray) -> np.ndarray:
        """Solve for rows (T, dz)."""
        rows = self._divide(right @ self._vectors)
        own = np.vecdot(self._factors, rows[self._owners]) @ self._factors
        total, weighted = np.split(np.concatenate([self._tokens[:, 0] @ rows, own]) @ self._coupling, 2)
        change = self._tokens * weighted
        change[self._chosen] += self._gather((self._factors @ total)[:, None] * self._factors)
        rows += self._divide(change)
        return rows @ self._vectors.T

    def _divide(self, right: np.ndarray) -> np.ndarray:
        """Multiply each row by the inverse of its block."""
        rows, products = self._values * right, np.vecdot(self._changes, right[self._owners])
        rows[self._chosen] -= self._gather(products[:, None] * self._changes)
        return rows

    def _gather(self, values: np.ndarray) -> np.ndarray:
        """Add up the rows of each selected token."""
        return np.add.reduceat(values, self._starts, axis=0)


def shrink(V: np.ndarray, threshold: float) -> np.ndarray:
    """Lower the singular values of V (T, dz) by a threshold, down to zero."""
    squares, vectors = np.linalg.eigh(V.T @ V)
    lengths = np.sqrt(np.maximum(squares, 0.0))
    kept = np.maximum(lengths - threshold, 0.0) / np.maximum(lengths, np.finfo(float).tiny)
    return (V @ (vectors * kept)) @ vectors.T


class Splitting:
    """The steps of a program over one-hot tokens; ``V`` is the current matrix (T, dz), without the prior."""

    def __init__(self, program: Program) -> None:
        self.words = words = Words(program)
        (T, dz), queries = words.shape, words.queries
        lengths = np.linalg.norm(queries, axis=1)
        self._lengths = np.maximum(lengths, max(SHORTEST_QUERY * float(np.median(lengths)), np.finfo(float).tiny))
        self._origin = program.origin[words.axes]
        self._Y, self._E = np.zeros((T, dz)), np.zeros((T, dz))
        self.pairs = pairs = Pairs(words, START_WEIGHT / self._lengths, np.ones(T))
        # The first V is a least-squares solution of margins of one; the first kappa shrinks it by about its mean
        # singular value.
        weighted = pairs.rows[:, None] * queries
        right = T * (words.choice @ weighted) - weighted.sum(axis=0)
        nearly_none = 1e-6 * float(pairs.rows @ lengths**2) * T / dz
        self._scaled = self._system(nearly_none).solve(right)
        self._kappa = dz**0.5 / max(float(np.linalg.norm(self._scaled / words.entries)), np.finfo(float).tiny)
        self._inverse = self._system(self._kappa)
        self._errors: list[tuple[float, float]] = []
        self._factor = 1.0
        self.renew()

    @property
    def V(self) -> np.ndarray:
        """The matrix at which margins are evaluated: the average of the solutions, over-relaxed as the states are."""
        return self._scaled / self.words.entries - self._origin

    def _system(self, kappa: float) -> System:
        return System(self.words, self.pairs.rows, self.pairs.tokens, kappa)

    def renew(self) -> float:
        """List anew the margins that fall short at V; return the loss."""
        return self.pairs.renew(self._scaled)

    def step(self) -> None:
        """Take a step."""
        entries, average = self.words.entries, self.V
        right = self.pairs.right_side() + self._kappa * (self._Y - self._E - average) / entries
        change = self._inverse.solve(right)
        self._scaled = self._scaled + RELAXATION * change
        relaxed = RELAXATION * (average + change / entries) + (1.0 - RELAXATION) * self._Y
        self._Y = shrink(relaxed + self._E, 1.0 / self._kappa)
        self._E += relaxed - self._Y
        self.pairs.advance(self._scaled, RELAXATION)

    def look(self, loss: float) -> tuple[float, float, np.ndarray]:
        """Objective at V, the bound of the multipliers, and A^T of the multipliers that prove it (T, dz)."""
        value = float(np.linalg.norm(self.V, "nuc")) + loss
        multipliers, adjoint = self.pairs.values(), self.pairs.adjoint() * self.words.entries
        square = float(np.vdot(multipliers / self.pairs.per_row(self.words.prices), multipliers))
        length = float(np.linalg.norm(adjoint, 2))
        gain = max(float(multipliers.sum()) - float(np.vdot(adjoint, self._origin)), 0.0)
        scale = min(1.0 / length, gain / square) if length > 0 and square > 0 else 0.0
        bound = scale * (gain - 0.5 * scale * square)
        # The multipliers estimate the optimum if they are not scaled.
        optimum = gain - 0.5 * square
        self._errors.append((abs(value - optimum), abs(optimum - bound)))
        return value, bound, scale * adjoint

    def balance(self) -> None:
        """Give margins and multipliers the same size, over all and for each token."""
        queries, lengths, scaled = self.words.queries, self._lengths, self._scaled
        forces = self.pairs.per_token(self.pairs.per_row(lengths) * self.pairs.values() ** 2)
        # The squares of margins less one of all pairs, over lengths, are one quadratic form of the row of each token.
        weighted, ahead = queries / lengths[:, None], np.vecdot(scaled[self.words.reference], queries) - 1.0
        moves = np.vecdot(scaled @ (weighted.T @ queries) - 2.0 * (ahead @ weighted), scaled)
        moves = np.maximum(moves + float(ahead**2 @ (1.0 / lengths)), 0.0)
        if forces.any() and moves.any():
            tokens = np.sqrt((forces + SIZE_SHARE * forces.mean()) / (moves + SIZE_SHARE * moves.mean()))
            tokens /= math.exp(float(np.log(tokens).mean()))
            factor = np.sqrt((forces / tokens).sum() / (moves * tokens).sum())
            self.pairs.reweigh(factor / lengths, tokens)
        size, length = float(np.linalg.norm(self._E)), float(np.linalg.norm(self._Y))
        if size > 0 and length > 0:
            self._E *= length / size
            self._kappa *= size / length
        self._inverse = self._system(self._kappa)

    def change_factor(self) -> None:
        """Halve or double the common factor of the weights if the last errors of bound and objective differ in size."""
        values, bounds = np.array(self._errors[-CHANGE_LOOKS:]).T
        least, most = ERROR_RATIOS
        if bounds.min() > most * values.max() and self._factor > LEAST_FACTOR:
            change = 0.5
        elif bounds.max() < least * values.max() and self._factor < 1.0:
            change = 2.0
        else:
            return
        self._factor *= change
        self.pairs.reweigh(change * self.pairs.rows, self.pairs.tokens)
        self._inverse = self._system(self._kappa)


def memory_of_splitting(program: Program) -> int:
    """Estimate the bytes of listed margins and multipliers, and of the factors of the system."""
    n, T, _, dz = program.problem.shape
    return 8 * (3 * n * T + 10 * (n + T) * dz)


@within_range
def split(program: Program, control: Control) -> tuple[np.ndarray, np.ndarray] | None:
    """Minimise a program in the nuclear norm; return W (d, dz) and multipliers (n, T).

    Returns None if squares leave the range of floats; methods that scale the problem go on.
    """
    control.enter("splitting over words")
    steps = Splitting(program)
    best, best_value, visited = steps.V, math.inf, 0
    for count in range(1, SPLITTING_STEPS + 1):
        steps.step()
        visited += len(steps.pairs)
        is_look = count % LOOK == 0 or control.is_over()
        # A pass over all margins finds the ones that begin to fall short, at the cost of the visits before it.
        if is_look or visited >= steps.words.rejected.size:
            loss, visited = steps.renew(), 0
        if is_look:
            value, bound, adjoint = steps.look(loss)
            if not math.isfinite(value):
                return None
            if value < best_value:
                best, best_value = steps.V, value
            # The bound of earlier multipliers would count for nothing, since they are not kept.
            control.observe(best, best_value, adjoint, bound, steps=(count - 1) % LOOK + 1)
            if control.stopped is not None or best_value - bound <= control.tol * best_value:
                break
            if count > BALANCES[-1] and count % (CHANGE_LOOKS * LOOK) == 0:
                steps.change_factor()
        if count in BALANCES:
            steps.balance()
    control.W = control.dual = None
    return program.origin + steps.words.lift(best), steps.pairs.multipliers()
