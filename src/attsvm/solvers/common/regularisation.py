"""Checks of the arguments C, loss and prior."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attsvm.platform.interop import to_numpy
from attsvm.proofs.objective import HARD_MARGIN, Regularisation

LOSSES = ("hinge", "squared_hinge")


def read_regularisation(
    shape: tuple[int, int, int, int], C: Any, loss: Any, prior: Any, *, streamed: bool = False
) -> Regularisation:
    """Check C, loss and prior of :func:`attsvm.solve`; C is one number if tokens are streamed.

    Returns
    -------
    Regularisation
        :data:`HARD_MARGIN` if neither C nor a prior is given.

    Raises
    ------
    ValueError
        If an argument does not fit; one sentence names it and what was expected.
    """
    if loss not in LOSSES:
        raise ValueError(f"loss is {loss!r}; one of {', '.join(map(repr, LOSSES))} was expected.")
    if C is None and prior is None:
        return HARD_MARGIN
    if C is not None:
        C = _read_price(C, shape[0])
        if streamed and isinstance(C, np.ndarray):
            raise ValueError("C has a number for each query; one was expected with shards or method='streamed'.")
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


def _read_price(C: Any, n: int) -> float | np.ndarray:
    """Return C as a float, or as an array (n,) if each query has its own."""
    number = isinstance(C, (int, float, np.integer, np.floating)) and not isinstance(C, bool)
    if number or np.ndim(C) == 0:
        if not number or not 0 < C < math.inf:
            raise ValueError(f"C is {C!r}; a positive, finite number, or None for the hard margin, was expected.")
        return float(C)
    prices = to_numpy("C", C)
    if prices.shape != (n,) or prices.dtype.kind not in "iuf":
        raise ValueError(
            f"C has {prices.dtype} of shape {prices.shape}; one number, or {n}, one per query, were expected."
        )
    prices = prices.astype(np.float64)
    if not ((prices > 0) & (prices < math.inf)).all():
        raise ValueError(f"C has {prices.min()} to {prices.max()}; positive, finite numbers were expected.")
    prices.setflags(write=False)
    return prices
