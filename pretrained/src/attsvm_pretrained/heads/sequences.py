"""Sequences that queries read, with an additive term of the scores as one more coordinate of the tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

# Number of bytes above which tokens are not copied for each query; the kernel form needs no copies.
COPIED_BYTES = 1 << 31
# Relative difference between queries up to which an additive term counts as a function of the tokens alone (float32).
SAME_TERM = 1e-6


def by_sequence(sequence: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield every sequence that is read with the queries that read it."""
    order = np.argsort(sequence, kind="stable")
    indices, first = np.unique(sequence[order], return_index=True)
    yield from zip(indices.tolist(), np.split(order, first[1:]), strict=True)


def refuse_size(size: float, queries: int, what: str) -> None:
    """Refuse arrays above :data:`COPIED_BYTES`.

    Raises
    ------
    ValueError
        The message names the array and the remedy.
    """
    if size > COPIED_BYTES:
        raise ValueError(
            f"the {what} of {queries} queries takes {size / 2**30:.1f} GiB; at most {COPIED_BYTES / 2**30:.1f} were "
            "expected: take fewer queries, head.take(rows), or use solve_kernel, which never builds them."
        )


def tokens_with_bias(
    tokens: np.ndarray, sequence: np.ndarray, mask: np.ndarray, bias: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Append an additive term (n, T) of the scores to tokens (b, T, d) as their last coordinate.

    Returns
    -------
    tokens : ndarray, shape (b, T, d + 1) or (n, T, d + 1)
        (n, T, d + 1) if the term differs between the queries of a sequence.
    sequence : ndarray of int, shape (n,)
        Sequence that each query reads.

    Raises
    ------
    ValueError
        If copies of the tokens for every query would take more than 2 GiB.
    """
    of_tokens = _bias_of_tokens(tokens.shape[:2], sequence, mask, bias)
    if of_tokens is not None:
        return np.concatenate([tokens, of_tokens[..., None]], axis=2), sequence
    (n, T), d = mask.shape, tokens.shape[2]
    refuse_size(8 * n * T * (d + 1), n, "tokens with an additive term for each query")
    return np.concatenate([tokens[sequence], bias[..., None]], axis=2), np.arange(n)


def _bias_of_tokens(
    shape: tuple[int, ...], sequence: np.ndarray, mask: np.ndarray, bias: np.ndarray
) -> np.ndarray | None:
    """Return an additive term per token, (b, T), if the term equals it up to one number per query (ALiBi)."""
    out = np.zeros(shape)
    size = float(np.abs(bias).max())
    for j, rows in by_sequence(sequence):
        widest = rows[mask[rows].sum(axis=1).argmax()]
        if (mask[rows] & ~mask[widest]).any():
            return None
        out[j] = bias[widest]
        shift = np.where(mask[rows], bias[rows] - out[j], np.nan)
        if (np.nanmax(shift, axis=1) - np.nanmin(shift, axis=1) > SAME_TERM * size).any():
            return None
    return out
