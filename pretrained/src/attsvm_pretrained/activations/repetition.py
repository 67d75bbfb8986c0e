"""Call an attention module again in float64, on the inputs that it had in the model's forward pass.

The hidden states keep the model's rounding; only the layer is computed in float64. A head can thus be checked to 1e-5
even if logits are large or the dtype is short. The memory for one layer's weights is the cost.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from attsvm_pretrained.activations.recording import AttentionCall, Invocation, Recorder, recording
from attsvm_pretrained.activations.tracing import tracing


def too_coarse(call: AttentionCall) -> bool:
    """Tell whether a call's dtype is too coarse to explain a head."""
    return call.query.dtype not in (torch.float32, torch.float64)


def in_float64(call: AttentionCall) -> Iterator[AttentionCall]:
    """Repeat an attention call: by its module alone, then by the module around it, which may make queries and keys.

    Yields
    ------
    AttentionCall
        Each repetition that succeeds. A module that does not run in float64 yields none. The module around the
        attention module needs the most memory, so it runs only when a second repetition is requested.
    """
    for invocation in call.invocations:
        repetition = _repeat(call, invocation)
        if repetition is not None:
            yield repetition


def _repeat(call: AttentionCall, invocation: Invocation) -> AttentionCall | None:
    module = _copy(invocation.module).double()
    arguments, keywords = _in_double(invocation.arguments), _in_double(invocation.keywords)
    for way in (recording, tracing):
        try:
            with way(module, lambda index, path: True) as recorder, torch.no_grad():
                module(*arguments, **keywords)
        except RuntimeError:
            return None
        for one in recorder.calls:
            if one.query.shape == call.query.shape and call.path.endswith(one.path):
                calls = tuple(replace(inner, path=_path_in_model(inner.path, call)) for inner in one.calls)
                return replace(one, index=call.index, path=call.path, stream=call.stream, calls=calls, invocations=())
    return None


def _path_in_model(path: str, call: AttentionCall) -> str:
    """Return the path of a module in the model, from its path in the module that was repeated."""
    return next((one.path for one in call.calls if one.path == path or one.path.endswith(f".{path}")), path)


def _copy(module: nn.Module) -> nn.Module:
    """Copy a module without the hooks of running recorders, whose copy would include the whole model."""
    without: dict[int, Any] = {}
    for one in module.modules():
        for hooks in (one._forward_pre_hooks, one._forward_hooks):
            foreign = ((number, hook) for number, hook in hooks.items() if not _of_recorder(hook))
            without[id(hooks)] = OrderedDict(foreign)
    return copy.deepcopy(module, without)


def _of_recorder(hook: Any) -> bool:
    return isinstance(getattr(hook, "__self__", None), Recorder)


def _in_double(value: Any) -> Any:
    """Convert floating-point tensors to float64; a dtype's lowest number, which hides tokens, becomes float64's."""
    if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
        lowest = torch.finfo(torch.float64).min
        return value.detach().double().masked_fill(value <= torch.finfo(value.dtype).min / 2, lowest)
    if type(value) is tuple:
        return _unit(tuple(_in_double(one) for one in value), value)
    if isinstance(value, list):
        return [_in_double(one) for one in value]
    if isinstance(value, dict):
        return {name: _in_double(one) for name, one in value.items()}
    # The running call has written its keys into the cache, and the repetition must not write them again.
    return None if hasattr(value, "get_seq_length") else value


def _unit(double: tuple[Any, ...], value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Restore the constant length of a rotation to a table of cosines and sines that a short dtype rounded."""
    tensors = [one for one in value if isinstance(one, torch.Tensor) and one.dtype.is_floating_point]
    if len(value) != 2 or len(tensors) != 2 or tensors[0].shape != tensors[1].shape:
        return double
    lengths = torch.hypot(*double)
    factor = lengths.median()
    rounding = 2.0 * torch.finfo(tensors[0].dtype).eps
    if ((lengths - factor).abs() > rounding * factor).any():
        return double
    factor = 1.0 if abs(float(factor) - 1.0) <= rounding else factor
    return tuple(one * (factor / lengths) for one in double)
