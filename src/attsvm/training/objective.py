"""The training risk of a batch of trials as a function of W: logits, value, attention and gradient.

Logits are a_it = x_it^T W z_i. `numerics="exact"` uses the cancellation-free gradient of
:mod:`attsvm.training.gradient`; `numerics="autograd"` differentiates softmax as every deep-learning code does, and
drifts once margins pass -log(eps): it is there to be compared with.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attsvm.heads import LinearHead, as_head, predict
from attsvm.losses import Loss, as_loss
from attsvm.token_data import TokenData
from attsvm.training.gradient import (
    LogitGradient,
    head_logit_gradient,
    linear_logit_gradient,
    linear_margin,
    relative_softmax,
    soft_output,
)


@dataclass
class Gradient:
    """A gradient with its scale kept apart: grad L = e^log_scale * W / n.

    Attributes
    ----------
    W : tensor, shape (B, d, dz)
    log_scale : tensor, shape (B,)
    n : int
        Number of queries the risk averages over.
    """

    W: Tensor
    log_scale: Tensor
    n: int


# At a drop of e^-18, the root of the rounding unit, both forms of a difference of losses are good to half the digits.
_SETTLED = -18.0


class Objective:
    """Risk 1/n sum_i l(Y_i h(V_i^T softmax(X_i W z_i))) of B independent trials.

    Parameters
    ----------
    tokens : tensor, shape (B, n, T, d)
    queries : tensor, shape (B, n, dz)
    labels : tensor, shape (B, n)
    mask : boolean tensor, shape (B, n, T), or None
    values : tensor, shape (B, n, T, dv)
    head : module or callable
        A :class:`~attsvm.heads.LinearHead` is recognised and its scores are computed once.
    loss : Loss
    numerics : {"exact", "autograd"}
    """

    def __init__(
        self,
        tokens: Tensor,
        queries: Tensor,
        labels: Tensor,
        mask: Tensor | None,
        values: Tensor,
        head: Callable[[Tensor], Tensor],
        loss: Loss,
        numerics: str = "exact",
    ) -> None:
        self.tokens, self.queries, self.labels, self.values = tokens, queries, labels, values
        self.hidden = None if mask is None else ~mask
        self.head, self.loss, self.numerics = head, loss, numerics
        self.gamma = linear_scores(labels, values, head.v) if isinstance(head, LinearHead) else None
        self.tied = self.gamma is not None and has_ties(self.gamma)

    @classmethod
    def from_data(
        cls,
        data: TokenData,
        head: Any,
        loss: str | Loss | Callable[[Tensor], Tensor] = "logistic",
        dtype: torch.dtype = torch.float64,
        numerics: str = "exact",
    ) -> Objective:
        """Bind head and loss to `data`, its trials flattened to one batch dimension.

        The head is copied, in `dtype` and on the device of the data; a plain callable is used as it is.

        Raises
        ------
        ValueError
            If the head does not fit the data.
        """
        trials = math.prod(data.batch_shape)

        def flat(array: Any) -> Tensor:
            tensor = torch.as_tensor(array)
            tensor = tensor.reshape(trials, *tensor.shape[len(data.batch_shape) :])
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        tokens = flat(data.tokens)
        head = as_head(head)
        if isinstance(head, torch.nn.Module):
            head = copy.deepcopy(head).to(device=tokens.device, dtype=dtype)
        if isinstance(head, LinearHead):
            width = data.values.shape[-1]
            shape = tuple(head.v.shape)
            if shape not in ((width,), (*data.batch_shape, width)):
                raise ValueError(f"head v has shape {shape}; ({width},) or {(*data.batch_shape, width)} was expected.")
            if len(shape) > 1:
                head.v = torch.nn.Parameter(head.v.detach().reshape(trials, width))
        return cls(
            tokens,
            flat(data.queries),
            flat(data.labels),
            None if data.mask is None else flat(data.mask),
            tokens if data.values is data.tokens else flat(data.values),
            head,
            as_loss(loss),
            numerics,
        )

    @property
    def n(self) -> int:
        """Number of queries in a trial."""
        return self.tokens.shape[1]

    def logits(self, W: Tensor) -> Tensor:
        """Return x_it^T W z_i, shape (B, n, T), with -inf at hidden tokens."""
        rotated = self.queries @ W.mT  # (B, n, d)
        logits = (self.tokens @ rotated.unsqueeze(-1)).squeeze(-1)  # (B, n, T)
        return logits if self.hidden is None else logits.masked_fill(self.hidden, -torch.inf)

    def pull_back(self, weights: Tensor) -> Tensor:
        """Return sum_it g_it x_it z_i^T, shape (B, d, dz): the adjoint of :meth:`logits`."""
        combined = (weights.unsqueeze(-2) @ self.tokens).squeeze(-2)  # (B, n, d)
        return combined.mT @ self.queries

    def attention(self, W: Tensor) -> Tensor:
        """Return softmax probabilities, shape (B, n, T)."""
        return torch.softmax(self.logits(W), -1)

    def value(self, W: Tensor) -> Tensor:
        """Return the risk of each trial, shape (B,)."""
        logits = self.logits(W)
        if self.gamma is not None:
            margin = linear_margin(logits, self.gamma)
        else:
            margin = self.labels * predict(self.head, soft_output(relative_softmax(logits), self.values))
        return self.loss.value(margin).mean(-1)

    def log_excess(self, W: Tensor) -> Tensor:
        """Return log of n (L(W) - L*), shape (B,), with L* the risk when each query attends to its best token only.

        For linear heads. Once a query has settled on its best token, l(u) - l(gamma_best) is |l'(u)| times the drop
        gamma_best - u up to a relative error of that drop, and the drop is known as a logarithm.
        """
        assert self.gamma is not None
        soft = relative_softmax(self.logits(W))
        gamma = self.gamma if self.hidden is None else self.gamma.masked_fill(self.hidden, -torch.inf)
        best = gamma.amax(-1, keepdim=True)  # (B, n, 1)
        gap = torch.where(gamma.isfinite(), best - gamma, 0.0)
        log_drop = (soft.log + gap.log()).logsumexp(-1)  # (B, n)
        margin = best.squeeze(-1) - log_drop.exp()
        plain = (self.loss.value(margin) - self.loss.value(best.squeeze(-1))).clamp(min=0.0).log()
        settled = self.loss.log_slope(margin)[0] + log_drop
        return torch.where(log_drop < _SETTLED, settled, plain).logsumexp(-1)

    def gradient(self, W: Tensor) -> Gradient:
        """Return the gradient of the risk with respect to W."""
        if self.numerics == "autograd":
            return self._autograd_gradient(W)
        logit = self.logit_gradient(W)
        return Gradient(self.pull_back(logit.weights), logit.log_scale, self.n)

    def logit_gradient(self, W: Tensor) -> LogitGradient:
        """Return the exact scaled gradient with respect to the logits."""
        logits = self.logits(W)
        if self.gamma is not None:
            return linear_logit_gradient(logits, self.gamma, self.loss, self.tied)
        return head_logit_gradient(logits, self.values, self.labels, self.head, self.loss)

    def _autograd_gradient(self, W: Tensor) -> Gradient:
        with torch.enable_grad():
            W = W.detach().requires_grad_()
            logits = self.logits(W)
            output = (torch.softmax(logits, -1).unsqueeze(-2) @ self.values).squeeze(-2)
            risk = self.loss.value(self.labels * predict(self.head, output)).sum()
            (grad,) = torch.autograd.grad(risk, W)
        return Gradient(grad, grad.new_zeros(len(grad)), self.n)


def linear_scores(labels: Tensor, values: Tensor, v: Tensor) -> Tensor:
    """Return token scores gamma_it = Y_i v^T v_it, shape (B, n, T); v is (dv,) or (B, dv)."""
    v = v.detach()
    column = v[:, None] if v.ndim == 1 else v[:, None, :, None]
    return labels.unsqueeze(-1) * (values @ column).squeeze(-1)


def has_ties(gamma: Tensor) -> bool:
    """Whether two tokens of a row have exactly the same score."""
    ordered = gamma.sort(-1).values
    return bool((ordered.diff(dim=-1) == 0).any())
