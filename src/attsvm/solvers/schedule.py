r"""Which methods run, in which order and for how long: the table of choices, and the scheduler.

No method is the fastest everywhere, and each fails somewhere. Methods are therefore generators that yield the work of
each of their steps. The scheduler runs each method for its budget, pauses it, and continues it in the next round with a
larger budget. An instance that one method solves is thus solved within a small multiple of this method's work, whatever
the others do. Work is estimated from sizes, in seconds of one core at the rates below, and never from a clock, so that
runs repeat.

The multiple follows from the budgets. Method j has the first budget :math:`b_j` and waits :math:`w_j` rounds, and
budgets grow by the factor g. If method k needs work x, it ends in the first round r from :math:`w_k` on with :math:`b_k
g^r \ge x`. By then the methods before it have spent at most :math:`b_j g^r` each, and the methods after it :math:`b_j
g^{r-1}`, or less if they still wait, plus one step. As :math:`b_k g^{r-1} < x` unless :math:`r = w_k`, the total work
is at most

.. math:: F_k + c_k x, \qquad c_k = 1 + \frac{g \sum_{j<k} b_j + \sum_{j>k} b_j}{b_k},

where :math:`F_k` is the work of the others before method k first runs, in round :math:`w_k`. A wait of another method
lowers the total work, and a wait of method k raises :math:`F_k`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting

# A method yields work and returns the multipliers (n, T) of a certificate, or None.
Steps = Generator[float, None, np.ndarray | None]
# Sets up a run on a setting from multipliers (n, T) of a similar problem, if any.
Method = Callable[[Setting, Control, np.ndarray | None], Steps]
Answer = TypeVar("Answer")

# The table of choices: the sentence under each name says what the number counts and what it decides.
# benchmarks/NOTES.md has the measurements behind the values.

# --- which method, by size ---

SMALL = 100_000
"""Number of tokens up to which a Frobenius hard margin is first tried by one compiled call."""
FEW_ENTRIES = 1100
"""Number of entries of W above which no compiled call is tried on more than GRAM_LIMIT tokens."""
SMALL_PRODUCTS = 1_300_000
"""Number of tokens times entries of W above which no compiled call is tried on more than GRAM_LIMIT tokens."""
WARM = 1000
"""Number of tokens above which a warm start takes the place of the compiled call."""
GRAM_LIMIT = 350
"""Number of tokens up to which the compiled call may form the Gram matrix of the constraints."""
FEW_ROWS = 100
"""Number of constraints up to which the compiled call forms their Gram matrix."""
GRAM_RATIO = 1.5
"""Number of constraints per entry of W up to which the compiled call forms the Gram matrix of more than FEW_ROWS."""
FEW_SUPPORTS = 350
"""Number of active constraints above which Newton goes before the active set (twice the number for near duplicates)."""
FEW_W_ENTRIES = 400
"""Number of entries of W up to which the active set always goes before Newton."""
SMALL_FACTOR = 700
"""Number of active constraints above which Newton waits for NEWTON_GAP instead of EARLY_GAP."""
FREE_RATIO = 2
"""Number of multipliers off their bounds per entry of W above which, and above SMALL_FACTOR, Newton is not tried."""
CROWD = 1000
"""Number of positive multipliers of a squared hinge above which no warm start begins with Newton."""
CROWD_RATIO = 4
"""Number of positive multipliers per entry of W above which, and above CROWD, no warm start begins with Newton."""
NEARLY_SQUARE = 0.9
"""Number of active constraints per entry of W from which on a warm start begins with the active set."""
WORKING_SET = 6000
"""Number of constraints of a Newton system above which Newton is not tried, and no more constraints join."""
REFINABLE = 2000
"""Number of multipliers between their bounds above which Newton does not refine W."""
SINGLE_ROWS = 200
"""Number of rows of a Newton system from which on a factor in single precision is tried first."""
DEAR = 4
"""Ratio of operations, all margins over the factor, above which urgent queries are evaluated before all queries."""
DENSE_ENTRIES = 500_000
"""Number of entries of the supports' rows above which Gram matrices correct a certificate, not a decomposition."""
SHARP_ENTRIES = 50_000
"""Number of entries of all tokens times columns of W above which a closed gap is not certified more sharply."""
REFINED_ENTRIES = 4_000_000
"""Number of entries of the active constraints' rows above which W and multipliers are not refined further."""
LARGE_SUPPORT = 400
"""Number of active constraints above which Newton on the face waits for one more target."""
WHOLE_SET = 250
"""Number of constraints up to which all are in the nuclear norm's first working set."""
CENTRAL_OPERATIONS = 1_000_000
"""Number of operations of a step up to which one compiled call first tries a soft margin in the Frobenius norm."""
COMPILED_CONSTRAINTS = 250
"""Number of constraints above which Newton on the face runs in NumPy instead of compiled loops."""
FEW_PRODUCTS = 4000
"""Number of multiplications of a matrix product above which compiled steps call BLAS for it."""
SMALL_SET = 100
"""Number of constraints above which LAPACK factors the active set's first passive set, instead of one at a time."""
ROTATION_ROWS = 24
"""Number of rows of a matrix up to which rotations of a nearby basis give singular vectors, instead of LAPACK."""
MOST_UNKNOWNS = 2000
"""Number of unknowns of a singular system on the face above which no least squares is tried."""
PATIENCE = 6000
"""Expected number of first-order steps above which the compiled call leaves the nuclear norm to other methods."""
ROW_ENTRIES = 200
"""Number of entries of W above which steps of entrywise norms solve for the multipliers, if constraints are fewer."""
FEW_CONSTRAINTS = 1500
"""Number of constraints up to which an interior point may solve for the multipliers although W has fewer entries."""
MANY_CONSTRAINTS = 5000
"""Number of constraints up to which the nuclear norm's second run solves for the multipliers."""
MANY_RATIO = 16
"""Number of constraints per entry of W up to which that run solves for more than FEW_CONSTRAINTS multipliers."""
SMOOTH_ENTRIES = 1100
"""Number of entries of W above which the path of smoothed norms neither follows other methods nor enlarges systems."""
FORMED_ENTRIES = 1 << 14
"""Number of entries of W above which no second run is made, since its matrix has the square of this number."""
FEW_FOR_BLOCKS = 300
"""Number of rejected tokens up to which blocks are solved together, in entrywise norms and norms of singular values."""
ONE_THREAD = 2000
"""Smaller of the numbers of entries of W and of constraints up to which BLAS is kept to one thread."""

# --- the outer loop: when it runs, and how it begins ---

LEAST_ROWS = 5000
"""Number of rejected tokens from which on the outer loop alternates with a method on all constraints."""
ROWS_BESIDE = 8
"""Number of rejected tokens per entry of W from which on, and from LEAST_ROWS on, the outer loop alternates."""
MANY_ROWS = 50_000
"""Number of rejected tokens from which on the outer loop runs early, for hard margins."""
ROWS_FIRST = 16
"""Number of rejected tokens per entry of W from which on, and from MANY_ROWS on, the outer loop runs early."""
ENTRIES_A_DIMENSION = 16
"""Number of entries of W per dimension of the constraints' span from which on the outer loop is first in smooth l_p."""
LEAST_NARROW = 400
"""Smaller of the numbers of constraints and entries of W from which on ENTRIES_A_DIMENSION applies."""
LEAST_SYSTEM = 800
"""Smaller of the numbers of constraints and entries of W from which on the outer loop is first in entrywise norms."""
ROWS_A_QUERY = 12
"""Smaller of these numbers per query from which on, and from LEAST_SYSTEM on, the outer loop comes first."""
PROXIMAL_ENTRIES = 400
"""Number of entries of W from which on a Euclidean hard margin begins with the method of multipliers."""
STREAM_BYTES = 1 << 28
"""Number of bytes of token differences above which these are streamed instead of copied."""
WORD_BYTES = 1 << 24
"""Bytes of differences of one-hot tokens above which splitting solves nuclear squared hinges."""
WORDS_A_DIMENSION = 1.5
"""Number of one-hot tokens per dimension of the queries from which on WORD_BYTES applies."""
MOST_BYTES = 1 << 24
"""Number of bytes of joining constraints above which their positions come back first, and their tokens later."""
KEPT_BYTES = 1 << 27
"""Number of bytes of compressed tokens up to which they stay in memory during a run."""
PADDED_BYTES = 1 << 24
"""Number of bytes of a restriction's tokens up to which every query is one row, padded to the widest."""
PADDED = 1.5
"""Ratio of the padded size to the smallest size up to which a query is one row of a restriction."""
CUT_RATIO = 2
"""Ratio of constraints to the hinge's first working set above which a set that no constraint joins is cut to a band."""
FOCUS = 1 / 8
"""Smallest part of such a working set that the band around W holds."""
SURPLUS = 1.5
"""Number of multipliers per entry of W above which the method of multipliers makes its weight ten times larger."""
CHEAP_STEP = 1000
"""Number of products of a step up to which the method of multipliers doubles its weight."""

# --- by gap, norm and round ---

NEWTON_GAP = 1e-5
"""Gap below which Newton takes one or two factorisations and is tried."""
EARLY_GAP = 1e-3
"""Gap below which Newton is tried if its factor is small."""
SLOW = 0.95
"""Ratio of the gap to the gap a batch of passes before above which tokens are correlated and Newton is tried."""
WARM_GAP = 0.1
"""Gap below which a warm start begins with Newton or the active set."""
WARM_ROUNDS = 4
"""Largest number of rounds of a warm start's Newton."""
TARGETS = (1e-1, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
"""Gaps at which first-order steps let violated constraints join and, from the second on, try Newton on the face."""
INTERIOR_TARGETS = (3e-5, 3e-6, 3e-7, 3e-8, 1e-8, 3e-9)
"""Gaps, relative to the norm, at which the nuclear norm's interior point tries Newton on the face."""
FACE_GAP = 5e-5
"""Gap below which Newton on the face solves singular systems by least squares."""
CLOSE_GAP = 2e-2
"""Gap below which the outer loop solves its restrictions to the end."""
DOUBTFUL_ROUNDS = 4
"""Number of rounds without a positive margin after which contradictory constraints are suspected."""
FIRST_PENALTY = 100.0
"""Weight of the first step of the method of multipliers, for constraints of length one, from which it grows."""
PROXIMAL_STEPS = 60
"""Number of rounds after which the method of multipliers ends."""
STEPS_TO_FACE = 30.0
"""Number of first-order steps to a gap of 1e-3, over the root of the condition number, which orders the methods."""

# --- work and budgets ---

BLAS_RATE = 2e10
"""Operations per second of Cholesky factors and matrix products."""
LOOP_RATE = 1.5e9
"""Operations per second of compiled loops in which every pass depends on the pass before."""
PRICING_RATE = 4e9
"""Operations per second of compiled products of a vector with all tokens."""
UPDATE_RATE = 8e9
"""Operations per second of compiled updates of a whole matrix."""
STREAM_RATE = 2e9
"""Operations per second of array expressions."""
OVERHEAD = 5e-4
"""Seconds that the interpreter takes in an interior-point or a Newton step."""
BLOCK_FACTOR = 10.0
"""Operations of inverting a token's block over the cube of its size, which decide whether Newton takes blocks."""
STEP_OPERATIONS = 200.0
"""Operations of array expressions per constraint in a step of the interior point."""
COORDINATE_OPERATIONS = 20.0
"""Operations of array expressions per coordinate of a constraint's token in a step of the interior point."""
LOOK_OPERATIONS = 120.0
"""Operations of array expressions per constraint in a test of the gap."""
BUDGET_GROWTH = 2.0
"""Ratio of a round's budget to the budget of the round before."""
INTERIOR_STEPS = 16
"""Expected number of steps of the interior point, whose work w is the unit of the budgets below."""
FIRST_TURN, SECOND_TURN, INTERIOR_TURN = (0.4, 0), (0.3, 1), (0.75, 1)
"""Budgets in w and rounds waited, for the first and the second Frobenius method and for the interior point."""
ACTIVE_SET_TURN = (0.6, 0)
"""Budget in w and rounds waited, for the active set if it comes first."""
UNCOMPILED_SHARE = 2.0
"""Budget in w of the interior point, which comes first while coordinate passes are not compiled."""
NUCLEAR_INTERIOR_STEPS = 20
"""Expected number of steps of the nuclear norm's interior point."""
NUCLEAR_FIRST, NUCLEAR_INTERIOR = 1.0, 1.0
"""Budgets of first-order steps and of the interior point, in units of that expected work."""
EXCHANGE_ROUNDS, EARLY_ROUNDS, LATE_ROUNDS = (0.5, 0.7), (0.35, 0.7), (6.0, 2.0)
"""Budgets in w of a method on all constraints and the outer loop: early, up to FEW_W_ENTRIES or above, and late."""
SMOOTH_ROUNDS, LINEAR_ROUNDS = (1.0, 0.25), (2.0, 0.7)
"""Budgets in w of the same two if the outer loop comes first, in smooth l_p and in linear programs."""


def nuclear_first_order_work(shape: tuple[int, int], m: int) -> float:
    """Estimate the work of a first-order step for W of shape (p, r) on m constraints, from a fit to measured times."""
    p, r = shape
    return 1e-6 * (5.0 + 0.09 * p * r + 0.002 * m * p)


def nuclear_interior_work(shape: tuple[int, int], m: int) -> float:
    """Estimate the work of a step of the nuclear norm's interior point, as :func:`nuclear_first_order_work` does."""
    return 1e-6 * (300.0 + 8e-3 * m**2 + 2e-5 * m**3 + 2.5e-3 * sum(shape) ** 3)


@dataclass
class Turn:
    """A method that the scheduler runs: its name in reports, its steps, its first budget, and the rounds that it waits.

    A method with an empty name names itself to the control.
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
        Methods in order of preference.
    enough : callable
        Called when a method has ended by itself; tells whether no other method can come closer.

    Yields
    ------
    float
        Work of each step, so that a schedule can be a method of another schedule.

    Returns
    -------
    ndarray or None
        Multipliers that prove infeasibility, if any do.
    """
    factor, rounds = 1.0, 0
    while turns:
        dropouts = []
        for turn in turns:
            # The last method waits for no other.
            if rounds < turn.delay and len(dropouts) < len(turns) - 1:
                continue
            if turn.name:
                control.enter(turn.name)
            certificate = yield from _advance(turn, turn.budget * factor, control, dropouts)
            if certificate is not None or control.solved or control.stopped or (turn in dropouts and enough()):
                return certificate
        turns = [turn for turn in turns if turn not in dropouts]
        factor, rounds = factor * BUDGET_GROWTH, rounds + 1
    return None


def finish(steps: Generator[float, None, Answer]) -> Answer:
    """Run a method to its end, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def _advance(turn: Turn, allowance: float, control: Control, dropouts: list[Turn]) -> Steps:
    """Run a method until its total work exceeds its allowance, and return its certificate."""
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
    """Set the budgets of a method on the whole problem and of the outer loop, if the outer loop takes part.

    Parameters
    ----------
    work : float
        Work of a step of the Frobenius interior point.
    whole, rounds : Turn
        The two methods.
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
    """Tell whether the constraints span far fewer dimensions than W has entries."""
    return ENTRIES_A_DIMENSION * reduced.constraint_rank <= int(np.prod(reduced.shape))
