r"""Distance from W to a matrix whose tied tokens score exactly the same.

Let B be the tie equations, scaled to length one, and r their residuals at W. If B has full row rank, the smallest
change E with :math:`B E = -r` has :math:`\|E\|_F \le \|r\| / \sigma_{min}(B)`. A successful Cholesky factorisation of
:math:`BB^\top - \mu I` proves :math:`\sigma_{min}^2 \ge \mu` up to rounding (Rump, Acta Numerica 19, 2010, section 10).
A few dependent equations are solved over the rationals.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from attsvm.check import root_above
from attsvm.core.double_double import Rows
from attsvm.core.error_free import Pair, gamma
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import constraint_gram, constraint_sum
from attsvm.core.rounding import row_lengths
from attsvm.proofs.dyadic import Dyadic
from attsvm.proofs.tie_moves import TieEquations, exact_move, margins_of

# Number of ties above which the Gram matrix is not formed.
GRAM_TIES = 2000
# Bound on the squared smallest singular value, at most one, from which on no better bound is computed: a better one
# would at most halve the bound on the change.
SUFFICIENT_SQUARE = 0.25
# Number of ties, and numbers per equation, up to which the exact solution takes milliseconds.
FEW_TIES, FEW_NUMBERS = 24, 4000


def tie_move(problem: SelectionProblem, W: np.ndarray, length: float) -> float:
    """Bound the Frobenius norm of a change of W (d, dz) that makes the scores of tied tokens exactly equal.

    Parameters
    ----------
    problem : SelectionProblem
        A problem with ties.
    W : ndarray, shape (d, dz)
    length : float
        The Frobenius norm of W.

    Returns
    -------
    float
        Zero when they are equal; infinite when no such change is proven to exist.
    """
    if _hold_exactly(problem, W):
        return 0.0
    d, dz = W.shape
    rows, columns = _distinct_ties(problem)
    if not len(rows):
        return 0.0
    ties = Rows.of(problem, rows, columns)
    # Rows are scaled: the margin of a tie may underflow although its ratio to the row's length does not.
    margins, error = ties.margins(Pair(W, np.zeros(W.shape)), scaled=True)
    lengths = ties.lengths * (1 + gamma(d + dz + 16))
    residual = (np.abs(margins.rounded()) * (1 + gamma(4)) + error * lengths * length) / ties.lengths * (1 + 1e-12)
    floor = _smallest_square(ties) if len(rows) <= GRAM_TIES else 0.0
    if floor > 0:
        return float(np.linalg.norm(residual)) / math.sqrt(floor) * (1 + gamma(len(rows) + d + dz + 32))
    return _exactly(problem, rows, columns, W)


def _hold_exactly(problem: SelectionProblem, W: np.ndarray) -> bool:
    """Whether tokens and queries are one-hot and W (d, dz) has equal entries wherever scores tie."""
    words, contexts = problem.one_hot, problem.one_hot_queries
    if words is None or contexts is None:
        return False
    rows, columns = np.nonzero(problem.tied)
    first, axis = problem.reference[rows], contexts.axes[rows]
    equal = W[words.axes[first], axis] == W[words.axes[columns], axis]
    return bool((equal & (words.entries[first] == words.entries[columns])).all())


def onto_ties(problem: SelectionProblem, W: np.ndarray, margins: np.ndarray) -> np.ndarray:
    """Move W (d, dz) with margins (n, T) to the nearest matrix whose ties hold to rounding."""
    rows, columns = _distinct_ties(problem)
    if not 0 < len(rows) <= GRAM_TIES:
        return W
    ties = Rows.of(problem, rows, columns)
    delta = ties.delta.high / row_lengths(ties.delta.high)[:, None]
    queries = ties.queries / row_lengths(ties.queries)[:, None]
    missing = margins[rows, columns] / problem.lengths[rows, columns]
    try:
        share = np.linalg.lstsq(constraint_gram(delta, queries), missing, rcond=None)[0]
    except np.linalg.LinAlgError:
        return W
    return W - constraint_sum(delta, queries, share)


def _distinct_ties(problem: SelectionProblem) -> tuple[np.ndarray, np.ndarray]:
    """Find the queries and tokens of ties with a non-zero equation, each equation once."""
    rows, columns = np.nonzero(problem.tied)
    T, d = problem.tokens.shape[1:]
    first = problem.sequence[rows] * T
    tokens, place = np.unique([first + problem.reference[rows], first + columns], return_inverse=True)
    token = _numbered(problem.tokens[np.divmod(tokens, T)].reshape(-1, d))[place.reshape(2, -1)]
    queries, place = np.unique(rows, return_inverse=True)
    query = _numbered(problem.queries[queries])[place]
    has_equation = (token[0] != token[1]) & (np.count_nonzero(problem.queries[queries], axis=1) > 0)[place]
    equations = (token[0] * len(tokens) + token[1]) * len(queries) + query
    _, first = np.unique(equations[has_equation], return_index=True)
    first.sort()
    return rows[has_equation][first], columns[has_equation][first]


def _numbered(rows: np.ndarray) -> np.ndarray:
    """Give rows (k, d) numbers from 0 to k - 1, the same to equal rows."""
    numbers: dict[bytes, int] = {}
    # Adding zero gives zeros of both signs the same bytes.
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows + 0.0], dtype=np.int64)


def _smallest_square(ties: Rows) -> float:
    """Bound the square of the smallest singular value of the scaled equations from below; 0 when not proven.

    Equations of queries without a common axis are orthogonal: each block of connected queries has its own bound.
    """
    k, d = ties.delta.high.shape
    if k > d * ties.queries.shape[1]:
        return 0.0
    delta, queries, lengths, floor = ties.delta.high, ties.queries, ties.lengths, math.inf
    blocks = _connected(queries, ties.group)
    if (square := _smallest_square_of_axes(delta, blocks)) >= SUFFICIENT_SQUARE:
        return square
    for block in blocks:
        floor = min(floor, _smallest_square_of_block(delta[block], queries[block], lengths[block]))
        if floor == 0.0:
            break
    return floor


def _connected(queries: np.ndarray, group: np.ndarray) -> list[np.ndarray]:
    """Split the equations of queries (k, dz), equal ones in a group, into blocks with no axis in common."""
    if queries[0].all():
        return [np.arange(len(queries))]
    _, first = np.unique(group, return_index=True)
    row, axis = np.nonzero(queries[first])
    size = len(first) + queries.shape[1]
    graph = coo_array((np.ones(len(row), dtype=bool), (row, len(first) + axis)), shape=(size, size))
    block = connected_components(graph, directed=False)[1][group]
    order = np.argsort(block, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(block[order])) + 1)


def _smallest_square_of_axes(delta: np.ndarray, blocks: list[np.ndarray]) -> float:
    """Bound the square by the entries of differences (k, d) on axes that only one equation of a block has.

    On such an axis, a combination of the block's equations has only this equation's multiple. Words that tie after a
    one-hot context have such an axis each, and need no factorisation. The bound is 0 if an equation has no such axis.
    """
    k, d = delta.shape
    number = np.empty(k, dtype=np.int64)
    for i, block in enumerate(blocks):
        number[block] = i
    row, axis = np.nonzero(delta)
    place = number[row] * d + axis
    alone = np.bincount(place)[place] == 1
    squares = (delta[row, axis] / row_lengths(delta)[row]) ** 2
    sums = np.bincount(row[alone], weights=squares[alone], minlength=k)
    return float(sums.min()) * (1.0 - gamma(d + 16))


def _smallest_square_of_block(delta: np.ndarray, queries: np.ndarray, lengths: np.ndarray) -> float:
    """Bound the square for differences (k, d), queries (k, dz) and the equations' lengths (k,)."""
    (k, d), dz = delta.shape, queries.shape[1]
    gram = constraint_gram(delta, queries) / (lengths[:, None] * lengths)
    if not np.isfinite(gram).all():
        return 0.0
    smallest = float(np.linalg.eigvalsh(gram)[0])
    # Entries of the Gram matrix are at most one; their error is the rounding of their products.
    rounding = k * gamma(2 * (d + dz) + 16) + gamma(k + 4) * k
    if smallest <= 4 * rounding:
        return 0.0
    gram[np.diag_indices(k)] -= 0.5 * smallest
    try:
        np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        return 0.0
    return 0.5 * smallest - rounding


def _exactly(problem: SelectionProblem, rows: np.ndarray, columns: np.ndarray, W: np.ndarray) -> float:
    """Solve the equations over the rationals, and check that the move satisfies all of them."""
    _, _, d, dz = problem.shape
    if len(rows) > FEW_TIES or len(rows) * (d + dz) > FEW_NUMBERS:
        return math.inf
    exact = Dyadic.of(W)
    equations = TieEquations.of(problem, rows, columns, exact)
    if not equations.margins.numbers.any():
        return 0.0
    move = exact_move(equations)
    if move is None:
        return math.inf
    whole = Dyadic(exact.numbers * move.denominator, exact.exponent) + move.change
    has_residue = margins_of(equations.left, equations.right, whole).numbers.any()
    return (
        math.inf
        if has_residue
        else float(root_above(sum((x * x for x in move.fractions().flat), Fraction(0)))) * (1 + gamma(4))
    )
