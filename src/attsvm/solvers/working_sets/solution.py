"""The solution of a problem in pieces, with its rounds, and the check of its claim on all shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.core.error_free import gamma
from attsvm.core.norms import Norm
from attsvm.core.rounding import LENIENT
from attsvm.core.status import Status
from attsvm.data.shards import ShardedProblem
from attsvm.platform.summary import BAD, GOOD, UNSURE, Summarised, Summary, counted
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import proven_gap
from attsvm.proofs.claim import AGREEMENT
from attsvm.proofs.objective import Regularisation
from attsvm.proofs.proof import Proof, unproven
from attsvm.proofs.recheck import RECHECK_METHOD
from attsvm.solvers.working_sets.bounds import PrimalBound
from attsvm.solvers.working_sets.collection import Collection
from attsvm.solvers.working_sets.constraints import Anchor
from attsvm.solvers.working_sets.pool import Pool, pool_of
from attsvm.solvers.working_sets.restriction import Restriction
from attsvm.solvers.working_sets.state import Round

# Number of shards, or of omitted parts, that are named; the others are counted.
MOST_NAMES = 5


@dataclass(frozen=True, eq=False)
class Supports:
    """Constraints of a working set and their multipliers; other constraints have multiplier zero or enter a sum.

    Attributes
    ----------
    shard, query, token : ndarray of int, shape (J,)
        Indices of each constraint; queries are counted within their shard.
    multiplier : ndarray, shape (J,)
    settled : int
        Number of constraints of a hinge that are known by their sum; their multipliers are C.
    anchor : Anchor or None
        Determines these constraints.
    """

    shard: np.ndarray
    query: np.ndarray
    token: np.ndarray
    multiplier: np.ndarray
    settled: int = 0
    anchor: Anchor | None = None

    def __len__(self) -> int:
        return len(self.token)


@dataclass(frozen=True, eq=False, repr=False)
class ShardedSolution(Summarised):
    """The answer to :func:`attsvm.solve` for a :class:`attsvm.ShardedProblem`.

    Attributes
    ----------
    problem : ShardedProblem
    norm : Norm
    regularisation : Regularisation
        The given C, loss and prior.
    status : Status
    W : ndarray, shape (d, dz)
        Smallest margin one if the margin is hard; NaN if none was found.
    objective : float
        Norm of W minus the prior; infinite if no W was found.
    primal : float
        Objective including the losses; equal to the norm for a hard margin.
    lower_bound, upper_bound : float
        Bounds on the smallest ``primal``, with every rounding counted. The lower bound is from the multipliers of the
        working set, the upper bound from a pass over all shards.
    tie_residual : float
        Largest difference of tied scores, over the margin.
    supports : Supports
    rounds : tuple of Round
        Time and traffic of each round.
    iterations : int
    seconds : float
    method : str
    tol : float
    digests : tuple of str
        CRC-32 of every shard's arrays, which identify the data of the answer.
    certificate : FarkasCertificate or None
        Multipliers of the working set's problem that prove that no W exists.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import ShardedProblem, solve
    >>> random = np.random.default_rng(0)
    >>> tokens, queries = random.normal(size=(6, 4, 8)), random.normal(size=(6, 8))
    >>> pieces = ShardedProblem.from_arrays(tokens, queries, np.zeros(6, int), chunk=2)
    >>> solution = solve(pieces)
    >>> solution.status.name, solution.W.shape
    ('OPTIMAL', (8, 8))
    >>> bool(solution.verify())
    True
    """

    problem: ShardedProblem
    norm: Norm
    regularisation: Regularisation
    status: Status
    W: np.ndarray
    objective: float
    primal: float
    lower_bound: float
    upper_bound: float
    tie_residual: float
    supports: Supports
    rounds: tuple[Round, ...]
    iterations: int
    seconds: float
    method: str
    tol: float
    digests: tuple[str, ...]
    certificate: FarkasCertificate | None = None

    @property
    def gap(self) -> float:
        """Certified relative gap between the bounds."""
        return proven_gap(self.lower_bound, self.upper_bound, self.tie_residual)

    def verify(self, *, scheduler: str | None = None, workers: int | None = None) -> Proof:
        """Check the claim on the current shards: status, objective, bounds, gap and :attr:`tol`.

        A shard with another digest is named, and nothing is proven. Constraints with multipliers are read from the
        shards again, decisive margins are computed in twice the working precision, and every rounding is counted.

        Parameters
        ----------
        scheduler : str, optional
            Address of a running dask scheduler whose workers evaluate the shards.
        workers : int, optional
            Number of local processes to start instead.

        Returns
        -------
        attsvm.proofs.Proof
            True in a boolean context if the claim holds; a failed proof is not an exception.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import ShardedProblem, solve
        >>> random = np.random.default_rng(0)
        >>> tokens, queries = random.normal(size=(6, 4, 8)), random.normal(size=(6, 8))
        >>> pieces = ShardedProblem.from_arrays(tokens, queries, np.zeros(6, int), chunk=2)
        >>> bool(solve(pieces).verify())
        True
        """
        try:
            problem = self.problem.current()
            with pool_of(problem, scheduler, workers) as pool:
                changed = _changed(self, pool.inspect())
                proof = unproven(changed, RECHECK_METHOD) if changed else _recheck(self, pool)
                problem.check_unchanged()
        except ValueError as error:
            return unproven(str(error), RECHECK_METHOD)
        return proof

    @property
    def sentence(self) -> str:
        """A sentence that explains the status."""
        return self.status.sentence

    def _summary(self) -> Summary:
        n, T, d, dz = self.problem.shape
        colour = {Status.OPTIMAL: GOOD, Status.INFEASIBLE: BAD}.get(self.status, UNSURE)
        facts = [("problem", f"{n:,} x {T:,}, W {d} x {dz}, {counted(len(self.problem.shards), 'shard')}")]
        if self.problem.left_out:
            facts.append(("left out", first_names(self.problem.left_out)))
        if np.isfinite(self.objective):
            facts += [(f"{self.norm.name} norm", f"{self.objective:.9g}"), ("certified gap", f"{self.gap:.1e}")]
        facts.append(("method", f"{self.method}, {counted(len(self.rounds), 'round')}, {self.seconds:.3g} s"))
        return Summary("ShardedSolution", self.status.name, colour, facts, notes=[self.sentence])


def first_names(names: Sequence[str]) -> str:
    """List the first names, and count the others."""
    more = f" and {counted(len(names) - MOST_NAMES, 'other')}" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _changed(solution: ShardedSolution, digests: tuple[str, ...]) -> str | None:
    """Name the shards whose digests differ from the answer's; None if there are none."""
    pairs = zip(solution.problem.shards, solution.digests, digests, strict=True)
    names = [str(shard) for shard, before, now in pairs if before != now]
    if not names:
        return None
    return f"the answer is about other data than is now in {first_names(names)}."


def _recheck(solution: ShardedSolution, pool: Pool) -> Proof:
    """Bound the smallest objective from W, multipliers and shards alone, and compare the claim with the bounds."""
    problem, supports = solution.problem, solution.supports
    shards = Collection(pool, len(problem.shards), problem.shape[2:], solution.norm, solution.regularisation)
    restriction = None
    if len(supports):
        table = shards.bring(np.column_stack([supports.shard, supports.query, supports.token]))
        restriction = Restriction.of(table, shards.norm, shards.regularisation)
    if solution.status is Status.INFEASIBLE or solution.certificate is not None:
        return _recheck_certificate(solution, restriction)
    W = solution.W
    if W.shape != shards.shape or not (np.isfinite(W).all() and np.isfinite(supports.multiplier).all()):
        return unproven("W or the multipliers are not finite.", RECHECK_METHOD)
    hard = solution.regularisation.hard
    with np.errstate(**LENIENT):
        if restriction is None:
            answer = shards.ask(W)
            if answer.rejected > answer.empty * (not hard) or (shards.prior != W).any():
                return unproven("there are no multipliers.", RECHECK_METHOD)
            low = 0.0 if hard else (shards.regularisation.least or 0.0) * answer.empty
            primal = PrimalBound(W, 0.0, low, low, 0.0)
        else:
            primal, answer = shards.judge(W, restriction, sharp=True)
            if not primal.upper_bound < math.inf:
                return unproven("the smallest margin of W is not positive beyond rounding.", RECHECK_METHOD)
            residual = primal.tie_residual
            low = shards.bound_below(
                restriction, supports.multiplier, supports.anchor, answer.empty, residual
            ).lower_bound
    fault, high = _fault(solution, primal, low), primal.upper_bound
    if fault is not None:
        return unproven(fault, RECHECK_METHOD, low=low, high=high)
    return Proof(True, low, high, f"The smallest objective lies in [{low:.17g}, {high:.17g}].", RECHECK_METHOD)


def _fault(solution: ShardedSolution, primal: PrimalBound, low: float) -> str | None:
    """Name the part of the claim that the bounds do not confirm; None if all is confirmed."""
    high = primal.upper_bound
    # Roundings since the claim: W was scaled and multipliers rounded, each a few roundings per sum over entries of W.
    agreement = AGREEMENT + gamma(8 * (solution.W.size + 8)) + solution.norm.dual_resolution
    size = solution.norm.value(solution.W - solution.regularisation.origin(solution.W.shape))
    if not abs(solution.objective - size) <= agreement * size:
        return f"the norm is said to be {solution.objective:.17g} where it is {size:.17g}."
    # Pairs of doubles may give a smaller objective with losses than doubles did, but no larger upper bound.
    least = size if solution.regularisation.hard else primal.objective
    if not least * (1 - agreement) <= solution.primal <= solution.upper_bound * (1 + agreement):
        return f"the objective at W is said to be {solution.primal:.17g} where it is {least:.17g}."
    if not (solution.lower_bound <= low * (1 + agreement) and solution.upper_bound * (1 + agreement) >= high):
        claim = f"[{solution.lower_bound:.17g}, {solution.upper_bound:.17g}]"
        return f"{claim} is said where [{low:.17g}, {high:.17g}] is proven."
    promise = solution.tol if solution.status is Status.OPTIMAL else math.inf
    gap = proven_gap(low, high, primal.tie_residual)
    if not max(gap, solution.gap) <= promise + agreement:
        return f"the gap is {max(gap, solution.gap):.3g} where an optimum promises {promise:.3g}."
    return None


def _recheck_certificate(solution: ShardedSolution, restriction: Restriction | None) -> Proof:
    """Test the certificate, and compare its constraints with the shards'."""
    certificate = solution.certificate
    if certificate is None or solution.status is not Status.INFEASIBLE:
        return unproven("a certificate and the status INFEASIBLE were expected together.", RECHECK_METHOD)
    if restriction is None:
        return unproven("the certificate's constraints are not among the supports.", RECHECK_METHOD)
    theirs, ours = certificate.problem, restriction.problem
    same = all(
        np.array_equal(getattr(theirs, name), getattr(ours, name)) for name in ("tokens", "queries", "selected", "mask")
    )
    if not same:
        return unproven("the certificate's constraints are not those of the shards.", RECHECK_METHOD)
    if not certificate.verify():
        return unproven("the certificate proves nothing.", RECHECK_METHOD)
    return Proof(True, math.inf, math.inf, "No W satisfies the constraints.", RECHECK_METHOD)
