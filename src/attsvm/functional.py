r"""Softmax, attention and cross-entropy whose gradients stay right when they saturate.

The gradient of softmax, :math:`dA = P \odot (g - \langle P, g\rangle)`, is evaluated by every framework as written.
Once one probability is 1 up to rounding, :math:`g_\top - \langle P, g\rangle` is a difference of equal numbers: in
float64 the row is noise from margin 36, in float32 from 16, in bfloat16 from 5. But the formula does not change when a
constant is subtracted from g. With :math:`D = g - g_\top`, where :math:`\top` is the current largest entry,

.. math:: dA = P \odot (D - \langle P, D\rangle)

has nothing large left to cancel: :math:`\langle P, D\rangle = \sum_{t\ne\top} P_t D_t` is a sum of the small terms, and
the top entry becomes :math:`-P_\top \sum_{t\ne\top} P_t D_t`, accurate to rounding. The same holds for cross-entropy,
whose gradient at the label is minus the sum of the others. What remains is the underflow of exp, near margin 745 in
float64 and 103 in float32; :mod:`attsvm.training.gradient` goes on in logarithms.

Everything is differentiable twice and works under torch.func transforms and torch.compile; softmax and cross-entropy
are differentiable in forward mode too.

:func:`margin` and :func:`max_margin` live in :mod:`attsvm.training.margins`, since they solve, and load on first use.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd import Function

# Scores of one chunk of queries stay below this many entries, 8 MB in float64; the backward pass holds about ten such.
CHUNK_ENTRIES = 1 << 20


def __getattr__(name: str) -> Any:
    if name not in ("margin", "max_margin"):
        raise AttributeError(f"module 'attsvm.functional' has no attribute {name!r}")
    return getattr(import_module("attsvm.training.margins"), name)


def _centred_product(probabilities: Tensor, vector: Tensor, dim: int) -> Tensor:
    """Return (diag(P) - P P^T) vector, centred at the top entry."""
    top = probabilities.argmax(dim, keepdim=True)
    relative = vector - vector.gather(dim, top)
    return probabilities * (relative - (probabilities * relative).sum(dim, keepdim=True))


class _ExactSoftmax(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, dim: int) -> Tensor:
        return torch.softmax(scores, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.dim = inputs[1]
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (probabilities,) = ctx.saved_tensors
        return _centred_product(probabilities, grads[0], ctx.dim), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (probabilities,) = ctx.saved_tensors
        return _centred_product(probabilities, tangents[0], ctx.dim)


def _composed_softmax(scores: Tensor, dim: int) -> Tensor:
    """Softmax from operations whose own derivatives do not cancel, for the compiler, which fuses them.

    The top entry is written as 1 minus the others, so that the others receive g_t - g_top and nothing else is summed.
    """
    top = scores.argmax(dim, keepdim=True)
    others = (scores - scores.gather(dim, top)).exp().scatter(dim, top, 0.0)
    rest = others / (1 + others.sum(dim, keepdim=True))
    return rest.scatter_add(dim, top, 1 - rest.sum(dim, keepdim=True))


def exact_softmax(scores: Tensor, dim: int = -1) -> Tensor:
    """Softmax with a backward pass that does not cancel.

    Parameters
    ----------
    scores : tensor
        Any shape; -inf hides an entry.
    dim : int

    Returns
    -------
    tensor
        The values of torch.softmax, with an accurate gradient.

    Raises
    ------
    ValueError
        If `scores` is not a floating-point tensor with that dimension.

    Examples
    --------
    >>> import torch
    >>> from attsvm.functional import exact_softmax
    >>> scores = torch.tensor([60.0, 0.0], dtype=torch.float64, requires_grad=True)
    >>> exact_softmax(scores)[0].backward()
    >>> bool(scores.grad[0] > 0)
    True
    >>> scores.grad = None
    >>> torch.softmax(scores, -1)[0].backward()
    >>> bool(scores.grad[0] > 0)
    False
    """
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        raise ValueError(
            f"scores has type {getattr(scores, 'dtype', type(scores))}; a floating-point tensor was expected."
        )
    if not -scores.ndim <= dim < scores.ndim:
        raise ValueError(f"dim is {dim}, but scores has shape {tuple(scores.shape)}; a dimension of it was expected.")
    if torch.compiler.is_compiling():
        return _composed_softmax(scores, dim)
    return _ExactSoftmax.apply(scores, dim % scores.ndim)  # pyright: ignore[reportReturnType]


def sparsemax(scores: Tensor, dim: int = -1) -> Tensor:
    """Euclidean projection onto the simplex (Martins and Astudillo 2016, arXiv 1602.02068, Algorithm 1).

    What attention under a lambda-head tends to on orthonormal tokens (arXiv 2308.16898, Lemma 6).

    Parameters
    ----------
    scores : tensor
        Any shape, finite.
    dim : int

    Returns
    -------
    tensor
        max(scores - tau, 0) with tau such that it sums to 1.

    Examples
    --------
    >>> import torch
    >>> from attsvm.functional import sparsemax
    >>> sparsemax(torch.tensor([1.0, 0.5, -1.0])).tolist()
    [0.75, 0.25, 0.0]
    """
    ordered = scores.sort(dim, descending=True).values
    shape = [1] * scores.ndim
    shape[dim] = -1
    count = torch.arange(1, scores.shape[dim] + 1, dtype=scores.dtype, device=scores.device).view(shape)
    total = ordered.cumsum(dim) - 1
    kept = (count * ordered > total).sum(dim, keepdim=True)
    tau = total.gather(dim, kept - 1) / kept
    return (scores - tau).clamp(min=0.0)


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


def _put(whole: Tensor | None, rows: Tensor, first: int, length: int) -> Tensor:
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
            output = _put(output, _probabilities(torch.softmax, scores, blind) @ value, first, query.shape[-2])
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
            d_scores = _centred_product(probabilities, out @ value.mT, -1)
            grad_query = _put(grad_query, (d_scores @ key) * ctx.scale, first, length)
            grad_key += d_scores.mT @ (part * ctx.scale)
            grad_value += probabilities.mT @ out
            if wants_mask:
                grad_mask = _put(grad_mask, d_scores, first, length)
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
                f"{name} is {_kind(tensor)}; a floating-point tensor with at least two dimensions was expected."
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


def _kind(value: object) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """log(1 + sum of e^(other - label)), of which no derivative cancels either."""
    index = target.unsqueeze(-1)
    relative = logits - logits.gather(-1, index)
    highest = relative.detach().amax(-1, keepdim=True)  # >= 0, and 0 when the label is on top
    others = (relative - highest).exp().scatter(-1, index, 0.0).sum(-1)
    highest = highest.squeeze(-1)
    return highest + torch.where(highest == 0, others.log1p(), (others + (-highest).exp()).log())


class _ExactCrossEntropy(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, target: Tensor) -> Tensor:
        return _cross_entropy(logits, target)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def _slope(logits: Tensor, target: Tensor, loss: Tensor) -> Tensor:
        """Return dloss/dlogits: the probabilities off the label, and minus their sum on it."""
        index = target.unsqueeze(-1)
        others = (logits - logits.gather(-1, index) - loss.unsqueeze(-1)).exp().scatter(-1, index, 0.0)
        return others.scatter(-1, index, -others.sum(-1, keepdim=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].unsqueeze(-1) * _ExactCrossEntropy._slope(*ctx.saved_tensors), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return (tangents[0] * _ExactCrossEntropy._slope(*ctx.saved_tensors)).sum(-1)


@overload
def exact_cross_entropy(
    logits: Tensor, target: Tensor, reduction: str = ..., *, scaled: Literal[False] = ...
) -> Tensor:
    pass


@overload
def exact_cross_entropy(
    logits: Tensor, target: Tensor, reduction: str = ..., *, scaled: Literal[True]
) -> tuple[Tensor, Tensor]:
    pass


def exact_cross_entropy(
    logits: Tensor, target: Tensor, reduction: str = "mean", *, scaled: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Cross-entropy that neither rounds a small loss to zero nor cancels in its gradient.

    Parameters
    ----------
    logits : tensor, shape (..., C)
    target : integer tensor, shape (...)
        Labels from 0 to C - 1.
    reduction : {"mean", "sum", "none"}
    scaled : bool
        Return the loss as a number of size one and an exponent. An optimiser that ignores the scale of its gradients
        can then be given those of the first, which do not underflow with the loss.

    Returns
    -------
    tensor, or pair of tensors if scaled
        A scalar, or shape (...) for "none". Of a pair s, c the loss is e^c s, and gradients flow through s alone.

    Raises
    ------
    ValueError
        If shapes or dtypes do not fit or `reduction` is unknown, or there is one class only and `scaled`.

    Examples
    --------
    >>> import torch
    >>> from attsvm.functional import exact_cross_entropy
    >>> logits = torch.tensor([[60.0, 0.0]], dtype=torch.float64)
    >>> target = torch.tensor([0])
    >>> bool(exact_cross_entropy(logits, target) > 0)
    True
    >>> torch.nn.functional.cross_entropy(logits, target).item()
    0.0
    """
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.ndim < 1:
        raise ValueError(f"logits is {_kind(logits)}; a floating-point tensor (..., C) was expected.")
    if not isinstance(target, Tensor) or target.is_floating_point() or target.shape != logits.shape[:-1]:
        raise ValueError(f"target is {_kind(target)}; integers of shape {tuple(logits.shape[:-1])} were expected.")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is {reduction!r}; 'mean', 'sum' or 'none' was expected.")
    if scaled:
        log = _log_cross_entropy(logits, target.long().unsqueeze(-1))
        exponent = log.detach() if reduction == "none" else log.detach().amax()
        loss = (log - exponent).exp()
    else:
        function: Any = _cross_entropy if torch.compiler.is_compiling() else _ExactCrossEntropy.apply
        loss, exponent = function(logits, target.long()), None
    loss = loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()
    return loss if exponent is None else (loss, exponent)


def _log_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return log log(1 + e^m), m the log-odds against the target (..., 1), which is m itself once e^m is rounding."""
    if logits.shape[-1] < 2:
        raise ValueError(f"logits has shape {tuple(logits.shape)}; two classes or more were expected with scaled=True.")
    odds = logits.scatter(-1, target, -torch.inf).logsumexp(-1) - logits.gather(-1, target).squeeze(-1)
    settled = odds < math.log(torch.finfo(logits.dtype).eps)
    return torch.where(settled, odds, torch.nn.functional.softplus(odds.masked_fill(settled, 0.0)).log())
