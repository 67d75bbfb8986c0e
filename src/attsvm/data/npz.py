"""Arrays in .npz files: read as a whole, written to a temporary file and then renamed."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from attsvm.data.dataset import Dataset
from attsvm.data.images import Patches, read_patches
from attsvm.data.passages import Passages
from attsvm.data.token_data import TokenData
from attsvm.platform.files import replacing_file

# Inverse of the largest share of memory that one array may take; solving holds a few copies of it.
SHARE_OF_MEMORY = 4


def read_arrays(
    path: str | os.PathLike[str], required: Iterable[str], optional: Iterable[str] = (), words: Iterable[str] = ()
) -> dict[str, np.ndarray]:
    """Read named arrays from a .npz file.

    Parameters
    ----------
    required, optional : names
        Other arrays in the file are not read.
    words : names
        Names of optional arrays of text.

    Returns
    -------
    dict
        Arrays by name; optional arrays only if present.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not an .npz file, is damaged, lacks a required array, or holds Python objects.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; a .npz file was expected.")
    if not path.is_file():
        raise ValueError(f"{path} is not a file; a .npz file was expected.")
    with path.open("rb") as stream:  # a file without read permission must raise PermissionError, not count as damaged
        stream.read(1)
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is truncated or of another format; a .npz file was expected.")
    required = tuple(required)
    arrays: dict[str, np.ndarray] = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in required if name not in archive.files]
            if missing:
                names = ", ".join(archive.files) or "nothing"
                raise ValueError(
                    f"{path} lacks {' and '.join(missing)} and holds {names}; {', '.join(required)} were expected."
                )
            for name in (*required, *optional):
                if name in archive.files:
                    arrays[name] = _read_member(archive, name, path)
            for name in words:
                if name in archive.files:
                    arrays[name] = _read_words(archive, name, path)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged or truncated; a .npz file was expected.") from error
    return arrays


def npy_header(stream: Any, name: str, path: str | os.PathLike[str]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of a .npy file: shape, whether the first axis is fastest, and dtype.

    Parameters
    ----------
    stream : file object
        At the file's start; afterwards at its numbers.
    path : path
        For the error message.

    Raises
    ------
    ValueError
        If there is no such header.
    """
    try:
        first = np.lib.format.read_magic(stream) == (1, 0)
        read_header = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
    except (ValueError, TokenError) as error:
        raise ValueError(f"{name} in {path} cannot be read; a plain array of numbers was expected.") from error
    if min(shape, default=0) < 0:
        raise ValueError(f"{name} in {path} has shape {shape}; sizes of at least 0 were expected.")
    return shape, fortran, dtype


def check_size(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    """Refuse an array whose header declares more bytes than its member holds, or more than memory allows.

    Raises
    ------
    ValueError
        The message gives the sizes.
    """
    member = archive.getinfo(f"{name}.npy" if f"{name}.npy" in archive.namelist() else name)
    with archive.open(member) as stream:
        shape, _, dtype = npy_header(stream, name, path)
    size = prod(shape) * dtype.itemsize
    if not dtype.hasobject and size > member.file_size:
        raise ValueError(
            f"{name} in {path} declares {size:,} bytes and holds {member.file_size:,}; equal numbers were expected."
        )
    if not hasattr(os, "sysconf"):  # Windows does not report the size of memory
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory // SHARE_OF_MEMORY:
        raise ValueError(
            f"{name} in {path} has shape {shape}, {size / 1e9:,.1f} GB; at most "
            f"{memory / SHARE_OF_MEMORY / 1e9:.1f} GB, a quarter of this machine's memory, was expected."
        )


def _read_words(archive: np.lib.npyio.NpzFile, name: str, path: Path) -> np.ndarray:
    """Read an array of text; raises ValueError if it has dtype object or holds numbers."""
    assert archive.zip is not None
    check_size(archive.zip, name, path)
    form = "np.array([...], dtype=str)"
    try:
        array = archive[name]
    except ValueError as error:
        raise ValueError(f"{name} in {path} holds Python objects; text was expected, as {form} holds.") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind != "U":
        kind = getattr(array, "dtype", type(array).__name__)
        raise ValueError(f"{name} in {path} has dtype {kind}; text was expected, as {form} holds.")
    return array


def _read_member(archive: np.lib.npyio.NpzFile, name: str, path: Path) -> np.ndarray:
    assert archive.zip is not None
    check_size(archive.zip, name, path)
    try:
        array = archive[name]
    except ValueError as error:
        raise ValueError(f"{name} in {path} cannot be read; a plain array of numbers was expected.") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        kind = getattr(array, "dtype", type(array).__name__)
        raise ValueError(f"{name} in {path} has dtype {kind}; an array of real numbers was expected.")
    if array.dtype.kind != "f":
        return array
    wrong = np.argwhere(~np.isfinite(array))
    if len(wrong):
        place = ", ".join(map(str, wrong[0]))
        more = f", the first of {len(wrong):,}" if len(wrong) > 1 else ""
        value = array[tuple(wrong[0])]
        raise ValueError(f"{name} in {path} holds {value} at [{place}]{more}; finite numbers were expected.")
    return array.astype(np.float64)


def as_mask(mask: np.ndarray | None) -> np.ndarray | None:
    """Convert a mask stored as zeros and ones; leave anything else to later checks."""
    return mask.astype(bool) if mask is not None and np.isin(mask, (0, 1)).all() else mask


def read_dataset(path: str | os.PathLike[str]) -> Dataset:
    """Read a labelled data set.

    Parameters
    ----------
    path : path
        A .npz file with tokens (n, T, d), queries (n, dz), labels (n,) of -1 and +1, and optionally mask (n, T) (True =
        visible) and head (d,). For the report: names (T,) or (n, T) of tokens, classes (2,) as names of +1 and -1, and
        images (n, height, width[, channels]) with boxes (T, 4).

    Raises
    ------
    FileNotFoundError, ValueError
        See :func:`read_arrays`; also if a shape or value is wrong.
    """
    numbers = ("mask", "head", "images", "boxes")
    arrays = read_arrays(path, ("tokens", "queries", "labels"), numbers, ("names", "classes"))
    tokens, labels = arrays["tokens"], arrays["labels"]
    if len(labels.shape) == 1 and set(np.unique(labels).tolist()) == {0, 1}:
        raise ValueError(f"labels in {path} are 0 and 1; -1 and +1 were expected: store 2 * labels - 1.")
    if tokens.ndim != 3:
        raise ValueError(f"tokens has shape {tokens.shape}; three dimensions (n, T, d) were expected.")
    data = TokenData(tokens, arrays["queries"], arrays["labels"], as_mask(arrays.get("mask")))
    head = arrays.get("head")
    if head is not None and (head.shape != (data.d,) or not np.isfinite(head).all() or not head.any()):
        raise ValueError(
            f"head has shape {head.shape}; {data.d} finite numbers, not all zero, were expected to match tokens."
        )
    return Dataset(
        name=Path(path).name,
        tokens=data,
        classes=_classes(arrays.get("classes")),
        patches=_patches(arrays, data),
        passages=_passages(arrays.get("names"), data),
        notes=(f"Tokens, queries and labels were read from {Path(path).name}.",),
        head=None if head is None else head.astype(float),
    )


def _classes(classes: np.ndarray | None) -> tuple[str, str]:
    if classes is None:
        return Dataset.classes
    if classes.shape != (2,):
        raise ValueError(f"classes has shape {classes.shape}; two names, of label +1 and of label -1, were expected.")
    return str(classes[0]), str(classes[1])


def _patches(arrays: dict[str, np.ndarray], data: TokenData) -> Patches | None:
    if "images" in arrays:
        return read_patches(arrays["images"], arrays.get("boxes"), data.n, data.T)
    if "boxes" in arrays:
        raise ValueError("boxes are given without images; both, or images alone, were expected.")
    return None


def _passages(names: np.ndarray | None, data: TokenData) -> Passages | None:
    if names is None:
        return None
    if names.shape not in ((data.T,), (data.n, data.T)):
        raise ValueError(
            f"names has shape {names.shape}; ({data.T},), or ({data.n}, {data.T}) for names of each row, was "
            "expected to match tokens."
        )
    mask = np.ones((data.n, data.T), bool) if data.mask is None else data.mask
    return Passages.of_names(np.broadcast_to(names, (data.n, data.T)), mask)


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a compressed .npz file so that an interrupted run leaves the old file, or none, in place.

    Raises OSError if the directory cannot be written.
    """
    with replacing_file(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)
