"""What a pair is worth in a given norm: the report every method of the other norms makes."""

from __future__ import annotations

import numpy as np

from attsvm.norms import Norm
from attsvm.reduction import Reduced
from attsvm.solvers.control import Control

# Ties are part of the promise: W counts only when they hold to this part of the margin.
TIE_TOLERANCE = 1e-10


def report(reduced: Reduced, norm: Norm, W: np.ndarray, dual: np.ndarray, control: Control, *, steps: int = 1) -> bool:
    """Evaluate W (p, r) and multipliers (n, T), tell the control; True when it is time to stop."""
    margins = reduced.apply(W)
    smallest = reduced.min_margin(margins)
    tied = float(np.abs(margins[reduced.tied]).max(initial=0.0))
    usable = smallest > 0 and tied <= TIE_TOLERANCE * smallest
    signed = np.where(reduced.rejected, np.maximum(dual, 0.0), dual)
    length = norm.dual(reduced.adjoint(signed))
    bound = float(signed[reduced.rejected].sum()) / length if length > 0 else 0.0
    value = norm.value(W) / smallest if usable else np.inf
    return control.observe(W if usable else None, value, signed, bound, steps=steps)
