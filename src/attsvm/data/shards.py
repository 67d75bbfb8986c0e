"""Selection problems in pieces: a folder of files, or a dask array, of which no machine needs to hold more than a part.

A piece is a range of queries with the tokens they read. Its arrays are mapped into memory where the format allows that
(``.npy``, ``.npz`` written without compression, ``.safetensors``) and read when they are asked for where it does not
(``.parquet``, ``.zarr``), so that describing a problem reads headers only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.core.interop import to_numpy
from attsvm.core.summary import counted
from attsvm.data.shard_files import FORMATS, open_arrays

# Bytes of tokens, or of margins where all queries share them, in a piece that is cut from a larger file.
PIECE_BYTES = 1 << 27
# Several selected tokens as a row of integers, the rest of which is this.
ABSENT = -1


@dataclass(frozen=True, eq=False)
class Shard:
    """A range of queries and the tokens they read, opened.

    Attributes
    ----------
    tokens : ndarray, shape (b, T, d)
        Any real dtype, perhaps a memory map.
    queries : ndarray, shape (n, dz)
        float64.
    selected : ndarray, shape (n,) or (n, k) int, or (n, T) bool
        Rows of integers are filled up with -1.
    mask : ndarray of bool, shape (n, T), or None
    sequence : ndarray of int, shape (n,)
    """

    tokens: np.ndarray
    queries: np.ndarray
    selected: np.ndarray
    mask: np.ndarray | None
    sequence: np.ndarray

    def selection(self, rows: slice | np.ndarray) -> np.ndarray:
        """Mark the selected tokens of some queries, bool (rows, T)."""
        entries = np.asarray(self.selected[rows])
        if entries.dtype == bool:
            return entries
        columns = entries.reshape(len(entries), -1)
        marks = np.zeros((len(entries), self.tokens.shape[1]), dtype=bool)
        row, place = np.nonzero(columns != ABSENT)
        marks[row, columns[row, place]] = True
        return marks

    def visible(self, rows: slice) -> np.ndarray:
        """Mark the tokens that some queries see, bool (rows, T)."""
        count = len(self.queries[rows])
        return np.ones((count, self.tokens.shape[1]), dtype=bool) if self.mask is None else np.asarray(self.mask[rows])

    @property
    def shared(self) -> bool:
        """Whether all queries read the same tokens."""
        return len(self.tokens) == 1


@dataclass(frozen=True)
class ShardFile:
    """Queries ``start`` to ``stop`` of a file; with ``words``, the file of the tokens that all queries read."""

    path: str
    start: int
    stop: int
    words: str | None = None

    def open(self) -> Shard:
        """Open the arrays.

        Raises
        ------
        ValueError, OSError
            If the file lacks an array, or one has the wrong shape; a sentence that names the file.
        """
        arrays = open_arrays(Path(self.path))
        if self.words is not None:
            arrays = {**arrays, "tokens": np.load(self.words, mmap_mode="r")[None]}
        return shard_of(arrays, slice(self.start, self.stop), self.path)


@dataclass(frozen=True, eq=False)
class ShardArrays:
    """Arrays as they are; ``tokens`` may be what dask is to compute."""

    tokens: Any
    queries: np.ndarray
    selected: np.ndarray
    mask: np.ndarray | None = None
    sequence: np.ndarray | None = None

    def open(self) -> Shard:
        """Check the arrays; raises ValueError as a problem in memory does."""
        tokens = self.tokens.compute(scheduler="synchronous") if hasattr(self.tokens, "compute") else self.tokens
        arrays = {"tokens": tokens, "queries": self.queries, "selected": self.selected}
        arrays |= {} if self.mask is None else {"mask": self.mask}
        arrays |= {} if self.sequence is None else {"sequence": self.sequence}
        return shard_of(arrays, slice(None), "the arrays given")


class ShardedProblem:
    """A selection problem in pieces.

    Parameters
    ----------
    shards : sequence of ShardFile or ShardArrays

    Attributes
    ----------
    shape : tuple
        (n, T, d, dz); T is that of the longest sequence.

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

    def __init__(self, shards: Any, shape: tuple[int, int, int, int]) -> None:
        self.shards = tuple(shards)
        self.shape = shape

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> ShardedProblem:
        """Describe a folder of shards, in the order of their names.

        Parameters
        ----------
        folder : path
            Files ``.npz``, ``.safetensors`` or ``.parquet``, or folders of ``.npy`` files or ``.zarr``, each with
            tokens (n, T, d), queries (n, dz), selected (n,), and optionally mask (n, T) and sequence (n,), as for
            :class:`attsvm.SelectionProblem`. Or one such folder itself. Where all queries read the same tokens the
            folder holds ``tokens.npy`` of shape (V, d), and the shards have none; selected may then be (n, k), several
            tokens filled up with -1.

        Raises
        ------
        ValueError, OSError
            If the folder holds no shards, or one lacks an array; a sentence.

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
        words = place / "tokens.npy"
        single = {"queries.npy", "selected.npy"} <= {entry.name for entry in place.iterdir()}
        entries = (
            [place]
            if single
            else sorted(
                entry
                for entry in place.iterdir()
                if entry.suffix in FORMATS or (entry.is_dir() and (entry / "queries.npy").exists())
            )
        )
        if not entries:
            raise ValueError(
                f"{place} holds no shards; files {', '.join(sorted(FORMATS))}, or folders of .npy, were expected."
            )
        shared = words.exists() and np.load(words, mmap_mode="r").ndim == 2
        shards: list[ShardFile] = []
        sizes: list[tuple[int, int, int, int]] = []
        for entry in entries:
            whole = ShardFile(str(entry), 0, 0, str(words) if shared else None)
            arrays = open_arrays(entry)
            if "queries" not in arrays or len(arrays["queries"].shape) != 2:
                raise ValueError(
                    f"{entry} holds {', '.join(sorted(arrays)) or 'nothing'}; queries (n, dz) were expected."
                )
            n, dz = arrays["queries"].shape
            if shared:
                T, d = np.load(words, mmap_mode="r").shape
                bytes_each = 8 * T
            else:
                if "tokens" not in arrays or len(arrays["tokens"].shape) != 3:
                    raise ValueError(
                        f"{entry} holds {', '.join(sorted(arrays)) or 'nothing'}; tokens (n, T, d) were expected."
                    )
                _, T, d = arrays["tokens"].shape
                bytes_each = arrays["tokens"].dtype.itemsize * T * d
            step = max(1, PIECE_BYTES // bytes_each)
            sizes.append((n, T, d, dz))
            shards += [replace(whole, start=start, stop=min(start + step, n)) for start in range(0, n, step)]
        return cls(shards, _common(sizes))

    @classmethod
    def from_arrays(
        cls, tokens: Any, queries: Any, selected: Any, *, mask: Any = None, chunk: int | None = None
    ) -> ShardedProblem:
        """Cut arrays into pieces along the queries.

        Parameters
        ----------
        tokens : dask array or array_like, shape (n, T, d)
            A dask array keeps its chunks along the first axis; its blocks are computed where the workers are.
        queries : array_like, shape (n, dz)
        selected : array_like, shape (n,) int, (n, k) int or (n, T) bool
        mask : array_like of bool, shape (n, T), optional
        chunk : int, optional
            Queries in a piece of an array that is not dask's. Default: all of them.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import ShardedProblem
        >>> random = np.random.default_rng(0)
        >>> tokens, queries = random.normal(size=(6, 4, 8)), random.normal(size=(6, 8))
        >>> len(ShardedProblem.from_arrays(tokens, queries, np.zeros(6, int), chunk=2).shards)
        3
        """
        query_array = to_numpy("queries", _in_memory(queries)).astype(np.float64)
        selection = to_numpy("selected", _in_memory(selected))
        visible = None if mask is None else to_numpy("mask", _in_memory(mask))
        shape = getattr(tokens, "shape", None) or np.shape(tokens)
        if len(shape) != 3 or query_array.ndim != 2 or len(query_array) != shape[0] or len(selection) != shape[0]:
            raise ValueError(
                f"tokens has shape {tuple(shape)}, queries {query_array.shape}, selected {selection.shape}; "
                "(n, T, d), (n, dz) and (n,) were expected."
            )
        shards = []
        start = 0
        for block, count in _blocks(tokens, chunk or int(shape[0])):
            rows = slice(start, start + count)
            shards.append(
                ShardArrays(block, query_array[rows], selection[rows], None if visible is None else visible[rows])
            )
            start += count
        return cls(shards, (int(shape[0]), int(shape[1]), int(shape[2]), query_array.shape[1]))

    @classmethod
    def from_vocabulary(cls, contexts: Any, selected: Any, words: Any, *, chunk: int | None = None) -> ShardedProblem:
        """Next-token prediction: all queries read the same words, and nothing of size n x V is formed.

        Parameters
        ----------
        contexts : array_like, shape (n, dz)
        selected : array_like of int, shape (n,) or (n, k)
            The word, or the words, that follow; rows are filled up with -1.
        words : array_like, shape (V, d)
        chunk : int, optional
            Contexts in a piece.

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
            )
            for rows in (slice(start, start + step) for start in range(0, len(query_array), step))
        ]
        return cls(shards, (len(query_array), *vectors.shape, query_array.shape[1]))

    def __repr__(self) -> str:
        n, T, d, dz = self.shape
        return f"ShardedProblem(n={n}, T={T}, d={d}, dz={dz}, {counted(len(self.shards), 'shard')})"


def shard_of(arrays: dict[str, Any], rows: slice, name: str) -> Shard:
    """Check the shapes of one piece's arrays; their values are checked as they are read.

    Raises
    ------
    ValueError
        One sentence.
    """
    for key in ("tokens", "queries", "selected"):
        if key not in arrays:
            raise ValueError(f"{name} holds {', '.join(sorted(arrays)) or 'nothing'}; {key} was expected.")
    tokens, mask = arrays["tokens"], arrays.get("mask")
    queries = np.asarray(arrays["queries"][rows], dtype=np.float64)
    selected = np.asarray(arrays["selected"][rows])
    n = len(queries)
    if "sequence" in arrays:
        sequence = np.asarray(arrays["sequence"][rows], dtype=np.int64)
    elif tokens.shape[0] == 1 and n != 1:
        sequence = np.zeros(n, dtype=np.int64)
    else:
        tokens, sequence = tokens[rows], np.arange(n)
    tokens = np.asanyarray(tokens)
    mask = None if mask is None else np.asarray(mask[rows]).astype(bool)
    if tokens.ndim != 3 or 0 in tokens.shape or tokens.dtype.kind not in "fiu":
        raise ValueError(
            f"tokens of {name} has {tokens.dtype} of shape {tokens.shape}; numbers (b, T, d) were expected."
        )
    T = tokens.shape[1]
    if queries.ndim != 2 or sequence.shape != (n,) or (n and not 0 <= sequence.min() <= sequence.max() < len(tokens)):
        raise ValueError(
            f"queries of {name} has shape {queries.shape} for {len(tokens)} sequences; (n, dz) was expected."
        )
    integral = selected.dtype.kind in "iu" and selected.ndim in (1, 2) and len(selected) == n
    if selected.dtype == bool:
        fits = selected.shape == (n, T) and bool(selected.any(axis=1).all())
    else:
        fits = integral and bool((selected >= ABSENT).all() and (selected < T).all())
        fits = fits and bool((selected.reshape(n, -1) >= 0).any(axis=1).all())
    if not fits:
        raise ValueError(
            f"selected of {name} has {selected.dtype} of shape {selected.shape}; indices of {T} tokens, one or more a "
            "query, were expected."
        )
    if mask is not None and mask.shape != (n, T):
        raise ValueError(f"mask of {name} has shape {mask.shape}; {(n, T)} was expected.")
    if not np.isfinite(queries).all():
        raise ValueError(f"queries of {name} has NaN or infinity; finite numbers were expected.")
    return Shard(tokens, queries, selected, mask, sequence)


def _common(sizes: list[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
    dimensions = {(d, dz) for _, _, d, dz in sizes}
    if len(dimensions) > 1:
        raise ValueError(f"shards have dimensions (d, dz) of {sorted(dimensions)}; one was expected.")
    d, dz = dimensions.pop()
    return sum(n for n, _, _, _ in sizes), max(T for _, T, _, _ in sizes), d, dz


def _in_memory(array: Any) -> Any:
    return array.compute() if hasattr(array, "compute") and hasattr(array, "dask") else array


def _blocks(tokens: Any, chunk: int) -> Iterator[tuple[Any, int]]:
    """Yield the pieces of an array and their lengths; those of a dask array are not computed."""
    if hasattr(tokens, "to_delayed"):
        whole = tokens.rechunk({1: -1, 2: -1})
        yield from zip(whole.to_delayed().ravel().tolist(), whole.chunks[0], strict=True)
        return
    array = to_numpy("tokens", tokens)
    for start in range(0, len(array), chunk):
        part = array[start : start + chunk]
        yield part, len(part)
