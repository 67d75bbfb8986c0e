"""The relative gap between a value and a bound below it: one formula for methods, their kernels and proofs."""

from __future__ import annotations

import math


def relative_gap(low, high):
    """Take the distance of two bounds, floats or fractions, in parts of the lower one.

    Zero where nothing is asked for, infinite where nothing is proven; negative where a bound as computed exceeds the
    value. Kernels compile this function.
    """
    if high == 0.0:
        return 0.0
    return (high - low) / low if low > 0.0 and high < math.inf else math.inf
