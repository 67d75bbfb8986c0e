"""Reading and checking of a selection problem's arguments, with one-sentence errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse

from attsvm.core.one_hot import OneHot, unit_vectors
from attsvm.platform.interop import to_numpy
from attsvm.platform.paging import Pages, rows_in_chunk


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
    array = array.astype(np.float64) if array.dtype.kind != "f" else _own_array(array)
    step = rows_in_chunk(array.itemsize * array.shape[1] * array.shape[2])
    pages = Pages(array)
    for start in range(0, len(array), step):
        _refuse_non_finite("tokens", array[start : start + step], array.shape)
        pages.release()
    return array, None


def _own_array(array: np.ndarray) -> np.ndarray:
    """Copy an array that others may write to, unless a file holds it; the result can be made read-only."""
    source: Any = array
    immutable = True
    while isinstance(source, np.ndarray) and not isinstance(source, np.memmap):
        immutable = immutable and not source.flags.writeable
        source = source.base
    return array.view() if isinstance(source, np.memmap) or (immutable and source is None) else np.array(array)


def read_matrix(name: str, value: Any) -> np.ndarray:
    """Return a finite float64 matrix."""
    array = to_numpy(name, value)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} has shape {array.shape}; a matrix with no empty axis was expected.")
    array = array.astype(np.float64)
    _refuse_non_finite(name, array, array.shape)
    return array


def read_vectors(name: str, value: Any) -> np.ndarray | OneHot:
    """Return a finite float64 matrix, or the one-hot rows of a sparse matrix."""
    if not issparse(value):
        return value if isinstance(value, OneHot) else read_matrix(name, value)
    one_hot = OneHot.of_sparse(value)
    if one_hot is None:
        return read_matrix(name, value.toarray())
    _refuse_non_finite(name, one_hot.entries, value.shape)
    return one_hot


def _refuse_non_finite(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if not np.isfinite(array).all():
        raise ValueError(f"{name} of shape {shape} has NaN or infinity; finite numbers were expected.")


def read_sequence(sequence: Any, n: int, b: int) -> np.ndarray:
    """Return which of b sequences each of n queries reads, (n,)."""
    if sequence is None:
        if n != b:
            raise ValueError(f"queries has {n} rows; {b}, one per sequence, were expected, or sequence as well.")
        return np.arange(n)
    index = to_numpy("sequence", sequence)
    if index.shape != (n,) or index.dtype.kind not in "iu":
        raise ValueError(
            f"sequence has {index.dtype} of shape {index.shape}; {n} integers, one per query, were expected."
        )
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


def read_selected(selected: Any, mask: np.ndarray, name: str = "selected") -> np.ndarray:
    """Return the selected tokens as bool (n, T)."""
    n, T = mask.shape
    array = to_numpy(name, selected)
    if array.dtype == bool:
        if array.shape != (n, T):
            raise ValueError(f"{name} has shape {array.shape}; {(n, T)} was expected of booleans.")
        selection = array.copy()
        if not selection.any(axis=1).all():
            raise ValueError(f"{name} has no token for query {selection.any(1).argmin()}; one or more were expected.")
    else:
        if array.shape != (n,) or array.dtype.kind not in "iu":
            raise ValueError(
                f"{name} has {array.dtype} of shape {array.shape}; {n} integers, or booleans {(n, T)}, were expected."
            )
        if (array < 0).any() or (array >= T).any():
            raise ValueError(f"{name} has values {array.min()} to {array.max()}; indices of {T} tokens were expected.")
        selection = np.zeros((n, T), dtype=bool)
        selection[np.arange(n), array] = True
    hidden = (selection & ~mask).any(axis=1)
    if hidden.any():
        raise ValueError(f"{name} has a token hidden by mask for query {hidden.argmax()}; a visible one was expected.")
    return selection


def read_sequences(
    tokens: Any, selected: Any, queries: Any, *, causal: bool, lengths: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Arrange queries, selection, mask and sequence for :meth:`attsvm.SelectionProblem.from_sequences`."""
    array = to_numpy("tokens", tokens)
    if array.ndim != 3:
        raise ValueError(f"tokens has shape {array.shape}; (b, T, d) was expected.")
    b, T, _ = array.shape
    selection = to_numpy("selected", selected)
    if selection.shape[:2] != (b, T) or selection.ndim not in (2, 3):
        raise ValueError(f"selected has shape {selection.shape}; {(b, T)} or {(b, T, T)} was expected.")
    query_array = array if queries is None else to_numpy("queries", queries)
    if query_array.ndim != 3 or query_array.shape[:2] != (b, T):
        raise ValueError(f"queries has shape {query_array.shape}; ({b}, {T}, dz) was expected.")
    if lengths is None:
        size = np.full(b, T)
    else:
        size = to_numpy("lengths", lengths)
        if size.shape != (b,) or size.dtype.kind not in "iu" or (size < 1).any() or (size > T).any():
            raise ValueError(f"lengths has {size.tolist()}; {b} integers from 1 to {T} were expected.")
    visible = np.arange(T) < size[:, None]  # (b, T)
    mask = np.repeat(visible, T, axis=0)  # (b*T, T)
    if causal:
        mask = mask & np.tile(np.tri(T, dtype=bool), (b, 1))
    keep = visible.ravel()
    return (
        query_array.reshape(b * T, -1)[keep],
        selection.reshape(b * T, *selection.shape[2:])[keep],
        mask[keep],
        np.repeat(np.arange(b), T)[keep],
    )


def read_labels(y: Any, classes: int | None) -> tuple[np.ndarray, int]:
    """Check labels and the number of classes; see :meth:`attsvm.SelectionProblem.from_classes`."""
    labels = to_numpy("y", y)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels) or labels.min() < 0:
        raise ValueError(
            f"y has {labels.dtype} of shape {labels.shape}; integers from 0, one per input, were expected."
        )
    count = int(labels.max()) + 1 if classes is None else classes
    if isinstance(count, bool) or not isinstance(count, int) or count <= labels.max():
        raise ValueError(f"classes is {classes!r}; an integer above the label {labels.max()} was expected.")
    return labels, count


def read_supports(supports: Any, embeddings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Check the words that follow and the embeddings; see :meth:`attsvm.SelectionProblem.from_contexts`."""
    support = to_numpy("supports", supports)
    if support.ndim != 2 or support.dtype != bool:
        raise ValueError(f"supports has {support.dtype} of shape {support.shape}; booleans (n, V) were expected.")
    words = unit_vectors(support.shape[1]) if embeddings is None else read_matrix("embeddings", embeddings)
    if len(words) != support.shape[1]:
        raise ValueError(f"embeddings has {len(words)} rows; {support.shape[1]}, one per word, were expected.")
    return support, words


def read_preferences(
    tokens: Any, preferred: Any, mask: Any, sequence: Any, n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Arrange :meth:`attsvm.SelectionProblem.from_preferences`: tokens, row of each query, selected, mask, sequence."""
    is_listed = isinstance(tokens, Sequence) and len(tokens) > 0 and np.ndim(tokens[0]) == 1
    is_matrix = is_listed or getattr(tokens, "ndim", None) == 2
    lists, lengths = read_tokens(read_matrix("tokens", tokens)[None] if is_matrix else tokens)
    T = lists.shape[1]
    index = np.zeros(n, dtype=np.int64) if is_matrix and sequence is None else read_sequence(sequence, n, len(lists))
    visible = read_mask(mask, n, T)
    if lengths is not None:
        visible &= np.arange(T) < lengths[index, None]
    preference = to_numpy("preferred", preferred)
    if preference.dtype != bool:
        raise ValueError(f"preferred has {preference.dtype}; booleans {(n, T)} were expected.")
    row, token = np.nonzero(read_selected(preference, visible, "preferred"))
    visible = visible[row] & ~preference[row]
    visible[np.arange(len(row)), token] = True
    return lists, row, token, visible, index[row]
