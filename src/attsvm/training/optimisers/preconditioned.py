r"""Shampoo and SOAP: a matrix is preconditioned from both sides by running means of its gradient's Gram matrices.

Let :math:`L = \sum_j \beta^{k-j} G_j G_j^\top` and :math:`R = \sum_j \beta^{k-j} G_j^\top G_j`.

* **Shampoo** (arXiv 1802.09568) steps along :math:`L^{-1/4} G R^{-1/4}`: the polar factor of G if all gradients agree.
  At the published :math:`\beta = 1`, early gradients of a separable problem outweigh all later ones, and the step
  vanishes with the gradient;
* **SOAP** (arXiv 2409.11321) runs Adam in the eigenvectors of L and R.

The scales of gradients are stored separately (:mod:`attsvm.training.optimisers.moments`). Directions in which L and R
hold only rounding noise do not move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.training.optimisers.descent import Optimizer, State, per_trial
from attsvm.training.optimisers.moments import ScaledMean
from attsvm.training.optimisers.schedule import Schedule
from attsvm.training.optimisers.steepest import numbers_only
from attsvm.training.risk.objective import Gradient, Objective


def _check_beta(beta: float) -> None:
    if not 0 <= beta <= 1:
        raise ValueError(f"beta is {beta}; 0 <= beta <= 1 was expected.")


def _grams(param: Tensor) -> tuple[ScaledMean, ScaledMean]:
    """Return zero means of (B, d, d) and (B, m, m) for a parameter (B, d, m)."""
    d, m = param.shape[-2:]
    return ScaledMean(param.new_zeros(*param.shape[:-2], d, d)), ScaledMean(param.new_zeros(*param.shape[:-2], m, m))


def _add(left: ScaledMean, right: ScaledMean, grad: Tensor, log: Tensor, beta: float) -> None:
    """Add the Gram matrices of a gradient to means, with weight 1 - beta, or to sums if beta = 1."""
    weight = 1.0 if beta == 1 else 1 - beta
    left.update(beta, weight, grad @ grad.mT, 2 * log)
    right.update(beta, weight, grad.mT @ grad, 2 * log)


def _inverse_fourth_root(mean: ScaledMean) -> Tensor:
    """Return the mantissa's pseudo-inverse to the power 1/4."""
    steady, nonfinite = numbers_only(mean.mantissa)
    values, vectors = torch.linalg.eigh(steady)
    noise = values[..., -1:] * values.shape[-1] * torch.finfo(values.dtype).eps
    roots = torch.where(values > noise, values, torch.inf).pow(-0.25)
    return (vectors * roots.unsqueeze(-2)) @ vectors.mT + nonfinite


@dataclass(frozen=True)
class Shampoo(Optimizer, name="shampoo"):
    """Steps along L^(-1/4) G R^(-1/4).

    Parameters
    ----------
    lr, schedule, relative, weight_decay
        See :class:`~attsvm.training.optimisers.descent.Optimizer`.
    beta : float
        Decay of L and R; 1 sums them, as published.

    Raises
    ------
    ValueError
        If beta is outside [0, 1].
    """

    lr: float = 0.5
    schedule: Schedule = "sqrt"
    beta: float = 0.95

    def __post_init__(self) -> None:
        _check_beta(self.beta)

    def start(self, params: list[Tensor], objective: Objective) -> State:
        """Return zero Gram matrices."""
        return {"grams": [_grams(param) for param in params]}

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        # Means start at zero and lack a fraction beta^(k+1) of their weight.
        correction = math.sqrt(1 - self.beta ** (k + 1)) if self.beta < 1 else 1.0
        for param, grad, (left, right) in zip(params, grads, state["grams"], strict=True):
            _add(left, right, grad, scaled.log_mean, self.beta)
            step = _inverse_fourth_root(left) @ grad @ _inverse_fourth_root(right)
            scale = per_trial((scaled.log_mean - (left.log + right.log) / 4).exp(), param)
            param -= self._length([param], size) * correction * scale * step


@dataclass(frozen=True)
class SOAP(Optimizer, name="soap"):
    """Adam in the eigenvectors of L and R.

    Parameters
    ----------
    lr, schedule, relative, weight_decay
        See :class:`~attsvm.training.optimisers.descent.Optimizer`.
    betas : pair of float
        Decay of the two means, as for Adam.
    beta : float
        Decay of L and R.
    refresh : int
        Steps between two computations of the eigenvectors.
    eps : float
        Added to the root of the second mean, in units of its largest entry.

    Raises
    ------
    ValueError
        If a number is outside its range.
    """

    lr: float = 0.2
    schedule: Schedule = "sqrt"
    betas: tuple[float, float] = (0.95, 0.95)
    beta: float = 0.95
    refresh: int = 10
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check_beta(self.beta)
        if not all(0 <= beta < 1 for beta in self.betas) or not self.eps > 0 or self.refresh < 1:
            raise ValueError(
                f"betas are {self.betas}, eps {self.eps} and refresh {self.refresh}; 0 <= beta < 1, eps > 0 and "
                "refresh >= 1 were expected."
            )

    def start(self, params: list[Tensor], objective: Objective) -> State:
        """Return zero means; the first gradient gives the first eigenvectors."""
        return {
            "grams": [_grams(param) for param in params],
            "first": [ScaledMean(param) for param in params],
            "second": [ScaledMean(param) for param in params],
            "bases": [None] * len(params),
        }

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        beta1, beta2 = self.betas
        log = scaled.log_mean
        correction = math.sqrt(1 - beta2 ** (k + 1)) / (1 - beta1 ** (k + 1))
        for j, (param, grad) in enumerate(zip(params, grads, strict=True)):
            left, right = state["grams"][j]
            first, second = state["first"][j], state["second"][j]
            _add(left, right, grad, log, self.beta)
            if k % self.refresh == 0 or state["bases"][j] is None:
                state["bases"][j] = tuple(_eigenvectors(mean.mantissa) for mean in (left, right))
            U, V = state["bases"][j]
            first.update(beta1, 1 - beta1, grad, log)
            second.update(beta2, 1 - beta2, (U.mT @ grad @ V).square(), 2 * log)
            root = second.mantissa.sqrt()
            floor = self.eps * root.flatten(1).amax(-1)
            step = (U.mT @ first.mantissa @ V) / (root + per_trial(floor + (floor == 0), root))
            scale = per_trial((first.log - second.log / 2).exp(), param)
            param -= self._length([param], size) * correction * scale * (U @ step @ V.mT)


def _eigenvectors(matrix: Tensor) -> Tensor:
    steady, nonfinite = numbers_only(matrix)
    return torch.linalg.eigh(steady).eigenvectors + nonfinite
