"""Record the operations of a forward pass, to follow a hidden state back through them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

Map = Callable[[np.ndarray], np.ndarray]
_SHAPES = {
    "view", "_unsafe_view", "reshape", "clone", "detach", "alias", "_to_copy", "expand", "unsqueeze", "squeeze",
}  # fmt: skip
_MOVES = _SHAPES | {"transpose", "permute"}
_MAPS = {"add", "sub", "mul", "div", "mean", "native_layer_norm", "embedding", "mm", "addmm", "bmm"}


@dataclass(frozen=True, eq=False)
class Operation:
    """The operation that made a tensor."""

    name: str
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]


@dataclass(frozen=True)
class VectorIndex:
    """The location of a vector in tensors (..., d) of the pass: its index, and the shape of all indices.

    For example the index (b, t) in the shape (B, T).
    """

    index: tuple[int, ...]
    shape: tuple[int, ...]

    def of(self, tensor: torch.Tensor, width: int) -> np.ndarray:
        """Read the vector, (width,), float64; a tensor without the first axes has one vector for all their indices."""
        vectors = tensor.detach().reshape(-1, width)
        for first in range(len(self.shape) + 1):
            if len(vectors) == math.prod(self.shape[first:]):
                place = np.ravel_multi_index(self.index[first:], self.shape[first:]) if first < len(self.shape) else 0
                return vectors[int(place)].double().cpu().numpy()
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has no vector for each of {self.shape}.")


@dataclass(frozen=True, eq=False)
class Attended:
    """The output of attention: a linear map of values averaged with the probabilities of heads.

    Attributes
    ----------
    probabilities : Tensor, shape (B H, Tq, Tk)
    values : Tensor, shape (B H, Tk, dv)
    weight : Tensor, shape (H dv, d)
    bias : Tensor, shape (d,), or None
    """

    probabilities: torch.Tensor
    values: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None

    def of(self, row: VectorIndex) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield each head, its weighted values for a query, p v (Tk, dv), and its rows of the weight (dv, d)."""
        width = self.values.shape[-1]
        heads = self.weight.shape[0] // width
        weight = self.weight.detach().double().cpu().numpy().reshape(heads, width, -1)
        for h in range(heads):
            index = row.index[0] * heads + h
            mix = self.probabilities[index, row.index[1]].double().cpu().numpy()
            yield h, mix[:, None] * self.values[index].double().cpu().numpy(), weight[h]


class Tape(TorchDispatchMode):
    """The recorded operations of a forward pass; made by :func:`record_tape`.

    Attributes
    ----------
    inputs : dict of str to list of Tensor
        Inputs of each module, by its path, call by call.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inputs: dict[str, list[torch.Tensor]] = {}
        self._makers: dict[int, Operation] = {}
        self._names: dict[int, list[str]] = {}  # modules that put a tensor out, the innermost first
        self._inputs: dict[tuple[int, str], torch.Tensor] = {}  # inputs of these modules
        self._constants = {id(one): name for name, one in (*model.named_parameters(), *model.named_buffers())}
        embeddings = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None  # type: ignore[operator]
        self._vocabulary = getattr(embeddings, "weight", None)
        self._norms = {path for path, module in model.named_modules() if is_norm(module)}
        self._references: list[Any] = []  # tensors are identified by id, so none may be freed

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and record it."""
        name = function.__name__.partition(".")[0]
        plain = not (kwargs and "alpha" in kwargs)
        inputs = tuple(args)
        if name == "add_" and plain:
            name, inputs = "add", (self._copy(args[0]), *args[1:])
        result = function(*args, **(kwargs or {}))
        results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        if name == "slice" and results[0].shape == args[0].shape:  # a model may keep all of its positions
            name = "alias"
        if name in _MOVES | _MAPS and plain:
            operation = Operation(name, inputs, results)
            self._references.append(operation)
            for one in results:
                self._makers[id(one)] = operation
        elif name.endswith("_"):  # in place: the recorded operation no longer gives the tensor
            for one in results:
                self._makers.pop(id(one), None)
        return result

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Store a tensor before something is added to it in place: its values, its maker and its name."""
        copy, maker = tensor.clone(), self.maker(tensor)
        if maker is not None and maker.name in _SHAPES:  # a view: its source shares the memory and changes too
            maker = self.maker(self.base(tensor))
            maker = maker if maker is not None and maker.name in ("mm", "addmm") else None
        if maker is not None:
            self._makers[id(copy)] = maker
        self._names[id(copy)] = list(self.names(tensor))
        for path in self.names(tensor):
            self._inputs[id(copy), path] = self._inputs[id(tensor), path]
        self._references.append(copy)
        return copy

    def note(self, path: str, inputs: torch.Tensor, output: torch.Tensor) -> None:
        """Record the inputs and outputs of a module."""
        self._references += [inputs, output]
        self.inputs.setdefault(path, []).append(inputs)
        while True:  # a projection puts out a view of its product
            self._names.setdefault(id(output), []).append(path)
            self._inputs[id(output), path] = inputs
            maker = self.maker(output)
            if maker is None or maker.name not in _SHAPES:
                return
            output = maker.arguments[0]

    def maker(self, tensor: torch.Tensor) -> Operation | None:
        """Return the operation that made a tensor."""
        return self._makers.get(id(tensor))

    def norm_before(self, tensor: torch.Tensor) -> tuple[str, torch.Tensor] | None:
        """Return the path and the input of the norm that put a tensor out, if one did."""
        for path in self._names.get(id(tensor), ()):
            inputs = self._inputs.get((id(tensor), path), tensor)
            if inputs is not tensor and inputs.shape == tensor.shape and path in self._norms:
                return path, inputs
        return None

    def base(self, tensor: torch.Tensor) -> torch.Tensor:
        """Undo views, copies and transpositions."""
        while (maker := self.maker(tensor)) is not None and maker.name in _MOVES:
            tensor = maker.arguments[0]
        return tensor

    def projection(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
        """Read a tensor as x A + b: x, A (d, out) and b; None if no matrix product made it."""
        maker = self.maker(self.base(tensor))
        if maker is None or maker.name not in ("mm", "addmm"):
            return None
        *bias, states, weight = maker.arguments[:3]
        return states, weight, bias[0] if bias else None

    def attended(self, tensor: torch.Tensor) -> Attended | None:
        """Read a tensor as the output of attention."""
        product = self.projection(tensor)
        if product is None:
            return None
        states, weight, bias = product
        maker = self.maker(self.base(states))
        if maker is None or maker.name != "bmm" or maker.arguments[1].shape[-1] == 0:
            return None
        probabilities, values = maker.arguments
        if weight.shape[0] % values.shape[-1] or states.numel() != values.shape[-1] * probabilities[..., 0].numel():
            return None
        return Attended(probabilities, values, weight, bias)

    def summands(
        self, tensor: torch.Tensor, row: VectorIndex, end: torch.Tensor | None = None
    ) -> Iterator[tuple[torch.Tensor, tuple[Map, ...]]]:
        """Follow a vector back to `end` and to tensors that no addition explains; yield them and their maps."""
        stack: list[tuple[torch.Tensor, tuple[Map, ...]]] = [(tensor, ())]
        while stack:
            one, maps = stack.pop()
            parents = None if one is end else self._parents(one, row)
            if parents is None:
                yield one, maps
            else:
                stack += [(parent, (map_of_parent, *maps)) for parent, map_of_parent in parents]

    def _parents(self, tensor: torch.Tensor, row: VectorIndex) -> list[tuple[torch.Tensor, Map]] | None:
        """Return the tensors whose linear images add up to a vector, with the maps; None if there are none."""
        maker = self.maker(tensor)
        if maker is None:
            return None
        first, *rest = maker.arguments
        width = tensor.shape[-1]
        if maker.name in _SHAPES:
            return [(first, _same)] if first.ndim and first.shape[-1] == width else None
        if maker.name == "native_layer_norm":
            return self._normalised(maker, tensor, row)
        if maker.name not in ("add", "sub", "mul", "div"):
            return None
        second = rest[0]
        if maker.name in ("mul", "div"):
            pairs = [(first, second), (second, first)] if maker.name == "mul" else [(first, second)]
            for states, factor in pairs:
                scale = _factor(factor, row, width)
                if isinstance(states, torch.Tensor) and states.numel() == tensor.numel() and scale is not None:
                    return [(states, _times(scale if maker.name == "mul" else 1.0 / scale))]
            return None
        if not all(isinstance(one, torch.Tensor) for one in (first, second)):
            return None
        if maker.name == "sub" and (mean := self.maker(second)) is not None and mean.name == "mean":
            return [(first, _centred)] if mean.arguments[0] is first and second.shape[-1] == 1 else None
        if first.shape[-1:] != second.shape[-1:]:
            return None
        return [(first, _same), (second, _same if maker.name == "add" else np.negative)]

    @staticmethod
    def _normalised(maker: Operation, tensor: torch.Tensor, row: VectorIndex) -> list[tuple[torch.Tensor, Map]] | None:
        states, shape, gain, bias = maker.arguments[:4]
        if tensor is not maker.results[0] or len(shape) != 1:
            return None
        scale = row.of(maker.results[2], 1) * (1.0 if gain is None else gain.detach().double().cpu().numpy())
        times = _times(scale)
        parents: list[tuple[torch.Tensor, Map]] = [(states, lambda vector: times(_centred(vector)))]
        return parents if bias is None else [*parents, (bias, _same)]

    def names(self, tensor: torch.Tensor) -> list[str]:
        """Return the paths of the modules that put a tensor out, the innermost first."""
        return self._names.get(id(tensor), [])

    def call(self, tensor: torch.Tensor, path: str) -> int | None:
        """Return the number of the call in which a module put a tensor out; None if the module ran only once."""
        calls, inputs = self.inputs.get(path, []), self._inputs.get((id(tensor), path))
        return None if len(calls) < 2 else next((n for n, one in enumerate(calls) if one is inputs), None)

    def constant(self, tensor: torch.Tensor) -> str | None:
        """Return the name of the parameter or buffer that a tensor is, or is a view of; None for other tensors."""
        return self._constants.get(id(self.base(tensor)))

    def is_vocabulary(self, tensor: torch.Tensor) -> bool:
        """Tell whether a parameter embeds the tokens."""
        return tensor is self._vocabulary


def is_norm(module: nn.Module) -> bool:
    """Tell whether a module is named a norm, or has vectors for parameters and no matrix."""
    parameters = list(module.parameters())
    return ("norm" in type(module).__name__.lower() or bool(parameters)) and all(one.ndim == 1 for one in parameters)


def _same(vector: np.ndarray) -> np.ndarray:
    return vector


def _times(scale: float | np.ndarray) -> Map:
    return lambda vector: vector * scale


def _centred(vector: np.ndarray) -> np.ndarray:
    return vector - vector.mean(axis=-1, keepdims=True)


def through(maps: tuple[Map, ...], vectors: np.ndarray) -> np.ndarray:
    """Apply maps in order to vectors (..., d)."""
    for one in maps:
        vectors = one(vectors)
    return vectors


def _factor(factor: Any, row: VectorIndex, width: int) -> float | np.ndarray | None:
    """Read a factor as a number, or as a constant vector (width,); None for other values."""
    if isinstance(factor, (int, float)):
        return float(factor)
    if not isinstance(factor, torch.Tensor) or (factor.ndim and factor.shape[-1] not in (1, width)):
        return None
    if factor.numel() == 1:
        return float(factor)
    if factor.shape[-1] == 1:
        return float(row.of(factor, 1)[0])
    return factor.detach().double().cpu().numpy().ravel() if factor.numel() == width else None


@contextmanager
def record_tape(model: nn.Module) -> Iterator[Tape]:
    """Record the operations of the forward pass inside the block; hooks are removed even after an error.

    The model must compute attention by its eager function, as inside
    :func:`attsvm_pretrained.activations.recording.recording`.
    """
    tape = Tape(model)
    handles = []

    def watch(path: str) -> Callable[..., None]:
        def leave(module: nn.Module, arguments: Any, keywords: Any, output: Any) -> None:
            inputs = arguments[0] if arguments else next(iter(keywords.values()), None)
            if isinstance(inputs, torch.Tensor) and isinstance(output, torch.Tensor):
                tape.note(path, inputs, output)
            elif isinstance(inputs, torch.Tensor):
                tape.inputs.setdefault(path, []).append(inputs)

        return leave

    try:
        for path, module in model.named_modules():
            handles.append(module.register_forward_hook(watch(path), with_kwargs=True))
        with tape:
            yield tape
    finally:
        for handle in handles:
            handle.remove()
