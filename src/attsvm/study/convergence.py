r"""Whether a run has converged or was only stopped.

Along a limit direction, :math:`1 - c` of normalised gradient descent falls like a power :math:`k^{-p}` of the step
number. The change of a correlation over the last doubling of the steps therefore shows whether it still rises, and how
many more steps it needs. A run that is stopped at 0.93 while rising does not contradict the theory.
"""

from __future__ import annotations

import math

import numpy as np

# Least relative fall of 1 - correlation per doubling of the steps (k^-0.074); a slower run counts as stationary.
FALL = 0.05
# Largest estimate, as a multiple of the completed steps.
FARTHEST = 1000


def _doubling(step: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """Return the ratio of the last step to a step near its half, the value there, and the last value."""
    half = int(np.abs(np.log(np.maximum(step, 0.5)) - math.log(max(step[-1], 1) / 2)).argmin())
    return float(step[-1] / max(step[half], 0.5)), float(values[half]), float(values[-1])


def climbing(step: np.ndarray, curve: np.ndarray) -> bool:
    """Return whether a correlation still approaches one.

    Parameters
    ----------
    step, curve : ndarray, shape (records,)
        The recorded steps, and the correlation at each.
    """
    factor, at_half, at_end = _doubling(step, 1.0 - curve)
    return factor > 1 and at_end < (1 - FALL) * at_half


def steps_to(step: np.ndarray, curve: np.ndarray, target: float) -> int:
    """Estimate the steps a rising correlation needs to reach `target`, rounded up to 1, 2 or 5 times 10^k.

    Parameters
    ----------
    step, curve : ndarray, shape (records,)

    Returns
    -------
    int
        At least twice and at most :data:`FARTHEST` times the completed steps. A run that was stopped before its first
        step counts as one step.
    """
    factor, at_half, at_end = _doubling(step, 1.0 - curve)
    steps = max(int(step[-1]), 1)
    goal = 2.0 * steps
    if factor > 1 and 0 < at_end < at_half:
        power = math.log(at_half / at_end) / math.log(factor)
        growth = math.log(max(at_end / (1 - target), 1.0)) / power
        goal = max(goal, steps * math.exp(min(growth, math.log(FARTHEST))))
    base = 10 ** math.floor(math.log10(goal))
    return int(next(base * digit for digit in (1, 2, 5, 10) if base * digit >= goal))
