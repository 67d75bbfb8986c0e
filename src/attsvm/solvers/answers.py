"""From W and multipliers to a solution: certified, refined where rounding is in the way, decided where it must be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from attsvm.core.norms import FROBENIUS, Norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import LARGEST
from attsvm.core.status import Status
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import Certified, certify
from attsvm.proofs.decision import contradiction, decidable
from attsvm.solution.solution import Solution
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.refinement import refine
from attsvm.solvers.common.setting import Terms

# The part of tol that rounding may take up before sums are taken again in twice the precision.
ROUNDING = 1e-3
# Where the gap is closed all the same, that only sharpens what is reported, and pays for small problems only.
SHARP_ENTRIES = 50_000
EXISTS = "By exact arithmetic a W exists."
CONTRADICTS = "By exact arithmetic no W exists, but floats do not hold the multipliers that prove it."
BEYOND = "Its norm is beyond the range of floats; tokens or queries scaled by a power of two bring it within."


@dataclass(frozen=True, eq=False)
class Answers:
    """Turns what a run leaves into solutions of a hard-margin problem, which carry the statistics of its control."""

    problem: SelectionProblem
    norm: Norm
    tol: float
    control: Control

    def of(
        self,
        W: np.ndarray | None,
        dual: np.ndarray | None,
        evaluation: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Solution:
        """Judge W (d, dz) and multipliers (n, T); where floats leave open whether a W exists, exact arithmetic says.

        ``evaluation`` is as for :func:`attsvm.proofs.certified.certify`.
        """
        n, T, d, dz = self.problem.shape
        certified = certify(
            self.problem,
            self.norm,
            np.zeros((d, dz)) if W is None else W,
            np.zeros((n, T)) if dual is None else dual,
            evaluation=evaluation,
        )
        doubtful = certified.gap > self.tol
        doubtful |= certified.rounding > ROUNDING * self.tol and n * d * dz <= SHARP_ENTRIES
        if doubtful and certified.gap - certified.rounding <= self.tol:
            judge = partial(certify, self.problem, self.norm, sharp=True)
            terms = Terms.hard_margin(self.norm, self.problem)
            certified = refine(
                self.problem, terms, certified.W, certified.dual, self.tol, judge, along=self.norm is FROBENIUS
            )
        status = Status.OPTIMAL if certified.gap <= self.tol else self.control.stopped or Status.UNDECIDED
        unproven = certified.upper_bound == np.inf or certified.tie_residual > 0
        if not (unproven and decidable(self.problem)):
            return self._solution(status, certified)
        multipliers = contradiction(self.problem)
        if multipliers is None:
            within = 1.0 / LARGEST < float(self.problem.lengths.max()) < LARGEST
            return self._solution(status, certified, note=EXISTS if within else f"{EXISTS} {BEYOND}")
        unheld = self._solution(Status.UNDECIDED, certified, note=CONTRADICTS)
        return self.infeasible(multipliers, multipliers) or unheld

    def infeasible(
        self, multipliers: np.ndarray, dual: np.ndarray | None = None, *, exact: bool = False
    ) -> Solution | None:
        """Report multipliers (n, T) as a proof that no W exists; None when they are none.

        ``dual`` (n, T) are the multipliers that bound the norm; with ``exact`` nothing is left to the floats.
        """
        n, T, d, dz = self.problem.shape
        certificate = FarkasCertificate(self.problem, multipliers)
        if not (certificate.exact if exact else certificate.verify()):
            return None
        bound = np.zeros((n, T)) if dual is None else dual
        certified = certify(self.problem, self.norm, np.zeros((d, dz)), bound)
        return self._solution(Status.INFEASIBLE, certified, certificate)

    def _solution(
        self, status: Status, certified: Certified, certificate: FarkasCertificate | None = None, note: str = ""
    ) -> Solution:
        control = self.control
        return Solution(
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
        )
