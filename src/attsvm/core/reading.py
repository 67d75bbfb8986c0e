"""The arguments of a selection problem, read and checked: one sentence for what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attsvm.core.interop import to_numpy
from attsvm.core.paging import Pages, rows_in_chunk


def read_tokens(tokens: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return tokens (b, T, d) and, for ragged input, the lengths (b,)."""
    if isinstance(tokens, Sequence) and len(tokens) and not np.isscalar(tokens[0]):
        rows = [read_matrix(f"tokens[{i}]", x) for i, x in enumerate(tokens)]
        widths = {x.shape[1] for x in rows}
        if len(widths) > 1:
            raise ValueError(f"tokens has rows of dimensions {sorted(widths)}; one dimension d was expected.")
        lengths = np.array([len(x) for x in rows])
        padded = np.zeros((len(rows), lengths.max(), widths.pop()))
        for out, x in zip(padded, rows, strict=True):
            out[: len(x)] = x
        return padded, lengths
    array = to_numpy("tokens", tokens)
    if array.ndim != 3 or 0 in array.shape:
        raise ValueError(f"tokens has shape {array.shape}; (b, T, d) with no empty axis was expected.")
    array = array.astype(np.float64) if array.dtype.kind != "f" else _owned(array)
    step = rows_in_chunk(array.itemsize * array.shape[1] * array.shape[2])
    pages = Pages(array)
    for start in range(0, len(array), step):
        _refuse_non_finite("tokens", array[start : start + step], array.shape)
        pages.release()
    return array, None


def _owned(array: np.ndarray) -> np.ndarray:
    """Copy an array that someone may still write to, unless a file holds it; what comes back may be frozen."""
    source: Any = array
    frozen = True
    while isinstance(source, np.ndarray) and not isinstance(source, np.memmap):
        frozen = frozen and not source.flags.writeable
        source = source.base
    return array.view() if isinstance(source, np.memmap) or (frozen and source is None) else np.array(array)


def read_matrix(name: str, value: Any) -> np.ndarray:
    """Return a finite float64 matrix."""
    array = to_numpy(name, value)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} has shape {array.shape}; a matrix with no empty axis was expected.")
    array = array.astype(np.float64)
    _refuse_non_finite(name, array, array.shape)
    return array


def _refuse_non_finite(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if not np.isfinite(array).all():
        raise ValueError(f"{name} of shape {shape} has NaN or infinity; finite numbers were expected.")


def read_sequence(sequence: Any, n: int, b: int) -> np.ndarray:
    """Return which of b sequences each of n queries reads, (n,)."""
    if sequence is None:
        if n != b:
            raise ValueError(f"queries has {n} rows; {b}, one a sequence, were expected, or sequence beside them.")
        return np.arange(n)
    index = to_numpy("sequence", sequence)
    if index.shape != (n,) or index.dtype.kind not in "iu":
        raise ValueError(f"sequence has {index.dtype} of shape {index.shape}; {n} integers were expected, one a query.")
    if (index < 0).any() or (index >= b).any():
        raise ValueError(f"sequence has {index.min()} to {index.max()}; indices of {b} token sequences were expected.")
    return index.astype(np.int64)


def read_mask(mask: Any, n: int, T: int) -> np.ndarray:
    """Return which tokens are visible, bool (n, T)."""
    if mask is None:
        return np.ones((n, T), dtype=bool)
    array = to_numpy("mask", mask)
    if array.shape != (n, T) or array.dtype != bool:
        raise ValueError(f"mask has {array.dtype} of shape {array.shape}; booleans {(n, T)} were expected.")
    return array.copy()


def read_selected(selected: Any, mask: np.ndarray) -> np.ndarray:
    """Return the selected tokens as bool (n, T)."""
    n, T = mask.shape
    array = to_numpy("selected", selected)
    if array.dtype == bool:
        if array.shape != (n, T):
            raise ValueError(f"selected has shape {array.shape}; {(n, T)} was expected of booleans.")
        selection = array.copy()
        if not selection.any(axis=1).all():
            raise ValueError(f"selected has no token for query {selection.any(1).argmin()}; one or more were expected.")
    else:
        if array.shape != (n,) or array.dtype.kind not in "iu":
            raise ValueError(
                f"selected has {array.dtype} of shape {array.shape}; {n} integers, or booleans {(n, T)}, were expected."
            )
        if (array < 0).any() or (array >= T).any():
            raise ValueError(
                f"selected has values {array.min()} to {array.max()}; indices of {T} tokens were expected."
            )
        selection = np.zeros((n, T), dtype=bool)
        selection[np.arange(n), array] = True
    hidden = (selection & ~mask).any(axis=1)
    if hidden.any():
        raise ValueError(
            f"selected has a token hidden by mask for query {hidden.argmax()}; a visible one was expected."
        )
    return selection
