r"""The interval of a mean limit over instances, from bounds on each limit (:mod:`attsvm.theory.limits`).

It combines two Student intervals: its lower end comes from the instances' lower ends, its upper end from their upper
ends (as for any partially identified mean: Horowitz, Manski, *J. American Statistical Association* 95, 2000). Upper
ends are averaged as they are, even above one. If each were first cut to one, their mean would lie below one for every
rule except a perfect one.
"""

from __future__ import annotations

import numpy as np

from attsvm.theory.limits import bounds_of_limits
from attsvm_paper.judging.statistics import mean_interval


def limit_interval(shares: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the mean limit, whose upper end is at most one.

    Parameters
    ----------
    shares : ndarray, shape (instances, records)
        See :func:`attsvm.theory.limits.bounds_of_limits`.

    Returns
    -------
    low, high : float
        For one instance, its bounds. If ``low`` exceeds one, no limit agrees with the curves.
    """
    lows, highs = bounds_of_limits(shares)
    if len(lows) == 1:
        return float(lows[0]), min(float(highs[0]), 1.0)
    return mean_interval(lows)[0], min(mean_interval(highs)[1], 1.0)
