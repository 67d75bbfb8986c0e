r"""The arithmetic of the published runs, so that one sees what it changes.

The official runs of arXiv 2308.16898 train in float64 on the gradient that automatic differentiation takes through a
plain softmax, with three habits:

* **cancellation**: the softmax backward subtracts equal numbers once a margin passes 36.7, and returns exactly zero
  (see :mod:`attsvm.training.gradient`);
* **a soft division**: a gradient is divided by its norm plus :math:`\epsilon = 2.2\cdot10^{-16}`, so that steps shrink
  to nothing when the gradient of the mean loss falls below :math:`\epsilon`, and ||W|| stops growing;
* **(K, Q) apart**: each factor is divided by the norm of its own gradient, and
  :math:`\epsilon(\|K\|_F^2+\|Q\|_F^2)` is added to the risk. Where the gradient has vanished, the second term is all
  that is left, and both factors shrink.

:class:`PublishedDescent` has the last two; the first is ``numerics="autograd"`` of :func:`attsvm.train`.
:func:`descent` gives the options of :func:`attsvm.train` for either arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from attsvm.training.descent import Optimizer, State, global_norm, per_trial
from attsvm.training.objective import Gradient

NUMERICS = ("exact", "published")

EPSILON = float(np.finfo(float).eps)
# Step size of every published run.
STEP = 0.1


@dataclass(frozen=True)
class PublishedDescent(Optimizer):
    """Each matrix divided by the norm of its own gradient plus epsilon; K and Q with a ridge of epsilon."""

    name: ClassVar[str] = "published_gd"

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        scale = per_trial(scaled.log_scale.exp() / scaled.n, grads[0])
        # All gradients are of one point: none may see another parameter already moved.
        true = [grad * scale for grad in grads]
        if len(params) == 2:
            true = [grad + 2 * EPSILON * param for grad, param in zip(true, params, strict=True)]
        for param, grad in zip(params, true, strict=True):
            param.sub_(size * grad / (global_norm([grad]) + EPSILON))


def descent(numerics: str, parameterization: str) -> dict[str, Any]:
    """Return the options of :func:`attsvm.train` for normalised descent in either arithmetic.

    Exact: the cancellation-free gradient, with step 0.1 on W and the library's own rule on (K, Q): both normalised
    together, steps of 0.5 ||(K,Q)||/sqrt(k).

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
