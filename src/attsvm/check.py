r"""Check a certificate of attsvm: exact arithmetic, the standard library, and nothing of the solvers.

`attsvm check FILE`, `python -m attsvm.check FILE` or `python check.py FILE` exits with 0 when all that is claimed is
proven, 1 when it is not, 2 when the file cannot be read. Numbers are fractions; only roots and powers are rounded,
outward. docs/certificates.md has the format, and the proof of every bound.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

FORMAT, OPEN = "attsvm certificate 1", ("UNDECIDED", "MAX_ITERATIONS", "TIME_LIMIT", "CANCELLED")
# What may be claimed, and whether a larger (1) or a smaller (-1) number claims more.
CLAIMS = {"lower": 1, "upper": -1, "distance": -1, "rank_at_least": 1, "rank_at_most": -1, "face": -1, "tail": -1}
NUMBER = re.compile(r"-?\d+(/[1-9]\d*)?", re.ASCII)
MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError)
DECIMAL, PADDING = Context(prec=60, Emin=-(10**9), Emax=10**9), Fraction(1, 10**40)  # ln and exp round correctly
ZERO, ONE, FLAT = Fraction(0), Fraction(1), Fraction(1, 10**4)  # singular values of A^T dual this near to one are one


class Rejected(Exception):
    """Something claimed is not proven; the message says what."""


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise Rejected(reason)


def _rational(text: Any) -> Fraction:
    _require(isinstance(text, str) and NUMBER.fullmatch(text) is not None, f"{str(text)[:40]!r} is no rational number")
    return Fraction(text)


def _dot(a: Any, b: Any) -> int:
    return sum(map(int.__mul__, a, b))


class Matrix:
    """A rational matrix: integers times one fraction."""

    def __init__(self, rows: list[list[int]], unit: Fraction = ONE) -> None:
        self.rows, self.unit, self.shape = rows, unit, (len(rows), len(rows[0]))

    @classmethod
    def of(cls, table: list[list[Fraction]]) -> Matrix:
        """Bring fractions to one denominator."""
        common = math.lcm(*(x.denominator for row in table for x in row))
        return cls([[x.numerator * (common // x.denominator) for x in row] for row in table], Fraction(1, common))

    @classmethod
    def read(cls, value: Any, height: int, width: int) -> Matrix:
        """Read nested lists of "p/q"."""
        fits = isinstance(value, list) and len(value) == height > 0 and all(len(row) == width > 0 for row in value)
        _require(fits, f"an array is no list of {height} rows of {width} numbers")
        return cls.of([[_rational(x) for x in row] for row in value])

    @property
    def T(self) -> Matrix:
        """The transpose."""
        return Matrix([list(column) for column in zip(*self.rows, strict=True)], self.unit)

    def __matmul__(self, other: Matrix) -> Matrix:
        columns = other.T.rows
        return Matrix([[_dot(row, column) for column in columns] for row in self.rows], self.unit * other.unit)

    def sizes(self) -> list[list[Fraction]]:
        """Absolute values of the entries."""
        return [[abs(a * self.unit) for a in row] for row in self.rows]

    def square(self) -> Fraction:
        """Sum of the squares of the entries."""
        return sum(_dot(row, row) for row in self.rows) * self.unit**2


def _root(x: Fraction) -> Fraction:  # square root from above, relatively within 2^-150
    shift = max(0, 160 + (x.denominator.bit_length() - x.numerator.bit_length()) // 2)
    return Fraction(math.isqrt((x.numerator << 2 * shift) // x.denominator) + 1, 1 << shift) if x > 0 else ZERO


def _power(x: Fraction, p: Fraction, *, above: bool = True) -> Fraction:  # bound x^p, p > 0
    if x <= 0:
        return ZERO
    log = DECIMAL.subtract(Decimal(x.numerator).ln(DECIMAL), Decimal(x.denominator).ln(DECIMAL))
    exponent = DECIMAL.multiply(DECIMAL.divide(Decimal(p.numerator), Decimal(p.denominator)), log)
    _require(abs(exponent) < 10**5 and p < 10**9, "a power is too large or too small")
    return Fraction(exponent.exp(DECIMAL)) * (1 + PADDING if above else 1 - PADDING)


def _length(sizes: list[Fraction], p: Fraction | None) -> Fraction:
    """l_p norm of nonnegative numbers from above; None stands for p infinite."""
    top = max(sizes)
    if p is None or top == 0:
        return top
    return top * _power(sum((_power(x / top, p) for x in sizes), ZERO), 1 / p)


def _spectrum(M: Matrix, vectors: Any) -> tuple[list[Fraction], Fraction, Fraction, Fraction]:
    """Diagonal and sum of the other entries of C = U^T M V, bounds on |U^-1| |V^-1| and |U| |V|."""
    bases = [Matrix.read(part, size, size) for part, size in zip(vectors, M.shape, strict=True)]
    C = (bases[0].T @ M @ bases[1]).sizes()
    diagonal = sorted((C[k][k] for k in range(min(M.shape))), reverse=True)
    grams = [enumerate((basis.T @ basis).sizes()) for basis in bases]  # near the identity
    a, b = (max(sum(row) - row[k] + abs(row[k] - 1) for k, row in gram) for gram in grams)
    _require(max(a, b) < 1, "singular vectors are not nearly orthonormal")
    rest = sum(map(sum, C), ZERO) - sum(diagonal, ZERO)
    return diagonal, rest, _root(1 / ((1 - a) * (1 - b))), _root((1 + a) * (1 + b))


def _norm_above(norm: list[Any], M: Matrix, vectors: Any, *, dual: bool = False) -> Fraction:
    name, *numbers = norm
    if name == "frobenius":
        return _root(M.square())
    powers = [None if p == "inf" else _rational(p) for p in numbers]
    _require(all(p is None or p >= 1 for p in powers), "norm: an exponent is below one")
    if dual:  # 1/p + 1/q = 1
        powers = [ONE if p is None else None if p == 1 else p / (p - 1) for p in powers]
    if name == "schatten":
        diagonal, rest, stretch, _ = _spectrum(M, vectors)
        return stretch * (_length(diagonal, powers[0]) + rest)
    sizes = (M.T if name == "columns" else M).sizes()
    if name in ("rows", "columns"):
        return _length([_length(row, powers[0]) for row in sizes], powers[1])
    _require(name == "entrywise", f"norm {name!r} is unknown")
    return _length([x for row in sizes for x in row], powers[0])


class Certificate:
    """Margins delta^T W z, at least one, or zero for ties; ``proven`` is what the witnesses prove of each of CLAIMS."""

    def __init__(self, data: Any, asked: Any, witness: Any, status: str) -> None:
        self.shape, tokens, T = (
            (len(data["tokens"][0][0]), len(data["queries"][0])),
            data["tokens"],
            len(data["tokens"][0]),
        )
        flat = [row for rows in tokens if len(rows) == T for row in rows]
        self.X, n = Matrix.read(flat, len(tokens) * T, self.shape[0]), len(data["queries"])
        self.Z = Matrix.read(data["queries"], n, self.shape[1])
        self.constraints: list[tuple[int, int, bool, list[int]]] = []  # query, token, whether it is tied, delta
        for i, chosen, seen, place in zip(range(n), data["selected"], data["mask"], data["sequence"], strict=True):
            fits = all(type(a) is int for a in (*chosen, *seen, place)) and len(chosen) == len(seen) == T
            fits = fits and 1 in chosen and all(0 <= a <= b <= 1 for a, b in zip(chosen, seen, strict=True))
            _require(fits and 0 <= place < len(tokens), "selected, mask or sequence does not fit")
            rows, best = self.X.rows[place * T : (place + 1) * T], chosen.index(1)
            for t in (t for t in range(T) if seen[t] and t != best):
                self.constraints.append((i, t, chosen[t] == 1, list(map(int.__sub__, rows[best], rows[t]))))
        self.ties, self.witness = [tie for _, _, tie, _ in self.constraints], witness
        self.norm, self.loss, self.plain = asked["norm"], asked["loss"], asked["prior"] is None
        self.C = None if asked["C"] is None else _rational(asked["C"])
        _require(self.loss in ("hinge", "squared_hinge") and (self.C is None or self.C > 0), "loss or C is not known")
        self.squared, (d, dz) = self.C is not None and self.norm == ["frobenius"], self.shape
        self.prior = Matrix([[0] * dz] * d) if self.plain else Matrix.read(asked["prior"], d, dz)
        self.proven: dict[str, Any] = dict.fromkeys(CLAIMS)
        if status == "INFEASIBLE":
            values, unit = self.multipliers(witness["farkas"], None)
            shown = self.C is None and any(a and not tie for a, tie in zip(values, self.ties, strict=True))
            _require(shown and not self.adjoint(values, unit).square(), "the multipliers show no contradiction")
            return
        low, M = self._below()
        self.proven |= {"lower": low}
        if witness["W"] is not None:
            high, W = self._above()
            self.proven |= {"upper": high, **self._near(low, high, W, M)}

    def margins(self, W: Matrix) -> list[Fraction]:
        """Margin of every constraint."""
        images, unit = (self.Z @ W.T).rows, self.X.unit * self.Z.unit * W.unit
        return [_dot(delta, images[i]) * unit for i, _, _, delta in self.constraints]

    def multipliers(self, value: Any, top: Fraction | None) -> tuple[list[int], Fraction]:
        """Read integers and their unit: from zero to `top`, of either sign on ties, zero where nothing is asked."""
        dual = Matrix.read(value, len(self.Z.rows), len(value[0]))
        values = [dual.rows[i][t] for i, t, _, _ in self.constraints]
        fits = sum(a != 0 for row in dual.rows for a in row) == sum(a != 0 for a in values)
        for a, (_, _, tie, _) in zip(values, self.constraints, strict=True):
            fits = fits and (tie or (a >= 0 and (top is None or a * dual.unit <= top)))
        _require(fits, "a multiplier is negative, larger than C, or of a token of which nothing is asked")
        return values, dual.unit

    def adjoint(self, values: list[int], unit: Fraction) -> Matrix:
        """Sum of the multipliers times delta z^T."""
        pulls = [[0] * self.shape[0] for _ in self.Z.rows]
        for a, (i, _, _, delta) in zip(values, self.constraints, strict=True):
            pulls[i] = [x + a * y for x, y in zip(pulls[i], delta, strict=True)] if a else pulls[i]
        return Matrix(pulls, unit * self.X.unit).T @ self.Z

    def _below(self) -> tuple[Fraction, Matrix]:
        """Bound of the multipliers, and A^T of them, scaled to where they are admissible."""
        hinge = self.loss == "hinge"
        values, unit = self.multipliers(self.witness["dual"], self.C if hinge else None)
        M, demands = self.adjoint(values, unit), zip(self.ties, self.margins(self.prior), strict=True)
        gain = unit * sum((a * ((not tie) - m) for a, (tie, m) in zip(values, demands, strict=True)), ZERO)
        inner = [a for a, tie in zip(values, self.ties, strict=True) if not tie]
        curvature = ZERO if self.C is None or hinge else _dot(inner, inner) * unit**2 / (4 * self.C)
        if self.squared:
            return max(gain - M.square() / 2 - curvature, ZERO), M
        size = _norm_above(self.norm, M, self.witness["vectors"]["adjoint"], dual=True)
        M.unit *= (scale := ZERO if gain <= 0 else 1 / size if self.C is None else 1 / max(size, ONE))
        return max(scale * gain - scale**2 * curvature, ZERO), M

    def _above(self) -> tuple[Fraction, Matrix]:  # objective at W, and W, scaled to margin one where the margin is hard
        W, price = Matrix.read(self.witness["W"], *self.shape), ZERO
        margins = self.margins(W)
        _require(
            not any(m for m, tie in zip(margins, self.ties, strict=True) if tie), "tied tokens do not score the same"
        )
        inner = [m for m, tie in zip(margins, self.ties, strict=True) if not tie]
        if self.C is not None:
            price = self.C * sum(((1 - m) ** (1 if self.loss == "hinge" else 2) for m in inner if m < 1), ZERO)
        elif inner:
            _require(min(inner) > 0, "a margin of W is not positive")
            W.unit *= 1 / min(inner) if self.plain else max(ONE, 1 / min(inner))
        rows = zip(W.rows, self.prior.rows, strict=True)
        V = Matrix.of([[a * W.unit - b * self.prior.unit for a, b in zip(x, y, strict=True)] for x, y in rows])
        return price + (V.square() / 2 if self.squared else _norm_above(self.norm, V, self.witness["vectors"]["V"])), W

    def _near(self, low: Fraction, high: Fraction, W: Matrix, M: Matrix) -> dict[str, Any]:
        """Frobenius distance of W from the optimum, ranks; what nuclear singular values off the dual face sum to."""
        (name, *p), places, vectors = self.norm, range(min(self.shape)), self.witness["vectors"]
        out = dict[str, Any](rank_at_least=int(self.plain and self.C is None and low > 0), rank_at_most=len(places))
        exponent = Fraction(2) if name == "frobenius" else ZERO
        if name in ("entrywise", "schatten") and p != ["inf"]:
            exponent = _rational(p[0])
        if self.squared:  # strong convexity, in this case and the next
            out["distance"] = _root(2 * (high - low))
        elif self.C is None and 1 < exponent <= 2:
            out["distance"] = _root((high**2 - low**2) / (exponent - 1))
        elif self.C is None and exponent > 2 and high > 0:  # Clarkson's inequality at the midpoint
            entries = math.prod(self.shape) if name == "entrywise" else len(places)
            wide = _power(Fraction(entries), Fraction(1, 2) - 1 / exponent)
            out["distance"] = (
                2 * high * wide * _power((1 - _power(low / high, exponent, above=False)) / 2, 1 / exponent)
            )
        if "distance" in out:
            diagonal, rest, _, longest = _spectrum(W, vectors["W"])
            out["rank_at_least"] = sum((diagonal[k] - rest) / longest > out["distance"] for k in places)  # Weyl
        if self.plain and exponent and name != "entrywise":
            asking = {tuple(self.Z.rows[i]) for i, _, _, _ in self.constraints}
            out["rank_at_most"] = min(len(places), len(asking))  # every optimum lies in the span of the queries
        if self.plain and self.C is None and self.norm == ["schatten", "1"]:
            diagonal, rest, stretch, _ = _spectrum(M, vectors["adjoint"])
            sizes = [stretch * (diagonal[k] + rest) for k in places]
            out["face"] = face = sum(size > 1 - FLAT for size in sizes)
            # <M, W> >= low at a nuclear norm <= high leaves this much beside the singular values of M that are one.
            out["tail"] = (high - low) / (1 - sizes[face]) if face < len(sizes) else ZERO
        return out


def digest(content: dict[str, Any]) -> str:
    """Hash everything but the digest itself, in one canonical spelling."""
    rest = json.dumps(content | {"digest": None}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(rest.encode()).hexdigest()


def check(content: Any) -> dict[str, Any]:
    """Return the status and the numbers that a certificate, as read from JSON, claims; Rejected when not proven."""
    try:
        _require(content["format"] == FORMAT and content["digest"] == digest(content), f"this is no intact {FORMAT}")
        data, asked, witness, claim = (content[part] for part in ("data", "problem", "witness", "claim"))
        proven = Certificate(data, asked, witness, claim["status"]).proven
        known = set(claim) <= {"status", "tolerance", *CLAIMS} and claim["status"] in ("OPTIMAL", "INFEASIBLE", *OPEN)
        _require(known, "something unknown is claimed")
        said = {name: _rational(claim[name]) for name in CLAIMS if name in claim}
        for name, value in said.items():
            bound, sign = proven[name], CLAIMS[name]
            _require(bound is not None and sign * value <= sign * bound, f"{name} is not proven")
        close = (
            claim["status"] != "OPTIMAL"
            or said["upper"] - said["lower"] <= _rational(claim["tolerance"]) * said["upper"]
        )
        _require(close, "the bounds of an optimum are further apart than the tolerance")
        return {"status": claim["status"], **said}
    except MALFORMED as error:
        raise Rejected(f"the certificate is malformed: {type(error).__name__}, {error}") from error


def main(arguments: list[str]) -> int:
    """Check the one file named and print what it proves."""
    try:
        with open(arguments[0], encoding="utf-8") as stream:
            for name, value in check(json.load(stream)).items():
                print(f"{name:14} {value if name == 'status' else float(value):.17}")
    except (Rejected, IndexError, OSError, ValueError, ArithmeticError, RecursionError) as error:
        print(f"{'rejected' if isinstance(error, Rejected) else 'no certificate could be read'}: {error}")
        return 1 if isinstance(error, Rejected) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
