r"""What a solver's answer is worth, computed from the answer itself.

For a hard margin, any W whose smallest margin is positive can be scaled until that margin is one, and any multipliers
:math:`\lambda \ge 0` bound every feasible norm from below by :math:`1^\top\lambda / \|A^\top\lambda\|_*` (the dual
norm). The certified relative gap is therefore scale-free,

.. math:: \mathrm{gap} = \frac{\|W\|}{\min A(W)} \cdot \frac{\|A^\top\lambda\|_*}{1^\top\lambda} - 1 ,

and needs nothing from the solver but W and :math:`\lambda`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.core.norms import FROBENIUS, Norm
from attsvm.core.problem import SelectionProblem
from attsvm.proofs.certificate import EPS

# Scores of tied tokens may differ by this much of the margin, one, before W counts as infeasible.
TIE_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Certified:
    """W and multipliers scaled to their conventions, with what they prove (float64, original coordinates)."""

    W: np.ndarray
    dual: np.ndarray
    margins: np.ndarray
    objective: float
    lower_bound: float
    tie_residual: float

    @property
    def gap(self) -> float:
        """Relative gap; infinite when W is infeasible or nothing bounds its norm."""
        if self.objective == 0.0:
            return 0.0
        if not np.isfinite(self.objective) or self.lower_bound <= 0 or self.tie_residual > TIE_TOLERANCE:
            return np.inf
        return self.objective / self.lower_bound - 1.0


def certify(problem: SelectionProblem, norm: Norm, W: np.ndarray, dual: np.ndarray) -> Certified:
    """Scale W to smallest margin one and the multipliers to the dual's convention, and evaluate both.

    The Frobenius dual is scaled so that W = A^T dual at the optimum (its sum is then ||W||^2); every other norm's so
    that A^T dual has dual norm one (its sum is then ||W||).
    """
    rejected, tied = problem.rejected, problem.tied
    if not rejected.any():
        # Nothing asks for a margin: the zero matrix is the answer, and no multiplier is needed to show it.
        zero = np.zeros_like(W)
        return Certified(zero, np.zeros_like(dual), np.zeros(dual.shape), 0.0, 0.0, 0.0)
    dual = np.where(tied, dual, np.where(rejected, np.maximum(dual, 0.0), 0.0))
    margins, adjoint = problem.evaluate(W, dual)
    smallest = float(margins.min(where=rejected, initial=np.inf))
    feasible = smallest > 0
    if feasible:
        W, margins = W / smallest, margins / smallest
    pulled = norm.dual(adjoint)
    total = float(dual.sum(where=rejected))
    bound = total / pulled if pulled > 0 and total > 0 else 0.0
    if bound > 0:
        # The Frobenius multipliers sum to ||W||^2, which may leave the range of doubles where ||W|| itself does not.
        with np.errstate(over="ignore"):
            dual = dual / pulled * (bound if norm is FROBENIUS else 1.0)
    return Certified(
        W=W,
        dual=dual,
        margins=margins,
        objective=norm.value(W) if feasible else np.inf,
        lower_bound=bound,
        tie_residual=residual_of_ties(problem, W, margins),
    )


def residual_of_ties(problem: SelectionProblem, W: np.ndarray, margins: np.ndarray) -> float:
    """Largest margin of a tied token, beyond what evaluating it in float64 can leave."""
    rows, columns = np.nonzero(problem.tied)
    if not len(rows):
        return 0.0
    sequence = problem.sequence[rows]
    delta = problem.tokens[sequence, problem.reference[rows]] - problem.tokens[sequence, columns]
    lengths = np.linalg.norm(delta, axis=1) * np.linalg.norm(problem.queries[rows], axis=1)
    rounding = 16 * EPS * float(np.linalg.norm(W)) * lengths
    return float(np.maximum(np.abs(margins[rows, columns]) - rounding, 0.0).max())
