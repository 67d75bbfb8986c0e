r"""The outer loop of problems larger than memory, of every norm: solve the working set, price all, let violated join.

Of n T constraints at most d dz or so have a multiplier strictly between its bounds. Tokens lie in shards, on workers or
in files; those of a problem in memory, or of a memory map, are one shard. Nothing here has their size, nor that of one
number a query: the state is the working set's table, its multipliers and a W. Each round solves the restriction with
the norm's own method, sends W out, and gets back what all constraints say of it and the few most violated. The bound of
a restriction is one of the whole problem, and multipliers that prove a restriction infeasible prove the whole so. Only
the last rounds solve to the accuracy asked for.

A hinge has as many multipliers at C as constraints that fall short. Those short by more than a band at an *anchor*
enter as their sum, with a linear loss (:mod:`attsvm.solvers.working_sets.restriction`); those above the band are left
out. While the band holds more constraints than there is room for, a random sample stands for them, each with the weight
of its share: p entries of W are known from K of them to a part sqrt(p/K), so that around the new W a band of a third is
enough. Once all of the band is here the restriction is one of the dual and bounds the problem; what is then on the
wrong side joins one by one, or, where that is much, the anchor moves and there is more room. The square of the hinge
has no such bound on its multipliers: there the working set ends with all constraints that fall short.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np

from attsvm.core.norms import frobenius
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import proven_gap
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.multipliers import proximal_step
from attsvm.solvers.schedule import (
    BLOCKED,
    CHEAP_STEP,
    CLOSE,
    DOUBTFUL,
    FIRST_PENALTY,
    FOCUS,
    LARGE,
    PRICED,
    PROXIMAL_ENTRIES,
    PROXIMAL_STEPS,
    SURPLUS,
    Method,
)
from attsvm.solvers.working_sets.bounds import Dual, Primal
from attsvm.solvers.working_sets.collection import Collection
from attsvm.solvers.working_sets.constraints import Anchor, Constraints, added
from attsvm.solvers.working_sets.pricing import DISTANCES, Answer, direction
from attsvm.solvers.working_sets.restriction import Restriction, balanced, without
from attsvm.solvers.working_sets.state import Round, State

FIRST, JOINING = 6, 4  # constraints of a query: at the start, and at most in each round
# No more constraints are active than W has entries: so many times those join at the start and in each round.
ROOM = 8
# Tokens that a squared hinge, which has more active ones, begins with where that is more.
FIRST_BYTES = 1 << 24
ROUNDS = 100
# Gaps of the restrictions: the first, and what the next is of the present gap. A gap tells how far W is from the
# whole problem's solution, so a finer restriction would not tell better which constraints join.
ROUGH, FINER = 1e-2, 0.03
# Margins above this let a constraint leave whose multiplier is on its way to zero.
SLACK = 1.2
# Rounds after which constraints only join: sets that shrink and grow by guesses could go on for ever.
SHRINKING = 15
# How far from the anchor, in parts of its length, a sum's loss is taken to be linear.
REACH, NEAR = 2.0, 0.05
# More than any query has: all of them may join.
EVERY = 1 << 40
# What a band holds of the one before, and the gap its sample is solved to, in squares of its share of all constraints.
NARROWER, SAMPLED_GAP = 1 / 3, 0.1
# Fewest constraints of a sample.
SAMPLE = 2000
# Accuracy of a step of the method of multipliers, in parts of the root of the gap.
GRADIENT = 1e-2


@dataclass(eq=False)
class Shards(Collection):
    """The loop over the shards of one problem.

    Parameters
    ----------
    control : Control
    method : callable
        Solves a restriction.
    keep : callable
        Called with the state after every round, if given.

    Attributes
    ----------
    primal, dual
        The best so far.
    certificate, restriction
        Multipliers of a restriction that prove that no W exists.
    """

    control: Control
    method: Method
    keep: Callable[[State], None] | None = None
    log: list[Round] = field(default_factory=list)
    primal: Primal | None = None
    dual: Dual | None = None
    certificate: FarkasCertificate | None = None
    restriction: Restriction | None = None
    empty: int = 0
    constant: float = 0.0

    def begin(self, guess: np.ndarray | None = None) -> State:
        """Choose the first working set: all ties, and constraints whose margins at a guess of W are the smallest.

        Parameters
        ----------
        guess : ndarray, shape (d, dz), optional
            The W of a similar problem. Default: the sum of all constraints; with a hinge, a sample is drawn of all.
        """
        finest, start = 0.5 * self.control.tol, np.zeros(self.shape) if guess is None else guess
        state = State(Constraints.none(*self.shape), np.zeros(0), start, max(ROUGH, finest), 0, self._room)
        if self.regularisation.hinge:
            band = np.inf
            if guess is not None:
                state.distances = self.asked(guess).distances
                band = _band(state.distances, state.room)
            self._anchored(state, Anchor(start, band))
        else:
            W = self.pool.joined(direction, added, (), [()] * self.count) if guess is None else guess
            answer = self.asked(W, each=FIRST, room=state.room, nearest=True)
            # Ties alone ask for nothing that the zero matrix does not have.
            if answer.rejected or self.prior.any():
                state.table, state.dual = answer.fresh, np.zeros(len(answer.fresh))
            state.band = answer.misplaced
            if self.regularisation.hard and self.norm.euclidean and self.shape[0] * self.shape[1] >= PROXIMAL_ENTRIES:
                state.penalty = FIRST_PENALTY
        if state.anchor is None and state.band <= np.count_nonzero(~state.table.tied):
            state.target = finest  # all constraints are here
        return state

    def run(self, state: State) -> Generator[float, None, None]:
        """Go on from a state, until the control is satisfied; yields the work of each step."""
        if not len(state.table):
            self._without_constraints()
            return
        self.control.method = "working sets"
        while state.rounds < ROUNDS and (yield from self._round(state)):
            pass

    def _without_constraints(self) -> None:
        """Answer where no token is rejected that a W could move, and none tied: the prior."""
        self.control.method = "closed form"
        answer = self.asked(self.prior)
        loss = 0.0 if self.regularisation.hard else float(self.regularisation.C or 0.0) * answer.empty
        self.primal = Primal(self.prior, 0.0, loss, loss, 0.0)
        self.constant = loss

    @property
    def lower_bound(self) -> float:
        """The best bound so far."""
        return self.constant if self.dual is None else self.dual.lower_bound

    @property
    def _room(self) -> int:
        room = ROOM * self.shape[0] * self.shape[1]
        if self.regularisation.hard:
            return room
        return max(room, SAMPLE if self.regularisation.hinge else FIRST_BYTES // (8 * self.shape[0]))

    def _round(self, state: State) -> Generator[float, None, bool]:
        """Solve, price, and let constraints join; False when the run is at its end."""
        control, before = self.control, self._traffic()
        began = control.seconds
        restriction = Restriction.of(state.table, self.norm, self.regularisation)
        centre = self.prior if state.anchor is None else state.anchor.W
        table = state.table
        same = (table.x == table.reference[table.owner]).all(axis=1) | ~table.z[table.owner].any(axis=1)
        fixed = restriction.scattered(same & ~table.tied)
        if fixed.any():  # of a hard margin: no W moves their margins from zero
            self.restriction = restriction
            self.certificate = FarkasCertificate(restriction.problem, fixed / fixed.sum())
            return False
        setting, whole = restriction.setting(state.settled, centre, state.reach, state.weight)
        inner = control.inner(state.target)
        inner.unit = setting.value_unit
        pair = (
            (yield from self._near(state, restriction, setting))
            if state.penalty
            else (yield from self._inner(state, restriction, setting, inner))
        )
        if pair is None:
            return False
        W = setting.reduced.lift(pair[0]) + self.prior
        lifted = setting.reduced.lift_dual(pair[1]) / setting.unit
        values = lifted[restriction.row, restriction.column]
        del setting, pair
        solved = control.seconds
        each, room = self._limits(state)
        primal, answer = self.judged(W, restriction, each=each, room=room, anchor=state.anchor)
        self.empty = answer.empty
        yield float(answer.rejected) * W.shape[0] / PRICED
        # A sample bounds nothing.
        known = values if state.weight == 1.0 else np.zeros(len(values))
        if state.settled is not None and state.weight == 1.0 and not restriction.terms.squared:
            known = balanced(restriction, values, state.settled, whole, lifted)
        dual = Dual.of(restriction, known, state.settled, state.anchor, answer.empty, primal.tie_residual)
        gap = control.state.gap
        steps = max(1, inner.iterations)
        # Rounding is counted, or taken away, in the end: no further round would do that.
        done = control.observe(primal.W, primal.objective, values, dual.bound, steps=steps)
        if self.primal is None or primal.objective < self.primal.objective:
            self.primal = primal
        if self.dual is None or dual.bound > self.dual.bound:
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
        if done and control.solved:
            return False
        more = self._changed(state, restriction, answer, gap, inner.state.gap, better=self.primal is primal)
        if self.keep is not None:
            self.keep(state)
        return more and not done

    def _changed(
        self, state: State, restriction: Restriction, answer: Answer, before: float, reached: float, *, better: bool
    ) -> bool:
        """Choose the next working set, and how it is solved; False when nothing is to be gained.

        ``before`` is the gap before this round, ``reached`` that of the restriction, and ``better`` says whether its W
        is the best so far.
        """
        if self.regularisation.hinge and (state.weight > 1.0 or answer.misplaced > len(answer.fresh)):
            self._narrow(state, answer, better=better)
            return True
        grown = bool(len(answer.fresh))
        if self._wide(state) and not grown and better:
            self._focus(state, answer)
        else:
            self._join(state, restriction, answer)
        if not state.penalty:
            return self._sharpen(state, grown=grown, before=before, reached=reached)
        gap = self.control.state.gap
        # Multipliers of contradictory constraints grow without end.
        hopeless = np.isinf(gap) and state.rounds >= DOUBTFUL
        if hopeless or gap <= CLOSE or state.rounds >= PROXIMAL_STEPS:
            state.penalty = 0.0
        if hopeless:
            state.dual = np.zeros(len(state.dual))
        if gap <= CLOSE:
            state.target = 0.5 * self.control.tol
        return True

    def _inner(
        self, state: State, restriction: Restriction, setting: Setting, inner: Control
    ) -> Generator[float, None, tuple[np.ndarray, np.ndarray] | None]:
        """Solve a restriction by the norm's own method: V and multipliers in its coordinates; None ends the run."""
        # From a start Newton goes on first, which rows of a sum beside those of constraints slow to a crawl.
        warm = state.dual.any() and state.settled is None
        if warm and self.regularisation.hard:
            setting.offer(setting.reduced.lower(state.W - self.prior), inner)
        certificate = yield from self.method(setting, inner, restriction.start(setting, state.dual) if warm else None)
        if certificate is not None:
            multipliers = setting.reduced.lift_dual(certificate)[: len(restriction.problem.mask)]
            proof = FarkasCertificate(restriction.problem, multipliers)
            if proof.verify():
                self.restriction, self.certificate = restriction, proof
            return None
        if inner.W is None or inner.dual is None:
            self.control.stopped = self.control.stopped or inner.stopped
            return None
        self.control.method = f"working sets ({inner.method or 'warm start'})"
        return inner.W, inner.dual

    def _near(
        self, state: State, restriction: Restriction, setting: Setting
    ) -> Generator[float, None, tuple[np.ndarray, np.ndarray]]:
        """Make a step of the method of multipliers on a restriction: V and multipliers in its coordinates."""
        self.control.method = "working sets (method of multipliers)"
        tol = GRADIENT * min(1.0, self.control.state.gap) ** 0.5
        start = setting.reduced.lower(state.W - self.prior)
        V, dual, products = proximal_step(setting, start, restriction.start(setting, state.dual), state.penalty, tol)
        active = np.count_nonzero(dual)
        yield 4.0 * products * active * setting.reduced.queries.shape[1] * setting.reduced.shape[0] / BLOCKED
        if active > SURPLUS * self.shape[0] * self.shape[1]:
            state.penalty *= 10.0
        elif products < CHEAP_STEP:
            state.penalty *= 2.0
        return setting.on_ties(V), dual

    def _limits(self, state: State) -> tuple[int, int]:
        """Most constraints of a query, and of all, that may join."""
        if self.regularisation.hard or self.regularisation.hinge:
            return (JOINING if self.regularisation.hard else EVERY), state.room
        # With a squared hinge all that fall short end up here.
        growth = min(state.rounds, 20)
        return JOINING << growth, state.room << 2 * growth

    def _join(self, state: State, restriction: Restriction, answer: Answer) -> None:
        """Let what came back join, and what is far from active leave."""
        table, dual = state.table, state.dual
        margins = restriction.problem.apply(state.W)[restriction.row, restriction.column]
        # What leaves a hard margin's working set before a W is found that satisfies everything comes back.
        shrinking = not self.regularisation.hinge and state.rounds <= SHRINKING
        if state.penalty or (shrinking and not (self.regularisation.hard and np.isinf(self.control.state.gap))):
            # Interior points leave every multiplier positive: what counts is where its own constraint would move it.
            length = 1.0 if self.norm.euclidean else self.norm.value(state.W - self.prior)
            squares = restriction.problem.lengths[restriction.row, restriction.column] ** 2 * length
            stay = table.tied | (margins <= SLACK) | (dual > (margins - 1.0) / squares)
            table, dual = table.where(stay), dual[stay]
        if state.settled is not None and answer.fresh.settled.any():
            state.settled = without(state.settled, answer.fresh.where(answer.fresh.settled))
        if state.anchor is not None:
            # The nearer, the less of the restriction's objective is the demands of the sum, and the finer its gap.
            moved, length = (frobenius(state.W - origin) for origin in (state.anchor.W, self.prior))
            state.reach = max(REACH * moved, NEAR * length)
        state.table = Constraints.joined([table, answer.fresh])
        state.dual = np.concatenate([dual, np.where(answer.fresh.settled, restriction.terms.upper, 0.0)])

    def _wide(self, state: State) -> bool:
        """Whether so much of a hinge is here that a narrower band would be worth while."""
        return self.regularisation.hinge and len(state.table) > LARGE * self._room

    def _focus(self, state: State, answer: Answer) -> None:
        """Move the anchor to the best W, from which the next one will not be far: few constraints are in doubt."""
        state.distances = answer.distances
        wanted = max(self._room, FOCUS * len(state.table))
        self._anchored(state, Anchor(state.W, _band(answer.distances, wanted)))
        state.reach = NEAR * frobenius(state.W - self.prior)

    def _narrow(self, state: State, answer: Answer, *, better: bool) -> None:
        """Move the anchor to the best W, with a band of so many constraints as are in doubt there."""
        assert self.primal is not None
        before, wanted = state.band, float(state.band)
        if better:
            state.distances = answer.distances
        if state.weight == 1.0 or not better:
            state.room *= 2
        if state.weight == 1.0:
            wanted = state.room
        elif better:
            wanted = max(state.room, NARROWER * state.band)
        assert state.distances is not None
        anchor = Anchor(self.primal.W, _band(state.distances, wanted))
        self._anchored(state, anchor)
        if better and state.weight > 1.0 and state.band > 0.5 * before:
            # Many margins are equal: no band is narrow enough, and all of it has to be here.
            state.room = state.band
            self._anchored(state, anchor)
        share = state.band / max(answer.rejected, 1)
        state.target = max(0.5 * self.control.tol, min(ROUGH, SAMPLED_GAP * share * share))

    def _anchored(self, state: State, anchor: Anchor) -> None:
        """Bring a sample of the band around an anchor here, and the sum of what is settled."""
        whole = np.isinf(anchor.band)
        answer = self.asked(anchor.W, each=EVERY, room=state.room, anchor=anchor, sums=not whole, sample=state.rounds)
        state.anchor, state.table = None if whole else anchor, answer.fresh
        state.dual = np.zeros(len(answer.fresh))
        state.settled, state.band = answer.settled, answer.misplaced
        state.weight = max(1.0, answer.misplaced / max(int((~answer.fresh.tied).sum()), 1))
        state.reach = REACH * max(frobenius(anchor.W - self.prior), 1e-3)

    def _sharpen(self, state: State, *, grown: bool, before: float, reached: float) -> bool:
        """Set the gap of the next restriction, this one's being ``reached``; False when nothing is to be gained."""
        gap, finest = self.control.state.gap, 0.5 * self.control.tol
        if not grown:
            # A restriction that nothing joins is the whole problem: only a sum still depends on where W is.
            whole = state.anchor is None and reached <= finest
            if whole or (state.target <= finest and not gap < 0.9 * before):
                return False
            state.target = max(finest, 0.1 * min(state.target, reached))
        elif np.isfinite(gap):
            state.target = max(finest, min(state.target, FINER * gap))
        if gap <= CLOSE and not self._wide(state):
            state.target = finest
        return True

    def _traffic(self) -> tuple[int, int]:
        return self.pool.sent, self.pool.received

    def settle(self, tol: float) -> None:
        """Sum once more what the bounds rest on: what is settled, and all in twice the precision if the gap is open."""
        dual, primal = self.dual, self.primal
        if dual is None or primal is None or primal.objective == np.inf:
            return
        wide = proven_gap(dual.lower_bound, primal.upper_bound, primal.tie_residual) > tol
        restriction = Restriction.of(dual.table, self.norm, self.regularisation)
        if dual.settled is not None or wide:
            self.dual = self.bounded(restriction, dual.values, dual.anchor, self.empty, primal.tie_residual)
        if wide:
            sharp, _ = self.judged(primal.W, restriction, sharp=True)
            self.primal = min(primal, sharp, key=lambda one: one.upper_bound)


def _band(distances: np.ndarray, wanted: float) -> float:
    """Find the widest band that holds so many constraints at most, of which so many are how far from one (bins,)."""
    places = np.flatnonzero(np.cumsum(distances) <= wanted)
    return float(DISTANCES[places[-1] + 1 if len(places) else 1])
