"""The claim of a solution, and its comparison with proven bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attsvm.core.error_free import gamma
from attsvm.core.norms import FROBENIUS, Norm, frobenius
from attsvm.core.norms.splitting import evaluations_within
from attsvm.core.problem import SelectionProblem
from attsvm.core.rounding import FUNCTION_ROUNDING, LENIENT, growth
from attsvm.core.status import Status
from attsvm.platform.summary import Listed
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import PRIOR_RESOLUTION, Certified, counts_as_zero, proven_gap
from attsvm.proofs.objective import HARD_MARGIN, Regularisation
from attsvm.proofs.program import Program
from attsvm.proofs.proof import Bound, interval, interval_statement

# Relative difference of bounds that were computed twice, the rounding of a few scalars.
AGREEMENT = 4 * FUNCTION_ROUNDING
WRONG_KIND = "the numbers are about hard margins without a prior and the question is not, or the reverse."


@dataclass(frozen=True, eq=False, repr=False)
class Claim(Listed):
    """A problem, and the W, multipliers or certificate that are said to solve it.

    Attributes
    ----------
    problem : SelectionProblem
    norm : Norm
    status : Status
    certified : Certified
    certificate : FarkasCertificate or None
    tol : float
        The relative gap that an optimum promises.
    regularisation : Regularisation
        Losses or a prior in addition to the norm; none by default.

    Examples
    --------
    >>> from attsvm import SelectionProblem, proofs, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
    >>> solution = solve(problem)
    >>> claim = proofs.Claim(problem, solution.norm, solution.status, solution.certified, None, tol=1e-9)
    >>> claim.infeasible, claim.empty, bool(proofs.prove(claim))
    (False, False, True)
    """

    problem: SelectionProblem
    norm: Norm
    status: Status
    certified: Certified
    certificate: FarkasCertificate | None
    tol: float
    regularisation: Regularisation = HARD_MARGIN

    @cached_property
    def program(self) -> Program:
        """The question that the claim answers."""
        return Program(self.problem, self.norm, self.regularisation)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Let evaluations of the dual norm try the split that the claim rests on.

        Examples
        --------
        >>> from attsvm import SelectionProblem, proofs, solve
        >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
        >>> solution = solve(problem)
        >>> claim = proofs.Claim(problem, solution.norm, solution.status, solution.certified, None, tol=1e-9)
        >>> with claim.evaluating():
        ...     claim.norm.dual(solution.W)
        0.1
        """
        split = self.certified.split
        with evaluations_within(known=() if split is None else [(self.norm, list(split))]):
            yield

    @property
    def infeasible(self) -> bool:
        """Whether the claim is that no W exists."""
        return self.status is Status.INFEASIBLE or self.certificate is not None

    @property
    def mixed(self) -> bool:
        """Whether claim and question differ in kind: one about the norm alone, the other about an objective."""
        return self.regularisation.plain != (self.certified.primal is None)

    @property
    def empty(self) -> bool:
        """Whether the problem has no constraints and the claim says so."""
        problem, certified = self.problem, self.certified
        return self.regularisation.plain and not (
            problem.has_rejected or self.infeasible or certified.W.any() or certified.objective
        )

    def certificate_fault(self) -> str | None:
        """Return what is wrong with a claim of infeasibility, except for its multipliers; None if nothing is.

        Examples
        --------
        >>> from attsvm import SelectionProblem, Status, proofs, solve
        >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
        >>> solution = solve(problem)
        >>> claim = proofs.Claim(problem, solution.norm, Status.INFEASIBLE, solution.certified, None, tol=1e-9)
        >>> claim.certificate_fault()
        'the status is INFEASIBLE without a certificate.'
        """
        if self.certificate is None:
            return "the status is INFEASIBLE without a certificate."
        if self.status is not Status.INFEASIBLE:
            return f"there is a certificate of infeasibility with the status {self.status.name}."
        return None

    def fault(self, low: Bound, high: Bound) -> str | None:
        """Return what the proven interval contradicts in the claim; None if it contradicts nothing.

        Parameters
        ----------
        low, high : Fraction or float
            Positive and finite.

        Examples
        --------
        >>> from attsvm import SelectionProblem, proofs, solve
        >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
        >>> solution = solve(problem)
        >>> claim = proofs.Claim(problem, solution.norm, solution.status, solution.certified, None, tol=1e-9)
        >>> claim.fault(0.1, 0.1) is None, claim.fault(0.2, 0.3) is None
        (True, False)
        """
        certified, program = self.certified, self.program
        agreement = AGREEMENT + self.norm.dual_resolution
        claimed_low, claimed_high = certified.lower_bound, certified.upper_bound
        value = program.distance(certified.W)
        if not abs(certified.objective - value) <= value * gamma(8 * (certified.W.size + 8)):
            return f"the objective is said to be {certified.objective:.17g} where W has norm {value:.17g}."
        # Bounds computed twice also differ by the rounding of margins and the rounding error of W near a prior.
        resolution = 0.0 if program.plain else self._margin_rounding()
        resolution += 0.0 if program.prior is None else program.terms.size(PRIOR_RESOLUTION * program.prior)
        if not claimed_low * (1 - agreement) - resolution <= low:
            return f"the bound is said to be {claimed_low:.17g} where the multipliers prove {float(low):.17g}."
        if not claimed_high * (1 + AGREEMENT) + resolution >= high:
            return f"W is said to prove {claimed_high:.17g} where it proves {float(high):.17g}."
        with np.errstate(**LENIENT):
            wrong = self._margins_fault() or (self._dual_fault() if program.plain else self._primal_fault(value))
        if wrong is None and self.status is Status.OPTIMAL:
            nothing = counts_as_zero(certified.primal, certified.objective, resolution)
            gap = max(0.0 if nothing else proven_gap(low, high), certified.gap)
            if not gap <= self.tol + agreement:
                return f"the gap is {gap:.3g} where an optimum promises {self.tol:.3g}."
        return wrong

    def _margin_rounding(self) -> float:
        """Effect of a few roundings per margin on the losses, or on the norm of a W that keeps its margins."""
        certified, terms = self.certified, self.program.terms
        with np.errstate(**LENIENT):
            error = gamma(8) * frobenius(certified.W) * self.problem.lengths
            if terms.hard:
                added = self.norm.value(certified.W) * float(np.max(error, where=self.problem.rejected, initial=0.0))
            else:
                short = 1.0 - certified.margins
                added = terms.loss(short + error) - terms.loss(short)
        return added if math.isfinite(added) else 0.0

    def _margins_fault(self) -> str | None:
        problem, certified = self.problem, self.certified
        W, margins = certified.W, certified.margins
        if margins.shape != problem.mask.shape:
            return f"the margins have shape {margins.shape}; {problem.mask.shape} was expected."
        d, dz = W.shape
        allowance = 2 * gamma(d + dz + 8) * frobenius(W) * problem.lengths
        difference = np.abs(np.where(problem.constrained, margins - problem.apply(W), 0.0)) - allowance
        if not (difference <= FUNCTION_ROUNDING * np.abs(margins)).all():
            return "the margins are not those of W."
        if not self.regularisation.plain:
            short = problem.rejected & (margins + allowance < 1.0 - AGREEMENT)
            return "a margin falls short of one." if self.regularisation.hard and short.any() else None
        smallest = float(np.min(margins, where=problem.rejected, initial=math.inf))
        if not abs(smallest - 1.0) <= AGREEMENT:
            return f"the smallest margin is {smallest:.17g} where W promises one."
        return None

    def _primal_fault(self, length: float) -> str | None:
        """Compare the claimed objective at W with its value from the margins and the norm of W - prior."""
        certified, terms = self.certified, self.program.terms
        value = min(terms.of_length(length) + terms.loss(1.0 - certified.margins), certified.upper_bound)
        if certified.primal is not None and abs(certified.primal - value) <= value * gamma(16 * (certified.W.size + 8)):
            return None
        return f"the objective at W is said to be {certified.primal} where it is {value:.17g}."

    def _dual_fault(self) -> str | None:
        """Compare the scale of the multipliers with their convention: W = A^T dual, or A^T dual of dual norm one."""
        problem, dual = self.problem, self.certified.dual
        length = self.norm.dual(problem.adjoint(dual))
        weight = float(np.vdot(np.abs(dual), problem.lengths))
        reach = 4 * gamma(sum(dual.shape) + 16) * weight * growth(self.norm, self.certified.W.shape, True)
        reach += (gamma(16 * (self.certified.W.size + 8)) + self.norm.dual_resolution) * length
        scales = (1.0, self.certified.lower_bound) if self.norm is FROBENIUS else (1.0,)
        if any(abs(length - scale) <= reach + self.certified.rounding * scale for scale in scales):
            return None
        return f"A^T dual has dual norm {length:.17g}; {scales[-1]:.17g} was expected."


def interval_words(program: Program, low: Bound, high: Bound) -> str:
    """Sentence that states the interval of the minimised quantity."""
    if program.plain:
        return interval_statement(program.norm.name, low, high)
    return f"The smallest objective lies in {interval(low, high)}."
