"""Read attention modules that store their weights as tensors, one matrix per head, such as TransformerLens'.

They are identified by their attributes, not by their class: tensors ``W_Q`` and ``W_K`` of shape (heads, d, dh),
optionally ``b_Q`` and ``b_K`` of shape (heads, dh). Their first argument (queries) and second argument (keys) have
shape (B, T, d), or (B, T, heads, d) if each head has its own, or each group of query heads that share a key head.
"""

from __future__ import annotations

from typing import Any

import torch

from attsvm_pretrained.activations.maps import AffineMap, Place
from attsvm_pretrained.activations.recording import AttentionCall
from attsvm_pretrained.activations.rotation import AGREE, Rotation, fit_rotation, relative_difference


def explain_weights(call: AttentionCall, head: int, group: int) -> tuple[AffineMap, AffineMap, Rotation | None] | None:
    """Explain queries and keys by the module's own tensors; None if it has none or they do not fit.

    ``head`` and ``group`` are the numbers of the query head and of the key head.
    """
    inputs = [one for one in call.arguments if one.dtype.is_floating_point and one.ndim in (3, 4)]
    if not inputs:
        return None
    query = _map(call, "Q", inputs[0], head, head)
    key = _map(call, "K", inputs[1] if len(inputs) > 1 else inputs[0], head, group)
    if query is None or key is None:
        return None
    images = [_image(side) for side in (query, key)]
    blocks = [call.query[:, head].double(), call.key[:, group].double()]
    if all(relative_difference(image, vectors) < AGREE for image, vectors in zip(images, blocks, strict=True)):
        return query, key, None
    if blocks[0].shape != blocks[1].shape:
        return None
    rotation = fit_rotation(torch.stack(images, dim=2), torch.stack(blocks, dim=2))
    return None if rotation is None else (query, key, rotation)


def _image(side: AffineMap) -> torch.Tensor:
    image = side.tokens.detach().double() @ side.weight
    return image if side.bias is None else image + side.bias


def _map(call: AttentionCall, side: str, states: torch.Tensor, head: int, group: int) -> AffineMap | None:
    """Read the matrix of a head; if query heads share key heads, keys have fewer matrices."""
    weights: Any = getattr(call.module, f"W_{side}", None)
    bias: Any = getattr(call.module, f"b_{side}", None)
    if not isinstance(weights, torch.Tensor) or weights.ndim != 3:
        return None
    number = head if len(weights) == call.query.shape[1] else group
    inputs = states[:, :, head * states.shape[2] // call.query.shape[1]] if states.ndim == 4 else states
    if number >= len(weights) or weights.shape[1] != inputs.shape[-1] or weights.shape[2] != call.query.shape[-1]:
        return None
    b = bias[number].detach().double() if isinstance(bias, torch.Tensor) else None
    place = Place(call.path, 0, weights.shape[2], False, 1.0, "weights")
    return AffineMap(inputs, weights[number].detach().double(), b, place, states)
