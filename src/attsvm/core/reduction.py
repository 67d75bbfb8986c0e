r"""The problem in the reduced coordinates of a solver.

Every solution lies in span{token differences} x span{queries} (Lemma 1 of arXiv 2308.16898). Orthonormal bases of the
two spans therefore lose nothing for an orthogonally invariant norm. If :math:`W = s^{-1} P^\top \bar W B`, then W and
:math:`\bar W` have the same margins, and their norms differ by the factor s. Lengths are scaled by powers of two, so
that scaling the data does not change rounding. Queries with no constraint are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import qr

from attsvm.core.block_gram import BlockGram, SharedTokens
from attsvm.core.problem import SelectionProblem
from attsvm.core.rounding import row_lengths
from attsvm.platform.memory import available_bytes

# Smallest and largest normal float.
SMALLEST, LARGEST = float(np.finfo(float).tiny), float(np.finfo(float).max)
# Shift of every eigenvalue of a Gram matrix, relative to its trace, after which a definite matrix has full rank; the
# rounding error is about d * eps of the largest eigenvalue.
FULL_RANK_SHIFT = 1e-10
# Largest residual of ties, relative to the margin, at which W counts as a solution.
TIE_PRECISION = 1e-10
# Length of the part of a tie's unit row orthogonal to other ties, relative to the largest, below which it depends on
# them.
DEPENDENT_TIE = 1e-12
# Copies of the ties' rows that their QR decomposition needs.
QR_COPIES = 3

# Number of token differences in one product or factorisation.
CHUNK_ROWS = 1 << 14

Transform = tuple[np.ndarray | None, np.ndarray | None]


@dataclass(frozen=True, eq=False)
class Reduced:
    """A selection problem in reduced, scaled coordinates.

    Attributes
    ----------
    delta : ndarray, shape (n, T, p)
        Token differences, zero where there is no constraint. T is the largest number of constraints of any query.
    queries : ndarray, shape (n, r)
    rejected, tied : ndarray of bool, shape (n, T)
        Inequalities (margin >= 1) and equalities (margin = 0).
    rows : ndarray of int, shape (n,)
        Index of each row's query in the original problem.
    columns : ndarray of int, shape (n, T)
        Index of each difference's token in the original problem.
    left : ndarray, shape (p, d), or None
        Orthonormal basis of the token differences; None for the identity.
    right : ndarray, shape (r, dz), or None
        Orthonormal basis of the queries; None for the identity.
    scale : float
        Divisor in ``lift``, so that W and ``lift(W)`` have the same margins.
    size : tuple
        (n, T) of the original problem.
    transform : tuple
        L (d, d) and R (dz, dz), None for the identity: W of the original problem is L X R^T.
    vocabulary : SharedTokens or None
        One-hot tokens that all queries share, scaled; None for other tokens.
    """

    delta: np.ndarray
    queries: np.ndarray
    rejected: np.ndarray
    tied: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    left: np.ndarray | None
    right: np.ndarray | None
    scale: float
    size: tuple[int, int]
    transform: Transform = (None, None)
    vocabulary: SharedTokens | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (p, r) of W in these coordinates."""
        return self.delta.shape[2], self.queries.shape[1]

    @property
    def constraint_rank(self) -> int:
        """Upper bound on the dimension of the constraints' span: rank of the differences times rank of the queries."""
        both = self.delta.reshape(-1, self.shape[0]), self.queries
        tokens, queries = (int(np.linalg.matrix_rank(rows.T @ rows, hermitian=True)) for rows in both)
        return tokens * queries

    @cached_property
    def lengths(self) -> np.ndarray:
        """Length |delta_it| |z_i| of every constraint, (n, T)."""
        return row_lengths(self.delta) * row_lengths(self.queries)[:, None]

    def factors_at(self, rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Differences (J, p) of the tokens (rows, columns), each (J,), and their queries (J, r)."""
        return self.delta[rows, columns], self.queries[rows]

    def constraint_rows(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the rows of A of the tokens (rows, columns), each (J,): (J, p r), W flattened row by row."""
        return constraint_rows(*self.factors_at(rows, columns))

    def gram(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Inner products of the rows of A of the tokens (rows, columns), (J, J), computed without these rows."""
        return constraint_gram(*self.factors_at(rows, columns))

    def block_gram(self, rows: np.ndarray, columns: np.ndarray, diagonal: np.ndarray) -> BlockGram | None:
        """Return :meth:`gram` plus a diagonal (J,), in blocks; None if it has no blocks, or mostly singular ones."""
        if self.vocabulary is None:
            return None
        blocks = BlockGram(self.vocabulary, self.queries, rows, self.columns[rows, columns], diagonal)
        return blocks if blocks.suits else None

    def apply(self, W: np.ndarray) -> np.ndarray:
        """Margins of W (p, r): (n, T), zero where unconstrained."""
        return np.matmul(self.delta, (self.queries @ W.T)[:, :, None])[..., 0]

    def adjoint(self, dual: np.ndarray) -> np.ndarray:
        """Sum of dual_it delta_it z_i^T, (p, r)."""
        return np.matmul(dual[:, None, :], self.delta)[:, 0].T @ self.queries

    def min_margin(self, margins: np.ndarray) -> float:
        """Smallest margin over the inequalities."""
        return float(np.min(margins, where=self.rejected, initial=np.inf))

    def lift(self, W: np.ndarray) -> np.ndarray:
        """Convert W (p, r) to the original coordinates, (d, dz)."""
        if self.left is not None:
            W = self.left.T @ W
        if self.right is not None:
            W = W @ self.right
        left, right = self.transform
        W = W if left is None else left @ W
        W = W if right is None else W @ right.T
        with np.errstate(over="ignore"):
            return W / self.scale

    def lift_dual(self, dual: np.ndarray) -> np.ndarray:
        """Scatter values (rows, T) to the original queries and tokens, zero elsewhere."""
        out = np.zeros(self.size, dtype=dual.dtype)
        out[self.rows[:, None], self.columns] = dual
        return out

    def gather(self, values: np.ndarray) -> np.ndarray:
        """Select this problem's entries of an array over the original queries and tokens; zero where unconstrained."""
        return np.where(self.rejected | self.tied, values[self.rows[:, None], self.columns], 0)

    def lower(self, W: np.ndarray) -> np.ndarray:
        """Project W (d, dz) of the original coordinates into these, (p, r)."""
        W = W * self.scale
        left, right = self.transform
        W = W if left is None else np.linalg.solve(left, W)
        W = W if right is None else np.linalg.solve(right, W.T).T
        if self.left is not None:
            W = self.left @ W
        if self.right is not None:
            W = W @ self.right.T
        return W


def reduce(problem: SelectionProblem, *, rotate: bool = True, transform: Transform = (None, None)) -> Reduced:
    """Reduce a problem to the span of its token differences and queries.

    Parameters
    ----------
    problem : SelectionProblem
        A problem with at least one constraint.
    rotate : bool
        False keeps the original axes (for norms that depend on them) and only scales.
    transform : tuple of two ndarray or None
        L (d, d) and R (dz, dz): solve for X with W = L X R^T.
    """
    constrained = problem.constrained
    rows = np.flatnonzero(constrained.any(axis=1))
    count = int(constrained.sum(axis=1).max())
    columns = np.argsort(~constrained[rows], axis=1, kind="stable")[:, :count]  # (rows, T)
    present = np.take_along_axis(constrained[rows], columns, axis=1)
    delta = np.empty((len(rows), count, problem.shape[2]))
    start, T = 0, problem.shape[1]
    for block, part in problem.differences():
        here = slice(start, start + int(constrained[block].any(axis=1).sum()))
        flat = (rows[here] - block.start)[:, None] * T + columns[here]
        np.take(part.reshape(-1, part.shape[2]), flat, axis=0, out=delta[here])
        start = here.stop
    delta[~present] = 0.0
    queries = problem.queries[rows]
    if transform[0] is not None:
        delta = delta @ transform[0]
    if transform[1] is not None:
        queries = queries @ transform[1]
    token_scale, query_scale = _power_of_two(delta), _power_of_two(queries)
    delta /= token_scale
    queries /= query_scale
    left = right = None
    if rotate:
        # Padding would lead fewer differences than dimensions into products and factorisations of (d, d) matrices.
        few = np.count_nonzero(present) < problem.shape[2]
        differences = delta[present] if few else delta.reshape(-1, problem.shape[2])
        left = _row_basis(differences)
        right = _row_basis(queries)
        if left is not None and few:
            delta = np.zeros((*present.shape, len(left)))
            delta[present] = differences @ left.T
        elif left is not None:
            delta = delta @ left.T
        if right is not None:
            queries = queries @ right.T
    return Reduced(
        delta=np.ascontiguousarray(delta),
        queries=np.ascontiguousarray(queries),
        rejected=np.take_along_axis(problem.rejected[rows], columns, axis=1) & present,
        tied=np.take_along_axis(problem.tied[rows], columns, axis=1) & present,
        rows=rows,
        columns=columns,
        left=left,
        right=right,
        # A scale beyond the range of floats is clipped; the factor of W is then wrong, and no scaling corrects it.
        scale=min(max(token_scale * query_scale, SMALLEST), LARGEST),
        size=problem.mask.shape,
        transform=transform,
        vocabulary=_vocabulary(problem, rows, token_scale) if transform[0] is None else None,
    )


def _vocabulary(problem: SelectionProblem, rows: np.ndarray, scale: float) -> SharedTokens | None:
    """One-hot tokens that all queries share, divided by ``scale``, and the selected tokens of the given rows."""
    one_hot = problem.one_hot
    return None if one_hot is None else SharedTokens(one_hot.entries / scale, problem.reference[rows])


def independent_ties(reduced: Reduced) -> Reduced:
    """Remove ties that follow from others, if there are more ties than W has entries.

    A QR decomposition with pivoting takes the most independent ties first. Raises MemoryError if it does not fit.
    """
    count, entries = np.count_nonzero(reduced.tied), int(np.prod(reduced.shape))
    if count <= entries:
        return reduced
    if 8.0 * QR_COPIES * count * entries > available_bytes():
        raise MemoryError(f"{count:,} ties of {entries:,} entries each do not fit into memory.")
    rows, columns = np.nonzero(reduced.tied)
    unit = reduced.constraint_rows(rows, columns) / np.maximum(reduced.lengths[rows, columns], SMALLEST)[:, None]
    triangle, order = qr(unit.T, mode="r", pivoting=True, check_finite=False)  # pyright: ignore[reportAssignmentType]
    pivots = np.abs(np.diagonal(triangle))
    first = order[: int(np.count_nonzero(pivots > DEPENDENT_TIE * pivots[0]))]
    tied = np.zeros_like(reduced.tied)
    tied[rows[first], columns[first]] = True
    return replace(reduced, tied=tied)


def constraint_rows(delta: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Flatten delta_j z_j^T of token differences (J, p) and queries (J, r) row by row, (J, p r)."""
    return (delta[:, :, None] * queries[:, None, :]).reshape(len(delta), delta.shape[1] * queries.shape[1])


def constraint_gram(delta: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Inner products of delta_j z_j^T of token differences (J, p) and queries (J, r), (J, J)."""
    gram = delta @ delta.T
    gram *= queries @ queries.T
    return gram


def constraint_margins(delta: np.ndarray, queries: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Inner products of delta_j z_j^T of token differences (J, p) and queries (J, r) with W (p, r): (J,)."""
    return np.vecdot(delta, queries @ W.T)


def constraint_sum(delta: np.ndarray, queries: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sum of delta_j z_j^T of token differences (J, p) and queries (J, r) times values (J,): (p, r)."""
    return (delta * values[:, None]).T @ queries


def _power_of_two(array: np.ndarray) -> float:
    top = max(float(array.max()), -float(array.min()))
    return float(2.0 ** np.round(np.log2(top))) if top > 0 else 1.0


def _row_basis(rows: np.ndarray) -> np.ndarray | None:
    """Orthonormal basis (rank, d) of the row space of ``rows`` (m, d); None if it is the whole space."""
    m, d = rows.shape
    parts = [rows[k : k + CHUNK_ROWS] for k in range(0, m, CHUNK_ROWS)]  # Ctrl-C is handled between short calls
    if m >= d:
        gram = sum((part.T @ part for part in parts), np.zeros((d, d)))
        gram[np.diag_indices(d)] -= FULL_RANK_SHIFT * float(np.trace(gram))
        try:
            np.linalg.cholesky(gram)
            return None
        except np.linalg.LinAlgError:
            pass
    triangle = rows
    if m > d:
        triangle = np.zeros((0, d))
        for part in parts:
            triangle = np.linalg.qr(np.vstack([triangle, part]), mode="r")
    _, sigma, basis = np.linalg.svd(triangle, full_matrices=False)
    rank = int(np.count_nonzero(sigma > max(m, d) * np.finfo(float).eps * sigma[0])) if sigma[0] > 0 else 0
    return None if rank == d else basis[: max(rank, 1)]
