"""Attention whose backward pass does not cancel, computed at once or by chunks of queries."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from attsvm.functional.softmax import centred_product, describe, exact_softmax

# Largest number of scores in one chunk of queries on a CPU; the backward pass needs about eight arrays of this size.
CHUNK_ENTRIES = 1 << 20
# Largest number of scores in one chunk of queries on an accelerator, which smaller chunks would leave idle.
ACCELERATOR_ENTRIES = 1 << 25


def _masked_scores(
    query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float, first: int
) -> tuple[Tensor, Tensor | None]:
    """Return scores (..., l, S) of queries from index `first`, and the rows without keys, (..., l, 1) or None."""
    scores = (query * scale) @ key.mT
    if causal:
        # Every query sees the first key. On a CPU a sum takes less time than masked_fill.
        return scores + torch.full_like(scores[(0,) * (scores.ndim - 2)], -torch.inf).triu(first + 1), None
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


def _dropped(values: Tensor, kept: Tensor | None, unit: float) -> Tensor:
    """Apply dropout to probabilities or their gradient; entries that remain are multiplied by `unit`."""
    return values if kept is None else (values * unit).masked_fill(~kept, 0.0)


def _mask_rows(mask: Tensor | None, first: int, count: int, visible: int) -> Tensor | None:
    """Return the rows of an attention or dropout mask that belong to a chunk of queries, for the visible keys."""
    if mask is None:
        return None
    rows = mask if mask.shape[-2] == 1 else mask[..., first : first + count, :]
    return rows[..., :visible]


def _insert(whole: Tensor | None, rows: Tensor, first: int, length: int) -> Tensor:
    """Write rows (..., l, m) at index `first` into a tensor (..., length, m), which the first call creates.

    A small tensor per chunk would fragment the heap, which would then grow by a whole matrix of scores.
    """
    if whole is None:
        whole = rows.new_empty((*rows.shape[:-2], length, rows.shape[-1]))
    whole[..., first : first + rows.shape[-2], :] = rows
    return whole


def _add(total: Tensor | None, rows: Tensor) -> Tensor:
    """Add rows (..., l, m) to the first l rows of a sum; the first call returns its rows."""
    if total is None:
        return rows
    total[..., : rows.shape[-2], :] += rows
    return total


class _ChunkedAttention(Function):
    """Attention by chunks of queries, forward and backward; the backward pass computes the scores again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        kept: Tensor | None,
        unit: float,
        causal: bool,
        scale: float,
        chunk: int,
    ) -> Tensor:
        output = None
        for first in range(0, query.shape[-2], chunk):
            part = query[..., first : first + chunk, :]
            visible = min(key.shape[-2], first + chunk) if causal else key.shape[-2]
            rows, kept_rows = (_mask_rows(one, first, chunk, visible) for one in (mask, kept))
            scores, blind = _masked_scores(part, key[..., :visible, :], rows, causal, scale, first)
            weights = _dropped(_probabilities(torch.softmax, scores, blind), kept_rows, unit)
            output = _insert(output, weights @ value[..., :visible, :], first, query.shape[-2])
        assert output is not None
        return output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        query, key, value, mask, kept, ctx.unit, ctx.causal, ctx.scale, ctx.chunk = inputs
        ctx.has_mask = mask is not None
        ctx.save_for_backward(query, key, value, *(one for one in (mask, kept) if one is not None))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *rest = ctx.saved_tensors
        mask = rest.pop(0) if ctx.has_mask else None
        kept = rest.pop() if rest else None
        wants_mask = ctx.has_mask and ctx.needs_input_grad[3]
        length = query.shape[-2]
        grad_query: Any = None
        grad_mask: Any = None
        grad_key: Any = None
        grad_value: Any = None
        # The last queries see all keys and come first, so their gradients have the size of the sums.
        for first in reversed(range(0, length, ctx.chunk)):
            part = query[..., first : first + ctx.chunk, :]
            out = grads[0][..., first : first + ctx.chunk, :]
            visible = min(key.shape[-2], first + ctx.chunk) if ctx.causal else key.shape[-2]
            keys, values = key[..., :visible, :], value[..., :visible, :]
            rows, kept_rows = (_mask_rows(one, first, ctx.chunk, visible) for one in (mask, kept))
            scores, blind = _masked_scores(part, keys, rows, ctx.causal, ctx.scale, first)
            probabilities = _probabilities(torch.softmax, scores, blind)  # (..., chunk, visible)
            d_scores = centred_product(probabilities, _dropped(out @ values.mT, kept_rows, ctx.unit), -1)
            grad_query = _insert(grad_query, (d_scores @ keys) * ctx.scale, first, length)
            grad_key = _add(grad_key, d_scores.mT @ (part * ctx.scale))
            grad_value = _add(grad_value, _dropped(probabilities, kept_rows, ctx.unit).mT @ out)
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
            d_mask, None, None, None, None, None,
        )  # fmt: skip


def exact_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    query_chunk: int | None = None,
) -> Tensor:
    """Attention with the semantics of torch's scaled_dot_product_attention and a backward pass that does not cancel.

    Arguments have torch's order. Under autocast they are cast as in torch's function.

    Parameters
    ----------
    query : tensor, shape (..., L, E)
    key : tensor, shape (..., S, E)
    value : tensor, shape (..., S, Ev)
    attn_mask : tensor broadcastable to (..., L, S), optional
        Boolean (True = visible) or added to the scores. A row without visible keys gives zeros.
    dropout_p : float
        Probability of setting an attention probability to zero, in training and in evaluation; the others are divided
        by 1 - dropout_p. On a CPU a seed drops the same entries as in torch. The mask is stored for the backward pass,
        one byte per score.
    is_causal : bool
        Query l sees keys 0..l.
    scale : float, optional
        1/sqrt(E) by default.
    enable_gqa : bool
        Let consecutive query heads (dimension -3) share a head of key and value. The number of these heads divides the
        number of query heads.
    query_chunk : int, optional
        Number of queries per chunk. By default all queries, if there are at most 2^20 scores (2^25 on an accelerator),
        and chunks of that size otherwise. The backward pass of chunks computes the scores again and stores none.

    Returns
    -------
    tensor, shape (..., L, Ev)

    Raises
    ------
    ValueError
        If shapes or dtypes do not fit, `dropout_p` is no probability, or a mask is given together with `is_causal`.

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
    if enable_gqa:
        key, value = (_repeated(name, heads, query) for name, heads in (("key", key), ("value", value)))
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
    if query_chunk is not None and query_chunk < 1:
        raise ValueError(f"query_chunk is {query_chunk}; a positive integer was expected.")
    if isinstance(dropout_p, bool) or not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p is {dropout_p}; a number from 0 to 1 was expected.")
    kind = query.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        query, key, value = (_autocast(tensor) for tensor in (query, key, value))
        options: dict[str, Any] = {"scale": scale, "query_chunk": query_chunk}
        with torch.autocast(kind, enabled=False):
            return exact_attention(query, key, value, attn_mask, dropout_p, is_causal, **options)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.to(query.dtype)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    entries = CHUNK_ENTRIES if kind == "cpu" else ACCELERATOR_ENTRIES
    chunk = max(1, entries // max(math.prod(batch) * keys, 1)) if query_chunk is None else query_chunk
    kept, unit = None, 1.0
    if dropout_p > 0.0:
        batch = batch if attn_mask is None else torch.broadcast_shapes(batch, attn_mask.shape[:-2])
        kept = torch.empty((*batch, length, keys), dtype=torch.bool, device=query.device).bernoulli_(1.0 - dropout_p)
        unit = 1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0
    if is_causal and keys > length:
        key, value = key[..., :length, :], value[..., :length, :]
        kept = None if kept is None else kept[..., :length]
    if chunk < length:
        # The compiler refuses one tensor as two arguments, as in self-attention; a view is another tensor.
        key, value = key.view_as(key), value.view_as(value)
        inputs = (query, key, value, attn_mask, kept, unit, is_causal, scale, chunk)
        return _ChunkedAttention.apply(*inputs)  # pyright: ignore
    scores, blind = _masked_scores(query, key, attn_mask, is_causal, scale, 0)
    return _dropped(_probabilities(exact_softmax, scores, blind), kept, unit) @ value


def _repeated(name: str, heads: Tensor, query: Tensor) -> Tensor:
    """Give every query head its head of key or value, dimension -3."""
    if min(heads.ndim, query.ndim) < 3 or query.shape[-3] % heads.shape[-3]:
        raise ValueError(
            f"{name} has shape {tuple(heads.shape)} with enable_gqa=True; a number of heads, dimension -3, that "
            f"divides the number of heads of query {tuple(query.shape)} was expected."
        )
    return heads.repeat_interleave(query.shape[-3] // heads.shape[-3], -3)


def _autocast(tensor: Tensor) -> Tensor:
    """Cast the inputs of attention as autocast does: all dtypes except float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.to(torch.get_autocast_dtype(tensor.device.type))
