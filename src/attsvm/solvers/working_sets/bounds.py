"""Bounds from a W on all shards and from multipliers of a working set, with every rounding counted.

:mod:`attsvm.proofs.bounds` computes the bounds. Multipliers that are not listed are zero or enter as a sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attsvm.core.error_free import gamma
from attsvm.core.norms import frobenius
from attsvm.core.rounding import FUNCTION_ROUNDING, PAIRWISE, growth
from attsvm.proofs.bounds import Bulk, distance_above, lower_bound, objective_above
from attsvm.proofs.certified import TIE_TOLERANCE
from attsvm.proofs.objective import Terms
from attsvm.proofs.ties import tie_move
from attsvm.solvers.working_sets.constraints import Anchor, BoundSum, ConstraintTable
from attsvm.solvers.working_sets.pricing import Answer
from attsvm.solvers.working_sets.restriction import Restriction

# Number of roundings that a term of a loss passes through: pairwise sums within a block, and those of its price. Sums
# over blocks and shards are rounded up.
ADDITIONS = PAIRWISE + 16


@dataclass(frozen=True)
class Allowance:
    """Amounts counted against every margin of a W, over the length of the constraint.

    Attributes
    ----------
    whole : float
        Rounding of a margin, plus the move that makes ties exact.
    move : float
        The move, in the Frobenius norm.
    residual : float
        Upper bound on the margins of the ties if no move is known; else zero.
    """

    whole: float
    move: float
    residual: float

    @classmethod
    def of(cls, W: np.ndarray, restriction: Restriction | None) -> Allowance:
        """Bound the rounding of the margins of W (d, dz); the restriction has all ties."""
        size = frobenius(W)
        # Roundings of differences, products with W z, the scaling of W and margins, and the product with the length.
        rounding = gamma(sum(W.shape) + 8) * size * (1 + FUNCTION_ROUNDING)
        problem = None if restriction is None else restriction.problem
        if problem is None or not problem.has_ties:
            return cls(rounding, 0.0, 0.0)
        move = tie_move(problem, W, size)
        if move <= TIE_TOLERANCE * size:
            return cls((rounding + move) * (1 + FUNCTION_ROUNDING), move, 0.0)
        margins = np.abs(problem.apply(W)) + rounding * problem.lengths
        return cls(rounding, 0.0, float(margins.max(where=problem.tied, initial=0.0)))


@dataclass(frozen=True, eq=False)
class PrimalBound:
    """A W, scaled to margin one if the margin is hard, and the upper bound that it proves.

    Attributes
    ----------
    W : ndarray, shape (d, dz)
    norm, objective : float
        Norm of W minus the prior, and the objective, as computed; infinite if W is not feasible.
    upper_bound : float
        Upper bound on the smallest objective, every rounding counted.
    tie_residual : float
        Largest difference of tied scores at a margin of one.
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
    ) -> PrimalBound:
        """Bound the objective at W (d, dz) from the answer of all shards; ``sharp`` sums norms exactly."""
        unit, nothing = 1.0, answer.smallest == math.inf
        if terms.hard and not nothing:
            if not answer.smallest > 0:
                return cls(W, math.inf, math.inf, math.inf, 0.0)
            # A prior permits scaling up only.
            unit = answer.smallest if not prior.any() else min(answer.smallest, 1.0)
        W = W / unit
        size = terms.norm.value(W - prior)
        objective = terms.of_length(size) + terms.price(answer.shortfall, answer.square)
        longer = allowance.move / unit * growth(terms.norm, W.shape) * (1 + FUNCTION_ROUNDING)
        distance, length = distance_above(terms.norm, W, size, prior, sharp=sharp)
        floor = (
            math.inf
            if nothing
            else answer.floor / unit * (1 - math.copysign(4 * FUNCTION_ROUNDING, answer.floor)) - 1.0
        )
        loss = terms.price(answer.shortfall_above, answer.square_above) * (1 + gamma(ADDITIONS))
        residual = allowance.residual / unit
        high, residual = objective_above(terms, distance + longer, length + longer, loss, floor, residual)
        return cls(W, size, min(objective, high), high, residual)


@dataclass(frozen=True, eq=False)
class DualBound:
    """Multipliers, and the lower bound that they prove once scaled to be admissible.

    Attributes
    ----------
    values : ndarray, shape (J,)
        Multipliers of the table.
    anchor : Anchor or None
        Determines the constraints of the sum.
    bound : float
        Lower bound on the smallest objective, as computed.
    lower_bound : float
        The lower bound with every rounding counted.
    """

    table: ConstraintTable
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
    ) -> DualBound:
        """Scale multipliers (J,) to the best bound they prove.

        Parameters
        ----------
        values : ndarray, shape (J,)
        bound_sum : BoundSum or None
            Constraints whose multipliers are C.
        empty : int
            Number of rejected tokens of a soft margin that no W moves; each adds its loss to both bounds.
        residual : float
            Largest difference of tied scores.
        sharp : bool
            Compute sums over the working set in pairs of doubles.
        """
        program, terms = restriction.program, restriction.terms
        dual = terms.clip(restriction.scatter(values))
        adjoint = program.problem.adjoint(dual)
        bulk, gain, top = None, 0.0, 0.0
        if bound_sum is not None and bound_sum.count:
            top = terms.upper
            gain = top * (bound_sum.count - float(np.vdot(bound_sum.adjoint, program.origin)))
            adjoint = adjoint + top * bound_sum.adjoint
        length = terms.norm.dual(adjoint)
        scale, plain = terms.bound(dual, adjoint, length, gain=gain, top=top)
        if bound_sum is not None and bound_sum.count:
            unit = scale * top
            bulk = Bulk(unit * bound_sum.count, bound_sum.pair.times(unit), unit * bound_sum.error)
        dual, scaled_adjoint = terms.clip(dual * scale), adjoint * scale
        low = lower_bound(program, dual, scaled_adjoint, length * scale, residual, sharp=sharp, bulk=bulk)
        if empty and not terms.hard:
            loss = terms.charge(np.ones(1)) * empty
            plain, low = plain + loss, low + loss * (1 - 1e-15)
        # The sum counts at its bound, so scaling only the listed multipliers would prove less.
        table_dual = dual if bulk is None else terms.clip(restriction.scatter(values))
        return cls(restriction.table, table_dual[restriction.row, restriction.column], bound_sum, anchor, plain, low)
