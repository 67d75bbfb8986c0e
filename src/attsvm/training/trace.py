"""What training leaves behind: the recorded iterates, and everything that follows from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.interop import is_tensor
from attsvm.token_data import TokenData
from attsvm.training.objective import Objective

Array = Any


@dataclass(frozen=True, eq=False)
class Trace:
    """The record of one call of :func:`attsvm.train`.

    Only the parameters are stored; loss, attention and norms of the recorded steps are computed from them when asked
    for, so a long record costs d x dz numbers a step and nothing else.

    Attributes
    ----------
    data : TokenData
    step : int array, shape (records,)
        Number of steps made before each record; the first is 0, the last the end of the run.
    W : array, shape (..., records, d, dz)
        Recorded W; K Q^T for the factored parameterisation.
    K, Q : arrays, shape (..., records, d, m) and (..., records, dz, m), or None
    optimizer : str
    numerics : {"exact", "autograd"}
    backend : {"torch", "compiled"}
    stopped : bool
        Whether the callback ended the run early.
    seconds : float
    """

    data: TokenData
    step: np.ndarray
    W: Array
    K: Array | None
    Q: Array | None
    optimizer: str
    numerics: str
    backend: str
    stopped: bool
    seconds: float
    _objective: Objective = field(repr=False)
    _records: Tensor = field(repr=False)  # (B, R, d, dz) in the precision of the computation

    def _each_record(self, function: Callable[[Tensor], Tensor]) -> Array:
        """Apply a function of W (B, d, dz) to each record and return it shaped (..., records, ...)."""
        with torch.no_grad():
            stacked = torch.stack([function(self._records[:, r]) for r in range(len(self.step))], 1)
        return self._like_data(stacked.reshape(*self.data.batch_shape, *stacked.shape[1:]))

    def _like_data(self, tensor: Tensor) -> Array:
        if not is_tensor(self.W):
            array = tensor.cpu().numpy()
            return array.astype(self.W.dtype) if tensor.is_floating_point() else array
        return tensor.to(self.W.dtype) if tensor.is_floating_point() else tensor

    @cached_property
    def loss(self) -> Array:
        """Risk 1/n sum_i l(Y_i h(x(s_i))) at each record, shape (..., records)."""
        return self._each_record(self._objective.value)

    @cached_property
    def attention(self) -> Array:
        """Softmax probabilities at each record, shape (..., records, n, T)."""
        return self._each_record(self._objective.attention)

    @cached_property
    def norm(self) -> Array:
        """Frobenius norm of W at each record, shape (..., records)."""
        return self._each_record(lambda W: torch.linalg.matrix_norm(W))

    @cached_property
    def selected(self) -> Array:
        """Token each query attends to most at the end, integers of shape (..., n)."""
        with torch.no_grad():
            top = self._objective.logits(self._records[:, -1]).argmax(-1)
        return self._like_data(top.reshape(*self.data.batch_shape, self.data.n))

    def __repr__(self) -> str:
        return (
            f"Trace({self.data!r}, {self.optimizer} on {'W' if self.K is None else 'K, Q'}, "
            f"{int(self.step[-1])} steps, "
            f"{len(self.step)} records, {self.numerics} numerics, {self.backend}, {self.seconds:.3g} s)"
        )
