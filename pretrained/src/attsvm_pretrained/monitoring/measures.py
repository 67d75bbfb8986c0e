"""Measure a layer's attention during training, from some rows of its scores and from its weights.

:mod:`attsvm_pretrained.monitoring.monitor` explains the numbers.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch

from attsvm_pretrained.activations.maps import Place
from attsvm_pretrained.activations.recording import AttentionCall
from attsvm_pretrained.activations.repetition import in_float64, too_coarse
from attsvm_pretrained.activations.sources import explain

# Largest number of sequences that are measured.
SEQUENCES = 4
# Largest number of query rows that are measured per sequence.
ROWS = 32
# Number of squarings of K^T K Q^T Q before a power step: the 32nd power separates its largest eigenvalue.
SQUARINGS = 5
Factors = list[tuple[Place, Place, float]]


def query_mask(mask: torch.Tensor | None, query: torch.Tensor, keys: int) -> torch.Tensor | None:
    """Mark the queries of self-attention that are no padding; a token that does not see itself is padding.

    Parameters
    ----------
    mask : Tensor or None
        Mask of the attention function, (B or 1, H or 1, Tq, Tk), or (B, Tk) with True for tokens that are no padding.
    query : Tensor, shape (B, H, Tq, dh)
    keys : int
        Number of tokens; queries are the last ones.

    Returns
    -------
    Tensor of bool, shape (B, Tq), or None
        None if the mask does not tell.
    """
    length = query.shape[2]
    if mask is None or keys < length:
        return None
    if mask.ndim == 2:
        return mask[:, keys - length : keys].bool()
    if mask.shape[2] != length:
        return None
    sees_itself = _visible(mask[..., :keys]).any(dim=1).diagonal(keys - length, dim1=1, dim2=2)
    return sees_itself.expand(len(query), length)


def measure(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    *,
    causal: bool,
    not_padding: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """Measure some rows of a layer's scores; (H,) each, nan if no row sees two tokens.

    `not_padding` marks the queries that are no padding, bool (B, Tq).
    """
    count, keys = min(SEQUENCES, len(query)), key.shape[2]
    rows, real = _rows(query[:count], None if not_padding is None else not_padding[:count])
    q = query[:count].take_along_dim(rows[:, None, :, None], dim=2).float()
    k = key[:count].float().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = scaling * (q @ k.mT)  # (b, H, R, Tk)
    visible = real[:, None, :, None].expand_as(scores)
    if mask is not None and mask.ndim == 4:
        part = mask[:count, :, :, :keys].expand(count, -1, -1, -1)
        part = part.take_along_dim(rows[:, None, :, None], dim=2) if part.shape[2] == query.shape[2] else part
        visible = visible & _visible(part)
        scores = scores if part.dtype == torch.bool else scores + part
    else:
        if mask is not None:
            visible = visible & mask[:count, None, None, :keys].bool()
        if causal and query.shape[2] > 1:
            last = rows + (keys - query.shape[2])
            visible = visible & (torch.arange(keys, device=query.device) <= last[..., None])[:, None]
    scores, visible = (one.transpose(0, 1).flatten(1, 2) for one in (scores, visible))  # (H, rows, Tk)
    beyond = visible & ~(scores.abs() <= torch.finfo(query.dtype).max)
    finite = ~beyond.any(dim=-1)
    scores = scores.masked_fill(~visible, -torch.inf)
    chooses = finite & (visible.sum(dim=-1) > 1)
    numbers = _numbers(torch.where(chooses[..., None], scores, 0.0), query.dtype)
    total = chooses.sum(dim=-1)
    means = {name: torch.where(chooses, values, 0.0).sum(dim=-1) / total for name, values in numbers.items()}
    seen = visible.any(dim=-1)
    largest = scores.flatten(1).amax(dim=1)
    return {
        "non_finite": (seen & ~finite).sum(dim=-1) / seen.sum(dim=-1).clamp_min(1),
        "max_logit": torch.where(visible.flatten(1).any(dim=1), largest, torch.nan),
        **means,
        "margin": torch.where(chooses, numbers["margin"], torch.nan).nanmedian(dim=-1).values,
    }


def _rows(query: torch.Tensor, not_padding: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Spread at most ROWS rows evenly over the queries without padding; return them and whether each is one, (b, R)."""
    length = query.shape[2]
    count = min(ROWS, length)
    not_padding = query.new_ones(len(query), length, dtype=torch.bool) if not_padding is None else not_padding
    order = torch.argsort((~not_padding).to(torch.uint8), dim=1, stable=True)
    total, number = not_padding.sum(dim=1, keepdim=True), torch.arange(count, device=query.device)
    places = torch.where(total > count, number * total // count, number)
    return order.gather(1, places), number < total


def _visible(mask: torch.Tensor) -> torch.Tensor:
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def _numbers(scores: torch.Tensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Compute the numbers of each row of scores (H, R, Tk) for queries of a dtype: (H, R) each."""
    top = scores.topk(min(2, scores.shape[-1]), dim=-1)
    relative = (scores - top.values[..., :1]).exp()
    others = relative.scatter(-1, top.indices[..., :1], 0.0).sum(dim=-1)
    p = 1.0 / (1.0 + others)
    rounded = p.to(dtype)
    exact, single = p * (others * p), (rounded * (1.0 - rounded)).float()
    loss = ((exact - single).abs() / exact.clamp_min(torch.finfo(torch.float32).tiny)).clamp_max(1.0)
    return {
        "margin": top.values[..., 0] - top.values[..., -1],
        "entropy": torch.special.entr(torch.softmax(scores, dim=-1)).sum(dim=-1),
        "saturated": (rounded == 1).float(),
        "lost": torch.where(exact > 0, loss, 0.0),
    }


def factors_of(call: AttentionCall) -> Factors:
    """Locate each head's key and query maps; empty if a head has no separate linear maps.

    A call in a short dtype, or one that autocast made of short products, is repeated in float64.
    """
    for attempt in chain(() if too_coarse(call) else (call,), in_float64(call)):
        try:
            sides = [explain(attempt, head)[:2] for head in range(call.query.shape[1])]
        except ValueError:
            continue
        if any(side.place.kind != "linear" for pair in sides for side in pair):
            return []
        return [(key.place, query.place, call.scaling) for query, key in sides]
    return []


def weights(model: Any, factors: Factors) -> dict[str, torch.Tensor]:
    """Return norm and stable rank of W, and imbalance of K and Q, of a layer's heads; (H,) each."""
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
    block = slice(place.start, place.start + place.width)
    A = (weight[block].mT if place.rows else weight[:, block]).float() * place.factor
    return A.mT @ A
