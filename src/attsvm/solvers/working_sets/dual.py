"""What multipliers of a working set prove of the whole problem: all others are zero, or known by their sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.solvers.common.certified_pair import Bulk, dual_below
from attsvm.solvers.working_sets.constraints import Anchor, Constraints, Settled
from attsvm.solvers.working_sets.restriction import Restriction


@dataclass(frozen=True, eq=False)
class Dual:
    """Multipliers, and the bound they prove once they are scaled to be admissible.

    Attributes
    ----------
    table : Constraints
    values : ndarray, shape (J,)
        Of the table.
    settled : Settled or None
    anchor : Anchor or None
        Which constraints those are.
    bound : float
        On the smallest objective, as computed.
    lower_bound : float
        The same, every rounding counted.
    """

    table: Constraints
    values: np.ndarray
    settled: Settled | None
    anchor: Anchor | None
    bound: float
    lower_bound: float

    @classmethod
    def of(
        cls,
        restriction: Restriction,
        values: np.ndarray,
        settled: Settled | None,
        anchor: Anchor | None,
        empty: int,
        residual: float,
        *,
        sharp: bool = False,
    ) -> Dual:
        """Scale multipliers (J,) to the best bound they prove.

        Parameters
        ----------
        restriction : Restriction
        values : ndarray, shape (J,)
        settled : Settled or None
            Multipliers at C.
        anchor : Anchor or None
        empty : int
            Rejected tokens of a soft margin that no W moves: each adds its loss to both sides.
        residual : float
            How far scores of tied tokens may differ.
        sharp : bool
            Take sums over the working set in pairs of doubles.
        """
        problem, terms, prior = restriction.problem, restriction.terms, restriction.prior
        dual = terms.clip(restriction.scattered(values))
        adjoint = problem.adjoint(dual)
        bulk, gain, top = None, 0.0, 0.0
        if settled is not None and settled.count:
            top = terms.upper
            gain = top * (settled.count - float(np.vdot(settled.pull, prior)))
            adjoint = adjoint + top * settled.pull
        length = terms.norm.dual(adjoint)
        scale, plain = terms.bound(dual, adjoint, length, gain=gain, top=top)
        if settled is not None and settled.count:
            bulk = Bulk(scale * gain, scale * top * settled.error)
        dual = terms.clip(dual * scale)
        low = dual_below(problem, terms, prior, dual, adjoint * scale, length * scale, residual, sharp=sharp, bulk=bulk)
        if empty and not terms.hard:
            loss = terms.charge(np.ones(1)) * empty
            plain, low = plain + loss, low + loss * (1 - 1e-15)
        # What is settled is counted at its bound, and the others beside it: scaled apart they prove less.
        listed = dual if bulk is None else terms.clip(restriction.scattered(values))
        return cls(restriction.table, listed[restriction.row, restriction.column], settled, anchor, plain, low)
