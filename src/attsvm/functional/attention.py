"""Attention whose backward pass does not cancel, whole or a chunk of queries at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from attsvm.functional.softmax import centred_product, describe, exact_softmax

# Scores of one chunk of queries stay below this many entries, 8 MB in float64; the backward pass holds about ten such.
CHUNK_ENTRIES = 1 << 20


def _masked_scores(
    query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float, first: int
) -> tuple[Tensor, Tensor | None]:
    """Return scores (..., l, S) of queries first, first + 1, ... and the rows that see nothing, (..., l, 1) or None."""
    scores = (query * scale) @ key.mT
    if causal:
        rows = torch.arange(first, first + query.shape[-2], device=query.device)
        mask = torch.arange(key.shape[-2], device=query.device) <= rows[:, None]
    if mask is None:
        return scores, None
    if mask.dtype != torch.bool:
        scores = scores + mask
        blind = (scores == -torch.inf).all(-1, keepdim=True)
    else:
        scores = scores.masked_fill(~mask, -torch.inf)
        blind = ~mask.any(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0), blind


def _probabilities(softmax: Any, scores: Tensor, blind: Tensor | None) -> Tensor:
    probabilities = softmax(scores, -1)
    return probabilities if blind is None else probabilities.masked_fill(blind, 0.0)


def _mask_rows(mask: Tensor | None, first: int, count: int) -> Tensor | None:
    if mask is None or mask.shape[-2] == 1:
        return mask
    return mask[..., first : first + count, :]


def _insert(whole: Tensor | None, rows: Tensor, first: int, length: int) -> Tensor:
    """Write rows (..., l, m) into their place in a tensor (..., length, m), made from the first of them.

    Small tensors kept from every chunk would sit in the holes that the large ones leave, and the heap would grow by a
    whole matrix of scores.
    """
    if whole is None:
        whole = rows.new_empty((*rows.shape[:-2], length, rows.shape[-1]))
    whole[..., first : first + rows.shape[-2], :] = rows
    return whole


class _ChunkedAttention(Function):
    """Attention a chunk of queries at a time, forward and backward; scores are computed again in the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float, chunk: int
    ) -> Tensor:
        output = None
        for first in range(0, query.shape[-2], chunk):
            part = query[..., first : first + chunk, :]
            rows = _mask_rows(mask, first, chunk)
            scores, blind = _masked_scores(part, key, rows, causal, scale, first)
            output = _insert(output, _probabilities(torch.softmax, scores, blind) @ value, first, query.shape[-2])
        assert output is not None
        return output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        query, key, value, mask, ctx.causal, ctx.scale, ctx.chunk = inputs
        ctx.has_mask = mask is not None
        ctx.save_for_backward(query, key, value, *([mask] if ctx.has_mask else []))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *rest = ctx.saved_tensors
        mask = rest[0] if ctx.has_mask else None
        wants_mask = ctx.has_mask and ctx.needs_input_grad[3]
        length = query.shape[-2]
        grad_query: Any = None
        grad_mask: Any = None
        grad_key: Any = 0
        grad_value: Any = 0
        for first in range(0, length, ctx.chunk):
            part = query[..., first : first + ctx.chunk, :]
            out = grads[0][..., first : first + ctx.chunk, :]
            rows = _mask_rows(mask, first, ctx.chunk)
            scores, blind = _masked_scores(part, key, rows, ctx.causal, ctx.scale, first)
            probabilities = _probabilities(torch.softmax, scores, blind)  # (..., chunk, S)
            d_scores = centred_product(probabilities, out @ value.mT, -1)
            grad_query = _insert(grad_query, (d_scores @ key) * ctx.scale, first, length)
            grad_key += d_scores.mT @ (part * ctx.scale)
            grad_value += probabilities.mT @ out
            if wants_mask:
                grad_mask = _insert(grad_mask, d_scores, first, length)
        d_mask = None
        if wants_mask:
            assert mask is not None
            d_mask = grad_mask.sum_to_size(mask.shape)
        return (
            grad_query.sum_to_size(query.shape),
            grad_key.sum_to_size(key.shape),
            grad_value.sum_to_size(value.shape),
            d_mask, None, None, None,
        )  # fmt: skip


def exact_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    query_chunk: int | None = None,
) -> Tensor:
    """Attention with the semantics of torch's scaled_dot_product_attention and a backward pass that does not cancel.

    Parameters
    ----------
    query : tensor, shape (..., L, E)
    key : tensor, shape (..., S, E)
    value : tensor, shape (..., S, Ev)
    attn_mask : tensor broadcastable to (..., L, S), optional
        Boolean (True = visible) or added to the scores. A row that sees nothing gives zeros.
    is_causal : bool
        Query l sees keys 0..l.
    scale : float, optional
        1/sqrt(E) by default.
    query_chunk : int, optional
        Queries handled at a time. By default everything at once while the scores have at most CHUNK_ENTRIES entries,
        and chunks of that size beyond; then the backward pass computes the scores again instead of keeping them.

    Returns
    -------
    tensor, shape (..., L, Ev)

    Raises
    ------
    ValueError
        If shapes or dtypes do not fit, or a mask is given together with `is_causal`.

    Examples
    --------
    >>> import torch
    >>> from attsvm.functional import exact_attention
    >>> query = key = value = torch.eye(3).expand(2, 3, 3)
    >>> exact_attention(query, key, value, is_causal=True).shape
    torch.Size([2, 3, 3])
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.ndim < 2:
            raise ValueError(
                f"{name} is {describe(tensor)}; a floating-point tensor with at least two dimensions was expected."
            )
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not fit; "
            "(..., L, E), (..., S, E) and (..., S, Ev) were expected."
        )
    length, keys = query.shape[-2], key.shape[-2]
    if attn_mask is not None:
        if is_causal:
            raise ValueError(
                f"attn_mask {tuple(attn_mask.shape)} was given with is_causal=True; one of them was expected."
            )
        if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
            raise ValueError(f"attn_mask has dtype {attn_mask.dtype}; boolean or floating point was expected.")
        if attn_mask.ndim < 2 or attn_mask.shape[-1] not in (1, keys) or attn_mask.shape[-2] not in (1, length):
            raise ValueError(f"attn_mask has shape {tuple(attn_mask.shape)}; (..., {length}, {keys}) was expected.")
        attn_mask = attn_mask if attn_mask.dtype == torch.bool else attn_mask.to(query.dtype)
    if query_chunk is not None and query_chunk < 1:
        raise ValueError(f"query_chunk is {query_chunk}; a positive integer was expected.")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    rows = math.prod(torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])) * keys
    chunk = max(1, CHUNK_ENTRIES // max(rows, 1)) if query_chunk is None else query_chunk
    if chunk < length:
        # The compiler refuses one tensor in two places, as in self-attention; a view is another tensor.
        key, value = key.view_as(key), value.view_as(value)
        return _ChunkedAttention.apply(query, key, value, attn_mask, is_causal, scale, chunk)  # pyright: ignore
    scores, blind = _masked_scores(query, key, attn_mask, is_causal, scale, 0)
    return _probabilities(exact_softmax, scores, blind) @ value
