"""The shards of a folder, and the entries that are no shards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attsvm.data.file_arrays import FileArray, RawArray
from attsvm.data.shard_checks import sizes_of
from attsvm.data.shard_files import FORMATS, NAMES, describe, describe_npy

# File names in a folder that is one shard.
_ARRAY_FILES = {f"{name}.npy" for name in NAMES}


@dataclass(frozen=True, eq=False)
class ShardEntry:
    """A file, or a folder of .npy files, with the arrays of a shard.

    Attributes
    ----------
    words : Path or None
        File of the tokens that all queries read.
    sizes : tuple of int
        (n, T, d, dz).
    left_out : tuple of str
        Content that is not used.
    """

    path: Path
    words: Path | None
    arrays: dict[str, FileArray]
    sizes: tuple[int, int, int, int]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, path: Path, words: Path | None) -> ShardEntry:
        """Describe an entry; raises ValueError, OSError or ImportError."""
        contents = describe(path)
        arrays, shared = dict(contents.arrays), {}
        if words is not None:
            if "tokens" in arrays and arrays["tokens"].path != str(words):
                raise ValueError(f"{path} holds tokens as well as {words}; one of the two was expected.")
            arrays["tokens"] = shared_tokens(words)
            if "queries" in arrays:
                shared["sequence"] = np.zeros(arrays["queries"].shape[:1], dtype=np.int64)
        return cls(path, words, arrays, sizes_of({**shared, **arrays}, str(path)), contents.others)


def shared_tokens(words: Path) -> FileArray:
    """Describe words (V, d) as the tokens of one sequence, (1, V, d)."""
    array = describe_npy(words, "tokens")
    if not isinstance(array, RawArray) or array.ndim != 2:
        raise ValueError(f"{words} has shape {array.shape}; words (V, d) in C order were expected.")
    return replace(array, shape=(1, *array.shape))


def entries_of(folder: Path) -> tuple[list[ShardEntry], tuple[str, ...]]:
    """Describe the shards of a folder in the order of their names, and name the entries left out.

    Hidden files are ignored.

    Raises ValueError, OSError or ImportError if the folder holds no shards, or an incomplete shard.
    """
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    array_files = _ARRAY_FILES & {entry.name for entry in entries}
    words = None
    if "tokens.npy" in array_files and describe_npy(folder / "tokens.npy", "tokens").ndim == 2:
        words = folder / "tokens.npy"
    if array_files - ({"tokens.npy"} if words is not None else set()):
        shard = ShardEntry.of(folder, words)
        return [shard], shard.left_out
    places = [entry for entry in entries if _is_shard(entry)]
    if not places:
        raise ValueError(
            f"{folder} holds no shards; files {', '.join(sorted(FORMATS))}, or folders of .npy, were expected."
        )
    shards = [ShardEntry.of(entry, words) for entry in places]
    left_out = [entry.name for entry in entries if entry not in places and entry != words]
    left_out += [f"{name} of {shard.path.name}" for shard in shards for name in shard.left_out]
    return shards, tuple(left_out)


def _is_shard(entry: Path) -> bool:
    """Return whether an entry has the suffix of a shard, or is a folder with at least one array of a shard."""
    return entry.suffix.lower() in FORMATS or (entry.is_dir() and any((entry / name).exists() for name in _ARRAY_FILES))
