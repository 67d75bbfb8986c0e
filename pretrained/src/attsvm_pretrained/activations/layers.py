"""Numbers of a model's layers, and its layers without attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class AbsentLayer:
    """A layer of the model's stack in which no attention was recorded.

    Attributes
    ----------
    kind : str
        Class of the module in place of attention, such as a state-space or convolution block.
    """

    number: int
    kind: str


def number_in_path(path: str) -> int | None:
    """Return the number of the layer in the path of a module: 7 for "layers.7.self_attn", None without a number."""
    return next((int(part) for part in path.split(".") if part.isdigit()), None)


def layer_numbers(paths: Sequence[str]) -> list[int]:
    """Give attention calls the numbers of their layers, from the paths of their modules in the order of the calls.

    The numbers in the paths are used if every call has a different one; layers without attention then leave gaps.
    Otherwise calls are counted: several stacks repeat their numbers, and layers may share one module.
    """
    numbers = [number for path in paths if (number := number_in_path(path)) is not None]
    return numbers if len(numbers) == len(set(numbers)) == len(paths) else list(range(len(paths)))


def absent_layers(model: nn.Module, paths: Sequence[str]) -> tuple[AbsentLayer, ...]:
    """Name the layers of a stack in which no attention was recorded."""
    numbers = layer_numbers(paths)
    if not paths or any(number_in_path(path) != number for path, number in zip(paths, numbers, strict=True)):
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
