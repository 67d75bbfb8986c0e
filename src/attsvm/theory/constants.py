r"""Cones around a direction, and the constants of smoothness and local convergence.

*Smoothness.* With :math:`g(a) = l'(\gamma^\top s)\,(\mathrm{diag}(s) - ss^\top)\gamma` the gradient in the logits of
one sequence, :math:`\|s(a)-s(b)\| \le \|a-b\|`, :math:`|\mathrm{diag}(s)-ss^\top| \le 1` and
:math:`\|J(a)-J(b)\| \le 3\|a-b\|` give :math:`\|g(a)-g(b)\| \le (M_0\|\gamma\|^2 + 3M_1\|\gamma\|)\|a-b\|`. Logits are
:math:`a = XWz` and :math:`\|\gamma\| \le \|v\|\|V\|`, so the gradient in W is Lipschitz with

.. math:: L_W = \frac1n\sum_i \|X_i\|^2\|z_i\|^2\,\|v\|\|V_i\|\,(M_0\|v\|\|V_i\| + 3M_1)

(arXiv 2308.16898, Lemma 4, where V = X). For factors, :math:`\nabla_K = \nabla_W(KQ^\top)\,Q`, and Q enters twice, once
in the argument: :math:`L_K = \|Q\|^2 L_W`, :math:`L_Q` likewise. Version 1 of Lemma 4 prints the first power, which is
false for large Q: scaling Q by c multiplies the true constant by :math:`c^2`.

*Local convergence* (Theorem 7 and Lemma 13). For a locally optimal :math:`\alpha` with SVM :math:`W^{mm}_\alpha`,

.. math::
   \Theta = \frac{1}{\|W^{mm}\|_F},\quad
   \delta = \tfrac12 \min_{i,\ \tau\notin T_i} (\mathrm{margin}_{i\tau} - 1),\quad
   A = \frac{\max_{it}\|x_{it}z_i^\top\|_F}{\Theta},\\
   \mu = \tfrac18 \Bigl(\frac{\min(\frac12,\delta)}{A}\Bigr)^2,\quad
   R = \frac{\max(2,1/\delta)}{\Theta}\log\frac{64\,T\,\Gamma A}{\gamma^{gap}_{min}},

with :math:`\Gamma = \max|\gamma_{it}|` and :math:`\gamma^{gap}_{min}` the smallest lead of a selected token over its
neighbours. Gradient descent that starts in :math:`C_{\mu,R}(W^{mm}_\alpha)` stays there and converges to that
direction. The minimum in :math:`\delta` runs over all non-neighbours, those of sequences without neighbours included:
never larger than the published one, hence safe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.correlation import correlation
from attsvm.core.interop import to_numpy
from attsvm.theory.conditions import loss_constants
from attsvm.theory.tokens import LocalOptimality, Trial


@dataclass(frozen=True)
class Smoothness:
    """Lipschitz constants of the gradients; see the module's derivation.

    Attributes
    ----------
    L_W : float
        Descent is certain for steps up to 1/L_W (version 1 of the paper prints 2/L_W).
    L_K, L_Q : float or None
        Of the gradients in K with Q fixed, and in Q with K fixed, at the factors given.
    """

    L_W: float
    L_K: float | None = None
    L_Q: float | None = None


def smoothness(
    trial: Trial, loss: str | Callable[..., Any] = "logistic", *, K: Any = None, Q: Any = None
) -> Smoothness:
    """Bound how fast the gradients of the risk change; for linear heads.

    Parameters
    ----------
    trial : Trial
    loss : str or callable
    K, Q : arrays, shapes (d, m) and (dz, m), optional

    Raises
    ------
    ValueError
        If the head is not linear.
    """
    if trial.v is None:
        raise ValueError(f"head has type {type(trial.head).__name__}; a linear head was expected.")
    constants = loss_constants(loss, float(np.abs(trial.gamma[trial.mask]).max()))
    # A hidden token has probability zero whatever W is, so its row counts as zero.
    keys = np.linalg.norm(trial.tokens * trial.mask[..., None], ord=2, axis=(1, 2))  # (n,)
    averaged = np.linalg.norm(trial.values * trial.mask[..., None], ord=2, axis=(1, 2))
    score = averaged * np.linalg.norm(trial.v)
    queries = np.linalg.norm(trial.queries, axis=1)
    L_W = float(np.mean(keys**2 * queries**2 * score * (constants.M0 * score + 3 * constants.M1)))
    square = [None if factor is None else float(np.linalg.norm(to_numpy("K, Q", factor), 2)) ** 2 for factor in (Q, K)]
    return Smoothness(L_W, *(None if value is None else value * L_W for value in square))


@dataclass(frozen=True)
class LocalConstants:
    """The constants of the local convergence theorem, named as in the paper."""

    Theta: float
    delta: float
    A: float
    mu: float
    R: float


def local_constants(trial: Trial, direction: LocalOptimality) -> LocalConstants:
    """Compute the cone from which convergence to a locally optimal direction is guaranteed; for linear heads.

    Raises
    ------
    ValueError
        If the selection is not locally optimal, no token is rejected, or the head is not linear.
    """
    if trial.v is None:
        raise ValueError(f"head has type {type(trial.head).__name__}; a linear head was expected.")
    if not direction.holds:
        raise ValueError(f"direction selects {direction.selected.tolist()}; a locally optimal selection was expected.")
    solution, neighbours = direction.solution, direction.neighbours
    if not neighbours.any():
        raise ValueError(f"data has mask of shape {trial.mask.shape} that leaves no token to reject; one was expected.")
    Theta = 1.0 / solution.objective
    far = solution.problem.rejected & ~neighbours
    delta = 0.5 * float(np.min(np.asarray(solution.margins), where=far, initial=np.inf) - 1.0)
    lengths = np.linalg.norm(trial.tokens, axis=2) * np.linalg.norm(trial.queries, axis=1)[:, None]
    A = float(lengths[trial.mask].max()) / Theta
    mu = (min(0.5, delta) / A) ** 2 / 8
    chosen = trial.gamma[np.arange(len(direction.selected)), direction.selected]
    gap = float(np.min(chosen[:, None] - trial.gamma, where=neighbours, initial=np.inf))
    Gamma = float(np.abs(trial.gamma[trial.mask]).max())
    R = max(2.0, 1.0 / delta) / Theta * float(np.log(64 * trial.tokens.shape[1] * Gamma * A / gap))
    return LocalConstants(Theta, delta, A, mu, R)


def in_cone(W: Any, direction: Any, mu: float, R: float = 0.0) -> bool:
    """Tell whether W lies in C_{mu,R}(direction): cosine at least 1 - mu and Frobenius norm at least R."""
    size = float(np.linalg.norm(to_numpy("W", W)))
    return size >= R and size > 0 and float(correlation(to_numpy("W", W), to_numpy("direction", direction))) >= 1 - mu


def relative_margin(trial: Trial, W: Any) -> float:
    """Largest mu with W in S_mu: smallest margin of the optimal tokens under W/||W||, as a share of the best possible.

    W belongs to S_mu = {W : <(x_opt - x_t) z^T, W/||W||> >= mu / ||W^mm|| for all t, i} when this is at least mu. It is
    one for W^mm and for nothing else; NaN when the optimal tokens have no SVM.
    """
    matrix = to_numpy("W", W).astype(np.float64, copy=False)
    solution, size = trial.optimal_solution, float(np.linalg.norm(matrix))
    if not np.isfinite(solution.objective) or size == 0:
        return float("nan")
    problem = solution.problem
    smallest = float(np.min(problem.apply(matrix / size), where=problem.rejected, initial=np.inf))
    return smallest * solution.objective
