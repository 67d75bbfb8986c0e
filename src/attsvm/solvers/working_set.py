r"""The outer loop of problems larger than memory: every norm, hard and soft margins, with and without a prior.

Of n T constraints at most d dz or so have a multiplier strictly between its bounds, so the problem restricted to a few
tokens a query is small. Each round solves the restriction with the norm's own method, reads all tokens once, block by
block, and lets violated constraints of every query join; those far from active leave. Multipliers of a restriction
bound the whole problem (all others are zero) and a certificate of infeasibility holds for it too; W, scaled to margin
one over all constraints, or with the losses of all of them, bounds it from the other side. Only the last rounds solve
to the accuracy asked for.

A selection that cannot be kept has many multipliers at C, which need no constraint of their own: those of a query enter
as the sum of theirs, :math:`\max(0, \sum u_t) \le \sum\max(0, u_t)`, with one multiplier for all. That restricts the
dual, and is exact where all of them fall short, so memory stays bounded whatever C is. Tokens on their way to C and
away from it form groups of the same kind; those near margin one stand for themselves. The square of the hinge has no
such bound on its multipliers: there the working set ends with all tokens that fall short.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import SMALLEST, TIE_PRECISION, independent_ties, reduce
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting, Terms

Method = Callable[[Setting, Control, np.ndarray | None], np.ndarray | None]

FIRST, JOINING = 6, 4  # tokens a query: at the start, and at most in each round
# Hard margins have no more supports than W has entries: so many times those join at the start and in each round.
ROOM = 8
ROUNDS = 100
# Gaps of the restrictions: the first, and what the next is of the present gap. A gap tells how far W is from the
# whole problem's solution, so a finer restriction would not tell better which constraints join.
ROUGH, FINER = 1e-2, 0.03
# Margins above this, in parts of the smallest asked for, let a constraint leave whose multiplier is on its way to zero.
SLACK = 1.2
# Groups of a query's tokens that enter as one sum: those at C, those on the way to it, and those that leave it. They
# fall short by more than DEEP of the margin; multipliers above BOUNDED of C are taken to be at C.
FULL, RISING, FALLING = 1, 2, 3
DEEP, BOUNDED = 0.02, 0.9
# Tokens of a query that stand for themselves, from which on what falls short by as much enters as a sum, though none is
# at C yet.
MANY = 10
# Rounds after which constraints only join: sets that shrink and grow by guesses could go on for ever.
SHRINKING = 15


@dataclass(frozen=True)
class WorkingSet:
    """Rejected tokens that stand for themselves, and those that enter as sums; ties belong to the first.

    Attributes
    ----------
    single : ndarray of bool, shape (n, T)
    groups : ndarray of int, shape (n, T)
        Zero, or the number of the token's group.
    """

    single: np.ndarray
    groups: np.ndarray


@dataclass(frozen=True)
class Prices:
    """What all constraints say of one W.

    Attributes
    ----------
    smallest : float
        Smallest margin of a rejected token.
    tie : float
        Largest margin of a tied one, in absolute value.
    loss : float
        Sum of the losses.
    working : WorkingSet
        Of the next round.
    likely : ndarray, shape (n, T)
        Multipliers to start from: those that are on their way to a bound, at it.
    grown : bool
        Whether anything in the working set is new.
    """

    smallest: float
    tie: float
    loss: float
    working: WorkingSet
    likely: np.ndarray
    grown: bool


class Pricing(Protocol):
    """Wherever the constraints are: what the loop asks of them."""

    def zero(self) -> np.ndarray:
        """Mark the rejected tokens whose margin is zero under every W, (n, T)."""
        ...

    def first(self, terms: Terms) -> np.ndarray:
        """Choose a working set to begin with, (n, T)."""
        ...

    def price(
        self, W: np.ndarray, dual: np.ndarray, length: float, working: WorkingSet, terms: Terms, k: int, shrinking: bool
    ) -> Prices:
        """Evaluate all constraints at W (d, dz) in round k, for multipliers (n, T).

        Multipliers times ``length`` are of the size of those with W = A^T dual. ``shrinking`` lets constraints leave.
        """
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

    def first(self, terms: Terms) -> np.ndarray:
        """Choose the ties, and the smallest margins of the sum of all constraints, (n, T)."""
        problem = self.problem
        W = problem.adjoint(terms.rejected.astype(float))
        nearest, distances = np.zeros(problem.mask.shape, dtype=bool), []
        u = problem.queries @ W.T
        for rows, delta in problem.differences():
            margins = np.matmul(delta, u[rows, :, None])[..., 0]
            nearest[rows] = smallest_of_each(margins, terms.rejected[rows], FIRST)
            distances.append((margins / np.maximum(problem.lengths[rows], SMALLEST))[nearest[rows]])
        return self._few(nearest, distances, terms) | problem.tied

    def _few(self, entering: np.ndarray, distances: list[np.ndarray], terms: Terms) -> np.ndarray:
        """Keep the smallest of the marked constraints' distances, in order of their places, as far as there is room."""
        room = ROOM * int(np.prod(self.problem.shape[2:]))
        distance = np.concatenate(distances) if distances else np.zeros(0)
        if terms.hard and len(distance) > room:
            entering[entering] = distance <= np.partition(distance, room)[room]
        return entering

    def price(
        self, W: np.ndarray, dual: np.ndarray, length: float, working: WorkingSet, terms: Terms, k: int, shrinking: bool
    ) -> Prices:
        """Evaluate all constraints at W (d, dz), in one pass over the tokens."""
        problem, smallest, tie, loss = self.problem, np.inf, 0.0, 0.0
        fresh, distances = np.zeros(problem.mask.shape, dtype=bool), []
        single, groups, likely = working.single.copy(), working.groups.copy(), dual.copy()
        u = problem.queries @ W.T
        for rows, delta in problem.differences():
            margins = np.matmul(delta, u[rows, :, None])[..., 0]
            inequalities, tied, squares = terms.rejected[rows], problem.tied[rows], problem.lengths[rows] ** 2 * length
            smallest = min(smallest, float(np.min(margins, where=inequalities, initial=np.inf)))
            tie = max(tie, float(np.abs(margins[tied]).max(initial=0.0)))
            loss += terms.charge(1.0 - margins[inequalities])
            here, group, values = single[rows], groups[rows], likely[rows]
            violated = inequalities & ~here & (group == 0) & (margins < 1.0)
            # A constraint by itself would move its multiplier by this much.
            values += np.where(inequalities & here, np.clip((1.0 - margins) / squares, -values, terms.upper), 0.0)
            np.clip(values, 0.0, terms.upper, out=values, where=inequalities)
            values[(group > 0) & (values >= BOUNDED * terms.upper)] = terms.upper
            inner = (values > 0.0) & (values < terms.upper)
            values[inner] = dual[rows][inner]
            if shrinking:
                here &= tied | (margins <= SLACK) | (values > 0)
            if np.isfinite(terms.upper):
                entering = _regroup(margins, values >= terms.upper, violated, here & inequalities, group)
                here &= group == 0
            else:
                entering = smallest_of_each(margins, violated, JOINING << min(k, 20) if terms.shift > 0 else JOINING)
            single[rows], groups[rows], fresh[rows] = here, group, entering
            distances.append(((margins - 1.0) / np.maximum(problem.lengths[rows], SMALLEST))[entering])
        fresh = self._few(fresh, distances, terms)
        return Prices(smallest, tie, loss, WorkingSet(single | fresh, groups), likely, bool(fresh.any()))


def _regroup(
    margins: np.ndarray, bounded: np.ndarray, violated: np.ndarray, here: np.ndarray, group: np.ndarray
) -> np.ndarray:
    """Move tokens between the groups of their query, in place; returns those that become constraints of their own.

    Members of a group share one multiplier, so a group takes in only tokens whose multipliers are as large as its own.
    """
    above, deep = margins > 1.0, margins < 1.0 - DEEP
    risen = (group == RISING) & bounded & deep
    crossing = (group > 0) & (above == (group != FALLING))
    group[crossing] = np.where(above, FALLING, RISING)[crossing]
    group[risen] = FULL
    # A full group that is not at C would take along what joins it.
    full = ~np.any((group == FULL) & ~bounded, axis=1, keepdims=True)
    group[here & bounded & deep & full] = FULL
    many = np.any(bounded & deep, axis=1, keepdims=True) | (here.sum(axis=1, keepdims=True) >= MANY)
    group[violated & deep & many] = RISING
    nearest = smallest_of_each(np.abs(margins - 1.0), crossing | violated & ~(many & deep), JOINING)
    group[nearest] = 0
    group[(group == FALLING) & (margins > SLACK) & ~bounded] = 0
    return nearest


def smallest_of_each(values: np.ndarray, among: np.ndarray, count: int) -> np.ndarray:
    """Mark the smallest ``count`` of the marked values of each row, (rows, T)."""
    busy = np.flatnonzero(among.sum(axis=1) > count)
    if not len(busy):
        return among
    smallest = among.copy()
    inside = np.where(among[busy], values[busy], np.inf)
    marks = np.zeros(inside.shape, dtype=bool)
    np.put_along_axis(marks, np.argpartition(inside, count - 1, axis=1)[:, :count], True, axis=1)
    smallest[busy] &= marks
    return smallest


def solve_on_working_sets(
    problem: SelectionProblem,
    terms: Terms,
    prior: np.ndarray | None,
    control: Control,
    method: Method,
    start: np.ndarray | None = None,
    pricing: Pricing | None = None,
) -> np.ndarray | None:
    """Solve on working sets; W - W0 and multipliers (n, T) go to ``control`` in the original coordinates.

    Parameters
    ----------
    problem : SelectionProblem
    terms : Terms
        Of the whole problem, in the original coordinates. Rejected tokens whose margin is zero under every W are a
        certificate of a hard margin; a soft one leaves them out.
    prior : ndarray, shape (d, dz), or None
        W0; None for zero.
    control : Control
    method : callable
        Solves a restriction that fits into memory, from multipliers or None.
    start : ndarray, shape (n, T), optional
        Multipliers of a similar problem.
    pricing : Pricing, optional
        Reads all constraints; by default from the problem's own tokens.

    Returns
    -------
    ndarray, shape (n, T), or None
        Multipliers that prove infeasibility, when they do.
    """
    pricing = pricing or TokenPricing(problem)
    control.method = "working sets"
    norm, W0 = terms.norm, np.zeros(problem.shape[2:]) if prior is None else prior
    zero = pricing.zero()
    if zero.any() and terms.hard:
        return zero / zero.sum()
    single, groups = pricing.first(terms) & (terms.rejected | problem.tied), np.zeros(zero.shape, dtype=np.int8)
    if start is not None:
        groups[terms.rejected & (start >= terms.upper)] = FULL
        single = (single | terms.rejected & (start > 0)) & (groups == 0)
    working = WorkingSet(single, groups)
    constant = terms.charge(np.ones(int((zero & problem.rejected & ~terms.rejected).sum())))
    target, likely = max(ROUGH, 0.5 * control.tol), start
    for k in range(ROUNDS):
        setting = _restriction(problem, terms, W0, working)
        inner = control.inner(target)
        inner.unit = setting.value_unit
        certificate = method(setting, inner, None if likely is None else setting.reduced.gather(likely) * setting.unit)
        if certificate is not None:
            return setting.reduced.lift_dual(certificate)
        if inner.W is None or inner.dual is None:
            control.stopped = control.stopped or inner.stopped
            return None
        control.method = f"working sets ({inner.method})"
        V, dual = setting.reduced.lift(inner.W), setting.reduced.lift_dual(inner.dual) / setting.unit
        del setting  # with its copy of the tokens, before the next one is made
        W = V + W0
        # Multipliers of the size of those with W = A^T dual tell by how far a constraint is from active.
        length = 1.0 if terms.norm.euclidean else norm.value(V)
        # What leaves a hard margin's working set before a W is found that satisfies everything comes back.
        shrinking = k < SHRINKING and not (terms.hard and np.isinf(control.state.gap))
        prices = pricing.price(W, dual, length, working, terms, k, shrinking)
        objective = np.inf
        if prices.tie <= TIE_PRECISION * (prices.smallest if terms.hard else 1.0):
            if not terms.hard:
                objective = terms.size(V) + prices.loss + constant
            elif prices.smallest > 0:
                V = W / prices.smallest - W0 if np.isfinite(prices.smallest) else V
                objective = terms.size(V)
        before, bound = control.state.gap, inner.state.lower_bound + constant
        if control.observe(V if objective < np.inf else None, objective, dual, bound, steps=max(1, inner.iterations)):
            return None
        gap, working, likely, grown = control.state.gap, prices.working, prices.likely, prices.grown
        del prices, dual
        if not grown:
            if target <= 0.5 * control.tol and not gap < 0.9 * before:
                return None
            target = max(0.5 * control.tol, 0.1 * target)
        elif np.isfinite(gap):
            target = max(0.5 * control.tol, min(target, FINER * gap))
    return None


def _restriction(problem: SelectionProblem, terms: Terms, prior: np.ndarray, working: WorkingSet) -> Setting:
    reduced = reduce(
        problem,
        rotate=terms.norm.base.invariant,
        transform=terms.norm.transform,
        working=working.single,
        groups=working.groups if working.groups.any() else None,
    )
    return Setting.of(independent_ties(reduced), terms, prior)
