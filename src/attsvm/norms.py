"""Matrix norms and their duals.

A lower bound on the smallest norm needs the dual norm of A^T lam (SPEC of the Att-SVM dual, arXiv 2308.16898 section
5.3 and appendix D for general norms): for lam >= 0 on the inequalities, ``sum(lam) / dual(A^T lam) <= ||W||`` for
every feasible W.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Measure = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Norm:
    """A norm on d x dz matrices.

    Attributes
    ----------
    name : str
    value, dual : callable
        The norm and its dual norm, ndarray (d, dz) -> float.
    invariant : bool
        Whether the norm is unchanged by orthogonal changes of the token and the query basis, so that the problem may be
        solved in the span of the data (Lemma 1 of arXiv 2308.16898).
    """

    name: str
    value: Measure
    dual: Measure
    invariant: bool


def frobenius(M: np.ndarray) -> float:
    """Square root of the sum of squares, safe against overflow and underflow of the squares."""
    top = np.abs(M).max(initial=0.0)
    return float(top * np.linalg.norm(M / top)) if top > 0 else 0.0


def nuclear(M: np.ndarray) -> float:
    """Sum of the singular values."""
    return float(np.linalg.svd(M, compute_uv=False).sum())


def spectral(M: np.ndarray) -> float:
    """Largest singular value."""
    return float(np.linalg.svd(M, compute_uv=False)[0])


FROBENIUS = Norm("frobenius", frobenius, frobenius, invariant=True)
NUCLEAR = Norm("nuclear", nuclear, spectral, invariant=True)


def get_norm(norm: str | float) -> Norm:
    """Look a norm up by name.

    Raises
    ------
    ValueError
        If no such norm is known.
    """
    for known in (FROBENIUS, NUCLEAR):
        if norm == known.name:
            return known
    raise ValueError(f"norm must be 'frobenius' or 'nuclear'; got {norm!r}.")
