"""Arrays that stay in their file: rows are read on request, and only from the file that was described.

No memory map and no open file outlives a read. Every read checks the file before and after: if it was replaced,
rewritten or truncated, the read raises.
"""

from __future__ import annotations

import os
import platform
import struct
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.data.npz import npy_header

# Errors of libraries for a damaged file.
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError),
    *(ValueError, RuntimeError, TypeError, KeyError, AttributeError, SyntaxError),
)

# Number of bytes unpacked at a time. zipfile holds several times this number, which fits the processor's cache.
UNPACK_BYTES = 1 << 18


@dataclass(frozen=True)
class Stamp:
    """Identifies a file, or a folder of files, among files with the same name.

    Attributes
    ----------
    host : str
        Machine on which the stamp was taken; device and inode have a meaning only there.
    device, inode : int
        For a folder, ``inode`` is a digest of its files' inodes.
    size : int
        In bytes.
    modified : int
        In nanoseconds; for a folder, a digest of its files' names, sizes and times.
    """

    host: str
    device: int
    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Stamp:
        """Take the stamp of a path; raises ValueError if nothing is there."""
        try:
            one = os.stat(path)
            if not os.path.isdir(path):
                return cls(platform.node(), one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns)
            files = sorted(file for file in Path(path).rglob("*") if file.is_file())
            facts = [file.stat() for file in files]
        except FileNotFoundError as error:
            raise ValueError(f"{path} is gone; the file that was described was expected.") from error
        times = [(str(file), fact.st_size, fact.st_mtime_ns) for file, fact in zip(files, facts, strict=True)]
        inodes = [fact.st_ino for fact in facts]
        size = sum(fact.st_size for fact in facts)
        return cls(platform.node(), one.st_dev, _digest(inodes), size, _digest(times))

    def same(self, other: Stamp) -> bool:
        """Whether both belong to the same unchanged file."""
        if (self.size, self.modified) != (other.size, other.modified):
            return False
        return self.host != other.host or (self.device, self.inode) == (other.device, other.inode)


def _digest(facts: list[Any]) -> int:
    return zlib.crc32(repr(facts).encode())


def check_unchanged(path: str, stamp: Stamp) -> None:
    """Raise ValueError if a file differs from its stamp."""
    if not Stamp.of(path).same(stamp):
        raise ValueError(f"{path} was changed while it was in use; a file that stays as it is was expected.")


@contextmanager
def unchanged(path: str, stamp: Stamp) -> Iterator[None]:
    """Raise ValueError if a file differs from its stamp before or after the block, whatever the block raises."""
    check_unchanged(path, stamp)
    try:
        yield
    finally:
        check_unchanged(path, stamp)


@contextmanager
def readable(fault: str, expected: str) -> Iterator[None]:
    """Turn a library's errors for a damaged file into ValueError; the package's errors pass unchanged.

    Parameters
    ----------
    fault : str
        First words of the message, which name what cannot be read.
    expected : str
        What was expected instead.
    """
    try:
        yield
    except DAMAGE as error:
        is_ours = str(error).endswith(" expected.")
        if is_ours or (isinstance(error, OSError) and error.filename is not None):
            raise
        raise ValueError(f"{fault} ({' '.join(str(error).split())}); {expected} was expected.") from error


@dataclass(frozen=True)
class FileArray(ABC):
    """An array in a file.

    Attributes
    ----------
    path : str
        File or folder that holds the array.
    shape : tuple of int
    stamp : Stamp
        Stamp of the described file.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    stamp: Stamp

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return len(self) * self.row_bytes

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Read some rows; raise ValueError if the file differs from the described one, or is damaged."""
        what = f"{self.name} of {self.path} cannot be read in rows {start} to {stop - 1}"
        with unchanged(self.path, self.stamp), readable(what, "an undamaged file"):
            return self._read(start, stop)

    @abstractmethod
    def _read(self, start: int, stop: int) -> np.ndarray:
        """Read some rows of a file that has been checked."""


@dataclass(frozen=True)
class RawArray(FileArray):
    """An array that the file stores as memory would, with the last axis fastest.

    Attributes
    ----------
    offset : int
        Position of the first number, in bytes.
    checksums : tuple of int, or None
        CRC-32 of the member's bytes before the numbers, and of the whole member, if the file states it.
    """

    offset: int = 0
    checksums: tuple[int, int] | None = None

    def part(self, start: int, stop: int) -> RawArray:
        """Return some rows, without reading them."""
        return replace(self, shape=(stop - start, *self.shape[1:]), offset=self.offset + start * self.row_bytes)

    def __getitem__(self, index: slice | np.ndarray | tuple[np.ndarray, ...]) -> np.ndarray:
        """Read rows at a slice of step one or at integers (k,), or entries at integers of the first axes, each (k,)."""
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            return self.rows(start, max(start, stop))
        indices = index if isinstance(index, tuple) else (index,)
        count = len(indices)
        entries = replace(self, shape=(prod(self.shape[:count]), *self.shape[count:]))
        places, owner = np.unique(np.ravel_multi_index(indices, self.shape[:count]), return_inverse=True)
        starts = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        stops = np.append(starts[1:], len(places))
        out = np.empty((len(places), *entries.shape[1:]), self.dtype)
        with unchanged(self.path, self.stamp), open(self.path, "rb", buffering=0) as stream:
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                entries.fill(stream, int(places[start]), out[start:stop])
        return out[owner.ravel()]

    def _read(self, start: int, stop: int) -> np.ndarray:
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        with open(self.path, "rb", buffering=0) as stream:
            self.fill(stream, start, out)
        return out

    def fill(self, stream: Any, start: int, out: np.ndarray) -> None:
        """Read rows from ``start`` into an array; raises ValueError if the file ends too early."""
        stream.seek(self.offset + start * self.row_bytes)
        _read_into(stream, out, self.path)


def _read_into(stream: Any, out: np.ndarray, path: str, chunk_bytes: int | None = None) -> None:
    """Read the numbers of an array, ``chunk_bytes`` at a time; raises ValueError if the file ends too early."""
    size, place = out.nbytes, 0
    view = out.reshape(-1).view(np.uint8).data
    while place < size:
        count = stream.readinto(view[place : None if chunk_bytes is None else place + chunk_bytes])
        if not count:
            raise ValueError(f"{path} ends within its numbers; a whole file was expected.")
        place += count


@dataclass(frozen=True)
class PackedArray(FileArray):
    """A member of an .npz file that must be read from its start: it is compressed, or its first axis is fastest."""

    def _read(self, start: int, stop: int) -> np.ndarray:
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{self.name}.npy") as content:
            shape, fortran, dtype = npy_header(content, self.name, self.path)
            if fortran:
                columns = np.empty(shape[::-1], dtype)
                _read_into(content, columns, self.path, UNPACK_BYTES)
                out = columns.T[start:stop]
            else:
                content.seek(start * prod(shape[1:]) * dtype.itemsize, os.SEEK_CUR)
                out = np.empty((stop - start, *shape[1:]), dtype)
                _read_into(content, out, self.path, UNPACK_BYTES)
            if fortran or stop == shape[0]:
                content.read(1)  # zipfile compares the checksum at the end
            return out


@dataclass(frozen=True)
class FortranArray(FileArray):
    """A .npy file whose first axis is fastest: it is read as a whole."""

    def _read(self, start: int, stop: int) -> np.ndarray:
        return np.load(self.path, allow_pickle=False)[start:stop]


@dataclass(frozen=True)
class ParquetArray(FileArray):
    """A column of numbers, or of nested lists of equal lengths, one row per query."""

    def _read(self, start: int, stop: int) -> np.ndarray:
        import pyarrow as arrow
        from pyarrow import parquet

        with parquet.ParquetFile(self.path, page_checksum_verification=True) as file:
            counts = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
            ends = np.cumsum(counts)
            first, last = np.searchsorted(ends, [start, stop - 1], side="right")
            table = file.read_row_groups(list(range(first, last + 1)), columns=[self.name])
        before = int(ends[first]) - counts[first]
        column = table.column(self.name).slice(start - before, stop - start)
        chunks = [nested(chunk, self, start + at, self.shape[1:]) for at, chunk in _with_starts(column.chunks)]
        return np.concatenate(chunks) if chunks else nested(arrow.array([], column.type), self, start, self.shape[1:])


def _with_starts(chunks: list[Any]) -> Iterator[tuple[int, Any]]:
    start = 0
    for chunk in chunks:
        yield start, chunk
        start += len(chunk)


def nested(column: Any, array: FileArray, first: int, expected: tuple[int, ...] | None) -> np.ndarray:
    """Convert nested lists of equal lengths to an array.

    Parameters
    ----------
    column : pyarrow.Array
    array : FileArray
        For the error message.
    first : int
        Row of the file at which the column begins.
    expected : tuple of int or None
        Lengths of the lists. Default: the lengths of the first row.

    Raises
    ------
    ValueError
        If a list has another length, a value is missing, or there are no numbers; the message names the row.
    """
    from pyarrow import compute, types

    sizes = [len(column)]
    while types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        _refuse_missing(column, array, first, sizes)
        lengths = compute.call_function("list_value_length", [column]).to_numpy(zero_copy_only=False)
        depth = len(sizes) - 1
        if expected is not None and depth < len(expected):
            length = expected[depth]
        else:
            length = int(lengths[0]) if len(lengths) else 0
        uneven = np.flatnonzero(lengths != length)
        if len(uneven):
            row = first + uneven[0] // prod(sizes[1:])
            raise ValueError(
                f"{array.name} of {array.path} has a list of length {lengths[uneven[0]]} in row {row}; length {length} "
                "in every row, with a mask for padding, was expected."
            )
        sizes.append(length)
        column = column.flatten()
    _refuse_missing(column, array, first, sizes)
    if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type)):
        raise ValueError(
            f"{array.name} of {array.path} has type {column.type}; numbers, or lists of them, were expected."
        )
    return column.to_numpy(zero_copy_only=False).reshape(sizes)


def _refuse_missing(column: Any, array: FileArray, first: int, sizes: list[int]) -> None:
    if column.null_count:
        place = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
        row = first + place // prod(sizes[1:])
        raise ValueError(f"{array.name} of {array.path} has no value in row {row}; a value everywhere was expected.")


@dataclass(frozen=True)
class ZarrArray(FileArray):
    """An array of a zarr group."""

    def _read(self, start: int, stop: int) -> np.ndarray:
        import zarr

        group: Any = zarr.open_group(self.path, mode="r")
        return np.asarray(group[self.name][start:stop])
