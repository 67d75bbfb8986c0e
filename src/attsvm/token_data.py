"""What a one-layer attention model is trained on: tokens, queries, labels and a mask, for many trials at once.

Trial by trial the model of arXiv 2308.16898 (Section 2) is

    prediction_i = h(V_i^T softmax(X_i W z_i)),        i = 1..n,

with tokens X_i (T, d), queries z_i (dz,), labels Y_i in {-1, +1} and values V_i, which are the tokens themselves unless
keys and values differ (prompt attention). Every setting of the paper is an instance of it: cross-attention takes any
z_i, self-attention a row of X_i, a sequence model one query for each position with a mask, prompt attention the
constant query 1 with W the prompt. Leading dimensions are independent trials, trained together.

The arrays stay what they were, NumPy or torch; nothing here imports torch.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.interop import is_tensor, to_numpy

Array = Any
"""A NumPy array or a torch tensor."""


def _floating(name: str, array: Array, like: Array | None = None) -> Array:
    """Return `array` as a floating-point array of the kind (and device) of `like`, or of its own kind."""
    if is_tensor(array if like is None else like):
        torch = sys.modules["torch"]
        device = (array if like is None else like).device
        array = torch.as_tensor(array, device=device)
        if not array.is_floating_point():
            if array.is_complex():
                raise ValueError(f"{name} must be real numbers, got dtype {array.dtype}.")
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


def _boolean_mask(mask: Array, tokens: Array) -> Array:
    """Return `mask` as booleans of the kind of `tokens`, checked to leave every query at least one token."""
    expected = tuple(tokens.shape[:-1])
    if is_tensor(tokens):
        torch = sys.modules["torch"]
        mask = torch.as_tensor(mask, device=tokens.device)
        is_bool = mask.dtype == torch.bool
    else:
        mask = np.asarray(mask)
        is_bool = mask.dtype == np.bool_
    if not is_bool:
        raise ValueError(f"mask must be boolean (True = visible), got dtype {mask.dtype}.")
    if tuple(mask.shape) != expected:
        raise ValueError(f"mask has shape {tuple(mask.shape)}; {expected} (..., n, T) was expected to match tokens.")
    if not bool(mask.any(-1).all()):
        raise ValueError(
            f"mask of shape {expected} hides every token of a query; each needs at least one visible token."
        )
    return mask


@dataclass(frozen=True, eq=False, init=False)
class TokenData:
    """Tokens, queries and labels of independent attention problems.

    Parameters
    ----------
    tokens : array, shape (..., n, T, d)
        Tokens x_it, the keys of attention. Leading dimensions are independent trials.
    queries : array, shape (..., n, dz)
        Queries z_i; use :meth:`self_attention` when they are rows of the tokens.
    labels : array, shape (..., n)
        Labels Y_i, each -1 or +1.
    mask : boolean array, shape (..., n, T), optional
        True where query i may see token t. All tokens are visible by default.
    values : array, shape (..., n, T, dv), optional
        What attention averages; the tokens by default.

    Raises
    ------
    ValueError
        If shapes disagree, something is empty, NaN or infinite, a label is not -1 or +1, or a query sees no token.
    """

    tokens: Array
    queries: Array
    labels: Array
    mask: Array | None
    values: Array

    def __init__(
        self, tokens: Array, queries: Array, labels: Array, mask: Array | None = None, values: Array | None = None
    ) -> None:
        tokens = _floating("tokens", tokens)
        if tokens.ndim < 3:
            raise ValueError(
                f"tokens has shape {tuple(tokens.shape)}; at least three dimensions (..., n, T, d) expected."
            )
        if 0 in tokens.shape:
            raise ValueError(f"tokens has shape {tuple(tokens.shape)}; no dimension may be empty.")
        if queries is None:
            raise ValueError(
                "queries is None; give an array (..., n, dz) or use TokenData.self_attention(tokens, labels)."
            )
        queries = _floating("queries", queries, tokens)
        rows = tuple(tokens.shape[:-2])
        if queries.ndim != len(rows) + 1 or tuple(queries.shape[:-1]) != rows or queries.shape[-1] == 0:
            raise ValueError(
                f"queries has shape {tuple(queries.shape)}; {(*rows, 'dz')} was expected to match tokens "
                f"{tuple(tokens.shape)}."
            )
        labels = _floating("labels", labels, tokens)
        if tuple(labels.shape) != rows:
            raise ValueError(f"labels has shape {tuple(labels.shape)}; {rows} (..., n) was expected to match tokens.")
        if not bool((abs(labels) == 1).all()):
            raise ValueError(f"labels of shape {rows} contains values other than -1 and +1.")
        if mask is not None:
            mask = _boolean_mask(mask, tokens)
        averaged = tokens
        if values is not None:
            averaged = _floating("values", values, tokens)
            expected = tuple(tokens.shape[:-1])
            if averaged.ndim != tokens.ndim or tuple(averaged.shape[:-1]) != expected or averaged.shape[-1] == 0:
                raise ValueError(
                    f"values has shape {tuple(averaged.shape)}; {(*expected, 'dv')} was expected to match tokens."
                )
        for name, value in (("tokens", tokens), ("queries", queries), ("labels", labels), ("mask", mask)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "values", averaged)

    @classmethod
    def self_attention(cls, tokens: Array, labels: Array, row: int = 0, mask: Array | None = None) -> TokenData:
        """Self-attention in which query i is token `row` of sequence i (the paper takes the first).

        Parameters
        ----------
        tokens : array, shape (..., n, T, d)
        labels : array, shape (..., n)
        row : int
            Position of the query token, from -T to T - 1.
        mask : boolean array, shape (..., n, T), optional

        Raises
        ------
        ValueError
            If `row` is out of range, or as the constructor does.
        """
        tokens = _floating("tokens", tokens)
        if tokens.ndim < 3:
            raise ValueError(
                f"tokens has shape {tuple(tokens.shape)}; at least three dimensions (..., n, T, d) expected."
            )
        length = tokens.shape[-2]
        if not -length <= row < length:
            raise ValueError(f"row is {row}; a position between {-length} and {length - 1} was expected.")
        return cls(tokens, tokens[..., row, :], labels, mask)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the leading trial dimensions; () for one trial."""
        return tuple(self.tokens.shape[:-3])

    @property
    def n(self) -> int:
        """Number of queries (and sequences) in a trial."""
        return self.tokens.shape[-3]

    @property
    def T(self) -> int:
        """Number of tokens a query reads, visible or not."""
        return self.tokens.shape[-2]

    @property
    def d(self) -> int:
        """Token dimension."""
        return self.tokens.shape[-1]

    @property
    def dz(self) -> int:
        """Query dimension."""
        return self.queries.shape[-1]

    def __getitem__(self, index: Any) -> TokenData:
        """Select trials: `index` applies to the leading batch dimensions."""
        if not self.batch_shape:
            raise ValueError(f"the data holds one trial (tokens {tuple(self.tokens.shape)}); there is none to select.")
        values = None if self.values is self.tokens else self.values[index]
        mask = None if self.mask is None else self.mask[index]
        return TokenData(self.tokens[index], self.queries[index], self.labels[index], mask, values)

    def __repr__(self) -> str:
        kind = "torch" if is_tensor(self.tokens) else "numpy"
        masked = "" if self.mask is None else ", masked"
        return f"TokenData(trials={self.batch_shape}, n={self.n}, T={self.T}, d={self.d}, dz={self.dz}, {kind}{masked})"
