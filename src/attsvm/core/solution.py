r"""What a solver's answer is worth, computed from the answer itself.

For a hard margin, any W whose smallest margin is positive can be scaled until that margin is one, and any multipliers
:math:`\lambda \ge 0` bound every feasible norm from below by :math:`1^\top\lambda / \|A^\top\lambda\|_*` (the dual
norm). The certified relative gap is therefore scale-free,

.. math:: \mathrm{gap} = \frac{\|W\|}{\min A(W)} \cdot \frac{\|A^\top\lambda\|_*}{1^\top\lambda} - 1 ,

and needs nothing from the solver but W and :math:`\lambda`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.core.certificate import EPS, FarkasCertificate
from attsvm.core.norms import FROBENIUS, Norm, distance_bound, entrywise
from attsvm.core.problem import SelectionProblem

if TYPE_CHECKING:
    from attsvm.proofs import Proof

# Scores of tied tokens may differ by this much of the margin, one, before W counts as infeasible.
TIE_TOLERANCE = 1e-9


class Status(Enum):
    """How a solve ended; each member's value is its sentence."""

    OPTIMAL = "W is optimal: its objective and the dual bound agree to the requested gap."
    INFEASIBLE = "No W satisfies the constraints; the certificate holds multipliers that prove it."
    UNDECIDED = (
        "The solver ended without a proof: W, if one was found, has a gap above tol, and no certificate says that none "
        "exists; lower_bound holds the norm every W must reach."
    )
    MAX_ITERATIONS = "The iteration limit was reached before the requested gap; W is the best found."
    TIME_LIMIT = "The time limit was reached before the requested gap; W is the best found."
    CANCELLED = "The callback stopped the run; W is the best found."

    @property
    def sentence(self) -> str:
        """What the status means, in words."""
        return self.value


class UnsolvedError(RuntimeError):
    """Raised by :meth:`Solution.raise_for_status`; carries the solution as ``.solution``."""

    def __init__(self, solution: Solution) -> None:
        super().__init__(solution.status.sentence)
        self.solution = solution


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


@dataclass(frozen=True, eq=False)
class Solution:
    """The answer to :func:`attsvm.solve`, with its proof.

    Everything but the status and the run's statistics is recomputed from W and the multipliers.

    Attributes
    ----------
    problem : SelectionProblem
    norm : Norm
    status : Status
    certificate : FarkasCertificate or None
        The proof when the problem is infeasible.
    iterations : int
    seconds : float
    method : str
        The method (or chain of methods) that gave the answer.
    """

    problem: SelectionProblem
    norm: Norm
    status: Status
    certified: Certified
    iterations: int
    seconds: float
    method: str
    certificate: FarkasCertificate | None = None

    @property
    def W(self) -> Any:
        """The attention matrix, (d, dz), smallest margin one; NaN when none was found."""
        found = self.certified.W
        return self.problem.kind.restore(found if np.isfinite(self.objective) else np.full_like(found, np.nan))

    @property
    def dual(self) -> Any:
        """Multipliers, (n, T): W = A^T dual for the Frobenius norm, dual norm of A^T dual one for the others."""
        return self.problem.kind.restore(self.certified.dual)

    @property
    def margins(self) -> Any:
        """Margin of the selected token over each token, (n, T); +inf where the mask hides the token."""
        return self.problem.kind.restore(np.where(self.problem.mask, self.certified.margins, np.inf))

    @property
    def objective(self) -> float:
        """The norm of W; infinite when no feasible W was found."""
        return self.certified.objective

    @property
    def lower_bound(self) -> float:
        """The proven bound: every feasible W has at least this norm (infinite when there is none)."""
        return np.inf if self.status is Status.INFEASIBLE else self.certified.lower_bound

    @property
    def gap(self) -> float:
        """Certified relative gap between the norm of W and the bound; rounding can make it negative by a few eps."""
        return self.certified.gap

    @cached_property
    def margin_tolerance(self) -> np.ndarray:
        r"""How far each margin may be from that of the exact solution, (n, T).

        W lies within :func:`attsvm.core.norms.distance_bound` of the solution in some l_p, and by Hoelder's inequality
        a margin moves by at most that times the dual length of :math:`x_{i\alpha}-x_{it}` and of :math:`z_i`. Norms
        with several solutions (nuclear, spectral, l_1, largest entry) have no such bound; theirs is an estimate.
        """
        if not np.isfinite(self.gap):
            return np.zeros(self.problem.mask.shape)
        # A gap below rounding says no more than rounding does: 4 eps is what the gap itself is computed to.
        distance, p = distance_bound(self.norm, max(self.gap, 4 * EPS))
        q = min(p / (p - 1.0), 8.0)  # a smaller exponent is a longer length, and its powers do not underflow
        lengths = np.empty(self.problem.mask.shape)
        for rows, delta in self.problem.differences():
            lengths[rows] = np.linalg.norm(delta, ord=q, axis=2)
        lengths *= np.linalg.norm(self.problem.queries, ord=q, axis=1)[:, None]
        return lengths * (distance * entrywise(self.certified.W, p))

    @property
    def support(self) -> Any:
        """SVM-neighbours: rejected tokens whose margin is one to within :attr:`margin_tolerance`, bool (n, T)."""
        close = self.certified.margins <= 1.0 + self.margin_tolerance
        found = close & self.problem.rejected & bool(np.isfinite(self.objective))
        return self.problem.kind.restore(found)

    @property
    def rank(self) -> int:
        """Number of singular values of W that the certified gap tells from zero (see :attr:`margin_tolerance`)."""
        if not np.isfinite(self.objective):
            return 0
        sigma = np.linalg.svd(self.certified.W, compute_uv=False)
        reach = np.sqrt(2 * max(self.gap, 4 * EPS)) * float(np.linalg.norm(sigma))
        return int(np.count_nonzero(sigma > reach))

    def factors(self, rank: int | None = None) -> tuple[Any, Any]:
        r"""Split W into K Q^T with balanced factors, :math:`K = U\sqrt{S}` and :math:`Q = V\sqrt{S}`.

        Of all factorisations these have the smallest :math:`\|K\|_F^2 + \|Q\|_F^2`, twice the nuclear norm of W.

        Parameters
        ----------
        rank : int, optional
            Columns to keep. Default: :attr:`rank`.

        Returns
        -------
        K : array, shape (d, rank)
        Q : array, shape (dz, rank)

        Raises
        ------
        UnsolvedError
            If there is no W.
        ValueError
            If ``rank`` is not between 0 and min(d, dz).
        """
        if not np.isfinite(self.objective):
            raise UnsolvedError(self)
        U, sigma, Vt = np.linalg.svd(self.certified.W, full_matrices=False)
        keep = self.rank if rank is None else rank
        if not 0 <= keep <= len(sigma):
            raise ValueError(f"rank must lie between 0 and {len(sigma)}; got {rank}.")
        root = np.sqrt(sigma[:keep])
        restore = self.problem.kind.restore
        return restore(U[:, :keep] * root), restore(Vt[:keep].T * root)

    def verify(self, *, exact: bool = False) -> Proof:
        """Check the claim again: bounds on the smallest norm, or that no W exists.

        Parameters
        ----------
        exact : bool
            Prove it in exact rational and interval arithmetic, which takes milliseconds to seconds, instead of float64
            with an allowance for rounding.

        Returns
        -------
        attsvm.proofs.Proof
            True in a boolean context when the claim holds; a failed proof is not an exception.
        """
        from attsvm import proofs

        return proofs.prove(self) if exact else proofs.recheck(self)

    def raise_for_status(self) -> Solution:
        """Return self when optimal.

        Raises
        ------
        UnsolvedError
            With the status' sentence, otherwise.
        """
        if self.status is not Status.OPTIMAL:
            raise UnsolvedError(self)
        return self

    def __repr__(self) -> str:
        return (
            f"Solution({self.status.name}, {self.norm.name} norm {self.objective:.6g}, gap {self.gap:.1e}, "
            f"{self.method}, {self.iterations} iterations, {self.seconds:.3g} s)"
        )
