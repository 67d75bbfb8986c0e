"""Set up, run and certify a problem in pieces."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from attsvm.core.norms import Norm
from attsvm.core.status import Status
from attsvm.data.shards import ShardedProblem
from attsvm.proofs.certified import LENIENT
from attsvm.solvers.common.control import Control
from attsvm.solvers.regularised import Regularisation
from attsvm.solvers.sharded.checkpoint import mark_of, read_checkpoint, write_checkpoint
from attsvm.solvers.sharded.pool import Pool
from attsvm.solvers.sharded.primal import relative_gap
from attsvm.solvers.sharded.rounds import Method, Shards, State
from attsvm.solvers.sharded.solution import ShardedSolution, Supports


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
        if len(state.table):
            shards.run(state)
            shards.settle(tol)
        else:
            shards.without_constraints()
    solution = _answer(problem, shards, tol)
    if checkpoint is not None and solution.status in (Status.OPTIMAL, Status.INFEASIBLE):
        Path(checkpoint).unlink(missing_ok=True)
    return solution


def _answer(problem: ShardedProblem, shards: Shards, tol: float) -> ShardedSolution:
    primal, dual, control = shards.primal, shards.dual, shards.control
    high, low = (np.inf if primal is None else primal.upper_bound), shards.lower_bound
    residual = 0.0 if primal is None else primal.tie_residual
    if shards.certificate is not None:
        status, high, low = Status.INFEASIBLE, np.inf, np.inf
    elif relative_gap(low, high, residual) <= tol:
        status = Status.OPTIMAL
    else:
        status = control.stopped or Status.UNDECIDED
    none = np.zeros(0, dtype=np.int64)
    supports = Supports(none, none, none, np.zeros(0))
    if shards.certificate is not None and shards.restriction is not None:
        table, part = shards.restriction.table, shards.restriction
        supports = Supports(table.shard, table.query, table.token, shards.certificate.dual[part.row, part.column])
    elif dual is not None:
        table = dual.restriction.table
        count = 0 if dual.settled is None else dual.settled.count
        supports = Supports(table.shard, table.query, table.token, dual.values, count, dual.anchor)
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
        supports=supports,
        rounds=tuple(shards.log),
        iterations=control.iterations,
        seconds=control.seconds,
        method=control.method,
        tol=tol,
        certificate=shards.certificate,
    )
