"""The arguments beside the norm, C, loss and prior, checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attsvm.core.interop import to_numpy
from attsvm.proofs.objective import PLAIN, Regularisation

LOSSES = ("hinge", "squared_hinge")


def read_regularisation(shape: tuple[int, int, int, int], C: Any, loss: Any, prior: Any) -> Regularisation:
    """Check the arguments of :func:`attsvm.solve` that this module serves.

    Returns
    -------
    Regularisation
        :data:`PLAIN` when neither C nor a prior is given: the plain hard margin.

    Raises
    ------
    ValueError
        One sentence that names the argument and what was expected.
    """
    if loss not in LOSSES:
        raise ValueError(f"loss is {loss!r}; one of {', '.join(map(repr, LOSSES))} was expected.")
    if C is None and prior is None:
        return PLAIN
    if C is not None:
        number = isinstance(C, (int, float, np.integer, np.floating)) and not isinstance(C, bool)
        if not number or not 0 < C < math.inf:
            raise ValueError(f"C is {C!r}; a positive, finite number, or None for the hard margin, was expected.")
        C = float(C)
    if prior is not None:
        _, _, d, dz = shape
        matrix = to_numpy("prior", prior).astype(np.float64)
        if matrix.shape != (d, dz):
            raise ValueError(f"prior has shape {matrix.shape}; (d, dz) = {(d, dz)} was expected.")
        if not np.isfinite(matrix).all():
            raise ValueError(f"prior of shape {matrix.shape} has NaN or infinity; finite numbers were expected.")
        matrix.setflags(write=False)
        prior = matrix
    return Regularisation(C, loss, prior)
