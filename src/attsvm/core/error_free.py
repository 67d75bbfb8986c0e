r"""Arithmetic on unevaluated sums of two floats.

Error-free transformations give the rounding error of every addition and product (Dekker, Numer. Math. 18, 1971; Knuth,
*The Art of Computer Programming* 2, section 4.2.2). The rounding errors of a sum are accumulated separately (Ogita,
Rump and Oishi, SIAM J. Sci. Comput. 26, 2005, algorithm Dot2). The remaining error is :math:`\gamma_k^2` times the sum
of absolute products instead of :math:`\gamma_k`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SPLITTER = 134217729.0  # 2^27 + 1
# Largest relative error of one rounding, and distance from 1 to the next float.
UNIT = 2.0**-53
EPS = 2.0 * UNIT


@dataclass(frozen=True, eq=False)
class Pair:
    """The array ``high + low``."""

    high: np.ndarray
    low: np.ndarray

    def __add__(self, other: Pair) -> Pair:
        high, error = two_sum(self.high, other.high)
        return Pair(*two_sum(high, error + (self.low + other.low)))

    def __getitem__(self, index: object) -> Pair:
        return Pair(self.high[index], self.low[index])  # type: ignore[index]

    def times(self, factor: float) -> Pair:
        """Multiply by a float, accurate to a few units of the squared working precision."""
        return multiply(self, Pair(np.array(factor), np.array(0.0)))

    def rounded(self) -> np.ndarray:
        """Round to floats, accurate to two units."""
        return self.high + self.low


def gamma(k: float) -> float:
    """Return k u / (1 - k u), the error constant of k roundings, u = 2^-53."""
    return k * UNIT / (1.0 - k * UNIT)


def two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum and its rounding error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the product and its rounding error, for factors below 2^996."""
    product = a * b
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _upper_half(a: np.ndarray) -> np.ndarray:
    wide = SPLITTER * a
    return wide - (wide - a)


def multiply(a: Pair, b: Pair) -> Pair:
    """Multiply two pairs, accurate to a few units of the squared working precision."""
    high, error = two_product(a.high, b.high)
    return Pair(high, error + (a.high * b.low + a.low * b.high))


def sum_pairs(terms: Pair, axis: int) -> Pair:
    """Sum along an axis, pair by pair in a tree."""
    high, low = np.moveaxis(terms.high, axis, 0), np.moveaxis(terms.low, axis, 0)
    while len(high) > 1:
        half = len(high) // 2
        rest = Pair(high[2 * half :], low[2 * half :])
        total = Pair(high[:half], low[:half]) + Pair(high[half : 2 * half], low[half : 2 * half])
        high = np.concatenate([total.high, rest.high])
        low = np.concatenate([total.low, rest.low])
    return Pair(high[0], low[0])


def error_of(first: int, second: int) -> float:
    """Bound the error of a sum of sums with these lengths, relative to the sum of absolute products.

    The product of two pairs drops its smallest term and rounds its error term: 8 u^2. Summing k pairs in a tree loses
    at most 8 u^2 on each of log2(k) + 1 levels; k is a generous bound.
    """
    return 8.0 * (first + second + 8) * UNIT**2


# Number of slices of each factor in :func:`product`, and bound on the remainder of an entry.
SLICES, SLICED = 5, 2.0**-104


def product(a: Pair, b: Pair) -> tuple[Pair, float]:
    r"""Multiply matrices (m, k) and (k, n) in twice the precision, and bound the Frobenius norm of the error.

    Rows of the first factor and columns of the second are scaled to entries of at most one. They are cut into slices of
    :math:`\beta = \lfloor(53 - \log_2 k)/2\rfloor` bits, whose products BLAS sums exactly (Ozaki, Ogita, Oishi and
    Rump, Numer. Algorithms 59, 2012). An entry then omits fewer than ten products of slices, each below
    :math:`k2^{-5\beta}`, and rounds fifteen sums of pairs. The error is less than :math:`80k2^{-104}` for k up to 2048.
    """
    inner = a.high.shape[1]
    bits = (53 - max(inner - 1, 1).bit_length()) // 2
    rows, columns = _powers_above(a.high, 1), _powers_above(b.high, 0)
    left = _slices(Pair(a.high / rows, a.low / rows), bits)
    right = _slices(Pair(b.high / columns, b.low / columns), bits)
    total = Pair(np.zeros((len(a.high), b.high.shape[1])), np.zeros(1))
    for order in reversed(range(SLICES)):
        for first in range(order + 1):
            total = total + Pair(left[first] @ right[order - first], np.zeros(1))
    error = 80.0 * inner * max(SLICED, 2.0 ** (-SLICES * bits)) * float(np.linalg.norm(rows) * np.linalg.norm(columns))
    return Pair(total.high * rows * columns, total.low * rows * columns), error + total.high.size * 2.0**-1074


def _powers_above(array: np.ndarray, axis: int) -> np.ndarray:
    """Powers of two no smaller than the largest entry along an axis; the axis is kept."""
    return np.ldexp(1.0, np.frexp(np.abs(array).max(axis=axis, keepdims=True))[1])


def _slices(part: Pair, bits: int) -> list[np.ndarray]:
    """Cut entries of at most one into slices: multiples of 2^-bits, then of 2^-2bits, and so on."""
    out, high, low = [], part.high, part.low
    for k in range(1, SLICES + 1):
        grid = 1.5 * 2.0 ** (52 - k * bits)
        out.append((high + grid) - grid)
        high, low = two_sum(high - out[-1], low)
    return out
