r"""Modular addition after arXiv 2501.04697: a network of two hidden layers, its losses, and how it is trained.

The authors' published code fixes details that the text leaves open: no biases, ReLU, torch's default initial weights,
all training pairs in every step, AdamW with an epsilon of 1e-25. Several networks with different seeds are trained at
once. The first layer on two one-hot inputs is a sum of two rows of its matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.functional.cross_entropy import exact_cross_entropy

LOSSES = ("plain", "exact", "scaled", "stablemax", "power")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
PRECISIONS = ("float32", "float64", "bfloat16")


@dataclass(frozen=True)
class Pairs:
    """Pairs of numbers, for each of B models.

    Attributes
    ----------
    rows : integer tensor, shape (B, n, 2)
        Row indices of the two inputs among the 2p rows of the first layer.
    sums : integer tensor, shape (B, n)
    """

    rows: Tensor
    sums: Tensor


def split(seeds: Any, p: int, share: float, device: str) -> tuple[Pairs, Pairs]:
    """Draw, per seed, which of the p^2 pairs are training pairs; the others are held out.

    Parameters
    ----------
    seeds : sequence of int
    p : int
    share : float
        Fraction of the pairs that is for training.
    device : str

    Returns
    -------
    Pairs, Pairs
    """
    order = np.stack([np.random.default_rng(int(seed)).permutation(p * p) for seed in seeds])
    first, second = np.divmod(order, p)
    rows = torch.as_tensor(np.stack([first, p + second], -1), device=device)
    sums = torch.as_tensor((first + second) % p, device=device)
    n = int(share * p * p)
    return Pairs(rows[:, :n], sums[:, :n]), Pairs(rows[:, n:], sums[:, n:])


def initial(seeds: Any, p: int, width: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    """Draw weights (B, 2p, width), (B, width, width), (B, width, p), uniform up to the root of 1/inputs."""
    streams = [np.random.default_rng((int(seed), 1)) for seed in seeds]
    return [
        torch.as_tensor(
            np.stack([rng.uniform(-1, 1, (inputs, outputs)) / math.sqrt(inputs) for rng in streams]),
            dtype=dtype,
            device=device,
        ).requires_grad_()
        for inputs, outputs in ((2 * p, width), (width, width), (width, p))
    ]


def logits(weights: list[Tensor], pairs: Pairs) -> Tensor:
    """Return the outputs (B, n, p) for the pairs."""
    first, *others = weights
    models, inputs, width = first.shape
    start = inputs * torch.arange(models, device=first.device)[:, None]
    table = first.reshape(-1, width)
    left, right = (torch.nn.functional.embedding(pairs.rows[..., side] + start, table) for side in (0, 1))
    state = left + right
    for weight in others:
        state = torch.bmm(state.relu(), weight)
    return state


def risk(loss: str, a: Tensor, sums: Tensor) -> Tensor:
    r"""Return the mean loss of each model.

    * *plain*: torch's cross-entropy.
    * *exact*: the same value, with a cancellation-free gradient.
    * *scaled*: the exact loss divided by its largest value among the pairs, with the common exponent removed.
    * *stablemax*: cross-entropy of :math:`s(a_y)/\sum_t s(a_t)`, where s(x) is x + 1 above zero and 1/(1 - x) below.
    * *power*: a function of the log-odds m, 1/(1 + m) above zero and 1 - m below. It keeps the softmax weights within a
      pair and has a polynomial tail between the pairs.

    Parameters
    ----------
    loss : str
    a : tensor, shape (B, n, p)
    sums : integer tensor, shape (B, n)

    Returns
    -------
    tensor, shape (B,)
    """
    if loss == "plain":
        return torch.nn.functional.cross_entropy(a.movedim(-1, 1), sums, reduction="none").mean(-1)
    if loss == "exact":
        return exact_cross_entropy(a, sums, "none", dim=-1).mean(-1)
    if loss == "scaled":
        size, exponent = exact_cross_entropy(a, sums, "none", dim=-1, scaled=True)
        return (size * (exponent - exponent.amax(-1, keepdim=True)).exp()).mean(-1)
    label = sums.unsqueeze(-1)
    if loss == "stablemax":
        # Both branches of `where` are differentiated; the clamp prevents a division by zero in the other branch.
        s = torch.where(a < 0, 1 / (1 - a.clamp(max=0)), a + 1)
        return -(s / s.sum(-1, keepdim=True)).log().gather(-1, label).squeeze(-1).mean(-1)
    odds = (a.gather(-1, label) - a.scatter(-1, label, -torch.inf).logsumexp(-1, keepdim=True)).squeeze(-1)
    return torch.where(odds < 0, 1 - odds, 1 / (1 + odds.clamp(min=0))).mean(-1)


def margins(a: Tensor, sums: Tensor) -> Tensor:
    """Return the margin of the label over the best other class, (B, n)."""
    label = sums.unsqueeze(-1)
    return (a.gather(-1, label) - a.scatter(-1, label, -torch.inf).amax(-1, keepdim=True)).squeeze(-1)


def loss_of_gradient(loss: str, a: Tensor, sums: Tensor) -> Tensor:
    """Return each model's share of pairs whose loss has a gradient of exactly zero at the label's logit."""
    leaf = a.detach().requires_grad_()
    (slope,) = torch.autograd.grad(risk(loss, leaf, sums).sum(), leaf)
    return (slope.gather(-1, sums.unsqueeze(-1)) == 0).double().mean((-2, -1))


def norms(tensors: list[Tensor]) -> Tensor:
    """Return each model's Euclidean norm over all its tensors, float64, shape (B,)."""
    return torch.stack([part.double().square().sum((1, 2)) for part in tensors]).sum(0).sqrt()


def turn(weights: list[Tensor], slopes: list[Tensor]) -> list[Tensor]:
    """Make each gradient orthogonal to its weights, with its length unchanged, per tensor and model."""
    result = []
    for weight, slope in zip(weights, slopes, strict=True):
        along = (weight * slope).sum((1, 2), keepdim=True) / weight.square().sum((1, 2), keepdim=True)
        rest = slope - along * weight
        length, left = (part.square().sum((1, 2), keepdim=True).sqrt() for part in (slope, rest))
        # A gradient along the weights has no rest; its length over a tiny number may overflow.
        scale = torch.where(left > 0, length / left.clamp(min=torch.finfo(left.dtype).tiny), 0.0)
        result.append(rest * scale)
    return result


def fit(config: Any, seeds: Any) -> list[dict[str, Any]]:
    """Train one model per seed and record it.

    Parameters
    ----------
    config : Config
        A :class:`attsvm_paper.beyond.grokking.Config`.
    seeds : sequence of int

    Returns
    -------
    list of dict
        The seed, and lists over the records: step, accuracies, margins, share of lost gradients.
    """
    train, held_out = split(seeds, config.p, config.share, config.device)
    arithmetic = DTYPES[config.precision]
    # Weights with eight bits would lose steps of a thousandth; as in mixed precision, only the loss is in bfloat16.
    dtype = torch.float32 if arithmetic == torch.bfloat16 else arithmetic
    weights = initial(seeds, config.p, config.width, dtype, config.device)
    adam = torch.optim.AdamW(
        weights, lr=config.lr, betas=(0.9, 0.99), eps=config.epsilon, weight_decay=config.decay, fused=True
    )
    every = max(config.steps // config.records, 1)
    records = []
    for step in range(config.steps + 1):
        a = logits(weights, train).to(arithmetic)
        if step % every == 0:
            records.append(measurements(config.loss, weights, a.detach(), train.sums, held_out) | {"step": step})
        if step == config.steps:
            break
        slopes = list(torch.autograd.grad(risk(config.loss, a, train.sums).sum(), weights))
        if config.optimiser == "normalised":
            descend(weights, slopes, config.lr)
            continue
        directions = turn([w.detach() for w in weights], slopes) if config.optimiser == "perpendicular" else slopes
        for weight, slope in zip(weights, directions, strict=True):
            weight.grad = slope
        adam.step()
    return [
        {name: [float(np.broadcast_to(at[name], len(seeds))[b]) for at in records] for name in records[0]}
        for b in range(len(seeds))
    ]


@torch.no_grad()
def descend(weights: list[Tensor], slopes: list[Tensor], lr: float) -> None:
    """Move by `lr` times the weights' length against the gradient; a model whose gradient is zero stays."""
    size, length = norms(slopes), norms(weights)
    step = torch.where(size > 0, lr * length / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)
    for weight, slope in zip(weights, slopes, strict=True):
        weight -= (step[:, None, None] * slope).to(weight.dtype)


def measurements(loss: str, weights: list[Tensor], a: Tensor, sums: Tensor, held_out: Pairs) -> dict[str, np.ndarray]:
    """Measure each model: accuracies, least and median margin, least margin over the cubed norm, lost gradients."""
    zeros = loss_of_gradient(loss, a, sums)
    with torch.no_grad():
        lead = margins(a, sums).double()
        least = lead.amin(-1)
        # Three layers with no biases: logits are homogeneous of degree three in the weights.
        part = {
            "train": (lead > 0).double().mean(-1),
            "test": (logits(weights, held_out).argmax(-1) == held_out.sums).double().mean(-1),
            "margin": least,
            "median": lead.median(-1).values,
            "normalised": least / norms(weights) ** 3,
            "lost": zeros,
        }
    return {name: value.cpu().numpy() for name, value in part.items()}
