r"""Splitting for squared hinges over one-hot tokens in the nuclear norm.

The program is :math:`\min \|Y\|_* + \sum C_i \max(0, 1 - M_{it})^2` with :math:`M = A(V)` and :math:`Y = V`. The
alternating direction method of multipliers (Eckstein and Bertsekas, Mathematical Programming 55, 1992) takes three
steps in turn: a proximal step for each margin, one for the singular values, and a linear system for V. The matrix of
the system is :math:`\kappa I + \sum_{it} \rho_i c_t\, a_{it} a_{it}^\top` over *all* pairs of a query and a token,
short or not. Since :math:`a_{it} = (e_{\alpha_i} - e_t) z_i^\top`, row t of its product with V is

.. math:: v_t \Bigl(\kappa I + c_t S + \sum_s c_s S_t\Bigr) - \Bigl(\sum_s c_s v_s\Bigr) S_t - c_t \sum_s v_s S_s,
    \qquad S_t = \sum_{i: \alpha_i = t} \rho_i z_i z_i^\top, \quad S = \sum_t S_t.

These are one block a token and two sums, inverted once. Which margins fall short does not enter the matrix, so steps
are not shortened by margins that begin or cease to do so. The multipliers are :math:`\rho_i c_t` times the parts that
the proximal steps take off; they prove a bound after scaling.

The weights decide how many steps it takes. :math:`\rho_i` is one over the length of the query, and :math:`c_t` and the
common factor give multipliers and margins the same size (the primal weight of Applegate et al., NeurIPS 2021, for each
token). They are set anew after the first steps.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.platform.kernels import call
from attsvm.proofs.program import Program
from attsvm.solvers.common.control import Control
from attsvm.solvers.words.losses import proximal_step
from attsvm.solvers.words.margins import Words, within_range

# Over-relaxation of the steps, and the first weight of a margin times the length of its query.
RELAXATION, START_WEIGHT = 1.9, 0.01
# Largest number of steps, number of steps between two looks at the gap, and the steps after which weights are set anew.
SPLITTING_STEPS, LOOK, BALANCES = 5000, 20, (20, 50, 100, 200)
# Share of the mean size that is added to sizes of margins and multipliers, and shortest query over the median length.
SIZE_SHARE, SHORTEST_QUERY = 1e-3, 1e-3
# Tolerance from which margins are numbers of four bytes, and the least size of the longest query and of C, and the
# inverse of the largest, for which these suffice.
SINGLE_TOL, SINGLE_SIZE = 1e-5, 1e-9
# Number of margins at a time.
MARGINS = 1 << 20


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
        weighted = (np.sqrt(rows)[:, None] * words.queries)[order]
        own = np.array([part.T @ part for part in np.split(weighted, starts[1:])])
        values, self._vectors = np.linalg.eigh(own.sum(axis=0))
        ridge = kappa / words.entries[:, 0] ** 2
        self._tokens, self._own = tokens[:, None], own
        # The block of a token that no query selects is a function of S.
        self._values = 1.0 / (self._tokens * values + ridge[:, None])
        chosen = tokens[self._chosen, None, None]
        blocks = chosen * own.sum(axis=0) + tokens.sum() * own
        blocks[:, range(dz), range(dz)] += ridge[self._chosen, None]
        self._inverses = np.linalg.inv(blocks)
        others = tokens**2
        others[self._chosen] = 0.0
        squares = (self._vectors * (others @ self._values)) @ self._vectors.T + (chosen**2 * self._inverses).sum(axis=0)
        product = own @ self._inverses
        mixed, unit = (chosen * product).sum(axis=0), np.eye(dz)
        coupling = np.block([[unit - mixed, -(product @ own).sum(axis=0)], [-squares, unit - mixed.T]])
        self._coupling = np.linalg.inv(coupling)

    def solve(self, right: np.ndarray) -> np.ndarray:
        """Solve for rows (T, dz)."""
        rows = self._divide(right)
        sums = [self._tokens[:, 0] @ rows, np.einsum("ta,tab->b", rows[self._chosen], self._own)]
        total, weighted = np.split(np.concatenate(sums) @ self._coupling, 2)
        right = right + self._tokens * weighted
        right[self._chosen] += total @ self._own
        return self._divide(right)

    def _divide(self, right: np.ndarray) -> np.ndarray:
        """Multiply each row by the inverse of its block."""
        rows = (right @ self._vectors * self._values) @ self._vectors.T
        rows[self._chosen] = np.matmul(right[self._chosen, None, :], self._inverses)[:, 0]
        return rows


def shrink(V: np.ndarray, threshold: float) -> np.ndarray:
    """Lower the singular values of V (T, dz) by a threshold, down to zero."""
    squares, vectors = np.linalg.eigh(V.T @ V)
    lengths = np.sqrt(np.maximum(squares, 0.0))
    kept = np.maximum(1.0 - threshold / np.maximum(lengths, np.finfo(float).tiny), 0.0)
    return (V @ (vectors * kept)) @ vectors.T


class Splitting:
    """The steps of a program over one-hot tokens; ``V`` is the current matrix (T, dz), without the prior."""

    def __init__(self, program: Program, tol: float) -> None:
        self.words = words = Words(program)
        (T, dz), n = words.shape, len(words.queries)
        lengths = np.linalg.norm(words.queries, axis=1)
        self._lengths = np.maximum(lengths, max(SHORTEST_QUERY * float(np.median(lengths)), np.finfo(float).tiny))
        self._origin = program.origin[words.axes]
        # A margin plus what its proximal step takes off, (n, T); one is a margin without a loss.
        sizes = np.array([lengths.max(), words.prices.min(), words.prices.max()])
        is_single = tol >= SINGLE_TOL and bool((np.abs(np.log(sizes)) < -math.log(SINGLE_SIZE)).all())
        self._state = np.ones((n, T), dtype=np.float32 if is_single else np.float64)
        self._narrow = words.queries.astype(self._state.dtype)
        step = max(1, MARGINS // T)
        self._chunks = [slice(start, min(start + step, n)) for start in range(0, n, step)]
        self._scores = np.empty((min(step, n), T), dtype=self._state.dtype)
        self.V, self._Y, self._E = np.zeros((T, dz)), np.zeros((T, dz)), np.zeros((T, dz))
        self._rows, self._tokens = START_WEIGHT / self._lengths, np.ones(T)
        # The first kappa shrinks a least-squares solution by about its mean singular value.
        nearly_none = 1e-6 * float(self._rows @ lengths**2) * T / dz
        first = self._system(nearly_none).solve(self.right_side()) / words.entries
        self._kappa = dz**0.5 / max(float(np.linalg.norm(first)), np.finfo(float).tiny)
        self._inverse = self._system(self._kappa)

    def _system(self, kappa: float) -> System:
        return System(self.words, self._rows, self._tokens, kappa)

    def _parts(self, rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights (rows, T), margins after the proximal step, and what the step took off, of some queries."""
        weights, prices = self._rows[rows, None] * self._tokens, self.words.prices[rows, None]
        state = self._state[rows].astype(np.float64)
        taken = np.where(self.words.rejected[rows], prices / (weights + prices) * np.minimum(state - 1.0, 0.0), 0.0)
        return weights, state - taken, taken

    def _gather(self, values: np.ndarray, rows: slice, sums: np.ndarray) -> np.ndarray:
        """Set the sums of values (rows, T) over tokens; return the queries times the values of each token, (T, dz)."""
        values.sum(axis=1, out=sums[rows])
        return values.T @ self.words.queries[rows]

    def _selected(self, sums: np.ndarray) -> np.ndarray:
        return self.words.choice @ (sums[:, None] * self.words.queries)

    def right_side(self) -> np.ndarray:
        """Return the right-hand side of the system that belongs to the margins, (T, dz)."""
        sums, out = np.empty(len(self._state)), np.zeros(self.V.shape)
        for rows in self._chunks:
            weights, margins, taken = self._parts(rows)
            out -= self._gather(weights * (margins - taken), rows, sums)
        return out + self._selected(sums)

    def step(self, right: np.ndarray) -> np.ndarray:
        """Take a step from the right-hand side of its system (T, dz); return the next right-hand side."""
        words, kappa = self.words, self._kappa
        scaled = self._inverse.solve(right + kappa * (self._Y - self._E + self._origin) / words.entries)
        self.V = scaled / words.entries - self._origin
        relaxed = RELAXATION * self.V + (1.0 - RELAXATION) * self._Y
        self._Y = shrink(relaxed + self._E, 1.0 / kappa)
        self._E += relaxed - self._Y
        dtype = self._state.dtype
        scaled, rows_of, tokens = scaled.astype(dtype), self._rows.astype(dtype), self._tokens.astype(dtype)
        prices, constants = words.prices.astype(dtype), np.array([0.0, 1.0, RELAXATION], dtype=dtype)
        sums, out = np.empty(len(self._state), dtype=dtype), np.zeros(self.V.shape)
        for rows in self._chunks:
            scores = np.matmul(self._narrow[rows], scaled.T, out=self._scores[: rows.stop - rows.start])
            chosen = np.vecdot(scaled[words.reference[rows]], self._narrow[rows])
            arrays = scores, self._state[rows], words.rejected[rows], chosen, rows_of[rows], tokens, prices[rows]
            call(proximal_step, 15 * scores.size, *arrays, constants, sums[rows])
            out -= scores.T @ self._narrow[rows]
        return out + self._selected(sums)

    def look(self) -> tuple[float, float, np.ndarray]:
        """Objective at V, the bound of the multipliers, and A^T of the multipliers that prove it (T, dz)."""
        words, sums = self.words, np.empty(len(self._state))
        adjoint, loss, square = np.zeros(self.V.shape), 0.0, 0.0
        scaled = (self.V + self._origin) * words.entries
        for rows in self._chunks:
            margins = np.vecdot(scaled[words.reference[rows]], words.queries[rows])[:, None]
            margins = margins - words.queries[rows] @ scaled.T
            short = np.where(words.rejected[rows], np.maximum(1.0 - margins, 0.0), 0.0)
            loss += 0.5 * float(words.prices[rows] @ np.vecdot(short, short))
            weights, _, taken = self._parts(rows)
            taken *= -weights
            square += float((1.0 / words.prices[rows]) @ np.vecdot(taken, taken))
            adjoint -= self._gather(taken, rows, sums)
        adjoint = (adjoint + self._selected(sums)) * words.entries
        length = float(np.linalg.norm(adjoint, 2))
        gain = max(float(sums.sum()) - float(np.vdot(adjoint, self._origin)), 0.0)
        scale = min(1.0 / length, gain / square) if length > 0 and square > 0 else 0.0
        value = float(np.linalg.norm(self.V, "nuc")) + loss
        return value, scale * (gain - 0.5 * scale * square), scale * adjoint

    def balance(self) -> np.ndarray:
        """Set the weights anew from margins and multipliers; return the right-hand side of the next step."""
        forces, moves = np.zeros(len(self._tokens)), np.zeros(len(self._tokens))
        for rows in self._chunks:
            weights, margins, taken = self._parts(rows)
            lengths = self._lengths[rows]
            forces += lengths @ (weights * taken) ** 2
            moves += (1.0 / lengths) @ np.where(self.words.rejected[rows], margins - 1.0, 0.0) ** 2
        if forces.any() and moves.any():
            tokens = np.sqrt((forces + SIZE_SHARE * forces.mean()) / (moves + SIZE_SHARE * moves.mean()))
            tokens /= math.exp(float(np.log(tokens).mean()))
            factor = math.sqrt(float((forces / tokens).sum()) / float((moves * tokens).sum()))
            self._reweigh(factor / self._lengths, tokens)
        size, length = float(np.linalg.norm(self._E)), float(np.linalg.norm(self._Y))
        if size > 0 and length > 0:
            self._E *= length / size
            self._kappa *= size / length
        self._inverse = self._system(self._kappa)
        return self.right_side()

    def _reweigh(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """Change the weights, not the margins and the multipliers."""
        for part in self._chunks:
            weights, margins, taken = self._parts(part)
            self._state[part] = margins + taken * (weights / (rows[part, None] * tokens))
        self._rows, self._tokens = rows, tokens

    def multipliers(self) -> np.ndarray:
        """Return the multipliers (n, T)."""
        out = np.empty(self._state.shape)
        for rows in self._chunks:
            weights, _, taken = self._parts(rows)
            np.multiply(-weights, taken, out=out[rows])
        return out


def memory_of_splitting(program: Program) -> int:
    """Estimate the bytes of margins and multipliers, and of the blocks of the system."""
    n, T, _, dz = program.problem.shape
    return 8 * (3 * n * T + 4 * min(n, T) * dz**2)


@within_range
def split(program: Program, control: Control) -> tuple[np.ndarray, np.ndarray] | None:
    """Minimise a program in the nuclear norm; return W (d, dz) and multipliers (n, T).

    Returns None if squares leave the range of floats; methods that scale the problem go on.
    """
    control.enter("splitting over words")
    steps = Splitting(program, control.tol)
    best, best_value, right = steps.V, math.inf, steps.right_side()
    for count in range(1, SPLITTING_STEPS + 1):
        right = steps.step(right)
        if count % LOOK == 0 or control.is_over():
            value, bound, adjoint = steps.look()
            if not math.isfinite(value):
                return None
            if value < best_value:
                best, best_value = steps.V, value
            # The bound of earlier multipliers would count for nothing, since they are not kept.
            control.observe(best, best_value, adjoint, bound, steps=(count - 1) % LOOK + 1)
            if control.stopped is not None or best_value - bound <= control.tol * best_value:
                break
        if count in BALANCES:
            right = steps.balance()
    control.W = control.dual = None
    return program.origin + steps.words.lift(best), steps.multipliers()
