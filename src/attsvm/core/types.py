"""Type aliases of public signatures; the functions that use them explain their values."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from attsvm.core.norms.norm import Norm

Array: TypeAlias = np.ndarray | Any
"""NumPy in, NumPy out; torch in, torch out. A union of ndarray and Tensor would be rejected where either is required,
so type checkers see an array of any type; ``W: Tensor = solution.W`` declares a tensor."""

NormName: TypeAlias = Literal["frobenius", "nuclear", "spectral", "max"]
AnyNorm: TypeAlias = Norm | NormName | float
"""An object of :mod:`attsvm.norms`, a name, or the exponent of an entrywise norm."""
FactorNorm: TypeAlias = Literal["frobenius", "nuclear"]
"""Training of W, and training of K and Q."""
SolverMethod: TypeAlias = Literal[
    "auto", "active_set", "coordinate_newton", "interior_point", "first_order", "streamed"
]
CoefficientChoice: TypeAlias = Literal["correlation", "least-squares"]
Shortfall: TypeAlias = Literal["hinge", "squared_hinge"]
LossName: TypeAlias = Literal["logistic", "exponential", "correlation", "log"]
ScheduleName: TypeAlias = Literal["constant", "sqrt", "linear", "exponential"]
Parameterization: TypeAlias = Literal["W", "KQ"]
Numerics: TypeAlias = Literal["exact", "autograd"]
Backend: TypeAlias = Literal["auto", "torch", "compiled"]
