r"""The finite part of a trained W: the smallest matrix with prescribed score differences.

If a query selects several tokens, their logits keep the differences :math:`\log(s_{it}/s_{i\tau})`. The finite part of
W is the smallest matrix with

.. math:: (x_{i\alpha_i} - x_{it})^\top W z_i = r_{it} \quad\text{for every tied token t of query i}

(arXiv 2308.16898, Section 6, W^fin). In the Frobenius norm, W is the minimum-norm solution of linear equations, found
by least squares; it lies in the span of the tied :math:`\delta_{it}z_i^\top`.

In the nuclear norm, W is the solution of a hard margin without rejected tokens (:mod:`attsvm.solvers.tie_equations`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import reduce
from attsvm.core.types import FactorNorm
from attsvm.solvers.tie_equations import smallest_nuclear

FINITE_NORMS = ("frobenius", "nuclear")


@dataclass(frozen=True, eq=False)
class FinitePart:
    """The smallest matrix with prescribed score differences.

    Attributes
    ----------
    W : ndarray, shape (d, dz)
        For inconsistent equations, the smallest least-squares solution.
    residual : float
        Largest deviation from a prescribed difference.
    gap : float
        Certified relative gap of the norm; 0 for the Frobenius norm, whose solve is direct.
    """

    W: np.ndarray
    residual: float
    gap: float


def finite_part(problem: SelectionProblem, differences: np.ndarray, norm: FactorNorm = "frobenius") -> FinitePart:
    """Find the smallest matrix that gives tied tokens prescribed score differences from the reference token.

    Parameters
    ----------
    problem : SelectionProblem
        Each tied token gives an equation; rejected tokens are ignored.
    differences : ndarray, shape (n, T)
        Score of the reference token minus the score of the tied token.
    norm : {"frobenius", "nuclear"}

    Raises
    ------
    ValueError
        If `norm` has another value.
    """
    if norm not in FINITE_NORMS:
        raise ValueError(f"norm is {norm!r}; 'frobenius' or 'nuclear' was expected for a finite part.")
    _, _, d, dz = problem.shape
    if not problem.tied.any():
        return FinitePart(np.zeros((d, dz)), 0.0, 0.0)
    ties = SelectionProblem(
        problem.tokens, problem.queries, problem.selected, mask=problem.selected, sequence=problem.sequence
    )
    reduced = reduce(ties)
    # All equations are needed: if the left side of one follows from others, its right side may contradict them.
    place = reduced.rows[:, None], reduced.columns
    where = np.nonzero(ties.tied[place])
    target = differences[place][where]  # (m,)
    system = reduced.constraint_rows(*where)
    start = np.linalg.lstsq(system, target, rcond=None)[0]
    residual = float(np.abs(system @ start - target).max())
    if norm == "frobenius" or not start.any():
        return FinitePart(reduced.lift(start.reshape(reduced.shape)), residual, 0.0)
    # Inconsistent equations are met in the least-squares sense.
    W, gap = smallest_nuclear(reduced, start.reshape(reduced.shape))
    return FinitePart(reduced.lift(W), float(np.abs(system @ W.ravel() - target).max()), gap)


def growing_part(problem: SelectionProblem, W: np.ndarray) -> np.ndarray:
    """Return W without its finite part: its projection onto the tie constraints, (d, dz).

    Parameters
    ----------
    W : ndarray, shape (d, dz)
    """
    return W - finite_part(problem, problem.apply(W)).W
