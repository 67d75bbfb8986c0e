r"""Soft margins for selections that cannot all be kept, and priors to stay near: set up, solved, certified.

.. math:: \min_W \; f(W - W_0) + C\sum_{it} \ell\big(1 - A(W)_{it}\big), \qquad \ell(u) = \max(0, u) \text{ or }
   \max(0, u)^2,

over rejected tokens, with f half the square of the Frobenius norm (the convention of support vector machines, so that C
means what it means in scikit-learn) or any other norm itself; equal scores of several selected tokens stay exact.
Without C the margin is hard and :math:`\|W - W_0\|` is minimised. The certified gap compares the objective at W
itself with the dual bound of :mod:`attsvm.solvers.common.setting` at the multipliers, both recomputed in the original
coordinates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from attsvm.core.error_free import UNIT
from attsvm.core.kernels import Stopwatch
from attsvm.core.norms import FROBENIUS, Norm, frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.core.rounding import EPS, gamma, growth
from attsvm.core.status import Status
from attsvm.core.summary import counted, one_line
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.proof import Proof
from attsvm.solution.certificate_file import Asked
from attsvm.solution.solution import Solution
from attsvm.solvers.common.certified_pair import CertifiedPair, certify_pair, recheck_pair
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.exact_pair import prove_pair
from attsvm.solvers.common.refinement import refine
from attsvm.solvers.common.regularisation import PLAIN, Regularisation
from attsvm.solvers.common.setting import Terms
from attsvm.solvers.in_memory import solve_in_memory
from attsvm.solvers.schedule import Method
from attsvm.solvers.working_sets.solving import WorkingSets


@dataclass(frozen=True, eq=False, repr=False)
class RegularisedSolution(Solution):
    """The answer to a problem with a soft margin or a prior.

    Attributes
    ----------
    regularisation : Regularisation
        C, the loss and the prior that were asked for.

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

    regularisation: Regularisation = PLAIN

    @property
    def _pair(self) -> CertifiedPair:
        pair = self.certified
        assert isinstance(pair, CertifiedPair)
        return pair

    def verify(self, *, exact: bool = False) -> Proof:
        """Check the claim again against :attr:`problem`; see :meth:`attsvm.Solution.verify`.

        The interval of the proof holds the smallest objective. With ``exact`` it is one of exact rational numbers.
        """
        if self.certificate is not None or self.status is Status.INFEASIBLE:
            return super().verify(exact=exact)
        regularisation, pair = self.regularisation, self._pair
        prior = regularisation.origin(pair.W.shape)
        check = prove_pair if exact else recheck_pair
        return check(self.problem, regularisation.terms(self.problem, self.norm), prior, pair, self._promise)

    @property
    def _asked(self) -> Asked:
        """What is minimised beside the constraints."""
        return Asked(self.regularisation.C, self.regularisation.loss, self.regularisation.prior)

    @property
    def _promise(self) -> float:
        return self.tol if self.status is Status.OPTIMAL else math.inf

    @property
    def objective(self) -> float:
        """The norm of W - W0 (of W without a prior); infinite when no W was found."""
        return self._pair.objective

    @property
    def primal(self) -> float:
        """The objective at W: the norm (half its square, Frobenius with a soft margin) plus C times the losses."""
        return self._pair.primal

    @property
    def dual_value(self) -> float:
        """The proven lower bound on the objective."""
        return self._pair.lower_bound

    @property
    def slack(self) -> Any:
        """How far each rejected token's margin falls short of one, (n, T), zero elsewhere."""
        short = np.where(self.problem.rejected, np.maximum(1.0 - self.certified.margins, 0.0), 0.0)
        return self.problem.kind.restore(short)

    @cached_property
    def margin_tolerance(self) -> np.ndarray:
        r"""How far each margin may be from that of the exact solution, (n, T); an estimate but for Frobenius.

        Strong convexity: :math:`\|W - W^\star\|^2/2` is at most the difference of primal and dual value when half the
        square is minimised, and :math:`gap \|W - W_0\|^2` when the norm is.
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


def solve_regularised(
    problem: SelectionProblem,
    norm: Norm,
    regularisation: Regularisation,
    control: Control,
    tol: float,
    method: Method,
    warm_start: Solution | None,
    phase_one: Solution | None,
    *,
    streamed: bool = False,
) -> RegularisedSolution:
    """Solve with a soft margin or a prior.

    Parameters
    ----------
    control : Control
        Aiming below ``tol``.
    method : callable
        Solves a problem in memory in the norm.
    phase_one : Solution, optional
        For a hard margin: the Frobenius solution without a prior, or the proof that no W exists.
    streamed : bool
        Work on working sets, and leave the tokens where they are.

    Returns
    -------
    RegularisedSolution
    """
    watch = Stopwatch()
    terms = regularisation.terms(problem, norm)
    _, _, d, dz = problem.shape
    prior = regularisation.origin((d, dz))
    none = np.zeros(problem.mask.shape)

    def answer(W: np.ndarray, dual: np.ndarray, certificate: FarkasCertificate | None = None) -> RegularisedSolution:
        pair = certify_pair(problem, terms, prior, W, dual)
        if phase_one is not None and W is not prior and not pair.gap <= tol and np.isfinite(phase_one.objective):
            # Beside a prior whose margins are far above one, what W falls short of one is rounding of the prior.
            rounding = gamma(d + dz + 8) * frobenius(W) * problem.lengths
            short = float((1.0 - problem.apply(W) + rounding).max(where=problem.rejected, initial=0.0))
            safe = certify_pair(problem, terms, prior, W + short * phase_one.certified.W, dual)
            pair = safe if safe.gap < pair.gap else pair
        if certificate is None and pair.gap > tol and (control.solved or pair.gap <= tol + pair.rounding):
            pair = refine(problem, terms, W, dual, tol, partial(certify_pair, problem, terms, prior, sharp=True))
        if certificate is not None:
            status = Status.INFEASIBLE
        elif pair.gap <= tol:
            status = Status.OPTIMAL
        else:
            status = control.stopped or Status.UNDECIDED
        price = (
            math.inf if status is not Status.UNDECIDED else _largest_price(problem, terms, pair, tol, regularisation)
        )
        note = "" if price == math.inf else f"Floats hold the multipliers of C up to {price:.2g} only on these data."
        seconds = watch.seconds + (0.0 if phase_one is None else phase_one.seconds)
        return RegularisedSolution(
            problem,
            norm,
            status,
            pair,
            control.iterations,
            seconds,
            control.method,
            certificate,
            tol,
            note,
            regularisation=regularisation,
        )

    if phase_one is not None and phase_one.certificate is not None:
        control.iterations, control.method = phase_one.iterations, phase_one.method
        return answer(np.zeros((d, dz)), none, phase_one.certificate)
    if not np.isfinite(terms.cost).all():
        # The margins of the prior leave the range of floats, and so do all that is measured from there.
        return answer(prior, none)
    # The prior itself, when it satisfies everything or nothing is worth a step away from it.
    slope = terms.slope(terms.cost)
    if terms.may_stay(problem.adjoint(slope)):
        control.method = "closed form"
        first = answer(prior, slope)
        if first.status is Status.OPTIMAL:
            return first
    control.method = ""
    guess = None if warm_start is None else _adapted(warm_start, terms)
    start = None if warm_start is None or guess is None else (warm_start.certified.W, guess)
    if streamed:
        _, W, dual = WorkingSets(problem, norm, regularisation, control, method, start).solve()
    else:
        _, W, dual = solve_in_memory(problem, norm, regularisation, control, method, start)
    return answer(prior if W is None else W, none if dual is None else dual)


def _largest_price(
    problem: SelectionProblem, terms: Terms, pair: CertifiedPair, tol: float, regularisation: Regularisation
) -> float:
    """Bound the C whose multipliers floats can hold, where the one that is asked for is larger; else infinite.

    Rounding a multiplier of size C to a float moves A^T dual by u C |delta||z|, and all of them by as much as the root
    of the sum of squares: that must be less than the unit ball of the dual norm is wide, or, for the norm that is
    squared, half its square less than tol of the losses.
    """
    C = regularisation.C
    if C is None:
        return math.inf
    reach = UNIT * np.sqrt(np.square(problem.lengths).sum(where=problem.rejected))
    price = 1.0 / (reach * growth(terms.norm, pair.W.shape, True))
    if terms.squared:
        loss = pair.primal / C - 0.5 * pair.objective * (pair.objective / C)
        price = 2.0 * tol * max(loss, 0.0) / reach / reach
    return float(price) if price < C else math.inf


def _adapted(before: Solution, terms: Terms) -> np.ndarray:
    """Multipliers (n, T) of an earlier solution; those that were at their bound move to the new one."""
    dual = before.certified.dual
    if isinstance(before, RegularisedSolution) and np.isfinite(terms.upper):
        earlier = before.regularisation
        if earlier.C is not None and earlier.loss == "hinge":
            return np.where(dual >= earlier.C * (1.0 - 1e-12), terms.upper, dual)
    return dual
