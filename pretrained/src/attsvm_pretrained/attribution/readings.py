"""Read the hidden state of a head at a row of a text: its parts, and the factor that maps it to a query or key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from attsvm_pretrained.activations.image import Origin, Side, image, origin
from attsvm_pretrained.activations.layers import number_in_path
from attsvm_pretrained.activations.recording import AttentionCall
from attsvm_pretrained.activations.residual import Component, Part, parts
from attsvm_pretrained.activations.tape import Tape, VectorIndex
from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.heads.rotary import rotate

# Largest error of a sum of parts, in roundings of the sum of their lengths; 100 layers have about 300 parts.
STREAM_ROUNDINGS = 300.0


def rounding(dtype: torch.dtype) -> float:
    """Return the relative rounding of a sum; most norms compute in float32 even in a float64 model.

    Parameters
    ----------
    dtype : torch.dtype
        The model's dtype.
    """
    return STREAM_ROUNDINGS * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


@dataclass(frozen=True, eq=False)
class VectorReading:
    """The hidden state that a head reads at one row.

    Attributes
    ----------
    row : int
        Row in its sequence, including padding and a null token.
    width : int
        d.
    length : int
        Number of rows of the sequence, T.
    state : ndarray, shape (d,)
        The hidden state that is projected; with a last coordinate 1 if constants are added to the projection.
    factor : ndarray, shape (d, dh)
        K, or Q with the scale, rotated by the position. It includes the gains and denominators of norms of queries,
        keys and latents.
    live : ndarray, shape (d, dh)
        Derivative of the query or key by the state with these norms live; equal to the factor if there are none.
    parts : dict of Component to Part
        Parts of the state.
    norm : tuple of (str, ndarray of shape (d,)), or None
        Path and input of the norm that puts the state out.
    """

    row: int
    width: int
    length: int
    state: np.ndarray
    factor: np.ndarray
    live: np.ndarray
    parts: dict[Component, Part]
    norm: tuple[str, np.ndarray] | None

    @property
    def image(self) -> np.ndarray:
        """The query or key, (dh,)."""
        return self.state @ self.factor

    def vectors(self, components: Sequence[Component]) -> np.ndarray:
        """Return the parts of components, (C, d); zero for a component without a part."""
        out = np.zeros((len(components), len(self.state)))
        for c, component in enumerate(components):
            if component in self.parts:
                out[c] = self.parts[component].vector
        return out

    def places(self, components: Sequence[Component]) -> np.ndarray:
        """Return the products of the parts with the direction, by the rows that they come from, (C, T)."""
        out = np.zeros((len(components), self.length))
        for c, component in enumerate(components):
            if component in self.parts:
                out[c, self.length - len(self.parts[component].places) :] = self.parts[component].places
        return out


@dataclass(frozen=True, eq=False)
class Question:
    """One query of a head in a forward pass, and the keys of its sequence.

    Attributes
    ----------
    number : int
        Number of the query among the head's queries; it determines position, visible tokens and additive bias.
    """

    call: AttentionCall
    head: AttentionHead
    sequence: int
    number: int

    @property
    def row(self) -> int:
        """Row of the query in its sequence, without a null token."""
        return self.own_row("query", int(self.head.position[self.number]))

    def own_row(self, side: Side, row: int) -> int:
        """Return a row without counting a null token; -1 for the null token itself."""
        return row - (self.head.first_place if side == "keys" or self.head.self_attention else 0)

    def query(self, call: AttentionCall, sequence: int) -> np.ndarray:
        """Return the query in a sequence of a call, with the scale, (dh,)."""
        return (call.query[sequence, self.head.head, self.row].double() * call.scaling).cpu().numpy()

    def keys(self, call: AttentionCall, sequence: int) -> np.ndarray:
        """Return the keys in a sequence of a call, (T, dh); zero for a null token, which has no key."""
        group = self.head.head * call.key.shape[1] // call.query.shape[1]
        keys = call.key[sequence, group].double().cpu().numpy()
        return np.pad(keys, [(self.head.first_place, 0), (0, 0)])

    def visible(self, side: Side) -> np.ndarray:
        """Mark the rows of queries or keys that are not padding, without a null token."""
        head = self.head
        if side == "keys" or head.self_attention:
            return np.asarray(head.text_place[self.sequence, head.first_place :] >= 0)
        visible = np.zeros(self.call.query.shape[2], dtype=bool)
        visible[head.position[head.sequence == self.sequence]] = True
        return visible

    def logits(self, query: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return the logits of a query for keys, (T,); -inf for hidden tokens."""
        bias = 0.0 if self.head.bias is None else self.head.bias[self.number]
        return np.where(self.head.mask[self.number], keys @ query + bias, -np.inf)


@dataclass(frozen=True, eq=False)
class Source:
    """The data with which the model can run again after a change of a component.

    Attributes
    ----------
    model : PreTrainedModel
    inputs : dict
        Arguments of the model's call.
    keys : ndarray, shape (T, dh)
        Keys of all rows of the sequence, as attention received them.
    places, query_rows : ndarray of int
        Rows of tokens and of queries, without padding.
    origins : dict
        The hidden states from which queries and keys are made.
    """

    model: Any
    inputs: dict[str, Any]
    question: Question
    query: VectorReading
    chosen: VectorReading
    rival: VectorReading
    keys: np.ndarray
    places: np.ndarray
    query_rows: np.ndarray
    origins: dict[Side, Origin]

    def readings(self, side: Side) -> list[VectorReading]:
        """Return the readings of a side."""
        return [self.query] if side == "query" else [self.chosen, self.rival]

    def effects(self, vectors: Sequence[np.ndarray], side: Side, *, live: bool = False) -> np.ndarray:
        """Return the contributions of parts (C, d) of each reading of a side to the logits of the tokens, (C, T).

        Parameters
        ----------
        side : {"query", "keys"}
        live : bool
            Whether to use the derivative of norms of queries and keys, and not their frozen denominators.
        """
        out = np.zeros((len(vectors[0]), len(self.keys)))
        for reading, one in zip(self.readings(side), vectors, strict=True):
            images = one @ (reading.live if live else reading.factor)
            if side == "query":
                out += images @ self.keys.T
            else:
                out[:, reading.row] = images @ self.query.image
        return out[:, self.places]


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads a head's hidden states from the tape of a forward pass.

    Attributes
    ----------
    spread : bool
        Whether the output of earlier heads counts at the rows that they read, and not at the row of the output.
    end : Tensor or None
        A hidden state that is split into features.
    features : mapping of int to mapping of int to ndarray
        Features by row and number.
    origins : dict
        The hidden states from which queries and keys are made.
    """

    tape: Tape
    question: Question
    spread: bool
    end: torch.Tensor | None
    features: Mapping[int, Mapping[int, np.ndarray]]
    origins: dict[Side, Origin] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the hidden states."""
        places, call = self.question.head.places, self.question.call
        self.origins["query"] = origin(self.tape, call, places[1], "query", None)
        other = None if self.question.head.self_attention else self.origins["query"].states
        self.origins["keys"] = origin(self.tape, call, places[0], "keys", other)

    def read(self, side: Side, row: int, direction: np.ndarray) -> VectorReading:
        """Split the state at a row into parts.

        Parameters
        ----------
        side : {"query", "keys"}
        direction : ndarray, shape (dh,)
            Vector by which the query or key is multiplied.

        Raises
        ------
        ValueError
            If the parts do not add up to the state, or the state does not give the query or key.
        """
        head, states, token = self.question.head, self.origins[side].states, self.question.own_row(side, row)
        d, length = states.shape[-1], states.shape[1] + row - token
        if token < 0:  # a null token has neither state nor key
            nothing = np.zeros((d, len(direction)))
            return VectorReading(row, d, length, np.zeros(d), nothing, nothing, {}, None)
        place = VectorIndex((self.question.sequence, token), tuple(states.shape[:2]))
        state, factor, live = self._maps(side, token, place.of(states, d))
        towards = factor @ direction
        split = parts(
            self.tape, states, place, towards[:d], self.question.visible(side), spread=self.spread, end=self.end,
            features=self.features.get(token),
        )  # fmt: skip
        vectors = np.array([part.vector for part in split.values()])
        wrong, size = np.linalg.norm(vectors.sum(axis=0) - state[:d]), np.linalg.norm(vectors, axis=1).sum()
        if not wrong <= rounding(states.dtype) * size:
            raise ValueError(
                f"the hidden state that {head.name} reads differs by {wrong / np.linalg.norm(state[:d]):.1e} of "
                "its norm from the sum of what additions and norms explain, so its parts would not add up."
            )
        if len(state) > d:
            split = {one: replace(part, vector=np.append(part.vector, 0.0)) for one, part in split.items()}
            at_place = np.zeros(states.shape[1])
            at_place[token] = towards[d]
            split[self._constant(side)] = Part(np.eye(d + 1)[d], None, at_place)
        norm = None if states is self.end else self.tape.norm_before(states)
        before = None if norm is None else (norm[0], place.of(norm[1], d))
        return VectorReading(row, d, length, state, factor, live, split, before)

    def _maps(self, side: Side, row: int, state: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a state with a last coordinate 1 for added constants, its factor, and the factor with live norms."""
        head, call, sequence = self.question.head, self.question.call, self.question.sequence
        linear, factor = (head.places[0], head.K) if side == "keys" else (head.places[1], head.Q)
        if linear.kind == "linear":
            if len(factor) > len(state):
                state = np.append(state, 1.0)
            if head.turns is not None:
                turns = head.turns.tokens[sequence, row + head.first_place]
                factor = rotate(factor, head.turns.pairs, turns)
            return state, factor, factor
        start, place = self.origins[side], (sequence, row)
        factor, offset = image(start, call, head.head, place, frozen=True)
        vector = start.vectors(call, head.head)[place].double().cpu().numpy()
        wrong, size = np.linalg.norm(state @ factor + offset - vector), np.linalg.norm(np.abs(state) @ np.abs(factor))
        if not wrong <= rounding(call.query.dtype) * (size + np.linalg.norm(offset)):
            raise ValueError(
                f"the {'query' if side == 'query' else 'key'} that {head.name} makes of the hidden state differs by "
                f"{wrong / np.linalg.norm(vector):.1e} of its length from a linear image with denominators frozen, so "
                "its parts would not add up."
            )
        live, _ = image(start, call, head.head, place, frozen=False)
        scale = call.scaling if side == "query" else 1.0
        if offset.any():
            state = np.append(state, 1.0)
            factor, live = np.vstack([factor, offset]), np.vstack([live, offset])
        return state, scale * factor, scale * live

    def _constant(self, side: Side) -> Component:
        """Name the constants that are added to a projection."""
        place, name = self.question.head.places[side == "query"], self.question.head.name
        path = f"{place.path}.bias" if place.kind == "linear" else f"{name} biases of {side}"
        return Component("bias", path, number_in_path(name))


def features_of(
    tape: Tape, question: Question, dictionary: np.ndarray | None, activations: np.ndarray | None
) -> tuple[torch.Tensor | None, dict[int, dict[int, np.ndarray]]]:
    """Find the hidden state that enters the layer of a head, and its features, by row and number.

    Parameters
    ----------
    dictionary : array, shape (n, d), or None
    activations : array, shape (T, n), or None

    Raises
    ------
    ValueError
        If dictionary and activations have other shapes, or only one of them is given.
    """
    if dictionary is None and activations is None:
        return None, {}
    if dictionary is None or activations is None:
        raise ValueError("dictionary and activations go together; both were expected.")
    directions, numbers = np.asarray(dictionary, dtype=float), np.asarray(activations, dtype=float)
    head = question.head
    rows = np.flatnonzero(question.visible("query"))
    block = f"{head.name.split(f'.{number_in_path(head.name)}.')[0]}.{number_in_path(head.name)}"
    end = tape.inputs[block][-1]
    d = end.shape[-1]
    if directions.ndim != 2 or directions.shape[1] != d or numbers.shape != (len(rows), len(directions)):
        raise ValueError(
            f"dictionary has shape {directions.shape} and activations {numbers.shape}; (n, {d}) and ({len(rows)}, n) "
            "were expected."
        )
    active = {int(row): np.flatnonzero(numbers[place]) for place, row in enumerate(rows)}
    return end, {
        row: {int(f): numbers[place, f] * directions[f] for f in active[row]} for place, row in enumerate(active)
    }
