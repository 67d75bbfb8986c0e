"""The relative gap between a value and a lower bound, one formula for methods, kernels and proofs."""

from __future__ import annotations

import math


def relative_gap(low, high):
    """Difference of two bounds, floats or fractions, relative to the lower one.

    Zero when the value is zero; infinite when nothing is proven; negative when the computed lower bound exceeds the
    value. Kernels compile this function.
    """
    if high == 0.0:
        return 0.0
    return (high - low) / low if low > 0.0 and high < math.inf else math.inf
