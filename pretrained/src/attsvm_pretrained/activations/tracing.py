r"""Record attention that a module computes by itself, from the operations between an inner product and its softmax.

Models that do not use transformers' attention interface (GPT-J, GPT-Neo, Bloom, Falcon, MPT, MPNet, DeBERTa and others)
also apply a softmax to scores that began as inner products. For one forward pass a function of attsvm sees every
operation of torch. A product of two activations begins a trace. The trace follows the product up to the softmax:
factors, shapes, additive terms, hidden tokens, and other products that are added (DeBERTa's content to position and
position to content). An unknown operation ends the trace, so only known operations are recorded. Recorded attention is
checked against the model's own probabilities like any other. torch's fused attention shows neither scores nor
probabilities; they are computed as its documentation defines them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from attsvm_pretrained.activations.recording import (
    AttentionCall,
    Enough,
    Recorder,
    RelativeProduct,
    hooks_of,
    recording,
)

# Additive term at or below which a token counts as hidden: its probability is zero in float32.
HIDDEN = -1e4


@dataclass(frozen=True, eq=False)
class Product:
    """Inner products of vectors, a part of the scores.

    Attributes
    ----------
    rows, columns : Tensor, shape (..., Tq, dh) and (..., Tk or R, dh)
    index : Tensor of int, or None
        Column that is used for each query and token; None if every column is used.
    swapped : bool
        Whether the product was transposed afterwards.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    factor: float = 1.0
    index: torch.Tensor | None = None
    swapped: bool = False


@dataclass(frozen=True, eq=False)
class ScoreTrace:
    """A tensor of scores as a sum of products, an additive term, and a mask of visible tokens."""

    value: torch.Tensor
    products: tuple[Product, ...]
    additive: torch.Tensor | None = None
    visible: torch.Tensor | None = None

    def scaled(self, factor: float) -> ScoreTrace:
        """Multiply by a number."""
        products = tuple(replace(one, factor=one.factor * factor) for one in self.products)
        return replace(self, products=products, additive=None if self.additive is None else self.additive * factor)

    def plus(self, other: torch.Tensor | float) -> ScoreTrace:
        """Add a term that is not a product."""
        if not isinstance(other, torch.Tensor):
            return self
        return replace(self, additive=other if self.additive is None else self.additive + other)

    def joined(self, other: ScoreTrace) -> ScoreTrace:
        """Add other scores."""
        out = replace(self, products=self.products + other.products)
        out = out if other.additive is None else out.plus(other.additive)
        return out if other.visible is None else out.seeing(other.visible)

    def seeing(self, visible: torch.Tensor) -> ScoreTrace:
        """Hide tokens that are not visible."""
        return replace(self, visible=visible if self.visible is None else self.visible & visible)

    def reshaped(self, shape: torch.Size) -> ScoreTrace:
        """Reshape the additive term and the mask with the scores; the products keep their shapes."""

        def spread(term: torch.Tensor | None) -> torch.Tensor | None:
            return None if term is None else term.expand(self.value.shape).reshape(shape)

        return replace(self, additive=spread(self.additive), visible=spread(self.visible))


_PRODUCTS = {"matmul", "bmm", "__matmul__"}
_SUMS = {"add", "add_", "__add__", "__radd__", "__iadd__"}
_DIFFERENCES = {"sub", "sub_", "__sub__", "__isub__"}
_FACTORS = {"mul", "mul_", "__mul__", "__rmul__", "__imul__"}
_QUOTIENTS = {"div", "div_", "true_divide", "__truediv__", "__itruediv__"}
_SHAPES = {"view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten"}
_SAME = {"float", "to", "double", "type", "type_as", "contiguous", "clone", "dropout", "detach", "_to_copy"}
_SOFTMAX = {"softmax", "_softmax"}


class Tracer(TorchFunctionMode):
    """Follows scores through the operations of a forward pass; `softmax` receives them with their probabilities."""

    def __init__(self, softmax: Callable[[ScoreTrace, torch.Tensor], None]) -> None:
        super().__init__()
        self._softmax = softmax
        self._traces: dict[int, ScoreTrace] = {}  # a stored tensor is not freed, so its id stays unique

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and update the trace of its scores."""
        kwargs = kwargs or {}
        # An operation in place changes its argument.
        before = [self._of(argument) for argument in args[:2]]
        out = function(*args, **kwargs)
        if not isinstance(out, torch.Tensor):
            return out
        name = getattr(function, "__name__", "")
        trace = None
        if name == "scaled_dot_product_attention":
            self._softmax(*_fused_attention(*args, **kwargs))
        elif name in _PRODUCTS and len(args) == 2:
            trace = self._product(out, *args)
        elif name == "baddbmm":
            trace = self._sum_of_product(out, args, kwargs)
        elif any(one is not None for one in before):
            trace = self._follow(name, before, args, kwargs, out)
        if trace is not None:
            self._traces[id(out)] = replace(trace, value=out)
        elif id(out) in self._traces and self._traces[id(out)].value is out and name.rstrip("_") != name:
            del self._traces[id(out)]
        return out

    def _of(self, tensor: Any) -> ScoreTrace | None:
        return self._traces.get(id(tensor)) if isinstance(tensor, torch.Tensor) else None

    def forget(self) -> None:
        """Delete all traces and their tensors."""
        self._traces.clear()

    @staticmethod
    def _product(out: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> ScoreTrace | None:
        if any(isinstance(side, nn.Parameter) or side.ndim < 3 for side in (rows, columns)):
            return None
        return ScoreTrace(out, (Product(rows, columns.mT),))

    def _sum_of_product(self, out: torch.Tensor, args: Any, kwargs: Any) -> ScoreTrace | None:
        inputs = dict(zip(("input", "batch1", "batch2"), args, strict=False)) | kwargs
        trace = self._product(out, inputs["batch1"], inputs["batch2"])
        if trace is None:
            return None
        beta = float(inputs.get("beta", 1.0))
        trace = trace.scaled(float(inputs.get("alpha", 1.0)))
        return trace if beta == 0.0 else trace.plus(inputs["input"] * beta)

    def _follow(
        self, name: str, before: list[ScoreTrace | None], args: Any, kwargs: Any, out: torch.Tensor
    ) -> ScoreTrace | None:
        """Return the new trace of scores; None after an unknown operation."""
        first, second = (*before, None)[:2]
        trace = first if first is not None else second
        assert trace is not None
        other = args[0] if first is None else args[1] if len(args) > 1 else None
        if name in _SOFTMAX:
            if first is not None and _last(kwargs.get("dim", other), out):
                self._softmax(first, out)
            self.forget()
            return None
        if name in _SUMS | _DIFFERENCES:
            factor = float(kwargs.get("alpha", 1.0)) * (-1.0 if name in _DIFFERENCES else 1.0)
            if second is not None:
                return second.scaled(factor).plus(args[0]) if first is None else first.joined(second.scaled(factor))
            return None if other is None else trace.plus(other * factor)
        if name in _FACTORS:
            return _times(trace, other)
        if name in _QUOTIENTS and first is not None and (number := _number(other)) is not None:
            return trace.scaled(1.0 / number)
        if name in _SAME and first is not None:
            return trace
        if name in _SHAPES and first is not None:
            return trace.reshaped(out.shape)
        if name in ("transpose", "swapaxes", "mT") and first is not None:
            return _transpose(trace, out)
        return self._masked(name, trace, args, kwargs)

    def _masked(self, name: str, trace: ScoreTrace, args: Any, kwargs: Any) -> ScoreTrace | None:
        if name in ("masked_fill", "masked_fill_") and trace.value is args[0]:
            mask, value = dict(enumerate(args)).get(1, kwargs.get("mask")), kwargs.get("value", args[-1])
            return trace.seeing(~mask) if float(value) <= HIDDEN else None
        if name == "where" and len(args) == 3 and trace.value is args[1]:
            value = args[2]
            return trace.seeing(args[0]) if float(torch.as_tensor(value).max()) <= HIDDEN else None
        if name in ("max", "maximum", "clamp", "clamp_min") and trace.value is args[0] and len(args) == 2:
            return trace if (number := _number(args[1])) is not None and number <= HIDDEN else None
        if name == "gather" and len(trace.products) == 1 and trace.additive is None and trace.visible is None:
            index = kwargs.get("index", args[-1])
            return replace(trace, products=(replace(trace.products[0], index=index),))
        return None


def _fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[ScoreTrace, torch.Tensor]:
    """Compute torch's fused attention as documented, with visible scores."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    keys = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3) if enable_gqa else key
    scores = query @ keys.mT * factor
    trace = ScoreTrace(scores, (Product(query, key, factor),))
    if is_causal:
        trace = trace.seeing(torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril())
    if attn_mask is not None:
        trace = trace.seeing(attn_mask) if attn_mask.dtype == torch.bool else trace.plus(attn_mask)
    if trace.additive is not None:
        scores = scores + trace.additive
    if trace.visible is not None:
        scores = scores.masked_fill(~trace.visible, torch.finfo(scores.dtype).min)
    return trace, scores.softmax(dim=-1)


def _number(value: Any) -> float | None:
    """Read a number, or a tensor of one."""
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) else None


def _last(dim: Any, tensor: torch.Tensor) -> bool:
    return dim in (-1, tensor.ndim - 1)


def _times(trace: ScoreTrace, other: Any) -> ScoreTrace | None:
    number = _number(other)
    if number is not None:
        return trace.scaled(number)
    # A pattern of zeros and ones hides, together with what is added to it afterwards.
    if isinstance(other, torch.Tensor) and bool(((other == 0) | (other == 1)).all()):
        return trace.seeing(other.bool())
    return None


def _transpose(trace: ScoreTrace, out: torch.Tensor) -> ScoreTrace | None:
    """Transpose the scores of a single product; None for other scores."""
    only_product = len(trace.products) == 1 and trace.additive is None and trace.visible is None
    if out.shape != trace.value.mT.shape or not only_product:
        return None
    return replace(trace, products=(replace(trace.products[0], swapped=not trace.products[0].swapped),))


@contextmanager
def tracing(model: nn.Module, include: Callable[[int, str], bool]) -> Iterator[Recorder]:
    """Record the attention that modules of the model compute by themselves inside the block.

    ``include`` is as for :func:`attsvm_pretrained.activations.recording.recording`.
    """
    recorder = Recorder(model, include)
    tracer = Tracer(lambda trace, probabilities: _note(recorder, trace, probabilities))
    with hooks_of(model, recorder), tracer:
        yield recorder
    tracer.forget()


def record(
    model: nn.Module,
    inputs: Mapping[str, Any],
    include: Callable[[int, str], bool] = lambda index, path: True,
    *,
    keep: Callable[[AttentionCall], object] | None = None,
    until: int | None = None,
) -> Recorder:
    """Run the model on inputs without gradients, and return the recorded calls.

    Attention is recorded at transformers' interface. If the model does not use it, a second forward pass traces the
    operations of its modules.

    Raises ValueError if neither pass finds any attention.
    """
    for way in (recording, tracing):
        with way(model, include) as recorder, torch.no_grad(), suppress(Enough):
            recorder.keep, recorder.until = keep or recorder.keep, until
            model(**inputs)
        if recorder.paths:
            return recorder
    raise ValueError(
        f"{type(model).__name__} neither uses transformers' attention interface nor computes a softmax of inner "
        "products that could be followed, so no attention was recorded."
    )


def _note(recorder: Recorder, trace: ScoreTrace, probabilities: torch.Tensor) -> None:
    """Record a softmax of scores as an attention call, if its parts have the shapes of one."""
    frames = [frame for frame in recorder.frames if not isinstance(frame.module, nn.Softmax)]
    content = [one for one in trace.products if one.index is None and not one.swapped]
    if not frames or len(content) != 1:
        return
    arguments = frames[-1].arguments
    batch = len(arguments[0]) if arguments and arguments[0].ndim else 0
    if probabilities.ndim == 3 and batch and probabilities.shape[0] % batch == 0:
        shape = torch.Size((batch, probabilities.shape[0] // batch, *probabilities.shape[1:]))
        trace, probabilities = trace.reshaped(shape), probabilities.reshape(shape)
    if probabilities.ndim != 4:
        return
    B, H = probabilities.shape[:2]
    query, key = (_by_head(side, B, H) for side in (content[0].rows, content[0].columns))
    relative = [_relative(one, B, H) for one in trace.products if one is not content[0]]
    if query is None or key is None or any(one is None for one in relative):
        return
    mask = trace.additive
    visible = trace.visible
    if mask is not None:
        visible = mask > HIDDEN if visible is None else visible & (mask > HIDDEN)
    if visible is not None:
        zero = query.new_zeros(()) if mask is None else mask
        mask = torch.where(visible, zero, torch.full_like(zero, torch.finfo(zero.dtype).min))
        mask = mask[(None,) * (4 - mask.ndim)]
    recorder.note(
        frames[-1].module,
        lambda index, path: AttentionCall(
            index, path, frames[-1].module, query, key, mask, content[0].factor, None, {}, probabilities.detach(),
            recorder.calls_inside(frames), frames[-1].stream, tuple(one for one in relative if one is not None),
            arguments,
        ),
    )  # fmt: skip


def _by_head(vectors: torch.Tensor, B: int, H: int) -> torch.Tensor | None:
    """Read vectors as (B or 1, heads, T, dh)."""
    if vectors.ndim == 4:
        return vectors.detach()
    return vectors.detach().unflatten(0, (-1, H)) if vectors.shape[0] % H == 0 else None


def _relative(product: Product, B: int, H: int) -> RelativeProduct | None:
    """Read a product from which one column per query and token was gathered."""
    rows, columns = _by_head(product.rows, B, H), _by_head(product.columns, B, H)
    if rows is None or columns is None or product.index is None:
        return None
    index = product.index.detach()
    index = index if index.ndim == 4 else index.unflatten(0, (-1, H)) if index.shape[0] % H == 0 else None
    if index is None:
        return None
    return RelativeProduct(rows, columns, index.mT if product.swapped else index, product.factor, product.swapped)
