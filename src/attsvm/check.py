r"""Check a certificate of attsvm in exact arithmetic, with the standard library alone and without the solvers.

`python -m attsvm.check FILE [--tol T]` needs the package, `python check.py FILE` only this file. The exit status is 0
if all claims are proven and the relative width of the interval is at most T (default 1e-6), 1 if not, and 2 if the file
cannot be read. Only roots and powers are rounded, outward. docs/certificates.md has the format and the proofs.

One file is the purpose: it can be copied and read without the package. From top to bottom it has matrices of rational
numbers, roots and powers, bounds on singular values and on norms, the certificate with what each witness proves, the
comparison with the claims, and the sentences that the command prints.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import sys
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from operator import mul
from typing import Any, NamedTuple

FORMAT = "attsvm certificate 2"
STATUSES = ("OPTIMAL", "INFEASIBLE", "UNDECIDED", "MAX_ITERATIONS", "TIME_LIMIT", "MEMORY_LIMIT", "CANCELLED")
# Numbers that may be claimed, with 1 if a larger number claims more, and -1 if a smaller one does.
CLAIMS = {"lower": 1, "upper": -1, "distance": -1, "rank_at_least": 1, "rank_at_most": -1, "face": -1, "tail": -1}
# Claims that are whole numbers.
COUNTS = ("rank_at_least", "rank_at_most", "face")
# Default relative width of the interval up to which a certificate is accepted.
TOLERANCE = 1e-6
NUMBER = re.compile(r"-?\d+(/[1-9]\d*)?", re.ASCII)
# Largest number of digits of a number, and of bits of an array's common denominator, which limit the time per number.
MOST_DIGITS, COMMON_BITS = 4_300, 16_384
FORMAT_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError)
# Context in which ln and exp round correctly, and relative amount by which their results are moved outward.
DECIMAL, PADDING = Context(prec=60, Emin=-(10**9), Emax=10**9), Fraction(1, 10**40)
# Number of parameters of each norm.
PARAMETER_COUNTS = {"entrywise": 1, "rows": 2, "columns": 2, "schatten": 1, "ky-fan": 1}
ZERO, ONE = Fraction(0), Fraction(1)
# Distance from one up to which a singular value of A^T dual counts as one.
FACE_WIDTH = Fraction(1, 10**4)
# Shortfall of the smallest margin below which W is also rescaled to have no loss.
SMALL_LOSS = Fraction(1, 1000)


class Rejected(Exception):
    """A claim is not proven; the message names it."""


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise Rejected(reason)


def _rational(text: Any) -> Fraction:
    """Read a number "p/q"."""
    is_short = isinstance(text, str) and max(map(len, text.split("/"))) <= MOST_DIGITS
    _require(is_short and NUMBER.fullmatch(text) is not None, f"{str(text)[:40]!r} is no rational number")
    return Fraction(text)


class Matrix:
    """A matrix of rational numbers: integers times one fraction."""

    def __init__(self, rows: list[list[int]], unit: Fraction = ONE) -> None:
        self.rows, self.unit, self.shape = rows, unit, (len(rows), len(rows[0]))

    @classmethod
    def of(cls, table: list[list[Fraction]]) -> Matrix:
        """Write a table of fractions with a common denominator."""
        common = math.lcm(*{x.denominator for row in table for x in row})
        return cls([[x.numerator * (common // x.denominator) for x in row] for row in table], Fraction(1, common))

    @classmethod
    def read(cls, value: Any, height: int, width: int) -> Matrix:
        """Read nested lists of numbers."""
        fits = isinstance(value, list) and len(value) == height > 0 and all(len(row) == width > 0 for row in value)
        _require(fits, f"an array is no list of {height} rows of {width} numbers")
        numbers, common = [[_rational(x) for x in row] for row in value], 1
        for denominator in {x.denominator for row in numbers for x in row}:
            common = math.lcm(common, denominator)
            _require(common.bit_length() <= COMMON_BITS, f"an array has no common denominator of {COMMON_BITS} bits")
        return cls.of(numbers)

    @classmethod
    def identity(cls, size: int) -> Matrix:
        """Make the identity."""
        return cls([[int(i == k) for k in range(size)] for i in range(size)])

    @property
    def T(self) -> Matrix:
        """The transpose."""
        return Matrix([list(column) for column in zip(*self.rows, strict=True)], self.unit)

    def __matmul__(self, other: Matrix) -> Matrix:
        columns = other.T.rows
        return Matrix([[sum(map(mul, row, column)) for column in columns] for row in self.rows], self.unit * other.unit)

    def __mul__(self, factor: Fraction) -> Matrix:
        return Matrix(self.rows, self.unit * factor)

    def __add__(self, other: Matrix) -> Matrix:
        pairs = (zip(a, b, strict=True) for a, b in zip(self.rows, other.rows, strict=True))
        return Matrix.of([[a * self.unit + b * other.unit for a, b in pair] for pair in pairs])

    def __sub__(self, other: Matrix) -> Matrix:
        return self + other * Fraction(-1)

    def sizes(self) -> list[list[Fraction]]:
        """Absolute values of the entries."""
        return [[abs(a * self.unit) for a in row] for row in self.rows]

    def square(self) -> Fraction:
        """Sum of the squares of the entries."""
        return sum(a * a for row in self.rows for a in row) * self.unit**2

    def length(self) -> Fraction:
        """Bound the Frobenius norm from above."""
        return root_above(self.square())


def root_above(x: Fraction) -> Fraction:
    """Bound a square root from above, with a relative error of at most 2^-150."""
    shift = max(0, 160 + (x.denominator.bit_length() - x.numerator.bit_length()) // 2)
    whole = -((-x.numerator << 2 * shift) // x.denominator)
    root = math.isqrt(whole) if x > 0 else 0
    return Fraction(root + (x > 0 and root * root < whole), 1 << shift)


def _above(x: Fraction) -> Fraction:
    """Round a positive number up, by a relative 2^-160 at most, so that its denominator is a power of two."""
    shift = max(0, 161 + x.denominator.bit_length() - x.numerator.bit_length())
    return Fraction(-((-x.numerator << shift) // x.denominator), 1 << shift)


def _power(x: Fraction, p: Fraction, *, above: bool = True) -> Fraction:
    """Bound x^p, p > 0, from above or below, with a relative error of about 10^-40."""
    if x <= 0:
        return ZERO
    log = DECIMAL.subtract(Decimal(x.numerator).ln(DECIMAL), Decimal(x.denominator).ln(DECIMAL))
    exponent = DECIMAL.multiply(DECIMAL.divide(Decimal(p.numerator), Decimal(p.denominator)), log)
    _require(abs(exponent) < 10**5 and p < 10**9, "a power is too large or too small")
    return Fraction(exponent.exp(DECIMAL)) * (1 + PADDING if above else 1 - PADDING)


def _length(sizes: list[Fraction], p: Fraction | None) -> Fraction:
    """Bound the l_p norm of sizes from above; p is None for infinity."""
    top = max(sizes)
    if p is None or top == 0:
        return top
    return sum(sizes, ZERO) if p == 1 else top * _power(sum((_power(x / top, p) for x in sizes), ZERO), 1 / p)


def _conjugate(p: Fraction | None) -> Fraction | None:
    """Return q with 1/p + 1/q = 1."""
    return ONE if p is None else None if p == 1 else p / (p - 1)


class Spectrum:
    """Bounds on the singular values of M from nearly orthonormal U and V.

    They lie between the singular values of C = U^T M V divided by |U| |V|, and the same times |U^-1| |V^-1|.

    Attributes
    ----------
    diagonal : list of Fraction
        Absolute values of the diagonal of C, in descending order.
    rest, length : Fraction
        Sum and Frobenius norm of the other entries of C.
    stretch, shrink : Fraction
        Upper bounds on |U^-1| |V^-1| and |U| |V|.
    """

    def __init__(self, M: Matrix, vectors: Any) -> None:
        U, V = (Matrix.read(part, size, size) for part, size in zip(vectors, M.shape, strict=True))
        C = U.T @ M @ V
        sizes = C.sizes()
        self.diagonal = sorted((sizes[k][k] for k in range(min(M.shape))), reverse=True)
        self.rest = sum(map(sum, sizes), ZERO) - sum(self.diagonal, ZERO)
        self.length = root_above(C.square() - sum((x * x for x in self.diagonal), ZERO))
        left, right = _distance_from_identity(U.T @ U), _distance_from_identity(V.T @ V)
        _require(max(left, right) < 1, "singular vectors are not nearly orthonormal")
        self.stretch = root_above(1 / ((1 - left) * (1 - right)))
        self.shrink = root_above((1 + left) * (1 + right))


def _distance_from_identity(gram: Matrix) -> Fraction:
    """Compute the largest sum of absolute values in a row of a symmetric matrix minus the identity."""
    return max(sum(row) - row[k] + abs(row[k] - 1) for k, row in enumerate(gram.sizes()))


class RationalRoot:
    """The root S = A^(1/2), bounded with a rational R near it.

    The evidence is R, an approximate inverse K of R, and a Cholesky factor that shows R positive definite. For positive
    definite R and S, |S - R| <= |A - R^2| |R^-1|. Hence S = (I + N) R = R (I + N^T) with |N| <= |A - R^2| |R^-1|^2, and
    S^-1 is K times the inverses of I + N and of K R.

    Attributes
    ----------
    factors : dict of bool to Matrix
        R (False) and K (True); the exact matrices are (I + N) times them.
    drift : dict of bool to Fraction
        Upper bounds on |N|.
    reach : dict of bool to Fraction
        Upper bounds on the spectral norms of the exact matrices.
    """

    def __init__(self, form: Any, evidence: Any, size: int) -> None:
        A = Matrix.read(form, size, size)
        R, K, cholesky = (Matrix.read(part, size, size) for part in evidence)
        A = (A + A.T) * Fraction(1, 2)
        _require(not (R - R.T).square(), "the root of a matrix is not symmetric")
        defect = (K @ R - Matrix.identity(size)).length()
        _require(defect < 1, "the inverse of a root is none")
        inverse = K.length() / (1 - defect)
        _require((R - cholesky @ cholesky.T).length() * inverse < 1, "the root of a matrix is not positive definite")
        miss = (A - R @ R).length() * inverse**2
        _require(miss < 1, "a root's square is not its matrix")
        self.factors = {False: R, True: K}
        self.drift = {False: miss, True: 1 / ((1 - miss) * (1 - defect)) - 1}
        self.reach = {False: R.length() * (1 + miss), True: inverse / (1 - miss)}


def read_norm(words: Any, shape: tuple[int, int], roots: Any) -> tuple[Any, ...]:
    """Read a norm: its name, then numbers (None for infinity), weights, roots or other norms.

    ``roots`` iterates over the evidence for :class:`RationalRoot`, in the order in which matrices of coordinates
    appear.
    """
    name, *parts = words
    if name == "frobenius" and not parts:
        return (name,)
    if name in ("sum", "largest"):
        first, second = parts
        return name, read_norm(first, shape, roots), read_norm(second, shape, roots)
    if name == "coordinates":  # of A^(1/2) W B^(1/2), None for the identity
        *forms, inner = parts
        pairs = zip(forms, shape, strict=True)
        sides = [None if form is None else RationalRoot(form, next(roots, None), size) for form, size in pairs]
        return name, *sides, read_norm(inner, shape, roots)
    if name == "weighted":
        table, (kind, exponent) = parts
        weights = Matrix.read(table, *shape)
        _require(kind == "entrywise" and min(map(min, weights.rows)) > 0, "a weight is not positive")
        return name, weights.sizes(), read_norm([kind, exponent], shape, roots)[1]
    _require(len(parts) == PARAMETER_COUNTS.get(name), f"norm {str(name)[:40]!r} is unknown")
    powers = [None if p == "inf" else _rational(p) for p in parts]
    _require(all(p is None or p >= 1 for p in powers), "norm: a number is below one")
    is_count = all(p is not None and p.denominator == 1 for p in powers)
    _require(is_count or name != "ky-fan", "norm: k is no whole number")
    return name, *powers


def describe(words: Any) -> str:
    """Name a norm of a certificate in words."""
    name, *parts = words
    if name == "coordinates":
        sides = " and ".join(side for side, form in zip(("A", "B"), parts, strict=False) if form is not None)
        return f"{describe(parts[-1])} in the coordinates of {sides or 'the identity'}"
    if name == "weighted":
        return f"weighted {describe(parts[-1])}"
    if name in ("sum", "largest"):
        return f"{'sum' if name == 'sum' else 'larger'} of {describe(parts[0])} and {describe(parts[1])}"
    known = {("schatten", "1"): "nuclear", ("schatten", "inf"): "spectral", ("entrywise", "inf"): "max"}
    numbers = [part if part == "inf" else f"{float(Fraction(part)):.6g}" for part in parts]
    plain = f"l_{numbers[0]}" if name == "entrywise" else " ".join([name, *numbers])
    return known.get((name, *parts), plain)


def norm_above(
    norm: tuple[Any, ...], M: Matrix, proof: Any, *, radius: Fraction = ZERO, dual: bool = False
) -> Fraction:
    """Bound a norm, or its dual, of all matrices within a Frobenius radius of M.

    ``proof`` holds singular vectors. For a sum or maximum of two norms it holds a split of M (for the dual) and the
    proofs of both.
    """
    name, *parts = norm
    if name == "coordinates":
        M, radius = _image(parts[:2], M, radius, dual)
        return norm_above(parts[2], M, proof, radius=radius, dual=dual)
    if name in ("sum", "largest"):
        first = Matrix.read(proof[0], *M.shape) if dual else M
        bounds = (
            norm_above(parts[0], first, proof[1], radius=ZERO if dual else radius, dual=dual),
            norm_above(parts[1], M - first if dual else M, proof[2], radius=radius, dual=dual),
        )
        return sum(bounds, ZERO) if (name == "sum") != dual else max(bounds)
    if name == "frobenius":
        return M.length() + radius
    # The norms below are one on a matrix with a single entry one, so none exceeds the sum of absolute entries.
    spread = radius * root_above(Fraction(M.shape[0] * M.shape[1]))
    if name == "weighted":
        weights, p = parts
        pairs = [zip(*rows, strict=True) for rows in zip(M.sizes(), weights, strict=True)]
        sizes = [_above(a / w) if dual else a * w for pair in pairs for a, w in pair]
        largest = 1 / min(map(min, weights)) if dual else max(map(max, weights))
        return _length(sizes, _conjugate(p) if dual else p) + largest * spread
    powers: list[Any] = [_conjugate(p) for p in parts] if dual and name != "ky-fan" else parts
    if name in ("rows", "columns", "entrywise"):
        sizes = (M.T if name == "columns" else M).sizes()
        return _length([_length(row, powers[0]) for row in sizes], powers[-1]) + spread
    return _gauge_above(name, powers[0], M, proof, dual) + spread


def _image(sides: list[RationalRoot | None], M: Matrix, radius: Fraction, dual: bool) -> tuple[Matrix, Fraction]:
    """Map M and the ball around it by two roots (or their inverses); return the image of M, and a radius around it."""
    factors = [None if side is None else side.factors[dual] for side in sides]
    M = M if factors[0] is None else factors[0] @ M
    M = M if factors[1] is None else M @ factors[1].T
    stretch, drift = ONE, ONE
    for side in sides:
        if side is not None:
            stretch, drift = stretch * side.reach[dual], drift * (1 + side.drift[dual])
    return M, _above(stretch * radius + (drift - 1) * M.length()) if M.square() or radius else ZERO


def _gauge_above(name: str, number: Any, M: Matrix, vectors: Any, dual: bool) -> Fraction:
    """Bound the Schatten norm with exponent ``number``, or the Ky Fan norm of ``number`` values, or the dual norm."""
    spectrum = Spectrum(M, vectors)
    values, count = spectrum.diagonal, len(spectrum.diagonal)
    # The norm of the part off the diagonal is at most the sum of its absolute entries, and of its singular values.
    is_short = name == "schatten" and (number is None or number >= 2)
    rest = min(spectrum.rest, spectrum.length * (1 if is_short else root_above(Fraction(count))))
    if name == "schatten":
        return spectrum.stretch * (_length(values, number) + rest)
    k = min(int(number or count), count)
    return spectrum.stretch * (rest + (max(values[0], sum(values, ZERO) / k) if dual else sum(values[:k], ZERO)))


def _coefficients(product: list[list[Fraction]], right: list[Fraction]) -> Fraction:
    """Bound the largest entry of the solution of ``product`` c = ``right``, with a square matrix near the identity."""
    defect = max(sum(abs(x - (i == k)) for k, x in enumerate(row)) for i, row in enumerate(product))
    _require(defect < 1, "the right inverse of a system is none")
    return max(map(abs, right)) / (1 - defect)


class Constraint(NamedTuple):
    """The constraint of a query and a token: delta^T W z >= 1, or = 0 for a tied token."""

    query: int
    token: int
    tied: bool
    delta: list[int]


class Certificate:
    """A problem and its witnesses.

    :meth:`lower`, :meth:`upper`, :meth:`near` and :meth:`contradiction` return what the witnesses prove, or raise
    :class:`Rejected` with the reason.

    Attributes
    ----------
    shape : (int, int)
        Shape (d, dz) of W.
    tokens, queries : Matrix
        Tokens of all sequences, in rows, and queries.
    constraints : list of Constraint
    norm : tuple
        The norm, as :func:`read_norm` returns it.
    C : list of Fraction, or None
        C of every query; None for a hard margin.
    loss : str
    prior : Matrix
        Zero if the problem has none.
    plain : bool
        Whether there is no prior.
    kind : tuple
        The norm without coordinates and weights.
    stretch : Fraction
        Largest ratio between the Frobenius norms of a matrix and of its image in those coordinates and weights.
    squared : bool
        Whether half the square of the norm is minimised: Frobenius with a soft margin.
    """

    def __init__(self, data: Any, question: Any, witness: Any) -> None:
        sequences, queries = data["tokens"], data["queries"]
        length, count = len(sequences[0]), len(queries)
        self.shape = d, dz = len(sequences[0][0]), len(queries[0])
        rows = [token for tokens in sequences if len(tokens) == length for token in tokens]
        self.tokens = Matrix.read(rows, len(sequences) * length, d)
        self.queries = Matrix.read(queries, count, dz)
        self.constraints = self._read_constraints(data, len(sequences), length)
        self.witness = witness
        self.norm = read_norm(question["norm"], self.shape, iter(witness["roots"]))
        C = question["C"]
        self.C = None if C is None else list(map(_rational, C if isinstance(C, list) else [C] * count))
        self.loss = question["loss"]
        is_price = self.C is None or (len(self.C) == count and min(self.C) > 0)
        _require(self.loss in ("hinge", "squared_hinge") and is_price, "loss or C is not known")
        self.plain = question["prior"] is None
        self.prior = Matrix([[0] * dz] * d) if self.plain else Matrix.read(question["prior"], d, dz)
        self.kind, self.stretch = self._inner_norm()
        self.squared = self.C is not None and self.kind == ("frobenius",)

    def _read_constraints(self, data: Any, sequences: int, length: int) -> list[Constraint]:
        """Compare the first selected token of each query with every other visible token."""
        constraints: list[Constraint] = []
        numbers = range(len(self.queries.rows))
        for i, selected, mask, sequence in zip(numbers, data["selected"], data["mask"], data["sequence"], strict=True):
            is_marked = {*selected, *mask} <= {0, 1} and len(selected) == len(mask) == length
            fits = is_marked and all(map(int.__le__, selected, mask))
            _require(fits and 1 in selected and sequence in range(sequences), "selected, mask or sequence does not fit")
            tokens = self.tokens.rows[sequence * length : (sequence + 1) * length]
            best = selected.index(1)
            for t in range(length):
                if mask[t] and t != best:
                    delta = list(map(int.__sub__, tokens[best], tokens[t]))
                    constraints.append(Constraint(i, t, selected[t] == 1, delta))
        return constraints

    def _inner_norm(self) -> tuple[tuple[Any, ...], Fraction]:
        """Return the norm without coordinates and weights, and the attribute ``stretch``."""
        norm, stretch = self.norm, ONE
        while norm[0] == "coordinates":
            for side in norm[1:3]:
                stretch *= ONE if side is None else side.reach[True]
            norm = norm[3]
        if norm[0] == "weighted":
            return ("entrywise", norm[2]), stretch / min(map(min, norm[1]))
        return norm, stretch

    def contradiction(self) -> None:
        """Prove that no W satisfies the constraints: multipliers cancel, exactly or after a small change (Farkas)."""
        values, unit, adjoint = self._multipliers(self.witness["farkas"], None)
        inequalities = [value for value, at in zip(values, self.constraints, strict=True) if not at.tied]
        _require(self.C is None and any(inequalities), "the multipliers show no contradiction")
        if adjoint.square():
            self._cancel(values, unit, adjoint)

    def _cancel(self, values: list[int], unit: Fraction, adjoint: Matrix) -> None:
        """Prove that a change smaller than the multipliers makes them cancel, by a right inverse of their equations."""
        used = [k for k, value in enumerate(values) if value]
        equations = set()
        for at in (self.constraints[k] for k in used):
            rows = [row for row, x in enumerate(at.delta) if x]
            columns = [column for column, z in enumerate(self.queries.rows[at.query]) if z]
            equations.update((row, column) for row in rows for column in columns)
        entries = sorted(equations)
        inverse = Matrix.read(self.witness["inverse"], len(entries), len(used))
        images = [self._adjoint(dict(zip(used, row, strict=True)), inverse.unit) for row in inverse.rows]
        product = [[image.rows[a][b] * image.unit for image in images] for a, b in entries]
        largest = _coefficients(product, [adjoint.rows[a][b] * adjoint.unit for a, b in entries])
        for k, column in zip(used, inverse.T.rows, strict=True):
            change = sum(map(abs, column)) * inverse.unit * largest
            _require(self.constraints[k].tied or change < values[k] * unit, "the multipliers do not nearly cancel")

    def _multipliers(self, table: Any, top: list[Fraction] | None) -> tuple[list[int], Fraction, Matrix]:
        """Read multipliers: on rejected tokens from zero to the query's ``top``, on tied tokens of any sign.

        Return integers, their unit, and the sum of the multipliers times delta z^T.
        """
        dual = Matrix.read(table, len(self.queries.rows), len(table[0]))
        values = [dual.rows[at.query][at.token] for at in self.constraints]
        is_constrained = sum(x != 0 for row in dual.rows for x in row) == sum(x != 0 for x in values)
        _require(is_constrained, "a multiplier belongs to a token without a constraint")
        pairs = zip(values, self.constraints, strict=True)
        inequalities = [(value * dual.unit, at.query) for value, at in pairs if not at.tied]
        _require(all(value >= 0 for value, _ in inequalities), "a multiplier is negative")
        is_below = top is None or all(value <= top[i] for value, i in inequalities)
        _require(is_below, "a multiplier is larger than C")
        return values, dual.unit, self._adjoint(dict(enumerate(values)), dual.unit)

    def _adjoint(self, values: dict[int, int], unit: Fraction) -> Matrix:
        """Sum multipliers, by the constraint's index, times delta z^T."""
        sums = [[0] * self.shape[0] for _ in self.queries.rows]
        for k, value in values.items():
            if value:
                at = self.constraints[k]
                sums[at.query] = [total + value * x for total, x in zip(sums[at.query], at.delta, strict=True)]
        return Matrix(sums, unit * self.tokens.unit).T @ self.queries

    def _margins(self, W: Matrix) -> list[Fraction]:
        images = (self.queries @ W.T).rows
        unit = self.tokens.unit * self.queries.unit * W.unit
        return [sum(map(mul, at.delta, images[at.query])) * unit for at in self.constraints]

    def lower(self) -> tuple[Fraction, Matrix]:
        """Return the bound that the multipliers prove, and A^T dual, scaled until admissible."""
        top = self.C if self.loss == "hinge" else None
        values, unit, adjoint = self._multipliers(self.witness["dual"], top)
        size = norm_above(self.norm, adjoint, self.witness["vectors"]["adjoint"], dual=True)
        gain = price = ZERO
        for value, at, margin in zip(values, self.constraints, self._margins(self.prior), strict=True):
            gain += unit * value * ((not at.tied) - margin)
            if not at.tied and self.C is not None and top is None:
                price += (unit * value) ** 2 / (4 * self.C[at.query])
        if not self.squared:
            scale = ZERO
            if gain > 0 and (size > 0 or self.C is not None):
                scale = 1 / size if self.C is None else 1 / max(size, ONE)
            adjoint, gain, price, size = adjoint * scale, scale * gain, scale**2 * price, ZERO
        return max(gain - size**2 / 2 - price, ZERO), adjoint

    def upper(self) -> tuple[Fraction, Matrix, Fraction]:
        """Bound the objective at W, rescaled to margin one if the margin is hard.

        Return the bound, W, and a radius around W (Frobenius norm) within which a matrix has exact ties.
        """
        _require(self.witness["W"] is not None, "there is no W")
        W = Matrix.read(self.witness["W"], *self.shape)
        if self.witness["move"] is not None:
            W = W + Matrix.read(self.witness["move"], *self.shape)
        margins = self._margins(W)
        radius = self._tie_radius(margins)
        inner, prices = self._safe_margins(margins, radius)
        least, bounds = min(inner, default=ONE), []
        if self.C is None:
            _require(least > 0, "a margin of W is not positive")
        else:
            power = 1 if self.loss == "hinge" else 2
            losses = (C * (1 - margin) ** power for margin, C in zip(inner, prices, strict=True) if margin < 1)
            bounds = [sum(losses, ZERO) + self._size(W, radius)]
        if self.C is None or 1 - SMALL_LOSS < least < 1:
            if self.plain and not inner:
                scale = ZERO  # without a rejected token the zero matrix is as good as W
            else:
                scale = 1 / least if self.plain or least < 1 else ONE
            bounds.append(self._size(W, radius, scale))
            if self.C is None:
                W, radius = W * scale, radius * scale
        return min(bounds), W, radius

    def _safe_margins(self, margins: list[Fraction], radius: Fraction) -> tuple[list[Fraction], list[Fraction]]:
        """Bound margins of rejected tokens from below for all W within the radius; return the bounds, and C of each."""
        inner, prices = [], []
        unit = (self.tokens.unit * self.queries.unit) ** 2
        for margin, at in zip(margins, self.constraints, strict=True):
            if not at.tied:
                square = sum(x * x for x in at.delta) * sum(z * z for z in self.queries.rows[at.query]) if radius else 0
                inner.append(margin - radius * root_above(square * unit))
                prices.append(ZERO if self.C is None else self.C[at.query])
        return inner, prices

    def _size(self, W: Matrix, radius: Fraction, scale: Fraction = ONE) -> Fraction:
        """Bound the norm of a multiple of W minus the prior, or half its square, from above."""
        proof = self.witness["vectors"]["V"]
        if self.plain:
            size = norm_above(self.norm, W, proof, radius=radius) * scale
        else:
            size = norm_above(self.norm, W * scale - self.prior, proof, radius=radius * scale)
        return size**2 / 2 if self.squared else size

    def _tie_radius(self, margins: list[Fraction]) -> Fraction:
        """Bound the distance (Frobenius norm) from W to a matrix with exact ties; zero if the ties of W are exact.

        The witness names ties, each with a matrix that has a margin near one at this tie and near zero at the others.
        """
        ties = [k for k, at in enumerate(self.constraints) if at.tied]
        if not any(margins[k] for k in ties):
            return ZERO
        _require(self.witness["ties"] is not None, "tied tokens do not score the same")
        named, matrices = zip(*self.witness["ties"], strict=True)
        keys = {
            k: (tuple(self.constraints[k].delta), tuple(self.queries.rows[self.constraints[k].query])) for k in ties
        }
        named_keys = {keys[k] for k in named}
        is_covered = all(keys[k] in named_keys or not all(map(any, keys[k])) for k in ties)
        _require(is_covered, "a tie is left out")
        inverse = [Matrix.read(table, *self.shape) for table in matrices]
        columns = [self._margins(matrix) for matrix in inverse]
        product = [[column[k] for column in columns] for k in named]
        largest = _coefficients(product, [margins[k] for k in named])
        return _above(sum((matrix.length() for matrix in inverse), ZERO) * largest)

    def near(self, low: Fraction, high: Fraction, W: Matrix, radius: Fraction, adjoint: Matrix) -> dict[str, Any]:
        """Bound the other CLAIMS: the distance from W to the optimum, and the optimum's rank and spectrum."""
        hard, vectors, largest_rank = self.C is None, self.witness["vectors"], min(self.shape)
        out: dict[str, Any] = {
            "rank_at_least": int(self.plain and hard and low > 0),
            "rank_at_most": largest_rank,
        }
        distance = self._distance(low, high)
        if distance is not None:
            out["distance"] = distance + radius
            spectrum = Spectrum(W, vectors["W"])  # Weyl's inequality
            least = [(value - spectrum.length) / spectrum.shrink for value in spectrum.diagonal]
            out["rank_at_least"] = sum(value > out["distance"] for value in least)
        if self.plain and self._exponent() and self.kind[0] != "entrywise":  # every optimum lies in the queries' span
            queries = {tuple(self.queries.rows[at.query]) for at in self.constraints}
            out["rank_at_most"] = min(largest_rank, len(queries))
        if self.plain and hard and self.norm == ("schatten", ONE):  # <adjoint, W> >= low, and the nuclear norm <= high
            spectrum = Spectrum(adjoint, vectors["adjoint"])
            sizes = [spectrum.stretch * (value + spectrum.length) for value in spectrum.diagonal]
            out["face"] = face = sum(size > 1 - FACE_WIDTH for size in sizes)
            out["tail"] = (high - low) / (1 - sizes[face]) if face < len(sizes) else ZERO
        return out

    def _exponent(self) -> Fraction:
        """Return the finite p of a norm l_p or Schatten-p, 2 for Frobenius, zero for other norms."""
        name, *powers = self.kind
        if name == "frobenius":
            return Fraction(2)
        return (powers[0] or ZERO) if name in ("entrywise", "schatten") else ZERO

    def _distance(self, low: Fraction, high: Fraction) -> Fraction | None:
        """Bound the Frobenius distance of W from the optimum; both have objectives in the interval. None if unknown."""
        exponent = self._exponent()
        if self.squared:  # strong convexity, in this case and the next
            return self.stretch * root_above(2 * (high - low))
        if self.C is None and 1 < exponent <= 2:
            return self.stretch * root_above((high**2 - low**2) / (exponent - 1))
        if self.C is None and exponent > 2 and high > 0:  # Clarkson's inequality at the midpoint
            entries = math.prod(self.shape) if self.kind[0] == "entrywise" else min(self.shape)
            separation = _power((1 - _power(low / high, exponent, above=False)) / 2, 1 / exponent)
            longest = _power(Fraction(entries), Fraction(1, 2) - 1 / exponent)
            return self.stretch * 2 * high * longest * separation
        return None

    def proven(self) -> dict[str, Any]:
        """Return what the witnesses prove for each of CLAIMS."""
        low, adjoint = self.lower()
        if self.witness["W"] is None:
            return {"lower": low}
        high, W, radius = self.upper()
        return {"lower": low, "upper": high, **self.near(low, high, W, radius, adjoint)}


def digest(content: dict[str, Any]) -> str:
    """Compute the digest of a certificate: a hash of its canonical JSON without the digest itself."""
    rest = json.dumps(content | {"digest": None}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(rest.encode()).hexdigest()


def check(content: Any) -> dict[str, Any]:
    """Check a certificate as read from JSON.

    Returns
    -------
    dict
        The status and the numbers that it claims, all proven.

    Raises
    ------
    Rejected
        If a claim is not proven or the certificate is malformed.
    """
    try:
        found = content.get("format") if isinstance(content, dict) else None
        is_intact = found == FORMAT and content.get("digest") == digest(content)
        other = f"; its format is {found[:40]!r}" if isinstance(found, str) and found != FORMAT else ""
        _require(is_intact, f"this is no intact {FORMAT}{other}")
        return _check(*(content[part] for part in ("data", "problem", "witness", "claim")))
    except FORMAT_ERRORS as error:
        raise Rejected(f"the certificate is malformed: {type(error).__name__}, {str(error)[:200]}") from error


def _check(data: Any, question: Any, witness: Any, claim: Any) -> dict[str, Any]:
    """Compare every claim with the proven number."""
    status = claim["status"]
    _require(set(claim) <= {"status", "tolerance", *CLAIMS} and status in STATUSES, "an unknown claim")
    claims = {name: _rational(claim[name]) for name in CLAIMS if name in claim}
    tolerance = _rational(claim["tolerance"])
    _require(tolerance >= 0, "the tolerance is negative")
    for name in COUNTS:
        is_count = name not in claims or (claims[name].denominator == 1 and claims[name] >= 0)
        _require(is_count, f"{name} is {str(claims.get(name))[:40]}; a whole number from 0 was expected")
    _require("tail" not in claims or "face" in claims, "tail is claimed without face")
    certificate = Certificate(data, question, witness)
    if status == "INFEASIBLE":
        certificate.contradiction()
        _require(not claims, "numbers are claimed of a problem without a solution")
        return {"status": status}
    proven = certificate.proven()
    for name, value in claims.items():
        is_proven = name in proven and CLAIMS[name] * (proven[name] - value) >= 0
        _require(
            is_proven, f"{name} is not proven: {_shown(value, 17)} is claimed, {_shown(proven.get(name), 17)} is proven"
        )
    if status == "OPTIMAL":
        _require("lower" in claims and "upper" in claims, "an optimum is claimed without its bounds")
        width = gap(claims)
        is_near = width is not None and width <= tolerance
        _require(is_near, f"the bounds are {_shown(width)} apart, relatively; {_shown(tolerance)} is promised")
    return {"status": status, **claims}


def gap(claims: dict[str, Any]) -> Fraction | None:
    """Relative width of the interval; None if it has no bound."""
    low, high = claims.get("lower"), claims.get("upper")
    if low is None or high is None or (low <= 0 < high):
        return None
    return max((high - low) / low, ZERO) if high > 0 else ZERO


def refusal(claims: dict[str, Any], tolerance: Fraction) -> str | None:
    """Say why a claim does not meet a reader's tolerance; None if it does."""
    if claims["status"] == "INFEASIBLE":
        return None
    width = gap(claims)
    if width is not None and width <= tolerance:
        return None
    return f"the interval is {_shown(width)} wide, relatively; {_shown(tolerance, 3, ROUND_HALF_EVEN)} was asked for"


def _shown(value: Fraction | int | None, digits: int = 2, rounding: str = ROUND_CEILING) -> str:
    """Write a number of any size with a few digits; None is a number without a bound."""
    if value is None:
        return "infinitely"
    x = Fraction(value)
    context = Context(prec=digits, rounding=rounding, Emin=-(10**9), Emax=10**9, capitals=0)
    short = context.divide(Decimal(x.numerator), Decimal(x.denominator)).normalize(context)
    return f"{short:f}" if -5 < short.adjusted() < digits + 4 else f"{short:e}"


def statements(content: dict[str, Any], claims: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe the problem and the proven claims, with a name and a sentence for each."""
    question, prior = content["problem"], content["problem"]["prior"]
    C, tolerance = question["C"], _rational(content["claim"]["tolerance"])
    prices = [] if C is None else sorted(map(_rational, C if isinstance(C, list) else [C]))
    ends = " to ".join(_shown(price, 6, ROUND_HALF_EVEN) for price in dict.fromkeys(prices[:1] + prices[-1:]))
    soft = None if C is None else f"soft: C = {ends}, loss {question['loss']}"
    size = None if prior is None else Matrix.read(prior, len(prior), len(prior[0])).length()
    lines = [
        ("proven", claims["status"].lower()),
        ("tolerance", f"{_shown(tolerance, 3, ROUND_HALF_EVEN)}, what the file asks of itself"),
        ("norm", describe(question["norm"])),
        ("margin", soft or "hard"),
        ("prior", "none" if size is None else f"a matrix of Frobenius norm {_shown(size, 6)}"),
    ]
    if claims["status"] == "INFEASIBLE":
        near = "near the given ones " if content["witness"].get("inverse") else ""
        return [*lines, ("reason", f"No W satisfies the constraints: multipliers {near}cancel exactly.")]
    if "lower" in claims or "upper" in claims:
        low = _shown(claims.get("lower", ZERO), 17, ROUND_FLOOR)
        high = _shown(claims["upper"], 17) if "upper" in claims else "inf"
        subject = "norm" if C is None and prior is None else "objective"
        lines.append(("interval", f"The smallest {subject} lies in [{low}, {high}]."))
        lines.append(("gap", f"The interval is {_shown(gap(claims))} wide, relatively."))
    if "distance" in claims:
        what = "W over its smallest margin" if C is None and prior is None else "W"
        lines.append(("distance", f"{what} lies within {_shown(claims['distance'])} of the optimum (Frobenius norm)."))
    names = [name for name in ("rank_at_least", "rank_at_most") if name in claims]
    ranks = [f"{name[5:].replace('_', ' ')} {claims[name]}" for name in names]
    if ranks:
        lines.append(("rank", f"{' and '.join(ranks)} for every optimum."))
    if "tail" in claims:
        tail = f"sum to {_shown(claims['tail'])} at most"
        lines.append(("spectrum", f"The singular values of an optimum after the first {claims['face']} {tail}."))
    return lines


def read_tolerance(text: str) -> Fraction:
    """Read a nonnegative number; raise ValueError if the text is not a nonnegative number."""
    value = Fraction(text)
    if value < 0:
        raise ValueError("a tolerance from 0 was expected")
    return value


def main(arguments: list[str]) -> int:
    """Check the file named in the arguments, print what it proves, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m attsvm.check", description="Check a certificate of attsvm.")
    parser.add_argument("file", help="the certificate, a JSON file")
    parser.add_argument("--tol", type=read_tolerance, default=Fraction(TOLERANCE), help="relative width, default 1e-6")
    asked = parser.parse_args(arguments)
    try:
        with open(asked.file, encoding="utf-8") as stream:
            content = json.load(stream)
        claims = check(content)
    except Rejected as error:
        print(f"rejected  {error}")
        return 1
    except (OSError, ValueError, RecursionError) as error:
        print(f"no certificate could be read: {str(error)[:200]}")
        return 2
    for name, text in statements(content, claims):
        print(f"{name:9} {text}")
    refused = refusal(claims, asked.tol)
    if refused is not None:
        print(f"rejected  {refused}")
    return 0 if refused is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
