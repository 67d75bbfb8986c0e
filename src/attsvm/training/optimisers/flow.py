r"""Gradient flow in logarithmic time.

On separable problems :math:`\dot\theta = -\nabla L(\theta)` reaches a margin m at a time of size :math:`e^m`. In
:math:`\tau = \log(1 + t)` the flow is :math:`\theta' = -(1 + t)\,\nabla L`, and the norm grows like :math:`\tau`. One
step of the classical Runge-Kutta method takes four gradients. A fifth gradient, which is also the first of the next
step, estimates the error of third order.

Each trial's steps are divided into parts until that error is small, for two reasons. On factors the flow becomes stiff
with their squared norm. When a sequence changes its token late in training, the change takes a time of order one, which
is an instant in :math:`\tau`. Let :math:`\lambda` be an eigenvalue of the second derivatives near a stationary point.
No part longer than :math:`2.8 / (\lambda (1 + t))` is stable there, so parts would shrink like :math:`e^{-\tau}`
without end. A trial therefore ends before a step that takes more than five hundred parts.

The flow on factors conserves :math:`K^\top K - Q^\top Q`; a change of it measures the integration error
(``Trace.imbalance``). This flow is studied in arXiv 2403.08699.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attsvm.training.optimisers.descent import Optimizer, State, global_norm, per_trial
from attsvm.training.risk.objective import Gradient, Objective

_NODES, _WEIGHTS = (0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)
# Third-order error allowed per part, relative to the larger of one and the norm of the parameters.
_ERROR = 1e-7
# Smallest and largest ratio of consecutive part lengths.
_SHRINK, _GROW = 0.2, 4.0
# Length of the first part, relative to a step. A long one may saturate attention, and slopes of zero hide its error.
_FIRST = 1e-9
# Largest number of parts per step.
_PARTS = 500


@dataclass(frozen=True)
class GradientFlow(Optimizer, name="flow"):
    """Runge-Kutta steps of gradient flow in tau = log(1 + t); after k steps tau is k * lr.

    Parameters
    ----------
    lr : float
        Step in tau, divided into parts as the error requires.
    schedule, relative, weight_decay
        Not used: must keep their defaults.

    Raises
    ------
    ValueError
        If one of them is not the default.
    """

    lr: float = 0.05

    normalized: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.schedule != "constant" or self.relative or self.weight_decay:
            raise ValueError(
                f"optimizer 'flow' has schedule={self.schedule!r}, relative={self.relative} and "
                f"weight_decay={self.weight_decay}; equal steps of logarithmic time without decay were expected."
            )

    def start(self, params: list[Tensor], objective: Objective) -> State:
        """Store the objective, whose gradient is taken four times per part, and each trial's next part length."""
        length = params[0].new_full((len(params[0]),), _FIRST * self.lr)
        return {"objective": objective, "length": length, "ended": torch.zeros_like(length, dtype=torch.bool)}

    def failures(self, state: State) -> dict[int, str]:
        """Name the trials whose last step needs more parts than the limit."""
        reason = f"a step of gradient flow takes more than {_PARTS} parts, as near a stationary point"
        return dict.fromkeys(state["ended"].nonzero().flatten().tolist(), reason)

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        objective, length = state["objective"], state["length"]
        remaining = torch.full_like(length, size)
        slopes = _slopes(grads, scaled, (k + 1) * size - remaining)
        remaining[state["ended"]] = 0.0
        for _ in range(_PARTS):
            if not bool((remaining > 0).any()):
                break
            part = torch.minimum(length, remaining)
            endpoint, fourth, fifth = _part(params, slopes, objective, (k + 1) * size - remaining, part)
            error = global_norm([(last - one) / 6 for last, one in zip(fifth, fourth, strict=True)]).flatten()
            share = part * error / (_ERROR * global_norm(params).flatten().clamp(min=1.0))
            good = (share <= 1) & (remaining > 0)
            params_and_slopes = zip([*params, *slopes], [*endpoint, *fifth], strict=True)
            for old, new in params_and_slopes:
                old.copy_(torch.where(per_trial(good, old), new, old))
            factor = torch.where(share.isfinite(), 0.9 * share.clamp(min=1e-6) ** -0.25, _SHRINK).clamp(_SHRINK, _GROW)
            # The end of the step shortens its last part, which does not limit later ones.
            longer = torch.where(good, torch.maximum(length, part * factor), part * factor)
            length = torch.where(remaining > 0, longer, length).clamp(max=size)
            # Parameters that are not finite have no finite error: their parts shrink to zero, and the step ends.
            remaining = torch.where(
                (good & (part == remaining)) | (part == 0), 0.0, torch.where(good, remaining - part, remaining)
            )
        state["length"], state["ended"] = length, state["ended"] | (remaining > 0)


def _part(
    params: list[Tensor], slopes: list[Tensor], objective: Objective, tau: Tensor, part: Tensor
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return parameters after one part, and the slopes at its fourth stage and at its end."""
    stages = [slopes]
    for node in _NODES:
        endpoint = [p + per_trial(node * part, p) * slope for p, slope in zip(params, stages[-1], strict=True)]
        stages.append(_slopes(*objective.gradients(endpoint), tau + node * part))
    sums = [sum(weight * stage[j] for weight, stage in zip(_WEIGHTS, stages, strict=True)) for j in range(len(params))]
    endpoint = [p + per_trial(part, p) * slope for p, slope in zip(params, sums, strict=True)]
    return endpoint, stages[-1], _slopes(*objective.gradients(endpoint), tau + part)


def _slopes(grads: list[Tensor], scaled: Gradient, tau: Tensor) -> list[Tensor]:
    """Return -(1 + t) times the true gradients; exponents are added before exponentiation."""
    factor = torch.exp(scaled.log_mean + tau)
    return [-per_trial(factor, grad) * grad for grad in grads]
