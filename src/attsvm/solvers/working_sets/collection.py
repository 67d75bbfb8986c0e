"""All shards of one problem, asked together, and what a W and multipliers prove of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attsvm.core.norms import Norm
from attsvm.proofs.objective import Regularisation
from attsvm.solvers.working_sets.bounds import Allowance, Dual, Primal
from attsvm.solvers.working_sets.constraints import Anchor, Constraints
from attsvm.solvers.working_sets.pool import Pool
from attsvm.solvers.working_sets.pricing import Answer, Request, fetch, merged, price
from attsvm.solvers.working_sets.restriction import Restriction


@dataclass(eq=False)
class Collection:
    """The shards of one problem.

    Parameters
    ----------
    pool : Pool
    count : int
        Of shards.
    shape : tuple
        (d, dz).
    norm : Norm
    regularisation : Regularisation
    """

    pool: Pool
    count: int
    shape: tuple[int, int]
    norm: Norm
    regularisation: Regularisation

    @property
    def prior(self) -> np.ndarray:
        """The W to stay near, (d, dz)."""
        return self.regularisation.origin(self.shape)

    def brought(self, places: np.ndarray) -> Constraints:
        """Bring constraints here, (J, 3) shard, query and token, in that order."""
        chosen = np.unique(places[:, 0])
        own = [(int(k), places[places[:, 0] == k, 1:]) for k in chosen]
        table = Constraints.joined(self.pool.each(fetch, [int(k) for k in chosen], own))
        order = np.argsort(np.concatenate([np.flatnonzero(places[:, 0] == k) for k in chosen]))
        return table.where(order)

    def asked(self, W: np.ndarray, table: Constraints | None = None, **wishes: Any) -> Answer:
        """Ask all shards, which know the constraints of a table, about W (d, dz); wishes as for :class:`Request`."""
        request = Request(W, self.regularisation.hinge, self.regularisation.hard, **wishes)
        known = np.zeros((0, 3), dtype=np.int64)
        if table is not None:
            known = np.column_stack([table.shard, table.query, table.token])
        known = known[np.argsort(known[:, 0], kind="stable")]
        bounds = np.searchsorted(known[:, 0], np.arange(self.count + 1))
        own = [(k, known[bounds[k] : bounds[k + 1], 1:]) for k in range(self.count)]
        return self.pool.joined(price, partial(merged, room=request.room), (request,), own)

    def judged(
        self, W: np.ndarray, restriction: Restriction, *, sharp: bool = False, **wishes: Any
    ) -> tuple[Primal, Answer]:
        """Bound the objective at W (d, dz) from above in one pass, rounding counted; the restriction has all ties."""
        allowance = Allowance.of(W, restriction)
        answer = self.asked(W, restriction.table, allowance=allowance.whole, move=allowance.move, sharp=sharp, **wishes)
        return Primal.of(W, self.prior, restriction.terms, allowance, answer, sharp=sharp), answer

    def bounded(
        self, restriction: Restriction, values: np.ndarray, anchor: Anchor | None, empty: int, residual: float
    ) -> Dual:
        """Bound the objective from below by multipliers (J,), with sums in pairs of doubles.

        A pass adds up what the anchor settles, so that no constraint counts twice. Other arguments as :meth:`Dual.of`.
        """
        settled = None if anchor is None else self.asked(anchor.W, restriction.table, anchor=anchor, sums=True).settled
        return Dual.of(restriction, values, settled, anchor, empty, residual, sharp=True)
