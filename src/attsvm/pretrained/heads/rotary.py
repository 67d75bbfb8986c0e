"""Rotary positions of a head, and the vectors they turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Turns:
    """Rotary positions of a head.

    Attributes
    ----------
    pairs : ndarray of int, shape (P, 2)
        Coordinates of the head turned together; the others are left alone.
    tokens : ndarray of complex, shape (b, T, P)
        Unit number by which each token's key is turned, pair by pair.
    queries : ndarray of complex, shape (n, P)
        The same for the queries.
    """

    pairs: np.ndarray
    tokens: np.ndarray
    queries: np.ndarray


def rotate(vectors: np.ndarray, pairs: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Turn pairs of coordinates of vectors (..., dh) by unit numbers (..., P)."""
    out = vectors.copy()
    rotation = (vectors[..., pairs[:, 0]] + 1j * vectors[..., pairs[:, 1]]) * turns
    out[..., pairs[:, 0]], out[..., pairs[:, 1]] = rotation.real, rotation.imag
    return out
