"""What a head reads at a place of a text: a hidden state in parts, and the factor that makes a query or key of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from attsvm.pretrained.activations.image import Origin, Side, image, origin
from attsvm.pretrained.activations.layers import own_number
from attsvm.pretrained.activations.recording import AttentionCall
from attsvm.pretrained.activations.residual import Component, Part, parts
from attsvm.pretrained.activations.tape import Row, Tape
from attsvm.pretrained.head import AttentionHead
from attsvm.pretrained.rotary import rotate

# A sum of n numbers is wrong by less than n roundings of their absolute sum, and a stream of 100 layers has 300 or so.
ROUNDINGS = 300.0


def rounding(dtype: torch.dtype) -> float:
    """Return what rounding explains, relative to what is summed; most norms compute in float32 in a float64 model too.

    Parameters
    ----------
    dtype : torch.dtype
        Of the model.
    """
    return ROUNDINGS * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


@dataclass(frozen=True, eq=False)
class Reading:
    """What a head reads at one place.

    Attributes
    ----------
    row : int
        In its sequence, padding counted, and a null token.
    width : int
        d.
    length : int
        Rows of the sequence, T.
    state : ndarray, shape (d,)
        The hidden state that is projected; with a last coordinate 1 where constants are added to the projection.
    factor : ndarray, shape (d, dh)
        K, or Q with the scale, turned by the position of the place; where norms of queries and keys or latents stand
        between, with their gain and over their denominator.
    live : ndarray, shape (d, dh)
        Derivative of the query or key by the state with these norms live; the factor itself where there are none.
    parts : dict of Component to Part
        Of the state.
    norm : tuple of (str, ndarray of shape (d,)), or None
        Path of the norm that put the state out, and what it read.
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
        """Return the parts of components, (C, d); zero where one has none."""
        out = np.zeros((len(components), len(self.state)))
        for c, component in enumerate(components):
            if component in self.parts:
                out[c] = self.parts[component].vector
        return out

    def places(self, components: Sequence[Component]) -> np.ndarray:
        """Return the parts of components, multiplied by the other side, by the rows they come from, (C, T)."""
        out = np.zeros((len(components), self.length))
        for c, component in enumerate(components):
            if component in self.parts:
                out[c, self.length - len(self.parts[component].places) :] = self.parts[component].places
        return out


@dataclass(frozen=True, eq=False)
class Question:
    """A query of a head in a forward pass, and the keys of its sequence.

    Attributes
    ----------
    call : AttentionCall
    head : AttentionHead
    sequence : int
    number : int
        Number of the query among those of the head: its place, what it sees and its additive bias.
    """

    call: AttentionCall
    head: AttentionHead
    sequence: int
    number: int

    @property
    def row(self) -> int:
        """Row of the query in its sequence, a null token not counted."""
        return self.own_row("query", int(self.head.position[self.number]))

    def own_row(self, side: Side, row: int) -> int:
        """Return a row, a null token not counted; -1 for the null token itself."""
        return row - (self.head.first_place if side == "keys" or self.head.self_attention else 0)

    def query(self, call: AttentionCall, sequence: int) -> np.ndarray:
        """Return the query in a sequence of a call, with the scale, (dh,)."""
        return (call.query[sequence, self.head.head, self.row].double() * call.scaling).cpu().numpy()

    def keys(self, call: AttentionCall, sequence: int) -> np.ndarray:
        """Return the keys in a sequence of a call, (T, dh); a null token has none, which is a vector of zeros."""
        group = self.head.head * call.key.shape[1] // call.query.shape[1]
        keys = call.key[sequence, group].double().cpu().numpy()
        return np.pad(keys, [(self.head.first_place, 0), (0, 0)])

    def visible(self, side: Side) -> np.ndarray:
        """Tell which rows are no padding, those of queries or of keys, a null token not counted."""
        head = self.head
        if side == "keys" or head.self_attention:
            return np.asarray(head.text_place[self.sequence, head.first_place :] >= 0)
        visible = np.zeros(self.call.query.shape[2], dtype=bool)
        visible[head.position[head.sequence == self.sequence]] = True
        return visible

    def logits(self, query: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return the logits of a query for keys, (T,); -inf where hidden."""
        bias = 0.0 if self.head.bias is None else self.head.bias[self.number]
        return np.where(self.head.mask[self.number], keys @ query + bias, -np.inf)


@dataclass(frozen=True, eq=False)
class Source:
    """What a split was made from, to run the model again with a component changed.

    Attributes
    ----------
    model : PreTrainedModel
    inputs : dict
        With which it was called.
    question : Question
    query, chosen, rival : Reading
    keys : ndarray, shape (T, dh)
        Of all rows of the sequence, as they reached attention.
    places, asking : ndarray of int
        Rows of tokens, and of queries, that are no padding.
    origins : dict
        What queries and keys are made from.
    """

    model: Any
    inputs: dict[str, Any]
    question: Question
    query: Reading
    chosen: Reading
    rival: Reading
    keys: np.ndarray
    places: np.ndarray
    asking: np.ndarray
    origins: dict[Side, Origin]

    def readings(self, side: Side) -> list[Reading]:
        """Return those of a side."""
        return [self.query] if side == "query" else [self.chosen, self.rival]

    def effects(self, vectors: Sequence[np.ndarray], side: Side, *, live: bool = False) -> np.ndarray:
        """Return what parts (C, d) of each reading of a side add to the logits of the tokens, (C, T).

        Parameters
        ----------
        vectors : sequence of ndarray
        side : {"query", "keys"}
        live : bool
            By the derivative of norms of queries and keys, and not with their denominators frozen.
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
    """Reads what a head reads off the tape of a forward pass.

    Attributes
    ----------
    tape : Tape
    question : Question
    spread : bool
        Whether what earlier heads bring counts at the places they read, and not at its own.
    end : Tensor or None
        A hidden state that features are parts of.
    features : mapping of int to mapping of int to ndarray
        By row and number.
    origins : dict
        What queries and keys are made from.
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

    def read(self, side: Side, row: int, direction: np.ndarray) -> Reading:
        """Take the state at a row apart.

        Parameters
        ----------
        side : {"query", "keys"}
        row : int
        direction : ndarray, shape (dh,)
            That the query or key is multiplied by.

        Raises
        ------
        ValueError
            If the parts do not add up to the state, or the state does not give the query or key.
        """
        head, states, own = self.question.head, self.origins[side].states, self.question.own_row(side, row)
        d, length = states.shape[-1], states.shape[1] + row - own
        if own < 0:  # of a null token, which has neither state nor key
            nothing = np.zeros((d, len(direction)))
            return Reading(row, d, length, np.zeros(d), nothing, nothing, {}, None)
        place = Row((self.question.sequence, own), tuple(states.shape[:2]))
        state, factor, live = self._maps(side, own, place.of(states, d))
        towards = factor @ direction
        split = parts(
            self.tape, states, place, towards[:d], self.question.visible(side), spread=self.spread, end=self.end,
            features=self.features.get(own),
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
            at_place[own] = towards[d]
            split[self._constant(side)] = Part(np.eye(d + 1)[d], None, at_place)
        norm = None if states is self.end else self.tape.norm_before(states)
        before = None if norm is None else (norm[0], place.of(norm[1], d))
        return Reading(row, d, length, state, factor, live, split, before)

    def _maps(self, side: Side, row: int, state: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a state, with a last coordinate 1 where constants are added, its factor, and that with norms live."""
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
        """Name what is added to a projection."""
        place, name = self.question.head.places[side == "query"], self.question.head.name
        path = f"{place.path}.bias" if place.kind == "linear" else f"{name} biases of {side}"
        return Component("bias", path, own_number(name))


def features_of(
    tape: Tape, question: Question, dictionary: np.ndarray | None, activations: np.ndarray | None
) -> tuple[torch.Tensor | None, dict[int, dict[int, np.ndarray]]]:
    """Find the hidden state that enters the layer of a head, and its features, by row and number.

    Parameters
    ----------
    tape : Tape
    question : Question
    dictionary : array, shape (n, d), or None
    activations : array, shape (T, n), or None

    Raises
    ------
    ValueError
        If they have other shapes, or only one is given.
    """
    if dictionary is None and activations is None:
        return None, {}
    if dictionary is None or activations is None:
        raise ValueError("dictionary and activations go together; both were expected.")
    directions, numbers = np.asarray(dictionary, dtype=float), np.asarray(activations, dtype=float)
    head = question.head
    rows = np.flatnonzero(question.visible("query"))
    block = f"{head.name.split(f'.{own_number(head.name)}.')[0]}.{own_number(head.name)}"
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
