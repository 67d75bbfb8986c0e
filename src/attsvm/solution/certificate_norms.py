"""Norms in certificate files: their words for :mod:`attsvm.check`, and what it needs to bound them.

A norm is a list, its name and then its numbers, tables or other norms: ``["rows", "2", "1"]``, ``["weighted", w,
["entrywise", "1"]]``, ``["left", L, ["frobenius"]]`` for that of L W, ``["sum", ["max"...], ["schatten", "1"]]``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from attsvm.core.norms import (
    NUCLEAR,
    SPECTRAL,
    Entrywise,
    KyFan,
    Largest,
    Mahalanobis,
    Mixed,
    Norm,
    Schatten,
    Sum,
    Weighted,
    get_norm,
)

PAIRS: dict[str, type[Sum] | type[Largest]] = {"sum": Sum, "largest": Largest}


def table(array: np.ndarray) -> list[list[str]]:
    """Write the floats of a matrix as rational numbers."""
    return [[str(Fraction(x)) for x in row] for row in np.asarray(array, dtype=np.float64).tolist()]


def read_table(rows: list[list[str]]) -> np.ndarray:
    """Read a matrix, each number rounded to the nearest float."""
    return np.array([[float(Fraction(x)) for x in row] for row in rows])


def norm_words(norm: Norm) -> list[Any]:
    """Name a norm for the checker.

    Raises
    ------
    ValueError
        If it does not know the norm.
    """
    if norm.name == "frobenius":
        return ["frobenius"]
    if norm in (NUCLEAR, SPECTRAL):
        return ["schatten", "1" if norm == NUCLEAR else "inf"]
    if isinstance(norm, Schatten):
        return ["schatten", _exponent(norm.p)]
    if isinstance(norm, KyFan):
        return ["ky-fan", str(norm.k)]
    if isinstance(norm, Entrywise):
        return ["entrywise", _exponent(norm.p)]
    if isinstance(norm, Weighted):
        return ["weighted", table(norm.weights), ["entrywise", _exponent(norm.p)]]
    if isinstance(norm, Mixed):
        return [norm.axis, _exponent(norm.p), _exponent(norm.q)]
    for word, kind in PAIRS.items():
        if isinstance(norm, kind):
            return [word, norm_words(norm.a), norm_words(norm.b)]
    if isinstance(norm, Mahalanobis):
        words = norm_words(norm.inner)
        for side, root in reversed(list(zip(("left", "right"), norm.roots, strict=True))):
            words = words if root is None else [side, table(root), words]
        return words
    raise ValueError(f"norm is {norm.name!r}; a norm of attsvm.norms was expected of a certificate.")


def read_norm(words: list[Any]) -> Norm:
    """Read what :func:`norm_words` wrote."""
    name, *parts = words
    if name == "frobenius":
        return get_norm(name)
    if name in PAIRS:
        return PAIRS[name](*map(read_norm, parts))
    if name == "weighted":
        return Weighted(read_table(parts[0]), _power(parts[1][1]))
    if name in ("left", "right"):
        left, within = (read_table(parts[0]), parts[1]) if name == "left" else (None, words)
        right, within = (read_table(within[1]), within[2]) if within[0] == "right" else (None, within)
        return Mahalanobis.from_roots(left, right, read_norm(within))
    if name == "ky-fan":
        return KyFan(int(parts[0])).canonical
    powers = [_power(p) for p in parts]
    if name == "schatten":
        return Schatten(*powers).canonical
    return Entrywise(*powers).canonical if name == "entrywise" else Mixed(powers[0], powers[1], name).canonical


def norm_proof(norm: Norm, M: np.ndarray, *, dual: bool = False) -> Any:
    """Write what bounds the norm, or the dual norm, of a matrix (d, dz) near M.

    Singular vectors for norms of singular values; for two norms a split of M, where it is the dual, and what bounds
    both; for other norms nothing.
    """
    if isinstance(norm, (Sum, Largest)):
        first, second = norm.split(M) if dual else (M, M)
        return [
            table(first) if dual else None,
            norm_proof(norm.a, first, dual=dual),
            norm_proof(norm.b, second, dual=dual),
        ]
    if isinstance(norm, Mahalanobis):
        return norm_proof(norm.inner, norm.seen(M, dual=dual), dual=dual)
    return singular_vectors(M) if norm_words(norm)[0] in ("schatten", "ky-fan") else None


def singular_vectors(M: np.ndarray) -> list[list[list[str]]]:
    """Write the singular vectors of M (d, dz), rounded, as two matrices (d, d) and (dz, dz) of columns."""
    U, _, Vt = np.linalg.svd(M)
    return [table(U), table(Vt.T)]


def _exponent(p: float) -> str:
    return "inf" if math.isinf(p) else str(Fraction(p))


def _power(text: str) -> float:
    return math.inf if text == "inf" else float(Fraction(text))
