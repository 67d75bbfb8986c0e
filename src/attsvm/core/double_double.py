"""The linear map in twice the working precision, for the constraints that decide."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attsvm.core.error_free import Pair, error_of, multiply, sum_pairs, two_sum
from attsvm.core.problem import SelectionProblem
from attsvm.core.rounding import row_lengths

BLOCK_ENTRIES = 1 << 19


@dataclass(frozen=True, eq=False)
class Rows:
    """Some constraints of a problem, their token differences exact, scaled by powers of two to entries of one at most.

    Attributes
    ----------
    delta : Pair, shape (k, d)
    queries : ndarray, shape (k, dz)
    scale : tuple of float
        What differences and queries were divided by.
    """

    delta: Pair
    queries: np.ndarray
    scale: tuple[float, float]

    @classmethod
    def of(cls, problem: SelectionProblem, rows: np.ndarray, columns: np.ndarray) -> Rows:
        """Gather constraints (rows[k], columns[k])."""
        sequence = problem.sequence[rows]
        chosen = problem.tokens[sequence, problem.reference[rows]].astype(np.float64, copy=False)
        other = problem.tokens[sequence, columns].astype(np.float64, copy=False)
        delta, queries = Pair(*two_sum(chosen, -other)), problem.queries[rows]
        scale = _power_of_two(delta.high), _power_of_two(queries)
        return cls(Pair(delta.high / scale[0], delta.low / scale[0]), queries / scale[1], scale)

    @property
    def lengths(self) -> np.ndarray:
        """Lengths (k,) of the scaled rows, to d + dz roundings."""
        return row_lengths(self.delta.high) * row_lengths(self.queries)

    def margins(self, W: Pair) -> tuple[Pair, float]:
        """Margins (k,) of W (d, dz), and their error over |delta| |W|_F |z|."""
        d, dz = W.high.shape
        k = len(self.queries)
        unit = _power_of_two(W.high)
        W = Pair(W.high[None] / unit, W.low[None] / unit)
        high, low = np.empty(k), np.empty(k)
        step = max(1, BLOCK_ENTRIES // (d * dz))
        for start in range(0, k, step):
            part = slice(start, start + step)
            product = multiply(W, Pair(self.queries[part, None, :], np.zeros(1)))
            image = sum_pairs(product, 2)  # (step, d)
            total = sum_pairs(multiply(self.delta[part], image), 1)
            high[part], low[part] = total.high, total.low
        return self._unscaled(Pair(high, low), unit), error_of(d, dz)

    def adjoint(self, weights: Pair, *, scaled: bool = False) -> tuple[Pair, float]:
        """Sum of weights_k delta_k z_k^T (d, dz), and its error over the sum of |weights_k| |delta_k| |z_k|.

        Parameters
        ----------
        weights : Pair, shape (k,)
        scaled : bool
            Take the scaled rows.
        """
        k, d = self.delta.high.shape
        dz = self.queries.shape[1]
        total = Pair(np.zeros((d, dz)), np.zeros((d, dz)))
        step = max(1, BLOCK_ENTRIES // (d * dz))
        for start in range(0, k, step):
            part = slice(start, start + step)
            heavy = multiply(self.delta[part], weights[part][:, None])
            total = total + sum_pairs(multiply(heavy[:, :, None], Pair(self.queries[part, None, :], np.zeros(1))), 0)
        return (total if scaled else self._unscaled(total, 1.0)), error_of(k, 4)

    def _unscaled(self, value: Pair, unit: float) -> Pair:
        left, right = self.scale
        return Pair(value.high * left * right * unit, value.low * left * right * unit)


def _power_of_two(array: np.ndarray) -> float:
    top = float(np.abs(array).max(initial=0.0))
    return math.ldexp(1.0, math.frexp(top)[1]) if 0.0 < top < 2.0**1023 else 1.0
