r"""The dual norm of a composed norm, by the problem that defines it.

:math:`\|M\|_*^{-1} = \min \|V\|` subject to :math:`\langle M, V\rangle = 1`: one constraint. On the path of minimisers
of :math:`f_\mu(V)`, :math:`\nabla f_\mu(V) = \theta M`, and the contributions of the parts to the gradient, divided by
:math:`\theta`, split M. Newton's method follows the path until a smaller :math:`\mu` no longer helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from attsvm.core.norms.norm import Norm

# The weight of the barrier in parts of the norm: where the path begins and ends, and how fast it falls.
FIRST, LAST, FALL = 1.0, 1e-14, 0.1
NEWTON_STEPS = 12
SETTLED = 1e-7
RIDGE = 1e-15


def optimal_split(norm: Norm, M: np.ndarray, measure: Callable[[np.ndarray, np.ndarray], float]) -> np.ndarray:
    """Split M (p, r), not zero, between the two parts of a norm.

    Parameters
    ----------
    norm : Norm
        Whose smoothing has two parts.
    M : ndarray, shape (p, r)
    measure : callable
        The dual norm that a split shows.

    Returns
    -------
    ndarray, shape (p, r)
        The first part; the second is what M has beside it.
    """
    top = float(np.abs(M).max())
    unit = M / top
    length = float(np.linalg.norm(unit))
    best, split = np.inf, M
    for theta, parts in _path(norm, unit / length):
        scale = top * length / theta
        for first in (parts[0] * scale, M - parts[1] * scale):
            size = measure(first, M - first)
            if size < best:
                best, split = size, first
    return split


def _path(norm: Norm, M: np.ndarray) -> Iterator[tuple[float, tuple[np.ndarray, ...]]]:
    """Follow the minimisers of the smoothed norm with <M, V> = 1, |M| = 1: theta and the parts' gradients."""
    m, V = M.ravel(), M
    mu = FIRST * norm.value(V)
    last = LAST * mu
    while mu > last:
        here = norm.smoothing(V, mu)
        for _ in range(NEWTON_STEPS):
            try:
                solve = _solver(here.hessian, m)
            except LinAlgError:
                return
            step = solve(-here.gradient.ravel())
            decrement = -float(step @ here.gradient.ravel())
            if decrement <= SETTLED * mu:
                break
            length = 1.0
            while True:
                there = norm.smoothing(V + length * step.reshape(V.shape), mu)
                if float(step @ there.gradient.ravel()) <= 0.5 * decrement or length < 1e-6:
                    break
                length *= 0.5
            V, here = V + length * step.reshape(V.shape), there
        yield float(m @ here.gradient.ravel()), here.parts
        tangent = solve(here.hessian @ V.ravel()).reshape(V.shape)
        V, mu = V - (1.0 - FALL) * tangent, FALL * mu


def _solver(hessian: np.ndarray, m: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Factor the Hessian; the result solves for directions orthogonal to m."""
    matrix = hessian + float(np.trace(hessian)) / len(m) * np.outer(m, m)
    diagonal = np.diag_indices(len(m))
    scale = 1.0 / np.sqrt(matrix[diagonal])
    matrix = matrix * scale * scale[:, None]
    matrix[diagonal] += RIDGE * len(m)
    factor = cho_factor(matrix, lower=True, check_finite=False)
    along = scale * cho_solve(factor, scale * m, check_finite=False)

    def solve(rhs: np.ndarray) -> np.ndarray:
        x = scale * cho_solve(factor, scale * rhs, check_finite=False)
        return x - along * (float(m @ x) / float(m @ along))

    return solve
