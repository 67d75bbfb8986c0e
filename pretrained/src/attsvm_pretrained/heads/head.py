r"""One attention head as the selection problem it solves.

Whatever the architecture, the score that query :math:`z_i` gives token :math:`x_t` is

.. math:: a_{it} = x_t^\top W z_i + c_{it}, \qquad W = K Q^\top,

with the scale inside Q. The query bias enters through a last coordinate 1 of z. The key bias adds the same number to
all tokens of a query and is omitted. Under rotary positions the number differs between tokens, so x also gets a last
coordinate 1. Rotary positions rotate K and Q by position between the two factors
(:mod:`attsvm_pretrained.selection.rope`). If a norm stands between projection and score (query/key norm), x and z are
the normalised vectors, and K and Q are diagonal gains. Under multi-head latent attention (DeepSeek) x is the normalised
latent together with the hidden state, and W is the matrix that its authors call absorbed.

c is an additive term: a position bias (T5, ALiBi), or a function of content and relative position (DeBERTa,
:mod:`attsvm_pretrained.activations.relative`). A margin is then :math:`(x_s - x_t)^\top W z + c_s - c_t`, whose offset
does not grow with W. In a selection problem c is one more coordinate of the token, multiplied by a constant 1 of the
query:

.. math:: \tilde x_{it} = (x_t, c_{it}),\quad \tilde z_i = (z_i, 1),\quad
    \tilde W = \begin{pmatrix} W & 0\\ 0 & 1\end{pmatrix}.

The trained scores are then bilinear again, exactly, and every constraint of the SVM contains the offset; the SVM may
give it another weight than 1 (:meth:`AttentionHead.problem`).

A null token (an attention sink, gpt-oss) is a token before the text, with vector 0 and score c. A soft cap (Gemma 2)
turns a into s tanh(a/s) before the softmax. It is strictly increasing: it changes probabilities, but neither the order
of the scores nor the sign of a margin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import softmax

from attsvm.core.problem import SelectionProblem
from attsvm.platform.extras import drawing
from attsvm.platform.summary import MARKED, Summarised, Summary, counted
from attsvm_pretrained.activations.maps import Place
from attsvm_pretrained.activations.relative import RelativeForm
from attsvm_pretrained.heads.rotary import Turns, rotate
from attsvm_pretrained.heads.sequences import by_sequence, tokens_with_bias


@dataclass(frozen=True, eq=False)
class AttentionHead(Summarised):
    """A head of a model on given inputs, without padding.

    Attributes
    ----------
    model : str
        Class of the model.
    name : str
        Path of the attention module in the model.
    layer, head : int
        Numbers of the layer and of the head in it. The layer's number is the model's own if the model has one stack of
        layers, otherwise the number of the attention call in the forward pass.
    tokens : ndarray, shape (b, T, d)
        Vectors from which keys are made; with a last coordinate 1 under rotary positions with a key bias.
    queries : ndarray, shape (n, dz)
        Vectors from which queries are made; with a last coordinate 1 if the query map has a bias.
    sequence, position : ndarray of int, shape (n,)
        Sequence that a query reads, and row of the query in its sequence, including padding.
    text_place : ndarray of int, shape (b, T)
        Position of each token in its text, counted from 0 without padding; -1 for padding.
    mask : ndarray of bool, shape (n, T)
        Tokens that are visible to each query.
    K : ndarray, shape (d, dh)
        Key-side factor.
    Q : ndarray, shape (dz, dh)
        Query-side factor, with the scale.
    turns : Turns or None
        Rotary positions.
    bias : ndarray, shape (n, T), or None
        Additive term c of the scores, zero for hidden tokens.
    probabilities : ndarray, shape (n, T)
        The model's own attention.
    scale : float
        Factor of the query-key products in the model; it is part of Q.
    error : float
        Largest difference between `probabilities` and the attention from tokens, queries and factors.
    places : tuple of Place
        Locations of the key map and the query map in the model.
    self_attention : bool
        Whether queries are tokens of the same sequence, so that offsets have a meaning.
    ids : ndarray of int, shape (b, T), or None
        Token ids, if the model was given any.
    texts : tuple of tuple of str, or None
        The tokens' text, by sequence.
    special : ndarray of bool, shape (b, T), or None
        Tokens that the tokenizer adds, such as [CLS] and [SEP].
    relative : tuple of RelativeForm
        Parts of the additive term that depend on content and relative position.
    softcap : float or None
        s of a soft cap s tanh(a/s) on the scores.
    sink : float or None
        Score of the null token, which is then the first token of every sequence, with a zero vector in `tokens`.
    rounding : float
        Largest difference of the model's own attention from `probabilities`, if these were computed in float64 from the
        model's hidden states. A short dtype or large logits are the reason to do so. Otherwise 0.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head()
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
    relative: tuple[RelativeForm, ...] = ()
    softcap: float | None = None
    sink: float | None = None
    rounding: float = 0.0

    @property
    def rotary(self) -> bool:
        """Whether positions rotate keys and queries."""
        return self.turns is not None

    @property
    def first_place(self) -> int:
        """Position of the first token of each text: 1 after a null token, otherwise 0."""
        return 0 if self.sink is None else 1

    @property
    def normed(self) -> bool:
        """Whether x and z are normalised by a query/key norm, and W is a product of gains."""
        return self.places[0].kind == "norm"

    @property
    def W(self) -> np.ndarray:
        """K Q^T, (d, dz): the matrix of :meth:`problem`, with a row for the additive term if the head has one.

        Raises
        ------
        ValueError
            If the head is rotary: its W acts on lifted tokens, see :func:`attsvm.pretrained.rope_lift`.
        """
        if self.turns is not None:
            raise ValueError(
                f"layer {self.layer}, head {self.head} of {self.model} turns keys and queries by position; a head with "
                "one W for all positions was expected, which rope_lift gives for lifted tokens."
            )
        return self.with_bias_row(self.K @ self.Q.T)

    @cached_property
    def selected(self) -> np.ndarray:
        """The token each query attends to most, int (n,)."""
        return np.where(self.mask, self.probabilities, -1.0).argmax(axis=1)

    @property
    def selected_place(self) -> np.ndarray:
        """Position in its text of the token each query attends to most, int (n,)."""
        return self.text_place[self.sequence, self.selected]

    @property
    def query_place(self) -> np.ndarray:
        """Position of each query in its text, int (n,); for self-attention, whose queries are tokens."""
        return self.text_place[self.sequence, self.position]

    def scores(self) -> np.ndarray:
        """Attention logits from the factors, (n, T), before any soft cap; -inf for hidden tokens.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> head = pretrained.example_head()
        >>> head.scores().shape
        (24, 6)
        """
        keys = self.tokens @ self.K  # (b, T, dh)
        keys_of_queries = self.queries @ self.Q  # (n, dh)
        if self.turns is not None:
            keys = rotate(keys, self.turns.pairs, self.turns.tokens)
            keys_of_queries = rotate(keys_of_queries, self.turns.pairs, self.turns.queries)
        out = np.empty(self.mask.shape)
        for j, rows in by_sequence(self.sequence):
            out[rows] = keys_of_queries[rows] @ keys[j].T
        if self.bias is not None:
            out += self.bias
        return np.where(self.mask, out, -np.inf)

    def attention(self, scores: np.ndarray | None = None) -> np.ndarray:
        """Softmax of scores (default: :meth:`scores`), with the soft cap if there is one, (n, T).

        Examples
        --------
        >>> from attsvm import pretrained
        >>> head = pretrained.example_head()
        >>> float(abs(head.attention().sum(axis=1) - 1).max()) < 1e-12
        True
        """
        scores = self.scores() if scores is None else scores
        if self.softcap is not None:
            scores = np.where(self.mask, self.softcap * np.tanh(scores / self.softcap), -np.inf)
        return softmax(scores, axis=1)

    def pattern(self, attention: np.ndarray | None = None, *, length: int | None = None) -> np.ndarray:
        """Attention per sequence, (b, queries, tokens), the layout of TransformerLens, nnsight and transformers.

        Parameters
        ----------
        attention : ndarray, shape (n, T), optional
            Default: the model's own.
        length : int, optional
            Number of query positions. Default: the number of token positions.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> pretrained.example_head().pattern().shape
        (4, 6, 6)
        """
        values = self.probabilities if attention is None else attention
        width = self.mask.shape[1] - self.first_place
        out = np.zeros((len(self.tokens), width if length is None else length, width))
        out[self.sequence, self.position - self.self_attention * self.first_place] = values[:, self.first_place :]
        return out

    def problem(self, selected: np.ndarray | None = None) -> SelectionProblem:
        """Pose the selection problem of a head that is not rotary, by default with the tokens it attends to most.

        An additive term, in logits, is the last coordinate of the tokens and is multiplied by a last coordinate 1 of
        the queries, so ``problem().scores(head.W)`` are the head's scores. Under ALiBi they differ from the head's by
        one number per query, which avoids a copy of the tokens for each query.

        Raises
        ------
        ValueError
            If the head is rotary; :func:`attsvm.pretrained.rope_lift` gives its problem. Also if the additive term
            needs a copy of the tokens for each query, and the copies would take more than 2 GiB.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> head = pretrained.example_head()
        >>> head.problem().shape
        (24, 6, 16, 17)
        """
        if self.turns is not None:
            raise ValueError(
                f"layer {self.layer}, head {self.head} of {self.model} is rotary; a head without "
                "rotations was expected, which rope_lift(head) is."
            )
        selection = self.selected if selected is None else selected
        tokens, sequence = self.tokens, self.sequence
        if self.bias is not None:
            tokens, sequence = tokens_with_bias(tokens, sequence, self.mask, self.bias)
        return SelectionProblem(tokens, self.asking_vectors(), selection, mask=self.mask, sequence=sequence)

    def asking_vectors(self) -> np.ndarray:
        """Return the queries of the selection problem, (n, dz), with a last coordinate 1 for an additive term.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> head = pretrained.example_head()
        >>> head.asking_vectors().shape
        (24, 17)
        """
        if self.bias is None or (self.queries[:, -1] == 1).all():
            return self.queries
        return np.concatenate([self.queries, np.ones((len(self.queries), 1))], axis=1)

    def with_bias_row(self, W: np.ndarray) -> np.ndarray:
        """Extend a trained W by a row for the additive term, with weight 1, if the head has one.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> head = pretrained.example_head()
        >>> W = head.W
        >>> head.with_bias_row(W) is W
        True
        """
        if self.bias is None:
            return W
        out = np.zeros((W.shape[0] + 1, self.asking_vectors().shape[1]))
        out[:-1, : W.shape[1]] = W
        out[-1, -1] = 1.0
        return out

    def take(self, rows: np.ndarray) -> AttentionHead:
        """Return the head with some of its queries, in that order, and the sequences they read.

        Parameters
        ----------
        rows : ndarray of int or bool, shape (m,)

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import pretrained
        >>> head = pretrained.example_head()
        >>> head.take(np.arange(5)).attention().shape
        (5, 6)
        """
        rows = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows)
        sequences, sequence = np.unique(self.sequence[rows], return_inverse=True)
        width = int(np.flatnonzero(self.mask[rows].any(axis=0)).max()) + 1
        if self.self_attention:  # queries need not see themselves, but their positions must stay inside
            width = max(width, int(self.position[rows].max()) + 1)
        every = len(sequences) == len(self.tokens)  # a view then avoids a copy of a large array
        tokens = self.tokens[:, :width] if every else self.tokens[sequences, :width]
        turns = self.turns
        if turns is not None:
            of_tokens = turns.tokens[:, :width] if every else turns.tokens[sequences, :width]
            turns = Turns(turns.pairs, of_tokens, turns.queries[rows])
        return replace(
            self,
            tokens=tokens,
            queries=self.queries[rows],
            sequence=sequence,
            position=self.position[rows],
            text_place=self.text_place[sequences, :width],
            mask=self.mask[rows, :width],
            turns=turns,
            bias=None if self.bias is None else self.bias[rows, :width],
            relative=tuple(replace(form, index=form.index[rows, :width]) for form in self.relative),
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

        Examples
        --------
        >>> from attsvm import pretrained
        >>> head = pretrained.example_head()
        >>> head.plot().get_xlabel()
        'token'
        """
        return drawing("AttentionHead.plot").head(self, sequence, ax)

    def _kinds(self) -> list[str]:
        """List the parts of the head in addition to its bilinear form."""
        kinds = {
            "rotary": self.rotary,
            "query/key norm": self.normed,
            "additive bias": self.bias is not None and self.sink is None,
            "null token": self.sink is not None,
            "soft cap": self.softcap is not None,
        }
        return [word for word, present in kinds.items() if present]

    def _summary(self) -> Summary:
        n, T = self.mask.shape
        facts = [
            ("model", f"{self.model}, {self.name}"),
            ("head", ", ".join([f"{self.head} of layer {self.layer}", *self._kinds()])),
            ("queries", f"{n:,} over {counted(T, 'token')} of {counted(len(self.tokens), 'sequence')}"),
            ("W", f"{self.K.shape[0]} x {self.Q.shape[0]}, rank at most {self.K.shape[1]}"),
            ("error", f"{self.error:.1e} against the model's own attention"),
        ]
        note = "selection_report says what it attends to, margin_audit holds it against its SVM."
        return Summary("AttentionHead", colour=MARKED, facts=facts, notes=[note])

    def __repr__(self) -> str:
        n, T = self.mask.shape
        kind = "".join(f", {word}" for word in self._kinds())
        sequences = counted(len(self.tokens), "sequence")
        return (
            f"AttentionHead({self.model}, layer {self.layer}, head {self.head}{kind}, {sequences}, "
            f"n={n}, T={T}, d={self.tokens.shape[2]}, rank <= {self.K.shape[1]}, error {self.error:.1e})"
        )


def text_of(head: AttentionHead, sequence: int) -> tuple[str, ...]:
    """Return the text of a sequence's tokens without padding; empty if the head has no text."""
    if head.texts is None:
        return ()
    return tuple(head.texts[sequence][t] for t in np.flatnonzero(head.text_place[sequence] >= 0))
