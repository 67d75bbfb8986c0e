"""The linear map from W to the margins of a selection, its adjoint, and the lengths of its constraints."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from attsvm.core.one_hot import OneHot
from attsvm.core.rounding import lengths_above, row_lengths, squares_of
from attsvm.platform.paging import Pages, rows_in_chunk


class MarginMap:
    """The map A of a selection: margins of constrained tokens.

    Attributes
    ----------
    tokens : ndarray, shape (b, T, d)
    queries : ndarray, shape (n, dz)
    selected, mask : ndarray of bool, shape (n, T)
    reference, sequence : ndarray of int, shape (n,)
    """

    tokens: np.ndarray
    selected: np.ndarray
    mask: np.ndarray
    reference: np.ndarray
    sequence: np.ndarray
    has_ties: bool
    _gathers: bool

    @cached_property
    def queries(self) -> np.ndarray:
        """The queries (n, dz)."""
        assert self.one_hot_queries is not None
        queries = self.one_hot_queries.dense()
        queries.setflags(write=False)
        return queries

    @cached_property
    def one_hot_queries(self) -> OneHot | None:
        """One-hot queries; None for other queries."""
        return OneHot.of(self.queries)

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """The sizes (n, T, d, dz)."""
        given = self.__dict__.get("queries")
        width = self.one_hot_queries.width if given is None and self.one_hot_queries else self.queries.shape[1]
        return (*self.mask.shape, self.tokens.shape[2], width)

    @cached_property
    def rejected(self) -> np.ndarray:
        """Visible tokens that must be rejected, margin >= 1: bool, shape (n, T)."""
        return self.mask & ~self.selected

    @cached_property
    def tied(self) -> np.ndarray:
        """Selected tokens other than the reference, margin = 0: bool, shape (n, T)."""
        if not self.has_ties:
            return np.zeros(self.selected.shape, dtype=bool)
        tied = self.selected.copy()
        tied[np.arange(len(tied)), self.reference] = False
        return tied

    @cached_property
    def constrained(self) -> np.ndarray:
        """Visible rejected or tied tokens, which have a token difference: bool, shape (n, T)."""
        return self.rejected | self.tied

    @cached_property
    def _hides(self) -> bool:
        return not self.mask.all()

    @cached_property
    def _pages(self) -> Pages:
        return Pages(self.tokens)

    def tokens_of(self, rows: slice) -> np.ndarray:
        """Return the tokens that some queries read, (rows, T, d); a view if each query reads its own sequence.

        Examples
        --------
        >>> from attsvm import SelectionProblem
        >>> problem = SelectionProblem([[[1.0], [0.0]]], [[2.0], [-1.0]], [0, 1], sequence=[0, 0])
        >>> problem.tokens_of(slice(1, 2))
        array([[[1.],
                [0.]]])
        """
        return self.tokens[self.sequence[rows]] if self._gathers else self.tokens[rows]

    def differences(self, dtype: type = np.float64) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield ``(rows, delta)`` with delta[i, t] = x_{i alpha_i} - x_{it}, (rows, T, d), zero where unconstrained.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import SelectionProblem
        >>> problem = SelectionProblem([[[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]], [[2.0]], [0])
        >>> [delta for rows, delta in problem.differences()]
        [array([[[ 0.,  0.],
                [ 1.,  0.],
                [ 1., -2.]]])]
        """
        n, T, d, _ = self.shape
        step = rows_in_chunk(8 * T * d)
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            x = self.tokens_of(rows).astype(dtype, copy=False)  # (rows, T, d)
            selection = x[np.arange(len(x)), self.reference[rows]]
            delta = selection[:, None, :] - x
            self._pages.release()
            if self._hides:
                delta[~self.mask[rows]] = 0.0
            yield rows, delta

    @cached_property
    def lengths(self) -> np.ndarray:
        """Upper bound on the length ``|delta_it| |z_i|`` of every constraint, (n, T), for bounds on rounding.

        Entries without a constraint may have any value.
        """
        with np.errstate(over="ignore", under="ignore"):
            if self.one_hot is not None:
                return self._lengths_one_hot(self.one_hot)
            squares = np.empty(self.mask.shape)
            for rows, delta in self.differences():
                squares[rows] = squares_of(delta)
            return self._lengths(squares)

    def _lengths(self, squares: np.ndarray) -> np.ndarray:
        """Lengths of the constraints from the squared lengths of their token differences, which are overwritten."""
        d, dz = self.shape[2:]
        lengths = lengths_above(squares, self._query_squares, d + dz)
        if lengths is None:
            parts = [row_lengths(delta) for _, delta in self.differences()]
            lengths = np.concatenate(parts) * row_lengths(self.queries)[:, None] * (1.0 + 1e-12)
        return lengths

    @cached_property
    def roundings(self) -> tuple[int, int]:
        """Number of products in a margin, and of terms in an entry of the adjoint; few if all vectors are one-hot."""
        n, T, d, dz = self.shape
        contexts = self.one_hot_queries if self.one_hot is not None else None
        return (d + dz, n + T) if contexts is None else (2, T + int(np.bincount(contexts.axes).max()))

    @property
    def _query_squares(self) -> np.ndarray:
        """Squared lengths of the queries, (n,)."""
        given = self.__dict__.get("queries")
        one_hot = self.one_hot_queries if given is None else None
        return squares_of(self.queries) if one_hot is None else one_hot.entries**2

    def apply(self, W: np.ndarray) -> np.ndarray:
        """Evaluate the linear map A: margins of every constrained token, zero elsewhere, (n, T), for W (d, dz).

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import SelectionProblem
        >>> problem = SelectionProblem([[[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]], [[2.0]], [0])
        >>> problem.apply(np.array([[1.0], [-1.0]]))
        array([[0., 2., 6.]])
        """
        return self.evaluate(W, None)[0]

    def adjoint(self, dual: np.ndarray) -> np.ndarray:
        """Evaluate the adjoint: sum over (i, t) of dual_it (x_{i alpha_i} - x_it) z_i^T, (d, dz), for dual (n, T).

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import SelectionProblem
        >>> problem = SelectionProblem([[[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]], [[2.0]], [0])
        >>> problem.adjoint(np.array([[0.0, 1.0, 0.5]]))
        array([[ 3.],
               [-2.]])
        """
        return self.evaluate(None, dual)[1]

    def evaluate(self, W: np.ndarray | None, dual: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate the map at W and the adjoint at dual in one pass over the tokens; None gives an empty array.

        If both are given, as by a certificate, the pass also computes :attr:`lengths`, whose squares may overflow.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import SelectionProblem
        >>> problem = SelectionProblem([[[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]], [[2.0]], [0])
        >>> margins, adjoint = problem.evaluate(np.array([[1.0], [-1.0]]), np.array([[0.0, 1.0, 0.5]]))
        >>> margins.shape, adjoint.shape
        ((1, 3), (2, 1))
        """
        if self.one_hot is not None:
            return self._evaluate_one_hot(self.one_hot, W, dual)
        n, T, d, dz = self.shape
        squares = None if W is None or dual is None or "lengths" in self.__dict__ else np.empty((n, T))
        margins = np.empty((0, T) if W is None else (n, T))
        adjoint = np.empty((0 if dual is None else n, d))
        u = None if W is None else self.queries @ W.T  # (n, d)
        for rows, delta in self.differences():
            if u is not None:
                margins[rows] = np.matmul(delta, u[rows, :, None])[..., 0]
            if dual is not None:
                adjoint[rows] = np.matmul(dual[rows, None, :], delta)[:, 0]
            if squares is not None:
                squares[rows] = squares_of(delta)
        if squares is not None:
            self.lengths = self._lengths(squares)
        return margins, adjoint.T @ self.queries if dual is not None else np.empty((0, dz))

    def _evaluate_one_hot(
        self, words: OneHot, W: np.ndarray | None, dual: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate the map and the adjoint from the non-zero entries of tokens, and of one-hot queries."""
        n, T, d, dz = self.shape
        contexts = self.one_hot_queries
        margins = np.empty((0, T) if W is None else (n, T))
        adjoint = np.empty((0 if dual is None else n, d))
        step = rows_in_chunk(8 * max(T, d))
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            reference = self.reference[rows]
            if W is not None and contexts is not None:
                u = W.T[contexts.axes[rows]] * contexts.entries[rows, None]
                margins[rows] = words.margins(u, reference, self.mask[rows])
            elif W is not None:
                margins[rows] = words.margins(self.queries[rows] @ W.T, reference, self.mask[rows])
            if dual is not None:
                adjoint[rows] = words.adjoint(np.where(self.constrained[rows], dual[rows], 0.0), reference)
        if dual is None:
            return margins, np.empty((0, dz))
        return margins, adjoint.T @ self.queries if contexts is None else contexts.sums(adjoint)

    def _lengths_one_hot(self, words: OneHot) -> np.ndarray:
        """Lengths without the tokens' differences; the memory of one number if all lengths are equal."""
        contexts = self.one_hot_queries
        if contexts is not None and words.is_even and contexts.is_even:
            square, query = 2.0 * words.entries[:1, None] ** 2, contexts.entries[:1] ** 2
            length = lengths_above(square, query, sum(self.shape[2:]))
            if length is not None:
                return np.broadcast_to(length, self.mask.shape)
        squares = words.squares(self.reference)
        squares[~self.constrained] = 0.0
        return self._lengths(squares)

    @cached_property
    def chunks(self) -> list[slice]:
        """Slices of the queries, each with few enough margins for a temporary copy."""
        n, T = self.mask.shape
        step = rows_in_chunk(8 * T)
        return [slice(start, min(start + step, n)) for start in range(0, n, step)]

    @cached_property
    def one_hot(self) -> OneHot | None:
        """One-hot tokens shared by all queries, no two on one axis; None for other tokens."""
        found = OneHot.of(self.tokens[0]) if len(self.tokens) == 1 else None
        return found if found is not None and found.distinct else None
