"""The answer to a problem in pieces, with what its rounds took, and the claim checked again on all shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.core.error_free import gamma
from attsvm.core.norms import Norm
from attsvm.core.rounding import LENIENT
from attsvm.core.status import Status
from attsvm.core.summary import BAD, GOOD, UNSURE, Summarised, Summary, counted
from attsvm.data.shards import ShardedProblem
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import proven_gap
from attsvm.proofs.claim import AGREEMENT
from attsvm.proofs.objective import Regularisation
from attsvm.proofs.proof import Proof, unproven
from attsvm.proofs.recheck import METHOD
from attsvm.solvers.working_sets.bounds import Primal
from attsvm.solvers.working_sets.collection import Collection
from attsvm.solvers.working_sets.constraints import Anchor
from attsvm.solvers.working_sets.pool import Pool, pool_of
from attsvm.solvers.working_sets.restriction import Restriction
from attsvm.solvers.working_sets.state import Round

# Shards, and things that were left out, that are named before the rest is counted.
MOST_NAMES = 5


@dataclass(frozen=True, eq=False)
class Supports:
    """Constraints of a working set, and their multipliers; all others have none, or are counted in a sum.

    Attributes
    ----------
    shard, query, token : ndarray of int, shape (J,)
        Queries are counted within their shard.
    multiplier : ndarray, shape (J,)
    settled : int
        Constraints of a hinge whose multipliers are C and that are known by their sum.
    anchor : Anchor or None
        Which constraints those are.
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
        C, the loss and the prior that were asked for.
    status : Status
    W : ndarray, shape (d, dz)
        Smallest margin one where the margin is hard; NaN where none was found.
    objective : float
        The norm of W less the prior; infinite where no W was found.
    primal : float
        The objective with the price of the losses; the norm again for a hard margin.
    lower_bound, upper_bound : float
        On the smallest ``primal``, every rounding counted: one from a pass over all shards, the other from the
        multipliers of the working set.
    tie_residual : float
        How far scores of tied tokens may differ, in parts of the margin.
    supports : Supports
    rounds : tuple of Round
        What each round took and exchanged.
    iterations : int
    seconds : float
    method : str
    tol : float
    digests : tuple of str
        CRC-32 of every shard's arrays: the data that the answer is about.
    certificate : FarkasCertificate or None
        Multipliers on the working set, as a problem of its own, that prove that no W exists.

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
        """Check the claim again on the shards that are there: status, objective, bounds, gap and :attr:`tol`.

        A shard whose digest is another one is named, and nothing is proven. Constraints with multipliers are read from
        the shards again, margins that decide are taken in twice the working precision, and every rounding is counted.

        Parameters
        ----------
        scheduler : str, optional
            Address of a running dask scheduler, whose workers look at the shards.
        workers : int, optional
            Processes to start here for that instead.

        Returns
        -------
        attsvm.proofs.Proof
            True in a boolean context when the claim holds; a failed proof is not an exception.

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
                proof = unproven(changed, METHOD) if changed else _recheck(self, pool)
                problem.check_unchanged()
        except ValueError as error:
            return unproven(str(error), METHOD)
        return proof

    @property
    def sentence(self) -> str:
        """What the status means, in words."""
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
    """List some names, and count the rest."""
    more = f" and {counted(len(names) - MOST_NAMES, 'other')}" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _changed(solution: ShardedSolution, digests: tuple[str, ...]) -> str | None:
    """Name the shards that have other digests than the answer is about; None if there are none."""
    pairs = zip(solution.problem.shards, solution.digests, digests, strict=True)
    names = [str(shard) for shard, before, now in pairs if before != now]
    if not names:
        return None
    return f"the answer is about other data than is now in {first_names(names)}."


def _recheck(solution: ShardedSolution, pool: Pool) -> Proof:
    """Bound the smallest objective from W, the multipliers and the shards alone, and hold the claim against that."""
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
        return unproven("W or the multipliers are not finite.", METHOD)
    hard = solution.regularisation.hard
    with np.errstate(**LENIENT):
        if restriction is None:
            answer = shards.ask(W)
            if answer.rejected > answer.empty * (not hard) or (shards.prior != W).any():
                return unproven("there are no multipliers.", METHOD)
            low = 0.0 if hard else (shards.regularisation.least or 0.0) * answer.empty
            primal = Primal(W, 0.0, low, low, 0.0)
        else:
            primal, answer = shards.judge(W, restriction, sharp=True)
            if not primal.upper_bound < math.inf:
                return unproven("the smallest margin of W is not positive beyond rounding.", METHOD)
            residual = primal.tie_residual
            low = shards.bound_below(
                restriction, supports.multiplier, supports.anchor, answer.empty, residual
            ).lower_bound
    fault, high = _fault(solution, primal, low), primal.upper_bound
    if fault is not None:
        return unproven(fault, METHOD, low=low, high=high)
    return Proof(True, low, high, f"The smallest objective lies in [{low:.17g}, {high:.17g}].", METHOD)


def _fault(solution: ShardedSolution, primal: Primal, low: float) -> str | None:
    """Name the part of the claim that the bounds do not confirm; None if all is confirmed."""
    high = primal.upper_bound
    # W was scaled and multipliers rounded since: a few roundings of sums over the entries of W.
    agreement = AGREEMENT + gamma(8 * (solution.W.size + 8)) + solution.norm.dual_resolution
    size = solution.norm.value(solution.W - solution.regularisation.origin(solution.W.shape))
    if not abs(solution.objective - size) <= agreement * size:
        return f"the norm is said to be {solution.objective:.17g} where it is {size:.17g}."
    # With losses, pairs of doubles may give a smaller objective than doubles did, but no larger upper bound.
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
    """Test the certificate, and that its constraints are those of the shards."""
    certificate = solution.certificate
    if certificate is None or solution.status is not Status.INFEASIBLE:
        return unproven("a certificate and the status INFEASIBLE were expected together.", METHOD)
    if restriction is None:
        return unproven("the certificate's constraints are not among the supports.", METHOD)
    theirs, ours = certificate.problem, restriction.problem
    same = all(
        np.array_equal(getattr(theirs, name), getattr(ours, name)) for name in ("tokens", "queries", "selected", "mask")
    )
    if not same:
        return unproven("the certificate's constraints are not those of the shards.", METHOD)
    if not certificate.verify():
        return unproven("the certificate proves nothing.", METHOD)
    return Proof(True, math.inf, math.inf, "No W satisfies the constraints.", METHOD)
