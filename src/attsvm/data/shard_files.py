"""Files with the arrays of a shard, described without reading the numbers."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.data.file_arrays import (
    FileArray,
    FortranArray,
    PackedArray,
    ParquetArray,
    RawArray,
    Stamp,
    ZarrArray,
    nested,
    readable,
    unchanged,
)
from attsvm.data.npz import check_size, npy_header
from attsvm.platform.extras import extra_for

# Names of the arrays of a shard.
NAMES = ("tokens", "queries", "selected", "mask", "sequence")
# safetensors names of NumPy's dtypes.
_SAFE_TYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1"},
    **{"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"},
}
# Length of the fixed part of a zip member's header. The lengths of its other parts stand at _ZIP_LENGTHS.
_ZIP_HEADER, _ZIP_LENGTHS = 30, 26
# Flag of a zip member that marks encryption.
_ENCRYPTED = 1


@dataclass(frozen=True)
class Contents:
    """Content of a file or folder.

    Attributes
    ----------
    arrays : mapping of str to FileArray
        Arrays named in :data:`NAMES`.
    others : tuple of str
        Names of all other content.
    """

    arrays: Mapping[str, FileArray]
    others: tuple[str, ...] = ()


def describe(path: Path) -> Contents:
    """Describe the arrays of a shard from headers alone.

    Raises ValueError, OSError or ImportError if the file does not have the format of its name, or a library for it is
    missing.
    """
    suffix = path.suffix.lower()
    reader = FORMATS.get(suffix, _describe_folder)
    stamp = Stamp.of(path)
    if path.is_dir() and suffix in FORMATS and suffix != ".zarr":
        raise ValueError(f"{path} is a folder; a {suffix} file was expected.")
    kind = f"a {suffix} file" if suffix in FORMATS else "a folder of .npy files"
    damaged = f"{path} is damaged or of another format"
    with extra_for(f"{suffix} files"), unchanged(str(path), stamp), readable(damaged, kind):
        return reader(path, stamp)


def describe_npy(path: Path, name: str) -> FileArray:
    """Describe an array in a .npy file; raises ValueError if it is not one."""
    stamp = Stamp.of(path)
    with unchanged(str(path), stamp), path.open("rb") as stream:
        shape, fortran, dtype = npy_header(stream, name, path)
        offset = stream.tell()
    _check_bytes(f"{name} in {path}", shape, dtype, stamp.size - offset)
    if fortran:
        return FortranArray(str(path), name, shape, dtype, stamp)
    return RawArray(str(path), name, shape, dtype, stamp, offset)


def _check_bytes(what: str, shape: tuple[int, ...], dtype: np.dtype, found: int) -> None:
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects; a plain array of numbers was expected.")
    size = prod(shape) * dtype.itemsize
    if size != found:
        raise ValueError(f"{what} declares {size:,} bytes and holds {found:,}; equal numbers were expected.")


def _describe_folder(path: Path, _: Stamp) -> Contents:
    entries = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    files = {name: f"{name}.npy" for name in NAMES if f"{name}.npy" in entries}
    arrays = {name: describe_npy(path / file, name) for name, file in files.items()}
    return Contents(arrays, tuple(entry for entry in entries if entry not in files.values()))


def _describe_npz(path: Path, stamp: Stamp) -> Contents:
    """Locate the members that are stored uncompressed; compressed ones are read from their start."""
    arrays: dict[str, FileArray] = {}
    others: list[str] = []
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name not in NAMES or not member.filename.endswith(".npy"):
                others.append(name)
                continue
            if name in arrays:
                raise ValueError(f"{path} holds two arrays {name}; one of each name was expected.")
            if member.flag_bits & _ENCRYPTED:
                raise ValueError(f"{name} in {path} is encrypted; a plain array of numbers was expected.")
            # zipfile reads a small member as a whole and compares its checksum: an error here means damage.
            with readable(f"{name} of {path} is damaged", "an undamaged file"), archive.open(member) as content:
                shape, fortran, dtype = npy_header(content, name, path)
                start = content.tell()
            _check_bytes(f"{name} in {path}", shape, dtype, member.file_size - start)
            if member.compress_type != zipfile.ZIP_STORED or fortran:
                check_size(archive, name, path)
                arrays[name] = PackedArray(str(path), name, shape, dtype, stamp)
                continue
            stream.seek(member.header_offset + _ZIP_LENGTHS)
            stream.seek(member.header_offset + _ZIP_HEADER + sum(struct.unpack("<HH", stream.read(4))))
            checksums = (zlib.crc32(stream.read(start)), member.CRC)
            arrays[name] = RawArray(str(path), name, shape, dtype, stamp, stream.tell(), checksums)
    return Contents(arrays, tuple(others))


def _describe_safetensors(path: Path, stamp: Stamp) -> Contents:
    """Locate the tensors; the library checks that they fill the file without gaps."""
    import safetensors

    arrays: dict[str, FileArray] = {}
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            forms = {name: file.get_slice(name) for name in names if name in NAMES}
            types = {name: (tuple(form.get_shape()), form.get_dtype()) for name, form in forms.items()}
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    for name, (shape, kind) in types.items():
        if kind not in _SAFE_TYPES:
            raise ValueError(f"{name} in {path} is {kind}; one of {', '.join(_SAFE_TYPES)} was expected.")
        dtype, (start, stop) = np.dtype(_SAFE_TYPES[kind]), header[name]["data_offsets"]
        _check_bytes(f"{name} in {path}", shape, dtype, stop - start)
        arrays[name] = RawArray(str(path), name, shape, dtype, stamp, 8 + length + start)
    return Contents(arrays, tuple(name for name in names if name not in NAMES))


def _describe_parquet(path: Path, stamp: Stamp) -> Contents:
    """Take sizes from the first row; other rows are checked when they are read."""
    from pyarrow import parquet

    arrays: dict[str, FileArray] = {}
    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        names, count = file.schema_arrow.names, file.metadata.num_rows
        for name in NAMES:
            if name not in names:
                continue
            if names.count(name) > 1:
                raise ValueError(f"{path} holds two columns {name}; one of each name was expected.")
            stub = ParquetArray(str(path), name, (count,), np.dtype(float), stamp)
            first = next(file.iter_batches(batch_size=1, columns=[name]), None)
            if first is None:
                raise ValueError(f"{path} has no rows; one per query was expected.")
            values = nested(first.column(0), stub, 0, None)
            arrays[name] = ParquetArray(str(path), name, (count, *values.shape[1:]), values.dtype, stamp)
    return Contents(arrays, tuple(name for name in names if name not in NAMES))


def _describe_zarr(path: Path, stamp: Stamp) -> Contents:
    import zarr

    group: Any = zarr.open_group(str(path), mode="r")
    names = sorted(group.array_keys())
    arrays = {
        name: ZarrArray(str(path), name, tuple(group[name].shape), group[name].dtype, stamp)
        for name in names
        if name in NAMES
    }
    return Contents(arrays, tuple(name for name in names if name not in NAMES))


FORMATS: dict[str, Callable[[Path, Stamp], Contents]] = {
    ".npz": _describe_npz,
    ".safetensors": _describe_safetensors,
    ".parquet": _describe_parquet,
    ".zarr": _describe_zarr,
}
