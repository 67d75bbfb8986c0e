r"""Find rows of a problem that contradict each other.

A certificate of infeasibility (Farkas) may have a multiplier on every row. A vertex of the polyhedron of all such
multipliers, :math:`\{\lambda \ge 0: A^\top\lambda = 0, \sum\lambda = 1\}`, has at most rank(A) + 1 nonzero multipliers
(Caratheodory). If any of its constraints is removed, the others can be satisfied together.

Constraints with no multiplier in any certificate are the separable part (Ji and Telgarsky, arXiv 1803.07300). Some W
has positive margins in all of them and margin zero in the others. Gradient descent grows in the direction of the
largest such margin, and the other constraints leave a finite part.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import Reduced, reduce
from attsvm.proofs.certificate import FarkasCertificate

# Largest number of contradictions that are searched for.
CONTRADICTIONS = 3
# Number of entries of the constraint matrix above which no linear program is solved.
LARGEST_PROGRAM = 500_000
# Share of the largest multiplier up to which a multiplier of a vertex is rounding.
_CUT = 1e-9
# Margin, cut at one, from which a constraint counts as satisfied; the exact values are zero and one.
_POSSIBLE = 0.5


def contradictions(certificate: FarkasCertificate) -> list[np.ndarray]:
    """Find small sets of rows (queries) that contradict each other, one after another and without common rows.

    At most :data:`CONTRADICTIONS` sets, each in increasing order, the smallest first. If the problem is large, or no
    vertex passes the check of certificates, the only set is the rows of the certificate.
    """
    problem = certificate.problem
    reduced = reduce(problem)
    available = reduced.rejected | reduced.tied
    found: list[np.ndarray] = []
    if np.count_nonzero(available) * np.prod(reduced.shape) <= LARGEST_PROGRAM:
        while len(found) < CONTRADICTIONS and (reduced.rejected & available).any():
            dual = _vertex(reduced, available)
            if dual is None or not FarkasCertificate(problem, reduced.lift_dual(dual)).verify():
                break
            rows = dual.any(axis=1)
            found.append(reduced.rows[rows])
            available[rows] = False
    return sorted(found, key=len) or [np.flatnonzero(certificate.dual.any(axis=1))]


def separable_part(problem: SelectionProblem) -> SelectionProblem | None:
    """Tie the tokens of all constraints that are part of a contradiction.

    None if every constraint is part of a contradiction, or the problem is large.
    """
    reduced = reduce(problem)
    rows, columns = np.nonzero(reduced.rejected | reduced.tied)
    if len(rows) * np.prod(reduced.shape) > LARGEST_PROGRAM:
        return None
    terms, rejected = _unit_rows(reduced, rows, columns)[0], reduced.rejected[rows, columns]
    count, size = int(rejected.sum()), terms.shape[1]
    # Maximise the sum of margins, each cut at one: W may have any length, so every possible margin is one.
    outcome = linprog(
        np.r_[np.zeros(size), -np.ones(count)],
        A_ub=sparse.hstack([-terms[rejected], sparse.eye_array(count)]),
        b_ub=np.zeros(count),
        A_eq=sparse.hstack([terms[~rejected], sparse.csr_array((len(rows) - count, count))]),
        b_eq=np.zeros(len(rows) - count),
        bounds=[(None, None)] * size + [(0.0, 1.0)] * count,
    )
    if outcome.x is None or outcome.x[size:].max(initial=0.0) < _POSSIBLE:
        return None
    contradicted = outcome.x[size:] < _POSSIBLE
    rows, columns = rows[rejected][contradicted], columns[rejected][contradicted]
    selected = problem.selected.copy()
    selected[reduced.rows[rows], reduced.columns[rows, columns]] = True
    return SelectionProblem(problem.tokens, problem.queries, selected, mask=problem.mask, sequence=problem.sequence)


def _unit_rows(reduced: Reduced, rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of A (J, p r) divided by their lengths, and the lengths (J,), with one in place of zero."""
    lengths = np.where(reduced.lengths[rows, columns] > 0, reduced.lengths[rows, columns], 1.0)
    return reduced.constraint_rows(rows, columns) / lengths[:, None], lengths


def _vertex(reduced: Reduced, available: np.ndarray) -> np.ndarray | None:
    """Return multipliers (n, T) of the available constraints at a vertex; None if they do not contradict each other."""
    rows, columns = np.nonzero(available)
    (terms, lengths), rejected = _unit_rows(reduced, rows, columns), reduced.rejected[rows, columns]
    outcome = linprog(
        np.zeros(len(rows)),
        A_eq=np.vstack([terms.T, rejected.astype(float)]),
        b_eq=np.r_[np.zeros(terms.shape[1]), 1.0],
        bounds=[(0.0 if inequality else None, None) for inequality in rejected],
        method="highs-ds",
    )
    if outcome.x is None:
        return None
    dual = np.zeros(available.shape)
    dual[rows, columns] = np.where(np.abs(outcome.x) > _CUT * np.abs(outcome.x).max(), outcome.x, 0.0) / lengths
    return dual / dual[reduced.rejected].sum()
