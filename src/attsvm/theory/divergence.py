r"""Decide whether the norm of W must grow without bound, or cannot.

**It must.** For a linear head and any V,

.. math:: -\langle \nabla L(W), V\rangle = \frac1n \sum_i |l'(u_i)|\, \mathrm{Cov}_{s_i}(\gamma_i, a_i(V)),
   \qquad a_{it}(V) = x_{it}^\top V z_i .

If some V makes every covariance nonnegative, and one positive, for *all* strictly positive s, then no finite W is
stationary; gradient descent with steps up to :math:`1/L_W` drives the gradient to zero, so its norm diverges. There are
three ways to find such a V:

* *B.1 or B.2 in every sequence* (arXiv 2308.16898, Theorem 3): V = W^mm of the optimal tokens. The covariance is
  :math:`s_{opt}(\gamma_{opt}-\bar\gamma)` in the first case, and the gap times :math:`s_{opt}(a_{opt}-\bar a)` in the
  second.
* *the order of the scores is realisable*: by Chebyshev's sum inequality,
  :math:`\mathrm{Cov} = \frac{1}{2}\sum_{t\tau}s_ts_\tau(\gamma_t-\gamma_\tau)(a_t-a_\tau)`, so any V works whose logits
  order the tokens as the scores do. That is a selection problem: each token against the tokens of the next lower score.
* *the queries predict their labels linearly*, and values are tokens: :math:`V = vw^\top` with
  :math:`Y_i w^\top z_i > 0` for all i is a special case of the second way. It exists for almost all data with
  :math:`d_z \ge n`.

The last two ways are not in the paper; the argument above proves them.

**It cannot.** Take a sequence with :math:`\|W_k\|\to\infty`, :math:`W_k/\|W_k\|\to V`. The attention on every token
outside the top face of V tends to zero, so :math:`\liminf L \ge \frac{1}{n}\sum_i l(\gamma_{i\beta_i})` with
:math:`\beta_i` the best token of that face. The selection :math:`\beta` has nonnegative margins under V. Suppose that
no selection :math:`\beta` with hard loss at most L(W(0)) has a V with nonnegative margins and logits that are not
constant. Then the sublevel set of L(W(0)) is bounded, and descent stays in it. Strictly positive multipliers with
:math:`A^\top\lambda=0` certify that :math:`\beta` has no such V (Stiemke).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import numpy as np
from scipy.optimize import linprog

from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import reduce
from attsvm.core.status import Status
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.solvers.solving import solve
from attsvm.theory.conditions import Condition
from attsvm.theory.tokens import Trial

NAME_DIVERGES = "norm diverges"
NAME_BOUNDED = "norm bounded"


def norm_diverges(trial: Trial) -> Condition:
    """Look for a direction along which no finite W is stationary.

    Parameters
    ----------
    trial : Trial

    Returns
    -------
    Condition
        holds is True with a proof, None otherwise: failing to find V proves nothing.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> condition = theory.norm_diverges(trial)
    >>> condition.holds
    True
    """
    if not trial.linear:
        return Condition(NAME_DIVERGES, None, "stated for linear heads only")
    if not np.isfinite(trial.score_gap).any() or not (trial.score_gap > trial.score_error).any():
        return Condition(NAME_DIVERGES, None, "no sequence prefers one token")
    if trial.unique and np.isfinite(trial.optimal_solution.objective) and _each_b1_or_b2(trial):
        return Condition(NAME_DIVERGES, True, "B.1 or B.2 holds in every sequence (Theorem 3)")
    solution = solve(order_problem(trial))
    if solution.status is Status.OPTIMAL:
        return Condition(
            NAME_DIVERGES, True, f"a matrix of norm {solution.objective:.4g} orders all tokens as their scores"
        )
    return Condition(
        NAME_DIVERGES, None, f"no matrix found that orders all tokens as their scores: {solution.status.name}"
    )


def _each_b1_or_b2(trial: Trial) -> bool:
    solution = trial.optimal_solution
    others = solution.problem.rejected
    near = (np.asarray(solution.support) == others).all(axis=1)
    highest = np.max(trial.gamma, axis=1, where=others, initial=-np.inf)
    lowest = np.min(trial.gamma, axis=1, where=others, initial=np.inf)
    equal = highest - lowest <= trial.score_error
    return bool((near | equal).all())


def order_problem(trial: Trial) -> SelectionProblem:
    """Return the problem of a matrix whose logits order the tokens of every sequence strictly as their scores do.

    It has one row for each token with a lower-scored one: the token must beat every token of the next lower score.

    Raises ValueError if all tokens of every sequence have the same score.
    """
    rows, selections, masks = [], [], []
    T = trial.mask.shape[1]
    for i, gamma in enumerate(trial.gamma):
        order = np.argsort(-gamma)[: int(trial.mask[i].sum())]
        fresh = np.r_[True, -np.diff(gamma[order]) > trial.score_error]
        level = np.cumsum(fresh) - 1
        for t, of in zip(order, level, strict=True):
            below = order[level == of + 1]
            if len(below):
                mask = np.zeros(T, dtype=bool)
                mask[[t, *below]] = True
                rows.append(i)
                selections.append(t)
                masks.append(mask)
    if not rows:
        raise ValueError(f"data has scores of shape {trial.gamma.shape} that are all equal; different ones expected.")
    return SelectionProblem(
        trial.tokens, trial.queries[rows], np.array(selections), mask=np.array(masks), sequence=rows
    )


def norm_bounded(
    trial: Trial, W: Any = None, loss: str | Callable[..., Any] = "logistic", *, limit: int = 4096
) -> Condition:
    """Certify that descent from W (default 0) stays bounded.

    Parameters
    ----------
    trial : Trial
    W : array (d, dz), optional
        The start.
    loss : str or callable
    limit : int
        Largest number of selections to enumerate.

    Returns
    -------
    Condition
        holds is True with a proof, None otherwise; value is the risk at the start.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> condition = theory.norm_bounded(trial)
    >>> condition.holds is None
    True
    """
    if not trial.linear:
        return Condition(NAME_BOUNDED, None, "stated for linear heads only")
    choices = [np.flatnonzero(row) for row in trial.mask]
    if prod(len(choice) for choice in choices) > limit:
        return Condition(NAME_BOUNDED, None, f"more than {limit} selections to go through")
    table, start = _risks(trial, W, loss)
    rows = np.arange(len(table))
    hard = [(float(table[rows, list(beta)].mean()), beta) for beta in product(*choices)]
    low = sorted((value, beta) for value, beta in hard if value <= start)
    for value, beta in low:
        if not has_no_favourite(trial.problem(np.array(beta))):
            detail = f"tokens {list(map(int, beta))} can be approached at infinity, loss {value:.4g} <= {start:.4g}"
            return Condition(NAME_BOUNDED, None, detail, start, "enumerated")
    detail = f"none of the {len(low)} selections with loss <= {start:.4g} can be approached at infinity"
    return Condition(NAME_BOUNDED, True, detail, start, "enumerated")


def has_no_favourite(problem: SelectionProblem) -> bool:
    """Certify that every V under which all margins are nonnegative has all margins zero.

    It maximises the smallest multiplier subject to A^T lam = 0. Positive multipliers, whose existence is verified
    exactly, are the proof.
    """
    if not problem.rejected.any():
        return True
    reduced = reduce(problem)
    rows, columns = np.nonzero(reduced.rejected)
    size = int(np.prod(reduced.shape))
    terms = reduced.constraint_rows(rows, columns)
    lengths = np.where(reduced.lengths[rows, columns] > 0, reduced.lengths[rows, columns], 1.0)
    equal = np.hstack([(terms / lengths[:, None]).T, np.zeros((size, 1))])
    total = np.r_[np.ones(len(rows)), 0.0]
    outcome = linprog(
        np.r_[np.zeros(len(rows)), -1.0],
        A_ub=np.hstack([-np.eye(len(rows)), np.ones((len(rows), 1))]),
        b_ub=np.zeros(len(rows)),
        A_eq=np.vstack([equal, total]),
        b_eq=np.r_[np.zeros(size), 1.0],
        bounds=[(0.0, None)] * (len(rows) + 1),
        method="highs",
    )
    if outcome.x is None or outcome.x[-1] <= 0:
        return False
    dual = np.zeros(reduced.rejected.shape)
    dual[rows, columns] = outcome.x[:-1] / lengths
    return bool((dual[rows, columns] > 0).all()) and FarkasCertificate(problem, reduced.lift_dual(dual)).verify()


def _risks(trial: Trial, W: Any, loss: str | Callable[..., Any]) -> tuple[np.ndarray, float]:
    """Return l(gamma_it) for every token, (n, T), and the risk at W."""
    import torch

    from attsvm.nn.losses import as_loss

    law = as_loss(loss)
    n, T = trial.mask.shape
    weights = np.zeros((trial.tokens.shape[2], trial.queries.shape[1])) if W is None else W
    logits = trial.logits(weights)
    top = np.exp(logits - logits.max(axis=1, keepdims=True))
    mixed = (np.where(trial.mask, trial.gamma, 0.0) * top).sum(axis=1) / top.sum(axis=1)
    scores = torch.as_tensor(np.where(trial.mask, trial.gamma, 0.0))
    table = law.value(scores).numpy().reshape(n, T)
    return table, float(law.value(torch.as_tensor(mixed)).mean())
