r"""Train the head together with attention, at a separate rate.

The gradient in the head parameters, :math:`\frac1n\sum_i l'(u_i) Y_i \nabla h(o_i)`, does not cancel when softmax
saturates. Its weights :math:`l'(u_i)` underflow as the head grows, so their largest exponent is factored out as in
:mod:`attsvm.training.risk.gradient`. Head and attention are updated together, from gradients at the same point. In the
joint model of arXiv 2306.13596 (Section 4), p selects tokens and v tends to their max-margin classifier.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from attsvm.nn.heads import PredictionHead, predict
from attsvm.training.risk.objective import Objective


class Companion(Protocol):
    """Parameters trained in addition to W, or K and Q."""

    def parameters(self) -> dict[str, Tensor]:
        """Return the current parameters by their names in a record, each of shape (B, ...), writable."""
        ...

    def refresh(self) -> None:
        """Update the objective after the parameters changed."""
        ...

    def steps(self, objective: Objective, params: list[Tensor]) -> list[Tensor]:
        """Return the change to subtract from each parameter, from the gradient at [W] or [K, Q]."""
        ...

    def apply(self, steps: list[Tensor]) -> None:
        """Subtract the changes."""
        ...


class JointTraining:
    """Descent on the parameters of the head.

    Parameters
    ----------
    objective : Objective
        Its head is trained in place.
    normalized : bool
        Divide each trial's gradient by its norm over all head parameters; otherwise take plain gradient steps.

    Raises
    ------
    ValueError
        If the head has no parameters, or several trials would share them.
    """

    def __init__(self, objective: Objective, lr: float, normalized: bool) -> None:
        head, trials = objective.head, len(objective.labels)
        if not isinstance(head, torch.nn.Module) or not any(p.requires_grad for p in head.parameters()):
            raise ValueError(
                f"head {type(head).__name__} has no parameters; a module with some was expected with head_lr."
            )
        if trials > 1 and not isinstance(head, PredictionHead):
            raise ValueError(
                f"head {type(head).__name__} is one module for {trials} trials; LinearHead, ReLUHead or LambdaHead was "
                "expected with head_lr in several trials."
            )
        if not 0 < lr < math.inf:
            raise ValueError(f"head_lr is {lr!r}; a positive number was expected.")
        self.objective, self.head, self.lr, self.normalized = objective, head, lr, normalized
        self.trials = trials

    def _trained(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.head.named_parameters() if p.requires_grad}

    def parameters(self) -> dict[str, Tensor]:
        """Return the current parameters by their names in a record, each of shape (B, ...)."""
        return {f"head.{name}": self._with_trials(p.detach()) for name, p in self._trained().items()}

    def refresh(self) -> None:
        """Update the objective after the head changed."""
        self.objective.refresh_head()

    def _with_trials(self, parameter: Tensor) -> Tensor:
        return parameter if isinstance(self.head, PredictionHead) else parameter.unsqueeze(0)

    def steps(self, objective: Objective, params: list[Tensor]) -> list[Tensor]:
        """Return the change to subtract from each parameter, at [W] or [K, Q] and the current head.

        `objective` is the objective of the constructor, or some of its rows.
        """
        W = params[0] if len(params) == 1 else params[0] @ params[1].mT
        outputs, labels = objective.output(W), objective.labels
        parameters = list(self._trained().values())
        with torch.enable_grad():
            prediction = predict(self.head, outputs)
            log_slope, sign = objective.loss.log_slope((labels * prediction).detach())
            if objective.weights is not None:
                log_slope = log_slope + objective.weights.log()
            scale = log_slope.amax(-1, keepdim=True)
            scale = torch.where(scale.isfinite(), scale, 0.0)
            weights = (log_slope - scale).exp() * labels  # (B, n)
            weights = -weights if sign is None else weights * sign
            grads = torch.autograd.grad((weights * prediction).sum(), parameters)
        if self.normalized:
            squared = sum(self._with_trials(grad).flatten(1).square().sum(-1) for grad in grads)
            norm = torch.as_tensor(squared).sqrt()
            factor = self.lr / torch.where(norm > 0, norm, 1.0)
        else:
            factor = self.lr * scale.squeeze(-1).exp() / objective.n
        return [
            grad * (factor.view(-1, *(1,) * (grad.ndim - 1)) if isinstance(self.head, PredictionHead) else factor[0])
            for grad in grads
        ]

    def apply(self, steps: list[Tensor]) -> None:
        """Subtract the changes from the head's parameters."""
        for parameter, step in zip(self._trained().values(), steps, strict=True):
            parameter -= step
        self.refresh()
