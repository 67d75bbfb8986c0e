"""Entry to the outer loop for problems in pieces, which :func:`attsvm.solve` calls."""

from __future__ import annotations

import os
from typing import Any

from attsvm.core.norms import get_norm
from attsvm.core.norms.splitting import evaluations_within
from attsvm.core.types import AnyNorm, Shortfall
from attsvm.data.shards import ShardedProblem
from attsvm.solvers.common.control import Callback
from attsvm.solvers.common.regularisation import read_regularisation
from attsvm.solvers.options import method_of, read_limits
from attsvm.solvers.working_sets.pool import pool_of
from attsvm.solvers.working_sets.rounds import Rounds
from attsvm.solvers.working_sets.solution import ShardedSolution
from attsvm.solvers.working_sets.solving import run_rounds


def solve_shards(
    problem: ShardedProblem | str | os.PathLike[str],
    norm: AnyNorm = "frobenius",
    *,
    tol: float = 1e-9,
    max_iter: int | None = None,
    time_limit: float | None = None,
    callback: Callback | None = None,
    verbose: bool = False,
    C: Any = None,
    loss: Shortfall = "hinge",
    prior: Any = None,
    scheduler: str | None = None,
    workers: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> ShardedSolution:
    """Solve a problem in pieces; a path is a folder of shards.

    Parameters
    ----------
    norm, tol, max_iter, time_limit, callback, verbose, loss, prior
        As for :func:`attsvm.solve`.
    C : float, optional
        One number for all queries.
    scheduler : str, optional
        Address of a running dask scheduler whose workers evaluate the shards.
    workers : int, optional
        Number of local processes to start instead.
    checkpoint : path, optional
        File of the run, written after every round. A run that was interrupted continues from it.

    Raises
    ------
    ValueError
        If an argument, a shard or the checkpoint is not as expected, or a file has changed meanwhile.
    attsvm.platform.cluster.ClusterLost
        If the cluster is lost; the checkpoint remains.
    """
    if not isinstance(problem, ShardedProblem):
        problem = ShardedProblem.from_folder(problem)
    problem, measure = problem.current(), get_norm(norm)
    control = read_limits(problem.shape, measure, tol, max_iter, time_limit, callback, verbose=verbose)
    regularisation = read_regularisation(problem.shape, C, loss, prior, streamed=True)
    with pool_of(problem, scheduler, workers) as pool, evaluations_within(control.is_late):
        count, shape = len(problem.shards), problem.shape[2:]
        rounds = Rounds(pool, count, shape, measure, regularisation, control, method_of(measure))
        return run_rounds(problem, rounds, tol, checkpoint)
