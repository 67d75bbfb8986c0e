r"""Gradient flow in logarithmic time.

On separable problems :math:`\dot\theta = -\nabla L(\theta)` reaches a margin m at a time of size :math:`e^m`. In
:math:`\tau = \log(1 + t)` it is :math:`\theta' = -(1 + t)\,\nabla L`, under which the norm grows like :math:`\tau`.
Four gradients make one step of the classical Runge-Kutta method; a fifth, with which the next step begins, tells the
error of third order. Steps are cut into parts, for each trial apart, until that error is small: on factors the flow
grows stiff with their squared norm, and where a sequence leaves one token for another late in training, all happens
within a time of order one, in :math:`\tau` an instant. Near a stationary point with eigenvalue :math:`\lambda` of the
second derivatives no part longer than :math:`2.8 / (\lambda (1 + t))` is stable, so that parts would shrink like
:math:`e^{-\tau}` for ever: a trial whose step takes more than five hundred ends before that step.

The flow on factors keeps :math:`K^\top K - Q^\top Q` for ever; its change measures the error of the integration
(``Trace.imbalance``). It is the flow that arXiv 2403.08699 studies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attsvm.training.descent import Optimizer, State, global_norm, per_trial
from attsvm.training.objective import Gradient, Objective

_NODES, _WEIGHTS = (0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)
# Error of third order that a part may leave, over the larger of one and the norm of the parameters.
_ERROR = 1e-7
# What the length of a part may change by from one to the next.
_SHRINK, _GROW = 0.2, 4.0
# Most parts of a step. Ten are usual, and twenty more where a sequence leaves one token for another.
_PARTS = 500


@dataclass(frozen=True)
class GradientFlow(Optimizer):
    """Runge-Kutta steps of gradient flow in tau = log(1 + t); after k steps tau is k * lr.

    Parameters
    ----------
    lr : float
        Step in tau, cut into parts where the flow asks for it.
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
        """Keep the objective, whose gradient is taken four times a part, and the length of each trial's next part."""
        length = params[0].new_full((len(params[0]),), self.lr)
        return {"objective": objective, "length": length, "ended": torch.zeros_like(length, dtype=torch.bool)}

    def failures(self, state: State) -> dict[int, str]:
        """Name the trials whose last step takes more parts than are made."""
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
            # The last part of a step is cut short by its end, which says nothing against longer ones.
            longer = torch.where(good, torch.maximum(length, part * factor), part * factor)
            length = torch.where(remaining > 0, longer, length).clamp(max=size)
            # Parameters that are not finite have no error that is: their parts shrink to nothing, and they stay.
            remaining = torch.where(
                (good & (part == remaining)) | (part == 0), 0.0, torch.where(good, remaining - part, remaining)
            )
        state["length"], state["ended"] = length, state["ended"] | (remaining > 0)


def _part(
    params: list[Tensor], slopes: list[Tensor], objective: Objective, tau: Tensor, part: Tensor
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return parameters after a part of the step, and the slopes of its fourth stage and at its end."""
    stages = [slopes]
    for node in _NODES:
        endpoint = [p + per_trial(node * part, p) * slope for p, slope in zip(params, stages[-1], strict=True)]
        stages.append(_slopes(*objective.gradients(endpoint), tau + node * part))
    sums = [sum(weight * stage[j] for weight, stage in zip(_WEIGHTS, stages, strict=True)) for j in range(len(params))]
    endpoint = [p + per_trial(part, p) * slope for p, slope in zip(params, sums, strict=True)]
    return endpoint, stages[-1], _slopes(*objective.gradients(endpoint), tau + part)


def _slopes(grads: list[Tensor], scaled: Gradient, tau: Tensor) -> list[Tensor]:
    """Return -(1 + t) times the true gradients, the exponents added before they are taken."""
    factor = torch.exp(scaled.log_mean + tau)
    return [-per_trial(factor, grad) * grad for grad in grads]
