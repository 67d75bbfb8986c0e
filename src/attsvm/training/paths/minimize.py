"""L-BFGS with backtracking, for functions that may be infinite.

The two-loop recursion of Nocedal (1980) with an Armijo line search. If the function is infinite at a point, the step is
halved. Pairs of negative curvature are skipped. Near a minimum, values agree to rounding before the gradient does. The
last steps therefore only have to shorten the gradient.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

# Number of pairs of steps and gradient changes that L-BFGS stores.
LBFGS_MEMORY = 20
# Share of the predicted decrease that a step must reach.
_ARMIJO = 1e-4
# Largest number of halvings of a step.
_HALVINGS = 60
# Largest number of last steps, and of halvings of each.
_POLISH, _POLISH_HALVINGS = 30, 4
# Predicted decrease, relative to the value, at or below which the last steps begin.
_ROUNDING = 1e-16


def minimize(
    function: Callable[[Tensor], tuple[float, Tensor, float]], start: Tensor, tol: float, max_iter: int
) -> Tensor:
    """Minimise from `start`, where the function must be finite.

    Parameters
    ----------
    function : callable
        Returns value, gradient, and a measure of stationarity that is 0 at a stationary point.
    start : tensor
    tol : float
        Stop at this stationarity.

    Returns
    -------
    tensor
        The best point found.
    """
    x = start
    value, grad, stationarity = function(x)
    if not math.isfinite(value):
        return x
    pairs: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=LBFGS_MEMORY)
    polish_steps = 0
    for _ in range(max_iter):
        if stationarity <= tol or polish_steps == _POLISH:
            break
        direction = -_apply_inverse(grad, pairs)
        slope = float((grad * direction).sum())
        if slope >= 0:
            pairs.clear()
            direction, slope = -grad, -float(grad.square().sum())
        polishing = -slope <= _ROUNDING * max(1.0, abs(value))
        polish_steps += polishing
        step = 1.0 if pairs else min(1.0, 0.1 / math.sqrt(-slope)) if slope < 0 else 0.0
        for _ in range(_POLISH_HALVINGS if polishing else _HALVINGS):
            candidate = x + step * direction
            new_value, new_grad, new_stationarity = function(candidate)
            if polishing:
                accept = math.isfinite(new_value) and float(new_grad.norm()) < float(grad.norm())
            else:
                accept = new_value <= value + _ARMIJO * step * slope
            if accept:
                break
            step /= 2
        else:
            if polishing or not pairs:
                break
            pairs.clear()
            continue
        if torch.equal(candidate, x):
            break  # the same step again, which rounds to nothing
        s, y = candidate - x, new_grad - grad
        curvature = float((s * y).sum())
        if curvature > 1e-12 * float(s.norm() * y.norm()):
            pairs.append((s, y, curvature))
        x, value, grad, stationarity = candidate, new_value, new_grad, new_stationarity
    return x


def _apply_inverse(grad: Tensor, pairs: deque[tuple[Tensor, Tensor, float]]) -> Tensor:
    """Return the L-BFGS approximation of the inverse Hessian times `grad`."""
    result = grad.clone()
    weights = []
    for s, y, curvature in reversed(pairs):
        weight = float((s * result).sum()) / curvature
        result = result - weight * y
        weights.append(weight)
    if pairs:
        _, y, curvature = pairs[-1]
        result = result * (curvature / float(y.square().sum()))
    for (s, y, curvature), weight in zip(pairs, reversed(weights), strict=True):
        result = result + s * (weight - float((y * result).sum()) / curvature)
    return result
