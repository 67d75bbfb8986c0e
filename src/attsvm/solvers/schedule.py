r"""Which methods run, in which order and for how long: every constant of choice, with the measurement behind it.

No method is the fastest everywhere, and each of them fails somewhere. So methods are generators that yield the work of
each of their steps, and take turns: each runs for its budget, is put aside as it stands, and goes on in the next round
with a larger one. An instance that one of them solves is thus solved within a small multiple of that method's own work,
whatever the others do. Work is estimated from sizes, in seconds of one core at the rates below, and never from a clock,
so that runs repeat.

How small: let method j have the first budget :math:`b_j`, wait :math:`w_j` rounds, and budgets grow by g. Method k, if
it needs work x, ends in the first round r from :math:`w_k` on with :math:`b_k g^r \ge x`. By then those before it have
spent at most :math:`b_j g^r` each, those after it :math:`b_j g^{r-1}`, less where they still wait, and a step more. As
:math:`b_k g^{r-1} < x` unless :math:`r = w_k`, all work together is at most

.. math:: F_k + c_k x, \qquad c_k = 1 + \frac{g \sum_{j<k} b_j + \sum_{j>k} b_j}{b_k},

:math:`F_k` being what the others spend before and in round :math:`w_k`, up to the first turn of method k. A wait
lowers the work of the others and adds to :math:`F_k`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting

# What a method yields is work; what it returns is a certificate's multipliers (n, T), or None.
Steps = Generator[float, None, np.ndarray | None]
# Sets up a run on a setting from multipliers (n, T) of a similar problem, if any.
Method = Callable[[Setting, Control, np.ndarray | None], Steps]
Answer = TypeVar("Answer")

# Floating-point operations a second of one core (a Xeon of 2.6 GHz): Cholesky factors and matrix products of a few
# hundred rows and more; compiled loops whose every pass depends on the one before; compiled products of a vector with
# all tokens; compiled updates of a whole matrix; array expressions. Only their ratios matter.
BLAS_RATE, LOOP_RATE, PRICING_RATE, UPDATE_RATE, STREAM_RATE = 2e10, 1.5e9, 4e9, 8e9, 2e9
# What a step costs beside its operations: the interpreter's share of an interior-point or a Newton step.
OVERHEAD = 5e-4
# Operations of array expressions for each constraint: in a step of the interior point (and more for each of its token's
# coordinates), and in a test of the gap. With these the work of the three Frobenius methods is within .5 to 1.6 of
# their time on 14 instances from (40, 8, 6) and (60, 48, 16) to (150, 20, 40), (20000, 10, 2) and (750, 15, 25).
STEP_OPERATIONS, COORDINATE_OPERATIONS, LOOK_OPERATIONS = 200.0, 20.0, 120.0
# Each round's budget over that of the round before. Twice bounds what the last method in turn waits for; smaller
# factors lower the worst case little and make every method stop and go on more often.
GROWTH = 2.0
# Frobenius: first budgets as shares of the interior point's whole expected work, and how many rounds a method waits.
# In each round the second has its turn, then the interior point, then the first. The interior point's work is known
# beforehand, since its steps hardly vary (11 to 20 at (100, 32, 24), all families). The method that suits the number of
# supports comes first, and is often ten times as fast: coordinate passes and Newton end by .4 of that where they do not
# stall. Where it stalls, the other of the two needs .2 to .5 if it is the active-set method, whose factor of as many
# constraints as W has entries is most of its work; then the interior point may finish. Where that is the fastest the
# answer takes at most 2.4 times its work (.4 and .6 for the others, .75 and more for itself). At (100, 32, 24)
# and (200, 32, 24), all families, the worst is 2.9 times the best method; with .5 for the first 3.1, with .35 3.9, and
# with the interior point before the second turn 4.1.
FIRST, SECOND, INTERIOR = (0.4, 0), (0.3, 1), (0.75, 1)
# The same for the active-set method where it comes first, so that what comes last waits for .2 more. With few
# constraints held it ends within .6: on labels of a random matrix, 15 classes in 25 dimensions and 750 inputs, it takes
# 53 ms, and 250 where it is put aside at .4; at .5 it still is with 10 classes and 13.
EXCHANGES = (0.6, 0)
INTERIOR_STEPS = 16
# Frobenius: share of the interior point's work in its first turn while coordinate passes are not compiled, which takes
# longer than most first problems. It comes first then, as it needs no kernel.
UNCOMPILED_SHARE = 2.0
# Frobenius: constraints held up to which the active-set method comes first (twice as many where the bound on ||W||
# indicates near duplicates), and entries of W up to which it does whatever their number. Exchanging them one by one
# costs the square of their number each; Newton changes many at once. At (100, 32, 24), 350 held, they take 10 and 8 ms,
# at (100, 32, 32), 400 of 1024 held, 21 and 10, at (150, 20, 40), 640 held, 60 and 30; correlated tokens at
# (200, 32, 24), 329 by the guess and 250 in the end, 9 and 55. With 400 entries of W, all held by the guess, exchanges
# took .3 to .5 of the time of turns with Newton first on four of them; of eleven problems of 100 to 400 entries, on
# which nothing was chosen, five took .2 to .5 of their time with both changes, the others .96 to 1.06.
FEW_SUPPORTS, FEW_W_ENTRIES = 350, 400
# Newton from this gap on takes one or two factorisations, and more from further off, which pays while they are small.
# A soft margin waits until no more multipliers than W has entries lie between their bounds: published (300, 16, 8) with
# C = .1 takes 14 ms instead of 44; of 175 problems of five families and sizes, C from .01 to 100, on which nothing was
# chosen, eight take .28 to .64 of the time, the others .8 to 1.2.
NEWTON_GAP, EARLY_GAP, SMALL_FACTOR = 1e-5, 1e-3, 700
# No more multipliers than W has entries lie between their bounds at the end. The second derivatives of twice as many
# are so singular that Newton does not end: seven seconds for nothing at (400, 10, 10) and C = 100, where a step of the
# interior point takes two milliseconds.
DEPENDENT = 2
# A batch of passes that gains less than this factor in the gap has met correlated tokens.
SLOW = 0.95
# Newton from a pair with a gap above this would change most of its support; passes improve it at less cost.
NEARBY, WARM_ROUNDS = 0.1, 4
# Nor from more multipliers than so many, and than so many times the entries of W: planted (4000, 16, 10) with a squared
# hinge and C = 1, on working sets, takes 0.6 processor seconds instead of 6.5.
CROWD, CROWD_RATIO = 1000, 4
# Multipliers over entries of W from which exchanges with one factor to begin with take Newton's place there. Planted in
# shards: (20000, 64, 64), .998 at the end, 5 processor seconds for the last rounds where Newton had not ended in 78,
# (2000, 16, 32), .98, .2 instead of .3. At .6 to .8 (classes, several, planted (600, 16, 40)) both take as long.
NEARLY_SQUARE = 0.9
# Nuclear: first-order steps to a gap of 1e-3 grow as the root of a condition number, ||A||^2 |lam| / sqrt(supports) of
# the Frobenius solution with margin one: near 30 times that root on the benchmark instances that got there. Random
# tokens took 8 to 16 steps, hidden states 50 to 100; digits, where this says thousands, had not arrived after 3000.
STEPS_TO_FACE = 30.0
# Gaps on the working set at which violated constraints join and, from the second on, Newton on the face is tried; from
# FACE_GAP on by least squares too, where constraints depend on each other. The interior point gets the ill-conditioned
# problems, on which early attempts mostly fail; its gaps are in parts of the norm, since losses may be most of a soft
# margin's objective: published (20000, 8, 6) with C = 1 takes 5 processor seconds instead of 13.
TARGETS = (1e-1, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
INTERIOR_TARGETS = (3e-5, 3e-6, 3e-7, 3e-8, 1e-8, 3e-9)
FACE_GAP = 5e-5
# From this support on Newton's steps cost much more than first-order steps: it waits for one target more.
LARGE_SUPPORT = 400
# Constraints up to which the interior point's steps solve for multipliers even where these outnumber the entries of W:
# it costs more and ends closer to the solution. The second is for the second run, which begins far from all bounds, and
# for W of so many entries that these are not more than MANY_RATIO times as many: on eight soft margins of the nuclear
# norm with 2750 to 4500 constraints and 16 or 36 entries, on three of which such a run takes 5 to 7 seconds, the path
# of smoothed norms ends all within .3. The first also bounds the second run of the other norms: of 90 contradicted
# instances with C = 1e5 to 1e7 in the spectral norm, l_1 and the largest entry 16 were undecided without it.
FEW_CONSTRAINTS, MANY_CONSTRAINTS, MANY_RATIO = 1500, 5000, 16
# Entries of W up to which the path of smoothed norms takes over where other methods leave the gap open, some 150 dense
# factors, and up to which its last steps are taken on twice as large a system, half a second each at most. Of 960 soft
# or prior problems 2 are open with these, of 480 others, on which nothing was chosen, none; without them 10 of 720.
SMOOTH_ENTRIES = 1100
# Nuclear: steps of its interior point in general, and the shares of that work which it and first-order steps have at
# first; the one that is expected to need less does not wait for the other.
NUCLEAR_INTERIOR_STEPS, NUCLEAR_FIRST, NUCLEAR_INTERIOR = 20, 1.0, 1.0
# Frobenius: tokens up to which a compiled call may form the Gram matrix of the constraints. It does up to FEW_ROWS of
# them, or GRAM_RATIO times as many as W has entries: at (6, 8, 10) prices without it take 1.5 to 1.9 of its time, at
# (34, 10, 8) .2 to .5. On 42 instances of seven sizes and six families on which nothing was chosen, prices where this
# takes them are .13 to 1.04 of the matrix's time.
GRAM_LIMIT, FEW_ROWS, GRAM_RATIO = 350, 100, 1.5
# Tokens (n T), entries of W, and products of the two up to which one compiled call from tokens to answer is
# cheaper than looking at the problem (40 us at (6, 8, 10), where the reduction alone takes 100; .4 to .9 of the time of
# the turns on seven families at 14 sizes from (60, 10, 4) to (40, 20, 33), 1.1 to 1.3 where the call decides nothing).
# Planted (5000, 16, 4), with its 80,000 tokens, takes 13 ms in one call and 49 in turns.
# From WARM tokens on a warm start is cheaper still: .5 to .7 of the call at (60, 20, 16) to (400, 12, 8).
SMALL, FEW_ENTRIES, SMALL_PRODUCTS, WARM = 100_000, 1100, 1_300_000, 1000
# Entries of W from which on steps of entrywise norms are taken on a system over the constraints, where these are fewer.
# At (10, 5, 30), 40 constraints and 900 entries: l_1 9 to 16 ms instead of 260, largest entry 12 to 16 instead of 280,
# l_1.5 9 instead of 252, l_3 9 instead of 433. With 900 of 1024 and 920 of 1600 entries, seven families in four norms:
# hard margins .22 to 1.04 of the time, and once 2.4, where rounding asked for a second run; soft margins of four of
# them, C of .3 and 30, .04 to .87.
ROW_ENTRIES = 200
# Entries of W up to which a second run is made: its matrix takes eight bytes times their square, 2 GB.
FORMED_ENTRIES = 1 << 14
# Entries of W, or constraints, up to which BLAS is kept to one thread: a second makes matrices of this size no faster
# and busy-waits for the next. On an idle machine of two cores one thread takes .3 to 1.05 of the wall time of two
# on 13 instances of five norms with 100 to 4096 entries (nuclear near duplicates (200, 32, 24) .4, spectral (60, 20,
# 24) .3), and half or less of the processor time; with 140 constraints and 262,144 entries .4 to .5 in l_1, l_1.5 and
# the largest entry.
ONE_THREAD = 2000
# Rejected tokens, and those for each entry of W, from which the outer loop takes turns with a method on all of them.
# With fewer its first working set is most of the problem: planted (1000, 32, 64), 7.6 for each entry, takes .7 s by the
# one and 6 by the other.
LEAST_ROWS, ROWS_BESIDE = 5000, 8
# The same from which its turn is early where the margin is hard.
MANY_ROWS, ROWS_FIRST = 50_000, 16
# Entries of W for each dimension that the constraints span, from which the outer loop comes first in l_p, 1 < p < inf:
# few constraints are active then, which the barrier on all of them does not use. Tokens in a plane take .3 to .8 of the
# time at (200, 32, 24), .1 to .5 at (40, 12, 40) to (70, 20, 44). On tokens and queries of ranks 1 to 6 at
# (220, 30, 28), (600, 12, 20) and (1500, 8, 16), p from 1.2 to 6, on which nothing was chosen, 31 of 36 take .1 to 1.02
# of it, five 1.07 to 1.3, three of 36 dimensions. With fewer constraints or entries than the second, 1.2 to 1.8 of it,
# a few milliseconds.
ENTRIES_A_DIMENSION, LEAST_NARROW = 16, 400
# It comes first in every entrywise norm where constraints and entries of W are both so many, and so many times the
# queries: few are active then, and a step on the whole problem costs the cube of the fewer of the two. The second pair
# of budgets, in the order of those below, is for l_1 and the largest entry, whose steps are half as fast as estimated.
# The whole problem takes .3 to 1 w in l_p and .8 to 2.3 w in these, the outer loop .02 to .5 and .1 to 1.6, up to 1.8
# and 5.9 with several tied tokens. With this, hard margins at (40, 100, 32) and (60, 64, 40), six families: .1 to 1 of
# the time for 30 of 42, up to 2.4 for the others, and 2.9 of the faster of the two; without the bound by the queries at
# (150, 20, 40), .5 to 3.1 of the time, slower on half.
LEAST_SYSTEM, ROWS_A_QUERY = 800, 12
SMOOTH_ROUNDS, LINEAR_ROUNDS = (1.0, 0.25), (2.0, 0.7)
# First budgets of the method on the whole problem and of the outer loop, as shares of the Frobenius interior point's
# whole expected work w. With many rows (sizes (20000, 8, 6) to (1500, 32, 64), planted, correlated, heavy-tailed and
# clustered) the first needs .27 to 4.5 w in the Frobenius norm where it does not end at once, the other .06 to 4.3; in
# processor seconds planted (3000, 32, 64) takes 64 and 11 by either alone, 19 by both; (20000, 8, 6) 1.7, .2 and .3 and
# in five other norms 1.8 to 2.3, .3 to .6 and .5 to 1.3. With fewer rows, and with losses, it is within 6 w where it
# does not stall, and the outer loop up to five times as slow; where it stalls it is left undecided after 25 s where
# working sets take half a second (low rank (5000, 16, 14), spectral), or takes 41 instead of 4 (heavy-tailed
# (12000, 10, 8), C = 3). Exchanges, which W of up to FEW_W_ENTRIES begins with, end by half of w at (20000, 4, 4):
# .13 s, .27 with .35 of w first.
EXCHANGE_ROUNDS, EARLY_ROUNDS, LATE_ROUNDS = (0.5, 0.7), (0.35, 0.7), (6.0, 2.0)
# The outer loop: a hinge's working set of more than so many first ones that nothing joins is cut to the band around W
# that holds the second part of it: (20000, 8, 6) with random selections, C = 1, takes 5 processor seconds instead of 21
# in the nuclear norm, 4 instead of 12 in the Frobenius norm.
LARGE, FOCUS = 2, 1 / 8
# Gap from which on restrictions are solved to the end, so that fewer rounds follow. Hard margins on six sizes on which
# it was not chosen, norms but the Frobenius, three runs each: 11 to 17 rounds instead of 19 to 28, in .4 to .8 of the
# time (nuclear, (700, 20, 15): 1.2). Soft margins on 14 instances: .4 to 1.1 of it, and once 1.7.
CLOSE_GAP = 2e-2
# Entries of W from which a Euclidean hard margin begins with the method of multipliers until then, its first weight
# (constraints have lengths near one), and the round that ends it.
PROXIMAL_ENTRIES, FIRST_PENALTY, PROXIMAL_STEPS = 400, 100.0, 60
# Rounds after which contradictory constraints are suspected where no W has a positive margin.
DOUBTFUL = 4
# The weight grows by ten while multipliers are more than this part of the entries of W, which not all are active in the
# end, and by two while a step takes fewer products than this.
SURPLUS, CHEAP_STEP = 1.5, 1000
# Bytes of token differences above which they are streamed instead of copied.
STREAM_BYTES = 1 << 28


def nuclear_first_order_work(shape: tuple[int, int], m: int) -> float:
    """Estimate the work of a first-order step for W of shape (p, r) on m constraints.

    Fitted, as the next, to times between (10, 6) with 42 constraints and (64, 64) with 2600.
    """
    p, r = shape
    return 1e-6 * (5.0 + 0.09 * p * r + 0.002 * m * p)


def nuclear_interior_work(shape: tuple[int, int], m: int) -> float:
    """Estimate the work of a step of the nuclear norm's interior point for W of shape (p, r) on m constraints."""
    return 1e-6 * (300.0 + 8e-3 * m**2 + 2e-5 * m**3 + 2.5e-3 * sum(shape) ** 3)


@dataclass
class Turn:
    """A method under way: its name in reports, its steps, its first budget, and how many rounds it waits for that.

    Without a name it tells the control its own.
    """

    name: str
    steps: Steps
    budget: float
    delay: int = 0
    work: float = 0.0


def take_turns(turns: list[Turn], control: Control, enough: Callable[[], bool] = lambda: False) -> Steps:
    """Run methods in rounds of growing budgets, until the control is satisfied or none can go on.

    Parameters
    ----------
    turns : list of Turn
        In order of preference.
    enough : callable
        Asked when a method has ended by itself: whether no other can come closer.

    Yields
    ------
    float
        The work of each step, so that turns may be a method of other turns.

    Returns
    -------
    ndarray or None
        Multipliers that prove infeasibility, when they do.
    """
    factor, rounds = 1.0, 0
    while turns:
        dropouts = []
        for turn in turns:
            # The last method left waits for no other.
            if rounds < turn.delay and len(dropouts) < len(turns) - 1:
                continue
            if turn.name:
                control.enter(turn.name)
            certificate = yield from _advance(turn, turn.budget * factor, control, dropouts)
            if certificate is not None or control.solved or control.stopped or (turn in dropouts and enough()):
                return certificate
        turns = [turn for turn in turns if turn not in dropouts]
        factor, rounds = factor * GROWTH, rounds + 1
    return None


def finish(steps: Generator[float, None, Answer]) -> Answer:
    """Run a method to its end; what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def _advance(turn: Turn, allowance: float, control: Control, dropouts: list[Turn]) -> Steps:
    """Let a method work until all it has spent exceeds its allowance; returns its certificate."""
    while turn.work < allowance:
        try:
            work = next(turn.steps)
        except StopIteration as end:
            dropouts.append(turn)
            return end.value
        turn.work += work
        yield work
        if control.is_over():
            break
    return None


def beside_rounds(setting: Setting, work: float, whole: Turn, rounds: Turn) -> list[Turn]:
    """Set budgets of a method on the whole problem and of the outer loop, where the latter takes part.

    Parameters
    ----------
    setting : Setting
    work : float
        Of a step of the Frobenius interior point.
    whole, rounds : Turn
        In the order of their turns.
    """
    terms, entries = setting.terms, int(np.prod(setting.reduced.shape))
    count, entrywise = int(terms.rejected.sum()), setting.plain and terms.norm.power is not None
    smooth, system = entrywise and terms.norm.smooth, min(count, entries)
    is_narrow = smooth and system >= LEAST_NARROW and _spans_few(setting.reduced)
    is_costly = entrywise and system >= max(LEAST_SYSTEM, ROWS_A_QUERY * len(terms.rejected))
    if is_narrow:
        first, second = EARLY_ROUNDS
    elif is_costly:
        first, second = SMOOTH_ROUNDS if smooth else LINEAR_ROUNDS
    elif count < max(LEAST_ROWS, ROWS_BESIDE * entries):
        return [whole]
    elif terms.hard and count >= max(MANY_ROWS, ROWS_FIRST * entries):
        first, second = EXCHANGE_ROUNDS if entries <= FEW_W_ENTRIES else EARLY_ROUNDS
    else:
        first, second = LATE_ROUNDS
    whole.budget, rounds.budget = first * INTERIOR_STEPS * work, second * INTERIOR_STEPS * work
    return [rounds, whole] if is_narrow or is_costly else [whole, rounds]


def _spans_few(reduced: Reduced) -> bool:
    """Whether the constraints span far fewer dimensions than W has entries."""
    return ENTRIES_A_DIMENSION * reduced.constraint_rank <= int(np.prod(reduced.shape))
