"""Solutions over a range of C, each started from its neighbour's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attsvm.core.problem import SelectionProblem
from attsvm.core.types import AnyNorm, Shortfall
from attsvm.solution.regularised import RegularisedSolution
from attsvm.solvers.solving import solve


def soft_margin_path(
    problem: SelectionProblem,
    Cs: Iterable[float],
    *,
    norm: AnyNorm = "frobenius",
    loss: Shortfall = "hinge",
    prior: Any = None,
    tol: float = 1e-9,
) -> list[RegularisedSolution]:
    """Solve with a soft margin for every C, in the order given.

    Neighbouring values share most of their supports, so a sorted list takes little more time than its first value.

    Parameters
    ----------
    problem : SelectionProblem
    Cs : iterable of float
    norm, loss, prior, tol
        As for :func:`attsvm.solve`.

    Returns
    -------
    list of RegularisedSolution

    Raises
    ------
    ValueError
        For arguments out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import SelectionProblem, soft_margin_path
    >>> problem = SelectionProblem(np.array([[[1.0, 0.0], [0.0, 0.0]]]), [[1.0]], [0])
    >>> [round(float(s.objective), 6) for s in soft_margin_path(problem, [0.25, 1.0, 4.0])]
    [0.25, 1.0, 1.0]
    """
    path: list[RegularisedSolution] = []
    for C in Cs:
        before = path[-1] if path else None
        solution = solve(problem, norm, tol=tol, warm_start=before, C=C, loss=loss, prior=prior)
        assert isinstance(solution, RegularisedSolution)
        path.append(solution)
    return path
