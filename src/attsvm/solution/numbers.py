"""What a solver returned for a problem, and the numbers that follow from W and the multipliers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attsvm.core.error_free import EPS
from attsvm.core.norms import Norm, entrywise, frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.core.rounding import row_lengths
from attsvm.core.status import Status
from attsvm.core.types import Array
from attsvm.platform.summary import Summarised
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import Certified
from attsvm.proofs.objective import HARD_MARGIN, Regularisation


@dataclass(frozen=True, eq=False, repr=False)
class SolutionNumbers(Summarised):
    """The numbers of an :class:`attsvm.Solution`, which adds its words, proof and files."""

    problem: SelectionProblem
    norm: Norm
    status: Status
    certified: Certified
    iterations: int
    seconds: float
    method: str
    certificate: FarkasCertificate | None = None
    tol: float = 1e-9
    note: str = ""
    regularisation: Regularisation = HARD_MARGIN

    @property
    def W(self) -> Array:
        """The attention matrix, (d, dz), with smallest margin one unless the margin is soft; NaN if none was found."""
        matrix = self.certified.W
        return self.problem.kind.restore(matrix if np.isfinite(self.objective) else np.full_like(matrix, np.nan))

    @property
    def dual(self) -> Array:
        """Multipliers, (n, T). For the Frobenius norm W - prior is A^T dual; otherwise A^T dual has dual norm one."""
        return self.problem.kind.restore(self.certified.dual)

    @property
    def margins(self) -> Array:
        """Margin of the selected token over each token, (n, T); +inf where the mask hides the token."""
        return self.problem.kind.restore(np.where(self.problem.mask, self.certified.margins, np.inf))

    @property
    def objective(self) -> float:
        """The norm of W, or of W - prior if there is a prior; infinite if no feasible W was found."""
        return self.certified.objective

    @property
    def lower_bound(self) -> float:
        """The proven bound: every feasible W has at least this norm (infinite when there is none)."""
        return np.inf if self.status is Status.INFEASIBLE else self.certified.lower_bound

    @property
    def gap(self) -> float:
        """Certified relative gap between the norm of W and the bound, with every rounding counted against it."""
        return self.certified.gap

    @cached_property
    def margin_tolerance(self) -> np.ndarray:
        r"""Largest distance of each margin from the exact solution's, (n, T).

        W lies within the norm's ``distance_bound`` of the solution in some l_p. By Hoelder's inequality a margin moves
        by at most this distance times the dual lengths of :math:`x_{i\alpha}-x_{it}` and :math:`z_i`. Norms with
        several solutions (nuclear, spectral, l_1, largest entry) have no such bound; their value is an estimate.
        """
        if not np.isfinite(self.gap):
            return np.zeros(self.problem.mask.shape)
        # The gap itself is computed to 4 eps, so a smaller gap counts as 4 eps.
        distance, p = self.norm.distance_bound(max(self.gap, 4 * EPS))
        q = min(p / (p - 1.0), 8.0)  # a smaller exponent is a longer length, and its powers do not underflow
        return constraint_lengths(self.problem, q) * (distance * entrywise(self.certified.W, p))

    @property
    def support(self) -> Array:
        """SVM-neighbours: rejected tokens whose margin is one to within :attr:`margin_tolerance`, bool (n, T)."""
        close = self.certified.margins <= 1.0 + self.margin_tolerance
        mask = close & self.problem.rejected & bool(np.isfinite(self.objective))
        return self.problem.kind.restore(mask)

    @property
    def rank(self) -> int:
        """Number of singular values of W that the certified gap separates from zero (see :attr:`margin_tolerance`).

        If there is no optimum, it is the number of singular values of the best W above rounding.
        """
        if not np.isfinite(self.objective):
            return 0
        sigma = np.linalg.svd(self.certified.W, compute_uv=False)
        rounding = max(self.certified.W.shape) * EPS * float(sigma[0])
        reach = max(self._distance, 4 * EPS * float(sigma[0])) if self.status is Status.OPTIMAL else rounding
        return int(np.count_nonzero(sigma > reach))

    @property
    def _distance(self) -> float:
        """Bound on the Frobenius distance of W from the solution, from the gap."""
        return float(np.sqrt(2 * max(self.gap, 4 * EPS))) * frobenius(self.certified.W)


def constraint_lengths(problem: SelectionProblem, q: float = 2.0) -> np.ndarray:
    """Return the product of the l_q lengths of each token difference and its query, (n, T)."""
    lengths = np.empty(problem.mask.shape)
    for rows, delta in problem.differences():
        lengths[rows] = _lengths(delta, q)
    return lengths * _lengths(problem.queries, q)[:, None]


def _lengths(rows: np.ndarray, q: float) -> np.ndarray:
    """Return l_q lengths along the last axis, of numbers of any size."""
    if q == 2.0:
        return row_lengths(rows)
    top = float(np.abs(rows).max(initial=0.0)) or 1.0
    return top * np.linalg.norm(rows / top, ord=q, axis=-1)
