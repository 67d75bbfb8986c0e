r"""Split a hidden state that a head reads into the summands that the model itself added.

A residual stream is a sum that the forward pass computes. This module records the operations of one pass on a tape and
follows a hidden state back through them. It passes

* additions, to both summands;
* views, copies and multiplications by constants;
* norms. At one position a norm is a linear map of its input once its denominator is taken from the pass (*frozen*):
  subtracting the mean, the gain and the division are then linear, and its bias is one more summand. Any other factor
  with one number per position, such as a gate, is frozen in the same way.

It ends at tensors that no addition explains: embeddings, position embeddings, biases, and outputs of an MLP (or a
state-space or convolution block). It also ends at the output of attention, which is a sum over its heads and over the
tokens that each head reads, :math:`\sum_h \sum_s p_{ts} v_s W_{O,h}`. The parts thus add up to the hidden state
exactly, for any architecture. If norms stand between blocks and not before them (BERT), every norm in between is
frozen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from attsvm.platform.summary import Listed
from attsvm_pretrained.activations.layers import number_in_path
from attsvm_pretrained.activations.tape import Map, Tape, VectorIndex, through

KINDS = ("embedding", "position", "head", "mlp", "bias", "feature", "remainder")


@dataclass(frozen=True, repr=False)
class Component(Listed):
    """A summand of the residual stream.

    Attributes
    ----------
    kind : {"embedding", "position", "head", "mlp", "bias", "feature", "remainder"}
        "bias" is a constant vector of a norm or projection; "mlp" is any other summand of a layer. A dictionary adds
        "feature" components, and the "remainder" that they do not explain.
    name : str
        Module or parameter in the model, with the number of a head in brackets: "h.0.attn[3]", "h.0.mlp", "wte".
    layer, head : int or None

    Examples
    --------
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> split = pretrained.attribute(model, 1, 0, inputs)
    >>> split.components[2]
    Component(kind head, name transformer.h.0.attn[0], layer 0, head 0)
    """

    kind: str
    name: str
    layer: int | None = None
    head: int | None = None


@dataclass(frozen=True, eq=False)
class Part:
    """A component's part of one hidden state.

    Attributes
    ----------
    vector : ndarray, shape (d,)
    before : ndarray, shape (d,), or None
        Its part of the last norm's input; None for parts that are added after the norm.
    places : ndarray, shape (T,)
        The part's product with a direction, split by the position that it comes from.
    """

    vector: np.ndarray
    before: np.ndarray | None
    places: np.ndarray


def parts(
    tape: Tape,
    state: torch.Tensor,
    row: VectorIndex,
    direction: np.ndarray,
    visible: np.ndarray,
    *,
    spread: bool,
    end: torch.Tensor | None = None,
    features: Mapping[int, np.ndarray] | None = None,
) -> dict[Component, Part]:
    """Split a hidden state into components.

    Parameters
    ----------
    state : Tensor, shape (B, T, d)
    row : VectorIndex
        Its sequence and position.
    direction : ndarray, shape (d,)
        Vector by which the parts are multiplied, position by position.
    visible : ndarray of bool, shape (T,)
        Positions without padding.
    spread : bool
        Whether the output of a head counts at the positions that the head reads, and not at the position of its output.
    end : Tensor, optional
        An earlier hidden state that is split into `features` and a remainder instead of its summands.
    features : mapping of int to ndarray, shape (d,), optional
        Parts of that hidden state.

    Returns
    -------
    dict of Component to Part
        The vectors add up to the hidden state, and the places to its product with the direction.
    """
    norm = tape.norm_before(state)
    between = None if norm is None or state is end else norm[1]
    out: dict[Component, Part] = {}

    def add(component: Component, vector: np.ndarray, before: np.ndarray | None, places: np.ndarray | None) -> None:
        if places is None:
            places = np.zeros(len(visible))
            places[row.index[-1]] = vector @ direction
        one = out.get(component)
        if one is not None:
            vector, places = vector + one.vector, places + one.places
            before = one.before if before is None else before + (0.0 if one.before is None else one.before)
        out[component] = Part(vector, before, places)

    def leaves() -> Iterator[tuple[torch.Tensor, tuple[Map, ...], tuple[Map, ...] | None]]:
        for middle, last in tape.summands(state, row, end if between is None else between):
            if middle is between:
                yield from ((leaf, maps, last) for leaf, maps in tape.summands(middle, row, end))
            else:
                yield middle, last, None

    for leaf, maps, last in leaves():
        if leaf is end:
            remainder = row.of(leaf, state.shape[-1])
            for number, vector in (features or {}).items():
                remainder = remainder - vector
                add(Component("feature", f"feature {number}"), *_split(through(maps, vector), last), None)
            add(Component("remainder", "remainder"), *_split(through(maps, remainder), last), None)
            continue
        attended = tape.attended(leaf)
        if attended is None:
            component = _component(tape, leaf, visible, row.index[0])
            before = through(maps, row.of(leaf, state.shape[-1]))
            add(component, *_split(before, last), None)
            continue
        path = next(iter(tape.names(leaf)), "attention")
        name, layer = _name_of(path.rpartition(".")[0], tape.call(leaf, path))
        for h, values, weight in attended.of(row):
            lifted, before = _split(through(maps, weight), last)  # (dv, d)
            total = values.sum(axis=0)
            component = Component("head", f"{name}[{h}]", layer, h)
            places = values @ (lifted @ direction) if spread else None
            add(component, total @ lifted, None if before is None else total @ before, places)
        if attended.bias is not None:
            name = tape.constant(attended.bias) or f"{name}.bias"
            before = through(maps, attended.bias.detach().double().cpu().numpy())
            add(Component("bias", name, number_in_path(name)), *_split(before, last), None)
    return out


def _split(before: np.ndarray, last: tuple[Map, ...] | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Apply the last norm, if there is one in between, and store its input."""
    return (before, None) if last is None else (through(last, before), before)


def _component(tape: Tape, tensor: torch.Tensor, visible: np.ndarray, sequence: int) -> Component:
    """Name a tensor that neither an addition nor attention made.

    ``visible`` marks positions without padding, bool (T,).
    """
    name = tape.constant(tensor)
    if name is not None:
        kind = "position" if tensor.ndim > 1 and tensor.shape[-2] == len(visible) > 1 else "bias"
        return Component(kind, name, number_in_path(name))
    maker = tape.maker(tape.base(tensor))
    if maker is not None and maker.name == "embedding":
        weight, indices = maker.arguments[:2]
        name = (tape.constant(weight) or "embedding").removesuffix(".weight")
        rows = indices.reshape(-1, len(visible))
        steps = np.diff(rows[min(sequence, len(rows) - 1)].cpu().numpy()[visible])
        rising = not tape.is_vocabulary(weight) and len(steps) > 0 and bool((steps == 1).all())
        return Component("position" if rising else "embedding", name)
    path = min(tape.names(tensor), key=len, default="input")
    name, layer = _name_of(path, tape.call(tensor, path))
    return Component("embedding" if layer is None else "mlp", name, layer)


def _name_of(path: str, call: int | None) -> tuple[str, int | None]:
    """Name the output of a module and its layer; if layers share the module, the call number is the layer."""
    return (path, number_in_path(path)) if call is None else (f"{path}, call {call}", call)
