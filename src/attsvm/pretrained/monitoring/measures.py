"""Numbers of a layer's attention during training, from some rows of its scores and from its weights.

:mod:`attsvm.pretrained.monitoring.monitor` explains them.
"""

from __future__ import annotations

from typing import Any

import torch

from attsvm.pretrained.activations.maps import Place
from attsvm.pretrained.activations.recording import AttentionCall
from attsvm.pretrained.activations.sources import explain

# Number of sequences examined, and approximate number of query rows in each.
SEQUENCES, ROWS = 4, 32
# Number of squarings of K^T K Q^T Q before a power step: the 32nd power separates its largest eigenvalue.
SQUARINGS = 5
Factors = list[tuple[Place, Place, float]]


def measure(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, scaling: float, *, causal: bool
) -> dict[str, torch.Tensor]:
    """Measure some rows of a layer's scores; (H,) each."""
    count, length = min(SEQUENCES, len(query)), query.shape[2]
    rows = torch.arange(0, length, max(1, length // ROWS), device=query.device)
    q, k = query[:count, :, rows].float(), key[:count].float()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = scaling * (q @ k.mT)  # (b, H, R, Tk)
    if mask is not None:
        own = mask[:count, :, :, : k.shape[2]]
        own = own[:, :, rows] if own.shape[2] == length else own
        scores = scores.masked_fill(~own, -torch.inf) if own.dtype == torch.bool else scores + own
        hidden = scores <= torch.finfo(own.dtype).min / 2 if own.dtype.is_floating_point else ~own
        scores = scores.masked_fill(hidden, -torch.inf)
    elif causal and length > 1:
        places = torch.arange(k.shape[2], device=query.device)
        scores = scores.masked_fill(places > rows[:, None] + (k.shape[2] - length), -torch.inf)
    scores = scores.transpose(0, 1).flatten(1, 2)  # (H, rows, Tk)
    has_choice = torch.isfinite(scores).sum(dim=-1) > 1  # rows that choose
    top = scores.topk(min(2, scores.shape[-1]), dim=-1)
    highest = top.values[..., :1]
    others = (scores - highest).exp().scatter(-1, top.indices[..., :1], 0.0).sum(dim=-1)
    others = torch.where(has_choice, others, 0.0)
    p = 1.0 / (1.0 + others)
    rounded = p.to(query.dtype)
    exact, single = p * (others * p), (rounded * (1.0 - rounded)).float()
    probability = torch.softmax(scores.masked_fill(~has_choice[..., None], 0.0), dim=-1)
    total = has_choice.sum(dim=-1).clamp_min(1)
    loss = ((exact - single).abs() / exact.clamp_min(torch.finfo(torch.float32).tiny)).clamp_max(1.0)
    margin = torch.where(has_choice, top.values[..., 0] - top.values[..., -1], torch.nan)
    return {
        "max_logit": torch.where(torch.isfinite(scores), scores, -torch.inf).amax(dim=(1, 2)),
        "margin": margin.nanmedian(dim=-1).values,
        "entropy": torch.where(has_choice, torch.special.entr(probability).sum(dim=-1), 0.0).sum(dim=-1) / total,
        "saturated": (has_choice & (rounded == 1)).sum(dim=-1) / total,
        "lost": torch.where(has_choice & (exact > 0), loss, 0.0).sum(dim=-1) / total,
    }


def factors_of(call: AttentionCall) -> Factors:
    """Locate each head's key and query maps; empty if a head has no separate linear maps."""
    places: Factors = []
    try:
        for head in range(call.query.shape[1]):
            query, key, _ = explain(call, head)
            places.append((key.place, query.place, call.scaling))
    except ValueError:
        return []
    return places if all(one.kind == "linear" for pair in places for one in pair[:2]) else []


def weights(model: Any, factors: Factors) -> dict[str, torch.Tensor]:
    """Norm and stable rank of W, and imbalance of K and Q, of a layer's heads; (H,) each."""
    if not factors:
        return {}
    keys = torch.stack([_gram(model, place) for place, _, _ in factors])  # (H, dh, dh)
    queries = torch.stack([_gram(model, place) for _, place, _ in factors])
    scale = factors[0][2]
    product = keys @ queries
    squared = product.diagonal(dim1=-2, dim2=-1).sum(dim=-1).clamp_min(0.0)
    power = product / product.flatten(1).norm(dim=1).clamp_min(1e-30)[:, None, None]
    for _ in range(SQUARINGS):
        power = power @ power
        power = power / power.flatten(1).norm(dim=1).clamp_min(1e-30)[:, None, None]
    vector = power.sum(dim=-1, keepdim=True)
    largest = (product @ vector).norm(dim=1)[:, 0] / vector.norm(dim=1)[:, 0].clamp_min(1e-30)
    return {
        "norm": scale * squared.sqrt(),
        "stable_rank": squared / largest.clamp_min(1e-30),
        "imbalance": (keys - queries).flatten(1).norm(dim=1),
    }


def _gram(model: Any, place: Place) -> torch.Tensor:
    """Return A^T A of a head's map A (d, dh), without its bias."""
    weight = model.get_submodule(place.path).weight.detach()
    own = slice(place.start, place.start + place.width)
    A = (weight[own].mT if place.rows else weight[:, own]).float() * place.factor
    return A.mT @ A
