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

from attsvm.heads import LinearHead, TrialHead, as_head, predict
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
    heads : int
        With H > 1 attention heads W is (B, H, d, dz), the outputs of the heads are added before h, and everything that
        is (B, n, T) below is (B, H, n, T). The vector of a linear head may differ by attention head, (B, H, dv).
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
        heads: int = 1,
    ) -> None:
        self.labels, self.head, self.loss, self.numerics = labels, head, loss, numerics
        self.hidden = None if mask is None else ~mask
        self.tokens, self.queries, self.values = tokens, queries, values
        if heads > 1:
            self.tokens, self.queries, self.values = (part.unsqueeze(1) for part in (tokens, queries, values))
            self.hidden = None if self.hidden is None else self.hidden.unsqueeze(1)
        self.refresh_head()

    def refresh_head(self) -> None:
        """Compute the scores of a linear head again after its vector has changed."""
        self.gamma: Tensor | None = None
        if isinstance(self.head, LinearHead):
            labels = self.labels if self.values.ndim == 4 else self.labels.unsqueeze(1)
            self.gamma = linear_scores(labels, self.values, self.head.v)
        self.tied = self.gamma is not None and has_ties(self.gamma)

    @classmethod
    def from_data(
        cls,
        data: TokenData,
        head: Any,
        loss: str | Loss | Callable[[Tensor], Tensor] = "logistic",
        dtype: torch.dtype = torch.float64,
        numerics: str = "exact",
        heads: int = 1,
        train_head: bool = False,
    ) -> Objective:
        """Bind head and loss to `data`, its trials flattened to one batch dimension.

        The head is copied, in `dtype` and on the device of the data; a plain callable is used as it is. With
        `train_head` each trial gets its own copy of the parameters.

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
        if isinstance(head, TrialHead):
            if head.width != data.values.shape[-1]:
                raise ValueError(
                    f"head reads outputs of dimension {head.width}; {data.values.shape[-1]} was expected from values "
                    f"of shape {tuple(data.values.shape)}."
                )
            per_head = (*data.batch_shape, heads)
            if isinstance(head, LinearHead) and heads > 1 and tuple(head.v.shape[:-1]) == per_head:
                head.v = torch.nn.Parameter(head.v.detach().reshape(trials, heads, head.width))
            else:
                head.flatten_trials(data.batch_shape, expand=train_head)
        return cls(
            tokens,
            flat(data.queries),
            flat(data.labels),
            None if data.mask is None else flat(data.mask),
            tokens if data.values is data.tokens else flat(data.values),
            head,
            as_loss(loss),
            numerics,
            heads,
        )

    @property
    def n(self) -> int:
        """Number of queries in a trial."""
        return self.tokens.shape[-3]

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
        return self.loss.value(self.margin(W)).mean(-1)

    def margin(self, W: Tensor) -> Tensor:
        """Return u_i = Y_i h(o_i), shape (B, n)."""
        if self.gamma is not None:
            return linear_margin(self.logits(W), self.gamma)
        return self.labels * predict(self.head, self.output(W))

    def output(self, W: Tensor) -> Tensor:
        """Return the attention outputs o_i, added over heads, shape (B, n, dv)."""
        return soft_output(relative_softmax(self.logits(W)), self.values)

    def log_excess(self, W: Tensor) -> Tensor:
        """Return log of n (L(W) - L*), shape (B,), with L* the risk when each query attends to its best token only.

        For linear heads. Once a query has settled on its best token, l(u) - l(gamma_best) is |l'(u)| times the drop
        gamma_best - u up to a relative error of that drop, and the drop is known as a logarithm.
        """
        assert self.gamma is not None
        logits = self.logits(W)
        if logits.ndim == 3:
            logits = logits.unsqueeze(1)
        log = relative_softmax(logits).log  # (B, H, n, T)
        gamma = self.gamma if self.gamma.ndim == 4 else self.gamma.unsqueeze(1)
        gamma = gamma.expand_as(logits).masked_fill(logits == -torch.inf, -torch.inf)
        best = gamma.amax(-1, keepdim=True)
        gap = torch.where(gamma.isfinite(), best - gamma, 0.0)
        log_drop = (log + gap.log()).logsumexp((1, -1))  # (B, n)
        target = best.sum((1, -1))
        margin = target - log_drop.exp()
        plain = (self.loss.value(margin) - self.loss.value(target)).clamp(min=0.0).log()
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
            probabilities = torch.softmax(self.logits(W), -1)
            if self.gamma is not None:
                parts = (probabilities * self.gamma).sum(-1)
            else:
                parts = (probabilities.unsqueeze(-2) @ self.values).squeeze(-2)
            total = parts if W.ndim == 3 else parts.sum(1)
            margin = total if self.gamma is not None else self.labels * predict(self.head, total)
            risk = self.loss.value(margin).sum()
            (grad,) = torch.autograd.grad(risk, W)
        return Gradient(grad, grad.new_zeros(len(grad)), self.n)


def linear_scores(labels: Tensor, values: Tensor, v: Tensor) -> Tensor:
    """Return token scores gamma_it = Y_i v^T v_it, shape (B, [H,] n, T).

    Labels are (B, [1,] n), values (B, [1,] n, T, dv) and v (dv,), (B, dv) or, with heads, (B, H, dv).
    """
    v = v.detach()
    if v.ndim > 1:
        v = v.view(v.shape[0], *(1,) * (values.ndim - 2 - v.ndim), *v.shape[1:]).unsqueeze(-2)
    return labels.unsqueeze(-1) * (values @ v.unsqueeze(-1)).squeeze(-1)


def has_ties(gamma: Tensor) -> bool:
    """Whether two tokens of a row have exactly the same score."""
    ordered = gamma.sort(-1).values
    return bool((ordered.diff(dim=-1) == 0).any())
