"""Solutions from W and multipliers: certified, refined if rounding keeps the gap open, decided exactly if needed."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from attsvm.core.error_free import UNIT, gamma
from attsvm.core.norms import frobenius
from attsvm.core.reduction import LARGEST
from attsvm.core.rounding import growth
from attsvm.core.status import Status
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import Certified, certify
from attsvm.proofs.decision import contradiction, decidable
from attsvm.proofs.program import Program
from attsvm.solution.solution import SOLUTION_CLASSES, Solution
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.refinement import refine
from attsvm.solvers.schedule import SHARP_ENTRIES

# Share of tol that rounding may take before sums are computed again in twice the precision.
ROUNDING_SHARE = 1e-3
EXISTS = "By exact arithmetic a W exists."
CONTRADICTS = "By exact arithmetic no W exists, but floats do not hold the multipliers that prove it."
OUT_OF_RANGE = "Its norm is beyond the range of floats; tokens or queries scaled by a power of two bring it within."
BELOW_RANGE = "The objective is below the normal floats; scaling tokens or queries by a power of two helps."


@dataclass(frozen=True, eq=False)
class Answers:
    """Turns the results of a run into solutions with the statistics of its control.

    ``phase_one`` is the Frobenius solution without the prior, for a hard margin with a prior.
    """

    program: Program
    tol: float
    control: Control
    phase_one: Solution | None = None

    def of(
        self, W: np.ndarray | None, dual: np.ndarray | None, evaluation: tuple[np.ndarray, np.ndarray] | None = None
    ) -> Solution:
        """Certify W (d, dz) and multipliers (n, T); exact arithmetic decides existence of W if floats leave it open.

        ``evaluation`` is as for :func:`attsvm.proofs.certified.certify`.
        """
        program, problem, tol = self.program, self.program.problem, self.tol
        n, T, d, dz = problem.shape
        self.control.certify()
        dual = np.zeros((n, T)) if dual is None else dual
        certified = certify(program, program.origin if W is None else W, dual, evaluation=evaluation)
        if self.phase_one is not None and W is not None and certified.gap > tol:
            certified = self._feasible(self.phase_one, certified, W, dual)
        gap = certified.gap
        if gap <= tol:
            doubtful = certified.rounding > ROUNDING_SHARE * tol and n * d * dz <= SHARP_ENTRIES
        else:
            doubtful = gap - certified.rounding <= tol or self.control.solved
        if doubtful:
            certified = refine(program, certified.W, certified.dual, tol)
            gap = certified.gap
        status = Status.OPTIMAL if gap <= tol else self.control.stopped or Status.UNDECIDED
        if not program.plain:
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
        """Add the multiple of a feasible W that makes up for the shortfall, if that proves more.

        If the margins of the prior are far above one, the shortfall of W is rounding of the prior.
        """
        if not np.isfinite(phase_one.objective):
            return certified
        problem = self.program.problem
        rounding = gamma(sum(W.shape) + 8) * frobenius(W) * problem.lengths
        short = float((1.0 - problem.apply(W) + rounding).max(where=problem.rejected, initial=0.0))
        safe = certify(self.program, W + short * phase_one.certified.W, dual)
        return safe if safe.gap < certified.gap else certified

    def infeasible(
        self, multipliers: np.ndarray, dual: np.ndarray | None = None, *, exact: bool = False
    ) -> Solution | None:
        """Report multipliers (n, T) as a proof that no W exists; None if they prove nothing.

        ``dual`` (n, T) are the multipliers that bound the norm. ``exact`` requires a proof in exact arithmetic.
        """
        certificate = FarkasCertificate(self.program.problem, multipliers)
        proven = certificate.exact if exact else certificate.verify()
        return self.of_certificate(certificate, dual) if proven else None

    def of_certificate(self, certificate: FarkasCertificate, dual: np.ndarray | None = None) -> Solution:
        """Report a verified certificate."""
        n, T, d, dz = self.program.problem.shape
        bound = np.zeros((n, T)) if dual is None else dual
        certified = certify(self.program, np.zeros((d, dz)), bound)
        return self._solution(Status.INFEASIBLE, certified, certificate)

    def _solution(
        self, status: Status, certified: Certified, certificate: FarkasCertificate | None = None, note: str = ""
    ) -> Solution:
        control, program = self.control, self.program
        return SOLUTION_CLASSES[program.plain](
            program.problem,
            program.norm,
            status,
            certified,
            control.iterations,
            control.seconds,
            control.method,
            certificate,
            self.tol,
            note,
            program.regularisation,
        )

    def _range_note(self, certified: Certified, status: Status) -> str:
        """Name the numbers that floats cannot hold if they leave the answer undecided: the objective, or multipliers.

        The sentence gives the largest C whose multipliers floats hold. Rounding a multiplier of size C moves A^T dual
        by u C |delta||z|, and all of them move it by the root of the sum of squares. This must be less than the width
        of the dual norm's unit ball. For the squared norm, half its square must be less than tol of the losses.
        """
        program, problem = self.program, self.program.problem
        C = None if program.regularisation.C is None else float(np.max(program.regularisation.C))
        if status is Status.UNDECIDED and certified.objective > 0.0 and certified.value < sys.float_info.min:
            return BELOW_RANGE
        if C is None or status is not Status.UNDECIDED:
            return ""
        reach = UNIT * np.sqrt(np.square(problem.lengths).sum(where=problem.rejected))
        price = 1.0 / (reach * growth(program.norm, certified.W.shape, True))
        if program.terms.squared:
            loss = certified.value / C - 0.5 * certified.objective * (certified.objective / C)
            price = 2.0 * self.tol * max(loss, 0.0) / reach / reach
        return f"Floats hold the multipliers of C up to {price:.2g} only on these data." if price < C else ""
