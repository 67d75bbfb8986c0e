"""What training leaves behind: the recorded iterates, and everything that follows from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.core.interop import is_tensor, to_numpy
from attsvm.core.summary import MARKED, Summarised, Summary, line
from attsvm.data.token_data import TokenData
from attsvm.training.objective import Objective

Array = Any


@dataclass(frozen=True, eq=False)
class Trace(Summarised):
    """The record of one call of :func:`attsvm.train`.

    Only the parameters are stored; loss, attention and norms of the recorded steps are computed from them when asked
    for, so a long record costs d x dz numbers a step and nothing else.

    Attributes
    ----------
    data : TokenData
    step : int array, shape (records,)
        Number of steps made before each record; the first is 0, the last the end of the run.
    W : array, shape (..., records, d, dz)
        Recorded W, (..., records, H, d, dz) with several attention heads; K Q^T for the factored parameterisation.
    K, Q : arrays, shape (..., records, d, m) and (..., records, dz, m), or None
    head : dict of arrays
        Recorded parameters of the head by name, shape (..., records, ...); empty unless they were trained.
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
    head: dict[str, Array]
    optimizer: str
    numerics: str
    backend: str
    stopped: bool
    seconds: float
    _objective: Objective = field(repr=False)
    _records: dict[str, Tensor] = field(repr=False)  # (B, R, ...) in the precision of the computation

    def followed_by(self, later: Trace) -> Trace:
        """Join a run that began where this one ended.

        Parameters
        ----------
        later : Trace
            Of the same data and settings, trained with the last W, or the last (K, Q), of this one as its `init`.

        Returns
        -------
        Trace
            Both runs as one: the start that `later` recorded, which is the end of this run, appears once.

        Raises
        ------
        ValueError
            If `later` does not begin where this run ends.
        """
        names = self._records.keys() - {"W"} if self.K is not None else self._records.keys()
        for name in sorted(names):
            end, start = self._records[name][:, -1], later._records[name][:, 0]
            if end.shape != start.shape or not torch.equal(end, start):
                raise ValueError(f"later begins at another {name}; the end of the earlier run was expected.")

        def joined(first: Array, second: Array, axis: int) -> Array:
            rest = second[(slice(None),) * axis + (slice(1, None),)]
            return torch.cat([first, rest], axis) if is_tensor(first) else np.concatenate([first, rest], axis)

        axis = len(self.data.batch_shape)
        factors = {name: getattr(self, name) for name in ("K", "Q")}
        return replace(
            self,
            step=np.concatenate([self.step, self.step[-1] + later.step[1:]]),
            W=joined(self.W, later.W, axis),
            head={name: joined(rows, later.head[name], axis) for name, rows in self.head.items()},
            stopped=later.stopped,
            seconds=self.seconds + later.seconds,
            _records={name: joined(rows, later._records[name], 1) for name, rows in self._records.items()},
            **{n: None if rows is None else joined(rows, getattr(later, n), axis) for n, rows in factors.items()},
        )

    def _each_record(self, function: Callable[[Tensor], Tensor]) -> Array:
        """Apply a function of W (B, d, dz) to each record and return it shaped (..., records, ...)."""
        with torch.no_grad():
            stacked = torch.stack([function(self._at(r)) for r in range(len(self.step))], 1)
        return self._like_data(stacked.reshape(*self.data.batch_shape, *stacked.shape[1:]))

    def _at(self, record: int) -> Tensor:
        """Return W of that record, shape (B, ...), after giving the head its parameters of that record."""
        if self.head:
            module = self._objective.head
            assert isinstance(module, torch.nn.Module)
            for name, parameter in module.named_parameters():
                parameter.copy_(self._records[f"head.{name}"][:, record].view_as(parameter))
            self._objective.refresh_head()
        return self._records["W"][:, record]

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
        """Frobenius norm of W at each record, over all attention heads, shape (..., records)."""
        return self._each_record(lambda W: torch.linalg.vector_norm(W.flatten(1), dim=-1))

    @cached_property
    def selected(self) -> Array:
        """Token each query attends to most at the end, integers of shape (..., n), or (..., H, n) with heads."""
        with torch.no_grad():
            top = self._objective.logits(self._records["W"][:, -1]).argmax(-1)
        return self._like_data(top.reshape(*self.data.batch_shape, *top.shape[1:]))

    @cached_property
    def stationary(self) -> Array:
        """Whether the gradient that training sees is exactly zero at the end, booleans of shape (...).

        With exact numerics and a named loss that is a true stationary point: single tokens, equal scores, a head that
        is flat there. With a custom loss it also happens when its slope underflows, and with numerics="autograd" as
        soon as every query is saturated; the run then stands still for a numerical reason.
        """
        with torch.no_grad():
            zero = self._objective.gradient(self._at(len(self.step) - 1)).W.flatten(1).eq(0).all(-1)
        return self._like_data(zero.reshape(self.data.batch_shape))

    def _summary(self) -> Summary:
        facts = [
            ("trained", f"{'W' if self.K is None else 'K and Q'} by {self.optimizer}, {self.numerics} numerics"),
            ("steps", f"{int(self.step[-1]):,}, {len(self.step):,} records, {self.seconds:.3g} s"),
        ]
        picture = ""
        if not self.data.batch_shape:
            norm = np.asarray(to_numpy("norm", self.norm), dtype=float)
            facts.append(("norm of W", f"{norm[0]:.4g} to {norm[-1]:.4g}"))
            picture = line(self.step, norm)
        note = "correlation(trace.W[-1], solve(problem).W) compares the direction with the SVM's."
        return Summary("Trace", "", MARKED, facts, picture, "norm of W over steps", [note])

    def __repr__(self) -> str:
        return (
            f"Trace({self.data!r}, {self.optimizer} on {'W' if self.K is None else 'K, Q'}, "
            f"{int(self.step[-1])} steps, "
            f"{len(self.step)} records, {self.numerics} numerics, {self.backend}, {self.seconds:.3g} s)"
        )
