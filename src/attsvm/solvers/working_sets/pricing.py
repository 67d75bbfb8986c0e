r"""What a shard is asked in a round, and what it answers: a W out, the smallest margin and a few constraints back.

Answers add up (:func:`merged`), so that they are joined in pairs on the way and what arrives has the size of W and of
the constraints that are new, however many shards there are. A shard keeps nothing between rounds: a worker that is
lost costs the pass it was at.

With a hinge, constraints that fall short have their multipliers at C. Those that do so by more than a band at an
earlier W, the *anchor*, are not brought back but enter as a sum (:class:`Settled`); which they are follows from the
anchor, so that a shard need not remember them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from attsvm.core.double_double import Rows
from attsvm.core.error_free import UNIT, Pair
from attsvm.core.norms import frobenius
from attsvm.core.rounding import FEW, PAIRWISE, gamma
from attsvm.data.shards import Shard, ShardArrays, ShardFile
from attsvm.solvers.working_sets.constraints import Anchor, Constraints, Settled, added
from attsvm.solvers.working_sets.margins import Block, blocks

# How far margins are from one, in bins of equal ratio: what a band of a certain count is chosen by.
DISTANCES = np.concatenate([[0.0], 10.0 ** np.arange(-9.0, 5.0, 0.1), [np.inf]])
NO_DISTANCES = np.zeros(len(DISTANCES) - 1, dtype=np.int64)
# Shards of which a worker keeps the opened file.
OPEN = 256


@dataclass(frozen=True, eq=False)
class Request:
    """What every shard is asked.

    Attributes
    ----------
    W : ndarray, shape (d, dz)
    hinge, hard : bool
        Of the regularisation.
    allowance : float
        Times its length it is counted against every margin.
    each, room : int
        Most constraints of a query, and of all queries, that may come back.
    nearest : bool
        Bring back smallest margins, whatever they are, and all ties.
    anchor : Anchor or None
    sums : bool
        Add up what is settled.
    sample : int or None
        Bring back constraints within the band, drawn at random with this seed, and all ties.
    move : float
        The part of the allowance that makes ties exact.
    sharp : bool
        Take margins that fall short, the allowance counted, in pairs of doubles.
    """

    W: np.ndarray
    hinge: bool
    hard: bool
    allowance: float = 0.0
    each: int = 1
    room: int = 1
    nearest: bool = False
    anchor: Anchor | None = None
    sums: bool = False
    sample: int | None = None
    move: float = 0.0
    sharp: bool = False


@dataclass(frozen=True, eq=False)
class Answer:
    """What shards say of a W.

    Attributes
    ----------
    smallest, floor : float
        Smallest margin of a rejected token, and the same with the allowance counted against each.
    shortfall, shortfall_above, square, square_above : float
        Sums of what rejected tokens fall short of one by, and of its square; with the allowance counted.
    rejected, empty, misplaced : int
        How many rejected tokens there are; how many of them no W moves; and how many are on the wrong side of one.
    distances : ndarray of int, shape (bins,)
        How many margins are how far from one, in bins of :data:`DISTANCES`; for a hinge.
    fresh : Constraints
    settled : Settled or None
    """

    smallest: float
    floor: float
    shortfall: float
    shortfall_above: float
    square: float
    square_above: float
    rejected: int
    empty: int
    misplaced: int
    distances: np.ndarray
    fresh: Constraints
    settled: Settled | None


Source = ShardFile | ShardArrays


def opened(source: Source) -> Shard:
    """Open a shard; a mapped file stays open."""
    mapped = isinstance(source, ShardFile) and not source.path.endswith((".parquet", ".zarr"))
    return _kept_open(source) if mapped else source.open()


@lru_cache(maxsize=OPEN)
def _kept_open(source: ShardFile) -> Shard:
    return source.open()


def direction(source: Source) -> np.ndarray:
    """Sum all constraints of a shard, (d, dz): a first guess of W. Reads and checks every number of the shard."""
    shard = opened(source)
    d, dz = shard.tokens.shape[2], shard.queries.shape[1]
    out = np.zeros((d, dz))
    for block in blocks(shard, np.zeros((0, d, dz))):
        out += block.pull(block.rejected.astype(float), shard.queries[block.rows])
    return out


def price(source: Source, number: int, known: np.ndarray, request: Request) -> Answer:
    """Evaluate all constraints of a shard at W.

    Parameters
    ----------
    source : ShardFile or ShardArrays
    number : int
        Of the shard.
    known : ndarray of int, shape (K, 2)
        Queries and tokens of the constraints that stand for themselves already.
    request : Request

    Returns
    -------
    Answer
    """
    shard = opened(source)
    d, dz = request.W.shape
    matrices = request.W[None] if request.anchor is None else np.stack([request.W, request.anchor.W])
    parts = [_of_block(block, shard, number, request, known) for block in blocks(shard, matrices)]
    return merged(parts or [nothing(d, dz)], request.room)


def unlisted(source: Source, known: np.ndarray, anchor: Anchor | None) -> np.ndarray:
    """Mark rejected tokens of a soft margin whose multipliers nobody lists: no W moves them, or an anchor settles them.

    Parameters
    ----------
    source : ShardFile or ShardArrays
    known : ndarray of int, shape (K, 2)
    anchor : Anchor or None

    Returns
    -------
    ndarray of bool, shape (n, T)
    """
    shard = opened(source)
    W = np.zeros((shard.tokens.shape[2], shard.queries.shape[1])) if anchor is None else anchor.W
    marks = np.zeros((len(shard.queries), shard.tokens.shape[1]), dtype=bool)
    for block in blocks(shard, W[None]):
        marks[block.rows] = block.rejected & block.fixed
        if anchor is not None:
            short = block.margins[0] < 1.0 - anchor.band
            marks[block.rows] |= _candidates(block, known, hard=False) & short
    return marks


def merged(parts: Sequence[Answer], room: int) -> Answer:
    """Join answers, keeping the most urgent constraints."""
    sums = [part.settled for part in parts if part.settled is not None]
    return Answer(
        smallest=min(part.smallest for part in parts),
        floor=min(part.floor for part in parts),
        shortfall=math.fsum(part.shortfall for part in parts),
        shortfall_above=math.fsum(part.shortfall_above for part in parts),
        square=math.fsum(part.square for part in parts),
        square_above=math.fsum(part.square_above for part in parts),
        rejected=sum(part.rejected for part in parts),
        empty=sum(part.empty for part in parts),
        misplaced=sum(part.misplaced for part in parts),
        distances=added([part.distances for part in parts]),
        fresh=Constraints.joined([part.fresh for part in parts]).most_urgent(room),
        settled=Settled.joined(sums) if sums else None,
    )


def fetch(source: Source, number: int, places: np.ndarray) -> Constraints:
    """Read constraints at known places, (K, 2) queries and tokens of a shard, as a checkpoint lists them."""
    shard = opened(source)
    T = shard.tokens.shape[1]
    if len(places) and not (places[:, 0].max() < len(shard.queries) and places[:, 1].max() < T):
        raise ValueError("the checkpoint names constraints that the shards do not have; it is of another problem.")
    asking, owner = np.unique(places[:, 0], return_inverse=True)
    selection = [shard.selection(slice(i, i + 1))[0] for i in asking.tolist()]
    reference = np.array([marks.argmax() for marks in selection], dtype=np.int64)
    sequence = shard.sequence[asking]
    tied = np.array([selection[k][t] for k, t in zip(owner, places[:, 1], strict=True)], dtype=bool)
    return Constraints(
        shard=np.full(len(places), number),
        query=places[:, 0],
        token=places[:, 1],
        x=np.asarray(shard.tokens[sequence[owner], places[:, 1]], dtype=np.float64),
        tied=tied,
        settled=np.zeros(len(places), dtype=bool),
        key=np.zeros(len(places)),
        owner=owner,
        asking=np.column_stack([np.full(len(asking), number), asking, reference]),
        z=shard.queries[asking],
        reference=np.asarray(shard.tokens[sequence, reference], dtype=np.float64),
    )


def _of_block(block: Block, shard: Shard, number: int, request: Request, known: np.ndarray) -> Answer:
    margins, lengths, rejected = block.margins[0], block.lengths, block.rejected
    queries = shard.queries[block.rows]
    least = margins - request.allowance * lengths
    if request.sharp:
        _sharpen(block, least, queries, request)
    short, above = (np.maximum(1.0 - values[rejected], 0.0) for values in (margins, least))
    empty = rejected & block.fixed
    candidates = _candidates(block, known, hard=request.hard)
    settled = np.zeros(margins.shape, dtype=bool)
    if request.anchor is not None:
        settled = candidates & (block.margins[1] < 1.0 - request.anchor.band)
    apart = np.abs(margins - 1.0)
    if request.sample is not None and request.anchor is not None:
        joining = candidates & ~settled & (block.margins[1] <= 1.0 + request.anchor.band)
        key = np.random.default_rng([request.sample, number, block.rows.start]).random(margins.shape)
    elif request.nearest:
        joining, key = candidates, margins / np.where(lengths > 0, lengths, 1.0)
    else:
        joining = np.where(settled, margins > 1.0, candidates & (margins < 1.0))
        key = apart if request.hinge else (margins - 1.0) / np.where(lengths > 0, lengths, 1.0)
    misplaced = int(joining.sum())
    joining = smallest_of_each(key, joining, request.each)
    if joining.sum() > request.room:
        limit = np.partition(key[joining], request.room - 1)[request.room - 1]
        joining &= key <= limit
    if request.nearest or request.sample is not None:
        joining = joining | block.tied
    row, column = np.nonzero(joining)
    asking, owner = np.unique(row, return_inverse=True)
    fresh = Constraints(
        shard=np.full(len(row), number),
        query=row + block.rows.start,
        token=column,
        x=block.pick(row, column),
        tied=block.tied[row, column],
        settled=settled[row, column],
        key=key[row, column],
        owner=owner,
        asking=np.column_stack([np.full(len(asking), number), asking + block.rows.start, block.reference[asking]]),
        z=queries[asking],
        reference=block.pick(asking, block.reference[asking]),
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
        misplaced=misplaced,
        distances=np.histogram(apart[rejected], DISTANCES)[0] if request.hinge else NO_DISTANCES,
        fresh=fresh,
        settled=_sum_of(block, settled, queries) if request.sums else None,
    )


def _candidates(block: Block, known: np.ndarray, *, hard: bool) -> np.ndarray:
    """Mark rejected tokens that do not stand for themselves yet; of a soft margin, those that a W moves."""
    candidates = block.rejected if hard else block.rejected & ~block.fixed
    here = known[(known[:, 0] >= block.rows.start) & (known[:, 0] < block.rows.stop)]
    candidates = candidates.copy()
    candidates[here[:, 0] - block.rows.start, here[:, 1]] = False
    return candidates


def _sharpen(block: Block, least: np.ndarray, queries: np.ndarray, request: Request) -> None:
    """Replace margins from below (rows, T) that fall short of one by those in twice the precision."""
    row, column = np.nonzero(block.rejected & (least < 1.0))
    rows = Rows.between(block.pick(row, block.reference[row]), block.pick(row, column), queries[row], row)
    exact, relative = rows.margins(Pair(request.W, np.zeros(request.W.shape)))
    values = exact.rounded()
    allowance = (relative * frobenius(request.W) + request.move) * (1 + FEW)
    values = values - 4 * UNIT * np.abs(values) - allowance * block.lengths[row, column]
    least[row, column] = np.where(np.isfinite(values), np.maximum(values, least[row, column]), least[row, column])


def _sum_of(block: Block, settled: np.ndarray, queries: np.ndarray) -> Settled:
    weight = float(block.lengths[settled].sum()) * (1 + gamma(PAIRWISE + 4))
    # The terms of a query, then queries: a difference, its product with the query, and the sums of both.
    error = gamma(sum(settled.shape) + 8) * weight
    return Settled(block.pull(settled.astype(float), queries), int(settled.sum()), error)


def nothing(d: int, dz: int) -> Answer:
    """Answer of no shard."""
    none = Constraints.none(d, dz)
    return Answer(math.inf, math.inf, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, NO_DISTANCES, none, None)


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
