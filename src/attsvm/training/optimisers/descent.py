r"""Gradient descent, normalised gradient descent, and momentum on the dual.

A rule gets the parameters as a list, [W] or [K, Q], and gradients whose scale :math:`e^c` is stored separately.

* **Gradient descent** multiplies by the scale: :math:`W \leftarrow W - \eta e^{c} G / n`.
* **Normalised descent** ignores it: :math:`W \leftarrow W - \eta\, G/\|G\|_F`. For (K, Q) the norm is taken over both
  gradients together. Steps proportional to :math:`\|(K,Q)\|/\sqrt k` keep the relative change small as the norm grows.
  The published runs normalise K and Q separately, see :class:`SeparatelyNormalizedGD`. This is steepest descent in
  :math:`\max(\|K\|_F, \|Q\|_F)`. Its max-margin solution is the nuclear one too, since the smallest such maximum is
  :math:`\sqrt{\|W\|_*}`. At a constant step both rules come equally near to it in 10,000 steps. Then separate
  normalisation stalls, and joint normalisation comes nearer still (docs/paper.md).
* **Momentum on the dual**: with the normalised gradient :math:`\hat G = G/\|G\|_F`, :math:`M \leftarrow
  \tfrac{k}{k+1}(M + \hat G)`, :math:`W \leftarrow W - \eta(M + \hat G)`. This is Algorithm 1 of Ji, Srebro, Telgarsky
  (2021), "Fast margin maximization via dual acceleration", except for the norm. The paper divides the gradient by the
  l1 norm of its dual variable, and its theorem is for that rule. The Frobenius norm lets the step follow the margin: in
  our runs the direction error falls like :math:`1/k^4` instead of :math:`1/k^2`.

A zero gradient changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from attsvm.training.optimisers.schedule import Schedule
from attsvm.training.risk.objective import Gradient, Objective

State = dict[str, Any]


def per_trial(numbers: Tensor, like: Tensor) -> Tensor:
    """Reshape numbers (B,) to multiply a parameter (B, ...)."""
    return numbers.view(-1, *(1,) * (like.ndim - 1))


def global_norm(tensors: list[Tensor]) -> Tensor:
    """Return the Frobenius norm over all parameters of each trial, (B, 1, ..., 1), to multiply any of them."""
    norms = [torch.linalg.vector_norm(tensor.flatten(1), dim=-1) for tensor in tensors]
    total = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0)
    return per_trial(total, tensors[0])


def safe(norm: Tensor) -> Tensor:
    """Replace zero norms by 1, so that a zero gradient can be divided by its norm."""
    return norm + (norm == 0)


@dataclass(frozen=True)
class Entry:
    """Constructors of an optimiser per parameterisation, or the reason why there is none."""

    W: Callable[[], Optimizer] | str
    KQ: Callable[[], Optimizer] | str


# Optimisers by name; a class with a name adds itself.
OPTIMIZERS: dict[str, Entry] = {}
_DEFAULTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Optimizer(ABC):
    """A descent rule.

    Parameters
    ----------
    schedule : str or callable
        See :func:`attsvm.training.optimisers.schedule.step_sizes`.
    relative : bool
        Whether a step is also multiplied by the Frobenius norm of the parameters.
    weight_decay : float
        Decoupled decay (arXiv 1711.05101): before a step of size eta the parameters are multiplied by 1 - eta *
        weight_decay. For "gd" this is the gradient of weight_decay/2 times the squared norm.
    """

    lr: float
    schedule: Schedule = "constant"
    relative: bool = False
    weight_decay: float = 0.0

    name: ClassVar[str]
    normalized: ClassVar[bool] = True  # whether steps ignore the size of the gradient

    def __init_subclass__(
        cls, *, name: str | None = None, W: Mapping[str, Any] | str = _DEFAULTS, KQ: Mapping[str, Any] | str = _DEFAULTS
    ) -> None:
        """Register a class under its name, with the options of each parameterisation or the reason for none."""
        super().__init_subclass__()
        if name is not None:
            cls.name = name
            OPTIMIZERS[name] = Entry(
                *(choice if isinstance(choice, str) else partial(cls, **choice) for choice in (W, KQ))
            )

    def start(self, params: list[Tensor], objective: Objective) -> State:
        """Return the state before the first step."""
        return {}

    def failures(self, state: State) -> dict[int, str]:
        """Return the reason, a clause as in an Ending, for each trial whose last step failed."""
        return {}

    @abstractmethod
    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make step k (from 0) in place."""

    def _length(self, params: list[Tensor], size: float) -> float | Tensor:
        return size * global_norm(params) if self.relative else size


@dataclass(frozen=True)
class GradientDescent(Optimizer, name="gd", W={"lr": 1.0}, KQ={"lr": 1.0}):
    """Plain gradient descent on the risk 1/n sum_i l(u_i)."""

    normalized: ClassVar[bool] = False

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        factor = self._length(params, size) * per_trial(scaled.log_scale.exp() / scaled.n, grads[0])
        for param, grad in zip(params, grads, strict=True):
            param.addcmul_(factor, grad, value=-1)


@dataclass(frozen=True)
class NormalizedGD(
    Optimizer, name="normalized_gd", W={"lr": 0.1}, KQ={"lr": 0.5, "schedule": "sqrt", "relative": True}
):
    """Steps along the gradient divided by its Frobenius norm over all parameters."""

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        factor = self._length(params, size) / safe(global_norm(grads))
        for param, grad in zip(params, grads, strict=True):
            param.addcmul_(factor, grad, value=-1)


@dataclass(frozen=True)
class SeparatelyNormalizedGD(
    Optimizer,
    name="separately_normalized_gd",
    W="there is one matrix to normalise: take 'normalized_gd'",
    KQ={"lr": 0.1},
):
    """The published rule for (K, Q): each matrix normalised by its gradient norm; stalls near the nuclear SVM."""

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        for param, grad in zip(params, grads, strict=True):
            param -= self._length([param], size) * grad / safe(global_norm([grad]))


@dataclass(frozen=True)
class DualMomentum(
    Optimizer,
    name="momentum",
    W={"lr": 2.0},
    KQ="it accelerates the dual of a problem that is linear in its variable, and K Q^T is not linear in K, Q",
):
    """Momentum k/(k+1) on the dual; converges fast to the max-margin direction."""

    def start(self, params: list[Tensor], objective: Objective) -> State:
        """Return zero momenta."""
        return {"momentum": [torch.zeros_like(param) for param in params]}

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        norm = safe(global_norm(grads))
        length = self._length(params, size)
        for param, grad, momentum in zip(params, grads, state["momentum"], strict=True):
            direction = grad / norm
            momentum += direction
            momentum *= k / (k + 1)
            param -= length * (momentum + direction)
