r"""Record the inputs of attention in a forward pass, in any model that uses transformers' attention interface.

Since version 5 every model of transformers hands queries, keys, mask and scale to one function that it looks up by name
in ``ALL_ATTENTION_FUNCTIONS``. This module registers another function there for the length of a forward pass, *with its
mask function* (without one transformers drops the padding mask). It records the arguments and calls the model's own
eager implementation, so the recorded probabilities are the model's. Hooks on every module store inputs and outputs of
the calls inside the attention module, such as the linear maps of queries and keys. Everything is restored at the end.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from attsvm_pretrained.activations.interface import attending_by, eager_attention, evaluating

# Arguments of an attention function that do not affect the scores.
_SILENT = {
    "dropout", "sliding_window", "is_causal", "output_attentions", "use_cache", "position_ids", "cu_seq_lens_q",
    "token_type_ids",
}  # fmt: skip
# Number of nested modules, from the attention module outwards, whose calls may make queries and keys.
_FRAMES = 2
# Arguments of an attention module that hold the states of its keys, if these are not the states of its queries.
_OTHER_STATES = ("key_value_states", "encoder_hidden_states")
# Inputs of models that are not text; a tower that reads one of these has no token ids.
_OTHER_INPUTS = ("pixel_values", "input_features", "input_values")


@dataclass(frozen=True, eq=False)
class Stream:
    """The inputs of a part of a model (encoder, decoder, the tower of one modality).

    Attributes
    ----------
    ids : Tensor of int, shape (B, T), or None
        Token ids; None for images, sound and given embeddings.
    padding : Tensor, shape (B, T), or None
        The attention mask: zero for padding.
    """

    ids: torch.Tensor | None
    padding: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of a module inside an attention module.

    Attributes
    ----------
    path : str
        Path of the module in the model.
    input, output : Tensor
        The first argument and the result.
    """

    path: str
    module: nn.Module
    input: torch.Tensor
    output: torch.Tensor


@dataclass(frozen=True, eq=False)
class RelativeProduct:
    """Products of vectors with a table of relative positions; each pair of query and token uses one product.

    Attributes
    ----------
    vectors : Tensor, shape (B, H, T, dh)
        The queries or the keys.
    table : Tensor, shape (B or 1, H, R, dh)
    index : Tensor of int, shape (B, H, Tq, Tk)
        Row of the table.
    of_keys : bool
        Whether the vectors are the keys.
    """

    vectors: torch.Tensor
    table: torch.Tensor
    index: torch.Tensor
    factor: float
    of_keys: bool


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of the attention function.

    Attributes
    ----------
    index : int
        Number of the call in the forward pass.
    path : str
        Path of the attention module in the model.
    query : Tensor, shape (B, H, Tq, dh)
    key : Tensor, shape (B, G, Tk, dh)
        G divides H: consecutive query heads share a key head.
    mask : Tensor, shape (B or 1, H or 1, Tq, Tk), or None
        Added to the scores; hidden tokens have the dtype's lowest number.
    bias : Tensor or None
        A position bias that the model passes in addition to the mask.
    extras : dict
        Other arguments that are set, such as a soft cap.
    probabilities : Tensor, shape (B, H, Tq, Tk)
        Result of the model's own eager attention.
    calls : tuple of ModuleCall
        Earlier calls inside the attention module and the module around it, the latest first.
    stream : Stream
        Inputs of the innermost part of the model around the attention module, to which the queries belong.
    relative : tuple of RelativeProduct
        Products that the model adds to the scores (DeBERTa).
    arguments : tuple of Tensor
        Arguments of the attention module.
    shared : dict
        Results that all heads of the call share.
    invocations : tuple of Invocation
        The running calls of the attention module and of the module around it.
    """

    index: int
    path: str
    module: nn.Module
    query: torch.Tensor
    key: torch.Tensor
    mask: torch.Tensor | None
    scaling: float
    bias: torch.Tensor | None
    extras: dict[str, Any]
    probabilities: torch.Tensor
    calls: tuple[ModuleCall, ...]
    stream: Stream
    relative: tuple[RelativeProduct, ...] = ()
    arguments: tuple[torch.Tensor, ...] = ()
    shared: dict[Any, Any] = field(default_factory=dict)
    invocations: tuple[Invocation, ...] = ()


@dataclass(frozen=True, eq=False)
class Invocation:
    """A module and the arguments of a call, to call it again."""

    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclass(eq=False)
class Frame:
    """A module whose forward pass is running, its inputs and arguments, and the finished calls inside it.

    `attended` tells whether attention was called inside it.
    """

    module: nn.Module
    stream: Stream
    arguments: tuple[torch.Tensor, ...]
    invocation: Invocation
    calls: list[ModuleCall] = field(default_factory=list)
    attended: bool = False


def _stream(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], around: Stream) -> Stream:
    """Determine the inputs of a module: its own if it is a model by itself, otherwise the surrounding module's."""
    if not hasattr(module, "main_input_name"):
        return around
    inputs = inspect.signature(module.forward).bind_partial(*arguments, **keywords).arguments
    inputs |= inputs.pop("kwargs", {})
    padding = inputs.get("attention_mask")
    padding = padding if isinstance(padding, torch.Tensor) and padding.ndim == 2 else None
    if isinstance(inputs.get("input_ids"), torch.Tensor):
        return Stream(inputs["input_ids"], padding)
    if any(isinstance(inputs.get(name), torch.Tensor) for name in _OTHER_INPUTS):
        return Stream(None, None)
    return around if padding is None else Stream(around.ids, padding)


def _identifiers(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> torch.Tensor | None:
    """Find token ids (B, T) among the arguments of a model that does not name its inputs."""
    tensors = (one for one in (*arguments, *keywords.values()) if isinstance(one, torch.Tensor))
    return next((one for one in tensors if one.ndim == 2 and one.dtype == torch.long), None)


class Enough(Exception):
    """Ends a forward pass whose last attention call of interest is recorded."""


class Recorder:
    """Records the attention calls of a model's forward passes; made by :func:`recording`.

    Attributes
    ----------
    calls : list of AttentionCall
        The requested calls.
    paths : list of str
        Paths of the modules of all attention calls, in order.
    streams : list of Stream
        Inputs of all parts of the model, in order.
    keep : callable
        Receives each requested call; by default it joins the list.
    until : int or None
        Number of the last requested call: the forward pass ends there, by :class:`Enough`.
    """

    def __init__(self, model: nn.Module, include: Callable[[int, str], bool]) -> None:
        self.calls: list[AttentionCall] = []
        self.keep: Callable[[AttentionCall], object] = self.calls.append
        self.until: int | None = None
        self.paths: list[str] = []
        self.streams: list[Stream] = []
        self._include = include
        self._paths = {module: path for path, module in model.named_modules()}
        self.frames: list[Frame] = []

    def enter(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Forward pre-hook."""
        if self.frames:
            around = self.frames[-1].stream
        else:
            around = Stream(None if hasattr(module, "main_input_name") else _identifiers(arguments, keywords), None)
        stream = _stream(module, arguments, keywords, around)
        if stream is not around or not self.frames:
            self.streams.append(stream)
        tensors = tuple(one for one in (*arguments, *keywords.values()) if isinstance(one, torch.Tensor))
        self.frames.append(Frame(module, stream, tensors, Invocation(module, arguments, keywords)))

    def leave(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        """Forward hook."""
        attended = self.frames.pop().attended
        if attended and self.frames:
            self.frames[-1].attended = True
            return  # a module around attention made no queries or keys, and a deep model has many
        argument = arguments[0] if arguments else next(iter(keywords.values()), None)
        if self.frames and isinstance(argument, torch.Tensor) and isinstance(output, torch.Tensor):
            self.frames[-1].calls.append(ModuleCall(self._paths.get(module, ""), module, argument, output))

    def path_of(self, module: nn.Module) -> str:
        """Return the path of a module in the model."""
        return self._paths.get(module, type(module).__name__)

    def calls_inside(self, frames: list[Frame] | None = None) -> tuple[ModuleCall, ...]:
        """List the calls made in the innermost modules, the latest first."""
        frames = self.frames if frames is None else frames
        return tuple(call for frame in reversed(frames[-_FRAMES:]) for call in reversed(frame.calls))

    def note(self, module: nn.Module, call: Callable[[int, str], AttentionCall]) -> None:
        """Count an attention call of a module, and record it if it was requested."""
        path, index = self.path_of(module), len(self.paths)
        self.paths.append(path)
        self.frames[-1].attended = True
        if self._include(index, path):
            self.keep(replace(call(index, path), invocations=self._invocations()))
        if index == self.until:
            raise Enough

    def call_of(self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, scaling: float) -> AttentionCall:
        """Describe a running call by its queries and keys alone, which is enough to explain them."""
        empty = query.new_zeros(0)
        return AttentionCall(
            0, self.path_of(module), module, query, key, None, scaling, None, {}, empty, self.calls_inside(),
            Stream(None, None), invocations=self._invocations(),
        )  # fmt: skip

    def _invocations(self) -> tuple[Invocation, ...]:
        return tuple(frame.invocation for frame in reversed(self.frames[-_FRAMES:]))

    def crosses(self) -> bool:
        """Tell whether the running attention module reads its keys from other states than its queries."""
        call = self.frames[-1].invocation
        given = inspect.signature(call.module.forward).bind_partial(*call.arguments, **call.keywords).arguments
        given |= given.pop("kwargs", {})
        return any(given.get(name) is not None for name in _OTHER_STATES)

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **keywords: Any,
    ) -> Any:
        """Replace the attention function: return the model's own result, and record the call."""
        result = eager_attention(module, query, key, value, attention_mask, scaling=scaling, **keywords)
        bias = keywords.pop("position_bias", None)
        extras = {name: value for name, value in keywords.items() if name not in _SILENT and _is_numeric(value)}
        self.note(
            module,
            lambda index, path: AttentionCall(
                index, path, module, query, key, attention_mask,
                query.shape[-1] ** -0.5 if scaling is None else float(scaling),
                bias, extras, result[1].detach(), self.calls_inside(), self.frames[-1].stream,
            ),
        )  # fmt: skip
        return result


def _is_numeric(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, (int, float)) and not isinstance(value, bool))


@contextmanager
def recording(model: nn.Module, include: Callable[[int, str], bool] = lambda index, path: True) -> Iterator[Recorder]:
    """Record the attention calls of the forward passes run inside the block.

    The model is in evaluation mode inside the block. Everything is put back when it ends, however it ends. ``include``
    tells from the number of a call and the path of its module whether to record it, by default every call.
    """
    recorder = Recorder(model, include)
    with attending_by(model, recorder.attend), hooks_of(model, recorder):
        yield recorder


@contextmanager
def hooks_of(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Let a recorder see every module of the model, in evaluation mode and without a cache, inside the block."""
    handles = []
    try:
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(recorder.enter, with_kwargs=True))
            handles.append(module.register_forward_hook(recorder.leave, with_kwargs=True))
        with evaluating(model):
            yield
    finally:
        for handle in handles:
            handle.remove()
