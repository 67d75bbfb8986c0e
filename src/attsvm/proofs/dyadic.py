"""Exact arithmetic on arrays of floats: every float is an integer times a power of two, and so are sums and products.

Python's integers hold the mantissas, so nothing is rounded. The cost grows with the spread of the exponents, which is
small for usual data.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

MANTISSA = 53


@dataclass(frozen=True, eq=False)
class Dyadic:
    """The array ``numbers * 2**exponent``.

    Attributes
    ----------
    numbers : ndarray of object
        Python integers.
    """

    numbers: np.ndarray
    exponent: int

    @classmethod
    def of(cls, array: np.ndarray) -> Dyadic:
        """Represent a finite array of floats."""
        array = np.asarray(array, dtype=np.float64)
        fraction, power = np.frexp(array)
        whole = np.ldexp(fraction, MANTISSA).astype(np.int64)
        nonzero = whole != 0
        least = int(power[nonzero].min()) if nonzero.any() else 0
        shift = np.where(nonzero, power - least, 0)
        numbers = np.empty(array.shape, dtype=object)
        numbers.ravel()[:] = [a << b for a, b in zip(whole.ravel().tolist(), shift.ravel().tolist(), strict=True)]
        return cls(numbers, least - MANTISSA)

    @property
    def T(self) -> Dyadic:
        """The transpose."""
        return Dyadic(self.numbers.T, self.exponent)

    def __getitem__(self, index: Any) -> Dyadic:
        """Select entries, as from an array; the result keeps at least one axis."""
        return Dyadic(np.asarray(self.numbers[index], dtype=object), self.exponent)

    def __matmul__(self, other: Dyadic) -> Dyadic:
        return Dyadic(np.dot(self.numbers, other.numbers), self.exponent + other.exponent)

    def __sub__(self, other: Dyadic) -> Dyadic:
        least = min(self.exponent, other.exponent)
        return Dyadic(self.at(least) - other.at(least), least)

    def __add__(self, other: Dyadic) -> Dyadic:
        least = min(self.exponent, other.exponent)
        return Dyadic(self.at(least) + other.at(least), least)

    def at(self, exponent: int) -> np.ndarray:
        """Return the numbers for another exponent, not above the present one."""
        return self.numbers * (1 << (self.exponent - exponent))

    def value(self, number: int) -> Fraction:
        """Return one of the numbers, or a sum of them, as a fraction."""
        return Fraction(number) * Fraction(2) ** self.exponent

    def fractions(self) -> list[Fraction]:
        """Return all entries, flattened."""
        unit = Fraction(2) ** self.exponent
        return [a * unit for a in self.numbers.ravel().tolist()]
