"""Bounds from a W on all shards and from multipliers of a working set, rounding counted.

The bounds are those of :mod:`attsvm.proofs.bounds`; multipliers that are not listed are zero, or enter as a sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attsvm.core.error_free import gamma
from attsvm.core.norms import frobenius
from attsvm.core.rounding import FEW, PAIRWISE, growth
from attsvm.proofs.bounds import Bulk, distance_above, lower_bound, objective_above
from attsvm.proofs.certified import TIE_TOLERANCE
from attsvm.proofs.objective import Terms
from attsvm.proofs.ties import tie_move
from attsvm.solvers.working_sets.constraints import Anchor, BoundSum, Constraints
from attsvm.solvers.working_sets.pricing import Answer
from attsvm.solvers.working_sets.restriction import Restriction

# Additions that a term of a loss passes through: pairwise within a block, then exactly rounded sums of sums.
ADDITIONS = PAIRWISE + 100


@dataclass(frozen=True)
class Allowance:
    """What is counted against every margin of a W, in parts of the constraint's length.

    Attributes
    ----------
    whole : float
        Rounding of a margin, and the move that makes ties exact.
    move : float
        That move, in the Frobenius norm.
    residual : float
        Largest margin of a tie from above, where no move is known; zero otherwise.
    """

    whole: float
    move: float
    residual: float

    @classmethod
    def of(cls, W: np.ndarray, restriction: Restriction | None) -> Allowance:
        """Bound what rounding does to margins of W (d, dz); all ties are in the restriction."""
        size = frobenius(W)
        # Differences, their products with W z, the scaling of W and margins, and the product with the length.
        rounding = gamma(sum(W.shape) + 8) * size * (1 + FEW)
        problem = None if restriction is None else restriction.problem
        if problem is None or not problem.has_ties:
            return cls(rounding, 0.0, 0.0)
        move = tie_move(problem, W, size)
        if move <= TIE_TOLERANCE * size:
            return cls((rounding + move) * (1 + FEW), move, 0.0)
        margins = np.abs(problem.apply(W)) + rounding * problem.lengths
        return cls(rounding, 0.0, float(margins.max(where=problem.tied, initial=0.0)))


@dataclass(frozen=True, eq=False)
class Primal:
    """A W, scaled to margin one where the margin is hard, and what it proves.

    Attributes
    ----------
    W : ndarray, shape (d, dz)
    norm, objective : float
        The norm of W less the prior, and the objective, as computed; infinite where W is not feasible.
    upper_bound : float
        On the smallest objective, every rounding counted.
    tie_residual : float
        How far, at a margin of one, the scores of tied tokens may differ.
    """

    W: np.ndarray
    norm: float
    objective: float
    upper_bound: float
    tie_residual: float

    @classmethod
    def of(
        cls,
        W: np.ndarray,
        prior: np.ndarray,
        terms: Terms,
        allowance: Allowance,
        answer: Answer,
        *,
        sharp: bool = False,
    ) -> Primal:
        """Bound the objective at W (d, dz) by the answer of all shards, the allowance counted; ``sharp`` as there."""
        unit, nothing = 1.0, answer.smallest == math.inf
        if terms.hard and not nothing:
            if not answer.smallest > 0:
                return cls(W, math.inf, math.inf, math.inf, 0.0)
            # With a prior W is scaled up only.
            unit = answer.smallest if not prior.any() else min(answer.smallest, 1.0)
        W = W / unit
        size = terms.norm.value(W - prior)
        objective = terms.of_length(size) + terms.price(answer.shortfall, answer.square)
        longer = allowance.move / unit * growth(terms.norm, W.shape) * (1 + FEW)
        distance, length = distance_above(terms.norm, W, size, prior, sharp=sharp)
        floor = math.inf if nothing else answer.floor / unit * (1 - math.copysign(4 * FEW, answer.floor)) - 1.0
        loss = terms.price(answer.shortfall_above, answer.square_above) * (1 + gamma(ADDITIONS))
        residual = allowance.residual / unit
        high, residual = objective_above(terms, distance + longer, length + longer, loss, floor, residual)
        return cls(W, size, min(objective, high), high, residual)


@dataclass(frozen=True, eq=False)
class Dual:
    """Multipliers, and the bound they prove once they are scaled to be admissible.

    Attributes
    ----------
    table : Constraints
    values : ndarray, shape (J,)
        Of the table.
    bound_sum : BoundSum or None
    anchor : Anchor or None
        Which constraints are in that sum.
    bound : float
        On the smallest objective, as computed.
    lower_bound : float
        The same, every rounding counted.
    """

    table: Constraints
    values: np.ndarray
    bound_sum: BoundSum | None
    anchor: Anchor | None
    bound: float
    lower_bound: float

    @classmethod
    def of(
        cls,
        restriction: Restriction,
        values: np.ndarray,
        bound_sum: BoundSum | None,
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
        bound_sum : BoundSum or None
            Constraints whose multipliers are C.
        anchor : Anchor or None
        empty : int
            Rejected tokens of a soft margin that no W moves: each adds its loss to both sides.
        residual : float
            How far scores of tied tokens may differ.
        sharp : bool
            Take sums over the working set in pairs of doubles.
        """
        problem, terms, prior = restriction.problem, restriction.terms, restriction.prior
        dual = terms.clip(restriction.scatter(values))
        adjoint = problem.adjoint(dual)
        bulk, gain, top = None, 0.0, 0.0
        if bound_sum is not None and bound_sum.count:
            top = terms.upper
            gain = top * (bound_sum.count - float(np.vdot(bound_sum.adjoint, prior)))
            adjoint = adjoint + top * bound_sum.adjoint
        length = terms.norm.dual(adjoint)
        scale, plain = terms.bound(dual, adjoint, length, gain=gain, top=top)
        if bound_sum is not None and bound_sum.count:
            unit = scale * top
            bulk = Bulk(unit * bound_sum.count, bound_sum.pair.times(unit), unit * bound_sum.error)
        dual, scaled_adjoint = terms.clip(dual * scale), adjoint * scale
        low = lower_bound(problem, terms, dual, scaled_adjoint, length * scale, residual, prior, sharp=sharp, bulk=bulk)
        if empty and not terms.hard:
            loss = terms.charge(np.ones(1)) * empty
            plain, low = plain + loss, low + loss * (1 - 1e-15)
        # The sum is counted at its bound, so the listed multipliers are not scaled: scaled alone they prove less.
        table_dual = dual if bulk is None else terms.clip(restriction.scatter(values))
        return cls(restriction.table, table_dual[restriction.row, restriction.column], bound_sum, anchor, plain, low)
