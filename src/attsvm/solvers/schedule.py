r"""Which methods run, in which order and for how long: the table of choices, and the scheduler.

No method is the fastest everywhere, and each fails somewhere. Methods are therefore generators that yield the work of
each of their steps. The scheduler runs each method for its budget, puts it aside as it stands, and continues it in the
next round with a larger budget. An instance that one method solves is thus solved within a small multiple of that
method's own work, whatever the others do. Work is estimated from sizes, in seconds of one core at the rates below, and
never from a clock, so that runs repeat.

The multiple is as follows. Let method j have the first budget :math:`b_j`, wait :math:`w_j` rounds, and budgets grow by
g. Method k, if it needs work x, ends in the first round r from :math:`w_k` on with :math:`b_k g^r \ge x`. By then the
methods before it have spent at most :math:`b_j g^r` each, and the methods after it :math:`b_j g^{r-1}`, or less if they
still wait, plus one step. As :math:`b_k g^{r-1} < x` unless :math:`r = w_k`, the total work is at most

.. math:: F_k + c_k x, \qquad c_k = 1 + \frac{g \sum_{j<k} b_j + \sum_{j>k} b_j}{b_k},

where :math:`F_k` is the work of the others before the first turn of method k in round :math:`w_k`. A wait lowers the
work of the others and adds to :math:`F_k`.
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

# The table of choices. Under each name stand its unit and one sentence on what it decides. benchmarks/NOTES.md has the
# measurements behind the values.

# --- which method, by size ---

SMALL = 100_000
"""Tokens; up to this number a Frobenius hard margin is first tried by one compiled call."""
FEW_ENTRIES = 1100
"""Entries of W; above this number no compiled call is tried on more than GRAM_LIMIT tokens."""
SMALL_PRODUCTS = 1_300_000
"""Tokens times entries of W; above this number no compiled call is tried on more than GRAM_LIMIT tokens."""
WARM = 1000
"""Tokens; above this number a warm start takes the place of the compiled call."""
GRAM_LIMIT = 350
"""Tokens; up to this number the compiled call may form the Gram matrix of the constraints."""
FEW_ROWS = 100
"""Constraints; up to this number the compiled call forms their Gram matrix."""
GRAM_RATIO = 1.5
"""Constraints per entry of W; up to this ratio the compiled call forms the Gram matrix of more than FEW_ROWS."""
FEW_SUPPORTS = 350
"""Active constraints; above this number Newton goes before the active set (twice as many for near duplicates)."""
FEW_W_ENTRIES = 400
"""Entries of W; up to this number the active set goes before Newton, whatever the number of active constraints."""
SMALL_FACTOR = 700
"""Active constraints; above this number Newton waits for NEWTON_GAP instead of EARLY_GAP."""
FREE_RATIO = 2
"""Multipliers between their bounds per entry of W; above this ratio, and SMALL_FACTOR, Newton is not tried."""
CROWD = 1000
"""Positive multipliers of a squared hinge; above this number no warm start begins with Newton."""
CROWD_RATIO = 4
"""Positive multipliers per entry of W; above this ratio, and CROWD, no warm start begins with Newton."""
NEARLY_SQUARE = 0.9
"""Active constraints per entry of W; from this ratio on a warm start begins with the active set."""
WORKING_SET = 6000
"""Constraints of a Newton system; above this number Newton is not tried, and no more join."""
REFINABLE = 2000
"""Multipliers between their bounds; above this number Newton does not refine W."""
SINGLE_ROWS = 200
"""Rows of a Newton system; from this number on a factor in single precision is tried first."""
DEAR = 4
"""Operations of pricing over those of the factor; above this ratio the urgent queries are priced before all."""
DENSE_ENTRIES = 500_000
"""Entries of the supports' rows; above this number a certificate is corrected by Gram matrices, not a decomposition."""
SHARP_ENTRIES = 50_000
"""Entries of all tokens times columns of W; above this number a closed gap is not certified again more sharply."""
REFINED_ENTRIES = 4_000_000
"""Entries of the active constraints' rows; above this number W and multipliers are not refined further."""
LARGE_SUPPORT = 400
"""Active constraints; above this number Newton on the face waits for one target more."""
WHOLE_SET = 250
"""Constraints; up to this number all are in the nuclear norm's first working set."""
CENTRAL_OPERATIONS = 1_000_000
"""Operations of a step; up to this number a soft margin in the Frobenius norm is first tried by one compiled call."""
COMPILED_CONSTRAINTS = 250
"""Constraints; above this number Newton on the face runs in NumPy instead of compiled loops."""
FEW_PRODUCTS = 4000
"""Multiplications of a matrix product; above this number compiled steps call BLAS for it."""
SMALL_SET = 100
"""Constraints; above this number the active set's first passive set is factored by LAPACK, not one at a time."""
ROTATION_ROWS = 24
"""Rows of a matrix; up to this number singular vectors come from rotations of a nearby basis, not from LAPACK."""
MOST_UNKNOWNS = 2000
"""Unknowns of a singular system on the face; above this number no least squares is tried."""
PATIENCE = 6000
"""Expected first-order steps; above this number the compiled call leaves the nuclear norm to other methods."""
ROW_ENTRIES = 200
"""Entries of W; above this number steps of entrywise norms solve for the multipliers, where constraints are fewer."""
FEW_CONSTRAINTS = 1500
"""Constraints; up to this number an interior point may solve for the multipliers though W has fewer entries."""
MANY_CONSTRAINTS = 5000
"""Constraints; up to this number the nuclear norm's second run solves for the multipliers."""
MANY_RATIO = 16
"""Constraints per entry of W; up to this ratio the nuclear norm's second run solves for more than FEW_CONSTRAINTS."""
SMOOTH_ENTRIES = 1100
"""Entries of W; above this number the path of smoothed norms neither follows other methods nor doubles its systems."""
FORMED_ENTRIES = 1 << 14
"""Entries of W; above this number no second run is made, whose matrix takes eight bytes times their square."""
ONE_THREAD = 2000
"""Entries of W or constraints, the fewer; up to this number BLAS is kept to one thread."""

# --- the outer loop: when it takes turns, and how it begins ---

LEAST_ROWS = 5000
"""Rejected tokens; from this number on the outer loop takes turns with a method on all constraints."""
ROWS_BESIDE = 8
"""Rejected tokens per entry of W; from this ratio on, and LEAST_ROWS, the outer loop takes turns."""
MANY_ROWS = 50_000
"""Rejected tokens; from this number on the outer loop's turn is early, for hard margins."""
ROWS_FIRST = 16
"""Rejected tokens per entry of W; from this ratio on, and MANY_ROWS, the outer loop's turn is early."""
ENTRIES_A_DIMENSION = 16
"""Entries of W per dimension that constraints span; from this ratio on the outer loop comes first in smooth l_p."""
LEAST_NARROW = 400
"""Constraints or entries of W, the fewer; from this number on ENTRIES_A_DIMENSION applies."""
LEAST_SYSTEM = 800
"""Constraints or entries of W, the fewer; from this number on the outer loop comes first in entrywise norms."""
ROWS_A_QUERY = 12
"""Constraints or entries of W per query; from this ratio on, and LEAST_SYSTEM, the outer loop comes first."""
PROXIMAL_ENTRIES = 400
"""Entries of W; from this number on a Euclidean hard margin begins with the method of multipliers."""
STREAM_BYTES = 1 << 28
"""Bytes of token differences; above this number they are streamed instead of copied."""
MOST_BYTES = 1 << 24
"""Bytes of joining constraints; above this number their positions come back first, and their tokens later."""
KEPT_BYTES = 1 << 27
"""Bytes of compressed tokens; up to this number they stay in memory during a run."""
PADDED_BYTES = 1 << 24
"""Bytes of a restriction's tokens; up to this number a query is one row, however many tokens are padded."""
PADDED = 1.5
"""Padded size over the best; up to this ratio a query is one row of a restriction."""
CUT_RATIO = 2
"""Constraints over the hinge's first working set; above this ratio a set that nothing joins is cut to a band."""
FOCUS = 1 / 8
"""Part of such a working set; the band around W holds it."""
SURPLUS = 1.5
"""Multipliers per entry of W; above this ratio the method of multipliers makes its weight ten times larger."""
CHEAP_STEP = 1000
"""Products of a step; up to this number the method of multipliers doubles its weight."""

# --- by gap, norm and round ---

NEWTON_GAP = 1e-5
"""Gap; below it Newton takes one or two factorisations and is tried."""
EARLY_GAP = 1e-3
"""Gap; below it Newton is tried where its factor is small."""
SLOW = 0.95
"""Gap over the gap a batch of passes before; above this ratio tokens are correlated and Newton is tried."""
WARM_GAP = 0.1
"""Gap; below it a warm start begins with Newton or the active set."""
WARM_ROUNDS = 4
"""Rounds; a warm start's Newton makes at most this many."""
TARGETS = (1e-1, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
"""Gaps; first-order steps let violated constraints join at each, and try Newton on the face from the second on."""
INTERIOR_TARGETS = (3e-5, 3e-6, 3e-7, 3e-8, 1e-8, 3e-9)
"""Gaps in parts of the norm; the nuclear norm's interior point tries Newton on the face at each."""
FACE_GAP = 5e-5
"""Gap; below it Newton on the face solves singular systems by least squares."""
CLOSE_GAP = 2e-2
"""Gap; below it the outer loop solves its restrictions to the end."""
DOUBTFUL_ROUNDS = 4
"""Rounds; after this number without a positive margin contradictory constraints are suspected."""
FIRST_PENALTY = 100.0
"""Weight of the method of multipliers in its first step, for constraints of length one; it grows from there."""
PROXIMAL_STEPS = 60
"""Rounds; after this number the method of multipliers ends."""
STEPS_TO_FACE = 30.0
"""First-order steps to a gap of 1e-3, over the root of the condition number; the estimate that orders the turns."""

# --- work and turns ---

BLAS_RATE = 2e10
"""Operations a second; Cholesky factors and matrix products."""
LOOP_RATE = 1.5e9
"""Operations a second; compiled loops whose every pass depends on the one before."""
PRICING_RATE = 4e9
"""Operations a second; compiled products of a vector with all tokens."""
UPDATE_RATE = 8e9
"""Operations a second; compiled updates of a whole matrix."""
STREAM_RATE = 2e9
"""Operations a second; array expressions."""
OVERHEAD = 5e-4
"""Seconds; the interpreter's share of an interior-point or a Newton step."""
BLOCK_FACTOR = 10.0
"""Operations of inverting a token's block over the cube of its size; Newton takes blocks where they are cheaper."""
STEP_OPERATIONS = 200.0
"""Operations of array expressions per constraint; a step of the interior point."""
COORDINATE_OPERATIONS = 20.0
"""Operations of array expressions per coordinate of a constraint's token; a step of the interior point."""
LOOK_OPERATIONS = 120.0
"""Operations of array expressions per constraint; a test of the gap."""
BUDGET_GROWTH = 2.0
"""Budget of a round over the budget before; methods are put aside and go on with it."""
INTERIOR_STEPS = 16
"""Steps; the interior point's whole expected work w, the unit of the budgets that follow, is this many."""
FIRST_TURN, SECOND_TURN, INTERIOR_TURN = (0.4, 0), (0.3, 1), (0.75, 1)
"""Budgets in w, and rounds waited; the first Frobenius method, the second, and the interior point."""
ACTIVE_SET_TURN = (0.6, 0)
"""Budget in w, and rounds waited; the active set where it comes first."""
UNCOMPILED_SHARE = 2.0
"""Budget in w; the interior point comes first with it while coordinate passes are not compiled."""
NUCLEAR_INTERIOR_STEPS = 20
"""Steps; the expected work of the nuclear norm's interior point is this many."""
NUCLEAR_FIRST, NUCLEAR_INTERIOR = 1.0, 1.0
"""Budgets in that work; first-order steps and the interior point."""
EXCHANGE_ROUNDS, EARLY_ROUNDS, LATE_ROUNDS = (0.5, 0.7), (0.35, 0.7), (6.0, 2.0)
"""Budgets in w; a method on all constraints and the outer loop, from FEW_W_ENTRIES down, in its early turn, else."""
SMOOTH_ROUNDS, LINEAR_ROUNDS = (1.0, 0.25), (2.0, 0.7)
"""Budgets in w; the same where the outer loop comes first, in smooth l_p and in linear programs."""


def nuclear_first_order_work(shape: tuple[int, int], m: int) -> float:
    """Estimate the work of a first-order step for W of shape (p, r) on m constraints.

    The estimate, like the next one, is fitted to times between (10, 6) with 42 constraints and (64, 64) with 2600.
    """
    p, r = shape
    return 1e-6 * (5.0 + 0.09 * p * r + 0.002 * m * p)


def nuclear_interior_work(shape: tuple[int, int], m: int) -> float:
    """Estimate the work of a step of the nuclear norm's interior point for W of shape (p, r) on m constraints."""
    return 1e-6 * (300.0 + 8e-3 * m**2 + 2e-5 * m**3 + 2.5e-3 * sum(shape) ** 3)


@dataclass
class Turn:
    """A method under way: its name in reports, steps, first budget, and the number of rounds it waits.

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
        Work of each step, so that turns may be a method of other turns.

    Returns
    -------
    ndarray or None
        Multipliers that prove infeasibility, if any do.
    """
    factor, rounds = 1.0, 0
    while turns:
        dropouts = []
        for turn in turns:
            # The only method left waits for no other.
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
    """Run a method to its end; returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def _advance(turn: Turn, allowance: float, control: Control, dropouts: list[Turn]) -> Steps:
    """Let a method work until its total work exceeds its allowance; returns its certificate."""
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
    setting : Setting
    work : float
        Work of a step of the Frobenius interior point.
    whole, rounds : Turn
        The two turns.
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
