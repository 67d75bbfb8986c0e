r"""Gradient flow in logarithmic time.

On separable problems :math:`\dot\theta = -\nabla L(\theta)` reaches a margin m at a time of size :math:`e^m`. In
:math:`\tau = \log(1 + t)` it is :math:`\theta' = -(1 + t)\,\nabla L`, whose right side stays of size one: the norm
grows like :math:`\tau`, and the risk's curvature times 1 + t, which limits explicit methods, stays bounded too. Four
gradients make one step of the classical Runge-Kutta method, of error O(step^5).

The flow on factors keeps :math:`K^\top K - Q^\top Q` for ever; its change measures the error of the integration
(``Trace.imbalance``). It is the flow that arXiv 2403.08699 studies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attsvm.training.descent import Optimizer, State, per_trial
from attsvm.training.objective import Gradient, Objective

_NODES, _WEIGHTS = (0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)


@dataclass(frozen=True)
class GradientFlow(Optimizer):
    """Runge-Kutta steps of gradient flow in tau = log(1 + t); after k steps tau is k * lr.

    Parameters
    ----------
    lr : float
        Step in tau.
    schedule, relative, weight_decay
        Not used: they must keep their defaults.

    Raises
    ------
    ValueError
        If one of them does not.
    """

    lr: float = 0.05

    name: ClassVar[str] = "flow"
    normalized: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.schedule != "constant" or self.relative or self.weight_decay:
            raise ValueError(
                f"optimizer 'flow' has schedule={self.schedule!r}, relative={self.relative} and "
                f"weight_decay={self.weight_decay}; equal steps of logarithmic time without decay were expected."
            )

    def start(self, params: list[Tensor], objective: Objective) -> State:
        """Keep the objective, whose gradient is taken four times a step."""
        return {"objective": objective}

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        start = [param.clone() for param in params]
        slopes = [_slopes(grads, scaled, k * size)]
        for node in _NODES:
            moved = [p + node * size * slope for p, slope in zip(start, slopes[-1], strict=True)]
            grads, scaled = state["objective"].gradients(moved)
            slopes.append(_slopes(grads, scaled, (k + node) * size))
        for j, param in enumerate(params):
            param += size * sum(weight * slope[j] for weight, slope in zip(_WEIGHTS, slopes, strict=True))


def _slopes(grads: list[Tensor], scaled: Gradient, tau: float) -> list[Tensor]:
    """Return -(1 + t) times the true gradients, the exponents added before they are taken."""
    factor = torch.exp(scaled.log_mean + tau)
    return [-per_trial(factor, grad) * grad for grad in grads]
