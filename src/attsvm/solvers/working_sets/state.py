"""Where a run is, what its rounds took, and the file of kilobytes to go on from: no tokens."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.core.files import replacing_file
from attsvm.core.norms import Norm
from attsvm.proofs.objective import Regularisation
from attsvm.solvers.working_sets.collection import Collection
from attsvm.solvers.working_sets.constraints import Anchor, Constraints, Settled

# Arrays and numbers of a state that are written as they are.
_PLAIN = ("dual", "W", "target", "rounds", "room", "reach", "band", "weight", "penalty")


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
    anchor : Anchor or None
    reach : float
    room : int
    settled : Settled or None
    band : int
        Constraints that those of the table stand for, or are the first of.
    weight : float
        How many each stands for.
    distances : ndarray or None
        How many margins of the best W are how far from one.
    penalty : float
        Weight of the next step of the method of multipliers; zero once the norm's own method solves restrictions.
    """

    table: Constraints
    dual: np.ndarray
    W: np.ndarray
    target: float
    rounds: int
    room: int
    anchor: Anchor | None = None
    reach: float = 0.0
    settled: Settled | None = None
    band: int = 0
    weight: float = 1.0
    distances: np.ndarray | None = None
    penalty: float = 0.0


def write_checkpoint(path: str | os.PathLike[str], state: State, mark: np.ndarray) -> None:
    """Write a state beside its place, and rename it.

    Parameters
    ----------
    path : path
    state : State
    mark : ndarray
        Of the problem, from :func:`mark_of`.
    """
    table = state.table
    arrays: dict[str, Any] = {name: getattr(state, name) for name in _PLAIN}
    arrays |= {"mark": mark, "places": np.column_stack([table.shard, table.query, table.token]), "data": _digest(table)}
    if state.anchor is not None:
        arrays |= {"anchor": state.anchor.W, "width": state.anchor.band}
    if state.settled is not None:
        arrays |= {"pull": state.settled.pull, "settled": [state.settled.count, state.settled.error]}
    if state.distances is not None:
        arrays["distances"] = state.distances
    with replacing_file(path) as beside, beside.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)


def read_checkpoint(path: str | os.PathLike[str], shards: Collection, mark: np.ndarray) -> State | None:
    """Read a state and bring its constraints here.

    Returns
    -------
    State or None
        None where there is no file.

    Raises
    ------
    ValueError
        If the file is no checkpoint, or one of another problem; a sentence.
    """
    place = Path(path)
    if not place.exists():
        return None
    try:
        with np.load(place, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
        raise ValueError(f"{place} is damaged or no checkpoint; remove it to begin anew.") from error
    if "mark" not in arrays or not np.array_equal(arrays["mark"], mark):
        raise ValueError(
            f"{place} is the checkpoint of another problem, norm, C, loss or prior; remove it to begin anew."
        )
    table = shards.brought(arrays["places"])
    if _digest(table) != arrays["data"]:
        raise ValueError(f"{place} was written for other data in the same places; remove it to begin anew.")
    anchor = Anchor(arrays["anchor"], float(arrays["width"])) if "anchor" in arrays else None
    settled = None
    if "pull" in arrays:
        count, error = arrays["settled"]
        settled = Settled(arrays["pull"], int(count), float(error))
    plain = {name: arrays[name] if arrays[name].ndim else arrays[name].item() for name in _PLAIN}
    return State(table=table, anchor=anchor, settled=settled, distances=arrays.get("distances"), **plain)


def mark_of(shape: tuple[int, ...], count: int, norm: Norm, regularisation: Regularisation) -> np.ndarray:
    """Tell problems apart: sizes, number of shards, and a digest of what is minimised."""
    prior = b"" if regularisation.prior is None else np.ascontiguousarray(regularisation.prior).tobytes()
    text = f"{norm.name} {regularisation.C!r} {regularisation.loss}".encode()
    return np.array([*shape, count, zlib.crc32(text), zlib.crc32(prior)], dtype=np.int64)


def _digest(table: Constraints) -> int:
    """Digest the numbers that constraints are made of."""
    rows = (table.x, table.reference[table.owner], table.z[table.owner])
    return zlib.crc32(b"".join(np.ascontiguousarray(part).tobytes() for part in rows))
