r"""Steepest descent in other norms: mirror, sign, spectral and coordinate descent, and norms of rows or columns.

Steepest descent in a norm is biased towards the max-margin solution in that norm.

* **Mirror descent** with potential :math:`\psi(W) = \frac1p\|W\|_p^p` (p-AttGD of arXiv 2410.14581). The mirror image
  is :math:`Z = \nabla\psi(W) = \mathrm{sign}(W)|W|^{p-1}`. A step is :math:`Z \leftarrow Z - \eta\, G/\|G\|_q` with 1/p
  + 1/q = 1, and then :math:`W = \mathrm{sign}(Z)|Z|^{1/(p-1)}`. The limit is the entrywise l_p SVM; p = 2 is normalised
  gradient descent.
* **Sign descent** :math:`W \leftarrow W - \eta\,\mathrm{sign}(G)` is steepest in the max-norm. **Spectral descent**
  :math:`W \leftarrow W - \eta\,UV^\top` (G = U S V^T, the limit of Muon with no momentum) is steepest in the spectral
  norm. Convergence to the SVM of the norm is proved only for linear multiclass models (arXiv 2502.04664); for attention
  it is an experiment. The solution in these norms need not be unique: compare margins, not directions.
* **Coordinate descent** steps along the largest entry of G alone. It is steepest in the l_1 norm, like boosting (arXiv
  1303.4172). **Row** and **column descent** divide each row, or column, of G by its length. They are the linear
  minimisation oracles of Scion (arXiv 2502.07529) for the largest row or column norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attsvm.training.optimisers.descent import OPTIMIZERS, Entry, Optimizer, State, global_norm, per_trial, safe
from attsvm.training.risk.objective import Gradient, Objective


@dataclass(frozen=True)
class MirrorDescent(
    Optimizer,
    name="mirror",
    KQ="its potential is a function of W, and no separate potentials of K and Q make the l_p norm of K Q^T small",
):
    """Normalised mirror descent with potential (1/p) ||W||_p^p.

    Parameters
    ----------
    lr, schedule, relative
        See :class:`~attsvm.training.optimisers.descent.Optimizer`.
    p : float
        Greater than 1.

    Raises
    ------
    ValueError
        If p is not a finite number above 1.
    """

    lr: float = 0.1
    p: float = 3.0

    def __post_init__(self) -> None:
        if not 1 < self.p < float("inf"):
            raise ValueError(f"p is {self.p}; a finite number above 1 was expected.")

    def start(self, params: list[Tensor], objective: Objective) -> State:
        """Return the mirror image of the first W."""
        W = params[0]
        return {"mirror": W.sign() * W.abs().pow(self.p - 1)}

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        q = self.p / (self.p - 1)
        unit = grads[0] / safe(global_norm(grads))
        unit = unit / per_trial(safe(unit.abs().pow(q).flatten(1).sum(-1).pow(1 / q)), unit)
        mirror = state["mirror"]
        mirror -= self._length(params, size) * unit
        params[0].copy_(mirror.sign() * mirror.abs().pow(1 / (self.p - 1)))


@dataclass(frozen=True)
class SignDescent(Optimizer, name="sign"):
    """Every entry moves by the step size, against the sign of its gradient."""

    lr: float = 0.02

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        for param, grad in zip(params, grads, strict=True):
            param -= self._length([param], size) * grad.sign()


@dataclass(frozen=True)
class SpectralDescent(Optimizer, name="spectral"):
    """Every singular direction of the gradient moves by the step size."""

    lr: float = 0.1

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        for param, grad in zip(params, grads, strict=True):
            param -= self._length([param], size) * polar_factor(grad)


@dataclass(frozen=True)
class CoordinateDescent(Optimizer, name="coordinate"):
    """The entry with the largest gradient moves by the step size; of several equal entries the first one moves."""

    lr: float = 0.1

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place; for K and Q one entry moves, the largest of both."""
        flat = torch.cat([grad.flatten(1) for grad in grads], 1)
        largest = flat.abs().argmax(-1, keepdim=True)
        step = torch.zeros_like(flat).scatter_(-1, largest, flat.gather(-1, largest).sign())
        parts = step.split([grad[0].numel() for grad in grads], 1)
        length = self._length(params, size)
        for param, part in zip(params, parts, strict=True):
            param -= length * part.view_as(param)


@dataclass(frozen=True)
class AxisDescent(Optimizer, name="rows"):
    """Every row, or every column, of the gradient moves by the step size.

    Parameters
    ----------
    lr, schedule, relative, weight_decay
        See :class:`~attsvm.training.optimisers.descent.Optimizer`.
    axis : {"rows", "columns"}

    Raises
    ------
    ValueError
        If the axis is neither.
    """

    lr: float = 0.1
    axis: str = "rows"

    def __post_init__(self) -> None:
        if self.axis not in ("rows", "columns"):
            raise ValueError(f"axis is {self.axis!r}; 'rows' or 'columns' was expected.")

    def step(
        self, params: list[Tensor], grads: list[Tensor], scaled: Gradient, state: State, k: int, size: float
    ) -> None:
        """Make one step in place."""
        along = -1 if self.axis == "rows" else -2
        for param, grad in zip(params, grads, strict=True):
            lengths = torch.linalg.vector_norm(grad, dim=along, keepdim=True)
            param -= self._length([param], size) * grad / safe(lengths)


OPTIMIZERS["columns"] = Entry(partial(AxisDescent, axis="columns"), partial(AxisDescent, axis="columns"))


def polar_factor(matrix: Tensor) -> Tensor:
    """Return U V^T over the non-zero singular values of each matrix, shape (..., d, m).

    A gradient has rank at most n; singular vectors of rounding noise must not get unit weight.
    """
    steady, nonfinite = numbers_only(matrix)
    U, S, Vh = torch.linalg.svd(steady, full_matrices=False)
    noise = S[..., :1] * max(matrix.shape[-2:]) * torch.finfo(matrix.dtype).eps
    return (U * (noise < S).to(matrix.dtype).unsqueeze(-2)) @ Vh + nonfinite


def numbers_only(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Replace non-finite matrices by zero, since LAPACK refuses a whole batch for one of them.

    Return the matrices, and a tensor (..., 1, 1) with NaN for replaced matrices, otherwise zero.
    """
    finite = matrix.isfinite().all(-1).all(-1)[..., None, None]
    return torch.where(finite, matrix, 0.0), torch.where(finite, 0.0, torch.nan).to(matrix.dtype)
