r"""Problems that separate into columns: orthonormal tokens shared by all queries, and orthogonal queries.

Let the tokens be the rows of :math:`X = aE` and the queries multiples :math:`z_i = c_iu_{g(i)}` of the rows of U, where
E and U have orthonormal rows. Examples are one-hot words with one-hot contexts, and documents with search queries. A
solution is then :math:`W = E^\top SU` with scores S (T, G). Every unitarily invariant norm of W is the norm of S; if E
and U are one-hot, so is every entrywise norm. The constraints of a query involve one column of S:

.. math:: ac_i(s_{\alpha_i} - s_t) \ge 1 \text{ or } = 0.

A column qualifies in two cases. Either its queries together require every preferred token above every other token, or
its one query ties several tokens.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attsvm.core.error_free import UNIT
from attsvm.core.one_hot import OneHot
from attsvm.core.problem import SelectionProblem

# Distance from zero or one up to which inner products of unit vectors count as zero or one, the rounding of an
# orthogonal factor; the certificate accounts for the difference.
ROUNDING = 128 * UNIT
# Number of queries that are compared first, which rejects random queries at almost no cost.
FIRST_QUERIES = 8

# Rows of an array, or one-hot.
Vectors = np.ndarray | OneHot


@dataclass(frozen=True, eq=False)
class Columns:
    """A problem in the scores S (T, G) of its tokens for the directions of its queries.

    Attributes
    ----------
    tokens : ndarray or OneHot, shape (T, d)
        Orthonormal rows E.
    directions : ndarray or OneHot, shape (G, dz)
        Orthonormal rows U.
    group : ndarray of int, shape (n,)
        The column of each query; queries with no constraint get column 0.
    length : ndarray, shape (n,)
        a c_i of the module's derivation; one for a query with no constraint.
    rows : ndarray of int, shape (m,)
        For each column and preferred token, the query with the most demanding constraint.
    preferred, others : ndarray of bool, shape (T, G)
    demand : ndarray, shape (T, G)
        Required difference between a preferred token and the others; zero elsewhere.
    tied : ndarray of bool, shape (G,)
        Whether the preferred tokens of a column tie.
    copies : ndarray of int, shape (G,)
        Number of equal columns that a column stands for.
    """

    problem: SelectionProblem
    tokens: Vectors
    directions: Vectors
    group: np.ndarray
    length: np.ndarray
    rows: np.ndarray
    preferred: np.ndarray
    others: np.ndarray
    demand: np.ndarray
    tied: np.ndarray
    copies: np.ndarray

    @classmethod
    def of(cls, problem: SelectionProblem) -> Columns | None:
        """Find the columns of a problem; None if it does not separate."""
        asking = np.flatnonzero(problem.constrained.any(axis=1))
        contexts = problem.one_hot_queries
        if not len(asking) or (contexts is None and not _may_be_orthogonal(problem.queries[asking[:FIRST_QUERIES]])):
            return None
        factors = _orthonormal(problem)
        if factors is None:
            return None
        found = _directions(problem.queries[asking]) if contexts is None else _one_hot_directions(contexts[asking])
        return None if found is None else _demands(problem, factors, asking, *found)

    @property
    def is_one_hot(self) -> bool:
        """Whether E and U have one entry per row."""
        return isinstance(self.tokens, OneHot) and isinstance(self.directions, OneHot)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (T, G) of the scores."""
        return self.demand.shape

    @cached_property
    def multiplicity(self) -> np.ndarray:
        """Number of preferred tokens per column, (G,)."""
        return self.preferred.sum(axis=0)

    @cached_property
    def scale(self) -> np.ndarray:
        """Length a c of each column's query, or of one of its queries if it has several, (G,)."""
        scale = np.ones(self.shape[1])
        scale[self.group[self.rows]] = self.length[self.rows]
        return scale

    def merge(self, origin: np.ndarray) -> tuple[Columns, np.ndarray, np.ndarray]:
        r"""Let one column stand for k equal ones.

        Returns the columns left, the index of each of them among all, and which of them stands for each of all (G,).

        Some solution is equal in all of them, since the mean over their permutations is one. A column s repeated k
        times has the singular values of one column :math:`\sqrt k s`, whose query is shorter by this factor. Columns
        with different ``origin`` (T, G) are not equal. The result has scores and multipliers, but no W.
        """
        number = _equal_columns([self.preferred, self.others], [self.demand, origin])
        copies, first = np.bincount(number), np.unique(number, return_index=True)[1]
        if len(first) == len(number):
            return self, first, number
        group = number[self.group]
        merged = replace(
            self,
            group=group,
            length=self.length / np.sqrt(copies[group]),
            preferred=self.preferred[:, first],
            others=self.others[:, first],
            demand=self.demand[:, first] * np.sqrt(copies),
            tied=self.tied[first],
            copies=copies,
        )
        return merged, first, number

    def lift(self, S: np.ndarray) -> np.ndarray:
        """Write scores (T, G) as W (d, dz)."""
        return _sums(self.directions, _sums(self.tokens, S))

    def lower(self, W: np.ndarray) -> np.ndarray:
        """Scores (T, G) of W (d, dz)."""
        return _inner_products(self.directions, _inner_products(self.tokens, W).T).T

    def tie(self, S: np.ndarray) -> None:
        """Make the ties of scores (T, G), which hold up to rounding, hold to the last bit."""
        if self.tied.any():
            first = S[self.preferred.argmax(axis=0), np.arange(len(self.tied))]
            np.copyto(S, first, where=self.preferred & self.tied)

    def margins(self, S: np.ndarray) -> np.ndarray:
        """Margins (n, T) of scores (T, G), zero where unconstrained."""
        problem, scores = self.problem, S.T[self.group]
        first = scores[np.arange(len(scores)), problem.reference]
        return np.where(problem.constrained, self.length[:, None] * (first[:, None] - scores), 0.0)

    def multipliers(self, change: np.ndarray) -> np.ndarray:
        """Split an adjoint (T, G) with column sums zero into multipliers (n, T), in proportion to preferred tokens."""
        rows, problem = self.rows, self.problem
        group, alpha = self.group[rows], problem.reference[rows]
        share = 1.0 / self.copies[group]
        several = ~self.tied[group] & (self.multiplicity[group] > 1)
        supply = np.where(self.preferred & ~self.tied, np.maximum(change, 0.0), 0.0)
        total = supply.sum(axis=0)[group[several]]
        share[several] *= supply[alpha[several], group[several]] / np.where(total > 0, total, 1.0)
        part = change.T[group]
        part *= -(share / self.length[rows])[:, None]
        dual = np.zeros(problem.mask.shape)
        dual[rows] = part
        dual[~problem.constrained] = 0.0
        return dual


def _equal_columns(marks: list[np.ndarray], values: list[np.ndarray]) -> np.ndarray:
    """Return which set of equal columns each column is in (G,), given matrices (T, G) of bool and of float."""
    bits = np.concatenate([np.packbits(matrix, axis=0) for matrix in marks]).T
    keys = [column.tobytes() for column in bits]
    repeated = {key for key, count in Counter(keys).items() if count > 1}
    sets: dict[bytes, int] = {}
    for j, key in enumerate(keys):
        if key in repeated:
            keys[j] += b"".join(matrix[:, j].tobytes() for matrix in values)
        sets.setdefault(keys[j], len(sets))
    return np.array([sets[key] for key in keys])


def _may_be_orthogonal(queries: np.ndarray) -> bool:
    """Whether all pairs of queries (k, dz) are parallel or orthogonal."""
    size = np.sqrt(np.vecdot(queries, queries))
    if not (np.isfinite(size).all() and (size > 0).all()):
        return False  # their squares overflow or underflow
    cosine = np.abs((queries / size[:, None]) @ (queries / size[:, None]).T)
    return not ((cosine > ROUNDING) & (cosine < 1.0 - ROUNDING)).any()


def _sums(vectors: Vectors, values: np.ndarray) -> np.ndarray:
    """Sum the outer products of values (k, m) and vectors (k, d), (m, d)."""
    return vectors.sums(values) if isinstance(vectors, OneHot) else values.T @ vectors


def _inner_products(vectors: Vectors, matrix: np.ndarray) -> np.ndarray:
    """Products (k, m) of vectors (k, d) and a matrix (d, m)."""
    return matrix[vectors.axes] * vectors.entries[:, None] if isinstance(vectors, OneHot) else vectors @ matrix


def _orthonormal(problem: SelectionProblem) -> tuple[Vectors, float] | None:
    """Write the tokens that all queries see as orthonormal rows (T, d) times a length; None if impossible."""
    one_hot = problem.one_hot
    if one_hot is not None:
        length = float(np.abs(one_hot.entries[0]))
        equal = 0.0 < length < np.inf and (np.abs(one_hot.entries) == length).all()
        return (OneHot(one_hot.axes, one_hot.entries / length, one_hot.width), length) if equal else None
    _, T, d, _ = problem.shape
    first = problem.tokens[problem.sequence[0]]
    if d < T or float(first[0] @ first[-1]) > ROUNDING * float(first[0] @ first[0]):
        return None
    used = np.unique(problem.sequence)
    if len(used) > 1 and not all(np.array_equal(problem.tokens[index], first) for index in used):
        return None
    rows = first.astype(np.float64, copy=False)
    length = float(np.sqrt(rows[0] @ rows[0]))
    if not (0.0 < length < np.inf):
        return None
    unit = rows / length
    one_hot = OneHot.of(unit)
    if one_hot is not None:
        return (one_hot, length) if one_hot.distinct and (np.abs(one_hot.entries) == 1.0).all() else None
    return (unit, length) if (np.abs(unit @ unit.T - np.eye(T)) <= ROUNDING).all() else None


def _one_hot_directions(queries: OneHot) -> tuple[Vectors, np.ndarray, np.ndarray] | None:
    """Write one-hot queries as lengths (m,) times distinct directions, with the direction's index (m,)."""
    used, group = np.unique(queries.axes, return_inverse=True)
    sign = np.ones(len(used))
    sign[group] = np.sign(queries.entries)
    length = queries.entries * sign[group]
    return (OneHot(used, sign, queries.width), group, length) if (length > 0).all() else None


def _directions(queries: np.ndarray) -> tuple[Vectors, np.ndarray, np.ndarray] | None:
    """Write queries (m, dz) as lengths (m,) times orthonormal directions (G, dz), with the direction's index (m,)."""
    one_hot = OneHot.of(queries)
    if one_hot is not None:
        return _one_hot_directions(one_hot)
    size = np.sqrt(np.vecdot(queries, queries))
    unit = queries / size[:, None]
    cosine = unit @ unit.T
    first = (cosine > 0.5).argmax(axis=1)
    used, group = np.unique(first, return_inverse=True)
    directions = unit[used]
    is_orthonormal = (np.abs(cosine[np.ix_(used, used)] - np.eye(len(used))) <= ROUNDING).all()
    if not is_orthonormal or (np.abs(unit - directions[group]) > ROUNDING).any():
        return None
    return directions, group, size


def _demands(
    problem: SelectionProblem,
    factors: tuple[Vectors, float],
    asking: np.ndarray,
    directions: Vectors,
    group: np.ndarray,
    length: np.ndarray,
) -> Columns | None:
    """Collect each column's preferred tokens; None unless its queries place every preferred token above all others."""
    tokens, unit = factors
    n, T, _, _ = problem.shape
    count, alpha, length = len(directions), problem.reference[asking], unit * length
    preferred, others = np.zeros((count, T), bool), np.zeros((count, T), bool)
    others[group] = problem.rejected[asking]
    several = problem.tied[asking].any(axis=1)
    queries = np.bincount(group, minlength=count)
    if (others[group] != problem.rejected[asking]).any() or (queries[group[several]] > 1).any():
        return None
    preferred[group, alpha] = True
    preferred[group[several]] |= problem.selected[asking[several]]
    if (preferred & others).any() or not others.any(axis=1).all():
        return None
    # The shortest of several queries with the same constraint is the most demanding.
    order = np.lexsort((length, alpha, group))
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(group[order]) != 0) | (np.diff(alpha[order]) != 0)
    rows = order[first]
    demand = np.zeros((count, T))
    demand[group[rows], alpha[rows]] = 1.0 / length[rows]
    tied = np.zeros(count, bool)
    tied[group[several]] = True
    demand[group[several]] = np.where(preferred[group[several]], 1.0 / length[several, None], 0.0)
    all_groups, all_lengths = np.zeros(n, dtype=np.int64), np.ones(n)
    all_groups[asking], all_lengths[asking] = group, length
    return Columns(
        problem=problem,
        tokens=tokens,
        directions=directions,
        group=all_groups,
        length=all_lengths,
        rows=asking[rows],
        preferred=np.ascontiguousarray(preferred.T),
        others=np.ascontiguousarray(others.T),
        demand=np.ascontiguousarray(demand.T),
        tied=tied,
        copies=np.ones(count, dtype=np.int64),
    )
