"""The initial parameters of training.

The theory starts from W = 0 (arXiv 2308.16898, Section 4); gradient descent may stay in a non-optimal direction forever
if it starts elsewhere. For factors K = Q = 0 is a stationary point, so one of them must be random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.platform.interop import is_tensor, to_numpy
from attsvm.training.risk.objective import Objective
from attsvm.training.run.batches import entropy_of

# Standard deviation of K in the published (K, Q) figures, which start from Q = 0 and K = 0.1 N(0, 1).
KEY_SCALE = 0.1


def _generators(seed: int | Sequence[int] | np.ndarray, trials: int) -> list[np.random.Generator]:
    """Make one generator per trial."""
    return [np.random.default_rng(entropy) for entropy in entropy_of(seed, trials)]


def _checked_array(name: str, array: Any, batch: tuple[int, ...], dims: tuple[int | None, ...], like: Tensor) -> Tensor:
    """Return a copy of a given start as (B, *dims); None as the last of `dims` allows any size."""
    tensor = array.detach() if is_tensor(array) else torch.as_tensor(to_numpy(f"init {name}", array).astype(float))
    tensor = tensor.to(device=like.device, dtype=like.dtype)
    shape = tuple(tensor.shape)
    full = (*dims[:-1], shape[-1] if dims[-1] is None and shape else dims[-1])
    if shape not in (full, (*batch, *full)):
        expected = ", ".join("m" if size is None else str(size) for size in dims)
        raise ValueError(
            f"init {name} has shape {shape}; ({expected}) was expected, with leading trials {batch} or none."
        )
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"init {name} of shape {shape} contains NaN or infinity; finite numbers were expected.")
    sizes = shape[len(shape) - len(dims) :]
    return tensor.expand(*batch, *sizes).reshape(-1, *sizes).clone()


def initial_parameters(
    init: Any,
    parameterization: str,
    rank: int | None,
    batch: tuple[int, ...],
    d: int,
    dz: int,
    seed: int | Sequence[int] | np.ndarray,
    like: Tensor,
    heads: int = 1,
) -> list[Tensor]:
    """Return [W] of shape (B, d, dz), or [K, Q] of shapes (B, d, m) and (B, dz, m).

    Several heads add a dimension: (B, H, d, dz).

    Parameters
    ----------
    init : None, "zero", "torch", array, or (K, Q)
        None: W = 0, or K = 0.1 N(0, 1) with Q = 0. "torch": the default of torch's Linear, uniform on +-1/sqrt(fan-in),
        as in the published runs on random data. Arrays may omit the trial dimensions.
    parameterization : {"W", "KQ"}
    rank : int or None
        Width m of K and Q; min(d, dz) by default, which allows any W.
    like : tensor
        Sets dtype and device.

    Raises
    ------
    ValueError
        If a shape, the rank, the seed or the name is wrong, or "zero" is given for K and Q.
    """
    many = () if heads == 1 else (heads,)
    trials = math.prod(batch)
    counts = isinstance(rank, int) and not isinstance(rank, bool) and rank >= 1
    if rank is not None and (parameterization == "W" or not counts):
        raise ValueError(f"rank is {rank!r}; a positive integer, with parameterization='KQ' only, was expected.")
    if isinstance(init, str) and init not in ("zero", "torch"):
        raise ValueError(f"init is {init!r}; 'zero', 'torch' or arrays were expected.")
    if parameterization == "W":
        if init is None or (isinstance(init, str) and init == "zero"):
            return [like.new_zeros((trials, *many, d, dz))]
        if isinstance(init, str):
            draws = [rng.uniform(-1, 1, (*many, d, dz)) / np.sqrt(dz) for rng in _generators(seed, trials)]
            return [torch.as_tensor(np.stack(draws)).to(like)]
        return [_checked_array("W", init, batch, (*many, d, dz), like)]
    width = min(d, dz) if rank is None else rank
    if init is None:
        keys = [KEY_SCALE * rng.standard_normal((*many, d, width)) for rng in _generators(seed, trials)]
        return [torch.as_tensor(np.stack(keys)).to(like), like.new_zeros((trials, *many, dz, width))]
    if isinstance(init, str):
        if init == "zero":
            raise ValueError(
                "init is 'zero', where K = Q = 0 is a stationary point; None, 'torch' or (K, Q) was expected."
            )
        pairs = [
            (rng.uniform(-1, 1, (*many, d, width)) / np.sqrt(d), rng.uniform(-1, 1, (*many, dz, width)) / np.sqrt(dz))
            for rng in _generators(seed, trials)
        ]
        return [torch.as_tensor(np.stack([pair[j] for pair in pairs])).to(like) for j in range(2)]
    if not isinstance(init, (tuple, list)) or len(init) != 2:
        raise ValueError(f"init has type {type(init).__name__}; a pair (K, Q) was expected for parameterization='KQ'.")
    K = _checked_array("K", init[0], batch, (*many, d, rank), like)
    Q = _checked_array("Q", init[1], batch, (*many, dz, rank), like)
    if K.shape[-1] != Q.shape[-1]:
        raise ValueError(f"init K has width {K.shape[-1]} and Q {Q.shape[-1]}; the same width was expected.")
    return [K, Q]


def aligned_factors(objective: Objective, parameterization: str, rank: int | None) -> list[Tensor]:
    r"""Return balanced K, Q along the singular vectors of the first gradient.

    Let :math:`-\nabla L(0) = U S V^\top`. The start is K = 0.1 U and Q = 0.1 V, so that :math:`K^\top K = Q^\top Q` and
    both sides of W share the singular spaces of the first gradient. The general case of arXiv 2403.08699 assumes
    weights aligned with the data at initialisation (according to its abstract). Here they are aligned with the first
    gradient.

    Raises ValueError if there is only one matrix, or the rank is not a positive integer up to min(d, dz).
    """
    d, dz = objective.tokens.shape[-1], objective.queries.shape[-1]
    if parameterization != "KQ" or objective.tokens.ndim == 5:
        raise ValueError("init is 'aligned'; parameterization='KQ' with one attention head was expected.")
    width = min(d, dz) if rank is None else rank
    if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= min(d, dz):
        raise ValueError(f"rank is {rank!r}; an integer from 1 to {min(d, dz)} was expected with init='aligned'.")
    with torch.no_grad():
        gradient = objective.gradient(objective.tokens.new_zeros(len(objective.labels), d, dz)).W
    U, _, Vh = torch.linalg.svd(-gradient, full_matrices=False)
    return [KEY_SCALE * U[..., :width].contiguous(), KEY_SCALE * Vh.mT[..., :width].contiguous()]
