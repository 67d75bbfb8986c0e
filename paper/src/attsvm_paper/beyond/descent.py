r"""Normalised descent on W through any map from logits to attention weights, including random maps.

The risk is the risk of :func:`attsvm.train`, :math:`\frac1n\sum_i \ell(Y_i v^\top X_i^\top p_i)`, with logistic loss,
but :math:`p_i` need not be the softmax of :math:`X_iWz_i`. Each trial has its own random generator, so its result does
not depend on the batch in which it is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm_paper.published.instances import Instances, start_seeds
from attsvm_paper.published.numerics import STEP

Attend = Callable[[Tensor, "Noise"], tuple[Tensor, Tensor | None]]
"""Maps logits (B, n, T) to attention weights (B, n, T) and a penalty (B,) or None."""


class Noise:
    """Random numbers of each trial from a separate generator.

    Parameters
    ----------
    seeds : int array, shape (B,)
    """

    def __init__(self, seeds: Sequence[int] | np.ndarray) -> None:
        self._generators = [np.random.default_rng(int(seed)) for seed in start_seeds(seeds)]

    def uniform(self, like: Tensor) -> Tensor:
        """Draw uniform numbers in (0, 1) with the shape of `like`, (B, ...)."""
        shape = tuple(like.shape[1:])
        return torch.as_tensor(np.stack([1.0 - rng.random(shape) for rng in self._generators]))


def descend(instances: Instances, attend: Attend, steps: int, seeds: Sequence[int] | np.ndarray) -> np.ndarray:
    """Train W from zero by normalised steps of the published size.

    Parameters
    ----------
    instances : Instances
    attend : callable
    steps : int
    seeds : int array, shape (B,)

    Returns
    -------
    ndarray, shape (B, d, d)
    """
    tokens, queries = (torch.as_tensor(part) for part in (instances.data.tokens, instances.data.queries))
    gamma, noise = torch.as_tensor(instances.gamma), Noise(seeds)
    W = tokens.new_zeros((len(tokens), tokens.shape[-1], queries.shape[-1]))
    for _ in range(steps):
        logits = (tokens @ (queries @ W.mT).unsqueeze(-1)).squeeze(-1).requires_grad_()  # (B, n, T)
        weights, penalty = attend(logits, noise)
        risk = torch.nn.functional.softplus(-(gamma * weights).sum(-1)).mean(-1)  # (B,)
        total: Any = (risk if penalty is None else risk + penalty).sum()
        (slope,) = torch.autograd.grad(total, logits)
        gradient = (tokens.mT @ slope.unsqueeze(-1)).squeeze(-1).mT @ queries  # (B, d, d)
        length = torch.linalg.matrix_norm(gradient, keepdim=True)
        W = W - STEP * gradient / torch.where(length > 0, length, 1.0)
    return W.numpy()
