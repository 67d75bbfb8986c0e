r"""The answer with a soft margin, for selections that no W realises, or with a prior.

.. math:: \min_W \; f(W - W_0) + C\sum_{it} \ell\bigl(1 - A(W)_{it}\bigr), \qquad \ell(u) = \max(0, u) \text{ or }
   \max(0, u)^2,

over rejected tokens. f is half the square of a Euclidean norm (Frobenius, or Mahalanobis over it), so that C means what
it means in scikit-learn; for any other norm f is the norm itself. Equal scores of several selected tokens stay exact.
If C is None, the margin is hard and :math:`\|W - W_0\|` is minimised. The certified gap compares the objective at W
with the dual bound of :mod:`attsvm.proofs.objective` at the multipliers, both recomputed in the original coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attsvm.core.error_free import EPS
from attsvm.core.norms import FROBENIUS
from attsvm.platform.summary import counted, one_line
from attsvm.solution.solution import SOLUTION_CLASSES, Solution


@dataclass(frozen=True, eq=False, repr=False)
class RegularisedSolution(Solution):
    """The answer to a problem with a soft margin or a prior.

    Examples
    --------
    >>> from attsvm import SelectionProblem, solve
    >>> problem = SelectionProblem([[[0.0], [1.0], [-1.0]]], [[1.0]], [0])
    >>> solution = solve(problem, C=1.0)
    >>> solution.status.name, solution.slack.round(6).tolist()
    ('OPTIMAL', [[0.0, 1.0, 1.0]])
    >>> bool(solution.verify())
    True
    """

    @property
    def primal(self) -> float:
        """The objective at W: the norm of W - prior, or half its square, plus C times the losses (see the module)."""
        return self.certified.value

    @property
    def dual_value(self) -> float:
        """The proven lower bound on the objective."""
        return self.certified.lower_bound

    @property
    def slack(self) -> Any:
        """Shortfall of each rejected token's margin from one, (n, T), zero elsewhere."""
        short = np.where(self.problem.rejected, np.maximum(1.0 - self.certified.margins, 0.0), 0.0)
        return self.problem.kind.restore(short)

    @cached_property
    def margin_tolerance(self) -> np.ndarray:
        r"""Largest distance of each margin from the exact solution's, (n, T); proven for Frobenius, else an estimate.

        By strong convexity :math:`\|W - W^\star\|^2/2` is at most the difference of primal and dual value if half the
        square is minimised, and at most :math:`gap \|W - W_0\|^2` if the norm is minimised.
        """
        if not np.isfinite(self.gap):
            return np.zeros(self.problem.mask.shape)
        return self.problem.lengths * self._distance

    @property
    def _distance(self) -> float:
        gap = max(self.gap, 4 * EPS)
        if self.regularisation.C is not None and self.norm is FROBENIUS:
            return float(np.sqrt(2 * gap * self.primal))
        return float(np.sqrt(2 * gap)) * self.objective

    def __repr__(self) -> str:
        value, work = f"{self.norm.name} norm {self.objective:.6g}", counted(self.iterations, "iteration")
        parts = (self.status.name, value, f"primal {self.primal:.6g}", f"gap {self.gap:.1e}", self.method, work)
        return one_line("RegularisedSolution", (*parts, f"{self.seconds:.3g} s"))


SOLUTION_CLASSES[False] = RegularisedSolution
