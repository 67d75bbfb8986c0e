r"""Rigorous upper bounds on matrix norms.

Entrywise sums, maxima and sums of squares are exact; roots are rounded up. *Singular values*: with approximate singular
vectors U, V as exact dyadic matrices, :math:`C = U^\top W V` is nearly diagonal and
:math:`W = U^{-\top} C V^{-1}`, so any unitarily invariant norm of W is at most that of C times
:math:`\|U^{-1}\|\|V^{-1}\|`, and :math:`\|U^{-1}\|^2 \le 1/(1 - \|U^\top U - I\|)` (Neumann). The nuclear norm of C is
at most the sum of its absolute entries, its spectral norm at most the root of its largest row sum times its largest
column sum, and any other gauge of singular values at most that of its diagonal and the norm of the rest. All lose a few
units in the sixteenth digit. *Powers* use decimal logarithms and exponentials, which Python
rounds correctly, widened by one unit in the last of 50 digits.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

import numpy as np

from attsvm.core.norms import Norm
from attsvm.proofs.dyadic import Dyadic

DIGITS = 50
UP = Context(prec=DIGITS, rounding=ROUND_CEILING, Emin=-(10**12), Emax=10**12)
DOWN = Context(prec=DIGITS, rounding=ROUND_FLOOR, Emin=-(10**12), Emax=10**12)
ROOT_BITS = 128
FRACTION_BITS = 300
# The growth of a norm is a float, from sums of the squares of as many norms as entries.
GROWTH_ROUNDING = 1e-9


def norm_above(norm: Norm, M: Dyadic) -> Fraction:
    """Bound the norm of M from above."""
    return _above(norm, M, dual=False)


def dual_norm_above(norm: Norm, M: Dyadic) -> Fraction:
    """Bound the dual norm of M from above."""
    return _above(norm, M, dual=True)


def _above(norm: Norm, M: Dyadic, *, dual: bool) -> Fraction:
    profile = norm.profile
    if profile is norm:
        return _frobenius(M)
    if profile is not None:
        return _singular(norm, profile, M, dual=dual)
    if norm.power is not None:
        return _entrywise(M, _exponent(norm.power, dual=dual))
    bound = norm.exact_bound(_fractions(M), _Rational(), dual)
    return _by_growth(norm, M, dual=dual) if bound is None else bound


def _exponent(p: float, *, dual: bool = False) -> Fraction | None:
    """Write the exponent, or its conjugate, as a fraction; None for infinity."""
    if dual:
        return None if p == 1 else Fraction(1) if math.isinf(p) else Fraction(p) / (Fraction(p) - 1)
    return None if math.isinf(p) else Fraction(p)


def _fractions(M: Dyadic) -> np.ndarray:
    out = np.empty(M.numbers.shape, dtype=object)
    out.ravel()[:] = M.fractions()
    return out


class _Rational:
    """The bounds of :class:`attsvm.core.norms.norm.Exact`."""

    def power(self, values: list[Fraction], p: float) -> Fraction:
        """Round each value up to a part 2^-FRACTION_BITS of the largest."""
        top = max(values, default=Fraction(0))
        if top == 0:
            return top
        shift = FRACTION_BITS - top.numerator.bit_length() + top.denominator.bit_length()
        numbers = np.array([math.ceil(value * Fraction(2) ** shift) for value in values], dtype=object)
        return _entrywise(Dyadic(numbers, -shift), _exponent(p))

    def norm(self, norm: Norm, M: np.ndarray, dual: bool) -> Fraction:
        """Write dyadic fractions over their largest denominator."""
        values = M.ravel().tolist()
        denominator = max(value.denominator for value in values)
        numbers = np.empty(M.shape, dtype=object)
        numbers.ravel()[:] = [int(value * denominator) for value in values]
        return _above(norm, Dyadic(numbers, 1 - denominator.bit_length()), dual=dual)


def _by_growth(norm: Norm, M: Dyadic, *, dual: bool) -> Fraction:
    """Bound any other norm by a multiple of the Frobenius norm: true, and too wide for a proof of optimality."""
    return _frobenius(M) * growth_above(norm, M.numbers.shape, dual=dual)


def growth_above(norm: Norm, shape: tuple[int, int], *, dual: bool = False) -> Fraction:
    """Bound the norm (or the dual norm) of every matrix of this shape with Frobenius norm one."""
    return Fraction(norm.growth(shape, dual) * (1 + GROWTH_ROUNDING))


def root_above(value: Fraction) -> Fraction:
    """Square root, rounded up to a relative 2^-ROOT_BITS."""
    if value <= 0:
        return Fraction(0)
    shift = max(0, 2 * ROOT_BITS - value.numerator.bit_length() + value.denominator.bit_length())
    shift += shift % 2
    whole = -((-value.numerator << shift) // value.denominator)  # ceiling of value * 2^shift
    root = math.isqrt(whole)
    return Fraction(root + (root * root < whole), 1 << (shift // 2))


def _frobenius(M: Dyadic) -> Fraction:
    total = sum(a * a for a in M.numbers.ravel().tolist())
    return root_above(M.value(1) ** 2 * total)


def _absolute(M: Dyadic) -> np.ndarray:
    return np.abs(M.numbers)


def _singular(norm: Norm, profile: Norm, M: Dyadic, *, dual: bool) -> Fraction:
    size = _absolute(M)
    top = int(size.max())
    if top == 0:
        return Fraction(0)
    # The singular vectors come from a rounded copy of M; any copy would do, a good one makes the bound sharp.
    rounded = np.array([float(Fraction(a, top)) for a in M.numbers.ravel().tolist()]).reshape(size.shape)
    U, _, Vt = np.linalg.svd(rounded)
    left, right = Dyadic.of(U), Dyadic.of(Vt.T)
    middle = _nearly_diagonal(norm, profile, left.T @ M @ right, dual=dual)
    room = (1 - _defect(left)) * (1 - _defect(right))
    if middle is None or room <= 0:  # no rational way, or singular vectors so far from orthogonal that they say nothing
        return _by_growth(norm, M, dual=dual)
    return middle * root_above(1 / room)


def _nearly_diagonal(norm: Norm, profile: Norm, C: Dyadic, *, dual: bool) -> Fraction | None:
    """Bound a norm of the singular values of C, all but whose diagonal is rounding."""
    entries = _absolute(C)
    p = Fraction(0) if profile.power is None else _exponent(profile.power, dual=dual)
    if p == 1:
        return C.value(int(entries.sum()))
    if p is None:
        return root_above(C.value(int(entries.sum(axis=1).max())) * C.value(int(entries.sum(axis=0).max())))
    diagonal = Dyadic(np.array(np.diagonal(C.numbers))[None], C.exponent)
    bound = profile.exact_bound(_fractions(diagonal), _Rational(), dual)
    rest = C.numbers.copy()
    np.fill_diagonal(rest, 0)
    return None if bound is None else bound + _by_growth(norm, Dyadic(rest, C.exponent), dual=dual)


def _defect(Q: Dyadic) -> Fraction:
    """Bound ||Q^T Q - I|| by its largest absolute row sum."""
    gram = Q.T @ Q
    unit = gram.numbers - np.eye(len(gram.numbers), dtype=int).astype(object) * (1 << -gram.exponent)
    return gram.value(int(np.abs(unit).sum(axis=1).max()))


def _entrywise(M: Dyadic, p: Fraction | None) -> Fraction:
    size = [a for a in _absolute(M).ravel().tolist() if a]
    if not size:
        return Fraction(0)
    top = max(size)
    if p is None:
        return M.value(top)
    if p == 1:
        return M.value(sum(size))
    total = Decimal(0)
    for a in size:
        total = UP.add(total, _power_above(a, top, p))
    # total >= 1, so its logarithm is not negative and the exponent 1/p is rounded up.
    log = total.ln(UP).next_plus(UP)
    inverse = UP.divide(Decimal(p.denominator), Decimal(p.numerator))
    root = UP.multiply(log, inverse).exp(UP).next_plus(UP)
    return M.value(top) * Fraction(root)


def _power_above(a: int, top: int, p: Fraction) -> Decimal:
    """Bound (a/top)^p, 0 < a <= top, from above."""
    if a == top:
        return Decimal(1)
    ratio = UP.divide(Decimal(a), Decimal(top))
    log = min(ratio.ln(UP).next_plus(UP), Decimal(0))
    # The logarithm is negative: the smaller multiple of it is the larger one.
    power = DOWN.divide(Decimal(p.numerator), Decimal(p.denominator))
    return UP.multiply(power, log).exp(UP).next_plus(UP)
