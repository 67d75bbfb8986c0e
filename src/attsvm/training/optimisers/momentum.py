r"""Momentum followed by a norm's steepest direction: Signum, Lion, Muon, and Muon on the product of K and Q.

Each keeps a running mean M of the gradient, at its true scale (:mod:`attsvm.training.optimisers.moments`), and steps
along the steepest direction of a norm at M instead of G.

* **Signum** (arXiv 1802.04434): the sign of M.
* **Lion** (arXiv 2302.06675): the sign of a mean in which the last gradient has a larger weight than in M.
* **Muon** (K. Jordan, "Muon: an optimizer for hidden layers in neural networks", 2024): the polar factor of M, exactly,
  or by the five Newton-Schulz steps of the published code, which give singular values of 0.7 to 1.2.
* **Compositional Muon** (B. Keigwin et al., "Towards compositional steepest descent", 2026) bounds the change of
  :math:`KQ^\top` instead of the changes of K and Q. Let :math:`C_Q = (Q^\top Q + \lambda I)^{1/2}`; then :math:`\Delta
  K = -\tfrac\eta2\, \mathrm{polar}(M_K C_Q^{-1})\, C_Q^{-1}`. The change of Q has the same form with K and Q exchanged.

If steps decay, the gradient hardly changes within the memory of M, and the bias equals the bias of steepest descent in
the norm. arXiv 2502.04664 proves it for Signum and Muon in linear multiclass models.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.training.optimisers.descent import Optimizer, State, safe
from attsvm.training.optimisers.moments import ScaledMean
from attsvm.training.optimisers.schedule import Schedule
from attsvm.training.optimisers.steepest import numbers_only, polar_factor
from attsvm.training.risk.objective import Gradient, Objective

# Jordan's quintic: its slope at zero is the largest that keeps singular values bounded.
QUINTIC = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
# Eigenvalue of a Gram matrix, relative to the largest, below which it counts as zero.
_NULL = 1e-12


def _check_share(name: str, share: float) -> None:
    if not 0 <= share < 1:
        raise ValueError(f"{name} is {share}; 0 <= {name} < 1 was expected.")


@dataclass(frozen=True)
class Signum(Optimizer, name="signum"):
    """The sign of a running mean of the gradient.

    Parameters
    ----------
    lr, schedule, relative, weight_decay
        See :class:`~attsvm.training.optimisers.descent.Optimizer`.
    momentum : float
        In [0, 1); 0 is sign descent.

    Raises
    ------
    ValueError
        If the momentum is outside its range.
    """

    lr: float = 0.2
    schedule: Schedule = "sqrt"
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check_share("momentum", self.momentum)

    def start(self, params: list[Tensor], objective: Objective) -> State:
        """Return zero means."""
        return {"mean": [ScaledMean(param) for param in params]}

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        for param, grad, mean in zip(params, grads, state["mean"], strict=True):
            mean.update(self.momentum, 1 - self.momentum, grad, scaled.log_mean)
            param -= self._length([param], size) * mean.mantissa.sign()


@dataclass(frozen=True)
class Lion(Optimizer, name="lion"):
    """The sign of a mean of the gradient and of its running mean.

    Parameters
    ----------
    lr, schedule, relative, weight_decay
        See :class:`~attsvm.training.optimisers.descent.Optimizer`.
    betas : pair of float
        Weight of the running mean in the step, and its decay.

    Raises
    ------
    ValueError
        If a beta is outside [0, 1).
    """

    lr: float = 0.2
    schedule: Schedule = "sqrt"
    betas: tuple[float, float] = (0.9, 0.99)

    def __post_init__(self) -> None:
        for beta in self.betas:
            _check_share("beta", beta)

    def start(self, params: list[Tensor], objective: Objective) -> State:
        """Return zero means."""
        return {"mean": [ScaledMean(param) for param in params]}

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        beta1, beta2 = self.betas
        for param, grad, mean in zip(params, grads, state["mean"], strict=True):
            direction, _ = mean.mixed(beta1, 1 - beta1, grad, scaled.log_mean)
            mean.update(beta2, 1 - beta2, grad, scaled.log_mean)
            param -= self._length([param], size) * direction.sign()


@dataclass(frozen=True)
class Muon(Optimizer, name="muon"):
    """The polar factor of a running mean of the gradient.

    Parameters
    ----------
    lr, schedule, relative, weight_decay
        See :class:`~attsvm.training.optimisers.descent.Optimizer`.
    momentum : float
        In [0, 1).
    nesterov : bool
        Step along momentum * M + (1 - momentum) * G instead of M.
    orthogonalization : {"polar", "newton-schulz"}
        The exact polar factor, or five quintic Newton-Schulz steps.

    Raises
    ------
    ValueError
        If the momentum or the orthogonalization is invalid.
    """

    lr: float = 0.5
    schedule: Schedule = "sqrt"
    momentum: float = 0.95
    nesterov: bool = True
    orthogonalization: str = "polar"

    def __post_init__(self) -> None:
        _check_share("momentum", self.momentum)
        if self.orthogonalization not in ("polar", "newton-schulz"):
            raise ValueError(f"orthogonalization is {self.orthogonalization!r}; 'polar' or 'newton-schulz' expected.")

    def start(self, params: list[Tensor], objective: Objective) -> State:
        """Return zero means."""
        return {"mean": [ScaledMean(param) for param in params]}

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        orthogonal = polar_factor if self.orthogonalization == "polar" else newton_schulz
        for param, grad, mean in zip(params, grads, state["mean"], strict=True):
            mean.update(self.momentum, 1 - self.momentum, grad, scaled.log_mean)
            direction = mean.mantissa
            if self.nesterov:
                direction, _ = mean.mixed(self.momentum, 1 - self.momentum, grad, scaled.log_mean)
            param -= self._length([param], size) * orthogonal(direction)


@dataclass(frozen=True)
class CompositionalMuon(Optimizer, name="compositional_muon", W="it moves K Q^T through K and Q: take 'muon'"):
    """Steps on K and Q with a bounded spectral norm of the change in K Q^T; needs parameterization="KQ".

    Parameters
    ----------
    lr, schedule, relative, weight_decay
        See :class:`~attsvm.training.optimisers.descent.Optimizer`.
    momentum : float
        In [0, 1), for the gradients of K and of Q.
    damping : float
        The lambda of the Gram roots, positive.

    Raises
    ------
    ValueError
        If the momentum or the damping is outside its range.
    """

    lr: float = 0.5
    schedule: Schedule = "sqrt"
    momentum: float = 0.95
    damping: float = 1e-8

    def __post_init__(self) -> None:
        _check_share("momentum", self.momentum)
        if not 0 < self.damping < float("inf"):
            raise ValueError(f"damping is {self.damping}; a positive number was expected.")

    def start(self, params: list[Tensor], objective: Objective) -> State:
        """Return zero means; raise ValueError if there is only one matrix."""
        if len(params) != 2:
            raise ValueError("optimizer 'compositional_muon' has parameterization='W'; 'KQ' was expected.")
        return {"mean": [ScaledMean(param) for param in params]}

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        steps = []
        for grad, mean, partner in zip(grads, state["mean"], params[::-1], strict=True):
            mean.update(self.momentum, 1 - self.momentum, grad, scaled.log_mean)
            steady, nonfinite = numbers_only(partner.mT @ partner)
            values, vectors = torch.linalg.eigh(steady)
            # Along a null direction of the other factor the product does not change; whitening would magnify rounding
            # there.
            null = values <= _NULL * values[..., -1:]
            roots = (values + self.damping).rsqrt().masked_fill(null, 0.0)
            whitening = (vectors * roots.unsqueeze(-2)) @ vectors.mT + nonfinite
            steps.append(polar_factor(mean.mantissa @ whitening) @ whitening)
        length = self._length(params, size)
        for param, step in zip(params, steps, strict=True):
            param -= length / 2 * step


def newton_schulz(matrix: Tensor) -> Tensor:
    """Apply five quintic Newton-Schulz steps to each matrix, (..., d, m): its approximate polar factor."""
    X = matrix / safe(torch.linalg.matrix_norm(matrix, keepdim=True))
    if tall := X.shape[-2] > X.shape[-1]:
        X = X.mT
    a, b, c = QUINTIC
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = X @ X.mT
        X = a * X + (b * gram + c * gram @ gram) @ X
    return X.mT if tall else X
