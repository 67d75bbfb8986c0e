"""Norms in certificate files: their words for :mod:`attsvm.check`, and what it needs to bound them.

A norm is a list, its name and then its numbers, tables or other norms: ``["rows", "2", "1"]``, ``["weighted", w,
["entrywise", "1"]]``, ``["left", L, ["frobenius"]]`` for that of L W, ``["sum", ["max"...], ["schatten", "1"]]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from attsvm.core.norms import (
    FROBENIUS,
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
)


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
    return _words_of(norm.words())


def norm_proof(norm: Norm, M: np.ndarray, *, dual: bool = False) -> Any:
    """Write what bounds the norm, or the dual norm, of a matrix (d, dz) near M; None for nothing."""
    return _words_of(norm.evidence(M, dual=dual))


def singular_vectors(M: np.ndarray) -> list[list[list[str]]]:
    """Write the singular vectors of M (d, dz), rounded, as two matrices (d, d) and (dz, dz) of columns."""
    return _words_of(SPECTRAL.evidence(M))


def _words_of(part: Any) -> Any:
    """Write a norm, what it consists of, or what bounds it: numbers as fractions, arrays as tables of these."""
    if isinstance(part, Norm):
        return norm_words(part)
    if isinstance(part, np.ndarray):
        return table(part)
    if isinstance(part, list):
        return [_words_of(one) for one in part]
    if part is None or isinstance(part, str):
        return part
    return "inf" if math.isinf(part) else str(Fraction(part))


def read_norm(words: list[Any]) -> Norm:
    """Read what :func:`norm_words` wrote."""
    return _norm_of(words).canonical


def _norm_of(words: list[Any]) -> Norm:
    name, *parts = words
    return WORDS[name](*map(_read_part, parts))


def _read_part(part: Any) -> Any:
    if isinstance(part, str):
        return math.inf if part == "inf" else float(Fraction(part))
    return _norm_of(part) if isinstance(part[0], str) else read_table(part)


def _with_left_root(root: np.ndarray, inner: Norm) -> Norm:
    if isinstance(inner, Mahalanobis) and inner.roots[0] is None:
        return Mahalanobis.from_roots(root, inner.roots[1], inner.inner)
    return Mahalanobis.from_roots(root, None, inner.canonical)


WORDS: dict[str, Callable[..., Norm]] = {
    "frobenius": lambda: FROBENIUS,
    "schatten": Schatten,
    "ky-fan": lambda k: KyFan(int(k)),
    "entrywise": Entrywise,
    "weighted": lambda weights, inner: Weighted(weights, inner.p),
    "rows": lambda p, q: Mixed(p, q, "rows"),
    "columns": lambda p, q: Mixed(p, q, "columns"),
    "sum": Sum,
    "largest": Largest,
    "left": _with_left_root,
    "right": lambda root, inner: Mahalanobis.from_roots(None, root, inner.canonical),
}
