"""Set up and run a problem in pieces, or one in memory as a single piece."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attsvm.core.norms import Norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.status import Status
from attsvm.data.shards import ShardArrays, ShardedProblem
from attsvm.proofs.certified import LENIENT, proven_gap
from attsvm.proofs.objective import Regularisation
from attsvm.solvers.common.control import Control
from attsvm.solvers.schedule import Method
from attsvm.solvers.working_sets.pool import Here, Pool
from attsvm.solvers.working_sets.pricing import unlisted
from attsvm.solvers.working_sets.rounds import Shards
from attsvm.solvers.working_sets.solution import ShardedSolution, Supports
from attsvm.solvers.working_sets.state import State, mark_of, read_checkpoint, write_checkpoint

# Multipliers (n, T) that may prove infeasibility, W (d, dz) and multipliers (n, T), each None where there is none.
Outcome = tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]


class WorkingSets:
    """The outer loop over a problem in memory, or in a memory map, whose tokens stay where they are.

    Parameters
    ----------
    problem : SelectionProblem
    norm : Norm
    regularisation : Regularisation
    control : Control
    method : callable
        Solves a restriction that fits into memory.
    start : tuple of ndarray, shapes (d, dz) and (n, T), optional
        W and multipliers of a similar problem.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        norm: Norm,
        regularisation: Regularisation,
        control: Control,
        method: Method,
        start: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        whole = ShardArrays(problem.tokens, problem.queries, problem.selected, problem.mask, problem.sequence)
        self._whole, self._size, self._start = whole, problem.mask.shape, start
        self._shards = Shards(Here([whole]), 1, problem.shape[2:], norm, regularisation, control, method)

    def run(self) -> Iterator[float]:
        """Go through all rounds; yields the work of each step."""
        shards, start = self._shards, self._start
        if start is None or not start[0].any():
            state = shards.begin()
        else:
            state = shards.begin(start[0])
            state.dual = start[1][state.table.query, state.table.token]
        yield from shards.run(state)

    def solve(self) -> Outcome:
        """Go through all rounds at once."""
        for _ in self.run():
            pass
        return self.outcome

    @property
    def outcome(self) -> Outcome:
        """The best so far."""
        shards, supports, multipliers = self._shards, _supports(self._shards), np.zeros(self._size)
        multipliers[supports.query, supports.token] = supports.multiplier
        if shards.certificate is not None:
            return multipliers, None, None
        C = shards.regularisation.C
        if C is not None:
            known = np.column_stack([supports.query, supports.token])
            multipliers[unlisted(self._whole, known, supports.anchor)] = C if shards.regularisation.hinge else 2.0 * C
        return None, None if shards.primal is None else shards.primal.W, multipliers


def solve_shards(
    problem: ShardedProblem,
    norm: Norm,
    regularisation: Regularisation,
    control: Control,
    tol: float,
    method: Method,
    pool: Pool,
    checkpoint: str | os.PathLike[str] | None = None,
) -> ShardedSolution:
    """Solve a problem in pieces.

    Parameters
    ----------
    problem : ShardedProblem
    norm : Norm
    regularisation : Regularisation
    control : Control
        Aiming below ``tol``.
    tol : float
    method : callable
        Solves a restriction.
    pool : Pool
    checkpoint : path, optional
        File to go on from where it exists, written after every round and removed at the end.

    Returns
    -------
    ShardedSolution

    Raises
    ------
    ValueError
        If shards or the checkpoint are not as expected; a sentence.
    attsvm.core.cluster.ClusterLost
        If the cluster goes away; the checkpoint stays.
    """
    shape = problem.shape[2:]
    mark = mark_of(problem.shape, len(problem.shards), norm, regularisation)

    def keep(state: State) -> None:
        if checkpoint is not None:
            write_checkpoint(checkpoint, state, mark)

    shards = Shards(pool, len(problem.shards), shape, norm, regularisation, control, method, keep)
    with np.errstate(**LENIENT):
        state = None if checkpoint is None else read_checkpoint(checkpoint, shards, mark)
        state = shards.begin() if state is None else state
        for _ in shards.run(state):
            pass
        shards.settle(tol)
    solution = _answer(problem, shards, tol)
    if checkpoint is not None and solution.status in (Status.OPTIMAL, Status.INFEASIBLE):
        Path(checkpoint).unlink(missing_ok=True)
    return solution


def _supports(shards: Shards) -> Supports:
    """List the multipliers that prove infeasibility, or the best bound."""
    refuted, dual = shards.restriction, shards.dual
    if shards.certificate is not None and refuted is not None:
        table, values = refuted.table, shards.certificate.dual[refuted.row, refuted.column]
        return Supports(table.shard, table.query, table.token, values)
    if dual is None:
        none = np.zeros(0, dtype=np.int64)
        return Supports(none, none, none, np.zeros(0))
    table, count = dual.table, 0 if dual.settled is None else dual.settled.count
    return Supports(table.shard, table.query, table.token, dual.values, count, dual.anchor)


def _answer(problem: ShardedProblem, shards: Shards, tol: float) -> ShardedSolution:
    primal, control = shards.primal, shards.control
    high, low = (np.inf if primal is None else primal.upper_bound), shards.lower_bound
    residual = 0.0 if primal is None else primal.tie_residual
    if shards.certificate is not None:
        status, high, low = Status.INFEASIBLE, np.inf, np.inf
    elif proven_gap(low, high, residual) <= tol:
        status = Status.OPTIMAL
    else:
        status = control.stopped or Status.UNDECIDED
    best = primal if np.isfinite(high) else None
    return ShardedSolution(
        problem=problem,
        norm=shards.norm,
        regularisation=shards.regularisation,
        status=status,
        W=np.full(problem.shape[2:], np.nan) if best is None else best.W,
        objective=np.inf if best is None else best.norm,
        primal=np.inf if best is None else best.objective,
        lower_bound=low,
        upper_bound=high,
        tie_residual=residual,
        supports=_supports(shards),
        rounds=tuple(shards.log),
        iterations=control.iterations,
        seconds=control.seconds,
        method=control.method,
        tol=tol,
        certificate=shards.certificate,
    )
