r"""The largest margin that embeddings of any dimension can have on given relevance labels.

Queries u_i and documents v_j are vectors of length at most one. The margin is the least score
:math:`u_i^\top(v_r - v_s)` of a relevant document r above an irrelevant one s. Any scores :math:`S = UV^\top` of such
embeddings have :math:`\|S\|_* \le \|U\|_F\|V\|_F \le \sqrt{Nm}` for N queries and m documents. Scores divided by their
margin are feasible for the attention SVM of one-hot queries and documents. Let :math:`\nu` be its smallest nuclear
norm. Then

.. math:: \text{margin} \le \sqrt{Nm}/\nu .

The bound is attained if all k-subsets of the documents are relevant sets: :math:`m/\sqrt{k(m-1)(m-k)}` (arXiv
2601.20844).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import eye_array

from attsvm.core.problem import SelectionProblem
from attsvm.platform.interop import to_numpy
from attsvm.platform.summary import Worded
from attsvm.solution.solution import Solution
from attsvm.solvers.solving import solve


@dataclass(frozen=True, eq=False, repr=False)
class RelevanceCeiling(Worded):
    """A bound on the margin that embeddings of length at most one can have, in any dimension.

    Attributes
    ----------
    bound : float
        No embeddings have a larger margin; rounded up.
    solution : Solution
        The smallest scores, documents by queries, in the nuclear norm. Its lower bound proves ``bound``.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import theory
    >>> ceiling = theory.relevance_ceiling(np.eye(4, dtype=bool))
    >>> round(ceiling.bound, 6)
    1.333333
    """

    bound: float
    solution: Solution

    @property
    def sentence(self) -> str:
        """State the bound on the margin."""
        return f"Embeddings of length one have a margin of at most {self.bound:.6g} on these labels, in any dimension."


def relevance_ceiling(labels: Any, *, tol: float = 1e-9, time_limit: float | None = None) -> RelevanceCeiling:
    """Bound the largest margin that unit embeddings of any dimension can have on relevance labels.

    The bound holds for every embedding model. A large bound proves neither that a dimension suffices nor that a model
    generalises to other queries.

    Parameters
    ----------
    labels : array_like of bool, shape (N, m)
        True where the document is relevant to the query. Queries with no relevant or no irrelevant document are
        ignored: they give no constraint.
    tol : float
        Relative gap of the nuclear norm. The bound exceeds the best bound from this norm by at most this part.
    time_limit : float, optional
        Seconds. The bound is proved even if the solve ends early.

    Returns
    -------
    RelevanceCeiling

    Raises
    ------
    ValueError
        If labels is no boolean matrix, or no query has a relevant and an irrelevant document.

    Examples
    --------
    >>> from itertools import combinations
    >>> import numpy as np
    >>> from attsvm import theory
    >>> pairs = np.array([[j in pair for j in range(5)] for pair in combinations(range(5), 2)])
    >>> abs(theory.relevance_ceiling(pairs).bound - 5 / (2 * 4 * 3) ** 0.5) < 1e-8
    True
    """
    relevant = to_numpy("labels", labels)
    if relevant.ndim != 2 or relevant.dtype != bool or 0 in relevant.shape:
        raise ValueError(f"labels has {relevant.dtype} of shape {relevant.shape}; booleans (N, m) were expected.")
    divided = relevant.any(axis=1) & ~relevant.all(axis=1)
    if not divided.any():
        raise ValueError("labels has no query with a relevant and an irrelevant document; one or more were expected.")
    relevant = relevant[divided]
    N, m = relevant.shape
    problem = SelectionProblem.from_preferences(np.eye(m), eye_array(N), relevant)
    solution = solve(problem, "nuclear", tol=tol, time_limit=time_limit)
    # A quotient of correctly rounded numbers, one unit of rounding each for the product, the root and the quotient.
    rounding = 1.0 + 4.0 * np.finfo(float).eps
    bound = math.sqrt(N * m) / solution.lower_bound * rounding if solution.lower_bound > 0 else math.inf
    return RelevanceCeiling(float(min(bound, 2.0)), solution)  # scores of vectors of length one differ by two at most
