"""What a head reads at a place of a text: a hidden state in parts, and the factor that makes a query or key of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from attsvm.pretrained.activations.layers import own_number
from attsvm.pretrained.activations.recording import AttentionCall
from attsvm.pretrained.activations.residual import Component, Part, parts
from attsvm.pretrained.activations.tape import Row, Tape
from attsvm.pretrained.head import AttentionHead, turned

Side = Literal["query", "keys"]
# A sum of n numbers is wrong by less than n roundings of their absolute sum, and a stream of 100 layers has 300 or so.
ROUNDINGS = 300.0


@dataclass(frozen=True, eq=False)
class Reading:
    """What a head reads at one place.

    Attributes
    ----------
    row : int
        In its sequence, padding counted.
    width : int
        d.
    state : ndarray, shape (d,)
        The hidden state that is projected; with a last coordinate 1 where the projection has a bias that counts.
    factor : ndarray, shape (d, dh)
        K, or Q with the scale, turned by the position of the place.
    parts : dict of Component to Part
        Of the state.
    norm : tuple of (str, ndarray of shape (d,)), or None
        Path of the norm that put the state out, and what it read.
    """

    row: int
    width: int
    state: np.ndarray
    factor: np.ndarray
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


@dataclass(frozen=True, eq=False)
class Source:
    """What a split was made from, to run the model again with a component changed.

    Attributes
    ----------
    model : PreTrainedModel
    inputs : dict
        With which it was called.
    head : AttentionHead
    sequence, asking : int
        Number of the text, and of the query among those of the head.
    query, chosen, rival : Reading
    keys : ndarray, shape (T, dh)
        Of all rows of the sequence, turned by position.
    places : ndarray of int
        Rows that are no padding.
    """

    model: Any
    inputs: dict[str, Any]
    head: AttentionHead
    sequence: int
    asking: int
    query: Reading
    chosen: Reading
    rival: Reading
    keys: np.ndarray
    places: np.ndarray

    def readings(self, side: Side) -> list[Reading]:
        """Return those of a side."""
        return [self.query] if side == "query" else [self.chosen, self.rival]

    def effects(self, vectors: Sequence[np.ndarray], side: Side) -> np.ndarray:
        """Return what parts (C, d) of each reading of a side add to the logits of the tokens, (C, T)."""
        out = np.zeros((len(vectors[0]), len(self.keys)))
        if side == "query":
            out[:] = vectors[0] @ self.query.factor @ self.keys.T
        else:
            for reading, one in zip(self.readings(side), vectors, strict=True):
                out[:, reading.row] = one @ (reading.factor @ self.query.image)
        return out[:, self.places]


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads what a head reads off the tape of a forward pass.

    Attributes
    ----------
    tape : Tape
    head : AttentionHead
    sequence : int
    spread : bool
        Whether what earlier heads bring counts at the places they read, and not at its own.
    end : Tensor or None
        A hidden state that features are parts of.
    features : mapping of int to mapping of int to ndarray
        By row and number.
    """

    tape: Tape
    head: AttentionHead
    sequence: int
    spread: bool
    end: torch.Tensor | None
    features: Mapping[int, Mapping[int, np.ndarray]]

    def side(self, side: Side, row: int) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
        """Return the hidden states (B, T, d), and of a row the state (d or d + 1,) and its turned factor."""
        head = self.head
        place, factor = (head.places[0], head.K) if side == "keys" else (head.places[1], head.Q)
        if place.kind != "linear":
            raise ValueError(
                f"the {'keys' if side == 'keys' else 'queries'} of {head.name} are no linear map of a hidden state: a "
                f"norm or a latent stands between ({place.path}); a head without was expected."
            )
        if len(self.tape.inputs[place.path]) != 1:
            raise ValueError(
                f"{head.model} calls {place.path} {len(self.tape.inputs[place.path])} times in a pass; weights of one "
                "layer were expected."
            )
        (states,) = self.tape.inputs[place.path]
        state = self._row(row, states).of(states, states.shape[-1])
        if len(factor) > len(state):
            state = np.append(state, 1.0)
        if head.turns is not None:
            factor = turned(factor, head.turns.pairs, head.turns.tokens[self.sequence, row])
        return states, state, factor

    def image(self, side: Side, row: int) -> np.ndarray:
        """Return the query or key of a row, (dh,)."""
        _, state, factor = self.side(side, row)
        return state @ factor

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
            If the parts do not add up to the state.
        """
        states, state, factor = self.side(side, row)
        d, place = states.shape[-1], self._row(row, states)
        towards = factor @ direction
        split = parts(
            self.tape, states, place, towards[:d], self.head.text_place[self.sequence] >= 0, spread=self.spread,
            end=self.end, features=self.features.get(row),
        )  # fmt: skip
        vectors = np.array([part.vector for part in split.values()])
        wrong, size = np.linalg.norm(vectors.sum(axis=0) - state[:d]), np.linalg.norm(vectors, axis=1).sum()
        if not wrong <= ROUNDINGS * torch.finfo(states.dtype).eps * size:
            raise ValueError(
                f"the hidden state that {self.head.name} reads differs by {wrong / np.linalg.norm(state[:d]):.1e} of "
                "its norm from the sum of what additions and norms explain, so its parts would not add up."
            )
        if len(state) > d:
            path = self.head.places[side == "query"].path
            split = {one: replace(part, vector=np.append(part.vector, 0.0)) for one, part in split.items()}
            own = np.zeros(states.shape[1])
            own[row] = towards[d]
            split[Component("bias", f"{path}.bias", own_number(path))] = Part(np.eye(d + 1)[d], None, own)
        norm = None if states is self.end else self.tape.norm_before(states)
        before = None if norm is None else (norm[0], place.of(norm[1], d))
        return Reading(row, d, state, factor, split, before)

    def _row(self, row: int, states: torch.Tensor) -> Row:
        return Row((self.sequence, row), (states.shape[0], states.shape[1]))


def logits_of(call: AttentionCall, head: AttentionHead, asking: int, sequence: int) -> np.ndarray:
    """Return the model's own logits of a query, (T,), from the vectors that reached its attention.

    Parameters
    ----------
    call : AttentionCall
    head : AttentionHead
    asking : int
        Number of the query among those of the head: its place, what it sees and its additive bias.
    sequence : int
        Which sequence of the call.
    """
    group = head.head * call.key.shape[1] // call.query.shape[1]
    query = call.query[sequence, head.head, head.position[asking]].double()
    logits = (call.key[sequence, group].double() @ query * call.scaling).cpu().numpy()
    return np.where(head.mask[asking], logits + (0.0 if head.bias is None else head.bias[asking]), -np.inf)


def turned_keys(head: AttentionHead, sequence: int) -> np.ndarray:
    """Return the keys of a sequence, turned by position, (T, dh)."""
    keys = head.tokens[sequence] @ head.K
    return keys if head.turns is None else turned(keys, head.turns.pairs, head.turns.tokens[sequence])


def features_of(
    tape: Tape, head: AttentionHead, rows: np.ndarray, dictionary: np.ndarray | None, activations: np.ndarray | None
) -> tuple[torch.Tensor | None, dict[int, dict[int, np.ndarray]]]:
    """Find the hidden state that enters the layer of a head, and its features, by row and number.

    Parameters
    ----------
    tape : Tape
    head : AttentionHead
    rows : ndarray of int, shape (T,)
        Of the text, padding left out.
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
