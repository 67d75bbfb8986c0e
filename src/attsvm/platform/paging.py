"""Pages of memory maps: pages that were read are released, so that a file does not fill the memory."""

from __future__ import annotations

import mmap

import numpy as np

# Advice that releases pages; None on systems without it, where pages stay until the system reclaims them.
LET_GO = getattr(mmap, "MADV_DONTNEED", None)
# Largest number of bytes that are read at a time.
CHUNK_BYTES = 1 << 25


def rows_in_chunk(row_bytes: int) -> int:
    """Return how many rows of ``row_bytes`` bytes are read at a time."""
    return max(1, CHUNK_BYTES // row_bytes)


class Pages:
    """The memory map from which an array is read, if any.

    ``array`` is a memory map, a view of one, or an array in memory, which needs no release.
    """

    def __init__(self, array: np.ndarray) -> None:
        source = array
        while isinstance(source, np.ndarray) and not isinstance(source, np.memmap):
            source = source.base
        # A copy-on-write map keeps its changes in the pages that would be released.
        shared = isinstance(source, np.memmap) and source.mode != "c"
        while isinstance(source, np.ndarray):
            source = source.base
        self._map = source if shared and isinstance(source, mmap.mmap) and LET_GO is not None else None

    def release(self) -> None:
        """Drop the resident pages; the next read fetches them from the system's cache or the file."""
        if self._map is not None and LET_GO is not None:
            self._map.madvise(LET_GO)
