"""Numbers of layers: the model's own where they are unique, and the layers in which nothing attends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class AbsentLayer:
    """A layer of the model's stack without attention that could be recorded.

    Attributes
    ----------
    number : int
    kind : str
        Class of what stands there instead, such as a state-space or convolution block.
    """

    number: int
    kind: str


def own_number(path: str) -> int | None:
    """Return the number of the layer in the path of a module: 7 for "layers.7.self_attn", None where there is none."""
    return next((int(part) for part in path.split(".") if part.isdigit()), None)


def layer_numbers(paths: Sequence[str]) -> list[int]:
    """Give attention calls the numbers of their layers, from the paths of their modules in the order of the calls.

    A stack's own numbers are used where each call has another, as in a decoder whose other layers are recurrent or
    convolutional. In a model with several stacks, or whose layers share one module, calls are counted.
    """
    numbers = [own_number(path) for path in paths]
    own = [number for number in numbers if number is not None]
    return own if len(own) == len(set(own)) == len(paths) else list(range(len(paths)))


def absent_layers(model: nn.Module, paths: Sequence[str]) -> tuple[AbsentLayer, ...]:
    """Name the layers of a stack in which no attention was recorded."""
    numbers = layer_numbers(paths)
    if not paths or any(own_number(path) != number for path, number in zip(paths, numbers, strict=True)):
        return ()
    stack = model.get_submodule(paths[0].split(f".{numbers[0]}.")[0])
    if not isinstance(stack, nn.ModuleList):
        return ()
    usual = {type(module) for number in numbers for module in stack[number].modules()}
    absent = []
    for number in sorted(set(range(len(stack))) - set(numbers)):
        unusual = [child for child in stack[number].children() if type(child) not in usual]
        absent.append(AbsentLayer(number, type(unusual[0] if unusual else stack[number]).__name__))
    return tuple(absent)


def run_lengths(numbers: Sequence[int]) -> str:
    """Write numbers of layers: "a number from 0 to 5", or one by one where some are missing."""
    if list(numbers) == list(range(len(numbers))):
        return f"a number from 0 to {len(numbers) - 1}"
    return f"one of {', '.join(map(str, numbers))}"
