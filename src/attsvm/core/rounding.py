r"""Rigorous bounds on the rounding of the sums that a claim rests on.

The error of a sum of k products, in any order of summation, is at most :math:`\gamma_k = ku/(1-ku)` times the sum of
the absolute products, :math:`u = 2^{-53}` (Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1).
Norms are bounded from above, never estimated. Entrywise norms are bounded by such sums, norms of singular values by
factors that need not be exact. For any K and Q, :math:`\|M\|_* \le \tfrac12(\|K\|_F^2 + \|Q\|_F^2) + \sqrt r\,\|M -
KQ^\top\|_F`. For any U, V, s, a gauge g of the singular values is at most :math:`\|U\|_2\,g(s)\,\|V\|_2` plus the norm
of :math:`M - U\mathrm{diag}(s)V^\top` (Bhatia, *Matrix Analysis*, proposition IV.2.4). These bounds do not rely on
LAPACK.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from attsvm.core.error_free import UNIT, Pair, error_of, gamma, sum_pairs, two_product
from attsvm.core.norms import FROBENIUS, Norm, frobenius
from attsvm.core.norms.exponents import conjugate

SUBNORMAL = 2.0**-1074
SAFE_SQUARE = 1e-100
UNDERFLOW = 1e-200
# Largest number of additions per term in numpy's pairwise sum of a contiguous array, in blocks of 128.
PAIRWISE = 200
# Rounding of a root, a division or a power: library functions are accurate to a few units in the last place.
FUNCTION_ROUNDING = 4 * UNIT
# Number of products up to which the orthogonality of singular vectors is bounded in twice the precision.
SHARP_PRODUCTS = 1_000_000
# Squares of very large numbers overflow; the bound is then infinite and claims nothing.
LENIENT: dict[str, Any] = {"over": "ignore", "divide": "ignore", "invalid": "ignore", "under": "ignore"}


def row_lengths(rows: np.ndarray) -> np.ndarray:
    """Lengths along the last axis; if a row's squares leave the range of floats, it is scaled by its largest entry.

    The relative error is d + 8 roundings; subnormal entries limit it further.
    """
    with np.errstate(over="ignore"):
        lengths = np.sqrt(np.einsum("...p,...p->...", rows, rows))
    odd = (lengths < 1e-150) | ~np.isfinite(lengths)  # below the root of the smallest normal float, squares lose digits
    if odd.any():
        top = np.abs(rows[odd]).max(axis=-1, initial=0.0)
        units = rows[odd] / np.where(top > 0, top, 1.0)[:, None]
        lengths[odd] = top * np.linalg.norm(units, axis=-1)
    return lengths


def squares_of(rows: np.ndarray) -> np.ndarray:
    """Sum squares along the last axis, (..., p) -> (...)."""
    return np.vecdot(rows, rows)


def lengths_above(delta_squares: np.ndarray, query_squares: np.ndarray, roundings: int) -> np.ndarray | None:
    """Bound |delta||z| from above, (n, T); None if squares leave the range of relative accuracy.

    Parameters
    ----------
    delta_squares : ndarray, shape (n, T)
        Overwritten.
    query_squares : ndarray, shape (n,)
    roundings : int
        Relative error of the squares, in units of rounding.
    """
    for squares in (delta_squares, query_squares):
        if not SAFE_SQUARE < squares.max() < 1.0 / SAFE_SQUARE:
            return None
    # Underflow reduces a square by less than UNDERFLOW.
    delta_squares += UNDERFLOW
    delta_squares *= (query_squares * (1.0 + gamma(roundings + 8)) + UNDERFLOW)[:, None]
    return np.sqrt(delta_squares, out=delta_squares)


def sum_below(values: np.ndarray) -> float:
    """Bound the sum of a contiguous nonnegative array (k,) from below."""
    return float(values.sum()) * (1.0 - gamma(min(len(values), PAIRWISE) + 1))


@lru_cache(maxsize=256)
def growth(norm: Norm, shape: tuple[int, int], dual: bool = False) -> float:
    """Bound the norm (or the dual norm) of every matrix of Frobenius norm one."""
    bound = norm.growth(shape, dual)
    return bound if bound == 1.0 else bound * (1 + gamma(math.prod(shape)) + 1e3 * UNIT)


def norm_above(norm: Norm, M: np.ndarray, value: float, *, dual: bool = False, sharp: bool = False) -> float:
    """Bound the norm (or dual norm) of a float matrix from above; infinite if that fails.

    Parameters
    ----------
    M : ndarray, shape (d, dz)
    value : float
        The computed norm (or dual norm) of M.
    sharp : bool
        Sum exactly where this narrows the bound, at microseconds per entry.
    """
    entries = M.size
    if not value < math.inf:
        return math.inf
    if value == 0.0 and not M.any():
        return 0.0
    image = norm.image(M, dual) if sharp else None
    if image is not None:
        inner, pair, error = image
        measure = inner.dual if dual else inner.value
        above = norm_above(inner, pair.high, measure(pair.high), dual=dual, sharp=True)
        return (above + growth(inner, M.shape, dual) * (frobenius(pair.low) + error)) * (1.0 + FUNCTION_ROUNDING)
    profile = norm.profile
    if profile is None or profile is norm:
        if sharp and profile is norm:
            return _frobenius_sharp(M)
        underflow = SUBNORMAL * entries if profile is norm else 0.0  # of squares
        return value * (1.0 + gamma(norm.roundings(M.shape, dual))) + underflow
    p = profile.power if not dual or profile.power is None else conjugate(profile.power)
    return _nuclear_above(M, sharp=sharp) if p == 1 else _invariant_above(norm, M, dual, sharp=sharp)


def _frobenius_sharp(M: np.ndarray) -> float:
    top = math.ldexp(1.0, math.frexp(float(np.abs(M).max(initial=0.0)))[1] - 1)
    if not 0.0 < top < math.inf:
        return top
    return top * math.sqrt(math.fsum(((M / top) ** 2).ravel().tolist())) * (1.0 + FUNCTION_ROUNDING)


def _frobenius_above(M: np.ndarray) -> float:
    return FROBENIUS.value(M) * (1.0 + gamma(0.5 * M.size + 8))


def _nuclear_above(M: np.ndarray, *, sharp: bool) -> float:
    factors = _singular_vectors(M)
    if factors is None:
        return math.inf
    U, s, Vt = factors
    root = np.sqrt(s)
    K, Q = U * root, root[:, None] * Vt
    squares = _frobenius_sharp(K) ** 2 + _frobenius_sharp(Q) ** 2 if sharp else _squares_above(K) + _squares_above(Q)
    return (0.5 * squares + math.sqrt(len(s)) * _miss_above(M, K, Q, sharp=sharp)) * (1 + FUNCTION_ROUNDING)


def _invariant_above(norm: Norm, M: np.ndarray, dual: bool, *, sharp: bool) -> float:
    """Bound a norm of the singular values: the norm of U diag(s) V^T is at most |U||V| times the profile of s."""
    factors, profile = _singular_vectors(M), norm.profile
    if factors is None or profile is None:
        return math.inf
    U, s, Vt = factors
    stretch = _orthonormal_above(U.T, sharp=sharp) * _orthonormal_above(Vt, sharp=sharp)
    size = (profile.dual if dual else profile.value)(s[None]) * (1 + gamma(profile.roundings((1, len(s)), dual)))
    # Rounding U diag(s) changes the product by one unit of its terms.
    miss = _miss_above(M, U * s, Vt, sharp=sharp) + UNIT * _frobenius_above(U * s) * _frobenius_above(Vt)
    return (size * stretch + growth(norm, M.shape, dual) * miss) * (1 + FUNCTION_ROUNDING)


def _singular_vectors(M: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Approximate U (d, r), s (r,) and V^T (r, dz); None when LAPACK fails."""
    if not np.isfinite(M).all():
        return None
    try:
        U, s, Vt = np.linalg.svd(M, full_matrices=False)
    except np.linalg.LinAlgError:
        return None
    return U, s, Vt


def _squares_above(M: np.ndarray) -> float:
    return _frobenius_above(M) ** 2


def _miss_above(M: np.ndarray, K: np.ndarray, Q: np.ndarray, *, sharp: bool) -> float:
    """Bound ||M - K Q||_F for factors (d, r) and (r, dz)."""
    r = K.shape[1]
    size = _frobenius_above(K) * _frobenius_above(Q)
    if sharp and K.size * Q.shape[1] <= SHARP_PRODUCTS:
        total = sum_pairs(Pair(*two_product(K[:, :, None], Q[None, :, :])), 1)
        difference = (M - total.high) - total.low
        return _frobenius_above(difference) * (1 + FUNCTION_ROUNDING) + error_of(r, 4) * size
    # An entry of the product is exact to r roundings of the sum of |K||Q|, whose Frobenius norm is at most |K|_F |Q|_F.
    return _frobenius_above(M - K @ Q) * (1 + FUNCTION_ROUNDING) + gamma(r + 2) * size * (1 + FUNCTION_ROUNDING)


def _orthonormal_above(rows: np.ndarray, *, sharp: bool) -> float:
    """Bound the spectral norm of a matrix (r, k) with nearly orthonormal rows: ||Q||^2 <= 1 + ||Q Q^T - I||_F."""
    r, k = rows.shape
    if sharp and r * r * k <= SHARP_PRODUCTS:
        high, low = two_product(rows[:, None, :], rows[None, :, :])
        total = sum_pairs(Pair(high, low), 2)
        gram = (total.high - np.eye(r)) + total.low
        rounding = error_of(k, 4) * _frobenius_above(rows) ** 2 + FUNCTION_ROUNDING * _frobenius_above(gram)
    else:
        gram = rows @ rows.T
        gram[np.diag_indices(r)] -= 1.0
        rounding = gamma(k + 2) * _frobenius_above(rows) ** 2
    return math.sqrt(1.0 + _frobenius_above(gram) + rounding) * (1 + FUNCTION_ROUNDING)
