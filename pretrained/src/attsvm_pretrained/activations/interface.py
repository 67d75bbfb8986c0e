"""Replace the attention function of a transformers model, or the pattern of one head, inside a forward pass."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from attsvm_pretrained.activations.backend import transformers

_COUNTER = itertools.count()


def eager_function(module: nn.Module) -> Callable[..., Any]:
    """Find the eager attention function of the file that defines the module."""
    for kind in type(module).__mro__:
        function = getattr(sys.modules.get(kind.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    raise ValueError(
        f"{type(module).__name__} comes without an eager_attention_forward, so its probabilities cannot be checked."
    )


def eager_attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **keywords: Any
) -> Any:
    """Call the eager attention function of a module's file."""
    if isinstance(mask, torch.Tensor) and mask.dtype == torch.float64:
        # Softmax is computed in float32, where float64's lowest number is -inf: a row of padding would be nan.
        mask = mask.clamp_min(torch.finfo(torch.float32).min)
    return eager_function(module)(module, query, key, value, mask, **keywords)


def configurations(model: nn.Module) -> list[Any]:
    """List the configurations in the model that name an attention implementation, each once."""
    configurations: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal"):
            configurations.setdefault(id(config), config)
    return list(configurations.values())


@contextmanager
def attending_by(model: nn.Module, function: Callable[..., Any]) -> Iterator[None]:
    """Let a function compute the attention of a model inside the block, with eager attention's masks.

    The function takes module, query, key, value, mask and keywords, and returns the output and the probabilities.
    """
    transformers()
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = f"attsvm_{next(_COUNTER)}"
    configs = configurations(model)
    before = [config._attn_implementation_internal for config in configs]
    try:
        ALL_ATTENTION_FUNCTIONS.register(name, function)
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, eager_mask)
        for config in configs:
            config._attn_implementation_internal = name
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation
        ALL_ATTENTION_FUNCTIONS._global_mapping.pop(name, None)
        ALL_MASK_ATTENTION_FUNCTIONS._global_mapping.pop(name, None)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode and turn its cache off inside the block."""
    training = [module for module in model.modules() if module.training]
    caching = [config for config in configurations(model) if getattr(config, "use_cache", False) is True]
    try:
        for config in caching:
            config.use_cache = False
        model.eval()
        yield
    finally:
        for config in caching:
            config.use_cache = True
        for module in training:
            module.training = True


@contextmanager
def patched(model: nn.Module, path: str, head: int, pattern: torch.Tensor | None) -> Iterator[None]:
    """Replace the pattern of a head in the forward passes inside the block.

    Parameters
    ----------
    path : str
        Path of the attention module.
    pattern : Tensor, shape (B, Tq, Tk), or None
        Weights of the head's values; None removes the head's output.

    Raises
    ------
    ValueError
        If the module does not compute attention through the interface.
    """
    target, met = model.get_submodule(path), []

    def attend(
        module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **keywords: Any
    ) -> Any:
        output, probabilities = eager_attention(module, query, key, value, mask, **keywords)[:2]
        if module is target:
            met.append(module)
            output = output.clone()  # (B, Tq, H, dv)
            if pattern is None:
                output[:, :, head] = 0.0
            else:
                group = head * value.shape[1] // query.shape[1]
                output[:, :, head] = pattern.to(value) @ value[:, group]
        return output, probabilities

    with attending_by(model, attend):
        yield
    if not met:
        raise ValueError(
            f"{path} computes attention by itself; a model that uses transformers' attention interface was expected."
        )
