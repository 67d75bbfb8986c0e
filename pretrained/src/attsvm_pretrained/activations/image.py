r"""Queries and keys as linear images of the hidden state they are made from, with frozen norms.

Between a hidden state and a query, a model may compute a norm of the query (Qwen3 and Gemma 3 per head, OLMo 2 over all
heads, Llama 4 after the rotation) or a latent vector with a norm (DeepSeek). All other steps are linear: projections,
slices, rotations, scales. The denominators of the norms are constants taken from the pass, so the query is
:math:`q = F^\top h + f`. The matrix F differs between positions and contains projection, gain, denominator and
rotation. It is the derivative of the attention module with constant denominators; f is the module's result for a hidden
state of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from attsvm_pretrained.activations.maps import Place
from attsvm_pretrained.activations.recording import AttentionCall, ModuleCall, recording
from attsvm_pretrained.activations.tape import Tape, is_norm

Side = Literal["query", "keys"]
# Operations that compute the denominator of a norm: a root, a power or a length.
_ROOTS = {"rsqrt", "sqrt", "pow", "__pow__", "norm", "vector_norm", "std"}


@dataclass(frozen=True, eq=False)
class Origin:
    """The hidden states from which queries or keys of a head are made, and the calls in between.

    Attributes
    ----------
    side : {"query", "keys"}
    states : Tensor, shape (B, T, d)
    readers : dict of Module to int
        Modules that read the states, with the number of the call in the pass.
    norms : dict of Module to dict of int to Tensor
        Inputs of the norms inside the attention module, by the number of the call.
    calls_before : dict of Module to int
        Number of earlier calls of each module in the pass.
    """

    side: Side
    states: torch.Tensor
    readers: dict[nn.Module, int]
    norms: dict[nn.Module, dict[int, torch.Tensor]]
    calls_before: dict[nn.Module, int]

    def vectors(self, call: AttentionCall, head: int) -> torch.Tensor:
        """Return the queries of a head of a call, or its keys, (B, T, dh)."""
        if self.side == "query":
            return call.query[:, head]
        return call.key[:, head * call.key.shape[1] // call.query.shape[1]]


def origin(tape: Tape, call: AttentionCall, place: Place, side: Side, other: torch.Tensor | None) -> Origin:
    """Find the hidden states behind queries or keys.

    Parameters
    ----------
    place : Place
        Location of the map.
    side : {"query", "keys"}
    other : Tensor, or None
        States to exclude: under cross-attention the queries' hidden states are no source of keys.

    Raises
    ------
    ValueError
        If no recorded module reads them.
    """
    shape = call.query.shape[0], (call.query if side == "query" else call.key).shape[2]
    linear = place.kind == "linear"
    calls = [one for one in reversed(call.calls) if linear or one.path.startswith(f"{call.path}.")]
    candidates = [
        one.input
        for one in calls or reversed(call.calls)
        if (one.path == place.path if linear else _is_projection(one)) and one.input.shape[:2] == shape
    ]
    states = next((one for one in candidates if one is not other), None)
    if states is None:
        raise ValueError(
            f"the {'queries' if side == 'query' else 'keys'} of {call.path} are made by no module that reads a hidden "
            f"state ({place.path}); a head whose projections are modules was expected."
        )
    numbers: dict[nn.Module, dict[int, torch.Tensor]] = {}
    for one in calls:
        number = next(n for n, states_of_call in enumerate(tape.inputs[one.path]) if states_of_call is one.input)
        numbers.setdefault(one.module, {})[number] = one.input
    readers = {module: n for module, inputs in numbers.items() for n, one in inputs.items() if one is states}
    norms = {} if linear else {module: inputs for module, inputs in numbers.items() if is_norm(module)}
    return Origin(side, states, readers, norms, {module: min(inputs) for module, inputs in numbers.items()})


def _is_projection(call: ModuleCall) -> bool:
    weight = getattr(call.module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.ndim == 2 and call.input.dtype.is_floating_point


def image(
    source: Origin, call: AttentionCall, head: int, place: tuple[int, int], *, frozen: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Differentiate a query or key of a head by the hidden state at its place.

    Parameters
    ----------
    place : (int, int)
        Sequence and row.
    frozen : bool
        Whether norms in between use the denominators of the pass.

    Returns
    -------
    factor : ndarray, shape (d, dh)
    offset : ndarray, shape (dh,)
        The constant part of the query or key.

    Raises
    ------
    ValueError
        If the model does not use transformers' attention interface.
    """
    state = source.states[place].detach().clone().requires_grad_()
    vector = _vectors_after(source, call, head, place, state, frozen=frozen)
    rows = [torch.autograd.grad(one, state, retain_graph=True)[0] for one in vector]
    factor = torch.stack(rows, dim=1).double().cpu().numpy()
    with torch.no_grad():
        offset = _vectors_after(source, call, head, place, torch.zeros_like(state), frozen=frozen)
    return factor, offset.double().cpu().numpy()


def _vectors_after(
    source: Origin, call: AttentionCall, head: int, place: tuple[int, int], state: torch.Tensor, *, frozen: bool
) -> torch.Tensor:
    """Call the attention module again with another hidden state at one place; return the query or key there, (dh,)."""

    def replace_state(states: torch.Tensor) -> torch.Tensor:
        states = states.detach().clone()
        states[place] = state
        return states

    invocation = next(one for one in call.invocations if set(source.readers) <= set(one.module.modules()))
    with (
        recording(invocation.module) as recorder,
        rereading(source.readers, replace_state, source.calls_before),
        holding(source.norms if frozen else {}, source.calls_before),
        torch.set_grad_enabled(state.requires_grad),
    ):
        invocation.module(*invocation.arguments, **invocation.keywords)
    repetition = next((one for one in recorder.calls if call.path.endswith(one.path)), None)
    if repetition is None:
        raise ValueError(
            f"{call.path} computes attention by itself behind norms or latents; a head of a model that uses "
            "transformers' attention interface was expected."
        )
    return source.vectors(repetition, head)[place]


@contextmanager
def rereading(
    readers: Mapping[nn.Module, int],
    change: Callable[[torch.Tensor], torch.Tensor],
    calls_before: Mapping[nn.Module, int] | None = None,
) -> Iterator[None]:
    """Change the inputs of modules inside the block, one call each.

    Parameters
    ----------
    readers : mapping of Module to int
        With the number of the call.
    change : callable
        Maps the input of a module to its new input.
    calls_before : mapping of Module to int, optional
        Number of the first call inside the block; default 0.
    """
    counts = {module: (calls_before or {}).get(module, 0) for module in readers}

    def before(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        number = counts[module]
        counts[module] += 1
        if number != readers[module]:
            return None
        if arguments:
            return (change(arguments[0]), *arguments[1:]), keywords
        name = next(iter(keywords))
        return arguments, {**keywords, name: change(keywords[name])}

    handles = [module.register_forward_pre_hook(before, with_kwargs=True) for module in readers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def holding(
    norms: Mapping[nn.Module, Mapping[int, torch.Tensor]], calls_before: Mapping[nn.Module, int] | None = None
) -> Iterator[None]:
    """Fix the denominators of norms inside the block to their values for given inputs, call by call.

    Parameters
    ----------
    norms : mapping of Module to mapping of int to Tensor
        Inputs by the number of the call. Inputs of a single sequence apply to every sequence.
    calls_before : mapping of Module to int, optional
        Number of the first call inside the block; default 0.
    """
    counts = {module: (calls_before or {}).get(module, 0) for module in norms}

    def after(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
        number = counts[module]
        counts[module] += 1
        if number not in norms[module]:
            return output
        with torch.no_grad(), Denominators() as denominators:
            module.forward(norms[module][number])
        with Denominators(denominators.values):
            return module.forward(*arguments, **keywords)

    handles = [module.register_forward_hook(after, with_kwargs=True) for module in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Denominators(TorchFunctionMode):
    """Replaces roots, powers and lengths by constants: their values inside the block, or values of an earlier run.

    Attributes
    ----------
    values : list of Tensor
        Constants in the order of their operations.
    """

    def __init__(self, values: list[torch.Tensor] | None = None) -> None:
        super().__init__()
        self.values: list[torch.Tensor] = []
        self._before = None if values is None else iter(values)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation, or repeat its result."""
        name = getattr(function, "__name__", "")
        if name in ("layer_norm", "rms_norm"):
            return self._normalised(*args, centred=name == "layer_norm", **(kwargs or {}))
        result = function(*args, **(kwargs or {}))
        return self._constant(result) if name in _ROOTS else result

    def _constant(self, value: torch.Tensor) -> torch.Tensor:
        if self._before is not None:
            return next(self._before).to(value.dtype)
        self.values.append(value.detach())
        return self.values[-1]

    def _normalised(
        self,
        states: torch.Tensor,
        shape: tuple[int, ...],
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        eps: float | None = None,
        *,
        centred: bool,
    ) -> torch.Tensor:
        axes = tuple(range(-len(shape), 0))
        eps = torch.finfo(states.dtype).eps if eps is None else eps
        if centred:
            states = states - states.mean(dim=axes, keepdim=True)
        states = states * self._constant((states.square().mean(dim=axes, keepdim=True) + eps).rsqrt())
        states = states if weight is None else states * weight
        return states if bias is None else states + bias
