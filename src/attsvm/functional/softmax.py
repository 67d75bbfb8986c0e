"""Softmax that keeps its gradient when it saturates, and sparsemax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def centred_product(probabilities: Tensor, vector: Tensor, dim: int) -> Tensor:
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
        return centred_product(probabilities, grads[0], ctx.dim), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (probabilities,) = ctx.saved_tensors
        return centred_product(probabilities, tangents[0], ctx.dim)


def _composed_softmax(scores: Tensor, dim: int) -> Tensor:
    """Softmax from operations whose derivatives do not cancel, for the compiler, which fuses them.

    The top entry is written as 1 minus the others, so the others receive g_t - g_top.
    """
    top = scores.argmax(dim, keepdim=True)
    others = (scores - scores.gather(dim, top)).exp().scatter(dim, top, 0.0)
    rest = others / (1 + others.sum(dim, keepdim=True))
    return rest.scatter_add(dim, top, 1 - rest.sum(dim, keepdim=True))


def describe(value: object) -> str:
    """Describe an argument for an error message."""
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def at_least_single(value: Tensor) -> Tensor:
    """Return half precision as float32, and wider dtypes unchanged."""
    return value.float() if value.dtype.itemsize < torch.float32.itemsize else value


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

    The limit of attention under a lambda-head on orthonormal tokens (arXiv 2308.16898, Lemma 6).

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
    order_statistics = scores.sort(dim, descending=True).values
    shape = [1] * scores.ndim
    shape[dim] = -1
    count = torch.arange(1, scores.shape[dim] + 1, dtype=scores.dtype, device=scores.device).view(shape)
    total = order_statistics.cumsum(dim) - 1
    size = (count * order_statistics > total).sum(dim, keepdim=True)
    tau = total.gather(dim, size - 1) / size
    return (scores - tau).clamp(min=0.0)
