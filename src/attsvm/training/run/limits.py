"""Early ends of trials: parameters out of the range of their dtype, or an optimiser that loses the gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.platform.summary import counted


@dataclass(frozen=True)
class Ending:
    """The reason and the step at which a trial ended.

    Attributes
    ----------
    step : int
        Number of completed steps.
    reason : str
        A clause that completes "a trial ended early: ...".
    """

    step: int
    reason: str


def out_of_range(params: list[Tensor]) -> Tensor:
    """Tell whether the squares of a trial's parameters, or of the entries of K Q^T, have no finite sum, (B,)."""
    tensors = [*params, params[0] @ params[1].mT] if len(params) == 2 else params
    outside = torch.zeros(len(params[0]), dtype=torch.bool, device=params[0].device)
    for tensor in tensors:
        flat = tensor.flatten(1)
        limit = math.sqrt(torch.finfo(flat.dtype).max / flat.shape[1])
        outside |= ~(flat.abs().amax(-1) < limit)  # NaN compares false
    return outside


def left_range(dtype: torch.dtype) -> str:
    """Return the reason for parameters out of range."""
    return f"the parameters left the range of {str(dtype).removeprefix('torch.')}"


def notice(ends: Mapping[int, Ending], trials: int) -> str:
    """Return one sentence per reason; empty if no trial ended early."""
    reasons: dict[str, list[int]] = {}
    for ending in ends.values():
        reasons.setdefault(ending.reason, []).append(ending.step)
    return " ".join(
        f"{len(steps)} of {counted(trials, 'trial')} ended early: {reason}, "
        f"after {counted(min(steps), 'step')}{' at first' if len(set(steps)) > 1 else ''}; "
        "the last finite iterate is kept."
        for reason, steps in reasons.items()
    )
