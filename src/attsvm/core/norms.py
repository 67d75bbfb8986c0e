r"""Matrix norms and their duals.

A lower bound on the smallest norm needs the dual norm of A^T lam (SPEC of the Att-SVM dual, arXiv 2308.16898 section
5.3 and appendix D for general norms): for lam >= 0 on the inequalities, ``sum(lam) / dual(A^T lam) <= ||W||`` for
every feasible W. The entrywise l_p norm has the dual l_q, 1/p + 1/q = 1; the spectral norm the nuclear norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

Measure = Callable[[np.ndarray], float]
# A sum of squares between this and its inverse has lost nothing to underflow that counts, and overflowed nowhere.
SAFE_SQUARE = 1e-200


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
    power : float or None
        The exponent p of an entrywise norm; infinite for the largest entry, None for the others.
    """

    name: str
    value: Measure = field(compare=False)
    dual: Measure = field(compare=False)
    invariant: bool
    power: float | None = None


def frobenius(M: np.ndarray) -> float:
    """Square root of the sum of squares, safe against overflow and underflow of the squares."""
    square = float(np.vdot(M, M))
    if SAFE_SQUARE < square < 1.0 / SAFE_SQUARE:
        return math.sqrt(square)
    top = np.abs(M).max(initial=0.0)
    return float(top * np.linalg.norm(M / top)) if top > 0 else 0.0


def nuclear(M: np.ndarray) -> float:
    """Sum of the singular values."""
    return float(np.linalg.svd(M, compute_uv=False).sum())


def spectral(M: np.ndarray) -> float:
    """Largest singular value."""
    return float(np.linalg.svd(M, compute_uv=False)[0])


def entrywise(M: np.ndarray, power: float) -> float:
    """Norm l_p of the entries, p = ``power`` in [1, inf], safe against overflow and underflow of the powers."""
    size = np.abs(M)
    top = float(size.max(initial=0.0))
    if top == 0.0 or math.isinf(power):
        return top
    return top * float(((size / top) ** power).sum()) ** (1.0 / power)


def distance_bound(norm: Norm, gap: float) -> tuple[float, float]:
    r"""How far from the solution W* a feasible W may lie whose norm exceeds the smallest by a relative gap.

    For 1 < p <= 2, :math:`\tfrac{1}{2}\|\cdot\|_p^2` is strongly convex with constant p - 1 (Ball, Carlen and Lieb,
    Invent. Math. 115, 1994), so :math:`\|W - W^*\|_p \le \|W\|_p \sqrt{2\,\mathrm{gap}/(p-1)}`. For p > 2, Clarkson's
    inequality at the midpoint, which is feasible, gives :math:`2\|W\|_p (p\,\mathrm{gap}/2)^{1/p}`. The other norms are
    not strictly convex and may have several solutions: for them the Frobenius expression is an estimate.

    Returns
    -------
    distance : float
        Relative to the norm of W, measured in l_p.
    p : float
        That p; 2 for norms that are not entrywise.
    """
    p = norm.power
    if p is None or p == 1 or math.isinf(p):
        return math.sqrt(2.0 * gap), 2.0
    if p < 2:
        return math.sqrt(2.0 * gap / (p - 1.0)), p
    return 2.0 * (0.5 * p * gap) ** (1.0 / p), p


FROBENIUS = Norm("frobenius", frobenius, frobenius, invariant=True)
NUCLEAR = Norm("nuclear", nuclear, spectral, invariant=True)
SPECTRAL = Norm("spectral", spectral, nuclear, invariant=True)


def entrywise_norm(p: float) -> Norm:
    """Return the entrywise l_p norm; p = 2 is the Frobenius norm, p = inf the largest entry."""
    if p == 2:
        return FROBENIUS
    q = math.inf if p == 1 else 1.0 if math.isinf(p) else p / (p - 1)
    name = "max" if math.isinf(p) else f"l_{p:.17g}"
    return Norm(name, partial(entrywise, power=p), partial(entrywise, power=q), invariant=False, power=p)


MAX = entrywise_norm(math.inf)
NAMED = {known.name: known for known in (FROBENIUS, NUCLEAR, SPECTRAL, MAX)}


def get_norm(norm: str | float) -> Norm:
    """Look a norm up by name, or by the exponent of an entrywise norm.

    Parameters
    ----------
    norm : {"frobenius", "nuclear", "spectral", "max"} or float
        A number p >= 1 (or its decimal text) is the entrywise l_p norm.

    Raises
    ------
    ValueError
        If no such norm is known.
    """
    if isinstance(norm, str) and norm in NAMED:
        return NAMED[norm]
    try:
        p = float(norm)
    except (TypeError, ValueError):
        p = math.nan
    if not p >= 1 or isinstance(norm, bool):
        raise ValueError(f"norm must be one of {', '.join(map(repr, NAMED))}, or a number p >= 1; got {norm!r}.")
    return entrywise_norm(p)
