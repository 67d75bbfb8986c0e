"""Problems that fall apart: groups of queries whose constraints involve different entries of W.

A constraint involves the entries of W in the rows where its two tokens differ and in the columns where its query is not
zero. Queries with no row in common have no entry in common, and neither have queries with no column in common. Examples
are several tasks or languages in one problem, and one-hot contexts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse import block_array, csr_array
from scipy.sparse.csgraph import connected_components

from attsvm.core.problem import SelectionProblem
from attsvm.platform.paging import rows_in_chunk

# What the entries of two blocks may share: nothing, rows, columns, or both (other entries of the same row and column).
Shared = Literal["nothing", "rows", "columns", "both"]
Marks = np.ndarray | csr_array  # of bool
FEW_STEPS = 1


@dataclass(frozen=True, eq=False)
class ProblemBlock:
    """A part of a problem: indices of its queries and of the tokens they see, and of the rows and columns of W."""

    queries: np.ndarray
    tokens: np.ndarray
    rows: np.ndarray
    columns: np.ndarray

    def problem(self, whole: SelectionProblem) -> SelectionProblem:
        """Pose the part as a problem of its own."""
        sequences, sequence = np.unique(whole.sequence[self.queries], return_inverse=True)
        one_hot = whole.one_hot_queries
        queries = whole.queries[self.queries] if one_hot is None else one_hot[self.queries].dense()
        places = np.ix_(self.queries, self.tokens)
        return SelectionProblem(
            whole.tokens[np.ix_(sequences, self.tokens, self.rows)],
            queries[:, self.columns],
            whole.selected[places],
            mask=whole.mask[places],
            sequence=sequence,
        )


def blocks_of(problem: SelectionProblem, shared: Shared) -> list[ProblemBlock]:
    """Find the blocks of a problem; none if all constraints hang together, or if some constraint involves no entry."""
    asking = np.flatnonzero(problem.constrained.any(axis=1))
    if not len(asking) or _involves_all(problem, int(asking[0])):
        return []
    used, sequence = np.unique(problem.sequence[asking], return_inverse=True)
    of_sequences, of_queries = _rows(problem, used, _seen(problem, asking, sequence)), _columns(problem, asking)
    if _hangs_together(of_sequences) and _hangs_together(of_queries):
        return []
    marks = csr_array(of_sequences)[sequence], csr_array(of_queries)
    if not all(np.diff(part.indptr).all() for part in marks):
        return []
    of_rows, of_columns = map(_labels, marks)
    if shared == "nothing":
        crossing = csr_array((np.ones(len(asking)), (of_rows, of_columns)))
        of_rows = _labels(crossing)[of_rows]
    keys = {"rows": of_columns, "columns": of_rows, "nothing": of_rows}.get(shared)
    if keys is None:
        keys = of_rows * (of_columns.max() + 1) + of_columns
    order = keys.argsort(kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)
    if len(parts) < 2:
        return []
    return [
        ProblemBlock(
            queries, np.flatnonzero(problem.mask[queries].any(axis=0)), *(np.unique(m[part].indices) for m in marks)
        )
        for part, queries in ((part, asking[part]) for part in parts)
    ]


def _involves_all(problem: SelectionProblem, query: int) -> bool:
    """Whether a query involves all entries of W, and thus hangs together with every other."""
    contexts, words, seen = problem.one_hot_queries, problem.one_hot, problem.mask[query]
    if not (problem.queries[query].all() if contexts is None else contexts.width == 1):
        return False
    if words is not None:
        return len(np.unique(words.axes[seen])) == problem.shape[2]
    tokens = problem.tokens[problem.sequence[query]][seen]
    return bool((tokens != tokens[0]).any(axis=0).all())


def _columns(problem: SelectionProblem, asking: np.ndarray) -> Marks:
    """Mark the columns of W (m, dz) that each query involves."""
    one_hot = problem.one_hot_queries
    if one_hot is None:
        return problem.queries[asking] != 0
    marks = csr_array((one_hot.entries[asking] != 0, (np.arange(len(asking)), one_hot.axes[asking])))
    marks.eliminate_zeros()
    marks.resize(len(asking), one_hot.width)
    return marks


def _seen(problem: SelectionProblem, asking: np.ndarray, sequence: np.ndarray) -> np.ndarray:
    """Mark the tokens (k, T) of each sequence that any of its queries sees."""
    order = sequence.argsort(kind="stable")
    first = np.append(0, np.flatnonzero(np.diff(sequence[order])) + 1)
    return np.logical_or.reduceat(problem.mask[asking[order]], first, axis=0)


def _rows(problem: SelectionProblem, used: np.ndarray, seen: np.ndarray) -> Marks:
    """Mark the rows of W (k, d) in which the seen tokens of each sequence differ."""
    _, T, d, _ = problem.shape
    if problem.one_hot is not None:
        words = csr_array((np.ones(T, dtype=bool), (np.arange(T), problem.one_hot.axes)), shape=(T, d))
        return csr_array(csr_array(seen) @ words)
    parts, step = [], rows_in_chunk(T * d)
    for start in range(0, len(used), step):
        tokens, visible = problem.tokens[used[start : start + step]], seen[start : start + step]
        first = tokens[np.arange(len(tokens)), visible.argmax(axis=1), None]
        parts.append(((tokens != first) & visible[:, :, None]).any(axis=1))
    return np.concatenate(parts)


def _hangs_together(marks: Marks) -> bool:
    """Whether few steps over common columns lead from the first row (m, k) to all others; labels would cost more."""
    reached = marks @ (marks[[0]].sum(axis=0) > 0)
    for _ in range(FEW_STEPS):
        reached = marks @ (marks.T @ reached)
    return bool(reached.all())


def _labels(marks: csr_array) -> np.ndarray:
    """Label each row of a table (m, k) by its connected component; rows are connected by common columns."""
    graph = block_array([[None, marks], [marks.T, None]])
    labels = connected_components(graph, directed=False)[1][: len(marks.indptr) - 1]
    return np.unique(labels, return_inverse=True)[1]
