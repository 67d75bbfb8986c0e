"""The training risk of a batch of trials as a function of W: logits, value, attention and gradient.

Logits are a_it = x_it^T W z_i. `numerics="exact"` uses the cancellation-free gradient of
:mod:`attsvm.training.risk.gradient`. `numerics="autograd"`, for comparison, differentiates softmax as usual in deep
learning and drifts once margins exceed -log(eps).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.data.token_data import TokenData
from attsvm.nn.heads import LinearHead, PredictionHead, as_head, predict
from attsvm.nn.losses import Loss, NegativeLog, as_loss
from attsvm.training.risk.arrays import flat_parts, has_ties, linear_scores
from attsvm.training.risk.gradient import (
    LogitGradient,
    head_logit_gradient,
    linear_logit_gradient,
    linear_margin,
    relative_softmax,
    soft_output,
)


@dataclass
class Gradient:
    """A gradient whose scale is stored separately: grad L = e^log_scale * W / n.

    Attributes
    ----------
    W : tensor, shape (B, d, dz)
    log_scale : tensor, shape (B,)
    n : int
        Number of queries in the mean.
    """

    W: Tensor
    log_scale: Tensor
    n: int

    @property
    def log_mean(self) -> Tensor:
        """Exponent of the gradient of the mean risk, log_scale - log n, shape (B,)."""
        return self.log_scale - math.log(self.n)


# Nodes and weights of Gauss quadrature for the slope of the loss.
_GAUSS = np.polynomial.legendre.leggauss(5)
# Drop of a margin below which the slope is integrated; above it a difference of losses has 15 digits.
_SETTLING_FACTOR = 0.1

# Number of multiplications per product below which torch is faster with contiguous transposed tokens.
_SMALL_PRODUCT = 400


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
        The scores of a :class:`~attsvm.nn.heads.LinearHead` are computed once.
    numerics : {"exact", "autograd"}
    heads : int
        If H > 1, W is (B, H, d, dz) and the outputs of the heads are added before h. Shapes (B, n, T) below are then
        (B, H, n, T). The vector of a linear head may differ per attention head, (B, H, dv).

    Attributes
    ----------
    weights : tensor, shape (B, n), or None
        Weight w_i of each query in the risk 1/n sum_i w_i l(u_i). None stands for ones.
    """

    weights: Tensor | None = None

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
        self._flatten(tokens)
        self.refresh_head()

    def _flatten(self, tokens: Tensor) -> None:
        """Reshape tokens to (B n, T, d): one batched product is faster than a broadcast one."""
        small = tokens.shape[-1] * tokens.shape[-2] < _SMALL_PRODUCT
        self._flat = tokens.flatten(0, 1)
        self._rows = self._flat.mT.contiguous().mT if small else self._flat

    def replace_tokens(self, tokens: Tensor, queries: Tensor, averaged: bool) -> None:
        """Replace tokens and queries, with the same shapes; `averaged` if attention also averages the tokens."""
        self.tokens, self.queries = tokens, queries
        self.values = tokens if averaged else self.values
        self._flatten(tokens)
        self.refresh_head()

    def refresh_head(self) -> None:
        """Recompute the scores of a linear head after its vector changed."""
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
        """Make the risk of head and loss on `data`, with the trials flattened to one batch dimension.

        The head is copied, in `dtype` and on the device of the data; a plain callable is used directly. `train_head`
        gives each trial a separate copy of the parameters.

        Raises ValueError if the head does not fit the data.
        """
        trials = math.prod(data.batch_shape)
        parts = flat_parts(data, dtype)
        tokens = parts[0]
        head = as_head(head)
        if isinstance(head, torch.nn.Module):
            head = copy.deepcopy(head).to(device=tokens.device, dtype=dtype)
        if isinstance(head, PredictionHead):
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
        return cls(*parts, head, as_loss(loss), numerics, heads)

    def trial(self, index: int) -> Objective:
        """Return the objective of one trial, as a batch of one; only for one attention head."""
        part = slice(index, index + 1)
        single = copy.copy(self)
        single.tokens, single.queries, single.values = self.tokens[part], self.queries[part], self.values[part]
        single.labels = self.labels[part]
        rows = slice(index * self.n, (index + 1) * self.n)
        single._flat, single._rows = self._flat[rows], self._rows[rows]
        single.weights = None if self.weights is None else self.weights[part]
        single.hidden = None if self.hidden is None else self.hidden[part]
        single.gamma = None if self.gamma is None else self.gamma[part]
        if isinstance(self.head, PredictionHead):
            single.head = self.head.of_trial(index)
        return single

    def weighted(self, weights: Tensor) -> Objective:
        """Return the same risk with weights (B, n), or (n,) for all trials, scaled to mean one in each trial.

        Raises ValueError if a weight is negative or not finite, all weights of a trial are zero, or the shape is wrong.
        """
        expected = tuple(self.labels.shape)
        if tuple(weights.shape) not in (expected, expected[1:]):
            raise ValueError(f"sample_weight has {tuple(weights.shape)} as shape; {expected} was expected.")
        weights = weights.to(self.labels).expand(expected)
        if not bool((weights.isfinite() & (weights >= 0)).all()) or not bool((weights.sum(-1) > 0).all()):
            raise ValueError(
                "sample_weight has weights that are negative, not finite or all zero; others were expected."
            )
        same = copy.copy(self)
        same.weights = weights / weights.mean(-1, keepdim=True)
        return same

    def rows(self, index: Tensor) -> Objective:
        """Return the risk of some queries, integers (B, b), repetitions allowed; weights keep their values."""
        index = index.to(self.labels.device)
        trial = torch.arange(len(index), device=index.device).unsqueeze(-1)
        part = copy.copy(self)

        def gather(tensor: Tensor, heads: bool) -> Tensor:
            # Several attention heads add a dimension before the queries, of size one, or H for scores.
            return tensor.movedim(1, 2)[trial, index].movedim(2, 1) if heads else tensor[trial, index]

        many = self.tokens.ndim == 5
        part.tokens, part.queries = gather(self.tokens, many), gather(self.queries, many)
        part.values = part.tokens if self.values is self.tokens else gather(self.values, many)
        part.labels = self.labels[trial, index]
        part.weights = None if self.weights is None else self.weights[trial, index]
        part.hidden = None if self.hidden is None else gather(self.hidden, many)
        part.gamma = None if self.gamma is None else gather(self.gamma, self.gamma.ndim == 4)
        part._flat = (part.tokens.squeeze(1) if many else part.tokens).flatten(0, 1)
        part._rows = part._flat
        return part

    def on(self, data: TokenData) -> Objective:
        """Return the risk of the same head and loss on other data of the same trials.

        Raises ValueError if the data has other trials or other dimensions.
        """
        trials = math.prod(data.batch_shape)
        shape = (len(self.labels), self.tokens.shape[-1], self.queries.shape[-1], self.values.shape[-1])
        if (trials, data.d, data.dz, data.values.shape[-1]) != shape:
            raise ValueError(
                f"held_out has {trials} trials with d, dz, dv = {data.d, data.dz, data.values.shape[-1]}; "
                f"{shape[0]} with {shape[1:]} were expected."
            )
        parts = flat_parts(data, self.labels.dtype)
        return Objective(*parts, self.head, self.loss, self.numerics, heads=2 if self.tokens.ndim == 5 else 1)

    def selecting(self, tokens: Tensor | None = None) -> Objective:
        """Return the convex problem of attending to given tokens, mean -log s_i,tokens[i]; only for one attention head.

        ``tokens`` (B, n) are those with the highest scores by default.
        """
        scores = self.token_scores()
        if tokens is None:
            tokens = (scores if self.hidden is None else scores.masked_fill(self.hidden, -torch.inf)).argmax(-1)
        problem = copy.copy(self)
        problem.gamma = torch.zeros_like(scores).scatter(-1, tokens.unsqueeze(-1), 1.0)
        problem.loss, problem.tied = NegativeLog(), True
        return problem

    @property
    def n(self) -> int:
        """Number of queries in a trial."""
        return self.tokens.shape[-3]

    def logits(self, W: Tensor) -> Tensor:
        """Return x_it^T W z_i, shape (B, n, T), with -inf at hidden tokens."""
        rotated = self.queries @ W.mT  # (B, n, d)
        if W.ndim == 3:
            logits = torch.bmm(rotated.view(-1, 1, rotated.shape[-1]), self._flat.mT).view(self.tokens.shape[:-1])
        else:
            logits = (rotated.unsqueeze(-2) @ self.tokens.mT).squeeze(-2)  # (B, H, n, T)
        return logits if self.hidden is None else logits.masked_fill(self.hidden, -torch.inf)

    def pull_back(self, weights: Tensor) -> Tensor:
        """Return sum_it g_it x_it z_i^T, shape (B, d, dz): the adjoint of :meth:`logits`."""
        if weights.ndim == 3:
            average = torch.bmm(weights.view(-1, 1, weights.shape[-1]), self._rows).view(*weights.shape[:-1], -1)
        else:
            average = (weights.unsqueeze(-2) @ self.tokens).squeeze(-2)  # (B, H, n, d)
        return average.mT @ self.queries

    def token_scores(self) -> Tensor:
        """Return each token's score if it alone is attended to, Y_i h(v_it), shape (B, n, T)."""
        if self.gamma is not None:
            return self.gamma
        with torch.no_grad():
            tokens = self.values.flatten(-3, -2)  # (B, n T, dv)
            return self.labels.unsqueeze(-1) * predict(self.head, tokens).view(self.values.shape[:-1])

    def attention(self, W: Tensor) -> Tensor:
        """Return softmax probabilities, shape (B, n, T)."""
        return torch.softmax(self.logits(W), -1)

    def value(self, W: Tensor) -> Tensor:
        """Return the risk of each trial, shape (B,)."""
        losses = self.loss.value(self.margin(W))
        return (losses if self.weights is None else losses * self.weights).mean(-1)

    def margin(self, W: Tensor) -> Tensor:
        """Return u_i = Y_i h(o_i), shape (B, n)."""
        if self.gamma is not None:
            return linear_margin(self.logits(W), self.gamma)
        return self.labels * predict(self.head, self.output(W))

    def output(self, W: Tensor) -> Tensor:
        """Return the attention outputs o_i, added over heads, shape (B, n, dv)."""
        return soft_output(relative_softmax(self.logits(W)), self.values)

    def excess(self, W: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return n (L(W) - L*) as a pair m, c of shape (B,) with value m e^c.

        It is for linear heads and decreasing losses. L* is the risk when query i attends only to `tokens[i]`, by
        default its best token. Once a query attends almost only to this token, the drop gamma* - u is small and stored
        as mantissa and exponent. Then l(u) - l(gamma*) is the drop times the mean slope in between, by Gauss quadrature
        accurate to rounding.

        Parameters
        ----------
        W : tensor, shape (B, d, dz) or (B, H, d, dz)
        tokens : integer tensor, shape (B, n), optional
        """
        assert self.gamma is not None
        logits = self.logits(W)
        if logits.ndim == 3:
            logits = logits.unsqueeze(1)
        log = relative_softmax(logits).log  # (B, H, n, T)
        gamma = (self.gamma if self.gamma.ndim == 4 else self.gamma.unsqueeze(1)).expand_as(logits)
        if tokens is None:
            target = gamma.masked_fill(logits == -torch.inf, -torch.inf).amax(-1, keepdim=True)
        else:
            target = gamma.gather(-1, tokens[:, None, :, None].expand(-1, logits.shape[1], -1, -1))
        gap = target - gamma
        log = torch.where(gap == 0, -torch.inf, log)
        exponent = log.amax((1, -1))  # (B, n)
        exponent = torch.where(exponent.isfinite(), exponent, 0.0)
        mantissa = ((log - exponent[:, None, :, None]).exp() * gap).sum((1, -1))
        best = target.sum((1, -1))
        margin = best - exponent.exp() * mantissa
        drop = exponent.exp() * mantissa
        slope = self.loss.log_slope(margin)[0]
        nodes, node_weights = (torch.as_tensor(part).to(W) for part in _GAUSS)
        slopes = self.loss.log_slope(margin.unsqueeze(-1) + drop.unsqueeze(-1) * (1 + nodes) / 2)[0]
        mean_slope = ((slopes - slope.unsqueeze(-1)).exp() * node_weights).sum(-1) / 2
        if self.weights is not None:
            mantissa, best_weight = mantissa * self.weights, self.weights
        else:
            best_weight = 1.0
        negligible = drop.abs() < _SETTLING_FACTOR
        mantissa = torch.where(
            negligible, mantissa * mean_slope, best_weight * (self.loss.value(margin) - self.loss.value(best))
        )
        exponent = torch.where(negligible, exponent + slope, 0.0)
        scale = torch.where(mantissa == 0, -torch.inf, exponent).amax(-1)
        scale = torch.where(scale.isfinite(), scale, 0.0)
        return (mantissa * (exponent - scale[:, None]).exp()).sum(-1), scale

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
            return linear_logit_gradient(logits, self.gamma, self.loss, self.tied, self.weights)
        return head_logit_gradient(logits, self.values, self.labels, self.head, self.loss, self.weights)

    def gradients(self, params: list[Tensor]) -> tuple[list[Tensor], Gradient]:
        """Return the gradients of [W] or [K, Q], and the scaled gradient in W = K Q^T."""
        if len(params) == 1:
            scaled = self.gradient(params[0])
            return [scaled.W], scaled
        K, Q = params
        scaled = self.gradient(K @ Q.mT)
        return [scaled.W @ Q, scaled.W.mT @ K], scaled

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
            losses = self.loss.value(margin)
            risk = (losses if self.weights is None else losses * self.weights).sum()
            (grad,) = torch.autograd.grad(risk, W)
        return Gradient(grad, grad.new_zeros(len(grad)), self.n)
