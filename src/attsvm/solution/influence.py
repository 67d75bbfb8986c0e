r"""How the largest margin depends on every token and query.

The largest margin :math:`\gamma = \max_{\|W\|\le1}\min_{it} A(W)_{it} = 1/\|W^\star\|` is the value of a game between W
and the multipliers :math:`\lambda` (nonnegative on rejected tokens, where they sum to one),

.. math:: \gamma = \max_{\|W\|\le1}\;\min_\lambda\; \sum_{it} \lambda_{it}\,(x_{i\alpha_i}-x_{it})^\top W z_i ,

and its derivative follows from the derivative of this payoff. The derivative in any direction exists and equals
:math:`\max_W \min_\lambda` of the payoff's derivative over the two solution sets (Golshtein, *Theory of Convex
Programming*, 1972; the envelope theorem of Milgrom and Segal, Econometrica 70, 2002, theorem 4). If both solutions are
unique, the gradient is

.. math:: \frac{\partial\gamma}{\partial x_{it}} = -\lambda_{it} W z_i, \qquad
          \frac{\partial\gamma}{\partial x_{i\alpha_i}} = \sum_t \lambda_{it} W z_i, \qquad
          \frac{\partial\gamma}{\partial z_i} = W^\top \sum_t \lambda_{it} (x_{i\alpha_i}-x_{it}) .

**No derivative.** A second :math:`\lambda` always changes the gradient, since :math:`W z_i \ne 0` for support tokens.
For example, two copies of a support token share its multiplier in any proportion: moving one copy does not raise the
margin, moving both does. A second W changes the gradient only if it has another :math:`W z_i` or
:math:`W^\top\sum_t\lambda_{it} \delta_{it}`. Let J be the constraints of margin one, S the constraints with a
multiplier (ties always), and take the faces of :mod:`attsvm.core.norms.faces`:

* :math:`\lambda` is unique if the constraints J are independent of each other and of the directions in which
  :math:`A^\top\lambda` may move. In a smooth norm the strict Mangasarian-Fromovitz condition suffices: the constraints
  S are independent, and no combination of J that is nonnegative on J without S vanishes (Kyparisis, Math. Program. 32,
  1985).
* W can only move in the directions of its face that do not change the margins of S.

Both are decided for the certified solution. An entry counts as zero within the square root of the gap: if the product
of two numbers is at most the gap, one of them is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from attsvm.core.error_free import EPS
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import constraint_rows
from attsvm.platform.extras import frame
from attsvm.platform.summary import MARKED, Summarised, Summary, bars
from attsvm.solution.numbers import SolutionNumbers

# Length of a combination, with coefficients of length one, below which rows of length one count as dependent:
# multipliers of dependent rows are known to less than eight digits.
INDEPENDENT = 1e-8
# Square of a singular value above which it exceeds the rounding of a Gram matrix of thousands of rows of length one.
INDEPENDENT_SQUARE = 1e-10
# Smallest gap that is relied on; a smaller gap is below the rounding of the numbers behind it.
SMALLEST_GAP = 400 * EPS
# Number of entries of the largest array in the tests of uniqueness.
LARGEST_ARRAY = 1 << 26
SHOWN_TOKENS = 12


class InfluenceRow(NamedTuple):
    """One token or query.

    Attributes
    ----------
    kind : str
        "token" or "query".
    sequence : int
        Index of the sequence of tokens, or of the query.
    position : int or None
        Index in the sequence; None for a query.
    influence : float
        Length of the gradient: the largest change of the margin per unit that the vector moves.
    multiplier : float
        For a token, the sum of its multipliers as a rejected (or tied) token; zero if it is selected or no support. For
        a query, the sum of its multipliers. All multipliers sum to one.
    """

    kind: str
    sequence: int
    position: int | None
    influence: float
    multiplier: float


@dataclass(frozen=True, eq=False, repr=False)
class Influence(Summarised):
    """Gradient of the largest margin in tokens and queries; a table of rows when printed or iterated.

    Attributes
    ----------
    margin : float
        The largest margin 1/||W||.
    tokens : array, shape (b, T, d)
    queries : array, shape (n, dz)
    multipliers : array, shape (n, T)
        They sum to one over rejected tokens; on tied tokens they have any sign.
    rows : tuple of InfluenceRow
        The most influential first.
    """

    norm: str
    margin: float
    tokens: Any
    queries: Any
    multipliers: Any
    rows: tuple[InfluenceRow, ...] = field(repr=False)

    def __iter__(self) -> Iterator[InfluenceRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        lines = [
            f"Influence: largest margin {self.margin:.6g} in the {self.norm} norm",
            "  kind   place     influence  multiplier",
        ]
        for row in self.rows[:SHOWN_TOKENS]:
            place = f"{row.sequence}" if row.position is None else f"{row.sequence}, {row.position}"
            lines.append(f"  {row.kind:<6} {place:<9} {row.influence:>9.4g}  {row.multiplier:>10.4g}")
        if len(self.rows) > SHOWN_TOKENS:
            lines.append(f"  ... {len(self.rows) - SHOWN_TOKENS} more")
        return "\n".join(lines)

    def to_frame(self) -> Any:
        """List tokens and queries, the most influential first.

        Returns
        -------
        pandas.DataFrame
            With columns kind, sequence, position (None for a query), influence and multiplier.
        """
        columns = {name: [getattr(row, name) for row in self.rows] for name in InfluenceRow._fields}
        return frame("Influence.to_frame", columns)

    def _summary(self) -> Summary:
        first = self.rows[:SHOWN_TOKENS]
        names = [f"{row.kind} {row.sequence}" + ("" if row.position is None else f", {row.position}") for row in first]
        largest = first[0].influence or 1.0
        facts = [("largest margin", f"{self.margin:.6g} in the {self.norm} norm"), ("most influential", names[0])]
        picture = bars(names, [row.influence / largest for row in first], 0)
        return Summary("Influence", "", MARKED, facts, picture, "influence on the margin, the largest as one")


def influence(solution: SolutionNumbers) -> Influence:
    """Differentiate the largest margin; see :meth:`attsvm.Solution.influence`."""
    tokens, queries = margin_gradient(solution)
    problem, dual = solution.problem, _unit_multipliers(solution)
    weight = np.zeros(problem.tokens.shape[:2])
    np.add.at(weight, problem.sequence, dual)
    rows = [
        InfluenceRow("token", i, t, float(size), float(weight[i, t]))
        for (i, t), size in np.ndenumerate(np.linalg.norm(tokens, axis=2))
    ]
    lengths, sums = np.linalg.norm(queries, axis=1), dual.sum(axis=1)
    rows += [InfluenceRow("query", i, None, float(lengths[i]), float(sums[i])) for i in range(len(queries))]
    rows.sort(key=lambda row: -row.influence)
    restore = problem.kind.restore
    return Influence(
        norm=solution.norm.name,
        margin=1.0 / solution.objective,
        tokens=restore(tokens),
        queries=restore(queries),
        multipliers=restore(dual),
        rows=tuple(rows),
    )


def margin_gradient(
    solution: SolutionNumbers, *, for_tokens: bool = True, for_queries: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Differentiate the largest margin in tokens (b, T, d) and queries (n, dz), float64.

    Parameters
    ----------
    solution : Solution
        An optimum with a hard margin and no prior, in any norm that has derivatives
        (:func:`attsvm.functional.max_margin`).
    for_tokens, for_queries : bool
        Which derivatives are requested; the others need not exist.

    Raises
    ------
    ValueError
        If the margin has no derivative there, or the solution has a soft margin, a prior or no rejected token.
    """
    problem = solution.problem
    if not solution.regularisation.plain:
        raise ValueError("solution has a soft margin or a prior; a hard margin without a prior was expected.")
    if not problem.has_rejected:
        raise ValueError("problem has no rejected token, so its margin is infinite; at least one was expected.")
    W, dual = solution.certified.W / solution.objective, _unit_multipliers(solution)
    _refuse_several(solution, W, dual, for_tokens, for_queries)
    tokens = np.zeros(problem.tokens.shape)
    queries = np.empty(problem.queries.shape)
    images = problem.queries @ W.T  # (n, d)
    for rows, delta in problem.differences():
        part = dual[rows, :, None] * images[rows, None, :]  # (rows, T, d)
        np.subtract.at(tokens, problem.sequence[rows], part)
        np.add.at(tokens, (problem.sequence[rows], problem.reference[rows]), part.sum(axis=1))
        queries[rows] = np.matmul(dual[rows, None, :], delta)[:, 0] @ W
    return tokens, queries


def _unit_multipliers(solution: SolutionNumbers) -> np.ndarray:
    """Multipliers (n, T) that sum to one over rejected tokens."""
    dual = solution.certified.dual
    return dual / dual[solution.problem.rejected].sum()


def _refuse_several(
    solution: SolutionNumbers, W: np.ndarray, dual: np.ndarray, for_tokens: bool, for_queries: bool
) -> None:
    """Apply the tests of the module's derivation to W (d, dz) of norm one and multipliers (n, T).

    Raises ValueError if multipliers or W are not unique, or the problem is too large to decide that.
    """
    problem, norm = solution.problem, solution.norm
    tolerance = float(np.sqrt(max(solution.gap, SMALLEST_GAP)))
    active = problem.tied | (problem.rejected & (solution.certified.margins - 1.0 <= tolerance))
    rows, columns = np.nonzero(active)
    supports = (problem.tied | (dual > tolerance * dual.max()))[rows, columns]
    if len(rows) * W.size > LARGEST_ARRAY or (not norm.smooth and W.size**2 > LARGEST_ARRAY):
        raise ValueError(
            f"problem has {len(rows)} active constraints on {W.size} entries of W; at most {LARGEST_ARRAY:,} entries "
            f"of the products were expected, to tell whether its multipliers are unique."
        )
    constraints = _constraints(problem, rows, columns)
    adjoint = problem.adjoint(dual)
    shifts = norm.face(W, tolerance, dual=True)
    free = constraints - (constraints @ shifts.T) @ shifts
    if not _is_unique(free, supports, norm.smooth):
        raise ValueError(
            f"the multipliers of the {len(rows)} constraints of margin one are not unique, so the largest margin has "
            "no derivative here; tokens in general position (no copies of a support token) were expected."
        )
    moves = norm.face(adjoint, tolerance, point=W)
    _, sigma, basis = np.linalg.svd(constraints[supports] @ moves.T, full_matrices=True)
    moves = basis[int(np.count_nonzero(sigma > INDEPENDENT)) :] @ moves
    moves = moves.reshape(-1, *W.shape)
    queries = np.unique(rows[supports])
    Z = problem.queries[queries]
    images = np.matmul(moves, Z.T) / np.linalg.norm(Z, axis=1)
    query_sums = _query_sums(problem, dual)[queries]
    lengths = np.linalg.norm(query_sums, axis=1)
    query_sums = np.matmul(query_sums, moves) / np.where(lengths > 0, lengths, 1.0)[:, None]
    for indices, name, part in ((for_tokens, "token", images), (for_queries, "query", query_sums)):
        if indices and np.abs(part).max(initial=0.0) > tolerance:
            raise ValueError(
                f"the W of the largest margin in the {norm.name} norm is not unique where it meets the data, so the "
                f"margin has no derivative in every {name}; a strictly convex norm or other data were expected."
            )


def _constraints(problem: SelectionProblem, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Active constraints delta z^T as rows of length one, (k, d dz); a zero constraint stays zero."""
    sequence = problem.sequence[rows]
    tokens = problem.tokens
    delta = np.asarray(tokens[sequence, problem.reference[rows]] - tokens[sequence, columns], dtype=np.float64)
    queries = problem.queries[rows]
    length = np.linalg.norm(delta, axis=1) * np.linalg.norm(queries, axis=1)
    scaled = delta / np.where(length > 0, length, 1.0)[:, None]
    return constraint_rows(scaled, queries)


def _is_unique(rows: np.ndarray, supports: np.ndarray, smooth: bool) -> bool:
    """Tell whether multipliers of rows (k, m), free on supports and nonnegative elsewhere, are unique."""
    if _independent(rows):
        return True
    if not smooth or supports.all() or not _independent(rows[supports]):
        return False
    # Project off the supports, then look for nonnegative weights of the other rows that sum to one and cancel.
    basis = np.linalg.svd(rows[supports], full_matrices=False)[2]
    rest = rows[~supports] - (rows[~supports] @ basis.T) @ basis
    system = np.vstack([rest.T, np.ones(len(rest))])
    return nnls(system, np.append(np.zeros(rows.shape[1]), 1.0))[1] > INDEPENDENT


def _independent(rows: np.ndarray) -> bool:
    """Whether no combination of length one of the rows (k, m) is shorter than :data:`INDEPENDENT`."""
    count = len(rows)
    if count > rows.shape[1]:
        return False
    try:
        # If this succeeds, the smallest singular value is at least 1e-6; a decomposition takes ten times longer.
        np.linalg.cholesky(rows @ rows.T - INDEPENDENT_SQUARE * np.eye(count))
        return True
    except np.linalg.LinAlgError:
        return float(np.linalg.svd(rows, compute_uv=False)[-1]) > INDEPENDENT


def _query_sums(problem: SelectionProblem, dual: np.ndarray) -> np.ndarray:
    """Sum of dual_it delta_it over the tokens of each query, (n, d)."""
    out = np.empty((len(dual), problem.shape[2]))
    for rows, delta in problem.differences():
        out[rows] = np.matmul(dual[rows, None, :], delta)[:, 0]
    return out
