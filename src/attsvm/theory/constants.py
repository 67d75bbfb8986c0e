r"""Cones around a direction, and the constants of smoothness and local convergence.

*Smoothness.* Let :math:`g(a) = l'(\gamma^\top s)\,(\mathrm{diag}(s) - ss^\top)\gamma` be the gradient in the logits of
one sequence. The bounds :math:`\|s(a)-s(b)\| \le \|a-b\|`, :math:`|\mathrm{diag}(s)-ss^\top| \le 1` and
:math:`\|J(a)-J(b)\| \le 3\|a-b\|` give :math:`\|g(a)-g(b)\| \le (M_0\|\gamma\|^2 + 3M_1\|\gamma\|)\|a-b\|`. Logits are
:math:`a = XWz` and :math:`\|\gamma\| \le \|v\|\|V\|`, so the gradient in W is Lipschitz with

.. math:: L_W = \frac1n\sum_i \|X_i\|^2\|z_i\|^2\,\|v\|\|V_i\|\,(M_0\|v\|\|V_i\| + 3M_1)

(arXiv 2308.16898, Lemma 4, where V = X). For factors, :math:`\nabla_K = \nabla_W(KQ^\top)\,Q`, and Q enters twice, once
in the argument. So :math:`L_K = \|Q\|^2 L_W` and :math:`L_Q = \|K\|^2 L_W`. Version 1 of Lemma 4 prints the first
power, which is false for large Q: scaling Q by c multiplies the true constant by :math:`c^2`.

Descent is certain beyond the step 2/L_W that the paper prints. The second derivative along a direction is at most
:math:`\frac{1}{4}M_0\|\gamma\|^2 + \frac{1}{\sqrt{2}}M_1\|\gamma\|` times :math:`\|X\|^2\|z\|^2`, at most a quarter of
the sequence's share of L_W. So :math:`L(W - \eta\nabla L) - L(W) \le -\frac{\eta}{2}\|\nabla L\|^2` for
:math:`\eta \le 4/L_W` (docs/theory.md).

*Local convergence* (Theorem 7 and Lemma 13). For a locally optimal :math:`\alpha` with SVM :math:`W^{mm}_\alpha`,

.. math::
   \Theta = \frac{1}{\|W^{mm}\|_F},\quad
   \delta = \tfrac12 \min_{i,\ \tau\notin T_i} (\mathrm{margin}_{i\tau} - 1),\quad
   A = \frac{\max_{it}\|x_{it}z_i^\top\|_F}{\Theta},\quad
   \mu = \tfrac18 \Bigl(\frac{\min(\frac12,\delta)}{A}\Bigr)^2,\quad
   R = \frac{\max(2,1/\delta)}{\Theta}\log\frac{64\,T\,\Gamma A}{\gamma^{gap}_{min}},

with :math:`\Gamma = \sup|\gamma_{it} - \gamma_{i\tau}|` and :math:`\gamma^{gap}_{min}` the smallest lead of a selected
token over its neighbours. The minimum in :math:`\delta` runs over all non-neighbours, also in sequences without
neighbours. Lemma 13 proves that :math:`C_{\mu,R}(W^{mm}_\alpha)` holds no stationary point if every sequence has a
neighbour. Theorem 7 keeps descent in the cone from a radius :math:`R_\epsilon` of Lemma 14, which is not explicit. The
proof of that lemma compares sequences one by one, which fails. docs/theory.md proves the theorem without either
restriction, for steps up to 1/L_W and the radius

.. math:: \frac{4\log(4JK/e)}{\Theta\,\mu(2-\mu)},
   \qquad K = \frac{4\,\Gamma\max|l'|}{\gamma^{gap}_{min}\min|l'|},

where J is the number of rejected tokens and the slopes are taken on the scores' range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.correlation import correlation
from attsvm.platform.interop import to_numpy
from attsvm.platform.summary import Listed
from attsvm.theory.loss_slopes import loss_constants, slope_range
from attsvm.theory.tokens import LocalOptimality, Trial


@dataclass(frozen=True, repr=False)
class Smoothness(Listed):
    """Lipschitz constants of the gradients; see the module's derivation.

    Attributes
    ----------
    L_W : float
        Constant of the gradient in W. The descent inequality holds for steps up to 4/L_W (version 1 of the paper:
        2/L_W).
    L_K, L_Q : float or None
        Constants of the gradients in K with Q fixed, and in Q with K fixed, at the given factors.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> import numpy as np
    >>> smoothness = theory.smoothness(trial, K=np.eye(8), Q=2 * np.eye(8))
    >>> round(smoothness.L_K / smoothness.L_W, 6), round(smoothness.L_Q / smoothness.L_W, 6)
    (4.0, 1.0)
    """

    L_W: float
    L_K: float | None = None
    L_Q: float | None = None


def smoothness(
    trial: Trial, loss: str | Callable[..., Any] = "logistic", *, K: Any = None, Q: Any = None
) -> Smoothness:
    """Bound the Lipschitz constants of the gradients of the risk; for linear heads.

    Parameters
    ----------
    trial : Trial
    loss : str or callable
    K, Q : arrays, shapes (d, m) and (dz, m), optional

    Raises
    ------
    ValueError
        If the head is not linear.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> theory.smoothness(trial).L_W > 0
    True
    """
    if trial.v is None:
        raise ValueError(f"head has type {type(trial.head).__name__}; a linear head was expected.")
    constants = loss_constants(loss, float(np.abs(trial.gamma[trial.mask]).max()))
    # A hidden token has probability zero for every W, so its row counts as zero.
    keys = np.linalg.norm(trial.tokens * trial.mask[..., None], ord=2, axis=(1, 2))  # (n,)
    averaged = np.linalg.norm(trial.values * trial.mask[..., None], ord=2, axis=(1, 2))
    score = averaged * np.linalg.norm(trial.v)
    queries = np.linalg.norm(trial.queries, axis=1)
    L_W = float(np.mean(keys**2 * queries**2 * score * (constants.M0 * score + 3 * constants.M1)))
    square = [None if factor is None else float(np.linalg.norm(to_numpy("K, Q", factor), 2)) ** 2 for factor in (Q, K)]
    return Smoothness(L_W, *(None if value is None else value * L_W for value in square))


@dataclass(frozen=True, repr=False)
class LocalConstants(Listed):
    r"""The constants of local convergence, named as in the paper; see the module.

    Attributes
    ----------
    Theta, delta, A, mu, R : float
        Constants of Lemma 13. C_{mu,R} of the direction holds no stationary point when every sequence has a neighbour.
    Gamma, gap : float
        Largest difference of two scores of a sequence, and smallest lead of a selected token over a neighbour.
    radius : float
        Norm of a start from which convergence is proved. Gradient descent on W from a cosine of at least 1 - mu stays
        there and converges to the direction, for every constant step up to 1/L_W.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> direction = theory.local_optimality(trial, trial.gamma.argmax(axis=1))
    >>> constants = theory.local_constants(trial, direction)
    >>> round(constants.Theta * direction.solution.objective, 6)
    1.0
    """

    Theta: float
    delta: float
    A: float
    mu: float
    R: float
    Gamma: float
    gap: float
    radius: float


def local_constants(
    trial: Trial, direction: LocalOptimality, loss: str | Callable[..., Any] = "logistic"
) -> LocalConstants:
    """Compute the cone from which convergence to a locally optimal direction is guaranteed; for linear heads.

    Parameters
    ----------
    trial : Trial
    direction : LocalOptimality
        In the Frobenius norm.
    loss : str or callable
        Affects the radius only. The slopes of a callable are measured on a grid, and the radius is then no bound.

    Returns
    -------
    LocalConstants

    Raises
    ------
    ValueError
        If the selection is not locally optimal, no token is rejected, or the head is not linear.

    Notes
    -----
    arXiv 2308.16898 v1, Lemma 13 (p. 39-41); the radius is derived in docs/theory.md.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> direction = theory.local_optimality(trial, trial.gamma.argmax(axis=1))
    >>> constants = theory.local_constants(trial, direction)
    >>> 0 < constants.mu < 1, constants.radius > 0
    (True, True)
    """
    if trial.v is None:
        raise ValueError(f"head has type {type(trial.head).__name__}; a linear head was expected.")
    if not direction.holds:
        raise ValueError(f"direction selects {direction.selected.tolist()}; a locally optimal selection was expected.")
    solution, neighbours = direction.solution, direction.neighbours
    if not neighbours.any():
        raise ValueError(f"data has mask of shape {trial.mask.shape} that leaves no token to reject; one was expected.")
    n, T = trial.mask.shape
    Theta = 1.0 / solution.objective
    rejected = solution.problem.rejected
    far = rejected & ~neighbours
    delta = 0.5 * float(np.min(np.asarray(solution.margins), where=far, initial=np.inf) - 1.0)
    lengths = np.linalg.norm(trial.tokens, axis=2) * np.linalg.norm(trial.queries, axis=1)[:, None]
    A = float(lengths[trial.mask].max()) / Theta
    mu = (min(0.5, delta) / A) ** 2 / 8
    selection_scores = trial.gamma[np.arange(n), direction.selected]
    gap = float(np.min(selection_scores[:, None] - trial.gamma, where=neighbours, initial=np.inf))
    highest = np.max(trial.gamma, axis=1, where=trial.mask, initial=-np.inf)
    lowest = np.min(trial.gamma, axis=1, where=trial.mask, initial=np.inf)
    Gamma = float((highest - lowest).max())
    R = max(2.0, 1.0 / delta) / Theta * float(np.log(64 * T * Gamma * A / gap))
    slow, steep = slope_range(loss, float(lowest.min()), float(highest.max()))
    J, K = int(rejected.sum()), 4 * Gamma * steep / (gap * slow)
    radius = 4 * float(np.log(4 * J * K / np.e)) / (mu * (2 - mu)) / Theta
    return LocalConstants(Theta, delta, A, mu, R, Gamma, gap, radius)


def in_cone(W: Any, direction: Any, mu: float, R: float = 0.0) -> bool:
    """Tell whether W lies in C_{mu,R}(direction): cosine at least 1 - mu and Frobenius norm at least R.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import theory
    >>> direction = np.array([[1.0, 0.0]])
    >>> [theory.in_cone(np.array([W]), direction, mu=0.1) for W in ([9.0, 1.0], [1.0, 9.0])]
    [True, False]
    """
    size = float(np.linalg.norm(to_numpy("W", W)))
    return size >= R and size > 0 and float(correlation(to_numpy("W", W), to_numpy("direction", direction))) >= 1 - mu


def relative_margin(trial: Trial, W: Any) -> float:
    """Return the smallest margin of the optimal tokens under W/||W||, as a share of the largest possible margin.

    W is in S_mu = {W : <(x_opt - x_t) z^T, W/||W||> >= mu / ||W^mm|| for all t, i} if this share is at least mu. The
    share is one only for W^mm; it is NaN if the optimal tokens have no SVM.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> optimal = theory.separates(trial, trial.gamma.argmax(axis=1))
    >>> round(theory.relative_margin(trial, 5 * optimal.W), 6)
    1.0
    """
    matrix = to_numpy("W", W).astype(np.float64, copy=False)
    solution, size = trial.optimal_solution, float(np.linalg.norm(matrix))
    if not np.isfinite(solution.objective) or size == 0:
        return float("nan")
    problem = solution.problem
    smallest = float(np.min(problem.apply(matrix / size), where=problem.rejected, initial=np.inf))
    return smallest * solution.objective
