r"""Attention over the instances of a bag, trained together with the head that reads what it selects.

A bag is a sequence of instances under one constant query, so that W is a vector. The head starts at the logistic
regression of mean instances. W and the head are then trained alternately on

.. math:: \frac1n \sum_i c_i \log(1 + e^{-Y_i (v^\top o_i + b)}) + \frac{\delta}{2} (\|W\|_F^2 + \|v\|^2), \qquad
   o_i = X_i^\top \mathrm{softmax}(X_i W),

W takes a few steps of Adam; then the head is set to the minimum for this W, a convex problem. The decay :math:`\delta`
keeps attention from saturating, which would lower the held-out accuracy of small sets.

The SVM of the selected instances is the hard margin. If no W selects them all, it is the soft margin with
:math:`C = 1/(\delta n)`, which weighs a loss against :math:`\|W\|^2/2` as decay does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, softmax

from attsvm.core.problem import SelectionProblem
from attsvm.core.types import AnyNorm
from attsvm.data.bags import Bags
from attsvm.solution.solution import Solution
from attsvm.solvers.solving import solve

# Length of the first step of W for instances of mean length one, and number of steps after which it has fallen by
# sqrt(2): step k has length STEP / sqrt(1 + k / RAMP). Both were chosen on musk1 and elephant (benchmarks/bags.py).
STEP, RAMP = 0.4, 40.0
# Adam's decay rates of the mean gradient and of the mean square, and the number added to the root.
MEAN_DECAY, SQUARE_DECAY, LEAST_ROOT = 0.9, 0.999, 1e-8
# Number of steps after which the head is first fitted again; it doubles from round to round.
FIRST_ROUND = 10
# Range of the logarithm of the factor that turns outputs into log-odds.
LOG_FACTORS = (-8.0, 8.0)


@dataclass(frozen=True, eq=False)
class BagModel:
    """Attention over instances and the head that reads its output.

    Attributes
    ----------
    W : ndarray, shape (d, 1)
    v : ndarray, shape (d,)
    hard : bool
        Whether all attention lies on the instance of the largest score.
    factor : float
        Ratio of the log-odds to the output of the head, calibrated on held-out folds.
    """

    W: np.ndarray
    v: np.ndarray
    intercept: float
    hard: bool = False
    factor: float = 1.0

    def attention(self, bags: Bags) -> np.ndarray:
        """Return the attention of every instance, (n, T)."""
        return attention(bags, self.W, hard=self.hard)

    def log_odds(self, bags: Bags) -> np.ndarray:
        """Return the log-odds of +1 for every bag, (n,)."""
        return self.factor * (averages(bags, self.attention(bags)) @ self.v + self.intercept)


@dataclass(frozen=True, eq=False)
class BagSelection:
    """The instances that attention selects, and the SVM that certifies the selection.

    Attributes
    ----------
    selected : ndarray of int, shape (n,)
    solution : Solution
        The hard margin, or the soft margin if no W selects all instances.
    hard : Solution
        The hard margin, with a certificate if no W selects all instances.
    """

    selected: np.ndarray
    problem: SelectionProblem
    solution: Solution
    hard: Solution

    @property
    def margins(self) -> np.ndarray:
        """Smallest margin of each bag's selected instance at ||W|| = 1, (n,); infinite if no instance is rejected."""
        least = np.where(self.problem.rejected, np.asarray(self.solution.margins), np.inf).min(axis=1)
        return least / self.solution.objective if self.solution.objective > 0 else least

    @property
    def contradiction(self) -> np.ndarray:
        """Indices of bags that the certificate proves contradictory; empty if a W selects all instances."""
        certificate = self.hard.certificate
        return np.array([], dtype=int) if certificate is None else np.flatnonzero((certificate.dual > 0).any(axis=1))


def scores_of(bags: Bags, W: np.ndarray) -> np.ndarray:
    """Return the scores (n, T) of instances under W (d, 1); -inf where there is none."""
    return bags.padded(bags.instances @ W[:, 0], fill=-np.inf)


def attention(bags: Bags, W: np.ndarray, *, hard: bool = False) -> np.ndarray:
    """Return softmax attention (n, T), or all of it on the largest score."""
    scores = scores_of(bags, W)
    return np.eye(scores.shape[1])[scores.argmax(axis=1)] if hard else softmax(scores, axis=1)


def averages(bags: Bags, weights: np.ndarray) -> np.ndarray:
    """Average the instances with weights (n, T): (n, d)."""
    return np.add.reduceat(weights[bags.mask][:, None] * bags.instances, bags.first)


def fit_head(outputs: np.ndarray, labels: np.ndarray, weights: np.ndarray, decay: float) -> tuple[np.ndarray, float]:
    """Minimise the mean logistic loss of labels (n,) plus the decay; returns v (d,) and the intercept."""
    from sklearn.linear_model import LogisticRegression

    fit = LogisticRegression(C=1.0 / (decay * len(outputs)), max_iter=500).fit(outputs, labels, weights)
    return fit.coef_[0], float(fit.intercept_[0])


def train_bags(bags: Bags, weights: np.ndarray, decay: float, steps: int) -> list[BagModel]:
    """Train W and the head alternately; returns the model after every round.

    Parameters
    ----------
    bags : Bags
        With labels.
    weights : ndarray, shape (n,)
        Weight of each bag in the loss, of mean one.
    steps : int
        Number of steps of W in all.
    """
    assert bags.labels is not None
    W = np.zeros((bags.instances.shape[1], 1))
    head = fit_head(averages(bags, attention(bags, W)), bags.labels, weights, decay)
    if bags.mask.sum() == len(bags):
        return [BagModel(W, *head)]
    models, done = [], 0
    while done < steps:
        count = min(max(done, FIRST_ROUND), steps - done)
        # Adam moves every coordinate by about its step size, so that the length of a step grows as sqrt(d).
        sizes = STEP / np.sqrt(len(W) * (1.0 + np.arange(done + 1, done + count + 1) / RAMP))
        W = _train_attention(bags, weights, W, head, decay, sizes)
        done += count
        head = fit_head(averages(bags, attention(bags, W)), bags.labels, weights, decay)
        models.append(BagModel(W, *head))
    return models


def _train_attention(
    bags: Bags, weights: np.ndarray, W: np.ndarray, head: tuple[np.ndarray, float], decay: float, sizes: np.ndarray
) -> np.ndarray:
    """Take steps of Adam, of the given sizes, on W (d, 1) under a fixed head."""
    assert bags.labels is not None
    X, owner, first, labels = bags.instances, bags.owner, bags.first, bags.labels
    values, w = X @ head[0] + head[1], W[:, 0]
    mean, square = np.zeros_like(w), np.zeros_like(w)
    for k, size in enumerate(sizes, 1):
        scores = X @ w
        attention = np.exp(scores - np.maximum.reduceat(scores, first)[owner])
        attention /= np.add.reduceat(attention, first)[owner]
        outputs = np.add.reduceat(attention * values, first)
        slopes = -weights * labels * expit(-labels * outputs) / len(outputs)
        gradient = X.T @ (slopes[owner] * attention * (values - outputs[owner])) + decay * w
        mean += (1.0 - MEAN_DECAY) * (gradient - mean)
        square += (1.0 - SQUARE_DECAY) * (gradient**2 - square)
        root = np.sqrt(square / (1.0 - SQUARE_DECAY**k))
        w = w - size * mean / (1.0 - MEAN_DECAY**k) / (root + LEAST_ROOT)
    return w[:, None]


def select(bags: Bags, W: np.ndarray, norm: AnyNorm, C: float, time_limit: float | None) -> BagSelection:
    """Find the selected instances and solve their SVM; equal instances of a bag are selected together.

    ``C`` is the weight of the losses in a soft margin.
    """
    selected = scores_of(bags, W).argmax(axis=1)
    deciding = bags.instances[(np.arange(bags.mask.shape[1]) == selected[:, None])[bags.mask]]
    same = bags.padded((bags.instances == deciding[bags.owner]).all(axis=1)) > 0
    problem = SelectionProblem(bags.padded(bags.instances), np.ones((len(bags), 1)), same, mask=bags.mask)
    hard = solve(problem, norm, time_limit=time_limit)
    if np.isfinite(hard.objective):
        return BagSelection(selected, problem, hard, hard)
    solution = solve(problem, norm, C=C, time_limit=time_limit)
    # Every W is feasible for a soft margin, so the best W at the time limit is an answer; its gap bounds the error.
    return BagSelection(
        selected, problem, solution if np.isfinite(solution.objective) else solution.raise_for_status(), hard
    )


def with_svm(model: BagModel, W: np.ndarray, bags: Bags, weights: np.ndarray, decay: float) -> BagModel:
    """Replace attention by the hard selection of a certified W (d, 1), and fit the head to what it selects."""
    assert bags.labels is not None
    head = fit_head(averages(bags, attention(bags, W, hard=True)), bags.labels, weights, decay)
    return replace(model, W=W, v=head[0], intercept=head[1], hard=True)


def calibrated(outputs: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Find the factor of held-out outputs (n,) with the smallest mean logistic loss; returns it and the loss.

    A factor without an offset changes no decision.
    """
    size = float(np.sqrt(np.mean(np.square(outputs)))) or 1.0
    margins = labels * outputs / size

    def loss(log_factor: float) -> float:
        return float(np.average(np.logaddexp(0.0, -np.exp(log_factor) * margins), weights=weights))

    best: Any = minimize_scalar(loss, bounds=LOG_FACTORS, method="bounded")
    return float(np.exp(best.x)) / size, float(best.fun)


def leads(bags: Bags, solution: Solution) -> np.ndarray:
    """Tell in which bags the best score under a certified W exceeds all others by margin one, bool (n,)."""
    scores = np.sort(scores_of(bags, np.asarray(solution.W)), axis=1)
    if scores.shape[1] == 1:
        return np.ones(len(bags), dtype=bool)
    return scores[:, -1] - scores[:, -2] >= 1.0 - solution.margin_tolerance.max()
