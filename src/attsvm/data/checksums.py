"""Checksums of a shard's arrays: they identify the data, and detect changed files.

CRC-32 detects accidental changes. It is fast enough to cover every byte in the first pass, and .npz files store it.
Different workers may read the pieces of a file: its checksum follows from the checksums of the pieces.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from attsvm.data.file_arrays import RawArray

# Number of bytes read at a time; they fit the processor's cache.
READ_BYTES = 1 << 22
# The polynomial of CRC-32, and the residues 1 and x^8. Bit 31 - k holds the coefficient of x^k.
_POLYNOMIAL, _ONE, _BYTE = 0xEDB88320, 1 << 31, 1 << 23


@dataclass(frozen=True)
class ShardRecord:
    """Result of the first pass over a shard.

    Attributes
    ----------
    digest : str
        Digest of names, dtypes, shapes and numbers.
    parts : mapping of str to (int, int)
        Number of bytes that the shard reads of each array, and their CRC-32.
    """

    digest: str
    parts: Mapping[str, tuple[int, int]]


def record_of(arrays: Mapping[str, Any]) -> ShardRecord:
    """Read the arrays of a shard once, and compute their checksums."""
    parts, text = {}, []
    for name, array in sorted(arrays.items()):
        value, step = 0, max(1, READ_BYTES // max(1, prod(array.shape[1:]) * array.dtype.itemsize))
        for start in range(0, len(array), step):
            value = zlib.crc32(np.ascontiguousarray(array[start : start + step]).data, value)
        size = prod(array.shape) * array.dtype.itemsize
        parts[name] = (size, value)
        text.append(f"{name} {array.dtype.str} {tuple(array.shape)} {value:08x}")
    return ShardRecord(f"{zlib.crc32(' '.join(text).encode()):08x}", parts)


def check_files(shards: Sequence[Any], records: Mapping[int, ShardRecord]) -> None:
    """Compare the checksums stated in files with the checksums of the data that were read.

    Parameters
    ----------
    records : mapping of int to ShardRecord
        Records of all shards, keyed by shard number.

    Raises
    ------
    ValueError
        If they differ.
    """
    arrays, pieces = {}, {}
    for number, shard in sorted(enumerate(shards), key=lambda item: getattr(item[1], "start", 0)):
        for name, array in getattr(shard, "arrays", {}).items():
            if isinstance(array, RawArray) and array.checksums is not None:
                arrays[array.path, name] = array
                pieces.setdefault((array.path, name), []).append(records[number].parts[name])
    for place, array in arrays.items():
        parts = pieces[place]
        if parts[0][0] == array.nbytes:
            parts = parts[:1]  # every piece reads the whole array
        if array.checksums is None or sum(size for size, _ in parts) != array.nbytes:
            continue  # not all pieces of the file are shards here
        value, whole = array.checksums
        for size, part in parts:
            value = joined(value, part, size)
        if value != whole:
            raise ValueError(
                f"{array.name} of {array.path} has the checksum {value:08x}, so that its bytes have changed since they "
                f"were written; {whole:08x}, which the file states, was expected."
            )


def joined(first: int, second: int, size: int) -> int:
    """Return the checksum of two consecutive runs of bytes from their checksums; the second has ``size`` bytes.

    CRC-32 is linear: appending ``size`` bytes multiplies the residue of the first run by x^(8 size) modulo the
    polynomial.
    """
    power, square = _ONE, _BYTE
    while size:
        if size & 1:
            power = _product(power, square)
        square, size = _product(square, square), size >> 1
    return _product(power, first) ^ second


def _product(a: int, b: int) -> int:
    """Multiply two residues modulo the polynomial."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product
