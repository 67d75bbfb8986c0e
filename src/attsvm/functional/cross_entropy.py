"""Cross-entropy that neither rounds a small loss to zero nor cancels in its gradient."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd import Function

from attsvm.functional.softmax import describe


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
        raise ValueError(f"logits is {describe(logits)}; a floating-point tensor (..., C) was expected.")
    if not isinstance(target, Tensor) or target.is_floating_point() or target.shape != logits.shape[:-1]:
        raise ValueError(f"target is {describe(target)}; integers of shape {tuple(logits.shape[:-1])} were expected.")
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
    is_one = odds < math.log(torch.finfo(logits.dtype).eps)
    return torch.where(is_one, odds, torch.nn.functional.softplus(odds.masked_fill(is_one, 0.0)).log())
