"""The correlation of matrices, by which the paper measures that training reached the SVM solution."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def _unit(matrix: Array) -> Array:
    """Scale each matrix to Frobenius norm 1, dividing by the largest entry first so that nothing overflows."""
    largest = abs(matrix).reshape(*matrix.shape[:-2], -1).max(-1)
    if not isinstance(largest, (np.ndarray, np.generic)):
        largest = largest.values
    safe = largest + (largest == 0)
    scaled = matrix / safe[..., None, None]
    norm = (scaled * scaled).sum((-2, -1)) ** 0.5
    return scaled / (norm + (norm == 0))[..., None, None]


def correlation(A: Array, B: Array) -> Array:
    """Return <A, B> / (||A||_F ||B||_F), the cosine of the angle between two matrices.

    Parameters
    ----------
    A, B : arrays, shape (..., d, dz)
        NumPy arrays or torch tensors; leading dimensions broadcast.

    Returns
    -------
    array, shape (...)
        The array type of the arguments, or a scalar for two matrices; 0 where a matrix is zero.

    Raises
    ------
    ValueError
        If A or B has fewer than two dimensions or their shapes do not fit.

    Notes
    -----
    Figures 7 to 12 of arXiv 2308.16898 plot this measure (Section 3).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import correlation
    >>> round(float(correlation(np.eye(2), np.array([[1.0, 0.0], [0.0, 0.0]]))), 6)
    0.707107
    """
    A, B = (x if hasattr(x, "reshape") else np.asarray(x, dtype=float) for x in (A, B))
    if A.ndim < 2 or B.ndim < 2 or tuple(A.shape[-2:]) != tuple(B.shape[-2:]):
        raise ValueError(
            f"A has shape {tuple(A.shape)} and B {tuple(B.shape)}; two (..., d, dz) matrices were expected."
        )
    return (_unit(A) * _unit(B)).sum((-2, -1))
