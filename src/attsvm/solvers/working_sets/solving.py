"""Set-up and run of a problem in pieces, or of one in memory as a single piece."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from attsvm.core.rounding import LENIENT
from attsvm.core.status import Status
from attsvm.data.shard_pieces import ShardArrays
from attsvm.data.shards import ShardedProblem
from attsvm.proofs.certified import proven_gap
from attsvm.proofs.program import Program
from attsvm.solvers.common.control import Control
from attsvm.solvers.schedule import Method
from attsvm.solvers.working_sets.pool import Pool
from attsvm.solvers.working_sets.pricing import unlisted_marks
from attsvm.solvers.working_sets.rounds import Rounds
from attsvm.solvers.working_sets.solution import ShardedSolution, Supports
from attsvm.solvers.working_sets.state import check_outside, mark_of, read_checkpoint, write_checkpoint

# Bytes of the matrices over active constraints that a run on shards may take; larger runs end by products, which need
# no more memory than the working set.
FACTOR_BYTES = 300e6

# Multipliers (n, T) that may prove infeasibility, W (d, dz) and multipliers (n, T); each may be None.
Outcome = tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]


class WorkingSets:
    """The outer loop over a problem in memory, or in a memory map, without a copy of the tokens.

    ``method`` solves a restriction that fits into memory. ``start`` holds the W (d, dz) and the multipliers (n, T) of a
    similar problem.
    """

    def __init__(
        self, program: Program, control: Control, method: Method, start: tuple[np.ndarray, np.ndarray] | None = None
    ) -> None:
        problem = program.problem
        whole = ShardArrays(problem.tokens, problem.queries, problem.selected, problem.mask, problem.sequence)
        self._whole, self._size, self._start = whole, problem.mask.shape, start
        pool = Pool([whole], recording=False)
        self._rounds = Rounds(pool, 1, problem.shape[2:], program.norm, program.regularisation, control, method)

    def run(self) -> Iterator[float]:
        """Run all rounds; yield the work of each step."""
        guess, dual = (None, None) if self._start is None or not self._start[0].any() else self._start
        state = self._rounds.begin(guess)
        if dual is not None:
            state.dual = dual[*state.table.place[:, 1:].T]
        yield from self._rounds.run(state)

    def solve(self) -> Outcome:
        """Run all rounds at once."""
        for _ in self.run():
            pass
        return self.outcome

    @property
    def outcome(self) -> Outcome:
        """The best result so far."""
        rounds, supports, multipliers = self._rounds, _supports(self._rounds), np.zeros(self._size)
        multipliers[supports.query, supports.token] = supports.multiplier
        if rounds.certificate is not None:
            return multipliers, None, None
        C = rounds.regularisation.least
        if C is not None:
            places = np.column_stack([supports.query, supports.token])
            multipliers[unlisted_marks(self._whole, places, supports.anchor)] = (
                C if rounds.regularisation.hinge else 2.0 * C
            )
        return None, None if rounds.primal is None else rounds.primal.W, multipliers


def run_rounds(
    problem: ShardedProblem, rounds: Rounds, tol: float, checkpoint: str | os.PathLike[str] | None = None
) -> ShardedSolution:
    """Solve a problem in pieces to a gap of ``tol`` by its rounds, whose control aims below ``tol``.

    The run continues from the checkpoint if the file exists. It is written after every round and removed at the end.
    """
    control, mark = rounds.control, mark_of(problem.shape, rounds)
    control.most_bytes = FACTOR_BYTES
    if checkpoint is not None:
        check_outside(checkpoint, "checkpoint", problem)
        rounds.keep = partial(write_checkpoint, checkpoint, mark=mark)
    try:
        with np.errstate(**LENIENT):
            state = None if checkpoint is None else read_checkpoint(checkpoint, rounds, mark)
            for _ in rounds.run(state or rounds.begin()):
                pass
            rounds.settle(tol)
        digests = rounds.pool.inspect()
    except MemoryError:
        control.stopped, digests = Status.MEMORY_LIMIT, ()
    problem.check_unchanged()
    solution = _answer(problem, rounds, tol, digests)
    if checkpoint is not None and solution.status in (Status.OPTIMAL, Status.INFEASIBLE):
        Path(checkpoint).unlink(missing_ok=True)
    return solution


def _supports(rounds: Rounds) -> Supports:
    """List the multipliers that prove infeasibility or the best bound."""
    contradiction, dual, count, anchor = rounds.contradiction, rounds.dual, 0, None
    place, values = np.zeros((0, 3), dtype=np.int64), np.zeros(0)
    if rounds.certificate is not None and contradiction is not None:
        place, values = contradiction.table.place, rounds.certificate.dual[contradiction.row, contradiction.column]
    elif dual is not None:
        place, values, anchor = dual.table.place, dual.values, dual.anchor
        count = 0 if dual.bound_sum is None else dual.bound_sum.count
    shard, query, token = place.T
    return Supports(shard, query, token, values, count, anchor)


def _answer(problem: ShardedProblem, rounds: Rounds, tol: float, digests: tuple[str, ...]) -> ShardedSolution:
    primal, control = rounds.primal, rounds.control
    high, low = (np.inf if primal is None else primal.upper_bound), rounds.lower_bound
    residual = 0.0 if primal is None else primal.tie_residual
    if rounds.certificate is not None:
        status, high, low = Status.INFEASIBLE, np.inf, np.inf
    elif proven_gap(low, high, residual) <= tol:
        status = Status.OPTIMAL
    else:
        status = control.stopped or Status.UNDECIDED
    best = primal if np.isfinite(high) else None
    return ShardedSolution(
        problem=problem,
        norm=rounds.norm,
        regularisation=rounds.regularisation,
        status=status,
        W=np.full(problem.shape[2:], np.nan) if best is None else best.W,
        objective=np.inf if best is None else best.norm,
        primal=np.inf if best is None else best.objective,
        lower_bound=low,
        upper_bound=high,
        tie_residual=residual,
        supports=_supports(rounds),
        rounds=tuple(rounds.log),
        iterations=control.iterations,
        seconds=control.seconds,
        method=control.method,
        tol=tol,
        digests=digests,
        certificate=rounds.certificate,
    )
