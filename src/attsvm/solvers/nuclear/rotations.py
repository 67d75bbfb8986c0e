r"""Singular values of small matrices: compiled one-sided Jacobi rotations that begin where the last ones ended.

The rows of a matrix are turned in pairs until they are orthogonal (Hestenes, J. SIAM 6, 1958); their lengths are the
singular values, small ones to high relative accuracy (Demmel and Veselic, SIAM J. Matrix Anal. Appl. 13, 1992). From
the basis of a nearby matrix, as in a sequence of iterates, one sweep or two are enough. At these sizes LAPACK takes
several times as long, and inside threads its calls wait for each other.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.kernels import FAST, kernel

# Up to this many rows rotations are faster than LAPACK's eigenvectors, when they begin from a nearby basis.
FEW = 24
SWEEPS = 30
# Rows whose squared length is this part of the largest are rounding noise.
NOISE = 1e-31
# Rows are orthogonal to rounding: an inner product of p terms is known to sqrt(p) eps or so.
EXACT = 1e-15


@kernel(fastmath=FAST)
def turned(basis, matrix):
    """Rows of ``basis`` times the shorter side of ``matrix``: (s, q) with s = min(p, r), q = max(p, r)."""
    p, r = matrix.shape
    if p < r:
        rows = np.zeros((p, r))
        for i in range(p):
            for a in range(p):
                factor = basis[i, a]
                for c in range(r):
                    rows[i, c] += factor * matrix[a, c]
        return rows
    rows = np.empty((r, p))
    for i in range(r):
        for a in range(p):
            value = 0.0
            for c in range(r):
                value += basis[i, c] * matrix[a, c]
            rows[i, a] = value
    return rows


@kernel(fastmath=FAST)
def rotate(rows, basis, tol):
    """Turn pairs of ``rows`` (s, q), and of ``basis`` (s, s) with them, until their cosines are below ``tol``.

    Returns the lengths of the rows, (s,), in no order.
    """
    s, q = rows.shape
    squares = np.empty(s)
    for _ in range(SWEEPS):
        largest = 0.0
        for i in range(s):
            value = 0.0
            for a in range(q):
                value += rows[i, a] * rows[i, a]
            squares[i] = value
            largest = max(largest, value)
        settled = True
        for i in range(s - 1):
            for j in range(i + 1, s):
                if min(squares[i], squares[j]) <= NOISE * largest:
                    continue
                inner = 0.0
                for a in range(q):
                    inner += rows[i, a] * rows[j, a]
                if inner * inner <= tol * tol * squares[i] * squares[j]:
                    continue
                settled = False
                ratio = (squares[j] - squares[i]) / (2.0 * inner)
                tangent = 1.0 / (abs(ratio) + np.sqrt(1.0 + ratio * ratio))
                if ratio < 0.0:
                    tangent = -tangent
                cosine = 1.0 / np.sqrt(1.0 + tangent * tangent)
                sine = cosine * tangent
                for a in range(q):
                    x, y = rows[i, a], rows[j, a]
                    rows[i, a] = cosine * x - sine * y
                    rows[j, a] = sine * x + cosine * y
                for a in range(s):
                    x, y = basis[i, a], basis[j, a]
                    basis[i, a] = cosine * x - sine * y
                    basis[j, a] = sine * x + cosine * y
                squares[i] -= tangent * inner
                squares[j] += tangent * inner
        if settled:
            break
    for i in range(s):
        squares[i] = np.sqrt(max(squares[i], 0.0))
    return squares
