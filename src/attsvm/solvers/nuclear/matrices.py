r"""Products, singular vectors and linear systems of small matrices, as loops that numba compiles.

Every kernel here has a NumPy counterpart of a line or two. A method is therefore written once: it is compiled for many
small instances, and the interpreter runs the same lines on BLAS and LAPACK for a large instance. Loops compile in a
fraction of the time of array expressions. For small matrices LAPACK takes several times longer, and its calls wait for
each other inside threads.

Singular values come from rotations. The rows of a matrix are rotated in pairs until they are orthogonal (Hestenes, J.
SIAM 6, 1958). Their lengths are the singular values, small ones to high relative accuracy (Demmel and Veselic, SIAM J.
Matrix Anal. Appl. 13, 1992). Rotations may start from the basis of a nearby matrix, as in a sequence of iterates; one
or two sweeps are then enough.
"""

from __future__ import annotations

import numpy as np

from attsvm.platform.kernels import FAST, kernel

# Largest number of sweeps over all pairs of rows.
SWEEPS = 30
# Squared length of a row, over the largest, below which it is rounding.
NOISE = 1e-31
# Cosine up to which rows count as orthogonal: an inner product of p terms has an error of about sqrt(p) eps.
ORTHOGONAL = 1e-15
# Pivot, over the largest entry, below which a system is singular to rounding.
SINGULAR = 1e-13


def _add_products(out, rows, vectors, factor):
    out += factor * (rows @ vectors.T)


def _by_svd(matrix):
    lengths = np.zeros(matrix.shape[1])
    if not np.isfinite(matrix).all():
        # The rotations return NaN, where LAPACK would raise an error.
        return np.eye(len(lengths)), np.full(matrix.shape[::-1], np.nan), np.full(len(lengths), np.nan)
    _, sigma, vectors = np.linalg.svd(matrix)
    lengths[: len(sigma)] = sigma
    return vectors, vectors @ matrix.T, lengths


def _lengths(matrix):
    if not np.isfinite(matrix).all():
        return np.full(min(matrix.shape), np.nan)
    return np.linalg.svd(matrix, compute_uv=False)


def _by_eigh(matrix):
    if not np.isfinite(matrix).all():
        return np.eye(len(matrix)), np.full(len(matrix), np.nan)
    values, vectors = np.linalg.eigh(matrix)
    return np.ascontiguousarray(vectors.T[::-1]), values[::-1].copy()


@kernel(inner=True, fastmath=FAST, plain=_add_products)
def add_products(out, rows, vectors, factor):
    """Add to ``out`` (m, k) inner products of rows (m, q) with vectors (k, q), times a factor."""
    for j in range(len(rows)):
        for i in range(len(vectors)):
            value = 0.0
            for a in range(rows.shape[1]):
                value += rows[j, a] * vectors[i, a]
            out[j, i] += factor * value


@kernel(inner=True, fastmath=FAST, plain=lambda rows, vectors: rows @ vectors.T)
def products(rows, vectors):
    """Inner products of rows (m, q) with vectors (k, q): (m, k)."""
    out = np.zeros((len(rows), len(vectors)))
    add_products(out, rows, vectors, 1.0)
    return out


@kernel(inner=True, fastmath=FAST, plain=lambda weights, vectors: weights @ vectors)
def combination(weights, vectors):
    """Combine vectors (m, q) with weights (k, m): (k, q)."""
    out = np.zeros((len(weights), vectors.shape[1]))
    for i in range(len(out)):
        for j in range(len(vectors)):
            for a in range(out.shape[1]):
                out[i, a] += weights[i, j] * vectors[j, a]
    return out


@kernel(inner=True, fastmath=FAST, plain=lambda left, right: left.T @ right)
def outer(left, right):
    """Sum of the outer products of rows (m, p) and (m, q): (p, q)."""
    out = np.zeros((left.shape[1], right.shape[1]))
    for j in range(len(left)):
        for i in range(len(out)):
            for a in range(out.shape[1]):
                out[i, a] += left[j, i] * right[j, a]
    return out


@kernel(inner=True, fastmath=FAST, plain=lambda matrix, factors: matrix * factors)
def scaled(matrix, factors):
    """Columns of a matrix (m, q) times factors (q,)."""
    out = np.empty(matrix.shape)
    for i in range(out.shape[0]):
        for a in range(matrix.shape[1]):
            out[i, a] = matrix[i, a] * factors[a]
    return out


@kernel(inner=True, fastmath=FAST, plain=lambda matrix, factors: matrix * factors[:, None])
def weighted(matrix, factors):
    """Rows of a matrix (m, q) times factors (m,)."""
    out = np.empty(matrix.shape)
    for i in range(out.shape[0]):
        for a in range(matrix.shape[1]):
            out[i, a] = matrix[i, a] * factors[i]
    return out


@kernel(inner=True, fastmath=FAST, plain=lambda matrix, other, factor: matrix + factor * other)
def total(matrix, other, factor):
    """Sum of two matrices, the second times a factor."""
    out = np.empty(matrix.shape)
    for i in range(out.shape[0]):
        for a in range(matrix.shape[1]):
            out[i, a] = matrix[i, a] + factor * other[i, a]
    return out


@kernel(inner=True, fastmath=FAST, plain=lambda rows, of: rows[of])
def rows_at(rows, of):
    """Rows (m, q) with the given numbers, (J,): (J, q)."""
    out = np.empty((len(of), rows.shape[1]))
    for j in range(len(of)):
        for a in range(out.shape[1]):
            out[j, a] = rows[of[j], a]
    return out


@kernel(fastmath=FAST, plain=_by_svd)
def right_singular(matrix):
    """Compute all right singular vectors: V^T (r, r), (matrix V)^T (r, p) and lengths (r,), descending."""
    p, r = matrix.shape
    basis, rows = np.zeros((r, r)), np.empty((r, p))
    for c in range(r):
        basis[c, c] = 1.0
        for a in range(p):
            rows[c, a] = matrix[a, c]
    lengths = rotate(rows, basis, ORTHOGONAL)
    for i in range(r):
        top = i
        for j in range(i + 1, r):
            if lengths[j] > lengths[top]:
                top = j
        if top != i:
            lengths[i], lengths[top] = lengths[top], lengths[i]
            for a in range(p):
                rows[i, a], rows[top, a] = rows[top, a], rows[i, a]
            for a in range(r):
                basis[i, a], basis[top, a] = basis[top, a], basis[i, a]
    return basis, rows, lengths


@kernel(inner=True, fastmath=FAST, plain=_lengths)
def singular_values(matrix):
    """Singular values, descending; columns beyond the rows add zeros."""
    return right_singular(matrix)[2]


@kernel(inner=True, inline="always", fastmath=FAST, plain=_by_eigh)
def eigenvectors(matrix):
    """Eigenvectors, in rows, and eigenvalues (k,) of a symmetric matrix, descending."""
    k = len(matrix)
    positive = matrix.copy()
    square = 0.0
    for i in range(k):
        for j in range(k):
            square += matrix[i, j] * matrix[i, j]
    shift = 2.0 * np.sqrt(square)  # then no eigenvalue is negative, and lengths of images are eigenvalues
    for i in range(k):
        positive[i, i] += shift
    vectors, _, values = right_singular(positive)
    for i in range(k):
        values[i] -= shift
    return vectors, values


@kernel(inner=True, inline="always", fastmath=FAST)
def eliminate(system, rhs):
    """Solve a small system in place (Gaussian elimination, partial pivoting); False when it is singular."""
    size = len(rhs)
    largest = 0.0
    for i in range(size):
        for j in range(size):
            largest = max(largest, abs(system[i, j]))
    for k in range(size):
        pivot = k
        for i in range(k + 1, size):
            if abs(system[i, k]) > abs(system[pivot, k]):
                pivot = i
        if not SINGULAR * largest < abs(system[pivot, k]) < np.inf:
            return False
        if pivot != k:
            for j in range(k, size):
                system[k, j], system[pivot, j] = system[pivot, j], system[k, j]
            rhs[k], rhs[pivot] = rhs[pivot], rhs[k]
        for i in range(k + 1, size):
            factor = system[i, k] / system[k, k]
            for j in range(k + 1, size):
                system[i, j] -= factor * system[k, j]
            rhs[i] -= factor * rhs[k]
    for k in range(size - 1, -1, -1):
        value = rhs[k]
        for j in range(k + 1, size):
            value -= system[k, j] * rhs[j]
        rhs[k] = value / system[k, k]
    return True


@kernel(fastmath=FAST)
def in_basis(basis, matrix):
    """Rows of ``basis`` times the shorter side of ``matrix``: (s, q) with s = min(p, r), q = max(p, r)."""
    return combination(basis, matrix) if matrix.shape[0] < matrix.shape[1] else products(basis, matrix)


@kernel(fastmath=FAST)
def rotate(rows, basis, tol):
    """Rotate pairs of ``rows`` (s, q), and of ``basis`` (s, s) with them, until their cosines are below ``tol``.

    Return the lengths of the rows, (s,), in no order.
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
        orthogonal = True
        for i in range(s - 1):
            for j in range(i + 1, s):
                if min(squares[i], squares[j]) <= NOISE * largest:
                    continue
                inner = 0.0
                for a in range(q):
                    inner += rows[i, a] * rows[j, a]
                if inner * inner <= tol * tol * squares[i] * squares[j]:
                    continue
                orthogonal = False
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
        if orthogonal:
            break
    for i in range(s):
        squares[i] = np.sqrt(max(squares[i], 0.0))
    return squares
