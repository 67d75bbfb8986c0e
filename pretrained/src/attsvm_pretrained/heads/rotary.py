"""Rotary positions of a head, and their rotation of vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Turns:
    """Rotary positions of a head.

    Attributes
    ----------
    pairs : ndarray of int, shape (P, 2)
        Coordinates of the head that are rotated together; the other coordinates do not change.
    tokens : ndarray of complex, shape (b, T, P)
        Unit complex numbers that rotate the pairs of each token's key.
    queries : ndarray of complex, shape (n, P)
        Unit complex numbers that rotate the pairs of each query.
    """

    pairs: np.ndarray
    tokens: np.ndarray
    queries: np.ndarray


def rotate(vectors: np.ndarray, pairs: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Rotate pairs of coordinates of vectors (..., dh) by unit complex numbers (..., P)."""
    out = vectors.copy()
    rotation = (vectors[..., pairs[:, 0]] + 1j * vectors[..., pairs[:, 1]]) * turns
    out[..., pairs[:, 0]], out[..., pairs[:, 1]] = rotation.real, rotation.imag
    return out
