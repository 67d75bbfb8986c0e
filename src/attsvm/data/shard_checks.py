"""Checks that the arrays of a shard fit together: shapes before a file is divided, values when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# Padding of a row of selected indices that is shorter than the longest row.
ABSENT = -1
# Kinds of dtype and numbers of axes of each array, and both in words.
_FORMS = {
    "tokens": ("fiu", (3,), "numbers (n, T, d)"),
    "queries": ("fiu", (2,), "numbers (n, dz)"),
    "selected": ("iub", (1, 2), "integers (n,) or (n, k), or booleans (n, T),"),
    "mask": ("biuf", (2,), "booleans (n, T)"),
    "sequence": ("iu", (1,), "integers (n,)"),
}
_REQUIRED = ("queries", "tokens", "selected")


def sizes_of(arrays: Mapping[str, Any], name: str) -> tuple[int, int, int, int]:
    """Check dtypes and shapes of the arrays of one file, and return (n, T, d, dz).

    Parameters
    ----------
    arrays : mapping of str to array
        Anything with ``shape`` and ``dtype``.
    name : str
        Name of the file, for the error message.

    Raises
    ------
    ValueError
        If an array is missing or has another form, or has another number of rows than queries.
    """
    for key in _REQUIRED:
        if key not in arrays:
            form = _FORMS[key][2].partition(" ")[2] if key != "selected" else "(n,)"
            raise ValueError(f"{name} holds {', '.join(sorted(arrays)) or 'nothing'}; {key} {form} were expected.")
    for key, array in arrays.items():
        kinds, axes, words = _FORMS[key]
        if array.dtype.kind not in kinds or len(array.shape) not in axes or 0 in array.shape[1:]:
            raise ValueError(f"{key} of {name} has {array.dtype} of shape {tuple(array.shape)}; {words} were expected.")
    n, dz = arrays["queries"].shape
    b, T, d = arrays["tokens"].shape
    for key, array in arrays.items():
        if not (key == "tokens" and "sequence" in arrays):
            _check_count(key, name, len(array), n)
    if "sequence" in arrays and n and not b:
        raise ValueError(f"tokens of {name} has no rows; the rows that sequence names were expected.")
    for key in ("mask", "selected"):
        if key in arrays and (key == "mask" or arrays[key].dtype == bool) and arrays[key].shape[1:] != (T,):
            raise ValueError(f"{key} of {name} has shape {tuple(arrays[key].shape)}; {(n, T)} was expected.")
    return n, T, d, dz


def _check_count(key: str, name: str, found: int, n: int) -> None:
    if found != n:
        missing = f"{key} has no row {found}" if found < n else f"queries has no row {n}"
        raise ValueError(f"{key} of {name} has {found} rows, and {missing}; {n}, one per query, were expected.")


def read_queries(queries: np.ndarray, name: str, start: int) -> np.ndarray:
    """Return queries (n, dz) in float64; ``start`` is their first row in the file."""
    rows = queries.astype(np.float64)
    finite = np.isfinite(rows).all(axis=1)
    _refuse("queries", name, ~finite, start, lambda row: "NaN or infinity", "finite numbers")
    return rows


def read_mask(mask: np.ndarray, name: str, start: int) -> np.ndarray:
    """Return which tokens are visible, bool (n, T)."""
    if mask.dtype == bool:
        return mask
    wrong = (mask != 0) & (mask != 1)
    expected = "booleans, or zeros and ones,"
    _refuse("mask", name, wrong.any(axis=1), start, lambda row: str(mask[row][wrong[row]][0]), expected)
    return mask.astype(bool)


def read_sequence(sequence: np.ndarray, count: int, name: str, start: int) -> np.ndarray:
    """Return which of ``count`` token sequences each query reads, (n,)."""
    wrong = (sequence < 0) | (sequence >= count)
    expected = f"indices of {count} token sequences"
    _refuse("sequence", name, wrong, start, lambda row: str(sequence[row]), expected)
    return sequence.astype(np.int64)


def check_selected(selected: np.ndarray, T: int, name: str, start: int) -> None:
    """Raise ValueError, with the row, if a query selects no token or a token out of range."""
    expected = f"indices of {T} tokens, one or more per query,"
    rows = selected.reshape(len(selected), -1)
    if selected.dtype == bool:
        _refuse("selected", name, ~rows.any(axis=1), start, lambda row: "no token", expected)
        return
    wrong = (rows < ABSENT) | (rows >= T)
    _refuse("selected", name, wrong.any(axis=1), start, lambda row: str(rows[row][wrong[row]][0]), expected)
    _refuse("selected", name, (rows < 0).all(axis=1), start, lambda row: "no token", expected)


def _refuse(key: str, name: str, wrong: Any, start: int, fault: Any, expected: str) -> None:
    """Raise ValueError if any row is wrong; ``fault(row)`` describes the first one."""
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{key} of {name} has {fault(row)} in row {start + row}; {expected} were expected.")
