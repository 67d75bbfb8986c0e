r"""One attention head as the selection problem it solves.

Whatever the architecture, the score that query :math:`z_i` gives token :math:`x_t` is

.. math:: a_{it} = x_t^\top W z_i + c_{it}, \qquad W = K Q^\top,

with the scale inside Q. The query bias enters as a last coordinate 1 of z. The key bias adds the same number to all
tokens of a query and is dropped, except under rotary positions, where it is not the same number and x gets a last
coordinate 1 too. Under rotary positions K and Q are turned by position between the two factors, see
:mod:`attsvm.pretrained.rope`. c is an additive term that the model does not compute from the tokens (T5's and ALiBi's
position bias). Where a norm stands between projection and score (query/key norm), x and z are the normalised vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from attsvm.core.extras import drawing
from attsvm.core.problem import SelectionProblem
from attsvm.core.summary import MARKED, Summarised, Summary
from attsvm.pretrained.sources import Place


@dataclass(frozen=True, eq=False)
class Turns:
    """Rotary positions of a head.

    Attributes
    ----------
    pairs : ndarray of int, shape (P, 2)
        Coordinates of the head turned together; the others are left alone.
    tokens : ndarray of complex, shape (b, T, P)
        Unit number by which each token's key is turned, pair by pair.
    queries : ndarray of complex, shape (n, P)
        The same for the queries.
    """

    pairs: np.ndarray
    tokens: np.ndarray
    queries: np.ndarray


@dataclass(frozen=True, eq=False)
class AttentionHead(Summarised):
    """A head of a model on given inputs; padding neither asks nor is seen.

    Attributes
    ----------
    model : str
        Class of the model.
    name : str
        Path of the attention module in the model.
    layer, head : int
        Number of the layer, the model's own where it has one stack of layers and otherwise that of the attention call
        in the forward pass; and of the head in it.
    tokens : ndarray, shape (b, T, d)
        What keys are made from; with a last coordinate 1 under rotary positions with a key bias.
    queries : ndarray, shape (n, dz)
        What queries are made from; with a last coordinate 1 when the query map has a bias.
    sequence, position : ndarray of int, shape (n,)
        Which sequence a query reads, and its own row in its sequence, padding counted.
    text_place : ndarray of int, shape (b, T)
        Place of each token in its text, counted from 0 without padding; -1 for padding.
    mask : ndarray of bool, shape (n, T)
        Tokens a query sees.
    K : ndarray, shape (d, dh)
        Key-side factor.
    Q : ndarray, shape (dz, dh)
        Query-side factor, with the scale.
    turns : Turns or None
        Rotary positions.
    bias : ndarray, shape (n, T), or None
        Additive term of the scores, zero where hidden.
    probabilities : ndarray, shape (n, T)
        The model's own attention.
    scale : float
        What the model multiplies query-key products by; it is part of Q.
    error : float
        Largest difference between it and what tokens, queries and factors give.
    places : tuple of Place
        Where the key map and the query map are written in the model.
    self_attention : bool
        Whether queries are tokens of the same sequence, so that offsets mean something.
    ids : ndarray of int, shape (b, T), or None
        Token ids, where the model was given any.
    texts : tuple of tuple of str, or None
        The tokens' text, sequence by sequence.
    special : ndarray of bool, shape (b, T), or None
        Tokens that the tokenizer adds, such as [CLS] and [SEP].

    Examples
    --------
    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from attsvm import pretrained
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
    >>> inputs = {"input_ids": torch.arange(24).reshape(4, 6)}
    >>> head = pretrained.extract_head(model, 0, 1, inputs)
    >>> head.queries.shape, head.attention().shape, head.problem().shape
    ((24, 17), (24, 6), (24, 6, 16, 17))
    """

    model: str
    name: str
    layer: int
    head: int
    tokens: np.ndarray
    queries: np.ndarray
    sequence: np.ndarray
    position: np.ndarray
    text_place: np.ndarray
    mask: np.ndarray
    K: np.ndarray
    Q: np.ndarray
    turns: Turns | None
    bias: np.ndarray | None
    probabilities: np.ndarray
    scale: float
    error: float
    places: tuple[Place, Place]
    self_attention: bool
    ids: np.ndarray | None = None
    texts: tuple[tuple[str, ...], ...] | None = None
    special: np.ndarray | None = None

    @property
    def rotary(self) -> bool:
        """Whether keys and queries are turned by position."""
        return self.turns is not None

    @property
    def W(self) -> np.ndarray:
        """K Q^T, (d, dz); the whole of the head when it is not rotary.

        Raises
        ------
        ValueError
            For a rotary head, whose W acts on lifted tokens: see :func:`attsvm.pretrained.rope_lift`.
        """
        if self.turns is not None:
            raise ValueError(
                f"layer {self.layer}, head {self.head} of {self.model} turns keys and queries by position, so no one W "
                "acts on its tokens; rope_lift gives the W that acts on lifted tokens."
            )
        return self.K @ self.Q.T

    @cached_property
    def selected(self) -> np.ndarray:
        """The token each query attends to most, int (n,)."""
        return np.where(self.mask, self.probabilities, -1.0).argmax(axis=1)

    @property
    def selected_place(self) -> np.ndarray:
        """Place in its text of the token each query attends to most, int (n,)."""
        return self.text_place[self.sequence, self.selected]

    @property
    def query_place(self) -> np.ndarray:
        """Place of each query in its text, int (n,); of self-attention, whose queries are tokens."""
        return self.text_place[self.sequence, self.position]

    def scores(self) -> np.ndarray:
        """Attention logits from the factors, (n, T); -inf where hidden."""
        keys = self.tokens @ self.K  # (b, T, dh)
        keys_of_queries = self.queries @ self.Q  # (n, dh)
        if self.turns is not None:
            keys = turned(keys, self.turns.pairs, self.turns.tokens)
            keys_of_queries = turned(keys_of_queries, self.turns.pairs, self.turns.queries)
        out = np.empty(self.mask.shape)
        for j, rows in by_sequence(self.sequence):
            out[rows] = keys_of_queries[rows] @ keys[j].T
        if self.bias is not None:
            out += self.bias
        return np.where(self.mask, out, -np.inf)

    def attention(self) -> np.ndarray:
        """Softmax of :meth:`scores`, (n, T)."""
        return softmax(self.scores())

    def problem(self, selected: np.ndarray | None = None) -> SelectionProblem:
        """Pose the selection problem of a head that is not rotary; by default of the tokens it attends to most.

        Raises
        ------
        ValueError
            For a rotary head; :func:`attsvm.pretrained.rope_lift` gives its problem.
        """
        if self.turns is not None:
            raise ValueError(
                f"layer {self.layer}, head {self.head} of {self.model} is rotary: rope_lift(head).problem() poses it."
            )
        selection = self.selected if selected is None else selected
        return SelectionProblem(self.tokens, self.queries, selection, mask=self.mask, sequence=self.sequence)

    def take(self, rows: np.ndarray) -> AttentionHead:
        """Keep some of the queries, in that order, and the sequences they read.

        Parameters
        ----------
        rows : ndarray of int or bool, shape (m,)
        """
        rows = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows)
        sequences, sequence = np.unique(self.sequence[rows], return_inverse=True)
        width = int(np.flatnonzero(self.mask[rows].any(axis=0)).max()) + 1
        if self.self_attention:  # a query need not see itself, but its place must stay known
            width = max(width, int(self.position[rows].max()) + 1)
        turns = self.turns
        if turns is not None:
            turns = Turns(turns.pairs, turns.tokens[sequences, :width], turns.queries[rows])
        return replace(
            self,
            tokens=self.tokens[sequences, :width],
            queries=self.queries[rows],
            sequence=sequence,
            position=self.position[rows],
            text_place=self.text_place[sequences, :width],
            mask=self.mask[rows, :width],
            turns=turns,
            bias=None if self.bias is None else self.bias[rows, :width],
            probabilities=self.probabilities[rows, :width],
            ids=None if self.ids is None else self.ids[sequences, :width],
            texts=None if self.texts is None else tuple(self.texts[j][:width] for j in sequences),
            special=None if self.special is None else self.special[sequences, :width],
        )

    def plot(self, sequence: int = 0, ax: Any = None) -> Any:
        """Draw the attention matrix of one sequence; see :func:`attsvm.plots.head`.

        Parameters
        ----------
        sequence : int
        ax : matplotlib Axes, optional

        Returns
        -------
        Axes

        Raises
        ------
        ImportError
            Without matplotlib.
        """
        return drawing("AttentionHead.plot").head(self, sequence, ax)

    def _summary(self) -> Summary:
        n, T = self.mask.shape
        facts = [
            ("model", f"{self.model}, {self.name}"),
            ("head", f"{self.head} of layer {self.layer}{', rotary' if self.rotary else ''}"),
            ("queries", f"{n:,} over {T:,} tokens of {len(self.tokens):,} sequences"),
            ("W", f"{self.K.shape[0]} x {self.Q.shape[0]}, rank at most {self.K.shape[1]}"),
            ("error", f"{self.error:.1e} against the model's own attention"),
        ]
        note = "selection_report says what it attends to, margin_audit holds it against its SVM."
        return Summary("AttentionHead", colour=MARKED, facts=facts, notes=[note])

    def __repr__(self) -> str:
        n, T = self.mask.shape
        kind = ", rotary" if self.rotary else ""
        return (
            f"AttentionHead({self.model}, layer {self.layer}, head {self.head}{kind}, {len(self.tokens)} sequences, "
            f"n={n}, T={T}, d={self.tokens.shape[2]}, rank <= {self.K.shape[1]}, error {self.error:.1e})"
        )


def by_sequence(sequence: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield every sequence that is read with the queries that read it."""
    order = np.argsort(sequence, kind="stable")
    indices, first = np.unique(sequence[order], return_index=True)
    yield from zip(indices.tolist(), np.split(order, first[1:]), strict=True)


def text_of(head: AttentionHead, sequence: int) -> tuple[str, ...]:
    """Return the text of a sequence's tokens, padding left out; empty where the head has no text."""
    if head.texts is None:
        return ()
    return tuple(head.texts[sequence][t] for t in np.flatnonzero(head.text_place[sequence] >= 0))


def turned(vectors: np.ndarray, pairs: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Turn pairs of coordinates of vectors (..., dh) by unit numbers (..., P)."""
    out = vectors.copy()
    rotation = (vectors[..., pairs[:, 0]] + 1j * vectors[..., pairs[:, 1]]) * turns
    out[..., pairs[:, 0]], out[..., pairs[:, 1]] = rotation.real, rotation.imag
    return out


def softmax(scores: np.ndarray) -> np.ndarray:
    """Turn scores (n, T) into probabilities; -inf is hidden."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
