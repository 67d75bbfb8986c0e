r"""Opposite demands of parallel queries, found before any arithmetic.

Queries that are multiples of one direction z order tokens by one linear function :math:`x \mapsto x^\top W z`. Each
constraint is an edge from the selected to the rejected token vector. Ties are edges both ways, and a negative multiple
reverses its edges. A cycle with a strict edge is a contradiction, for example two equal queries that select different
tokens of the same text. The differences along the cycle telescope to zero exactly, so multipliers of one over the
length of each query are a certificate of infeasibility (Farkas).
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from attsvm.core.problem import SelectionProblem

CHUNK_ENTRIES = 1 << 20  # number of token entries read at a time


def opposite_demands(problem: SelectionProblem) -> np.ndarray | None:
    """Look for a cycle of demands among parallel queries.

    Return multipliers (n, T) with A^T lam = 0 up to rounding, nonnegative on rejected tokens and summing to one there;
    None if no group of parallel queries contradicts itself.
    """
    for rows, factors in _parallel_queries(problem.queries):
        cycle = _cycle(problem, rows, factors)
        if cycle is not None:
            return cycle / cycle[problem.rejected].sum()
    return None


def _parallel_queries(queries: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Group at least two queries of one direction: (rows, factors), query = factor * the group's direction."""
    factors = queries[np.arange(len(queries)), np.abs(queries).argmax(axis=1)]  # signed largest entries
    rows = np.flatnonzero(factors)
    if len(rows) < 2:
        return []
    with np.errstate(under="ignore"):
        names = _hashes(queries[rows] / factors[rows, None])
    order = np.argsort(names, kind="stable")
    parts = np.split(rows[order], 1 + np.flatnonzero(np.diff(names[order])))
    return [(part, factors[part]) for part in parts if len(part) > 1]


def _hashes(rows: np.ndarray) -> np.ndarray:
    """One integer per row of (m, d), equal for equal rows and, with high probability, only for them: (m,)."""
    bits = (rows.astype(np.float64, copy=False) + 0.0).view(np.uint64)  # no negative zeros
    odd = np.random.default_rng(0).integers(1 << 62, size=rows.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    # The low bits of short numbers are zero, and without the shift the low bits of their products would be too.
    return ((bits ^ (bits >> np.uint64(32))) * odd).sum(axis=1, dtype=np.uint64)


def _cycle(problem: SelectionProblem, rows: np.ndarray, factors: np.ndarray) -> np.ndarray | None:
    """Multipliers (n, T) of one cycle among the demands of parallel queries; None without one."""
    _, T, d, _ = problem.shape
    sequences, where = np.unique(problem.sequence[rows], return_inverse=True)
    step = max(1, CHUNK_ENTRIES // (T * d))
    names = np.concatenate(
        [_hashes(problem.tokens[sequences[k : k + step]].reshape(-1, d)) for k in range(0, len(sequences), step)]
    )
    distinct, nodes = np.unique(names, return_inverse=True)
    if len(distinct) == len(rows) * T:
        return None  # no token is seen twice
    nodes = nodes.reshape(len(sequences), T)[where]  # (rows, T)
    here, columns = np.nonzero(problem.constrained[rows])
    selected, other = nodes[here, problem.reference[rows][here]], nodes[here, columns]
    strict, negative = problem.rejected[rows][here, columns], factors[here] < 0
    sources, targets = np.where(negative, other, selected), np.where(negative, selected, other)
    ties = np.flatnonzero(~strict)
    # Ties are edges both ways; the multiplier of the edge back is negative.
    tails, heads = np.concatenate([sources, targets[ties]]), np.concatenate([targets, sources[ties]])
    constraints = np.concatenate([np.arange(len(here)), ties])
    signs = np.where(np.arange(len(tails)) < len(here), 1.0, -1.0)
    graph = csr_array((np.ones(len(tails)), (tails, heads)), shape=(len(distinct), len(distinct)))
    _, component = connected_components(graph, connection="strong")
    closing = np.flatnonzero(strict & (component[sources] == component[targets]))
    if not len(closing):
        return None
    _, before = breadth_first_order(graph, targets[closing[0]], return_predecessors=True)
    path, node = [closing[0]], sources[closing[0]]
    while node != targets[closing[0]]:
        path.append(np.flatnonzero((tails == before[node]) & (heads == node))[0])
        node = before[node]
    cycle = np.zeros(problem.mask.shape)
    for edge in path:
        row = here[constraints[edge]]
        cycle[rows[row], columns[constraints[edge]]] += signs[edge] / abs(factors[row])
    return cycle
