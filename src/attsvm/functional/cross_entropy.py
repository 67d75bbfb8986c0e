r"""Cross-entropy that neither rounds a small loss to zero nor cancels in its gradient.

A row with logits a, probabilities P and target weights :math:`q\ge0` of sum Q has the loss
:math:`\sum_c q_c(-\log P_c)` and the gradient :math:`QP_c - q_c`. At most one entry has more than half of all terms,
:math:`QP_c + q_c > Q`: the entry of a label, or of the class of a nearly certain target. Its two terms cancel as the
class is learned, so the entry is written as minus the sum of the others. The value uses the same class as reference:
its :math:`-\log P_c` is log1p of the sum of the others.
"""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd import Function

from attsvm.functional.softmax import at_least_single, describe, exact_softmax

# Label of ignored rows, as in torch.
IGNORED = -100


def _surprise(logits: Tensor, reference: Tensor, heavy: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return b = logits - level (..., C) and log sum e^b (..., 1), whose derivatives do not cancel.

    The level is the logit of the reference class (..., 1), so its b is the constant zero. Rows that are not heavy have
    a constant level and the usual derivatives.
    """

    def but_reference(values: Tensor) -> Tensor:
        if heavy is None:
            return values.scatter(-1, reference, 0.0)
        return values.scatter(-1, reference, values.gather(-1, reference).masked_fill(heavy, 0.0))

    level = logits.gather(-1, reference)
    if heavy is not None:
        level = torch.where(heavy, level, logits.detach().amax(-1, keepdim=True))
    relative = but_reference(logits - level)
    highest = relative.detach().amax(-1, keepdim=True)  # >= 0, and 0 when the reference is on top
    others = but_reference((relative - highest).exp()).sum(-1, keepdim=True)
    reference_term = (-highest).exp() if heavy is None else (-highest).exp().masked_fill(~heavy, 0.0)
    near = highest == 0 if heavy is None else (highest == 0) & heavy
    return relative, highest + torch.where(near, others.log1p(), (others + reference_term).log())


def _label_loss(logits: Tensor, target: Tensor) -> Tensor:
    return _surprise(logits, target.unsqueeze(-1))[1].squeeze(-1)


def _heaviest(logits: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class with the largest terms of the gradient and whether they are more than half of all, (..., 1)."""
    total = weights.detach().sum(-1, keepdim=True)
    terms, reference = (total * torch.softmax(logits.detach(), -1) + weights.detach()).max(-1, keepdim=True)
    return reference, terms > total


def _weighted_loss(logits: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of weights times -log P; the product of a zero weight and an infinite -log P counts as zero."""
    relative, total = _surprise(logits, *_heaviest(logits, weights))
    return weights.sum(-1) * total.squeeze(-1) - (weights * relative.masked_fill(weights == 0, 0.0)).sum(-1)


class _LabelLoss(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, target: Tensor) -> Tensor:
        return _label_loss(logits, target)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def _slope(logits: Tensor, target: Tensor) -> Tensor:
        """Return dloss/dlogits: the probabilities off the label, and minus their sum on it."""
        index = target.unsqueeze(-1)
        others = exact_softmax(logits).scatter(-1, index, 0.0)
        return others.scatter(-1, index, -others.sum(-1, keepdim=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].unsqueeze(-1) * _LabelLoss._slope(*ctx.saved_tensors), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return (tangents[0] * _LabelLoss._slope(*ctx.saved_tensors)).sum(-1)


class _WeightedLoss(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, weights: Tensor) -> Tensor:
        return _weighted_loss(logits, weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def _slope(logits: Tensor, weights: Tensor) -> Tensor:
        """Return dloss/dlogits."""
        reference, heavy = _heaviest(logits, weights)
        slope = weights.sum(-1, keepdim=True) * exact_softmax(logits) - weights
        others = slope.scatter(-1, reference, 0.0)
        return torch.where(heavy, others.scatter(-1, reference, -others.sum(-1, keepdim=True)), slope)

    @staticmethod
    def _minus_log(logits: Tensor, weights: Tensor) -> Tensor:
        """Return dloss/dweights."""
        relative, total = _surprise(logits, *_heaviest(logits, weights))
        return total - relative

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        if grads[0] is None:
            return None, None
        grad, wants = grads[0].unsqueeze(-1), ctx.needs_input_grad
        functions = (_WeightedLoss._slope, _WeightedLoss._minus_log)
        first, second = (
            grad * function(*ctx.saved_tensors) if wanted else None
            for function, wanted in zip(functions, wants, strict=True)
        )
        return first, second

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        pairs = zip(tangents, (_WeightedLoss._slope, _WeightedLoss._minus_log), strict=True)
        parts = [(one * function(*ctx.saved_tensors)).sum(-1) for one, function in pairs if one is not None]
        return torch.stack(parts).sum(0)


@overload
def exact_cross_entropy(
    logits: Tensor,
    target: Tensor,
    reduction: str = ...,
    *,
    weight: Tensor | None = ...,
    ignore_index: int = ...,
    label_smoothing: float = ...,
    dim: int | None = ...,
    scaled: Literal[False] = ...,
) -> Tensor:
    pass


@overload
def exact_cross_entropy(
    logits: Tensor,
    target: Tensor,
    reduction: str = ...,
    *,
    weight: Tensor | None = ...,
    ignore_index: int = ...,
    label_smoothing: float = ...,
    dim: int | None = ...,
    scaled: Literal[True],
) -> tuple[Tensor, Tensor]:
    pass


def exact_cross_entropy(
    logits: Tensor,
    target: Tensor,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    label_smoothing: float = 0.0,
    dim: int | None = None,
    scaled: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Cross-entropy that neither rounds a small loss to zero nor cancels in its gradient.

    It takes the arguments of torch.nn.functional.cross_entropy, and its values agree with torch's to rounding. Half
    precision is computed in float32. The loss is float32 under autocast, as torch's is; otherwise it has the dtype of
    the logits.

    Parameters
    ----------
    logits : tensor, shape (N, C, ...) or (..., C)
    target : tensor
        Integer labels from 0 to C - 1, of the shape of `logits` without C; or probabilities of the shape of `logits`.
    reduction : {"mean", "sum", "none"}
        The mean is the weighted mean over labels that are not ignored, or the mean over rows of probabilities.
    weight : tensor, shape (C,), optional
        Weight of each class; constant.
    ignore_index : int
        The label of ignored rows: their loss and their gradient are zero.
    label_smoothing : float
        The part of each target, from 0 to 1, that is spread evenly over all classes.
    dim : int, optional
        Dimension of the classes. Default: the dimension of `logits` that labels do not have; 1 for probabilities with
        three dimensions or more.
    scaled : bool
        Return the loss as a number of size one and an exponent, both float32 at least. An optimiser that ignores the
        scale of its gradients can use the gradients of the first number, which do not underflow with the loss.

    Returns
    -------
    tensor, or pair of tensors if scaled
        A scalar, or the shape of labels for "none"; NaN for the mean of no labels. For a pair s, c the loss is e^c s,
        and gradients flow through s alone.

    Raises
    ------
    ValueError
        If shapes or dtypes do not fit, an option is unknown or out of range, or labels fit two dimensions of `logits`.
        If `scaled` is combined with smoothing, probabilities or a single class, whose losses have no exponent.

    Notes
    -----
    The gradient of a row is Q P - q, with probabilities P and target weights q of sum Q. For labels alone it vanishes
    at saturation, and every entry keeps its digits however small it is. For smoothing or probabilities it vanishes at P
    = q/Q, as a difference of rounded numbers, and no formula recovers the lost digits. Each entry has the rounding
    error of its two terms. An entry with more than half of all terms has the rounding error of the others' terms
    instead. So a smoothing of 1e-12 is not lost to the 1 that it is subtracted from.

    Examples
    --------
    >>> import torch
    >>> from attsvm.functional import exact_cross_entropy
    >>> logits = torch.tensor([[60.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    >>> target = torch.tensor([0, -100])
    >>> bool(exact_cross_entropy(logits, target) > 0)
    True
    >>> torch.nn.functional.cross_entropy(logits, target).item()
    0.0
    """
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.ndim < 1:
        raise ValueError(f"logits is {describe(logits)}; a floating-point tensor (..., C) was expected.")
    if not isinstance(reduction, str) or reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is {describe(reduction)}; 'mean', 'sum' or 'none' was expected.")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing is {label_smoothing}; a number from 0 to 1 was expected.")
    axis = _class_dimension(logits, target, dim)
    wide = at_least_single(logits).movedim(axis, -1)
    if weight is not None:
        if not isinstance(weight, Tensor) or weight.shape != wide.shape[-1:]:
            raise ValueError(f"weight is {describe(weight)}; a tensor of shape {tuple(wide.shape[-1:])} was expected.")
        weight = weight.detach().to(wide.dtype)
    has_labels = not target.is_floating_point()
    if scaled:
        if not has_labels or label_smoothing:
            raise ValueError(
                f"scaled is True with target {describe(target)} and label_smoothing {label_smoothing}; labels without "
                "smoothing were expected."
            )
        return _scaled_loss(wide, target.long(), reduction, weight, ignore_index)
    if has_labels:
        loss = _loss_of_labels(wide, target.long(), reduction, weight, ignore_index, label_smoothing)
    else:
        if ignore_index >= 0:
            raise ValueError(f"ignore_index is {ignore_index} with probabilities as target; labels were expected.")
        probabilities = target.movedim(axis, -1).to(wide.dtype)
        loss = _loss_of_probabilities(wide, probabilities, reduction, weight, label_smoothing)
    kind = logits.device.type
    under_autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return loss if under_autocast else loss.to(logits.dtype)


def _class_dimension(logits: Tensor, target: Tensor, dim: int | None) -> int:
    """Find the dimension of the classes, from the shape of the target if `dim` is None."""
    shape = tuple(logits.shape)
    dims = {logits.ndim - 1, min(1, logits.ndim - 1)}
    if dim is not None:
        if not -logits.ndim <= dim < logits.ndim:
            raise ValueError(f"dim is {dim}, but logits has shape {shape}; a dimension of it was expected.")
        dims = {dim % logits.ndim}
    if isinstance(target, Tensor) and target.is_floating_point():
        fits = {min(dims)} if target.shape == shape else set()
    else:
        fits = {
            axis for axis in dims if isinstance(target, Tensor) and target.shape == shape[:axis] + shape[axis + 1 :]
        }
    if len(fits) > 1:
        raise ValueError(
            f"target has shape {tuple(target.shape)}, which fits classes along dimensions 1 and {logits.ndim - 1} of "
            f"logits {shape}; dim=1 or dim=-1 was expected."
        )
    if not fits:
        expected = " or ".join(str(shape[:axis] + shape[axis + 1 :]) for axis in sorted(dims, reverse=True))
        raise ValueError(
            f"target is {describe(target)}; integers of shape {expected}, or probabilities of shape {shape}, were "
            "expected."
        )
    return fits.pop()


def _loss_of_labels(
    logits: Tensor, target: Tensor, reduction: str, weight: Tensor | None, ignore_index: int, smoothing: float
) -> Tensor:
    ignored = target == ignore_index
    compiling = torch.compiler.is_compiling()
    # Eager gradients do not depend on the logit of the index; gradients that the compiler derives do.
    index = torch.where(ignored, logits.detach().argmax(-1), target) if compiling else target.masked_fill(ignored, 0)
    function: Any = _label_loss if compiling else _LabelLoss.apply
    loss = function(logits, index)
    importance = _importance(loss, index, weight)
    loss = (1.0 - smoothing) * importance * loss
    if smoothing:
        function = _weighted_loss if compiling else _WeightedLoss.apply
        even = smoothing / logits.shape[-1] * (logits.new_ones(()) if weight is None else weight)
        loss = loss + function(logits, even.expand(logits.shape))
    loss = loss.masked_fill(ignored, 0.0)
    return _reduced(loss, reduction, importance.masked_fill(ignored, 0.0))


def _importance(loss: Tensor, index: Tensor, weight: Tensor | None) -> Tensor:
    """Return the weights of labels, shaped like their losses."""
    if weight is None:
        return torch.ones_like(loss, requires_grad=False)
    return weight.index_select(0, index.flatten()).reshape(index.shape)


def _loss_of_probabilities(
    logits: Tensor, target: Tensor, reduction: str, weight: Tensor | None, smoothing: float
) -> Tensor:
    weights = (1.0 - smoothing) * target + smoothing / logits.shape[-1] if smoothing else target
    function: Any = _weighted_loss if torch.compiler.is_compiling() else _WeightedLoss.apply
    loss = function(logits, weights if weight is None else weight * weights)
    return _reduced(loss, reduction, torch.ones_like(loss))


def _reduced(loss: Tensor, reduction: str, importance: Tensor) -> Tensor:
    if reduction == "none":
        return loss
    return loss.sum() / importance.sum() if reduction == "mean" else loss.sum()


def _scaled_loss(
    logits: Tensor, target: Tensor, reduction: str, weight: Tensor | None, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Return s and c with the loss e^c s; c is the largest logarithm of the losses that are not ignored."""
    ignored = target == ignore_index
    index = target.masked_fill(ignored, 0)
    log = _log_cross_entropy(logits, index.unsqueeze(-1)).masked_fill(ignored, -torch.inf)
    exponent = log.detach() if reduction == "none" else log.detach().amax()
    exponent = exponent.masked_fill(exponent == -torch.inf, 0.0)
    importance = _importance(log, index, weight).masked_fill(ignored, 0.0)
    return _reduced(importance * (log - exponent).exp(), reduction, importance), exponent


def _log_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return log log(1 + e^m), m the log-odds against the target (..., 1); it is m once e^m is below rounding."""
    if logits.shape[-1] < 2:
        raise ValueError(f"logits has shape {tuple(logits.shape)}; two classes or more were expected with scaled=True.")
    odds = logits.scatter(-1, target, -torch.inf).logsumexp(-1) - logits.gather(-1, target).squeeze(-1)
    is_one = odds < math.log(torch.finfo(logits.dtype).eps)
    return torch.where(is_one, odds, torch.nn.functional.softplus(odds.masked_fill(is_one, 0.0)).log())
