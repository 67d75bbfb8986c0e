r"""Decide whether selections can be realised at all.

Theorems 1 and 8 of arXiv 2308.16898: if :math:`d \ge \max(T-1, n)`, then for almost all data *every* selection is
realisable. The reason is short. If the queries are linearly independent, the vectors :math:`W z_i` can be prescribed
one by one. A selection is then realisable exactly when each selected token is an exposed point of the convex hull of
its sequence. If the tokens of each sequence are affinely independent, every token is an exposed point. Both hold for
almost all data when :math:`d \ge n` and :math:`d \ge T-1`. The two independences are checked on the data themselves, in
addition to the dimension condition. The condition is sufficient only: docs/theory.md measures how often the optimal
tokens of random data are realisable in fewer dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.error_free import EPS
from attsvm.core.status import Status
from attsvm.platform.summary import Listed
from attsvm.solution.solution import Solution
from attsvm.solvers.solving import solve
from attsvm.theory.landscape import Landscape
from attsvm.theory.tokens import Trial


@dataclass(frozen=True, repr=False)
class Separability(Listed):
    """Results on whether selections are realisable.

    Attributes
    ----------
    dimension : bool
        Whether d >= max(T - 1, n), with T the longest visible sequence.
    independent_queries, independent_tokens : bool
        Whether the queries are linearly independent, and the visible tokens of every sequence affinely independent.
        Together they prove that every selection is realisable.
    optimal : Status
        Status of the SVM of the optimal tokens.
    every : bool or None
        Whether every selection is realisable: proved by independence or by enumeration, disproved by one infeasible
        selection, None if unknown.
    how : str
        How `every` is known.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> theory.check_separability(trial).independent_queries
    True
    """

    dimension: bool
    independent_queries: bool
    independent_tokens: bool
    optimal: Status
    every: bool | None
    how: str


def separates(trial: Trial, selected: Any) -> Solution:
    """Decide one selection exactly: by the solution of its SVM, or by a verified certificate that there is none.

    Parameters
    ----------
    trial : Trial
    selected : array of int, shape (n,)

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> theory.separates(trial, [0, 0, 0]).status.name
    'OPTIMAL'
    """
    return solve(trial.problem(selected))


def check_separability(trial: Trial, landscape: Landscape | None = None) -> Separability:
    """Check the sufficient condition, the optimal selection, and the selections of a landscape.

    Parameters
    ----------
    trial : Trial
    landscape : Landscape, optional
        The enumerated or searched selections; if None, only independence can decide `every`.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> separability = theory.check_separability(trial)
    >>> separability.dimension, separability.every, separability.optimal.name
    (True, True, 'OPTIMAL')
    """
    n, _, d = trial.tokens.shape
    longest = int(trial.mask.sum(axis=1).max())
    queries = _rank(trial.queries) == n
    tokens = all(_affinely_independent(x[visible]) for x, visible in zip(trial.tokens, trial.mask, strict=True))
    every, how = None, "not gone through"
    if queries and tokens:
        every, how = True, "queries linearly independent and tokens affinely independent"
    elif landscape is not None:
        how = landscape.how
        if landscape.infeasible.any():
            every, how = False, f"{int(landscape.infeasible.sum())} proved infeasible, {how}"
        elif landscape.exhaustive and not landscape.undecided:
            every = True
    return Separability(d >= max(longest - 1, n), queries, tokens, trial.optimal_solution.status, every, how)


def _rank(rows: np.ndarray) -> int:
    lengths = np.linalg.norm(rows, axis=1)
    if (lengths == 0).any():
        return 0
    sigma = np.linalg.svd(rows / lengths[:, None], compute_uv=False)
    return int((sigma > 8 * max(rows.shape) * EPS * sigma[0]).sum())


def _affinely_independent(points: np.ndarray) -> bool:
    differences = points[1:] - points[0]
    return len(differences) == 0 or _rank(differences) == len(differences)
