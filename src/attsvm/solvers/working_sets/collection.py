"""The shards of one problem, evaluated together, and the bounds that a W and multipliers prove."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attsvm.core.norms import Norm
from attsvm.proofs.objective import Regularisation
from attsvm.solvers.schedule import MOST_BYTES
from attsvm.solvers.working_sets.bounds import Allowance, DualBound, PrimalBound
from attsvm.solvers.working_sets.constraints import Anchor, BoundSum, ConstraintTable
from attsvm.solvers.working_sets.pool import Pool
from attsvm.solvers.working_sets.pricing import Answer, Request, fetch, merge, price
from attsvm.solvers.working_sets.restriction import Restriction


@dataclass(eq=False)
class Collection:
    """The shards of one problem, ``count`` of them, with W of ``shape`` (d, dz)."""

    pool: Pool
    count: int
    shape: tuple[int, int]
    norm: Norm
    regularisation: Regularisation

    @property
    def prior(self) -> np.ndarray:
        """The prior, (d, dz)."""
        return self.regularisation.origin(self.shape)

    @property
    def constraint_bytes(self) -> int:
        """Bytes of a constraint: two tokens and a query."""
        return 8 * (2 * self.shape[0] + self.shape[1])

    def bring(self, places: np.ndarray) -> ConstraintTable:
        """Read constraints by shard, query and token, (J, 3), in the given order."""
        parts = [part for part in self._by_shard(places) if len(part[1])]
        table = self.pool.collect(fetch, ConstraintTable.concatenate, (), parts)
        shard = places[:, 0]
        if (shard[1:] >= shard[:-1]).all():
            return table
        return table.where(np.argsort(np.argsort(shard, kind="stable")))

    def ask(self, W: np.ndarray, table: ConstraintTable | None = None, *, many: bool = False, **options: Any) -> Answer:
        """Evaluate W (d, dz) on all shards; a table is the working set, and options are as for :class:`Request`.

        ``many`` announces that the largest permitted number of constraints will return.
        """
        request = Request(W, self.regularisation.hinge, self.regularisation.hard, **options)
        request = replace(request, bare=many and request.room * self.constraint_bytes > MOST_BYTES)
        places = np.zeros((0, 3), dtype=np.int64) if table is None else table.place
        answer = self.pool.collect(price, partial(merge, room=request.room), (request,), self._by_shard(places))
        bare = answer.fresh
        if not request.bare:
            return answer
        if not len(bare):
            x, z = np.zeros((0, self.shape[0])), np.zeros((0, self.shape[1]))
            return replace(answer, fresh=replace(bare, x=x, reference=x, z=z))
        return replace(answer, fresh=replace(self.bring(bare.place), at_bound=bare.at_bound, key=bare.key))

    def _by_shard(self, places: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Group constraints by shard: its number, and queries and tokens, (K, 2)."""
        rows = places[np.argsort(places[:, 0], kind="stable")]
        bounds = np.searchsorted(rows[:, 0], np.arange(self.count + 1))
        return [(k, rows[bounds[k] : bounds[k + 1], 1:]) for k in range(self.count)]

    def sum_of(self, anchor: Anchor, table: ConstraintTable, *, sharp: bool = False) -> BoundSum | None:
        """Sum the constraints at their bound at an anchor, except a table's; ``sharp`` takes twice the precision."""
        return self.ask(anchor.W, table, anchor=anchor, sums=True, sharp=sharp).bound_sum

    def judge(
        self, W: np.ndarray, restriction: Restriction, *, sharp: bool = False, **options: Any
    ) -> tuple[PrimalBound, Answer]:
        """Bound the objective at W (d, dz) from above in one pass, counting roundings; the restriction has all ties."""
        allowance = Allowance.of(W, restriction)
        answer = self.ask(W, restriction.table, allowance=allowance.whole, move=allowance.move, sharp=sharp, **options)
        return PrimalBound.of(W, self.prior, restriction.terms, allowance, answer, sharp=sharp), answer

    def bound_below(
        self, restriction: Restriction, values: np.ndarray, anchor: Anchor | None, empty: int, residual: float
    ) -> DualBound:
        """Bound the objective from below by multipliers (J,), with all sums in pairs of doubles.

        A pass sums the constraints at their bound at the anchor, so that no constraint counts twice. Other arguments
        are as for :meth:`DualBound.of`.
        """
        bound_sum = None if anchor is None else self.sum_of(anchor, restriction.table, sharp=True)
        return DualBound.of(restriction, values, bound_sum, anchor, empty, residual, sharp=True)
