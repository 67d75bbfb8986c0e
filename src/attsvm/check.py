r"""Check a certificate of attsvm: exact arithmetic, the standard library, and nothing of the solvers.

`attsvm check FILE` or `python check.py FILE` exits with 0 when all that is claimed is proven, 1 when it is not, 2 when
the file cannot be read. Only roots and powers are rounded, outward. docs/certificates.md has format and proofs.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from decimal import Context, Decimal
from fractions import Fraction
from operator import mul
from typing import Any

FORMAT = "attsvm certificate 1"
STATUSES = ("OPTIMAL", "INFEASIBLE", "UNDECIDED", "MAX_ITERATIONS", "TIME_LIMIT", "MEMORY_LIMIT", "CANCELLED")
# What may be claimed, and whether a larger (1) or a smaller (-1) number claims more.
CLAIMS = {"lower": 1, "upper": -1, "distance": -1, "rank_at_least": 1, "rank_at_most": -1, "face": -1, "tail": -1}
NUMBER = re.compile(r"-?\d+(/[1-9]\d*)?", re.ASCII)
FORMAT_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError)
DECIMAL, PADDING = Context(prec=60, Emin=-(10**9), Emax=10**9), Fraction(1, 10**40)  # ln and exp round correctly
NUMBERS = {"entrywise": 1, "rows": 2, "columns": 2, "schatten": 1, "ky-fan": 1}  # parameters of a norm
ZERO, ONE, FLAT = Fraction(0), Fraction(1), Fraction(1, 10**4)  # singular values of A^T dual this near to one are one


class Rejected(Exception):
    """Something claimed is not proven; the message says what."""


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise Rejected(reason)


def _rational(text: Any) -> Fraction:
    _require(isinstance(text, str) and NUMBER.fullmatch(text) is not None, f"{str(text)[:40]!r} is no rational number")
    return Fraction(text)


class _Matrix:  # rational: integers times one fraction
    def __init__(self, rows: list[list[int]], unit: Fraction = ONE) -> None:
        self.rows, self.unit, self.shape = rows, unit, (len(rows), len(rows[0]))

    @classmethod
    def of(cls, table: list[list[Fraction]]) -> _Matrix:  # fractions, brought to one denominator
        common = math.lcm(*(x.denominator for row in table for x in row))
        return cls([[x.numerator * (common // x.denominator) for x in row] for row in table], Fraction(1, common))

    @classmethod
    def read(cls, value: Any, height: int, width: int) -> _Matrix:  # nested lists of "p/q"
        fits = isinstance(value, list) and len(value) == height > 0 and all(len(row) == width > 0 for row in value)
        _require(fits, f"an array is no list of {height} rows of {width} numbers")
        return cls.of([[_rational(x) for x in row] for row in value])

    @property
    def T(self) -> _Matrix:  # the transpose
        return _Matrix([list(column) for column in zip(*self.rows, strict=True)], self.unit)

    def __matmul__(self, other: _Matrix) -> _Matrix:
        columns = other.T.rows
        return _Matrix(
            [[sum(map(mul, row, column)) for column in columns] for row in self.rows], self.unit * other.unit
        )

    def __sub__(self, other: _Matrix) -> _Matrix:
        pairs = (zip(a, b, strict=True) for a, b in zip(self.rows, other.rows, strict=True))
        return _Matrix.of([[a * self.unit - b * other.unit for a, b in pair] for pair in pairs])

    def inverse(
        self,
    ) -> _Matrix:  # Bareiss' elimination: its quotients are whole, a pivot of zero is an ArithmeticError
        rows, last = [[*row, *(int(i == k) for k in range(len(row)))] for i, row in enumerate(self.rows)], 1
        for k, line in enumerate(rows):
            for row in rows[:k] + rows[k + 1 :]:
                row[:] = [(line[k] * a - row[k] * b) // last for a, b in zip(row, line, strict=True)]
            last = line[k]
        return _Matrix([row[len(rows) :] for row in rows], 1 / (last * self.unit))

    def sizes(self) -> list[list[Fraction]]:  # absolute values of the entries
        return [[abs(a * self.unit) for a in row] for row in self.rows]

    def square(self) -> Fraction:  # sum of the squares of the entries
        return sum(a * a for row in self.rows for a in row) * self.unit**2


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


def _length(sizes: list[Fraction], p: Fraction | None) -> Fraction:  # l_p from above; None stands for p infinite
    top = max(sizes)
    return top if p is None or top == 0 else top * _power(sum((_power(x / top, p) for x in sizes), ZERO), 1 / p)


def _spectrum(M: _Matrix, vectors: Any) -> tuple[list[Fraction], Fraction, Fraction, Fraction]:
    """Diagonal and sum of the other entries of C = U^T M V, bounds on |U^-1| |V^-1| and |U| |V|."""
    bases = [_Matrix.read(part, size, size) for part, size in zip(vectors, M.shape, strict=True)]
    C = (bases[0].T @ M @ bases[1]).sizes()
    diagonal = sorted((C[k][k] for k in range(min(M.shape))), reverse=True)
    grams = [enumerate((basis.T @ basis).sizes()) for basis in bases]  # near the identity
    a, b = (max(sum(row) - row[k] + abs(row[k] - 1) for k, row in gram) for gram in grams)
    _require(max(a, b) < 1, "singular vectors are not nearly orthonormal")
    rest = sum(map(sum, C), ZERO) - sum(diagonal, ZERO)
    return diagonal, rest, _root(1 / ((1 - a) * (1 - b))), _root((1 + a) * (1 + b))


def _base(norm: list[Any], M: _Matrix, *, dual: bool = False) -> tuple[list[Any], _Matrix, Fraction]:
    """Strip weights and roots: the norm, M as that norm sees it, and how much longer than there M is here at most."""
    stretch = ONE
    while (name := norm[0]) in ("left", "right"):  # the norm of L M R is dual to that of L^-T M R^-T
        _, table, norm = norm
        root = _Matrix.read(table, M.shape[name == "right"], M.shape[name == "right"])
        inverse = root.inverse()
        factor = inverse.T if dual else root
        M, stretch = M @ factor if name == "right" else factor @ M, stretch * _root(inverse.square())
    if name == "weighted":
        _, table, norm = norm
        weights = _Matrix.read(table, *M.shape)
        least = min(map(min, weights.rows)) * weights.unit
        _require(least > 0 and norm[0] == "entrywise", "a weight is not positive")
        rows = zip(M.sizes(), weights.sizes(), strict=True)
        M = _Matrix.of([[a / w if dual else a * w for a, w in zip(*pair, strict=True)] for pair in rows])
        stretch /= least
    return norm, M, stretch


def _norm_above(norm: list[Any], M: _Matrix, proof: Any, *, dual: bool = False) -> Fraction:
    """Bound a norm, or its dual; ``proof`` holds singular vectors, and for two norms a split of M and their proofs."""
    (name, *parts), M, _ = _base(norm, M, dual=dual)
    if name == "frobenius":
        return _root(M.square())
    if name in ("sum", "largest"):
        halves = (first := _Matrix.read(proof[0], *M.shape), M - first) if dual else (M, M)
        bounds = [_norm_above(*half, dual=dual) for half in zip(parts, halves, proof[1:], strict=True)]
        return sum(bounds, ZERO) if (name == "sum") != dual else max(bounds)
    _require(len(parts) == NUMBERS.get(name), f"norm {name!r} is unknown")
    powers = [None if p == "inf" else _rational(p) for p in parts]
    _require(all(p is None or p >= 1 for p in powers), "norm: a number is below one")
    conjugate = [ONE if p is None else None if p == 1 else p / (p - 1) for p in powers] if dual else powers
    if name in ("rows", "columns", "entrywise"):
        sizes = (M.T if name == "columns" else M).sizes()
        return _length([_length(row, conjugate[0]) for row in sizes], conjugate[-1])
    diagonal, rest, stretch, _ = _spectrum(M, proof)
    if name == "schatten":
        return stretch * (_length(diagonal, conjugate[0]) + rest)
    k = min(int(parts[0]), len(diagonal))  # "3/2" and "inf" are malformed
    return stretch * (rest + (max(diagonal[0], sum(diagonal, ZERO) / k) if dual else sum(diagonal[:k], ZERO)))


class Certificate:
    """Margins delta^T W z, at least one, or zero for ties; ``proven`` is what the witnesses prove of each of CLAIMS."""

    def __init__(self, data: Any, question: Any, witness: Any, status: str) -> None:
        tokens, T, n = data["tokens"], len(data["tokens"][0]), len(data["queries"])
        self.shape = d, dz = len(tokens[0][0]), len(data["queries"][0])
        self.X = _Matrix.read([row for rows in tokens if len(rows) == T for row in rows], len(tokens) * T, d)
        self.Z = _Matrix.read(data["queries"], n, dz)
        self.constraints: list[tuple[int, int, bool, list[int]]] = []  # query, token, whether it is tied, delta
        for i, picks, mask, place in zip(range(n), data["selected"], data["mask"], data["sequence"], strict=True):
            fits = {*picks, *mask} <= {0, 1} and len(picks) == len(mask) == T and all(map(int.__le__, picks, mask))
            _require(fits and 1 in picks and place in range(len(tokens)), "selected, mask or sequence does not fit")
            rows, best = self.X.rows[place * T : (place + 1) * T], picks.index(1)
            for t in (t for t in range(T) if mask[t] and t != best):
                self.constraints.append((i, t, picks[t] == 1, list(map(int.__sub__, rows[best], rows[t]))))
        self.ties, self.witness = [tie for _, _, tie, _ in self.constraints], witness
        self.norm, self.loss, self.plain = question["norm"], question["loss"], question["prior"] is None
        self.C = None if question["C"] is None else _rational(question["C"])
        _require(self.loss in ("hinge", "squared_hinge") and (self.C is None or self.C > 0), "loss or C is not known")
        self.prior = _Matrix([[0] * dz] * d) if self.plain else _Matrix.read(question["prior"], d, dz)
        self.squared = self.C is not None and _base(self.norm, self.prior)[0] == ["frobenius"]
        self.proven: dict[str, Any] = dict.fromkeys(CLAIMS)
        if status == "INFEASIBLE":
            values, _, M = self._multipliers(witness["farkas"], None)
            is_contradiction = self.C is None and any(a and not tie for a, tie in zip(values, self.ties, strict=True))
            _require(is_contradiction and not M.square(), "the multipliers show no contradiction")
            return
        self.proven["lower"], M = self._below()
        if witness["W"] is not None:
            self.proven["upper"], W = self._above()
            self.proven |= self._near(self.proven["lower"], self.proven["upper"], W, M)

    def _margins(self, W: _Matrix) -> list[Fraction]:
        images, unit = (self.Z @ W.T).rows, self.X.unit * self.Z.unit * W.unit
        return [sum(map(mul, delta, images[i])) * unit for i, _, _, delta in self.constraints]

    def _multipliers(self, value: Any, top: Fraction | None) -> tuple[list[int], Fraction, _Matrix]:
        """Read integers, their unit, and sum them times delta z^T: from zero to `top`, of either sign on ties."""
        dual, sums = _Matrix.read(value, len(self.Z.rows), len(value[0])), [[0] * self.shape[0] for _ in self.Z.rows]
        values = [dual.rows[i][t] for i, t, _, _ in self.constraints]
        fits = sum(a != 0 for row in dual.rows for a in row) == sum(a != 0 for a in values)
        for a, (i, _, tie, delta) in zip(values, self.constraints, strict=True):
            fits = fits and (tie or (a >= 0 and (top is None or a * dual.unit <= top)))
            sums[i] = [x + a * y for x, y in zip(sums[i], delta, strict=True)] if a else sums[i]
        _require(fits, "a multiplier is negative, larger than C, or of a token of which nothing is asked")
        return values, dual.unit, _Matrix(sums, dual.unit * self.X.unit).T @ self.Z

    def _below(self) -> tuple[Fraction, _Matrix]:  # bound of the multipliers; A^T of them, scaled until admissible
        top = self.C if self.loss == "hinge" else None
        values, unit, M = self._multipliers(self.witness["dual"], top)
        demands = zip(self.ties, self._margins(self.prior), strict=True)
        gain = unit * sum((a * ((not tie) - m) for a, (tie, m) in zip(values, demands, strict=True)), ZERO)
        squares = sum(a * a for a, tie in zip(values, self.ties, strict=True) if not tie) * unit**2
        size = _norm_above(self.norm, M, self.witness["vectors"]["adjoint"], dual=True)
        if not self.squared:
            M.unit *= (scale := ZERO if gain <= 0 else 1 / size if self.C is None else 1 / max(size, ONE))
            gain, squares, size = scale * gain, scale**2 * squares, ZERO
        return max(gain - size**2 / 2 - (ZERO if self.C is None or top else squares / (4 * self.C)), ZERO), M

    def _above(self) -> tuple[Fraction, _Matrix]:  # objective at W; W, scaled to margin one where the margin is hard
        W, price = _Matrix.read(self.witness["W"], *self.shape), ZERO
        margins = list(zip(self._margins(W), self.ties, strict=True))
        _require(not any(m for m, tie in margins if tie), "tied tokens do not score the same")
        inner = [m for m, tie in margins if not tie]
        if self.C is not None:
            price = self.C * sum(((1 - m) ** (1 if self.loss == "hinge" else 2) for m in inner if m < 1), ZERO)
        elif inner:
            _require(min(inner) > 0, "a margin of W is not positive")
            W.unit *= 1 / min(inner) if self.plain else max(ONE, 1 / min(inner))
        size = _norm_above(self.norm, W - self.prior, self.witness["vectors"]["V"])
        return price + (size**2 / 2 if self.squared else size), W

    def _near(self, low: Fraction, high: Fraction, W: _Matrix, M: _Matrix) -> dict[str, Any]:  # the other CLAIMS
        ((name, *p), _, stretch), places, vectors = _base(self.norm, W), range(min(self.shape)), self.witness["vectors"]
        out = dict[str, Any](rank_at_least=int(self.plain and self.C is None and low > 0), rank_at_most=len(places))
        finite = name in ("entrywise", "schatten") and p != ["inf"]
        exponent = Fraction(2) if name == "frobenius" else _rational(p[0]) if finite else ZERO
        if self.squared:  # strong convexity, in this case and the next
            out["distance"] = stretch * _root(2 * (high - low))
        elif self.C is None and 1 < exponent <= 2:
            out["distance"] = stretch * _root((high**2 - low**2) / (exponent - 1))
        elif self.C is None and exponent > 2 and high > 0:  # Clarkson's inequality at the midpoint
            entries = math.prod(self.shape) if name == "entrywise" else len(places)
            separation = _power((1 - _power(low / high, exponent, above=False)) / 2, 1 / exponent)
            out["distance"] = stretch * 2 * high * _power(Fraction(entries), Fraction(1, 2) - 1 / exponent) * separation
        if "distance" in out:
            diagonal, rest, _, longest = _spectrum(W, vectors["W"])
            out["rank_at_least"] = sum((diagonal[k] - rest) / longest > out["distance"] for k in places)  # Weyl
        if self.plain and exponent and name != "entrywise":  # every optimum lies in the span of the queries
            out["rank_at_most"] = min(len(places), len({tuple(self.Z.rows[i]) for i, *_ in self.constraints}))
        if self.plain and self.C is None and self.norm == ["schatten", "1"]:  # <M, W> >= low, nuclear norm <= high
            diagonal, rest, stretch, _ = _spectrum(M, vectors["adjoint"])
            sizes = [stretch * (diagonal[k] + rest) for k in places]
            out["face"] = face = sum(size > 1 - FLAT for size in sizes)
            out["tail"] = (high - low) / (1 - sizes[face]) if face < len(sizes) else ZERO
        return out


def digest(content: dict[str, Any]) -> str:
    """Hash everything but the digest itself, in one canonical spelling."""
    rest = json.dumps(content | {"digest": None}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(rest.encode()).hexdigest()


def check(content: Any) -> dict[str, Any]:
    """Return the status and the numbers that a certificate, as read from JSON, claims; Rejected when not proven."""
    try:
        has_format = isinstance(content, dict) and content.get("format") == FORMAT
        _require(has_format and content.get("digest") == digest(content), f"this is no intact {FORMAT}")
        data, question, witness, claim = (content[part] for part in ("data", "problem", "witness", "claim"))
        proven = Certificate(data, question, witness, claim["status"]).proven
        _require(set(claim) <= {"status", "tolerance", *CLAIMS} and claim["status"] in STATUSES, "an unknown claim")
        claims = {name: _rational(claim[name]) for name in CLAIMS if name in claim}
        for name, value in claims.items():
            _require(proven[name] is not None and CLAIMS[name] * (proven[name] - value) >= 0, f"{name} is not proven")
        far = claim["status"] == "OPTIMAL" and claims["upper"] * (1 - _rational(claim["tolerance"])) > claims["lower"]
        _require(not far, "the bounds of an optimum are further apart than the tolerance")
        return {"status": claim["status"], **claims}
    except FORMAT_ERRORS as error:
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
