r"""The gradient of the attention risk, accurate to rounding even if the softmax is saturated.

Let :math:`u_i = Y_i h(o_i)` be the margins, :math:`o_i = V_i^\top s_i` the outputs, and :math:`\gamma_{it} = Y_i
h'(o_i)^\top v_{it}` the scores (constant for a linear head). The risk :math:`L = \frac1n \sum_i l(u_i)` has the logit
gradient

.. math:: g_{it} = l'(u_i)\, s_{it} (\gamma_{it} - \bar\gamma_i), \quad
          \bar\gamma_i = \sum_\tau s_{i\tau}\gamma_{i\tau}, \quad
          \nabla_W L = \frac1n \sum_i \sum_t g_{it}\, x_{it} z_i^\top .

In this form :math:`s_{it}\gamma_{it} - s_{it}\bar\gamma_i` for the top token is the difference of two equal numbers.
The computed row vanishes once its margin exceeds -log(eps), 36.7 in float64. This cancellation is avoidable. Let
:math:`\top` be the *current* top token of row i. Then

* logits are taken relative to it, :math:`r_t = a_t - a_\top \le 0`;
* the normaliser is :math:`\log\mathrm{sum}\,e^r = \mathrm{log1p}(\sum_{t\ne\top} e^{r_t})`;
* :math:`\bar\gamma = \gamma_\top - \delta`, :math:`\delta = \sum_{t\ne\top} s_t(\gamma_\top-\gamma_t)`, so that
  :math:`\gamma_t - \bar\gamma = \delta - (\gamma_\top - \gamma_t)` for :math:`t\ne\top`;
* the top entry is :math:`g_\top = -\sum_{t\ne\top} g_t`;
* weights are logarithms, :math:`\log s_t + \log|l'(u)|`, and the largest logarithm c per trial is factored out. The
  gradient is returned as :math:`e^{c} G` with :math:`G` of size one. Normalised methods use only G, which cannot
  underflow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.nn.heads import predict
from attsvm.nn.losses import Loss


@dataclass
class LogitGradient:
    """Gradient of n L with respect to the logits, times e^-c.

    Attributes
    ----------
    weights : tensor, shape (B, n, T) or (B, H, n, T)
        e^-c g; each row sums to zero.
    log_scale : tensor, shape (B,)
        c.
    margin : tensor, shape (B, n)
        u_i = Y_i h(o_i).
    """

    weights: Tensor
    log_scale: Tensor
    margin: Tensor


@dataclass
class RelativeSoftmax:
    """Softmax probabilities relative to the top token.

    Attributes
    ----------
    top : tensor, shape (B, n, 1)
        Position of the current top token.
    rest : tensor, shape (B, n, T)
        Probabilities with the top entry replaced by 0.
    log : tensor, shape (B, n, T)
        Logarithms of all probabilities.
    """

    top: Tensor
    rest: Tensor
    log: Tensor


def relative_softmax(logits: Tensor) -> RelativeSoftmax:
    """Compute the softmax of logits relative to its top entry; hidden tokens have logit -inf."""
    highest, top = logits.max(-1, keepdim=True)
    relative = logits - highest
    rest = relative.exp().scatter_(-1, top, 0.0)
    tail = rest.sum(-1, keepdim=True)
    return RelativeSoftmax(top, rest.div_(1 + tail), relative.sub_(tail.log1p()))


def linear_logit_gradient(
    logits: Tensor, gamma: Tensor, loss: Loss, tied: bool = True, weights: Tensor | None = None
) -> LogitGradient:
    """Return the gradient for the linear head, whose margin is u = gamma^T s.

    Parameters
    ----------
    logits : tensor, shape (B, n, T) or (B, H, n, T)
        -inf for hidden tokens; overwritten. The outputs of H attention heads are added.
    gamma : tensor, shape (B, n, T), (B, 1, n, T) or (B, H, n, T)
        Scores Y_i v^T v_it, finite everywhere.
    tied : bool
        Whether tokens of a row may have equal scores; False saves an exponential.
    weights : tensor, shape (B, n), optional
        Weight of each row in the risk, one by default.
    """
    highest, top = logits.max(-1, keepdim=True)  # (B, [H,] n, 1)
    gamma_top = gamma.expand_as(logits).gather(-1, top)
    runners = _runners_up(logits, highest, top, gamma_top - gamma, tied)
    return _assemble(runners, _over_heads(gamma_top - runners.drop), loss, weights)


def _over_heads(rows: Tensor) -> Tensor:
    """Sum (B, H, n, k) over heads, keeping the dimension; (B, n, k) is unchanged."""
    return rows.sum(1, keepdim=True) if rows.ndim == 4 else rows


@dataclass
class _RunnersUp:
    """A row relative to its second token: the highest token whose score differs from the score of the top token.

    Attributes
    ----------
    top : tensor, shape (B, [H,] n, 1)
    near : tensor, shape (B, [H,] n, 1)
        Logit of the second token minus the top logit; -inf if there is none.
    tail : tensor, shape (B, [H,] n, 1)
        Sum of e^r over all tokens except the top one.
    drop : tensor, shape (B, [H,] n, 1)
        delta.
    weights : tensor, shape (B, [H,] n, T)
        e^(r_t - near) times the difference of gamma_t from the mean, signed like the loss gradient; 0 at the top.
    """

    top: Tensor
    near: Tensor
    tail: Tensor
    drop: Tensor
    weights: Tensor


def _runners_up(logits: Tensor, highest: Tensor, top: Tensor, gap: Tensor, tied: bool) -> _RunnersUp:
    """Factor e^near out of all terms that vanish with saturation; `logits` and `gap` are overwritten.

    A token whose score equals the top score has gamma_t - mean = delta, smaller than for other tokens by e^near. Its
    weight keeps the factor e^near, and it is never the second token: the scale that it would set could make the weights
    of all other tokens vanish.
    """
    logits.scatter_(-1, top, -torch.inf)
    ties = gap == 0 if tied else None
    rivals = logits if ties is None else logits.masked_fill(ties, -torch.inf)
    second = rivals.amax(-1, keepdim=True)
    near = second - highest
    share = near.exp()
    rest = (rivals - second.clamp_(min=torch.finfo(logits.dtype).min)).exp_()
    tail = share * rest.sum(-1, keepdim=True)
    equal = None
    if ties is not None:
        equal = (logits - highest).exp_().masked_fill_(~ties, 0.0)
        tail += equal.sum(-1, keepdim=True)
    mantissa = torch.linalg.vecdot(rest, gap).unsqueeze(-1) / (1 + tail)
    drop = share * mantissa
    weights = gap.sub_(drop).mul_(rest)
    return _RunnersUp(top, near, tail, drop, weights if equal is None else weights - mantissa * equal)


def _assemble(runners: _RunnersUp, margin: Tensor, loss: Loss, row_weights: Tensor | None) -> LogitGradient:
    """Multiply rows by the slope of the loss at their margins (B, [1,] n, 1), and factor out the largest exponent."""
    log_slope, sign = loss.log_slope(margin)
    if row_weights is not None:
        log_slope = log_slope + row_weights.log().view_as(margin)
    shift = runners.near + log_slope - runners.tail.log1p()  # (B, [H,] n, 1)
    scale = shift.flatten(1).amax(-1).nan_to_num_(nan=torch.nan, posinf=torch.inf, neginf=0.0)
    factor = (shift - scale.view(-1, *(1,) * (shift.ndim - 1))).exp_()
    if sign is not None:
        factor = factor * -sign
    weights = runners.weights.mul_(factor)
    weights.scatter_(-1, runners.top, -weights.sum(-1, keepdim=True))
    return LogitGradient(weights, scale, margin.flatten(1))


def linear_margin(logits: Tensor, gamma: Tensor) -> Tensor:
    """Return u = gamma^T softmax(logits), summed over heads, shape (B, n), without cancellation."""
    soft = relative_softmax(logits)
    gamma_top = gamma.expand_as(logits).gather(-1, soft.top)
    return _over_heads(gamma_top - (soft.rest * (gamma_top - gamma)).sum(-1, keepdim=True)).flatten(1)


def soft_output(soft: RelativeSoftmax, values: Tensor) -> Tensor:
    """Return o = v_top + sum_{t != top} s_t (v_t - v_top), summed over heads, shape (B, n, dv).

    `values` is (B, n, T, dv), or (B, 1, n, T, dv) with heads.
    """
    top_value = values.take_along_dim(soft.top.unsqueeze(-1), -2)  # (B, [H,] n, 1, dv)
    output = (top_value + soft.rest.unsqueeze(-2) @ (values - top_value)).squeeze(-2)
    return output.sum(1) if output.ndim == 4 else output


def head_logit_gradient(
    logits: Tensor,
    values: Tensor,
    labels: Tensor,
    head: Callable[[Tensor], Tensor],
    loss: Loss,
    weights: Tensor | None = None,
) -> LogitGradient:
    """Return the gradient for a differentiable head: the linear form with gamma_t = Y h'(o)^T v_t at the output o.

    Parameters
    ----------
    logits : tensor, shape (B, n, T) or (B, H, n, T)
        Overwritten.
    values : tensor, shape (B, n, T, dv) or (B, 1, n, T, dv)
    labels : tensor, shape (B, n)
    head : callable
        Maps (B, n, dv) to (B, n) or (B, n, 1), one prediction from each output.
    weights : tensor, shape (B, n), optional
        Weight of each row in the risk, one by default.
    """
    soft = relative_softmax(logits)
    with torch.enable_grad():
        output = soft_output(soft, values).requires_grad_()
        prediction = predict(head, output)
        (slope,) = torch.autograd.grad(prediction.sum(), output)  # (B, n, dv)
    if logits.ndim == 4:
        slope, labels = slope.unsqueeze(1), labels.unsqueeze(1)
    top_value = values.take_along_dim(soft.top.unsqueeze(-1), -2)
    gap = labels.unsqueeze(-1) * ((top_value - values) @ slope.unsqueeze(-1)).squeeze(-1)  # (B, [H,] n, T)
    runners = _runners_up(logits, logits.gather(-1, soft.top), soft.top, gap, tied=True)
    margin = labels * prediction.detach().view_as(labels)
    return _assemble(runners, margin.unsqueeze(-1), loss, weights)
