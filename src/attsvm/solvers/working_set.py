r"""The outer loop of problems larger than memory, in every norm: working sets, priced where the tokens lie.

Of n T constraints at most d dz or so are ever active, so the problem restricted to a few tokens a query is small. Each
round solves the restriction with the norm's own method, reads all tokens once, block by block, and lets the worst
violated constraints of every query join; those far from active, without a multiplier, leave. Multipliers of a
restriction bound the whole problem (all others are zero) and a certificate of infeasibility holds for it too; W, scaled
to margin one over all constraints, bounds it from the other side. Only the last rounds solve to the accuracy asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from attsvm.core.norms import Norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import TIE_PRECISION, Reduced, reduce
from attsvm.solvers.common.control import Control

Method = Callable[[Reduced, Control, np.ndarray | None], np.ndarray | None]

FIRST, JOINING = 6, 4  # tokens a query: at the start, and at most in each round
ROUNDS = 100
# Gaps of the restrictions: the first, and what the next is of the present gap. A gap tells how far W is from the
# whole problem's solution, so a finer restriction would not tell better which constraints join.
ROUGH, FINER = 1e-2, 0.03
# Margins above this, in parts of the smallest asked for, let a constraint without multiplier leave.
SLACK = 1.2


@dataclass(frozen=True)
class Prices:
    """What all constraints say of one W.

    Attributes
    ----------
    smallest : float
        Smallest margin of a rejected token.
    tie : float
        Largest margin of a tied one, in absolute value.
    joining : ndarray of bool, shape (n, T)
        The most violated constraints of every query outside the working set.
    idle : ndarray of bool, shape (n, T)
        Constraints of the working set that are far from active.
    """

    smallest: float
    tie: float
    joining: np.ndarray
    idle: np.ndarray


class Pricing(Protocol):
    """Wherever the constraints are: what the loop asks of them."""

    def zero(self) -> np.ndarray:
        """Mark the rejected tokens whose margin is zero under every W, (n, T)."""
        ...

    def first(self) -> np.ndarray:
        """Choose a working set to begin with, (n, T)."""
        ...

    def price(self, W: np.ndarray, working: np.ndarray) -> Prices:
        """Evaluate all constraints at W (d, dz)."""
        ...


class TokenPricing:
    """Constraints of one problem, in memory or in a memory map, read block by block.

    Parameters
    ----------
    problem : SelectionProblem
    """

    def __init__(self, problem: SelectionProblem) -> None:
        self.problem = problem

    def zero(self) -> np.ndarray:
        """Mark the rejected tokens that equal the selected one, or whose query is zero, (n, T)."""
        problem = self.problem
        out = problem.rejected & ~np.any(problem.queries, axis=1, keepdims=True)
        for rows, delta in problem.differences():
            out[rows] |= problem.rejected[rows] & ~delta.any(axis=2)
        return out

    def first(self) -> np.ndarray:
        """Choose the ties, and the smallest margins of the sum of all constraints, (n, T)."""
        problem = self.problem
        W = problem.adjoint(problem.rejected.astype(float))
        out = problem.tied.copy()
        u = problem.queries @ W.T
        for rows, delta in problem.differences():
            margins = np.matmul(delta, u[rows, :, None])[..., 0]
            out[rows] |= smallest_of_each(margins, problem.rejected[rows], FIRST)
        return out

    def price(self, W: np.ndarray, working: np.ndarray) -> Prices:
        """Evaluate all constraints at W (d, dz), in one pass over the tokens."""
        problem, smallest, tie = self.problem, np.inf, 0.0
        joining, idle = np.zeros(working.shape, dtype=bool), np.zeros(working.shape, dtype=bool)
        u = problem.queries @ W.T
        for rows, delta in problem.differences():
            margins = np.matmul(delta, u[rows, :, None])[..., 0]
            rejected, here = problem.rejected[rows], working[rows]
            smallest = min(smallest, float(np.min(margins, where=rejected, initial=np.inf)))
            tie = max(tie, float(np.abs(margins[problem.tied[rows]]).max(initial=0.0)))
            joining[rows] = smallest_of_each(margins, rejected & ~here & (margins < 1.0), JOINING)
            idle[rows] = rejected & here & (margins > SLACK)
        return Prices(smallest, tie, joining, idle)


def smallest_of_each(margins: np.ndarray, among: np.ndarray, count: int) -> np.ndarray:
    """Mark the ``count`` smallest margins of each row among the marked ones, (rows, T)."""
    values = np.where(among, margins, np.inf)
    count = min(count, values.shape[1])
    nearest = np.argpartition(values, count - 1, axis=1)[:, :count]
    chosen = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(chosen, nearest, np.isfinite(np.take_along_axis(values, nearest, axis=1)), axis=1)
    return chosen


def solve_on_working_sets(
    problem: SelectionProblem, norm: Norm, control: Control, method: Method, pricing: Pricing | None = None
) -> np.ndarray | None:
    """Solve a hard margin on working sets; W and multipliers (n, T) go to ``control`` in the original coordinates.

    Parameters
    ----------
    problem : SelectionProblem
    norm : Norm
    control : Control
    method : callable
        Solves a restriction that fits into memory, as the methods of :func:`attsvm.solve` do.
    pricing : Pricing, optional
        Reads all constraints; by default from the problem's own tokens.

    Returns
    -------
    ndarray, shape (n, T), or None
        Multipliers that prove infeasibility, when they do.
    """
    pricing = pricing or TokenPricing(problem)
    control.method = "working sets"
    zero = pricing.zero()
    if zero.any():
        return zero / zero.sum()
    working = pricing.first()
    target = max(ROUGH, 0.5 * control.tol)
    for _ in range(ROUNDS):
        reduced = reduce(problem, rotate=norm.base.invariant, transform=norm.transform, working=working)
        inner = control.inner(target)
        certificate = method(reduced, inner, None)
        if certificate is not None:
            return reduced.lift_dual(certificate)
        if inner.W is None or inner.dual is None:
            control.stopped = control.stopped or inner.stopped
            return None
        control.method = f"working sets ({inner.method})"
        W = reduced.lift(inner.W) / reduced.min_margin(reduced.apply(inner.W))
        dual = reduced.lift_dual(inner.dual)
        prices = pricing.price(W, working)
        usable = prices.smallest > 0 and prices.tie <= TIE_PRECISION * prices.smallest
        objective = norm.value(W) / prices.smallest if usable else np.inf
        bound = inner.state.lower_bound / reduced.scale
        before = control.state.gap
        if control.observe(W if usable else None, objective, dual, bound, steps=max(1, inner.iterations)):
            return None
        gap = control.state.gap
        if not prices.joining.any():
            if target <= 0.5 * control.tol and not gap < 0.9 * before:
                return None
            target = max(0.5 * control.tol, 0.1 * target)
        elif np.isfinite(gap):
            target = max(0.5 * control.tol, min(target, FINER * gap))
        working = (working & ~(prices.idle & (dual == 0.0))) | prices.joining
    return None
