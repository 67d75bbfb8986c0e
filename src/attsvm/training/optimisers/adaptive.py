r"""Optimisers with adaptive steps: Adam, and the Polyak step.

**Adam** divides a running mean of the gradient by the root of a running mean of its square. Each mean stores its
exponent separately (:mod:`attsvm.training.optimisers.moments`), so that the quotient is exact however small the
gradient is. If eps = 0, the rule does not depend on the scale of the loss. Adam with decaying steps has the bias of
sign descent: it maximises the margin in the max-norm (arXiv 2502.04664, for linear multiclass models). At a constant
step the gradient falls faster than the second mean forgets, and no norm describes the bias. **AdamW** (arXiv
1711.05101) also shrinks the parameters.

**Polyak** steps have length :math:`(L - L^*)/\|\nabla L\|_F` (studied for attention in arXiv 2402.05738). :math:`L^*`
is the risk when every sequence attends only to its best token. Near that limit the length tends to a constant of the
size of :math:`\|W^{mm}\|`. At a local direction :math:`L - L^*` stays positive while the gradient vanishes, so the
length is capped. For factors the gradient is taken in (K, Q). Along it :math:`L - L^*` falls twice as fast, because
:math:`KQ^\top` is quadratic. The same length and cap are used there, without a theory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from attsvm.training.optimisers.descent import Optimizer, State, global_norm, per_trial, safe
from attsvm.training.optimisers.moments import ScaledMean
from attsvm.training.optimisers.schedule import Schedule
from attsvm.training.risk.objective import Gradient, Objective


@dataclass(frozen=True)
class Adam(Optimizer, name="adam"):
    """Adam (arXiv 1412.6980) on exactly scaled gradients.

    Parameters
    ----------
    lr, schedule, relative
        See :class:`~attsvm.training.optimisers.descent.Optimizer`.
    betas : pair of float
        Decay of the two means.
    eps : float
        Added to the root of the second mean, in units of the gradient; 0 makes the rule independent of scale.

    Raises
    ------
    ValueError
        If a beta is outside [0, 1) or eps is negative.
    """

    lr: float = 0.02
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas) or self.eps < 0:
            raise ValueError(f"betas are {self.betas} and eps {self.eps}; 0 <= beta < 1 and eps >= 0 were expected.")

    def start(self, params: list[Tensor], objective: Objective) -> State:
        """Return zero means."""
        return {"first": [ScaledMean(param) for param in params], "second": [ScaledMean(param) for param in params]}

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        beta1, beta2 = self.betas
        log = scaled.log_mean
        correction = math.sqrt(1 - beta2 ** (k + 1)) / (1 - beta1 ** (k + 1))
        for param, grad, first, second in zip(params, grads, state["first"], state["second"], strict=True):
            first.update(beta1, 1 - beta1, grad, log)
            second.update(beta2, 1 - beta2, grad.square(), 2 * log)
            ratio = per_trial((first.log - second.log / 2).exp(), param)
            root = second.mantissa.sqrt()
            if self.eps:
                root = root + self.eps * math.sqrt(1 - beta2 ** (k + 1)) * per_trial((-second.log / 2).exp(), param)
            param -= self._length([param], size) * correction * ratio * first.mantissa / safe(root)


@dataclass(frozen=True)
class AdamW(Adam, name="adamw"):
    """Adam with decaying steps and decoupled weight decay."""

    lr: float = 0.2
    schedule: Schedule = "sqrt"
    weight_decay: float = 0.01


@dataclass(frozen=True)
class PolyakGD(Optimizer, name="polyak"):
    """Gradient descent with Polyak steps; for linear heads.

    Parameters
    ----------
    lr : float
        Factor of the Polyak length.
    schedule, relative
        See :class:`~attsvm.training.optimisers.descent.Optimizer`.
    longest : float
        Cap on the length of a step.
    """

    lr: float = 1.0
    longest: float = 10.0

    def start(self, params: list[Tensor], objective: Objective) -> State:
        """Store the objective, whose excess risk sets the step; raise ValueError if the head is not linear."""
        if objective.gamma is None:
            raise ValueError("optimizer 'polyak' has a head that is not linear; a linear one was expected.")
        return {"objective": objective}

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        norm = global_norm(grads)
        W = params[0] if len(params) == 1 else params[0] @ params[1].mT
        excess, scale = state["objective"].excess(W)
        log_excess = excess.clamp(min=0.0).log() + scale - scaled.log_scale
        log_length = math.log(size) + per_trial(log_excess, norm) - safe(norm).log()
        length = log_length.clamp(max=math.log(self.longest)).exp()
        for param, grad in zip(params, grads, strict=True):
            param.sub_(length * grad / safe(norm))
