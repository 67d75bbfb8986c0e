"""The answer to a problem in pieces, with what its rounds took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.core.norms import Norm
from attsvm.core.status import Status
from attsvm.core.summary import BAD, GOOD, UNSURE, Summarised, Summary, counted
from attsvm.data.shards import ShardedProblem
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import proven_gap
from attsvm.proofs.proof import Proof
from attsvm.solvers.common.regularisation import Regularisation
from attsvm.solvers.working_sets.constraints import Anchor
from attsvm.solvers.working_sets.pool import pool_of
from attsvm.solvers.working_sets.state import Round
from attsvm.solvers.working_sets.verification import recheck_shards


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
    certificate: FarkasCertificate | None = None

    @property
    def gap(self) -> float:
        """Certified relative gap between the bounds."""
        return proven_gap(self.lower_bound, self.upper_bound, self.tie_residual)

    def verify(self, *, scheduler: str | None = None, workers: int | None = None) -> Proof:
        """Check the claim again in a pass over all shards: status, objective, bounds, gap and :attr:`tol`.

        Constraints with multipliers are read from the shards again, margins that decide are taken in twice the working
        precision, and every rounding is counted.

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
        with pool_of(self.problem, scheduler, workers) as pool:
            return recheck_shards(self, pool)

    @property
    def sentence(self) -> str:
        """What the status means, in words."""
        return self.status.sentence

    def _summary(self) -> Summary:
        n, T, d, dz = self.problem.shape
        colour = {Status.OPTIMAL: GOOD, Status.INFEASIBLE: BAD}.get(self.status, UNSURE)
        facts = [("problem", f"{n:,} x {T:,}, W {d} x {dz}, {counted(len(self.problem.shards), 'shard')}")]
        if np.isfinite(self.objective):
            facts += [(f"{self.norm.name} norm", f"{self.objective:.9g}"), ("certified gap", f"{self.gap:.1e}")]
        facts.append(("method", f"{self.method}, {counted(len(self.rounds), 'round')}, {self.seconds:.3g} s"))
        return Summary("ShardedSolution", self.status.name, colour, facts, notes=[self.sentence])
