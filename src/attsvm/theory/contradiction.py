r"""Rows of a problem that contradict each other.

A certificate of infeasibility (Farkas) may have a multiplier on every row. A vertex of the polyhedron of all such
multipliers, :math:`\{\lambda \ge 0: A^\top\lambda = 0, \sum\lambda = 1\}`, has at most one more than the rank of A
(Caratheodory). None of its constraints can be left out: the others can be satisfied together.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

from attsvm.core.reduction import Reduced, reduce
from attsvm.proofs.certificate import FarkasCertificate

# Number of contradictions that are looked for.
CONTRADICTIONS = 3
# Entries of the constraint matrix above which the rows of the certificate are given.
LARGEST_PROGRAM = 500_000
# Part of the largest multiplier below which a multiplier of a vertex is rounding.
_CUT = 1e-9


def contradictions(certificate: FarkasCertificate) -> list[np.ndarray]:
    """Find small sets of rows (queries) that contradict each other, one after another and without common rows.

    Parameters
    ----------
    certificate : FarkasCertificate

    Returns
    -------
    list of int array
        Each increasing, fewest rows first, at most :data:`CONTRADICTIONS`. It holds the rows of the certificate alone
        if the problem is large, or if no vertex passes the check of certificates.
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


def _vertex(reduced: Reduced, available: np.ndarray) -> np.ndarray | None:
    """Multipliers (n, T) of the available constraints at a vertex; None if those do not contradict each other."""
    rows, columns = np.nonzero(available)
    terms, rejected = reduced.constraint_rows(rows, columns), reduced.rejected[rows, columns]
    lengths = np.where(reduced.lengths[rows, columns] > 0, reduced.lengths[rows, columns], 1.0)
    outcome = linprog(
        np.zeros(len(rows)),
        A_eq=np.vstack([(terms / lengths[:, None]).T, rejected.astype(float)]),
        b_eq=np.r_[np.zeros(terms.shape[1]), 1.0],
        bounds=[(0.0 if inequality else None, None) for inequality in rejected],
        method="highs-ds",
    )
    if outcome.x is None:
        return None
    dual = np.zeros(available.shape)
    dual[rows, columns] = np.where(np.abs(outcome.x) > _CUT * np.abs(outcome.x).max(), outcome.x, 0.0) / lengths
    return dual / dual[reduced.rejected].sum()
