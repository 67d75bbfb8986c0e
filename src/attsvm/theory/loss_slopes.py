"""Assumption A of arXiv 2308.16898 in numbers: the size of a loss's slope, and how fast the slope changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.error_free import EPS
from attsvm.platform.summary import Listed

# Number of margins at which the slope of a callable is measured.
_GRID = 2001


@dataclass(frozen=True, repr=False)
class LossConstants(Listed):
    """Assumption A in numbers: M0, the Lipschitz constant of l', and M1, a bound of its size, on [-bound, bound].

    Examples
    --------
    >>> from attsvm import theory
    >>> constants = theory.loss_constants("correlation", bound=1.0)
    >>> constants.M0, constants.M1, constants.how
    (0.0, 1.0, 'exact')
    """

    M0: float
    M1: float
    bound: float
    how: str


def loss_constants(loss: str | Callable[..., Any], bound: float) -> LossConstants:
    """Return M0 and M1 of a loss on margins of size at most `bound`.

    Parameters
    ----------
    loss : str or callable
        "logistic" (1/4, 1), "exponential" (e^B, e^B), "correlation" (0, 1); a callable is measured on a grid.
    bound : float
        Largest size of a margin that can occur: the largest score in absolute value for a linear head.

    Raises
    ------
    ValueError
        If the loss is unknown, or `bound` is negative or not finite.

    Examples
    --------
    >>> from attsvm import theory
    >>> constants = theory.loss_constants("logistic", bound=2.0)
    >>> constants.M0, constants.M1
    (0.25, 1.0)
    """
    if not 0 <= bound < np.inf:
        raise ValueError(f"bound is {bound!r}; a finite number >= 0 was expected.")
    bounds = {"logistic": (0.25, 1.0), "exponential": (np.exp(bound), np.exp(bound)), "correlation": (0.0, 1.0)}
    if isinstance(loss, str) and loss in bounds:
        M0, M1 = bounds[loss]
        return LossConstants(float(M0), float(M1), bound, "exact")
    _, slope = slopes(loss, bound)
    step = 2 * max(bound, EPS) / (_GRID - 1)
    return LossConstants(float(np.abs(np.diff(slope)).max() / step), float(np.abs(slope).max()), bound, "sampled")


def slope_range(loss: str | Callable[..., Any], low: float, high: float) -> tuple[float, float]:
    """Return the smallest and the largest |l'(u)| on low <= u <= high.

    Parameters
    ----------
    loss : str or callable
        Closed form for "logistic", "exponential" and "correlation"; a callable is measured on a grid of [-b, b] with
        b the larger of |low| and |high|.

    Raises
    ------
    ValueError
        If the loss is unknown.
    """
    if loss == "logistic":
        return 1 / (1 + float(np.exp(high))), 1 / (1 + float(np.exp(low)))
    if loss == "exponential":
        return float(np.exp(-high)), float(np.exp(-low))
    if loss == "correlation":
        return 1.0, 1.0
    size = np.abs(slopes(loss, max(abs(low), abs(high)))[1])
    return float(size.min()), float(size.max())


def slopes(loss: str | Callable[..., Any], bound: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid of margins in [-bound, bound] and l' there."""
    import torch

    from attsvm.nn.losses import as_loss

    grid = torch.linspace(-max(bound, EPS), max(bound, EPS), _GRID, dtype=torch.float64)
    log_slope, sign = as_loss(loss).log_slope(grid)
    slope = -log_slope.exp() if sign is None else sign * log_slope.exp()
    return grid.numpy(), slope.numpy()
