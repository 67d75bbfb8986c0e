r"""The dual norm of a composed norm, by the problem that defines it.

:math:`\|M\|_*^{-1} = \min \|V\|` subject to :math:`\langle M, V\rangle = 1`: one constraint. On the path of minimisers
of :math:`f_\mu(V)`, :math:`\nabla f_\mu(V) = \theta M`, and the contributions of the parts to the gradient, divided by
:math:`\theta`, split M. Newton's method follows the path until a smaller :math:`\mu` no longer helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy.linalg import LinAlgError
from scipy.optimize import minimize_scalar

from attsvm.core.cholesky import factor
from attsvm.core.norms.norm import Norm

# The weight of the barrier in parts of the norm: where the path begins and ends.
FIRST, LAST = 1.0, 1e-14
# How fast it falls, tried in turn until the point reached is this near the path, in squared Newton decrements.
FALLS, PATH_DECREMENT = (0.1, 0.3, 0.6, 0.85), 3.0
NEWTON_STEPS = 40
DECREMENT_TOL = 1e-7
SHORTEST = 1e-6
# By how much the scale of a split may be off.
OFF = 1e-3
# Below this part of the norm mu ends the path when the dual norm has not fallen by such a part in so many values of it.
LATE, PROGRESS, PATIENCE = 1e-8, 1e-12, 2
# Where rounding leaves the Hessian indefinite with this ridge the path ends; larger ones would cost the bound digits.
RIDGES = (1e-15,)


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
        The first part; the second is M less it.
    """
    top = float(np.abs(M).max())
    unit = M / top
    length = float(np.linalg.norm(unit))
    best, split, stalls = np.inf, M, 0
    for late, theta, parts in _path(norm, unit / length):
        stalls += late
        for part, is_second in zip(parts, (False, True), strict=True):
            first, size = _scaled(M, part * (top * length / theta), is_second, measure)
            if size < best * (1 - PROGRESS):
                stalls = 0
            if size < best:
                best, split = size, first
        if stalls >= PATIENCE:
            break
    return split


def _scaled(
    M: np.ndarray, part: np.ndarray, is_second: bool, measure: Callable[[np.ndarray, np.ndarray], float]
) -> tuple[np.ndarray, float]:
    """Find the best multiple of a part as the first, or second, one: theta gives it through a difference."""

    def first_part(factor: float) -> np.ndarray:
        return M - factor * part if is_second else factor * part

    def size(factor: float) -> float:
        first = first_part(factor)
        return measure(first, M - first)

    minimum = minimize_scalar(size, bounds=(1 - OFF, 1 + OFF), method="bounded", options={"xatol": 1e-13})
    factor = min((1.0, float(minimum.x)), key=size)
    return first_part(factor), size(factor)


def _path(norm: Norm, M: np.ndarray) -> Iterator[tuple[bool, float, list[np.ndarray]]]:
    """Follow the minimisers of the smoothed norm with <M, V> = 1, |M| = 1: lateness, theta, the parts' gradients."""
    m, V = M.ravel(), M
    mu = FIRST * norm.value(V)
    last = LAST * mu
    while mu > last:
        here, is_stuck = norm.smoothing(V, mu), False
        for _ in range(NEWTON_STEPS):
            try:
                solve = _solver(here.hessian, m)
            except LinAlgError:
                return
            step = solve(-here.gradient.ravel())
            decrement = -float(step @ here.gradient.ravel())
            if decrement <= DECREMENT_TOL * mu:
                break
            length = 1.0
            while True:
                there = norm.smoothing(V + length * step.reshape(V.shape), mu)
                if float(step @ there.gradient.ravel()) <= 0.5 * decrement or length < SHORTEST:
                    break
                length *= 0.5
            is_stuck = length < SHORTEST
            if is_stuck:
                break
            V, here = V + length * step.reshape(V.shape), there
        # To first order in the last, short step: rounding of V that a small mu magnifies drops out.
        parts = [part + (curvature @ step).reshape(V.shape) for part, curvature in here.parts]
        yield mu < LATE / LAST * last, float(m @ (parts[0] + parts[1]).ravel()), parts
        if is_stuck:  # rounding
            return
        tangent = solve(here.hessian @ V.ravel()).reshape(V.shape)
        for fall in FALLS:
            after = V - (1.0 - fall) * tangent
            gradient = norm.smoothing(after, fall * mu).gradient.ravel()
            if float(gradient @ solve(gradient)) <= PATH_DECREMENT * fall * mu:
                break
        V, mu = after, fall * mu


def _solver(hessian: np.ndarray, m: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Factor the Hessian; the result solves for directions orthogonal to m."""
    inverse = factor(hessian + float(np.trace(hessian)) / len(m) * np.outer(m, m), RIDGES)
    along = inverse(m)

    def solve(rhs: np.ndarray) -> np.ndarray:
        x = inverse(rhs)
        return x - along * (float(m @ x) / float(m @ along))

    return solve
