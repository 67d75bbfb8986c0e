"""All shards of one problem, asked together, and what a W and multipliers prove of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attsvm.core.norms import Norm
from attsvm.solvers.common.regularisation import Regularisation
from attsvm.solvers.working_sets.constraints import Anchor, Constraints
from attsvm.solvers.working_sets.dual import Dual
from attsvm.solvers.working_sets.pool import Pool
from attsvm.solvers.working_sets.pricing import Answer, Request, fetch, merged, price
from attsvm.solvers.working_sets.primal import Allowance, Primal
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
    def hinge(self) -> bool:
        """Whether multipliers have an upper bound."""
        return self.regularisation.C is not None and self.regularisation.loss == "hinge"

    @property
    def hard(self) -> bool:
        """Whether no margin may fall short."""
        return self.regularisation.C is None

    @property
    def prior(self) -> np.ndarray:
        """The W to stay near, (d, dz)."""
        prior = self.regularisation.prior
        return np.zeros(self.shape) if prior is None else prior

    def brought(self, places: np.ndarray) -> Constraints:
        """Bring constraints here, (J, 3) shard, query and token, in that order."""
        chosen = np.unique(places[:, 0])
        own = [(int(k), places[places[:, 0] == k, 1:]) for k in chosen]
        table = Constraints.joined(self.pool.each(fetch, [int(k) for k in chosen], own))
        order = np.argsort(np.concatenate([np.flatnonzero(places[:, 0] == k) for k in chosen]))
        return table.where(order)

    def priced(self, request: Request, table: Constraints | None) -> Answer:
        """Ask all shards, which know the constraints of a table."""
        known = np.zeros((0, 3), dtype=np.int64)
        if table is not None:
            known = np.column_stack([table.shard, table.query, table.token])
        known = known[np.argsort(known[:, 0], kind="stable")]
        bounds = np.searchsorted(known[:, 0], np.arange(self.count + 1))
        own = [(k, known[bounds[k] : bounds[k + 1], 1:]) for k in range(self.count)]
        return self.pool.joined(price, partial(merged, room=request.room), (request,), own)

    def judged(self, W: np.ndarray, restriction: Restriction, request: Request) -> tuple[Primal, Answer]:
        """Bound the objective at W (d, dz) from above in one pass, rounding counted.

        Parameters
        ----------
        W : ndarray, shape (d, dz)
        restriction : Restriction
            Has all ties.
        request : Request
            What else is asked in that pass, and whether it is ``sharp``.
        """
        allowance = Allowance.of(W, restriction)
        request = replace(request, W=W, allowance=allowance.whole, move=allowance.move)
        answer = self.priced(request, restriction.table)
        return Primal.of(W, self.prior, restriction.terms, allowance, answer, sharp=request.sharp), answer

    def bounded(
        self, restriction: Restriction, values: np.ndarray, anchor: Anchor | None, empty: int, residual: float
    ) -> Dual:
        """Bound the objective from below by multipliers (J,), with sums in pairs of doubles.

        A pass adds up what the anchor settles, so that no constraint counts twice. Other arguments as :meth:`Dual.of`.
        """
        settled = None
        if anchor is not None:
            request = Request(anchor.W, 0.0, 1, 1, anchor=anchor, sums=True, hinge=True, hard=False)
            settled = self.priced(request, restriction.table).settled
        return Dual.of(restriction, values, settled, anchor, empty, residual, sharp=True)
