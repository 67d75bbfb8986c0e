r"""The outer loop for problems larger than memory, in every norm: solve the working set, evaluate the shards, repeat.

About d dz of the n T constraints have a multiplier strictly between its bounds. Tokens lie in shards, on workers or in
files; a problem in memory, or in a memory map, is one shard. The loop holds no array with n T or n entries: its state
is the table of the working set, its multipliers and one W. Each round solves the restriction to the working set with
the norm's own method and sends W to the shards. They return sums over the margins and the most violated constraints,
which join. A lower bound of a restriction bounds the whole problem, and multipliers that prove a restriction infeasible
prove the whole problem infeasible. Only the last rounds solve to the requested accuracy.

A hinge has a multiplier at C for every constraint that falls short. Constraints that fall short by more than a band at
the *anchor*, the point of linearisation, enter as their sum, with a linear loss
(:mod:`attsvm.solvers.working_sets.restriction`). Constraints above the band are left out. If the band holds more
constraints than the capacity, a random sample represents them, with equal weights. K constraints determine p entries of
W to a relative error of sqrt(p/K), so a third of the band is enough around the new W. Once the whole band is listed,
the restriction restricts the dual problem and bounds the whole problem. Constraints that are then on the wrong side
join one by one; if there are many, the anchor moves and the capacity grows. The squared hinge does not bound its
multipliers, so its working set ends with all constraints that fall short.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np

from attsvm.core.norms import frobenius
from attsvm.core.status import Status
from attsvm.platform.memory import available_bytes
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import proven_gap
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.multipliers import proximal_step
from attsvm.solvers.schedule import (
    BLAS_RATE,
    CHEAP_STEP,
    CLOSE_GAP,
    CUT_RATIO,
    DOUBTFUL_ROUNDS,
    FIRST_PENALTY,
    FOCUS,
    MOST_BYTES,
    PRICING_RATE,
    PROXIMAL_ENTRIES,
    PROXIMAL_STEPS,
    SURPLUS,
    Method,
)
from attsvm.solvers.working_sets.bounds import DualBound, PrimalBound
from attsvm.solvers.working_sets.collection import Collection
from attsvm.solvers.working_sets.constraints import Anchor, ConstraintTable
from attsvm.solvers.working_sets.pricing import Answer, direction
from attsvm.solvers.working_sets.restriction import Restriction
from attsvm.solvers.working_sets.state import Round, State

# Largest number of constraints per entry of W that join at the start and in a round.
SET_RATIO = 8
# Largest number of bytes of the constraints that join at the start, and in each round of a hard margin.
SET_BYTES, ROUND_BYTES = 1 << 26, 1 << 25
# Largest number of constraints per query that join at the start, and in each round (hard margin).
FIRST_PER_QUERY, JOINING_PER_QUERY = 6, 4
# Bytes up to which a squared hinge, which has more active constraints, exceeds SET_RATIO at the start.
FIRST_BYTES = 1 << 23
# Bytes that a round takes in addition to its working set, over the bytes of the working set.
COPIES = 4
# Number of matrices over the active constraints that are held at a time.
FACTORS = 2
# Largest number of rounds.
ROUNDS = 100
# Factor by which the capacity of a squared hinge grows per round.
SET_GROWTH = 4
# Gap of the first restriction, and gap of a later restriction over the gap of the whole problem: a smaller gap does not
# choose better which constraints join.
FIRST_GAP, NEXT_GAP = 1e-2, 0.03
# Margin above which a constraint leaves if its multiplier tends to zero.
LEAVING_MARGIN = 1.2
# Number of rounds after which constraints only join, since a working set that also shrinks may cycle.
SHRINKING = 15
# Radius around W in which the loss of a sum is taken to be linear: over the distance from the anchor, over the length
# of W once the band is listed, and the smallest radius.
TRUST, NEAR_TRUST, LEAST_TRUST = 2.0, 0.05, 1e-3
# Share of a band that the next one holds, and gap of a sample's solution over the square of its share of constraints.
BAND_FALL, SAMPLED_GAP = 1 / 3, 0.1
# Share of the capacity that a band is expected to fill; samples rarely exceed their expectation by more.
BAND_SHARE = 0.9
# Smallest number of constraints in a sample.
LEAST_SAMPLE = 2000
# Gradient at which a step of the method of multipliers ends, over the root of the gap.
GRADIENT = 1e-2


@dataclass(eq=False)
class Rounds(Collection):
    """The loop over the shards of one problem.

    Attributes
    ----------
    method : callable
        Solves a restriction.
    keep : callable
        Called with the state after every round, if given.
    dual : DualBound or None
        The best bounds so far.
    certificate : FarkasCertificate or None
        A proof that no W exists.
    contradiction : Restriction or None
        The restriction whose multipliers are that proof.
    empty : int
        Number of rejected tokens that no W moves.
    """

    control: Control
    method: Method
    keep: Callable[[State], None] | None = None
    log: list[Round] = field(default_factory=list)
    primal: PrimalBound | None = None
    dual: DualBound | None = None
    certificate: FarkasCertificate | None = None
    contradiction: Restriction | None = None
    empty: int = 0

    def begin(self, guess: np.ndarray | None = None) -> State:
        """Choose the first working set: all ties, and the constraints of smallest margin at a guess of W (d, dz).

        The guess is the W of a similar problem or the sum of all constraints. A hinge draws its constraints at random.
        """
        hinge, start = self.regularisation.hinge, np.zeros(self.shape) if guess is None else guess
        if hinge:
            answer = self.ask(start, many=True, room=self._room, anchor=Anchor(start, np.inf), sample=0)
        else:
            W = self.pool.collect(direction, sum, (), [(k,) for k in range(self.count)]) if guess is None else guess
            each = FIRST_PER_QUERY if self.regularisation.hard else None
            answer = self.ask(W, many=True, room=self._room, each=each, below=np.inf)
        # The zero matrix satisfies the ties.
        table = answer.fresh.where(slice(None) if answer.rejected or self.prior.any() else slice(0))
        joining = ROUND_BYTES // self.constraint_bytes if self.regularisation.hard else self._room
        state = State(table, np.zeros(len(table)), start, FIRST_GAP, max(1, min(self._room, joining)))
        share = np.count_nonzero(~table.tied) / max(answer.candidate_count, 1)
        if share >= 1.0 or not answer.candidate_count:
            state.target = 0.5 * self.control.tol  # all constraints are listed
        elif hinge:
            state.weight = 1.0 / share
            if guess is not None:
                self._anchor(state, Anchor(guess, _band(state.table, guess, BAND_SHARE * share)))
        if self.regularisation.hard and self.norm.euclidean and self.shape[0] * self.shape[1] >= PROXIMAL_ENTRIES:
            state.penalty = FIRST_PENALTY
        return state

    def run(self, state: State) -> Generator[float, None, None]:
        """Continue from a state until the control is satisfied; yields the work of each step."""
        if not len(state.table):
            # W moves no rejected token, and no token is tied.
            self.control.method, answer = "closed form", self.ask(self.prior)
            loss = (self.regularisation.least or 0.0) * answer.empty
            self.primal = PrimalBound(self.prior, 0.0, loss, loss, 0.0)
            return
        self.control.method = "working sets"
        while state.rounds < ROUNDS and (yield from self._round(state)):
            pass

    @property
    def lower_bound(self) -> float:
        """The best lower bound so far."""
        if self.dual is not None:
            return self.dual.lower_bound
        return 0.0 if self.primal is None else self.primal.objective

    @property
    def _room(self) -> int:
        room = min(SET_RATIO * self.shape[0] * self.shape[1], SET_BYTES // self.constraint_bytes)
        least = 1 if self.regularisation.hard else LEAST_SAMPLE
        if not (self.regularisation.hard or self.regularisation.hinge):
            least = FIRST_BYTES // self.constraint_bytes
        return max(room, least)

    def _round(self, state: State) -> Generator[float, None, bool]:
        """Solve the restriction, evaluate the shards and let constraints join; False when the run has ended."""
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
        # A smaller radius makes the demands of the sum a smaller part of the objective, and the gap finer.
        distance, length = (frobenius(state.W - origin) for origin in (anchor, self.prior))
        reach = max(TRUST * distance, (NEAR_TRUST if state.weight == 1.0 else TRUST) * length, LEAST_TRUST)
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
        each = JOINING_PER_QUERY if self.regularisation.hard else None
        # The number of violated constraints falls from round to round.
        many = not self.log or self.log[-1].new * self.constraint_bytes > MOST_BYTES
        primal, answer = self.judge(W, restriction, many=many, room=state.room, each=each, anchor=state.anchor)
        self.empty = answer.empty
        yield float(answer.rejected) * W.shape[0] / PRICING_RATE
        # A sample bounds nothing.
        multipliers = values if state.weight == 1.0 else np.zeros(len(values))
        if state.bound_sum is not None and state.weight == 1.0 and not restriction.terms.squared:
            multipliers = restriction.balance(values, state.bound_sum, whole, whole_dual)
        dual = DualBound.of(restriction, multipliers, state.bound_sum, state.anchor, answer.empty, primal.tie_residual)
        gap = control.state.gap
        steps = max(1, inner.iterations)
        # Rounding is counted or removed at the end; another round would not do it.
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
        """Choose the next working set and the accuracy of its solution; False when no further round can gain anything.

        ``before`` is the gap before this round, ``inner_gap`` the gap of the restriction. ``better`` says whether the
        restriction's W is the best so far.
        """
        gap, finest, has_grown = self.control.state.gap, 0.5 * self.control.tol, bool(len(answer.fresh))
        if self.regularisation.hinge and (state.weight > 1.0 or answer.candidate_count > len(answer.fresh)):
            self._narrow(state, better=better)
            return True
        if self._wide(state) and not has_grown and better:
            # The next W will be near this one: few constraints are in doubt.
            share = max(self._room / len(state.table), FOCUS)
            self._anchor(state, Anchor(state.W, _band(state.table, state.W, share)))
        else:
            self._join(state, restriction, answer)
        if state.penalty:
            is_doubtful = np.isinf(gap) and state.rounds >= DOUBTFUL_ROUNDS
            if (is_doubtful or gap <= CLOSE_GAP or state.rounds >= PROXIMAL_STEPS) and self._factor_fits(state):
                state.penalty = 0.0
                if is_doubtful:  # multipliers of contradictory constraints diverge
                    state.dual = np.zeros(len(state.dual))
        elif not has_grown:
            # A restriction that no constraint joins is the whole problem, unless a sum depends on W.
            whole = state.anchor is None and inner_gap <= finest
            if whole or (state.target <= finest and not gap < 0.9 * before):
                return False
            state.target = max(finest, 0.1 * min(state.target, inner_gap))
        elif np.isfinite(gap):
            state.target = max(finest, min(state.target, NEXT_GAP * gap))
        if gap <= CLOSE_GAP and not self._wide(state):
            state.target = finest
        return True

    def _inner(
        self, state: State, restriction: Restriction, setting: Setting, inner: Control
    ) -> Generator[float, None, tuple[np.ndarray, np.ndarray] | None]:
        """Solve a restriction by the norm's own method: V and multipliers in its coordinates; None ends the run."""
        # A warm start runs Newton first, which is very slow if the rows of a sum are added to the constraints.
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
        """Tell whether multipliers (m, T) of a restriction prove that no W exists."""
        certificate = FarkasCertificate(restriction.problem, multipliers)
        if certificate.verify():
            self.contradiction, self.certificate = restriction, certificate
        return self.certificate is not None

    def _join(self, state: State, restriction: Restriction, answer: Answer) -> None:
        """Let the returned constraints join, and constraints that are far from active leave."""
        table, dual, fresh, kind = state.table, state.dual, answer.fresh, self.regularisation
        # Constraints that left a hard margin's working set before a W is feasible would return.
        shrinking = not kind.hinge and state.rounds <= SHRINKING
        if state.penalty or (shrinking and not (kind.hard and np.isinf(self.control.state.gap))):
            # Interior points leave every multiplier positive, so a constraint leaves if its slack would make it zero.
            length = 1.0 if self.norm.euclidean else self.norm.value(state.W - self.prior)
            squares = restriction.problem.lengths[restriction.row, restriction.column] ** 2 * length
            margins = table.margins(state.W)
            stay = table.tied | (margins <= LEAVING_MARGIN) | (dual > (margins - 1.0) / squares)
            table, dual = table.where(stay), dual[stay]
        if state.bound_sum is not None and fresh.at_bound.any():
            state.bound_sum = state.bound_sum.without(fresh.where(fresh.at_bound))
        state.table = ConstraintTable.concatenate([table, fresh])
        state.dual = np.concatenate([dual, np.where(fresh.at_bound, restriction.terms.upper, 0.0)])
        if not (kind.hard or kind.hinge):
            state.room *= SET_GROWTH  # all constraints that fall short join in the end

    def _factor_fits(self, state: State) -> bool:
        """Tell whether memory holds the factors with which the norm's own method ends."""
        order = min(len(state.table), self.shape[0] * self.shape[1])
        return self.control.affords(0.0, FACTORS * 8.0 * order * order)

    def _wide(self, state: State) -> bool:
        """Tell whether a hinge lists enough constraints for a narrower band to pay."""
        return self.regularisation.hinge and len(state.table) > CUT_RATIO * self._room

    def _narrow(self, state: State, *, better: bool) -> None:
        """Move the anchor to the best W, with a band that holds the constraints in doubt there."""
        assert self.primal is not None
        band, is_sample, count = np.inf if state.anchor is None else state.anchor.band, state.weight > 1.0, state.count
        if not (is_sample and better):
            state.room *= 2
        if not better:
            band *= 2.0
        elif is_sample:
            band = _band(state.table, self.primal.W, max(BAND_FALL, BAND_SHARE * state.room / count))
        anchor = Anchor(self.primal.W, band)
        share = self._anchor(state, anchor)
        if is_sample and better and state.count > 0.5 * count:
            # Many margins are equal: no band is narrow enough, so the whole band must be listed.
            state.room = state.count
            self._anchor(state, anchor)
        state.target = max(0.5 * self.control.tol, min(FIRST_GAP, SAMPLED_GAP * share * share))

    def _anchor(self, state: State, anchor: Anchor) -> float:
        """Draw a sample of the band around an anchor and sum constraints at their bound; return the band's share."""
        sums = bool(np.isfinite(anchor.band))
        answer = self.ask(anchor.W, many=True, room=state.room, anchor=anchor, sums=sums, sample=state.rounds)
        state.anchor, state.bound_sum = anchor if sums else None, answer.bound_sum
        state.table, state.dual = answer.fresh, np.zeros(len(answer.fresh))
        state.weight = max(1.0, answer.candidate_count / max(int((~answer.fresh.tied).sum()), 1))
        return answer.candidate_count / max(answer.rejected, 1)

    def settle(self, tol: float) -> None:
        """Sum the constraints at their bound once more, and everything in twice the precision if the gap is open."""
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


def _band(table: ConstraintTable, W: np.ndarray, share: float) -> float:
    """Compute the band around one that holds a given share of the margins of W (d, dz) in a table."""
    return float(np.quantile(np.abs(table.margins(W)[~table.tied] - 1.0), min(share, 1.0)))
