"""Files that hold the arrays of a shard, opened without reading what need not be read."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.core.extras import missing_extra
from attsvm.data.npz import check_size

# What safetensors calls the dtypes that NumPy has.
_SAFE_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
# The part of a zip member's header that has a fixed length, and where the lengths of the rest are.
_ZIP_HEADER, _ZIP_LENGTHS = 30, 26


def open_arrays(path: Path) -> dict[str, Any]:
    """Open the arrays of a shard by name: memory maps, arrays, or what reads a range when it is indexed.

    Raises
    ------
    ValueError, OSError, ImportError
        If the file cannot be read as what its name says, or a library for it is missing; a sentence.
    """
    reader = FORMATS.get(path.suffix, _open_folder)
    try:
        return reader(path)
    except (zipfile.BadZipFile, struct.error, json.JSONDecodeError, EOFError) as error:
        raise ValueError(f"{path} is damaged or truncated; a {path.suffix} file was expected.") from error
    except ValueError as error:
        if str(path) in str(error):
            raise
        kind = f"a {path.suffix} file" if path.suffix else "a folder of .npy files"
        raise ValueError(f"{path} cannot be read ({error}); {kind} was expected.") from error
    except ModuleNotFoundError as error:
        sentence = missing_extra(f"{path.suffix} files", error)
        if sentence is None:
            raise
        raise ImportError(sentence, name=error.name) from None


def _open_folder(path: Path) -> dict[str, Any]:
    return {entry.stem: np.load(entry, mmap_mode="r") for entry in sorted(path.glob("*.npy"))}


def _open_npz(path: Path) -> dict[str, Any]:
    """Map the members that are stored as they are; read those that are compressed."""
    arrays: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if member.compress_type == zipfile.ZIP_STORED:
                stream.seek(member.header_offset + _ZIP_LENGTHS)
                stream.seek(member.header_offset + _ZIP_HEADER + sum(struct.unpack("<HH", stream.read(4))))
                arrays[name] = _map_npy(path, stream)
            else:
                check_size(archive, name, path)
                with archive.open(member) as content:
                    arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
    return arrays


def _map_npy(path: Path, stream: Any) -> np.ndarray:
    first = np.lib.format.read_magic(stream) == (1, 0)
    read_header = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(stream)
    if dtype.hasobject:
        raise ValueError(f"{path} holds Python objects; plain arrays of numbers were expected.")
    if not np.prod(shape):
        return np.empty(shape, dtype)
    order = "F" if fortran else "C"
    return np.memmap(path, dtype=dtype, mode="r", offset=stream.tell(), shape=shape, order=order)


def _open_safetensors(path: Path) -> dict[str, Any]:
    """Map the tensors: eight bytes of length, a header in JSON, then the numbers."""
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > path.stat().st_size:
            raise ValueError(f"{path} is damaged or truncated; a .safetensors file was expected.")
        header = json.loads(stream.read(length))
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _SAFE_TYPES:
            raise ValueError(f"{name} in {path} is {entry['dtype']}; one of {', '.join(_SAFE_TYPES)} was expected.")
        start = 8 + length + entry["data_offsets"][0]
        shape = tuple(entry["shape"])
        arrays[name] = np.memmap(path, dtype=_SAFE_TYPES[entry["dtype"]], mode="r", offset=start, shape=shape)
    return arrays


def _open_parquet(path: Path) -> dict[str, Any]:
    """Read columns of nested lists, one row a query."""
    table = import_module("pyarrow.parquet").read_table(path)
    return {name: _nested(table.column(name).combine_chunks()) for name in table.column_names}


def _nested(column: Any) -> np.ndarray:
    """Turn lists of lists of one length each into an array."""
    shape = [len(column)]
    while hasattr(column, "flatten") and column.type.num_fields == 1:
        count, column = len(column), column.flatten()
        if not count or len(column) % count:
            raise ValueError("a column holds lists of different lengths; one length was expected, with a mask beside.")
        shape.append(len(column) // count)
    return column.to_numpy(zero_copy_only=False).reshape(shape)


def _open_zarr(path: Path) -> dict[str, Any]:
    """Open the arrays of a group, which read a range of rows when indexed."""
    group = import_module("zarr").open_group(str(path), mode="r")
    return {name: group[name] for name in group.array_keys()}


FORMATS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".npz": _open_npz,
    ".safetensors": _open_safetensors,
    ".parquet": _open_parquet,
    ".zarr": _open_zarr,
}
