r"""The selection problem: the token that each query must select, and the linear map that gives its margins.

For query ``i`` with tokens :math:`x_{it}` and selected token :math:`\alpha_i`, an attention matrix ``W`` gives the
margins

.. math:: A(W)_{it} = (x_{i\alpha_i} - x_{it})^\top W z_i .

The attention SVM asks for the smallest ``W`` with :math:`A(W)_{it} \ge 1` for every visible rejected token (arXiv
2308.16898, equation Att-SVM). ``A`` and its adjoint take two batched products of O(n d dz + n T d) operations; the ``n
T x d dz`` matrix of ``A`` is never formed. Tokens are read in chunks, so they may be a memory map.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.core.margin_map import MarginMap
from attsvm.core.one_hot import OneHot, unit_vectors
from attsvm.core.reading import (
    read_labels,
    read_mask,
    read_preferences,
    read_selected,
    read_sequence,
    read_sequences,
    read_supports,
    read_tokens,
    read_vectors,
)
from attsvm.core.types import Array
from attsvm.platform.interop import Kind, to_numpy
from attsvm.platform.paging import rows_in_chunk
from attsvm.platform.summary import MARKED, Summarised, Summary, counted


class SelectionProblem(MarginMap, Summarised):
    """Tokens, queries, and the token(s) each query is to select.

    Parameters
    ----------
    tokens : array_like, shape (b, T, d), or a sequence of b arrays of shape (T_i, d)
        Token sequences. Arrays of different lengths are padded and masked. Arrays are copied, so that later changes
        cannot invalidate proofs about the problem. Memory maps are used in place; a change of their file goes
        unnoticed.
    queries : array_like, shape (n, dz)
        One query per row; ``dz`` may differ from ``d``. One-hot queries in a sparse matrix are never made dense.
    selected : array_like, shape (n,) int or (n, T) bool
        The token to select, or several tokens that must get equal scores (Gen-SVM, arXiv 2308.16898 section 6).
    mask : array_like of bool, shape (n, T), optional
        True where the query sees the token. Default: every token of a sequence.
    sequence : array_like of int, shape (n,), optional
        The sequence that each query reads. Default: query ``i`` reads ``tokens[i]``, and n must equal b.

    Attributes
    ----------
    tokens, queries : ndarray
        The data as NumPy arrays; queries are float64.
    reference : ndarray, shape (n,)
        The first selected token of each query; margins are measured against it.
    selected, mask : ndarray of bool, shape (n, T)
        Selected tokens and visible tokens.
    sequence : ndarray of int, shape (n,)
    has_ties, has_rejected : bool
        Whether any query selects several tokens, and whether any token must be rejected.

    Raises
    ------
    ValueError
        If an argument does not fit; one sentence names the argument, its shape and what was expected.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import SelectionProblem
    >>> problem = SelectionProblem(np.eye(2)[None], np.ones((1, 1)), [0])
    >>> problem.margins(np.array([[1.0], [0.0]]))
    array([[0., 1.]])
    """

    def __init__(self, tokens: Any, queries: Any, selected: Any, *, mask: Any = None, sequence: Any = None) -> None:
        self.kind = Kind.of(tokens, queries)
        self.tokens, lengths = read_tokens(tokens)
        b, T, _ = self.tokens.shape
        rows = read_vectors("queries", queries)
        if isinstance(rows, OneHot):
            self.one_hot_queries = rows
        else:
            self.queries = rows
        n = len(rows)
        self.sequence = read_sequence(sequence, n, b)
        self._gathers = sequence is not None
        self.mask = read_mask(mask, n, T)
        if lengths is not None:
            self.mask = self.mask & (np.arange(T) < lengths[self.sequence, None])  # (n, T)
        self.selected = read_selected(selected, self.mask)
        self.reference = self.selected.argmax(axis=1)  # (n,)
        selection = int(np.count_nonzero(self.selected))
        self.has_ties, self.has_rejected = selection > n, np.count_nonzero(self.mask) > selection
        dense = () if isinstance(rows, OneHot) else (rows,)
        for array in (*dense, self.sequence, self.mask, self.selected, self.reference, self.tokens):
            array.setflags(write=False)

    @classmethod
    def from_sequences(
        cls, tokens: Any, selected: Any, *, causal: bool = True, queries: Any = None, lengths: Any = None
    ) -> SelectionProblem:
        """One query per token of every sequence: the sequence-to-sequence and causal settings (SAtt-SVM).

        Parameters
        ----------
        tokens : array_like, shape (b, T, d)
        selected : array_like, shape (b, T) int or (b, T, T) bool
            The token that query ``k`` of each sequence selects.
        causal : bool
            Query ``k`` sees tokens ``t <= k`` only (the first query then has no constraint).
        queries : array_like, shape (b, T, dz), optional
            Default: the tokens themselves (self-attention).
        lengths : array_like of int, shape (b,), optional
            Tokens past a sequence's length are neither queries nor visible.

        Returns
        -------
        SelectionProblem
            With one query for each (sequence, position), in that order; padded positions are left out.

        Examples
        --------
        >>> from attsvm import SelectionProblem
        >>> problem = SelectionProblem.from_sequences([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]], [[0, 1, 0]])
        >>> problem.shape
        (3, 3, 2, 2)
        >>> problem.mask
        array([[ True, False, False],
               [ True,  True, False],
               [ True,  True,  True]])
        """
        rows, selection, mask, sequence = read_sequences(tokens, selected, queries, causal=causal, lengths=lengths)
        problem = cls(tokens, rows, selection, mask=mask, sequence=sequence)
        problem.kind = Kind.of(tokens)
        return problem

    @classmethod
    def from_classes(cls, X: Any, y: Any, *, classes: int | None = None) -> SelectionProblem:
        r"""Multiclass linear classification: classes are tokens, inputs are queries, labels are selected tokens.

        The tokens are the k unit vectors, one sequence shared by all queries. Row c of W (k, d) is then the weight
        vector of class c, and the margins are :math:`(w_{y_i} - w_c)^\top x_i`. The limit directions of multiclass
        training are compared with this max-margin problem (arXiv 2502.04664).

        Parameters
        ----------
        X : array_like, shape (n, d)
        y : array_like of int, shape (n,)
            Labels from 0 to k - 1.
        classes : int, optional
            Number of classes k. Default: one more than the largest label.

        Examples
        --------
        >>> from attsvm import SelectionProblem, solve
        >>> problem = SelectionProblem.from_classes([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], [0, 1, 2])
        >>> solve(problem).W.shape
        (3, 2)
        """
        labels, count = read_labels(y, classes)
        return cls._from_vocabulary(X, labels, unit_vectors(count))

    @classmethod
    def from_contexts(cls, contexts: Any, supports: Any, *, embeddings: Any = None) -> SelectionProblem:
        r"""Next-token prediction: every word of the vocabulary is a token, every context a query.

        Words that follow a context are selected and must get equal scores. All other words must score lower by the
        margin. This is the NTP-SVM of arXiv 2402.18551 and 2408.15417. The logits of a trained linear decoder diverge
        in the direction of its solution.

        Parameters
        ----------
        contexts : array_like, shape (n, d)
            Embeddings of the contexts.
        supports : array_like of bool, shape (n, V)
            True where the word follows the context.
        embeddings : array_like, shape (V, m), optional
            Word vectors. Default: unit vectors; row v of W (V, d) is then the decoder's weight vector of word v.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import SelectionProblem, solve
        >>> problem = SelectionProblem.from_contexts(np.eye(2), [[True, True, False], [False, False, True]])
        >>> solve(problem).status.name
        'OPTIMAL'
        """
        return cls._from_vocabulary(contexts, *read_supports(supports, embeddings))

    @classmethod
    def from_preferences(
        cls, tokens: Any, queries: Any, preferred: Any, *, mask: Any = None, sequence: Any = None
    ) -> SelectionProblem:
        r"""Ranking: every preferred token of a query must score higher than the other tokens; ties are not required.

        The problem repeats each query once per preferred token, with the query's other preferred tokens masked.
        ``numpy.nonzero(preferred)`` gives the query and token of each repetition.

        Parameters
        ----------
        tokens : array_like, shape (b, T, d), or (T, d) for tokens that all queries share
        queries : array_like, shape (n, dz)
        preferred : array_like of bool, shape (n, T)
            One or more visible tokens per query.
        mask, sequence
            As for the class, one row or index for each of the n queries.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import SelectionProblem, solve
        >>> documents, relevant = np.eye(3), [[True, True, False], [False, False, True]]
        >>> solve(SelectionProblem.from_preferences(documents, np.eye(2), relevant)).status.name
        'OPTIMAL'
        """
        rows = read_vectors("queries", queries)
        lists, expanded, selected, visible, index = read_preferences(tokens, preferred, mask, sequence, len(rows))
        problem = cls(lists, rows[expanded], selected, mask=visible, sequence=index)
        problem.kind = Kind.of(tokens, queries)
        return problem

    @classmethod
    def _from_vocabulary(cls, queries: Any, selected: np.ndarray, words: np.ndarray) -> SelectionProblem:
        """Let all queries read the one sequence of words (V, m)."""
        rows = read_vectors("X" if selected.ndim == 1 else "contexts", queries)
        if len(rows) != len(selected):
            raise ValueError(f"y or supports has {len(selected)} rows; {len(rows)}, one per query, were expected.")
        problem = cls(words[None], rows, selected, sequence=np.zeros(len(rows), dtype=np.int64))
        problem.kind = Kind.of(queries)
        return problem

    def scores(self, W: Any) -> Array:
        """Attention logits x_it^T W z_i, shape (n, T); -inf where the mask hides the token.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import SelectionProblem
        >>> problem = SelectionProblem([[[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]], [[2.0]], [0])
        >>> problem.scores(np.array([[1.0], [-1.0]]))
        array([[ 2.,  0., -4.]])
        """
        matrix = self._read_weights(W)
        u = self.queries @ matrix.T  # (n, d)
        out = np.empty(self.mask.shape)
        step = rows_in_chunk(8 * self.tokens.shape[1] * self.tokens.shape[2])
        for start in range(0, len(u), step):
            rows = slice(start, start + step)
            out[rows] = np.matmul(self.tokens_of(rows), u[rows, :, None])[..., 0]
            self._pages.release()
        return self.kind.restore(np.where(self.mask, out, -np.inf))

    def margins(self, W: Any) -> Array:
        """Score of the first selected token minus the score of each token, (n, T); +inf where the mask hides the token.

        Margins are computed from token differences: a large offset common to all tokens costs no accuracy.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import SelectionProblem
        >>> problem = SelectionProblem([[[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]], [[2.0]], [0])
        >>> problem.margins(np.array([[1.0], [-1.0]]))
        array([[0., 2., 6.]])
        """
        out = self.apply(self._read_weights(W))
        return self.kind.restore(np.where(self.mask, out, np.inf))

    def _read_weights(self, W: Any) -> np.ndarray:
        matrix = to_numpy("W", W).astype(np.float64, copy=False)
        _, _, d, dz = self.shape
        if matrix.shape != (d, dz):
            raise ValueError(f"W has shape {matrix.shape}; (d, dz) = {(d, dz)} was expected.")
        return matrix

    def _summary(self) -> Summary:
        n, T, d, dz = self.shape
        facts = [
            ("tokens", f"{n:,} x {T:,}, dimension {d}"),
            ("W", f"{d} x {dz}"),
            ("constraints", f"{int(self.rejected.sum()):,}"),
        ]
        if self.tied.any():
            facts.append(("tied tokens", f"{int(self.tied.sum()):,}"))
        if not self.mask.all():
            facts.append(("masked tokens", f"{int((~self.mask).sum()):,}"))
        return Summary(
            "SelectionProblem", colour=MARKED, facts=facts, notes=["attsvm.solve(problem) finds the smallest W."]
        )

    def __repr__(self) -> str:
        n, T, d, dz = self.shape
        several = f", {int(self.tied.sum())} tied" if self.tied.any() else ""
        constraints = counted(int(self.rejected.sum()), "constraint")
        return f"SelectionProblem(n={n}, T={T}, d={d}, dz={dz}, {constraints}{several})"
