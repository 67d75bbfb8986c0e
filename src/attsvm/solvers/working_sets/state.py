"""The state of a run, the statistics of its rounds, and its checkpoint: a file of kilobytes, without tokens."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.data.shard_pieces import ShardFile
from attsvm.data.shards import ShardedProblem
from attsvm.platform.files import check_apart, replacing_file
from attsvm.solvers.working_sets.collection import Collection
from attsvm.solvers.working_sets.constraints import Anchor, BoundSum, ConstraintTable

# Version of the checkpoint's layout.
CHECKPOINT_FORMAT = 2
# Arrays and numbers of a state that are written unchanged.
_PLAIN = ("dual", "W", "target", "room", "rounds", "weight", "penalty")


@dataclass(frozen=True)
class Round:
    """Statistics of a round.

    Attributes
    ----------
    working, new : int
        Numbers of constraints in the working set, and of constraints that returned.
    smallest : float
        Smallest margin of all constraints.
    objective, lower_bound : float
        The best so far.
    sent, received : int
        Bytes sent and received.
    inner_seconds, pass_seconds : float
        Time of the working set's solution and of the pass over the shards.
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
    """The state of a run, as a checkpoint holds it.

    Attributes
    ----------
    dual : ndarray, shape (J,)
    W : ndarray, shape (d, dz)
        The W of the last round.
    target : float
        Gap at which the next restriction's solution ends.
    room : int
        Capacity: largest number of constraints that may join in a round.
    weight : float
        Number of constraints that each constraint of the table represents.
    penalty : float
        Weight of the next step of the method of multipliers; zero once the norm's own method solves restrictions.
    """

    table: ConstraintTable
    dual: np.ndarray
    W: np.ndarray
    target: float
    room: int
    rounds: int = 0
    anchor: Anchor | None = None
    bound_sum: BoundSum | None = None
    weight: float = 1.0
    penalty: float = 0.0

    @property
    def count(self) -> int:
        """Number of constraints that the table represents, without ties."""
        return round(self.weight * np.count_nonzero(~self.table.tied))


def check_outside(target: str | os.PathLike[str], name: str, problem: ShardedProblem) -> None:
    """Refuse an output file that is a shard, or lies in a folder of shards, where it would count as one.

    Raises
    ------
    ValueError
        A sentence that calls the target ``name``.
    """
    shards = [shard for shard in problem.shards if isinstance(shard, ShardFile)]
    paths, words = {shard.path for shard in shards}, {shard.words for shard in shards if shard.words is not None}
    # A problem of one directory of arrays was given as that directory, whose neighbours are not shards.
    folders = {os.path.dirname(path) for path in paths if len(paths) > 1 or not os.path.isdir(path)}
    check_apart(target, name, paths | words, folders)


def write_checkpoint(path: str | os.PathLike[str], state: State, mark: np.ndarray) -> None:
    """Write a state under a temporary name, and rename it; the mark is from :func:`mark_of`."""
    arrays: dict[str, Any] = {name: getattr(state, name) for name in _PLAIN}
    arrays |= {"mark": mark, "place": state.table.place, "data": _digest(state.table)}
    if state.anchor is not None:
        arrays |= {"anchor": state.anchor.W, "band": state.anchor.band}
    with replacing_file(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)


def read_checkpoint(path: str | os.PathLike[str], shards: Collection, mark: np.ndarray) -> State | None:
    """Read a state, its constraints and the sum of constraints at their bound; None if there is no file.

    Raises
    ------
    ValueError
        If the file is not a checkpoint, or belongs to another problem. The message advises removal of checkpoints only.
    """
    place = Path(path)
    if not place.exists():
        return None
    try:
        with np.load(place, allow_pickle=False) as archive:
            arrays = dict(archive)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
        raise ValueError(f"{place} is damaged or no checkpoint; another name was expected.") from error
    if "mark" not in arrays:
        raise ValueError(f"{place} is no checkpoint; another name was expected.")
    if not np.array_equal(arrays["mark"], mark):
        raise ValueError(
            f"{place} is the checkpoint of another problem, norm, C, loss or prior; remove it to begin anew."
        )
    table = shards.bring(arrays["place"])
    if _digest(table) != arrays["data"]:
        raise ValueError(f"{place} was written for other data in the same places; remove it to begin anew.")
    state = State(table, **{name: arrays[name] if arrays[name].ndim else arrays[name].item() for name in _PLAIN})
    if "anchor" in arrays:
        state.anchor = Anchor(arrays["anchor"], float(arrays["band"]))
        state.bound_sum = shards.sum_of(state.anchor, table)
    return state


def mark_of(shape: tuple[int, ...], shards: Collection) -> np.ndarray:
    """Compute numbers that identify the problem: layout, sizes, number of shards, and a digest of the objective."""
    norm, regularisation = shards.norm, shards.regularisation
    prior = b"" if regularisation.prior is None else np.ascontiguousarray(regularisation.prior).tobytes()
    text = f"{norm.name} {regularisation.C!r} {regularisation.loss}".encode()
    return np.array([CHECKPOINT_FORMAT, *shape, shards.count, zlib.crc32(text), zlib.crc32(prior)], dtype=np.int64)


def _digest(table: ConstraintTable) -> int:
    """Compute a digest of the tokens and queries of constraints."""
    return zlib.crc32(np.concatenate([table.x, table.reference, table.z], axis=1).tobytes())
