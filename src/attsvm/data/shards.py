"""Selection problems in pieces: a folder of files, or a dask array, that no machine needs to hold as a whole.

A piece is a range of queries with the tokens they read. Describing a problem reads only headers. Tokens are read block
by block if the format allows it (``.npy``, uncompressed ``.npz``, ``.safetensors``), otherwise piece by piece
(compressed ``.npz``, ``.parquet``, ``.zarr``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.data.file_arrays import Stamp, check_unchanged
from attsvm.data.shard_checks import sizes_of
from attsvm.data.shard_folder import ShardEntry, entries_of
from attsvm.data.shard_pieces import ShardArrays, ShardFile
from attsvm.platform.interop import to_numpy
from attsvm.platform.summary import counted

# Largest number of bytes per piece: bytes of tokens, or of margins if all queries share the tokens.
PIECE_BYTES = 1 << 27


class ShardedProblem:
    """A selection problem in pieces.

    Parameters
    ----------
    shards : sequence of ShardFile or ShardArrays

    Attributes
    ----------
    shape : tuple
        (n, T, d, dz); T is the length of the longest sequence.
    left_out : tuple of str
        Entries of a folder that are not shards, and arrays of its files that are not used.

    See Also
    --------
    from_folder, from_arrays

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import ShardedProblem, solve
    >>> random = np.random.default_rng(0)
    >>> tokens, queries = random.normal(size=(6, 4, 8)), random.normal(size=(6, 8))
    >>> pieces = ShardedProblem.from_arrays(tokens, queries, np.zeros(6, int), chunk=2)
    >>> len(pieces.shards), pieces.shape
    (3, (6, 4, 8, 8))
    """

    def __init__(self, shards: Any, shape: tuple[int, int, int, int], left_out: tuple[str, ...] = ()) -> None:
        self.shards = tuple(shards)
        self.shape = shape
        self.left_out = left_out

    def current(self) -> ShardedProblem:
        """Return the problem with changed files described again.

        Raises
        ------
        ValueError
            If a file is gone, or has other sizes.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import ShardedProblem
        >>> problem = ShardedProblem.from_arrays(np.eye(2)[None], np.ones((1, 1)), [0])  # no file
        >>> problem.current() is problem
        True
        """
        stamps: dict[str, Stamp] = {}
        entries: dict[str, ShardEntry] = {}
        shards = []
        for shard in self.shards:
            arrays = shard.arrays.values() if isinstance(shard, ShardFile) else ()
            stamps |= {array.path: Stamp.of(array.path) for array in arrays if array.path not in stamps}
            if isinstance(shard, ShardFile) and not all(stamps[array.path].same(array.stamp) for array in arrays):
                if shard.path not in entries:
                    entries[shard.path] = _unresized(shard)
                shard = replace(shard, arrays=entries[shard.path].arrays)
            shards.append(shard)
        return ShardedProblem(shards, self.shape, self.left_out) if entries else self

    def check_unchanged(self) -> None:
        """Raise ValueError if a file differs from the described one.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import ShardedProblem
        >>> ShardedProblem.from_arrays(np.eye(2)[None], np.ones((1, 1)), [0]).check_unchanged()  # no file
        """
        arrays = [array for shard in self.shards if isinstance(shard, ShardFile) for array in shard.arrays.values()]
        for path, stamp in {(array.path, array.stamp) for array in arrays}:
            check_unchanged(path, stamp)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> ShardedProblem:
        """Describe a folder of shards, in the order of their names.

        Parameters
        ----------
        folder : path
            Files ``.npz``, ``.safetensors`` or ``.parquet``, or folders of ``.npy`` files or ``.zarr``. Each has tokens
            (n, T, d), queries (n, dz), selected (n,), and optionally mask (n, T) and sequence (n,), as for
            :class:`attsvm.SelectionProblem`. ``folder`` may also be a single shard. Hidden files are ignored; other
            unused entries are in ``left_out``. If all queries read the same tokens, the folder holds ``tokens.npy`` of
            shape (V, d), and the shards have none. selected may be (n, k), several tokens padded with -1.

        Raises
        ------
        ValueError, OSError
            If the folder holds no shards, or arrays of a shard are missing or do not fit; the message names the file.
            Values are checked when they are read, and the message names the row.

        Examples
        --------
        >>> import os, tempfile
        >>> import numpy as np
        >>> from attsvm import ShardedProblem
        >>> folder, random = tempfile.mkdtemp(), np.random.default_rng(0)
        >>> for name in ("first.npz", "second.npz"):
        ...     tokens, queries = random.normal(size=(3, 4, 8)), random.normal(size=(3, 8))
        ...     np.savez(os.path.join(folder, name), tokens=tokens, queries=queries, selected=np.zeros(3, int))
        >>> ShardedProblem.from_folder(folder).shape
        (6, 4, 8, 8)
        """
        place = Path(folder)
        if not place.is_dir():
            raise ValueError(f"{place} is no folder; a folder of shards was expected.")
        entries, left_out = entries_of(place)
        shards = [shard for entry in entries for shard in _pieces(entry)]
        if not shards:
            raise ValueError(f"{place} holds shards without rows; one row per query was expected.")
        return cls(shards, _common(entries), left_out)

    @classmethod
    def from_arrays(
        cls, tokens: Any, queries: Any, selected: Any, *, mask: Any = None, chunk: int | None = None
    ) -> ShardedProblem:
        """Divide arrays into pieces along the queries.

        Parameters
        ----------
        tokens : dask array or array_like, shape (n, T, d)
            A dask array keeps its chunks along the first axis; workers compute its blocks.
        queries : array_like, shape (n, dz)
        selected : array_like, shape (n,) int, (n, k) int or (n, T) bool
        mask : array_like of bool, shape (n, T), optional
        chunk : int, optional
            Queries per piece of an array that is not a dask array. Default: all.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import ShardedProblem
        >>> random = np.random.default_rng(0)
        >>> tokens, queries = random.normal(size=(6, 4, 8)), random.normal(size=(6, 8))
        >>> len(ShardedProblem.from_arrays(tokens, queries, np.zeros(6, int), chunk=2).shards)
        3
        """
        arrays = {"queries": queries, "selected": selected} | ({} if mask is None else {"mask": mask})
        arrays = {name: to_numpy(name, _in_memory(array)) for name, array in arrays.items()}
        whole = tokens if hasattr(tokens, "to_delayed") else to_numpy("tokens", tokens)
        sizes = sizes_of({"tokens": whole, **arrays}, "the arrays given")
        shards = []
        start = 0
        for block, count in _blocks(whole, chunk or sizes[0]):
            parts: dict[str, Any] = {name: array[start : start + count] for name, array in arrays.items()}
            shards.append(ShardArrays(block, **parts, start=start))
            start += count
        return cls(shards, sizes)

    @classmethod
    def from_vocabulary(cls, contexts: Any, selected: Any, words: Any, *, chunk: int | None = None) -> ShardedProblem:
        """Describe next-token prediction: all queries read the same words, no array of size n x V is formed.

        Parameters
        ----------
        contexts : array_like, shape (n, dz)
        selected : array_like of int, shape (n,) or (n, k)
            The words that follow each context; rows are padded with -1.
        words : array_like, shape (V, d)
        chunk : int, optional
            Contexts per piece.

        See Also
        --------
        attsvm.SelectionProblem.from_contexts

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import ShardedProblem
        >>> random = np.random.default_rng(0)
        >>> contexts, words = random.normal(size=(6, 8)), random.normal(size=(10, 4))
        >>> ShardedProblem.from_vocabulary(contexts, np.arange(6), words, chunk=2).shape
        (6, 10, 4, 8)
        """
        query_array = to_numpy("contexts", contexts).astype(np.float64)
        selection, vectors = to_numpy("selected", selected), to_numpy("words", words)
        if query_array.ndim != 2 or vectors.ndim != 2 or len(selection) != len(query_array):
            raise ValueError(
                f"contexts has shape {query_array.shape}, selected {selection.shape}, words {vectors.shape}; "
                "(n, dz), (n,) and (V, d) were expected."
            )
        step = chunk or max(1, PIECE_BYTES // (8 * len(vectors)))
        shards = [
            ShardArrays(
                vectors[None],
                query_array[rows],
                selection[rows],
                sequence=np.zeros(len(query_array[rows]), dtype=np.int64),
                start=rows.start,
            )
            for rows in (slice(start, start + step) for start in range(0, len(query_array), step))
        ]
        return cls(shards, (len(query_array), *vectors.shape, query_array.shape[1]))

    def __repr__(self) -> str:
        n, T, d, dz = self.shape
        return f"ShardedProblem(n={n}, T={T}, d={d}, dz={dz}, {counted(len(self.shards), 'shard')})"


def _unresized(shard: ShardFile) -> ShardEntry:
    """Describe a shard's file again; raises ValueError if its sizes changed."""
    entry = ShardEntry.of(Path(shard.path), None if shard.words is None else Path(shard.words))
    shapes, previous = ({name: array.shape for name, array in one.items()} for one in (entry.arrays, shard.arrays))
    if shapes != previous:
        raise ValueError(
            f"{shard.path} has other sizes than when it was described, {shapes}; {previous} were expected."
        )
    return entry


def _pieces(entry: ShardEntry) -> list[ShardFile]:
    """Divide a file into pieces."""
    n, T, d, _ = entry.sizes
    bytes_each = 8 * T if entry.words is not None else entry.arrays["tokens"].dtype.itemsize * T * d
    step = max(1, PIECE_BYTES // bytes_each)
    words = None if entry.words is None else str(entry.words)
    return [ShardFile(str(entry.path), start, min(start + step, n), entry.arrays, words) for start in range(0, n, step)]


def _common(entries: list[ShardEntry]) -> tuple[int, int, int, int]:
    dimensions = {entry.sizes[2:]: entry.path for entry in entries}
    if len(dimensions) > 1:
        words = ", ".join(f"{sizes} in {path}" for sizes, path in sorted(dimensions.items()))
        raise ValueError(f"shards have dimensions (d, dz) of {words}; one was expected.")
    (d, dz) = next(iter(dimensions))
    return sum(entry.sizes[0] for entry in entries), max(entry.sizes[1] for entry in entries), d, dz


def _in_memory(array: Any) -> Any:
    return array.compute() if hasattr(array, "compute") and hasattr(array, "dask") else array


def _blocks(tokens: Any, chunk: int) -> Iterator[tuple[Any, int]]:
    """Yield the pieces of an array and their lengths; pieces of a dask array are not computed."""
    if hasattr(tokens, "to_delayed"):
        whole = tokens.rechunk({1: -1, 2: -1})
        yield from zip(whole.to_delayed().ravel().tolist(), whole.chunks[0], strict=True)
        return
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        yield part, len(part)
