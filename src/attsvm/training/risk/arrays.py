"""Convert data to tensors with one trial dimension, and compute token scores under a linear head."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attsvm.data.token_data import TokenData
from attsvm.platform.interop import is_tensor


def flat_parts(data: TokenData, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """Return tokens, queries, labels, mask and values with the trials flattened to one dimension, in `dtype`."""
    trials = math.prod(data.batch_shape)

    def flat(array: Any) -> Tensor:
        # torch warns about sharing read-only memory, although nothing here writes to it.
        tensor = torch.as_tensor(array if is_tensor(array) or array.flags.writeable else array.copy())
        tensor = tensor.detach().reshape(trials, *tensor.shape[len(data.batch_shape) :])
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    tokens = flat(data.tokens)
    return (
        tokens,
        flat(data.queries),
        flat(data.labels),
        None if data.mask is None else flat(data.mask),
        tokens if data.values is data.tokens else flat(data.values),
    )


def linear_scores(labels: Tensor, values: Tensor, v: Tensor) -> Tensor:
    """Return token scores gamma_it = Y_i v^T v_it, shape (B, [H,] n, T).

    Labels are (B, [1,] n), values (B, [1,] n, T, dv) and v (dv,), (B, dv) or, with heads, (B, H, dv).
    """
    v = v.detach()
    if v.ndim > 1:
        v = v.view(v.shape[0], *(1,) * (values.ndim - 2 - v.ndim), *v.shape[1:]).unsqueeze(-2)
    return labels.unsqueeze(-1) * (values @ v.unsqueeze(-1)).squeeze(-1)


def has_ties(gamma: Tensor) -> bool:
    """Tell whether two tokens of a row have the same score."""
    scores = gamma.sort(-1).values
    return bool((scores.diff(dim=-1) == 0).any())
