"""The smallest relative change of multipliers, or of entries, that satisfies linear equations."""

from __future__ import annotations

import numpy as np


def relative_change(rows: np.ndarray, values: np.ndarray, size: np.ndarray, target: np.ndarray | float) -> np.ndarray:
    """Smallest e (J,), in least squares, with (values + size e) @ rows = target.

    Parameters
    ----------
    rows : ndarray, shape (J, N)
    values, size : ndarray, shape (J,)
        The values that change, and the unit of each change.
    target : ndarray, shape (N,), or float
    """
    return np.linalg.lstsq((rows * size[:, None]).T, target - values @ rows, rcond=None)[0]
