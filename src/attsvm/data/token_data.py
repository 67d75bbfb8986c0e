"""Data of a one-layer attention model: tokens, queries, labels and a mask, for many trials at once.

For each trial the model of arXiv 2308.16898 (Section 2) is

    prediction_i = h(V_i^T softmax(X_i W z_i)),        i = 1..n,

with tokens X_i (T, d), queries z_i (dz,), labels Y_i in {-1, +1} and values V_i. The values are the tokens, unless keys
and values differ (prompt attention). Every setting of the paper is an instance. Cross-attention takes any z_i,
self-attention a row of X_i, a sequence model one query per position with a mask. Prompt attention takes the constant
query 1 and W as the prompt. Leading dimensions are independent trials, trained together.

Arrays stay NumPy or torch; nothing here imports torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.problem import SelectionProblem
from attsvm.data.token_arrays import Array, boolean_mask, floating, next_token_arrays, sequence_arrays
from attsvm.platform.interop import is_tensor, to_numpy
from attsvm.platform.summary import MARKED, Summarised, Summary


@dataclass(frozen=True, eq=False, init=False)
class TokenData(Summarised):
    """Tokens, queries and labels of independent attention problems.

    Parameters
    ----------
    tokens : array, shape (..., n, T, d)
        Tokens x_it, the keys of attention. Leading dimensions are independent trials.
    queries : array, shape (..., n, dz)
        Queries z_i; use :meth:`self_attention` if they are rows of the tokens.
    labels : array, shape (..., n)
        Labels Y_i, each -1 or +1.
    mask : boolean array, shape (..., n, T), optional
        True where query i sees token t. By default all tokens are visible.
    values : array, shape (..., n, T, dv), optional
        The averaged vectors; the tokens by default.

    Raises
    ------
    ValueError
        If shapes disagree, an array is empty or not finite, a label is not -1 or +1, or a query sees no token.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import TokenData
    >>> data = TokenData(tokens=np.ones((3, 4, 8)), queries=np.ones((3, 8)), labels=[1, -1, 1])
    >>> data.n, data.T, data.d
    (3, 4, 8)
    >>> data.problem([0, 2, 1]).shape
    (3, 4, 8, 8)
    """

    tokens: Array
    queries: Array
    labels: Array
    mask: Array | None
    values: Array

    def __init__(
        self, tokens: Array, queries: Array, labels: Array, mask: Array | None = None, values: Array | None = None
    ) -> None:
        tokens = floating("tokens", tokens)
        if tokens.ndim < 3:
            raise ValueError(
                f"tokens has shape {tuple(tokens.shape)}; at least three dimensions (..., n, T, d) were expected."
            )
        if 0 in tokens.shape:
            raise ValueError(f"tokens has shape {tuple(tokens.shape)}; (..., n, T, d) with no empty axis was expected.")
        if queries is None:
            raise ValueError(
                "queries is None; an array (..., n, dz) was expected, or TokenData.self_attention(tokens, labels)."
            )
        queries = floating("queries", queries, tokens)
        rows = tuple(tokens.shape[:-2])
        if queries.ndim != len(rows) + 1 or tuple(queries.shape[:-1]) != rows or queries.shape[-1] == 0:
            raise ValueError(
                f"queries has shape {tuple(queries.shape)}; {(*rows, 'dz')} was expected to match tokens "
                f"{tuple(tokens.shape)}."
            )
        labels = floating("labels", labels, tokens)
        if tuple(labels.shape) != rows:
            raise ValueError(f"labels has shape {tuple(labels.shape)}; {rows} (..., n) was expected to match tokens.")
        if not bool((abs(labels) == 1).all()):
            raise ValueError(f"labels of shape {rows} has values other than -1 and +1; only these were expected.")
        if mask is not None:
            mask = boolean_mask(mask, tokens)
        averaged = tokens
        if values is not None:
            averaged = floating("values", values, tokens)
            expected = tuple(tokens.shape[:-1])
            if averaged.ndim != tokens.ndim or tuple(averaged.shape[:-1]) != expected or averaged.shape[-1] == 0:
                raise ValueError(
                    f"values has shape {tuple(averaged.shape)}; {(*expected, 'dv')} was expected to match tokens."
                )
        for name, value in (("tokens", tokens), ("queries", queries), ("labels", labels), ("mask", mask)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "values", averaged)

    @classmethod
    def padded(cls, sequences: Sequence[Array], queries: Array, labels: Array) -> TokenData:
        """Pad sequences of different lengths with zeros that the mask hides.

        Parameters
        ----------
        sequences : n arrays of shape (T_i, d)
        queries : array, shape (n, dz)
        labels : array, shape (n,)

        Raises
        ------
        ValueError
            If a sequence is empty or has another width, or in the cases of the constructor.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData
        >>> data = TokenData.padded([np.ones((3, 2)), np.ones((5, 2))], np.ones((2, 2)), np.array([1, -1]))
        >>> data.tokens.shape, data.mask.sum(axis=1)
        ((2, 5, 2), array([3, 5]))
        """
        rows = [floating(f"sequences[{i}]", row) for i, row in enumerate(sequences)]
        width = tuple(rows[0].shape[1:]) if rows else ()
        if len(width) != 1 or any(row.ndim != 2 or len(row) == 0 or tuple(row.shape[1:]) != width for row in rows):
            shapes = [tuple(row.shape) for row in rows]
            raise ValueError(f"sequences have shapes {shapes}; non-empty arrays (T_i, d) of one width were expected.")
        longest = max(map(len, rows))
        if is_tensor(rows[0]):
            tokens = sys.modules["torch"].nn.utils.rnn.pad_sequence(rows, batch_first=True)
        else:
            tokens = np.stack([np.pad(row, ((0, longest - len(row)), (0, 0))) for row in rows])
        return cls(tokens, queries, labels, np.arange(longest) < np.array([[len(row)] for row in rows]))

    @classmethod
    def self_attention(cls, tokens: Array, labels: Array, row: int = 0, mask: Array | None = None) -> TokenData:
        """Pose self-attention: query i is token `row` of sequence i (the paper takes the first).

        Parameters
        ----------
        tokens : array, shape (..., n, T, d)
        labels : array, shape (..., n)
        row : int
            Position of the query token, from -T to T - 1.
        mask : boolean array, shape (..., n, T), optional

        Raises
        ------
        ValueError
            If `row` is out of range, or in the cases of the constructor.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData
        >>> tokens = np.arange(12.0).reshape(2, 3, 2)
        >>> TokenData.self_attention(tokens, np.array([1, -1])).queries
        array([[0., 1.],
               [6., 7.]])
        """
        tokens = floating("tokens", tokens)
        if tokens.ndim < 3:
            raise ValueError(
                f"tokens has shape {tuple(tokens.shape)}; at least three dimensions (..., n, T, d) were expected."
            )
        length = tokens.shape[-2]
        if not -length <= row < length:
            raise ValueError(f"row is {row}; a position between {-length} and {length - 1} was expected.")
        return cls(tokens, tokens[..., row, :], labels, mask)

    @classmethod
    def from_sequences(
        cls,
        tokens: Array,
        labels: Array,
        queries: Array | None = None,
        *,
        causal: bool = False,
        mask: Array | None = None,
    ) -> TokenData:
        """Pose sequence-to-sequence attention: several queries read each sequence, and each query has a label.

        Query k of sequence i becomes query i * K + k. The risk averages over all queries. The paper's risk (Section 7)
        has no factor 1/K. It is therefore K times larger, and so is a plain gradient step.

        Parameters
        ----------
        tokens : array, shape (..., b, T, d)
        labels : array, shape (..., b, K)
        queries : array, shape (..., b, K, dz), optional
            The tokens themselves by default (self-attention, K = T).
        causal : bool
            Query k sees tokens 0..k only; needs K = T.
        mask : boolean array, shape (..., b, K, T), optional
            True = visible; combined with `causal`.

        Returns
        -------
        TokenData
            A data set with n = b K. Each query has a separate copy of the tokens in memory.

        Raises
        ------
        ValueError
            If shapes do not fit, or in the cases of the constructor.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData
        >>> data = TokenData.from_sequences(np.ones((2, 3, 4)), np.ones((2, 3)), causal=True)
        >>> data.n, data.T
        (6, 3)
        >>> data.mask[:3]
        array([[ True, False, False],
               [ True,  True, False],
               [ True,  True,  True]])
        """
        return cls(*sequence_arrays(tokens, labels, queries, causal=causal, mask=mask))

    @classmethod
    def prompt(cls, tokens: Array, labels: Array, key: Array | None = None, mask: Array | None = None) -> TokenData:
        """Pose prompt attention (arXiv 2306.13596): logits k_it^T p with keys k_it = key x_it and one prompt p.

        The prompt is W with dz = 1, shape (dk, 1); every query is the number 1.

        Parameters
        ----------
        tokens : array, shape (..., n, T, d)
        labels : array, shape (..., n)
        key : array, shape (dk, d), optional
            The identity by default.
        mask : boolean array, shape (..., n, T), optional

        Raises
        ------
        ValueError
            If `key` does not fit, or in the cases of the constructor.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData
        >>> data = TokenData.prompt(np.ones((2, 3, 4)), np.array([1, -1]))
        >>> data.queries
        array([[1.],
               [1.]])
        """
        tokens = floating("tokens", tokens)
        keys = tokens
        if key is not None:
            matrix = floating("key", key, tokens)
            if matrix.ndim != 2 or matrix.shape[1] != tokens.shape[-1]:
                raise ValueError(f"key has shape {tuple(matrix.shape)}; (dk, {tokens.shape[-1]}) was expected.")
            keys = tokens @ matrix.T
        queries = abs(tokens[..., 0, :1]) * 0 + 1
        return cls(keys, queries, labels, mask, tokens)

    @classmethod
    def next_token(cls, embeddings: Array, sequences: Array, targets: Array, mask: Array | None = None) -> TokenData:
        """Pose next-token prediction with a tied head (arXiv 2403.08081): the last token is the query.

        Classifier rows read the token identity: e_y^T x_t = 1 if token t is y. The probability of the target is then
        the attention on its copies. Train with the head v = [1.0] and loss="log".

        Parameters
        ----------
        embeddings : array, shape (vocabulary, d)
        sequences : integer array, shape (n, T)
            Token identities; the last visible one is the query.
        targets : integer array, shape (n,)
            The token that follows; it must occur in its sequence.
        mask : boolean array, shape (n, T), optional

        Raises
        ------
        ValueError
            If shapes do not fit, an identity is out of range, or a target does not occur in its sequence.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData
        >>> data = TokenData.next_token(np.eye(3), np.array([[0, 1, 2], [2, 2, 0]]), np.array([1, 2]))
        >>> data.queries
        array([[0., 0., 1.],
               [1., 0., 0.]])
        >>> data.labels
        array([1., 1.])
        """
        return cls(*next_token_arrays(embeddings, sequences, targets, mask))

    def problem(self, selected: Any) -> SelectionProblem:
        """Pose the problem of the smallest W that selects given tokens of these sequences.

        Labels and values are not used. A trained W is compared with the problem of the tokens that it selects, or of
        the best-scoring tokens.

        Parameters
        ----------
        selected : integer array, shape (n,), or boolean array, shape (n, T)
            The token that each query must select, or several that must get equal scores.

        Returns
        -------
        SelectionProblem
            With these tokens, queries and mask; results have the array type of the tokens.

        Raises
        ------
        ValueError
            If the data hold several trials, or `selected` does not fit, is out of range or hidden.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData, solve
        >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1]))
        >>> solve(data.problem([0])).objective
        1.0
        """
        if self.batch_shape:
            raise ValueError(
                f"the data hold trials {self.batch_shape} (tokens {tuple(self.tokens.shape)}); one trial was expected: "
                "select it by its index first."
            )
        return SelectionProblem(self.tokens, self.queries, selected, mask=self.mask)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the leading trial dimensions; () for one trial."""
        return tuple(self.tokens.shape[:-3])

    @property
    def n(self) -> int:
        """Number of queries (and sequences) in a trial."""
        return self.tokens.shape[-3]

    @property
    def T(self) -> int:
        """Number of tokens per query, visible or not."""
        return self.tokens.shape[-2]

    @property
    def d(self) -> int:
        """Token dimension."""
        return self.tokens.shape[-1]

    @property
    def dz(self) -> int:
        """Query dimension."""
        return self.queries.shape[-1]

    def __getitem__(self, index: Any) -> TokenData:
        """Select trials: `index` applies to the leading batch dimensions."""
        if not self.batch_shape:
            raise ValueError(f"tokens has shape {tuple(self.tokens.shape)}, one trial; a batch of trials was expected.")
        values = None if self.values is self.tokens else self.values[index]
        mask = None if self.mask is None else self.mask[index]
        return TokenData(self.tokens[index], self.queries[index], self.labels[index], mask, values)

    def _summary(self) -> Summary:
        facts = [
            ("tokens", f"{self.n:,} x {self.T:,}, dimension {self.d}"),
            ("queries", f"{self.n:,}, dimension {self.dz}"),
            ("trials", "x".join(map(str, self.batch_shape)) or "one"),
            ("mask", "none" if self.mask is None else f"{float((~to_numpy('mask', self.mask)).mean()):.1%} hidden"),
        ]
        return Summary("TokenData", colour=MARKED, facts=facts, notes=["attsvm.train(data, head) trains on it."])

    def __repr__(self) -> str:
        kind = "torch" if is_tensor(self.tokens) else "numpy"
        masked = "" if self.mask is None else ", masked"
        return f"TokenData(trials={self.batch_shape}, n={self.n}, T={self.T}, d={self.d}, dz={self.dz}, {kind}{masked})"
