"""Arrays of :class:`attsvm.TokenData`: checked, of one array type, with one row per query.

They stay NumPy or torch; nothing here imports torch.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from attsvm.platform.interop import is_tensor, to_numpy

Array = Any
"""A NumPy array or a torch tensor."""


def floating(name: str, array: Array, like: Array | None = None) -> Array:
    """Return `array` as a floating-point array of the type (and device) of `like`; by default it stays as it is."""
    if is_tensor(array if like is None else like):
        torch = sys.modules["torch"]
        device = (array if like is None else like).device
        array = torch.as_tensor(array, device=device)
        if not array.is_floating_point():
            if array.is_complex():
                raise ValueError(f"{name} has dtype {array.dtype}; real numbers were expected.")
            array = array.to(torch.float64)
        if like is not None and array.dtype != like.dtype:
            array = array.to(like.dtype)
        finite = bool(torch.isfinite(array).all())
    else:
        array = to_numpy(name, array)
        array = array.astype(np.float64 if like is None else like.dtype) if array.dtype.kind != "f" else array
        if like is not None and array.dtype != like.dtype:
            array = array.astype(like.dtype)
        finite = bool(np.isfinite(array).all())
    if not finite:
        raise ValueError(
            f"{name} of shape {tuple(array.shape)} contains NaN or infinity; finite numbers were expected."
        )
    return array


def boolean_mask(mask: Array, tokens: Array) -> Array:
    """Return `mask` as booleans of the array type of `tokens`; every query must see at least one token."""
    expected = tuple(tokens.shape[:-1])
    if is_tensor(tokens):
        torch = sys.modules["torch"]
        mask = torch.as_tensor(mask, device=tokens.device)
        is_bool = mask.dtype == torch.bool
    else:
        mask = np.asarray(mask)
        is_bool = mask.dtype == np.bool_
    if not is_bool:
        raise ValueError(f"mask has dtype {mask.dtype}; booleans (True = visible) were expected.")
    if tuple(mask.shape) != expected:
        raise ValueError(f"mask has shape {tuple(mask.shape)}; {expected} (..., n, T) was expected to match tokens.")
    if not bool(mask.any(-1).all()):
        raise ValueError(
            f"mask of shape {expected} hides every token of a query; at least one visible token was expected."
        )
    return mask


def sequence_arrays(
    tokens: Array, labels: Array, queries: Array | None, *, causal: bool, mask: Array | None
) -> tuple[Array, Array, Array, Array | None]:
    """Return tokens, queries, labels and mask with one row per query; see :meth:`attsvm.TokenData.from_sequences`."""
    tokens = floating("tokens", tokens)
    query_array = tokens if queries is None else floating("queries", queries, tokens)
    if tokens.ndim < 3 or query_array.ndim != tokens.ndim or query_array.shape[:-2] != tokens.shape[:-2]:
        raise ValueError(
            f"tokens {tuple(tokens.shape)} and queries {tuple(query_array.shape)} do not fit; (..., b, T, d) and "
            "(..., b, K, dz) were expected."
        )
    *batch, b, length, d = tokens.shape
    count = query_array.shape[-2]
    if causal and count != length:
        raise ValueError(f"queries has {count} rows for {length} tokens; one per token was expected with causal=True.")
    labels = floating("labels", labels, tokens)
    if tuple(labels.shape) != (*batch, b, count):
        raise ValueError(f"labels has shape {tuple(labels.shape)}; {(*batch, b, count)} was expected.")
    visible = np.tril(np.ones((length, length), dtype=bool)) if causal else np.ones((count, length), dtype=bool)
    visible = np.broadcast_to(visible, (*batch, b, count, length))
    if mask is not None:
        mask = to_numpy("mask", mask)
        if mask.shape != visible.shape or mask.dtype != np.bool_:
            raise ValueError(f"mask is {mask.dtype} of shape {mask.shape}; booleans {visible.shape} were expected.")
        visible = visible & mask
    copies = tokens.reshape(*batch, b, 1, length, d)
    shape = (*batch, b, count, length, d)
    copies = copies.expand(shape) if is_tensor(tokens) else np.broadcast_to(copies, shape)
    return (
        copies.reshape(*batch, b * count, length, d),
        query_array.reshape(*batch, b * count, query_array.shape[-1]),
        labels.reshape(*batch, b * count),
        None if visible.all() else visible.reshape(*batch, b * count, length),
    )


def next_token_arrays(
    embeddings: Array, sequences: Array, targets: Array, mask: Array | None
) -> tuple[Array, Array, Array, Array | None, Array]:
    """Return tokens, queries, labels, mask and values; see :meth:`attsvm.TokenData.next_token`."""
    embeddings = floating("embeddings", embeddings)
    ids, target_ids = to_numpy("sequences", sequences), to_numpy("targets", targets)
    if embeddings.ndim != 2 or ids.ndim != 2 or ids.dtype.kind not in "iu" or target_ids.shape != ids.shape[:1]:
        raise ValueError(
            f"embeddings {tuple(embeddings.shape)}, sequences {ids.shape}, targets {target_ids.shape} do not fit; "
            "(vocabulary, d), integers (n, T) and integers (n,) were expected."
        )
    vocabulary = embeddings.shape[0]
    if ids.size == 0 or min(ids.min(), target_ids.min()) < 0 or max(ids.max(), target_ids.max()) >= vocabulary:
        raise ValueError(
            f"sequences or targets name a token out of range; identities from 0 to {vocabulary - 1} were expected."
        )
    visible = np.ones(ids.shape, dtype=bool) if mask is None else to_numpy("mask", mask)
    if visible.shape != ids.shape or visible.dtype != np.bool_ or not visible.any(1).all():
        raise ValueError(
            f"mask has shape {visible.shape}; booleans {ids.shape} with a visible token per row were expected."
        )
    hits = (ids == target_ids[:, None]) & visible
    if not hits.any(1).all():
        row = int((~hits.any(1)).argmax())
        raise ValueError(f"targets[{row}] is {target_ids[row]}; a token of its sequence was expected.")
    last = ids[np.arange(len(ids)), ids.shape[1] - 1 - visible[:, ::-1].argmax(1)]
    tokens = embeddings[ids]
    return (
        tokens,
        embeddings[last],
        np.ones(len(ids)),
        None if mask is None else visible,
        hits[..., None].astype(float),
    )
