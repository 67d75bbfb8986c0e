"""Exponents and thresholds estimated from measurements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import isotonic_regression


def exponents(y: Sequence[float] | np.ndarray, *factors: Sequence[float] | np.ndarray) -> np.ndarray:
    """Fit y = c x_1^a x_2^b ... by least squares in the logarithms.

    Parameters
    ----------
    y : array, shape (m,)
        Positive.
    *factors : arrays, shape (m,)
        Positive.

    Returns
    -------
    ndarray, shape (len(factors),)
        The exponents; NaN if the points do not determine them.
    """
    columns = [np.log(np.asarray(x, dtype=float)) for x in factors]
    design = np.stack([np.ones(len(columns[0])), *columns], axis=1)
    if len(design) < design.shape[1] or np.linalg.matrix_rank(design) < design.shape[1]:
        return np.full(len(factors), np.nan)
    return np.linalg.lstsq(design, np.log(np.asarray(y, dtype=float)), rcond=None)[0][1:]


def crossing(x: Sequence[float], share: Sequence[float], level: float = 0.5) -> float:
    """Return the x at which a rising share passes `level`; NaN if it starts above or ends below.

    Measured shares need not rise: they are replaced by the nearest rising ones (isotonic regression). Between two
    values of x the share is linear in log x.

    Parameters
    ----------
    x : sequence of float
        Rising and positive.
    share : sequence of float
    level : float
    """
    rising = isotonic_regression(np.asarray(share, dtype=float)).x
    below = int((rising < level).sum())
    if below in (0, len(rising)):
        return float("nan")
    at = below - 1
    rise = (level - rising[at]) / (rising[at + 1] - rising[at])
    return float(np.exp(np.log(x[at]) + rise * (np.log(x[at + 1]) - np.log(x[at]))))
