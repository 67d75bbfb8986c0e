r"""The arithmetic of the published runs, for comparison with exact training.

The official runs of arXiv 2308.16898 train in float64 on the gradient of automatic differentiation through a plain
softmax. Three properties matter:

* **cancellation**: the softmax backward subtracts equal numbers once a margin exceeds 36.7, and returns exactly zero
  (see :mod:`attsvm.training.risk.gradient`);
* **division by norm plus epsilon**: a gradient is divided by its norm plus :math:`\epsilon = 2.2\cdot10^{-16}`. Steps
  therefore shrink to nothing when the gradient of the mean loss falls below :math:`\epsilon`, and ||W|| stops growing;
* **K and Q separately**: each factor is divided by its gradient's norm, and :math:`\epsilon(\|K\|_F^2+\|Q\|_F^2)` is
  added to the risk. Once the gradient has vanished, only this term remains, and both factors shrink.

:class:`PublishedDescent` has the last two; the first is ``numerics="autograd"`` of :func:`attsvm.train`.
:func:`descent` gives the options of :func:`attsvm.train` for both arithmetics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from attsvm.training.optimisers.descent import Optimizer, State, global_norm, per_trial
from attsvm.training.risk.objective import Gradient

NUMERICS = ("exact", "published")

EPSILON = float(np.finfo(float).eps)
# Step size of every published run.
STEP = 0.1


@dataclass(frozen=True)
class PublishedDescent(Optimizer):
    """Each matrix divided by its gradient's norm plus epsilon; K and Q with a ridge of epsilon."""

    name: ClassVar[str] = "published_gd"

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        scale = per_trial(scaled.log_scale.exp() / scaled.n, grads[0])
        # All gradients belong to one point, before any parameter is updated.
        true = [grad * scale for grad in grads]
        if len(params) == 2:
            true = [grad + 2 * EPSILON * param for grad, param in zip(true, params, strict=True)]
        for param, grad in zip(params, true, strict=True):
            param.sub_(size * grad / (global_norm([grad]) + EPSILON))


def descent(numerics: str, parameterization: str) -> dict[str, Any]:
    """Return the options of :func:`attsvm.train` for normalised descent in either arithmetic.

    Exact: the cancellation-free gradient, with step 0.1 on W and the library's rule on (K, Q): joint normalisation,
    steps of 0.5 ||(K,Q)||/sqrt(k).

    Raises
    ------
    ValueError
        If `numerics` is unknown.
    """
    if numerics not in NUMERICS:
        raise ValueError(f"numerics is {numerics!r}; 'exact' or 'published' was expected.")
    if numerics == "published":
        return {"parameterization": parameterization, "optimizer": PublishedDescent(STEP), "numerics": "autograd"}
    options: dict[str, Any] = {"parameterization": parameterization, "numerics": "exact"}
    return options | ({"lr": STEP} if parameterization == "W" else {})
