"""What a pair of W and multipliers is worth: the report every method makes."""

from __future__ import annotations

import numpy as np

from attsvm.core.norms import Norm
from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control


def report(
    reduced: Reduced,
    norm: Norm,
    W: np.ndarray,
    dual: np.ndarray,
    control: Control,
    *,
    margins: np.ndarray | None = None,
    adjoint: np.ndarray | None = None,
    steps: int = 1,
) -> bool:
    """Evaluate W (p, r) and multipliers (n, T), tell the control; True when it is time to stop.

    ``margins`` (n, T) are those of W, and ``adjoint`` (p, r) is A^T dual, where the method has them already.
    """
    margin = reduced.feasible_margin(W, reduced.apply(W) if margins is None else margins)
    signed = np.where(reduced.rejected, np.maximum(dual, 0.0), dual)
    length = norm.dual(reduced.adjoint(signed) if adjoint is None else adjoint)
    bound = float(signed[reduced.rejected].sum()) / length if length > 0 else 0.0
    if margin <= 0:
        return control.observe(None, np.inf, signed, bound, steps=steps)
    return control.observe(W, norm.value(W) / margin, signed, bound, steps=steps)
