r"""The outer loop of problems larger than memory, of every norm: solve the working set, price all, let violated join.

Of n T constraints at most d dz or so have a multiplier strictly between its bounds. Tokens lie in shards, on workers or
in files; those of a problem in memory, or of a memory map, are one shard. Nothing here has their size, nor that of one
number a query: the state is the working set's table, its multipliers and a W. Each round solves the restriction with
the norm's own method, sends W to the shards, and receives sums over its margins and the few most violated constraints.
The bound of a restriction is one of the whole problem, and multipliers that prove a restriction infeasible prove the
whole so. Only the last rounds solve to the accuracy asked for.

A hinge has as many multipliers at C as constraints that fall short. Those short by more than a band at an *anchor*
enter as their sum, with a linear loss (:mod:`attsvm.solvers.working_sets.restriction`); those above the band are left
out. While the band holds more constraints than there is room for, a random sample represents them, each with the
weight of its share: p entries of W are known from K of them to a part sqrt(p/K), so that around the new W a band of a
third is enough. Once all of the band is listed the restriction is one of the dual and bounds the problem; constraints
that are then on the wrong side join one by one, or, where they are many, the anchor moves and there is more room. The
square of the hinge has no such bound on its multipliers: there the working set ends with all constraints that fall
short.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np

from attsvm.core.memory import available_bytes
from attsvm.core.norms import frobenius
from attsvm.core.status import Status
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import proven_gap
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.multipliers import proximal_step
from attsvm.solvers.schedule import (
    BLAS_RATE,
    CHEAP_STEP,
    CLOSE_GAP,
    DOUBTFUL,
    FIRST_PENALTY,
    FOCUS,
    LARGE,
    MOST_BYTES,
    PRICING_RATE,
    PROXIMAL_ENTRIES,
    PROXIMAL_STEPS,
    SURPLUS,
    Method,
)
from attsvm.solvers.working_sets.bounds import Dual, Primal
from attsvm.solvers.working_sets.collection import Collection
from attsvm.solvers.working_sets.constraints import Anchor, Constraints
from attsvm.solvers.working_sets.pricing import Answer, direction
from attsvm.solvers.working_sets.restriction import Restriction
from attsvm.solvers.working_sets.state import Round, State

# No more constraints are active than W has entries: so many times those join at the start and in each round.
ROOM = 8
# Bytes of as many, at most, at the start and in each round of a hard margin: where W has more entries, the working set
# grows to what is needed.
ROOM_BYTES, JOINING_BYTES = 1 << 26, 1 << 25
# Of those of a hard margin, at most so many of a query: 15 classes (750, 15, 25) in the spectral norm take 119 steps
# instead of 167 and half the time.
FIRST, JOINING = 6, 4
# Bytes of the constraints that a squared hinge, which has more active ones, begins with where these are more.
FIRST_BYTES = 1 << 23
# Bytes that a round takes in addition to its working set, in those of the working set.
COPIES = 4
# Matrices over the active constraints that are held at a time.
FACTORS = 2
ROUNDS = 100
# What a squared hinge's room grows by in a round.
ROOMIER = 4
# Gaps of the restrictions: the first, and what the next is of the present gap. A gap tells how far W is from the
# whole problem's solution, so a finer restriction would not tell better which constraints join.
ROUGH, FINER = 1e-2, 0.03
# A constraint with a margin above this leaves where its multiplier tends to zero.
SLACK = 1.2
# Rounds after which constraints only join: sets that shrink and grow by guesses need not come to an end.
SHRINKING = 15
# How far from the anchor, in parts of its length, a sum's loss is taken to be linear.
REACH, NEAR_REACH, LEAST_REACH = 2.0, 0.05, 1e-3
# What a band holds of the one before, and the gap its sample is solved to, in squares of its share of all constraints.
NARROWER, SAMPLED_GAP = 1 / 3, 0.1
# Of as many as there is room for a band holds this part, as a sample of it is rarely further off.
SURELY = 0.9
# Fewest constraints of a sample.
SAMPLE = 2000
# Accuracy of a step of the method of multipliers, in parts of the root of the gap.
GRADIENT = 1e-2


@dataclass(eq=False)
class Rounds(Collection):
    """The loop over the shards of one problem.

    Attributes
    ----------
    control : Control
    method : callable
        Solves a restriction.
    keep : callable
        Called with the state after every round, if given.
    log : list of Round
    primal : Primal or None
    dual : Dual or None
        The best so far.
    certificate : FarkasCertificate or None
        A proof that no W exists.
    contradiction : Restriction or None
        The restriction whose multipliers that proof consists of.
    empty : int
        Rejected tokens that no W moves.
    """

    control: Control
    method: Method
    keep: Callable[[State], None] | None = None
    log: list[Round] = field(default_factory=list)
    primal: Primal | None = None
    dual: Dual | None = None
    certificate: FarkasCertificate | None = None
    contradiction: Restriction | None = None
    empty: int = 0

    def begin(self, guess: np.ndarray | None = None) -> State:
        """Choose the first working set: all ties, and constraints whose margins at a guess of W (d, dz) are smallest.

        The guess is the W of a similar problem, or the sum of all constraints; a hinge's are drawn at random.
        """
        hinge, start = self.regularisation.hinge, np.zeros(self.shape) if guess is None else guess
        if hinge:
            answer = self.ask(start, many=True, room=self._room, anchor=Anchor(start, np.inf), sample=0)
        else:
            W = self.pool.collect(direction, sum, (), [(k,) for k in range(self.count)]) if guess is None else guess
            each = FIRST if self.regularisation.hard else None
            answer = self.ask(W, many=True, room=self._room, each=each, below=np.inf)
        # The zero matrix satisfies ties alone.
        table = answer.fresh.where(slice(None) if answer.rejected or self.prior.any() else slice(0))
        joining = JOINING_BYTES // self.constraint_bytes if self.regularisation.hard else self._room
        state = State(table, np.zeros(len(table)), start, ROUGH, max(1, min(self._room, joining)))
        share = np.count_nonzero(~table.tied) / max(answer.candidate_count, 1)
        if share >= 1.0 or not answer.candidate_count:
            state.target = 0.5 * self.control.tol  # all constraints are listed
        elif hinge:
            state.weight = 1.0 / share
            if guess is not None:
                self._anchor(state, Anchor(guess, _band(state.table, guess, SURELY * share)))
        if self.regularisation.hard and self.norm.euclidean and self.shape[0] * self.shape[1] >= PROXIMAL_ENTRIES:
            state.penalty = FIRST_PENALTY
        return state

    def run(self, state: State) -> Generator[float, None, None]:
        """Go on from a state, until the control is satisfied; yields the work of each step."""
        if not len(state.table):
            # No token is rejected that a W could move, and none tied.
            self.control.method, answer = "closed form", self.ask(self.prior)
            loss = (self.regularisation.least or 0.0) * answer.empty
            self.primal = Primal(self.prior, 0.0, loss, loss, 0.0)
            return
        self.control.method = "working sets"
        while state.rounds < ROUNDS and (yield from self._round(state)):
            pass

    @property
    def lower_bound(self) -> float:
        """The best bound so far."""
        if self.dual is not None:
            return self.dual.lower_bound
        return 0.0 if self.primal is None else self.primal.objective

    @property
    def _room(self) -> int:
        room = min(ROOM * self.shape[0] * self.shape[1], ROOM_BYTES // self.constraint_bytes)
        least = 1 if self.regularisation.hard else SAMPLE
        if not (self.regularisation.hard or self.regularisation.hinge):
            least = FIRST_BYTES // self.constraint_bytes
        return max(room, least)

    def _round(self, state: State) -> Generator[float, None, bool]:
        """Solve, price, and let constraints join; False when the run is at its end."""
        control, start, sent, received = self.control, self.control.seconds, self.pool.sent, self.pool.received
        if COPIES * len(state.table) * self.constraint_bytes > available_bytes():
            control.stopped = Status.MEMORY_LIMIT
            return False
        restriction = Restriction.of(state.table, self.norm, self.regularisation)
        still = (state.table.x == state.table.reference).all(axis=1) | ~state.table.z.any(axis=1)
        fixed = restriction.scatter(still & ~state.table.tied)
        if fixed.any() and self._refutes(restriction, fixed / fixed.sum()):  # no W moves them from a margin of zero
            return False
        anchor = self.prior if state.anchor is None else state.anchor.W
        # The nearer, the less of the restriction's objective is the demands of the sum, and the finer its gap.
        distance, length = (frobenius(state.W - origin) for origin in (anchor, self.prior))
        reach = max(REACH * distance, (NEAR_REACH if state.weight == 1.0 else REACH) * length, LEAST_REACH)
        setting, whole = restriction.setting(state.bound_sum, anchor, reach, state.weight)
        inner = control.inner(state.target)
        inner.unit = setting.value_unit
        pair = (
            (yield from self._proximal(state, restriction, setting))
            if state.penalty
            else (yield from self._inner(state, restriction, setting, inner))
        )
        if pair is None:
            return False
        W = setting.reduced.lift(pair[0]) + self.prior
        whole_dual = setting.reduced.lift_dual(pair[1]) / setting.unit
        values = whole_dual[restriction.row, restriction.column]
        del setting, pair
        solved = control.seconds
        each = JOINING if self.regularisation.hard else None
        # Fewer and fewer constraints are violated.
        many = not self.log or self.log[-1].new * self.constraint_bytes > MOST_BYTES
        primal, answer = self.judge(W, restriction, many=many, room=state.room, each=each, anchor=state.anchor)
        self.empty = answer.empty
        yield float(answer.rejected) * W.shape[0] / PRICING_RATE
        # A sample bounds nothing.
        multipliers = values if state.weight == 1.0 else np.zeros(len(values))
        if state.bound_sum is not None and state.weight == 1.0 and not restriction.terms.squared:
            multipliers = restriction.balance(values, state.bound_sum, whole, whole_dual)
        dual = Dual.of(restriction, multipliers, state.bound_sum, state.anchor, answer.empty, primal.tie_residual)
        gap = control.state.gap
        steps = max(1, inner.iterations)
        # Rounding is counted, or taken away, in the end: no further round would do that.
        is_done = control.observe(primal.W, primal.objective, values, dual.bound, steps=steps)
        if self.primal is None or primal.objective < self.primal.objective:
            self.primal = primal
        if self.dual is None or dual.bound > self.dual.bound:
            self.dual = dual
        self.log.append(
            Round(
                working=len(state.table),
                new=len(answer.fresh),
                smallest=answer.smallest,
                objective=control.state.objective,
                lower_bound=control.state.lower_bound,
                sent=self.pool.sent - sent,
                received=self.pool.received - received,
                inner_seconds=solved - start,
                pass_seconds=control.seconds - solved,
            )
        )
        state.W, state.dual, state.rounds = W, values, state.rounds + 1
        if is_done and control.solved:
            return False
        more = self._adapt(state, restriction, answer, gap, inner.state.gap, better=self.primal is primal)
        if self.keep is not None:
            self.keep(state)
        return more and not is_done

    def _adapt(
        self, state: State, restriction: Restriction, answer: Answer, before: float, inner_gap: float, *, better: bool
    ) -> bool:
        """Choose the next working set, and how it is solved; False when nothing is to be gained.

        ``before`` is the gap before this round, ``inner_gap`` that of the restriction, and ``better`` says whether its
        W is the best so far.
        """
        gap, finest, has_grown = self.control.state.gap, 0.5 * self.control.tol, bool(len(answer.fresh))
        if self.regularisation.hinge and (state.weight > 1.0 or answer.candidate_count > len(answer.fresh)):
            self._narrow(state, better=better)
            return True
        if self._wide(state) and not has_grown and better:
            # The next W will not be far from this one: few constraints are in doubt.
            share = max(self._room / len(state.table), FOCUS)
            self._anchor(state, Anchor(state.W, _band(state.table, state.W, share)))
        else:
            self._join(state, restriction, answer)
        if state.penalty:
            is_doubtful = np.isinf(gap) and state.rounds >= DOUBTFUL
            if (is_doubtful or gap <= CLOSE_GAP or state.rounds >= PROXIMAL_STEPS) and self._factor_fits(state):
                state.penalty = 0.0
                if is_doubtful:  # multipliers of contradictory constraints diverge
                    state.dual = np.zeros(len(state.dual))
        elif not has_grown:
            # A restriction that nothing joins is the whole problem: only a sum still depends on where W is.
            whole = state.anchor is None and inner_gap <= finest
            if whole or (state.target <= finest and not gap < 0.9 * before):
                return False
            state.target = max(finest, 0.1 * min(state.target, inner_gap))
        elif np.isfinite(gap):
            state.target = max(finest, min(state.target, FINER * gap))
        if gap <= CLOSE_GAP and not self._wide(state):
            state.target = finest
        return True

    def _inner(
        self, state: State, restriction: Restriction, setting: Setting, inner: Control
    ) -> Generator[float, None, tuple[np.ndarray, np.ndarray] | None]:
        """Solve a restriction by the norm's own method: V and multipliers in its coordinates; None ends the run."""
        # From a start Newton runs first, which is very slow with the rows of a sum beside those of constraints.
        warm = state.dual.any() and state.bound_sum is None
        if warm and self.regularisation.hard:
            setting.offer(setting.reduced.lower(state.W - self.prior), inner)
        certificate = yield from self.method(setting, inner, restriction.start(setting, state.dual) if warm else None)
        if certificate is not None:
            self._refutes(restriction, setting.reduced.lift_dual(certificate)[: len(restriction.problem.mask)])
            return None
        if inner.W is None or inner.dual is None:
            self.control.stopped = self.control.stopped or inner.stopped
            return None
        self.control.method = f"working sets ({inner.method or 'warm start'})"
        return inner.W, inner.dual

    def _proximal(
        self, state: State, restriction: Restriction, setting: Setting
    ) -> Generator[float, None, tuple[np.ndarray, np.ndarray]]:
        """Make a step of the method of multipliers on a restriction: V and multipliers in its coordinates."""
        self.control.method = "working sets (method of multipliers)"
        tol = GRADIENT * min(1.0, self.control.state.gap) ** 0.5
        start = setting.reduced.lower(state.W - self.prior)
        multipliers = restriction.start(setting, state.dual)
        V, dual, products = proximal_step(setting, start, multipliers, state.penalty, tol, self.control.is_over)
        active = np.count_nonzero(dual)
        yield 4.0 * products * active * setting.reduced.queries.shape[1] * setting.reduced.shape[0] / BLAS_RATE
        if active > SURPLUS * self.shape[0] * self.shape[1]:
            state.penalty *= 10.0
        elif products < CHEAP_STEP:
            state.penalty *= 2.0
        return setting.on_ties(V), dual

    def _refutes(self, restriction: Restriction, multipliers: np.ndarray) -> bool:
        """Whether multipliers (m, T) of a restriction prove that no W exists."""
        certificate = FarkasCertificate(restriction.problem, multipliers)
        if certificate.verify():
            self.contradiction, self.certificate = restriction, certificate
        return self.certificate is not None

    def _join(self, state: State, restriction: Restriction, answer: Answer) -> None:
        """Let what came back join, and what is far from active leave."""
        table, dual, fresh, kind = state.table, state.dual, answer.fresh, self.regularisation
        # Constraints that leave a hard margin's working set before a W is feasible return.
        shrinking = not kind.hinge and state.rounds <= SHRINKING
        if state.penalty or (shrinking and not (kind.hard and np.isinf(self.control.state.gap))):
            # Interior points leave every multiplier positive: what counts is where its own constraint would move it.
            length = 1.0 if self.norm.euclidean else self.norm.value(state.W - self.prior)
            squares = restriction.problem.lengths[restriction.row, restriction.column] ** 2 * length
            margins = table.margins(state.W)
            stay = table.tied | (margins <= SLACK) | (dual > (margins - 1.0) / squares)
            table, dual = table.where(stay), dual[stay]
        if state.bound_sum is not None and fresh.at_bound.any():
            state.bound_sum = state.bound_sum.without(fresh.where(fresh.at_bound))
        state.table = Constraints.concatenate([table, fresh])
        state.dual = np.concatenate([dual, np.where(fresh.at_bound, restriction.terms.upper, 0.0)])
        if not (kind.hard or kind.hinge):
            state.room *= ROOMIER  # all that fall short end up here

    def _factor_fits(self, state: State) -> bool:
        """Whether the factors by which the norm's own method ends are small enough."""
        order = min(len(state.table), self.shape[0] * self.shape[1])
        return self.control.affords(0.0, FACTORS * 8.0 * order * order)

    def _wide(self, state: State) -> bool:
        """Whether so many constraints of a hinge are listed that a narrower band would pay."""
        return self.regularisation.hinge and len(state.table) > LARGE * self._room

    def _narrow(self, state: State, *, better: bool) -> None:
        """Move the anchor to the best W, with a band of so many constraints as are in doubt there."""
        assert self.primal is not None
        band, is_sample, count = np.inf if state.anchor is None else state.anchor.band, state.weight > 1.0, state.count
        if not (is_sample and better):
            state.room *= 2
        if not better:
            band *= 2.0
        elif is_sample:
            band = _band(state.table, self.primal.W, max(NARROWER, SURELY * state.room / count))
        anchor = Anchor(self.primal.W, band)
        share = self._anchor(state, anchor)
        if is_sample and better and state.count > 0.5 * count:
            # Many margins are equal: no band is narrow enough, and all of it has to be listed.
            state.room = state.count
            self._anchor(state, anchor)
        state.target = max(0.5 * self.control.tol, min(ROUGH, SAMPLED_GAP * share * share))

    def _anchor(self, state: State, anchor: Anchor) -> float:
        """Draw a sample of the band around an anchor, and sum constraints at their bound; returns the band's share."""
        sums = bool(np.isfinite(anchor.band))
        answer = self.ask(anchor.W, many=True, room=state.room, anchor=anchor, sums=sums, sample=state.rounds)
        state.anchor, state.bound_sum = anchor if sums else None, answer.bound_sum
        state.table, state.dual = answer.fresh, np.zeros(len(answer.fresh))
        state.weight = max(1.0, answer.candidate_count / max(int((~answer.fresh.tied).sum()), 1))
        return answer.candidate_count / max(answer.rejected, 1)

    def settle(self, tol: float) -> None:
        """Sum constraints at their bound once more, and all in twice the precision if the gap is open."""
        dual, primal = self.dual, self.primal
        if dual is None or primal is None or primal.objective == np.inf:
            return
        wide = proven_gap(dual.lower_bound, primal.upper_bound, primal.tie_residual) > tol
        restriction = Restriction.of(dual.table, self.norm, self.regularisation)
        if dual.bound_sum is not None or wide:
            self.dual = self.bound_below(restriction, dual.values, dual.anchor, self.empty, primal.tie_residual)
        if wide:
            sharp, _ = self.judge(primal.W, restriction, sharp=True)
            self.primal = min(primal, sharp, key=lambda one: one.upper_bound)


def _band(table: Constraints, W: np.ndarray, share: float) -> float:
    """Find how far from one the margins of W (d, dz) are that make up a share of a table."""
    return float(np.quantile(np.abs(table.margins(W)[~table.tied] - 1.0), min(share, 1.0)))
