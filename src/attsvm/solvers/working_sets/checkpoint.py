"""Where a run is, in a file of kilobytes: which constraints are worked with, their multipliers, and W; no tokens."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.core.files import replacing_file
from attsvm.core.norms import Norm
from attsvm.solvers.common.regularisation import Regularisation
from attsvm.solvers.working_sets.constraints import Anchor, Constraints, Settled
from attsvm.solvers.working_sets.rounds import Shards
from attsvm.solvers.working_sets.state import State

# Arrays and numbers of a state that are written as they are.
_PLAIN = ("dual", "W", "target", "rounds", "room", "reach", "band", "weight", "penalty")


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


def read_checkpoint(path: str | os.PathLike[str], shards: Shards, mark: np.ndarray) -> State | None:
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
    return State(
        table=table,
        dual=arrays["dual"],
        W=arrays["W"],
        target=float(arrays["target"]),
        rounds=int(arrays["rounds"]),
        room=int(arrays["room"]),
        anchor=anchor,
        reach=float(arrays["reach"]),
        settled=settled,
        band=int(arrays["band"]),
        weight=float(arrays["weight"]),
        distances=arrays.get("distances"),
        penalty=float(arrays["penalty"]),
    )


def mark_of(shape: tuple[int, ...], count: int, norm: Norm, regularisation: Regularisation) -> np.ndarray:
    """Tell problems apart: sizes, number of shards, and a digest of what is minimised."""
    prior = b"" if regularisation.prior is None else np.ascontiguousarray(regularisation.prior).tobytes()
    text = f"{norm.name} {regularisation.C!r} {regularisation.loss}".encode()
    return np.array([*shape, count, zlib.crc32(text), zlib.crc32(prior)], dtype=np.int64)


def _digest(table: Constraints) -> int:
    """Digest the numbers that constraints are made of."""
    rows = (table.x, table.reference[table.owner], table.z[table.owner])
    return zlib.crc32(b"".join(np.ascontiguousarray(part).tobytes() for part in rows))
