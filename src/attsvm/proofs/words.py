"""Numbers, arrays and norms in the format of :mod:`attsvm.check`, and evidence for bounds on a norm.

A number is a string "p/q"; "-0" is negative zero. A norm is a list: its name, then its numbers, tables or other norms.
Examples: ``["rows", "2", "1"]``, ``["weighted", w, ["entrywise", "1"]]``, ``["sum", ["entrywise", "inf"], ["schatten",
"1"]]``. ``["coordinates", A, null, ["frobenius"]]`` is the Frobenius norm of A^(1/2) W.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from attsvm.core.error_free import Pair
from attsvm.core.norms import SPECTRAL, Norm
from attsvm.core.norms.norm import FAMILIES
from attsvm.core.norms.square_root import SquareRoot


def word(x: float) -> str:
    """Write a finite float as a rational number."""
    return str(Fraction(x)) if x or math.copysign(1.0, x) > 0 else "-0"


def read_word(text: str) -> float:
    """Read a rational number, rounded to the nearest float."""
    return -0.0 if text == "-0" else float(Fraction(text))


def table(array: np.ndarray) -> list[list[str]]:
    """Write the floats of a matrix."""
    return [[word(x) for x in row] for row in np.asarray(array, dtype=np.float64).tolist()]


def read_table(rows: list[list[str]]) -> np.ndarray:
    """Read a matrix."""
    return np.array([[read_word(x) for x in row] for row in rows], dtype=np.float64)


def sum_table(pair: Pair) -> list[list[str]]:
    """Write a matrix of pairs, each as the exact sum of its two floats."""
    rows = zip(pair.high.tolist(), pair.low.tolist(), strict=True)
    return [[str(Fraction(a) + Fraction(b)) for a, b in zip(*row, strict=True)] for row in rows]


def norm_words(norm: Norm) -> list[Any]:
    """Name a norm for the checker; raise ValueError if the checker does not know the norm."""
    return _words_of(norm.words())


def norm_proof(norm: Norm, M: np.ndarray, *, dual: bool = False) -> Any:
    """Write the evidence that bounds the norm, or dual norm, of a matrix (d, dz) near M; None if none is needed."""
    return _words_of(norm.evidence(M, dual=dual))


def norm_roots(norm: Norm) -> list[Any]:
    """Write root, inverse and Cholesky factor of every matrix of coordinates, in the order of the norm's words."""
    out: list[Any] = []
    for part in norm.words():
        if isinstance(part, SquareRoot):
            root, inverse, factor = part.evidence
            out.append([sum_table(root), sum_table(inverse), table(factor)])
        elif isinstance(part, Norm):
            out += norm_roots(part)
    return out


def singular_vectors(M: np.ndarray) -> list[list[list[str]]]:
    """Write the rounded singular vectors of M (d, dz) as columns of two matrices (d, d) and (dz, dz)."""
    return _words_of(SPECTRAL.evidence(M))


def _words_of(part: Any) -> Any:
    """Write a norm, its parts or its evidence: numbers as fractions, arrays as tables of fractions."""
    if isinstance(part, Norm):
        return norm_words(part)
    if isinstance(part, SquareRoot):
        return table(part.form)
    if isinstance(part, np.ndarray):
        return table(part)
    if isinstance(part, list):
        return [_words_of(one) for one in part]
    if part is None or isinstance(part, str):
        return part
    return "inf" if math.isinf(part) else str(Fraction(part))


def read_norm(words: list[Any]) -> Norm:
    """Read the output of :func:`norm_words`."""
    return _norm_of(words).canonical


def _norm_of(words: list[Any]) -> Norm:
    word, *parts = words
    family, _ = FAMILIES[word]
    return family.from_words(word, *map(_read_part, parts))


def _read_part(part: Any) -> Any:
    if part is None:
        return None
    if isinstance(part, str):
        return math.inf if part == "inf" else float(Fraction(part))
    return _norm_of(part) if isinstance(part[0], str) else read_table(part)
