r"""Evaluation of a W on a shard, which returns sums over its margins and a few constraints.

Answers are additive (:func:`merge`): workers join them, and the result has the size of W and of the new constraints,
however many shards there are. A worker stores nothing between calls, neither open files nor maps: it evaluates the
current content of the file, and a lost worker costs one pass.

Constraints of a hinge that fall short have their multipliers at C. Constraints that fall short by more than a band at
an earlier W, the *anchor*, are not listed but enter as a sum (:class:`BoundSum`). The anchor determines which they are,
so a shard need not store them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.core.double_double import Rows
from attsvm.core.error_free import UNIT, Pair, gamma
from attsvm.core.norms import frobenius
from attsvm.core.rounding import FUNCTION_ROUNDING, PAIRWISE
from attsvm.data.shard_pieces import ShardArrays, ShardFile
from attsvm.solvers.working_sets.constraints import Anchor, BoundSum, ConstraintTable
from attsvm.solvers.working_sets.margins import Block, blocks

# Number of constraints of the blocks evaluated so far, over the capacity, above which only the most urgent are stored.
MOST_ROOMS = 2


@dataclass(frozen=True, eq=False)
class Request:
    """The evaluation that every shard performs.

    Attributes
    ----------
    W : ndarray, shape (d, dz)
    hinge, hard : bool
        Properties of the regularisation.
    allowance : float
        Amount counted against every margin, over the length of the constraint.
    room : int
        Largest number of constraints that return, in addition to all ties.
    each : int or None
        Largest number of constraints per query among them.
    below : float
        Constraints with margins below this value return.
    sums : bool
        Sum the constraints at their bound.
    sample : int or None
        Return constraints within the band, drawn at random with this seed.
    move : float
        Part of the allowance that makes ties exact.
    sharp : bool
        Compute margins that fall short, with the allowance counted, in pairs of doubles.
    bare : bool
        Return the indices of constraints without their tokens and queries.
    """

    W: np.ndarray
    hinge: bool
    hard: bool
    allowance: float = 0.0
    room: int = 1
    each: int | None = None
    below: float = 1.0
    anchor: Anchor | None = None
    sums: bool = False
    sample: int | None = None
    move: float = 0.0
    sharp: bool = False
    bare: bool = False


@dataclass(frozen=True, eq=False)
class Answer:
    """The result of evaluating W on shards.

    Attributes
    ----------
    smallest, floor : float
        Smallest margin of a rejected token, without and with the allowance counted.
    shortfall, shortfall_above, square, square_above : float
        Sums of the shortfalls of rejected tokens and of their squares, without and with the allowance counted. Zero for
        a hard margin, which has no losses.
    rejected, empty, candidate_count : int
        Numbers of rejected tokens, of rejected tokens that no W moves, and of constraints that might have returned.
    """

    smallest: float
    floor: float
    shortfall: float
    shortfall_above: float
    square: float
    square_above: float
    rejected: int
    empty: int
    candidate_count: int
    fresh: ConstraintTable
    bound_sum: BoundSum | None


Source = ShardFile | ShardArrays


def direction(source: Source, _: int) -> np.ndarray:
    """Sum all constraints of a shard, (d, dz), as a first guess of W."""
    shard = source.open()
    none = np.zeros((0, shard.tokens.shape[2], shard.queries.shape[1]))
    return np.sum([block.adjoint(block.rejected) for block in blocks(shard, none)], axis=0)


def price(source: Source, number: int, members: np.ndarray, request: Request) -> Answer:
    """Evaluate a shard; ``members`` (K, 2) are the queries and tokens of its constraints in the working set."""
    matrices = request.W[None] if request.anchor is None else np.stack([request.W, request.anchor.W])
    parts: list[Answer] = []
    for block in blocks(source.open(), matrices):
        parts.append(_of_block(block, number, members, request))
        if sum(len(part.fresh) for part in parts) > MOST_ROOMS * request.room:
            parts = [merge(parts, request.room)]
    return merge(parts, request.room)


def unlisted_marks(source: Source, members: np.ndarray, anchor: Anchor | None) -> np.ndarray:
    """Mark rejected tokens of a soft margin whose multipliers are not listed, (n, T).

    W moves none of these tokens, or they are at their bound at an anchor. ``members`` (K, 2), queries and tokens of the
    working set, are listed.
    """
    shard = source.open()
    matrices = np.zeros((0, shard.tokens.shape[2], shard.queries.shape[1])) if anchor is None else anchor.W[None]
    marks = np.zeros((len(shard.queries), shard.tokens.shape[1]), dtype=bool)
    for block in blocks(shard, matrices):
        marks[block.rows] = block.rejected & block.fixed
        if anchor is not None:
            marks[block.rows] |= _at_bound(block, 0, _absent(block, members), anchor)
    return marks


def merge(parts: Sequence[Answer], room: int) -> Answer:
    """Join answers, with the most urgent constraints."""
    sums = [part.bound_sum for part in parts if part.bound_sum is not None]
    return Answer(
        smallest=min(part.smallest for part in parts),
        floor=min(part.floor for part in parts),
        shortfall=math.fsum(part.shortfall for part in parts),
        shortfall_above=_sum_above([part.shortfall_above for part in parts]),
        square=math.fsum(part.square for part in parts),
        square_above=_sum_above([part.square_above for part in parts]),
        rejected=sum(part.rejected for part in parts),
        empty=sum(part.empty for part in parts),
        candidate_count=sum(part.candidate_count for part in parts),
        fresh=ConstraintTable.concatenate([part.fresh for part in parts]).most_urgent(room),
        bound_sum=BoundSum.add(sums) if sums else None,
    )


def _sum_above(values: Sequence[float]) -> float:
    """Sum bounds and round up: the number of sums of sums grows with that of the shards."""
    return math.fsum(values) * (1 + FUNCTION_ROUNDING)


def fetch(source: Source, number: int, places: np.ndarray) -> ConstraintTable:
    """Read constraints at given queries and tokens of a shard, (K, 2), as a checkpoint lists them."""
    shard = source.open()
    query, token = places.T
    if len(places) and not (query.max() < len(shard.queries) and token.max() < shard.tokens.shape[1]):
        raise ValueError("the checkpoint names constraints that the shards do not have; it is of another problem.")
    asking, owner = np.unique(query, return_inverse=True)
    selection, sequence = shard.selection(asking), shard.sequence[query]
    return ConstraintTable(
        place=_places(number, query, token),
        x=np.asarray(shard.tokens[sequence, token], dtype=np.float64),
        reference=np.asarray(shard.tokens[sequence, selection.argmax(axis=1)[owner]], dtype=np.float64),
        z=shard.queries[query],
        tied=selection[owner, token],
        at_bound=np.zeros(len(places), dtype=bool),
        key=np.zeros(len(places)),
    )


def _of_block(block: Block, number: int, members: np.ndarray, request: Request) -> Answer:
    margins, lengths, rejected, anchor = block.margins[0], block.lengths, block.rejected, request.anchor
    least = margins - request.allowance * lengths
    if request.sharp:
        _sharpen(block, least, request)
    short, above = np.zeros(0), np.zeros(0)
    if not request.hard:
        short, above = (np.maximum(1.0 - values[rejected], 0.0) for values in (margins, least))
    empty = rejected & block.fixed
    absent = _absent(block, members)
    candidates = absent & rejected & (request.hard | ~block.fixed)
    at_bound = np.zeros(margins.shape, dtype=bool) if anchor is None else _at_bound(block, 1, absent, anchor)
    key = np.abs(margins - 1.0) if request.hinge else (margins - 1.0) / np.where(lengths > 0, lengths, 1.0)
    if request.sample is not None and anchor is not None:
        joining = candidates & ~at_bound & (block.margins[1] <= 1.0 + anchor.band)
        key = np.random.default_rng([request.sample, number, block.rows.start]).random(margins.shape)
    else:
        joining = np.where(at_bound, margins > 1.0, candidates & (margins < request.below))
    candidate_count = int(joining.sum())
    if request.each is not None:
        joining = _smallest_of_each(key, joining, request.each)
    if joining.sum() > request.room:
        joining &= key <= np.partition(key[joining], request.room - 1)[request.room - 1]
    row, column = np.nonzero(joining | (block.tied & absent))
    nothing = np.zeros((len(row), 0))
    fresh = ConstraintTable(
        place=_places(number, row + block.rows.start, column),
        x=nothing if request.bare else block.pick(row, column),
        reference=nothing if request.bare else block.pick(row, block.reference[row]),
        z=nothing if request.bare else block.queries[row],
        tied=block.tied[row, column],
        at_bound=at_bound[row, column],
        key=key[row, column],
    )
    return Answer(
        smallest=float(np.min(margins, where=rejected, initial=np.inf)),
        floor=float(np.min(least, where=rejected, initial=np.inf)),
        shortfall=float(short.sum()),
        shortfall_above=float(above.sum()),
        square=float((short * short).sum()),
        square_above=float((above * above).sum()),
        rejected=int(rejected.sum()),
        empty=int(empty.sum()),
        candidate_count=candidate_count,
        fresh=fresh,
        bound_sum=_sum_of(block, at_bound, sharp=request.sharp) if request.sums else None,
    )


def _smallest_of_each(key: np.ndarray, joining: np.ndarray, count: int) -> np.ndarray:
    """Mark only the ``count`` smallest keys of each row among the marks (rows, T)."""
    if count >= key.shape[1]:
        return joining
    crowded = np.flatnonzero(np.count_nonzero(joining, axis=1) > count)
    keys = np.where(joining[crowded], key[crowded], np.inf)
    joining = joining.copy()
    joining[crowded] &= keys <= np.partition(keys, count - 1, axis=1)[:, count - 1 : count]
    return joining


def _places(number: int, query: np.ndarray, token: np.ndarray) -> np.ndarray:
    return np.column_stack([np.full(len(query), number), query, token])


def _absent(block: Block, members: np.ndarray) -> np.ndarray:
    """Mark tokens outside the working set, (rows, T)."""
    absent = np.ones(block.lengths.shape, dtype=bool)
    here = members[(members[:, 0] >= block.rows.start) & (members[:, 0] < block.rows.stop)]
    absent[here[:, 0] - block.rows.start, here[:, 1]] = False
    return absent


def _at_bound(block: Block, which: int, absent: np.ndarray, anchor: Anchor) -> np.ndarray:
    """Mark constraints at their bound at an anchor, whose margins are under the matrix ``which`` of the block."""
    return absent & block.rejected & ~block.fixed & (block.margins[which] < 1.0 - anchor.band)


def _sharpen(block: Block, least: np.ndarray, request: Request) -> None:
    """Replace lower bounds of margins (rows, T) that fall short of one by bounds in twice the precision."""
    row, column = np.nonzero(block.rejected & (least < 1.0))
    exact, relative = _rows(block, row, column).margins(Pair(request.W, np.zeros(request.W.shape)))
    values = exact.rounded()
    allowance = (relative * frobenius(request.W) + request.move) * (1 + FUNCTION_ROUNDING)
    values = values - 4 * UNIT * np.abs(values) - allowance * block.lengths[row, column]
    least[row, column] = np.where(np.isfinite(values), np.maximum(values, least[row, column]), least[row, column])


def _sum_of(block: Block, at_bound: np.ndarray, *, sharp: bool) -> BoundSum:
    weight = float(block.lengths[at_bound].sum()) * (1 + gamma(PAIRWISE + 4))
    if sharp and at_bound.any():
        row, column = np.nonzero(at_bound)
        pair, relative = _rows(block, row, column).adjoint(Pair(np.ones(len(row)), np.zeros(len(row))))
        return BoundSum(pair, len(row), relative * weight)
    # Roundings of a query's terms, then of the queries: a difference, its product with the query, and both sums.
    error = gamma(sum(at_bound.shape) + 8) * weight
    adjoint = block.adjoint(at_bound)
    return BoundSum(Pair(adjoint, np.zeros(adjoint.shape)), int(at_bound.sum()), error)


def _rows(block: Block, row: np.ndarray, column: np.ndarray) -> Rows:
    return Rows.between(block.pick(row, block.reference[row]), block.pick(row, column), block.queries[row], row)
