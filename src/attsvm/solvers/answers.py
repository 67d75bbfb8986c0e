"""From W and multipliers to a solution: certified, refined where rounding keeps the gap open, decided if need be."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from attsvm.core.error_free import UNIT, gamma
from attsvm.core.norms import Norm, frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import LARGEST
from attsvm.core.rounding import growth
from attsvm.core.status import Status
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import Certified, certify
from attsvm.proofs.decision import contradiction, decidable
from attsvm.proofs.objective import PLAIN, Regularisation
from attsvm.solution.solution import KINDS, Solution
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.refinement import refine
from attsvm.solvers.schedule import SHARP_ENTRIES

# The part of tol that rounding may take up before sums are taken again in twice the precision.
ROUNDING = 1e-3
EXISTS = "By exact arithmetic a W exists."
CONTRADICTS = "By exact arithmetic no W exists, but floats do not hold the multipliers that prove it."
OUT_OF_RANGE = "Its norm is beyond the range of floats; tokens or queries scaled by a power of two bring it within."
BELOW_RANGE = "The objective is below the normal floats; scaling tokens or queries by a power of two helps."


@dataclass(frozen=True, eq=False)
class Answers:
    """Turns the results of a run into solutions, which carry the statistics of its control.

    ``phase_one`` is, for a hard margin with a prior, the Frobenius solution without one.
    """

    problem: SelectionProblem
    norm: Norm
    tol: float
    control: Control
    regularisation: Regularisation = PLAIN
    phase_one: Solution | None = None

    def of(
        self,
        W: np.ndarray | None,
        dual: np.ndarray | None,
        evaluation: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Solution:
        """Certify W (d, dz) and multipliers (n, T); whether a W exists is decided exactly where floats leave it open.

        ``evaluation`` is as for :func:`attsvm.proofs.certified.certify`.
        """
        problem, norm, tol, regularisation = self.problem, self.norm, self.tol, self.regularisation
        n, T, d, dz = problem.shape
        self.control.certify()
        dual = np.zeros((n, T)) if dual is None else dual
        origin = regularisation.origin((d, dz)) if W is None else W
        certified = certify(problem, norm, origin, dual, regularisation, evaluation=evaluation)
        if self.phase_one is not None and W is not None and certified.gap > tol:
            certified = self._feasible(self.phase_one, certified, W, dual)
        gap = certified.gap
        if gap <= tol:
            doubtful = certified.rounding > ROUNDING * tol and n * d * dz <= SHARP_ENTRIES
        else:
            doubtful = gap - certified.rounding <= tol or self.control.solved
        if doubtful:
            certified = refine(problem, norm, regularisation, certified.W, certified.dual, tol)
            gap = certified.gap
        status = Status.OPTIMAL if gap <= tol else self.control.stopped or Status.UNDECIDED
        if not regularisation.plain:
            return self._solution(status, certified, note=self._range_note(certified, status))
        unproven = certified.upper_bound == np.inf or certified.tie_residual > 0
        if not (unproven and decidable(problem)):
            return self._solution(status, certified)
        multipliers = contradiction(problem)
        if multipliers is None:
            visible = 1.0 / LARGEST < float(problem.lengths.max()) < LARGEST
            return self._solution(status, certified, note=EXISTS if visible else f"{EXISTS} {OUT_OF_RANGE}")
        fallback = self._solution(Status.UNDECIDED, certified, note=CONTRADICTS)
        return self.infeasible(multipliers, multipliers) or fallback

    def _feasible(self, phase_one: Solution, certified: Certified, W: np.ndarray, dual: np.ndarray) -> Certified:
        """Add as much of a feasible W as this one falls short by, where that proves more.

        Beside a prior whose margins are far above one, what W falls short of one is rounding of the prior.
        """
        if not np.isfinite(phase_one.objective):
            return certified
        problem = self.problem
        rounding = gamma(sum(W.shape) + 8) * frobenius(W) * problem.lengths
        short = float((1.0 - problem.apply(W) + rounding).max(where=problem.rejected, initial=0.0))
        safe = certify(problem, self.norm, W + short * phase_one.certified.W, dual, self.regularisation)
        return safe if safe.gap < certified.gap else certified

    def infeasible(
        self, multipliers: np.ndarray, dual: np.ndarray | None = None, *, exact: bool = False
    ) -> Solution | None:
        """Report multipliers (n, T) as a proof that no W exists; None when they are none.

        ``dual`` (n, T) are the multipliers that bound the norm; with ``exact`` the proof must hold in exact arithmetic.
        """
        certificate = FarkasCertificate(self.problem, multipliers)
        proven = certificate.exact if exact else certificate.verify()
        return self.of_certificate(certificate, dual) if proven else None

    def of_certificate(self, certificate: FarkasCertificate, dual: np.ndarray | None = None) -> Solution:
        """Report a certificate that was verified."""
        n, T, d, dz = self.problem.shape
        bound = np.zeros((n, T)) if dual is None else dual
        certified = certify(self.problem, self.norm, np.zeros((d, dz)), bound, self.regularisation)
        return self._solution(Status.INFEASIBLE, certified, certificate)

    def _solution(
        self, status: Status, certified: Certified, certificate: FarkasCertificate | None = None, note: str = ""
    ) -> Solution:
        control = self.control
        return KINDS[self.regularisation.plain](
            self.problem,
            self.norm,
            status,
            certified,
            control.iterations,
            control.seconds,
            control.method,
            certificate,
            self.tol,
            note,
            self.regularisation,
        )

    def _range_note(self, certified: Certified, status: Status) -> str:
        """Say which numbers floats cannot hold where that leaves the answer undecided: the objective, or multipliers.

        Of C the sentence names the largest whose multipliers they hold. Rounding a multiplier of size C to a float
        moves A^T dual by u C |delta||z|, and all of them by as much as the root of the sum of squares: that must be
        less than the unit ball of the dual norm is wide, or, for the norm that is squared, half its square less than
        tol of the losses.
        """
        problem = self.problem
        C = None if self.regularisation.C is None else float(np.max(self.regularisation.C))
        if status is Status.UNDECIDED and certified.objective > 0.0 and certified.value < sys.float_info.min:
            return BELOW_RANGE
        if C is None or status is not Status.UNDECIDED:
            return ""
        reach = UNIT * np.sqrt(np.square(problem.lengths).sum(where=problem.rejected))
        price = 1.0 / (reach * growth(self.norm, certified.W.shape, True))
        if self.regularisation.terms(problem, self.norm).squared:
            loss = certified.value / C - 0.5 * certified.objective * (certified.objective / C)
            price = 2.0 * self.tol * max(loss, 0.0) / reach / reach
        return f"Floats hold the multipliers of C up to {price:.2g} only on these data." if price < C else ""
