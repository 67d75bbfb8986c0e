"""Step sizes: eta_k = lr times a schedule of the step number k = 1, 2, ...

Separable problems have no finite minimiser: the schedule determines how fast the norm grows, and thus how fast the
direction converges. Normalised steps of constant size give ||W|| ~ k, square-root decay gives ||W|| ~ sqrt(k), and
growing steps give an exponential norm.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm.core.types import ScheduleName

Schedule = ScheduleName | Callable[[np.ndarray], np.ndarray]

# Growth of "exponential" steps: a factor of e^10 in 1000 steps; float64 overflows after 70,000 steps.
STEP_GROWTH = 1.01

_BY_NAME: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "constant": np.ones_like,
    "sqrt": lambda k: 1 / np.sqrt(k),
    "linear": lambda k: 1 / k,
    "exponential": lambda k: np.exp(np.minimum((k - 1) * np.log(STEP_GROWTH), 600.0)),
}


def step_sizes(lr: float, schedule: Schedule, first: int, count: int) -> np.ndarray:
    """Return the sizes of steps first + 1 .. first + count.

    Parameters
    ----------
    schedule : {"constant", "sqrt", "linear", "exponential"} or callable
        "sqrt" is 1/sqrt(k), "linear" 1/k, "exponential" 1.01^(k-1); a callable maps the array of k to factors.

    Raises
    ------
    ValueError
        If the schedule is unknown, or returns another shape, NaN, infinity or a negative number.
    """
    if isinstance(schedule, str):
        if schedule not in _BY_NAME:
            raise ValueError(
                f"schedule is {schedule!r}; one of {', '.join(map(repr, _BY_NAME))} or a callable was expected."
            )
        schedule = _BY_NAME[schedule]
    number = np.arange(first + 1, first + count + 1, dtype=float)
    factors = np.asarray(schedule(number), dtype=float)
    if factors.shape != number.shape or not np.isfinite(factors).all() or (factors < 0).any():
        raise ValueError(
            f"schedule returned shape {factors.shape} for {number.shape} steps, or NaN, infinity or a negative number; "
            "finite factors >= 0 of the same shape were expected."
        )
    return lr * factors
