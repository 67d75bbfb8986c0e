r"""The outer loop over shards: solve the working set here, price all constraints there, let violated ones join.

As in :mod:`attsvm.solvers.working_set`, but nothing here has the size of the tokens, nor of one number a query: the
state is the working set's table, its multipliers and a W. Each round solves the restriction with the norm's own method,
sends W out, and gets back what all constraints say of it and the few most violated. The bound of a restriction is one of
the whole problem, and multipliers that prove a restriction infeasible prove the whole so.

A hinge has as many multipliers at C as constraints that fall short. Those clearly short at an anchor enter as their sum,
with a linear loss (:mod:`attsvm.solvers.sharded.restriction`); constraints that turn out to be on the wrong side join
the working set one by one, or, where they are many, the anchor moves to the W at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from attsvm.core.norms import Norm, frobenius
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.regularised import Regularisation
from attsvm.solvers.sharded.dual import Dual
from attsvm.solvers.sharded.pool import Pool
from attsvm.solvers.sharded.pricing import (
    DEEP,
    Answer,
    Constraints,
    Request,
    Settled,
    added,
    direction,
    fetch,
    merged,
    price,
)
from attsvm.solvers.sharded.primal import Allowance, Primal
from attsvm.solvers.sharded.restriction import Restriction, without
from attsvm.solvers.working_set import FINER, FIRST, JOINING, ROOM, ROUGH, ROUNDS, SHRINKING, SLACK

Method = Callable[[Setting, Control, np.ndarray | None], np.ndarray | None]

# How far from the anchor, in parts of its length, a sum's loss is taken to be linear; divided by this where that failed.
REACH, NEARER = 2.0, 4.0
EVERY = 1 << 40


@dataclass(frozen=True)
class Round:
    """A round in numbers.

    Attributes
    ----------
    working, new : int
        Constraints that were solved here, and those that came back.
    smallest : float
        Smallest margin of all constraints.
    objective, lower_bound : float
        The best so far.
    sent, received : int
        Bytes out and back.
    inner_seconds, pass_seconds : float
        What the working set and the pass took.
    """

    working: int
    new: int
    smallest: float
    objective: float
    lower_bound: float
    sent: int
    received: int
    inner_seconds: float
    pass_seconds: float


@dataclass(eq=False)
class State:
    """Where a run is: all that a checkpoint holds.

    Attributes
    ----------
    table : Constraints
    dual : ndarray, shape (J,)
    W : ndarray, shape (d, dz)
        Of the last round.
    target : float
        Gap that the next restriction is solved to.
    rounds : int
    anchor : ndarray, shape (d, dz), or None
    reach : float
    room : int
    settled : Settled or None
    """

    table: Constraints
    dual: np.ndarray
    W: np.ndarray
    target: float
    rounds: int
    room: int
    anchor: np.ndarray | None = None
    reach: float = 0.0
    settled: Settled | None = None


@dataclass(eq=False)
class Shards:
    """The loop over the shards of one problem.

    Parameters
    ----------
    pool : Pool
    count : int
        Of shards.
    shape : tuple
        (d, dz).
    norm : Norm
    regularisation : Regularisation
    control : Control
    method : callable
        Solves a restriction.
    keep : callable
        Called with the state after every round.
    """

    pool: Pool
    count: int
    shape: tuple[int, int]
    norm: Norm
    regularisation: Regularisation
    control: Control
    method: Method
    keep: Callable[[State], None]
    log: list[Round] = field(default_factory=list)
    primal: Primal | None = None
    dual: Dual | None = None
    certificate: FarkasCertificate | None = None
    empty: int = 0

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

    def begin(self) -> State:
        """Choose the first working set: the smallest margins of the sum of all constraints, and all ties."""
        none = [()] * self.count
        W = self.pool.joined(direction, added, (), none)
        request = Request(W, 0.0, FIRST, self._room, nearest=True, hard=self.hard)
        answer = self._priced(request, None)
        target = max(ROUGH, 0.5 * self.control.tol)
        return State(answer.fresh, np.zeros(len(answer.fresh)), np.zeros(self.shape), target, 0, self._room)

    def brought(self, places: np.ndarray) -> Constraints:
        """Bring constraints here, (J, 3) shard, query and token, in that order."""
        chosen = np.unique(places[:, 0])
        own = [(int(k), places[places[:, 0] == k, 1:]) for k in chosen]
        table = Constraints.joined(self.pool.each(fetch, [int(k) for k in chosen], own))
        order = np.argsort(np.concatenate([np.flatnonzero(places[:, 0] == k) for k in chosen]))
        return table.where(order)

    def run(self, state: State) -> None:
        """Go on from a state, until the control is satisfied."""
        control = self.control
        control.method = "shards"
        while state.rounds < ROUNDS and self._round(state):
            self.keep(state)

    @property
    def _room(self) -> int:
        return ROOM * self.shape[0] * self.shape[1]

    def _priced(self, request: Request, table: Constraints | None) -> Answer:
        """Ask all shards."""
        known = np.zeros((0, 3), dtype=np.int64)
        if table is not None:
            known = np.column_stack([table.shard, table.query, table.token])
        known = known[np.argsort(known[:, 0], kind="stable")]
        bounds = np.searchsorted(known[:, 0], np.arange(self.count + 1))
        own = [(k, known[bounds[k] : bounds[k + 1], 1:]) for k in range(self.count)]
        return self.pool.joined(price, partial(merged, room=request.room), (request,), own)

    def _round(self, state: State) -> bool:
        """Solve, price, and let constraints join; False when the run is at its end."""
        control, before = self.control, self._traffic()
        began = control.seconds
        restriction = Restriction.of(state.table, self.norm, self.regularisation)
        centre = self.prior if state.anchor is None else state.anchor
        setting = restriction.setting(state.settled, centre, state.reach)
        inner = control.inner(state.target)
        inner.unit = setting.value_unit
        start = restriction.start(setting, state.dual) if state.dual.any() else None
        certificate = self.method(setting, inner, start)
        if certificate is not None:
            multipliers = setting.reduced.lift_dual(certificate)[: len(restriction.problem.mask)]
            proof = FarkasCertificate(restriction.problem, multipliers)
            self.certificate = proof if proof.verify() else None
            return False
        if inner.W is None or inner.dual is None:
            control.stopped = control.stopped or inner.stopped
            return False
        control.method = f"shards ({inner.method})"
        W = setting.reduced.lift(inner.W) + self.prior
        lifted = setting.reduced.lift_dual(inner.dual) / setting.unit
        values = lifted[restriction.row, restriction.column]
        del setting
        solved = control.seconds
        allowance = Allowance.of(W, restriction)
        request = Request(
            W, allowance.whole, self._each(state), state.room, anchor=state.anchor, hinge=self.hinge, hard=self.hard
        )
        answer = self._priced(request, state.table)
        self.empty = answer.empty
        primal = Primal.of(W, self.prior, restriction.terms, allowance, answer)
        dual = Dual.of(restriction, values, state.settled, state.anchor, answer.empty, primal.tie_residual)
        gap = control.state.gap
        done = control.observe(
            primal.W, primal.upper_bound, values, dual.lower_bound, steps=max(1, inner.iterations)
        )
        if self.primal is None or primal.upper_bound < self.primal.upper_bound:
            self.primal = primal
        if self.dual is None or dual.lower_bound > self.dual.lower_bound:
            self.dual = dual
        sent, received = (after - earlier for after, earlier in zip(self._traffic(), before, strict=True))
        self.log.append(
            Round(
                working=len(state.table),
                new=len(answer.fresh),
                smallest=answer.smallest,
                objective=control.state.objective,
                lower_bound=control.state.lower_bound,
                sent=sent,
                received=received,
                inner_seconds=solved - began,
                pass_seconds=control.seconds - solved,
            )
        )
        state.W, state.dual, state.rounds = W, values, state.rounds + 1
        if done:
            return False
        if self.hinge and answer.misplaced > len(answer.fresh):
            self._move_anchor(state, restriction, primal, answer)
        else:
            self._join(state, restriction, answer)
        return self._sharpen(state, grown=bool(len(answer.fresh)), before=gap)

    def _each(self, state: State) -> int:
        """Most constraints of a query that may join: all that fall short end up there with a squared hinge."""
        if self.hard:
            return JOINING
        return EVERY if self.hinge else JOINING << min(state.rounds, 20)

    def _join(self, state: State, restriction: Restriction, answer: Answer) -> None:
        """Let what came back join, and what is far from active leave."""
        table, dual = state.table, state.dual
        margins = restriction.problem.apply(state.W)[restriction.row, restriction.column]
        # What leaves a hard margin's working set before a W is found that satisfies everything comes back.
        shrinking = not self.hinge and state.rounds <= SHRINKING
        if shrinking and not (self.hard and np.isinf(self.control.state.gap)):
            stay = table.tied | (margins <= SLACK) | (dual > 0)
            table, dual = table.where(stay), dual[stay]
        if state.settled is not None and answer.fresh.settled.any():
            state.settled = without(state.settled, answer.fresh.where(answer.fresh.settled))
        state.table = Constraints.joined([table, answer.fresh])
        state.dual = np.concatenate([dual, np.where(answer.fresh.settled, restriction.terms.upper, 0.0)])

    def _move_anchor(self, state: State, restriction: Restriction, primal: Primal, answer: Answer) -> None:
        """Settle what is clearly short at the best W; what is near margin one there stands for itself."""
        assert self.primal is not None
        margins = restriction.problem.apply(state.W)[restriction.row, restriction.column]
        inner = (state.dual > 0) & (state.dual < restriction.terms.upper)
        stay = state.table.tied | inner | (np.abs(margins - 1.0) <= DEEP)
        better = primal.upper_bound <= self.primal.upper_bound
        state.anchor = self.primal.W
        longest = REACH * max(frobenius(state.anchor - self.prior), 1e-3)
        state.reach = longest if better or state.settled is None else state.reach / NEARER
        state.room *= 2
        state.table = Constraints.joined([state.table.where(stay), answer.fresh])
        state.dual = np.concatenate([state.dual[stay], np.zeros(len(answer.fresh))])
        state.settled = self._summed(state.table, state.anchor)

    def _summed(self, table: Constraints, anchor: np.ndarray) -> Settled | None:
        """Add up what falls clearly short at an anchor, less what stands for itself."""
        request = Request(anchor, 0.0, 1, 1, anchor=anchor, sums=True, hinge=True, hard=False)
        return self._priced(request, table).settled

    def _sharpen(self, state: State, *, grown: bool, before: float) -> bool:
        """Set the gap of the next restriction; False when nothing is to be gained."""
        gap, finest = self.control.state.gap, 0.5 * self.control.tol
        if not grown:
            if state.target <= finest and not gap < 0.9 * before:
                return False
            state.target = max(finest, 0.1 * state.target)
        elif np.isfinite(gap):
            state.target = max(finest, min(state.target, FINER * gap))
        return True

    def _traffic(self) -> tuple[int, int]:
        return self.pool.sent, self.pool.received

    def settle(self) -> None:
        """Sum once more what the bound rests on, in one pass, so that no constraint counts twice in it."""
        dual = self.dual
        if dual is None or dual.anchor is None or dual.settled is None:
            return
        settled = self._summed(dual.restriction.table, dual.anchor)
        residual = 0.0 if self.primal is None else self.primal.tie_residual
        self.dual = Dual.of(dual.restriction, dual.values, settled, dual.anchor, self.empty, residual)
