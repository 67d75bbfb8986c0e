"""Pieces of a selection problem: a range of queries with the tokens they read, in arrays or in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attsvm.data.file_arrays import FileArray, RawArray
from attsvm.data.shard_checks import ABSENT, check_selected, read_mask, read_queries, read_sequence, sizes_of


@dataclass(frozen=True, eq=False)
class Shard:
    """A range of queries and the tokens they read, checked.

    Attributes
    ----------
    tokens : ndarray or RawArray, shape (b, T, d)
        Any real dtype; from a file, an object that reads a range when indexed.
    queries : ndarray, shape (n, dz)
        float64.
    selected : ndarray, shape (n,) or (n, k) int, or (n, T) bool
        Rows of integers are padded with -1.
    mask : ndarray of bool, shape (n, T), or None
    sequence : ndarray of int, shape (n,)
    name : str
        Name of the file, for error messages.
    start : int
        Row of the first query in the file.
    has_sequence : bool
        Whether queries name sequences of the whole file. Otherwise query i reads sequence i.
    """

    tokens: np.ndarray | RawArray
    queries: np.ndarray
    selected: np.ndarray
    mask: np.ndarray | None
    sequence: np.ndarray
    name: str
    start: int
    has_sequence: bool

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

    def token_row(self, row: int) -> int:
        """Return the row of the file that holds the tokens of a query."""
        return int(self.sequence[row]) + (0 if self.has_sequence else self.start)

    @property
    def shared(self) -> bool:
        """Whether all queries read the same tokens."""
        return len(self.tokens) == 1


@dataclass(frozen=True, eq=False)
class ShardArrays:
    """Arrays of a shard; ``tokens`` may be a dask array to compute, or an object that reads a file.

    ``name`` says where the arrays come from; ``start`` is the row of the first query there.
    """

    tokens: Any
    queries: np.ndarray
    selected: np.ndarray
    mask: np.ndarray | None = None
    sequence: np.ndarray | None = None
    name: str = "the arrays given"
    start: int = 0

    def load(self) -> ShardArrays:
        """Compute the tokens of a dask array."""
        is_lazy = hasattr(self.tokens, "compute")
        return replace(self, tokens=self.tokens.compute(scheduler="synchronous")) if is_lazy else self

    @property
    def contents(self) -> dict[str, Any]:
        """The loaded arrays by name."""
        arrays = {"tokens": self.tokens, "queries": self.queries, "selected": self.selected}
        arrays |= {"mask": self.mask, "sequence": self.sequence}
        return {
            name: array if isinstance(array, RawArray) else np.asanyarray(array)
            for name, array in arrays.items()
            if array is not None
        }

    def open(self) -> Shard:
        """Check the arrays; raises ValueError in the same cases as a problem in memory."""
        arrays = self.load().contents
        n, T, _, _ = sizes_of(arrays, self.name)
        tokens, selected = arrays["tokens"], arrays["selected"]
        queries = read_queries(arrays["queries"], self.name, self.start)
        check_selected(selected, T, self.name, self.start)
        mask = read_mask(arrays["mask"], self.name, self.start) if "mask" in arrays else None
        if "sequence" in arrays:
            sequence = read_sequence(arrays["sequence"], len(tokens), self.name, self.start)
        else:
            sequence = np.arange(n)
        return Shard(tokens, queries, selected, mask, sequence, self.name, self.start, "sequence" in arrays)

    def __str__(self) -> str:
        return f"{self.name}, rows {self.start} to {self.start + len(self.queries) - 1}"


@dataclass(frozen=True, eq=False)
class ShardFile:
    """Queries ``start`` to ``stop`` of a file whose arrays are described.

    Attributes
    ----------
    words : str or None
        File of the tokens that all queries read.
    """

    path: str
    start: int
    stop: int
    arrays: Mapping[str, FileArray]
    words: str | None = None

    @property
    def whole_bytes(self) -> int:
        """Bytes of tokens that are read as a whole; zero if they can be read block by block."""
        tokens = self.arrays["tokens"]
        return 0 if isinstance(tokens, RawArray) else (self.stop - self.start) * tokens.row_bytes

    def load(self) -> ShardArrays:
        """Read the arrays, except tokens that can be read block by block.

        Raises ValueError if the file is damaged, or differs from the described one; the message names it.
        """
        arrays, tokens = self.arrays, self.arrays["tokens"]
        is_paired = self.words is None and "sequence" not in arrays
        start, stop = (self.start, self.stop) if is_paired else (0, len(tokens))
        parts = {name: array.rows(self.start, self.stop) for name, array in arrays.items() if name != "tokens"}
        if self.words is not None:
            parts = {"sequence": np.zeros(self.stop - self.start, dtype=np.int64)} | parts
        lazy = tokens.part(start, stop) if isinstance(tokens, RawArray) else tokens.rows(start, stop)
        return ShardArrays(lazy, **parts, name=self.path, start=self.start)

    def open(self) -> Shard:
        """Open the arrays; raises ValueError, naming file and row, if their values are wrong."""
        return self.load().open()

    def __str__(self) -> str:
        is_whole = self.stop - self.start == len(self.arrays["queries"])
        return self.path if is_whole else f"{self.path}, rows {self.start} to {self.stop - 1}"
