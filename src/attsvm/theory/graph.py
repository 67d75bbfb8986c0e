r"""The Graph-SVM of next-token prediction (arXiv 2403.08081).

Tokens are words of a vocabulary with embeddings :math:`e_1..e_K`; the query is the last token k of a sequence, the
label y the token that follows. The head reads the label off the attended tokens, so the loss of a sequence is
:math:`-\log\sum_{t:\,x_t=y} s_t`. For each k the *next-token graph* has an edge from the label of every sequence that
ends in k to each of its tokens. The tokens of a strongly connected component are each other's labels: none of them
wins, and their score differences stay finite. Between components the order is strict. Training W therefore behaves like
:math:`C\,W^{svm} + W^{fin}`:

.. math:: W^{svm} = \arg\min \|W\|_F \ \text{s.t.}\ (e_i-e_j)^\top W e_k = 0 \ (i\sim j),\quad \ge 1\ (i\Rightarrow j),

with :math:`i\sim j` if i and j are in one component, and :math:`i\Rightarrow j` if a path leads from i to j but not
back. :math:`W^{fin}` minimises the loss restricted to the tokens in the component of each label, over the span of
:math:`(e_i-e_j)e_k^\top` with :math:`i\sim j`. The restricted loss is a convex log-likelihood, strictly convex on this
span.

Margins add up along a path, so constraints for the edges between components suffice. They form a selection problem over
one shared sequence, the vocabulary. For each k, each component with edges to others gives one query. It ties the
component's tokens and rejects one token of each component that an edge leads to (the other tokens of that component
have the same score). A component of several tokens without such edges gives a query that only ties. A graph without
cycles has no ties: then :math:`W^{fin} = 0`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from attsvm.core.problem import SelectionProblem
from attsvm.core.types import FactorNorm
from attsvm.platform.interop import to_numpy
from attsvm.platform.summary import Listed
from attsvm.solution.solution import Solution
from attsvm.solvers.solving import solve

# Largest number of Newton steps.
_NEWTON = 100


@dataclass(frozen=True, eq=False)
class TokenGraph:
    """The next-token graph of one last token.

    Attributes
    ----------
    last : int
        The last token k.
    edges : ndarray of int, shape (m, 2)
        Different pairs (label, token), label first, without loops.
    component : ndarray of int, shape (K,)
        Strongly connected component of every vocabulary entry.
    """

    last: int
    edges: np.ndarray
    component: np.ndarray

    @property
    def acyclic(self) -> bool:
        """Whether no two tokens lie on a cycle."""
        return len(np.unique(self.component)) == len(self.component)


@dataclass(frozen=True, eq=False, repr=False)
class GraphSVM(Listed):
    """The two parts of W in the limit of next-token prediction.

    Attributes
    ----------
    graphs : tuple of TokenGraph
        One per last token that occurs.
    problem : SelectionProblem
        The problem over the vocabulary, with one query per component that has ties or edges to other components.
    solution : Solution
        Its certified solution; INFEASIBLE if the graphs contradict the embeddings.
    W_fin : ndarray, shape (d, d)
        The finite part; zero for acyclic graphs.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.theory.graph import graph_svm
    >>> answer = graph_svm(np.eye(3), sequences=[[0, 1, 2], [1, 0, 2]], labels=[0, 1])
    >>> answer.acyclic, answer.W_fin.shape, len(answer.graphs)
    (False, (3, 3), 1)
    """

    graphs: tuple[TokenGraph, ...]
    problem: SelectionProblem
    solution: Solution
    W_fin: np.ndarray

    @property
    def W_svm(self) -> np.ndarray:
        """The direction, (d, d); NaN if there is none."""
        return np.asarray(self.solution.W)

    @property
    def acyclic(self) -> bool:
        """Whether all graphs are acyclic."""
        return all(graph.acyclic for graph in self.graphs)


def next_token_graphs(vocabulary: int, sequences: Sequence[Any], labels: Any) -> tuple[TokenGraph, ...]:
    """Build the graph of every last token.

    Parameters
    ----------
    vocabulary : int
        Number K of tokens.
    sequences : sequence of int arrays
        Token numbers of each sequence; the last token is the query.
    labels : array of int, shape (number of sequences,)
        The next token; it must occur in its sequence, or attention cannot predict it.

    Raises
    ------
    ValueError
        If a sequence is empty, a number is outside the vocabulary, or a label does not occur in its sequence.
    """
    rows, targets = _check(vocabulary, sequences, labels)
    graphs = []
    for last in sorted({int(row[-1]) for row in rows}):
        pairs = [
            (int(y), int(x)) for row, y in zip(rows, targets, strict=True) if row[-1] == last for x in row if x != y
        ]
        edges = np.unique(np.array(pairs, dtype=int).reshape(-1, 2), axis=0)
        matrix = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(vocabulary, vocabulary))
        component = connected_components(matrix, directed=True, connection="strong")[1]
        graphs.append(TokenGraph(last, edges, component))
    return tuple(graphs)


def graph_svm(
    embeddings: Any, sequences: Sequence[Any], labels: Any, *, norm: FactorNorm = "frobenius", tol: float = 1e-9
) -> GraphSVM:
    """Solve the Graph-SVM of a next-token data set, and its finite part.

    Parameters
    ----------
    embeddings : array, shape (K, d)
        One row per vocabulary entry.
    sequences : sequence of int arrays
    labels : array of int, shape (number of sequences,)
    norm : {"frobenius", "nuclear"}
        Norm of the SVM; the finite part always has the Frobenius norm.
    tol : float
        Requested relative gap.

    Returns
    -------
    GraphSVM

    Raises
    ------
    ValueError
        As for :func:`next_token_graphs`, or if every sequence has no token except its label.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.theory.graph import graph_svm
    >>> answer = graph_svm(np.eye(3), sequences=[[0, 1, 2], [2, 1]], labels=[0, 2])
    >>> answer.solution.status.name, answer.W_svm.shape, answer.acyclic
    ('OPTIMAL', (3, 3), True)
    """
    table = to_numpy("embeddings", embeddings).astype(np.float64)
    if table.ndim != 2 or 0 in table.shape or not np.isfinite(table).all():
        raise ValueError(f"embeddings has shape {table.shape}; a finite matrix (K, d) was expected.")
    graphs = next_token_graphs(len(table), sequences, labels)
    problem = _problem(table, graphs)
    return GraphSVM(graphs, problem, solve(problem, norm, tol=tol), _finite_part(table, graphs, sequences, labels))


def _check(vocabulary: int, sequences: Sequence[Any], labels: Any) -> tuple[list[np.ndarray], np.ndarray]:
    rows = [to_numpy(f"sequences[{i}]", row) for i, row in enumerate(sequences)]
    targets = to_numpy("labels", labels)
    if not rows or targets.shape != (len(rows),) or targets.dtype.kind not in "iu":
        raise ValueError(
            f"labels has {targets.dtype} of shape {targets.shape}; one integer for each of {len(rows)} sequences, "
            "at least one, was expected."
        )
    for i, (row, y) in enumerate(zip(rows, targets, strict=True)):
        if row.ndim != 1 or row.size == 0 or row.dtype.kind not in "iu" or row.min() < 0 or row.max() >= vocabulary:
            raise ValueError(
                f"sequences[{i}] has shape {row.shape}; integers from 0 to {vocabulary - 1} were expected."
            )
        if y not in row:
            raise ValueError(f"labels[{i}] is {y}; a token of its sequence {row.tolist()} was expected.")
    return rows, targets


def _problem(table: np.ndarray, graphs: Sequence[TokenGraph]) -> SelectionProblem:
    """Make one query for each component that ties tokens or has an edge to another component."""
    last_tokens, selections, masks = [], [], []
    for graph in graphs:
        above, below = graph.component[graph.edges].T if len(graph.edges) else (np.array([], int),) * 2
        for index in np.unique(graph.component):
            tied = graph.component == index
            losers = np.unique(below[(above == index) & (below != index)])
            if tied.sum() == 1 and not len(losers):
                continue
            mask = tied.copy()
            mask[[int((graph.component == other).argmax()) for other in losers]] = True
            last_tokens.append(graph.last)
            selections.append(tied)
            masks.append(mask)
    if not last_tokens:
        raise ValueError("sequences hold nothing but their labels; some other token in one of them was expected.")
    queries = table[last_tokens]
    sequence = np.zeros(len(last_tokens), dtype=int)
    return SelectionProblem(table[None], queries, np.array(selections), mask=np.array(masks), sequence=sequence)


def _finite_part(table: np.ndarray, graphs: Sequence[TokenGraph], sequences: Sequence[Any], labels: Any) -> np.ndarray:
    """Minimise the loss within components over their span, by Newton's method."""
    size = table.shape[1]
    spans = [
        np.outer(table[ties[0]] - table[other], table[graph.last]).ravel()
        for graph in graphs
        for index in np.unique(graph.component)
        for ties in [np.flatnonzero(graph.component == index)]
        for other in ties[1:]
    ]
    if not spans:
        return np.zeros((size, size))
    _, sigma, right = np.linalg.svd(np.array(spans), full_matrices=False)
    basis = right[sigma > max(len(spans), size**2) * np.finfo(float).eps * sigma[0]]  # (r, d*d)
    component = {graph.last: graph.component for graph in graphs}
    features = []
    for row, y in zip(*_check(len(table), sequences, labels), strict=True):
        last = int(row[-1])
        inside = row[component[last][row] == component[last][y]]
        if (inside != y).any():
            # Coordinates of (x_t - y) z^T: the label's logit is the reference.
            adjoint = (table[inside] - table[y])[:, :, None] * table[last]
            features.append((adjoint.reshape(len(inside), -1) @ basis.T, inside == y))
    return (_newton(features, len(basis)) @ basis).reshape(size, size)


def _newton(features: list[tuple[np.ndarray, np.ndarray]], size: int) -> np.ndarray:
    """Minimise the mean of log sum_t exp(f_t . u) - log(multiplicity), f = 0 for the label."""
    point = np.zeros(size)
    value, slope, curvature = _likelihood(features, point)
    for _ in range(_NEWTON):
        step = np.linalg.lstsq(curvature, -slope, rcond=None)[0]
        decrease = -float(slope @ step)
        # The possible gain is half the Newton decrement; below the rounding of the value it is nothing.
        if decrease <= np.finfo(float).eps * max(1.0, abs(value)):
            return point + step
        length = 1.0
        while True:
            trial = _likelihood(features, point + length * step)
            if trial[0] <= value - 0.25 * length * decrease or length < 1e-10:
                break
            length /= 2
        point = point + length * step
        value, slope, curvature = trial
    return point


def _likelihood(
    features: list[tuple[np.ndarray, np.ndarray]], point: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return value, gradient and Hessian of the loss within components."""
    value, slope, curvature = 0.0, np.zeros(len(point)), np.zeros((len(point),) * 2)
    for matrix, is_label in features:
        logits = matrix @ point
        top = logits.max()
        weight = np.exp(logits - top)
        total = weight.sum()
        share = weight / total
        mean = share @ matrix
        value += top + float(np.log(total)) - float(np.log(is_label.sum()))
        slope += mean
        curvature += matrix.T @ (share[:, None] * matrix) - np.outer(mean, mean)
    count = max(len(features), 1)
    return value / count, slope / count, curvature / count
