r"""The assumptions of the theorems, checked on data.

=====  =====================================================================================================
A      the loss is strictly decreasing and bounded below on the scores' range, its slope Lipschitz and bounded
B.1    every non-optimal token is an SVM-neighbour of the optimal one (*strict*). The published experiments ask
       less: the average margin of the non-optimal tokens is at most 1.1 (*slack*). Both are reported: at d = 20
       and n = T = 5 the first holds in 1 % (0 to 3) of 300 random instances, the second in all (docs/theory.md)
B.2    all non-optimal tokens of a sequence have the same score
C      the first step improves every margin of the optimal tokens:
       :math:`(x_{it}-x_{i\,opt_i})^\top \nabla L(0) z_i > 0`
D      for every other selection some sequence has its optimal token as an SVM-neighbour, so nothing else is
       locally optimal
E      a nonlinear head keeps the order: :math:`Y h(X^\top s) \le \gamma_\alpha - c (1 - s_\alpha)` with c > 0 on
       convex combinations of the selected token with lower-scored ones
=====  =====================================================================================================

(arXiv 2308.16898, Assumptions A to E.) Each condition says whether it is exact, enumerated or sampled: a sample can
refute but not prove.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.platform.summary import Listed
from attsvm.solution.solution import Solution
from attsvm.theory.landscape import Landscape
from attsvm.theory.loss_slopes import loss_constants, slopes
from attsvm.theory.tokens import Trial

# Average margin of the non-optimal tokens up to which the published test of B.1 passes.
MEAN_MARGIN = 1.1


@dataclass(frozen=True, repr=False)
class Condition(Listed):
    """One hypothesis and the result of its check.

    Attributes
    ----------
    name : str
    holds : bool or None
        None if it could not be decided.
    detail : str
        The numbers that decide, in words.
    value : float
        The number that decides; NaN if there is none.
    how : {"exact", "enumerated", "sampled"}
        Kind of the check.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> condition = theory.condition_b2(trial)
    >>> condition.name, condition.holds, condition.how
    ('B.2', False, 'exact')
    """

    name: str
    holds: bool | None
    detail: str
    value: float = float("nan")
    how: str = "exact"

    def __str__(self) -> str:
        word = {True: "holds", False: "fails", None: "undecided"}[self.holds]
        return f"{self.name}: {word} ({self.how}); {self.detail}"


def condition_a(trial: Trial, loss: str | Callable[..., Any] = "logistic") -> Condition:
    """Check that the loss decreases strictly on the scores' range, with bounded Lipschitz slope.

    A callable is evaluated on a grid. That can refute the condition but not prove it, so `holds` is False or None.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> theory.condition_a(trial, "logistic").holds
    True
    """
    bound = float(np.abs(trial.gamma[trial.mask]).max())
    constants = loss_constants(loss, bound)
    detail = f"on |u| <= {bound:.3g}: M0 = {constants.M0:.3g}, M1 = {constants.M1:.3g}"
    if constants.how == "exact":
        return Condition("A", True, detail, constants.M1)
    slope = slopes(loss, bound)[1]
    holds = None if (slope < 0).all() and np.isfinite(constants.M0) else False
    return Condition("A", holds, f"{detail}; slope between {slope.min():.3g} and {slope.max():.3g}", how="sampled")


def _others(trial: Trial) -> np.ndarray:
    """Mark the visible tokens that are not optimal, bool (n, T)."""
    others = trial.mask.copy()
    others[np.arange(len(others)), trial.optimal] = False
    return others


def condition_b1(trial: Trial) -> tuple[Condition, Condition]:
    """Check B.1 strictly (every non-optimal token is an SVM-neighbour) and as published (average margin <= 1.1).

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> strict, slack = theory.condition_b1(trial)
    >>> strict.name, slack.name
    ('B.1', 'B.1 (slack)')
    """
    solution, others = trial.optimal_solution, _others(trial)
    if not np.isfinite(solution.objective):
        detail = f"the optimal tokens have no SVM: {solution.status.value}"
        return Condition("B.1", False, detail), Condition("B.1 (slack)", False, detail)
    if not others.any():
        detail = "no sequence has a second token"
        return Condition("B.1", True, detail), Condition("B.1 (slack)", True, detail)
    margins = np.asarray(solution.margins)[others]
    near = int(np.asarray(solution.support)[others].sum())
    return (
        Condition("B.1", near == margins.size, f"{near} of {margins.size} non-optimal tokens have margin one", near),
        Condition(
            "B.1 (slack)",
            bool(margins.mean() <= MEAN_MARGIN),
            f"average margin {margins.mean():.4g}, at most {MEAN_MARGIN} asked for",
            float(margins.mean()),
        ),
    )


def condition_b2(trial: Trial) -> Condition:
    """Check that all non-optimal tokens of each sequence have the same score.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> theory.condition_b2(trial).holds
    False
    """
    others = _others(trial)
    highest = np.max(trial.gamma, axis=1, where=others, initial=-np.inf)
    lowest = np.min(trial.gamma, axis=1, where=others, initial=np.inf)
    spread = float(np.where(others.any(axis=1), highest - lowest, 0.0).max())
    return Condition("B.2", spread <= trial.score_error, f"non-optimal scores spread over {spread:.3g}", spread)


def initial_gradient(trial: Trial, loss: str | Callable[..., Any] = "logistic", W: Any = None) -> np.ndarray:
    """Return the gradient of the risk at W (default 0), shape (d, dz)."""
    import torch

    from attsvm.training.risk.objective import Objective

    objective = Objective.from_data(trial.data, trial.head if trial.v is None else trial.v, loss)
    n, d, dz = trial.tokens.shape[0], trial.tokens.shape[2], trial.queries.shape[1]
    point = np.zeros((d, dz)) if W is None else np.asarray(W, dtype=np.float64)
    with torch.no_grad():
        gradient = objective.gradient(torch.as_tensor(point)[None])
    return (gradient.W[0] * gradient.log_scale[0].exp() / n).cpu().numpy()


def condition_c(trial: Trial, loss: str | Callable[..., Any] = "logistic") -> Condition:
    """Check that minus the gradient at zero gives every optimal token a positive margin.

    Then a large first step along it reaches the region where the optimal tokens lead. There is no guarantee that the
    iterates stay there.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> theory.condition_c(trial).name
    'C'
    """
    gradient = initial_gradient(trial, loss)
    problem = trial.problem(trial.optimal)
    margins = problem.apply(-gradient)[problem.rejected]
    if not margins.size:
        return Condition("C", True, "no sequence has a second token")
    size = float(np.linalg.norm(gradient))
    smallest = float(margins.min()) / size if size > 0 else 0.0
    good = int((margins > 0).sum())
    detail = f"{good} of {margins.size} margins grow, smallest {smallest:.3g} for a unit step"
    return Condition("C", smallest > 0, detail, smallest)


def condition_d(landscape: Landscape) -> Condition:
    """Check that every realisable selection except the optimal one has an optimal token as an SVM-neighbour.

    Selections that no matrix realises are ignored, since training cannot end in them.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> condition = theory.condition_d(theory.explore(trial))
    >>> condition.holds, condition.how
    (False, 'enumerated')
    """
    others = landscape.feasible.copy()
    others[0] = False
    free = others & ~landscape.blocked_somewhere
    how = "enumerated" if landscape.exhaustive else "sampled"
    free_in_part = others & ~landscape.blocked_everywhere
    detail = (
        f"{int(free.sum())} of {int(others.sum())} other realisable selections have no optimal token among their "
        f"neighbours ({int(free_in_part.sum())} lack one in some sequence); {landscape.how}"
    )
    holds = False if free.any() else None if not landscape.exhaustive or landscape.undecided else True
    return Condition("D", holds, detail, float(free.sum()), how)


def condition_e(trial: Trial, selected: Any = None, *, samples: int = 2000, seed: int = 0) -> Condition:
    r"""Check that the head keeps the order of the scores on mixtures with lower-scored tokens.

    The constant :math:`c = \inf (\gamma_\alpha - Y h(X^\top s)) / (1 - s_\alpha)` is known exactly for a linear head
    (the gap to the next lower score). For any other head it is bounded from above on samples: the vertices, the edges
    towards each lower-scored token, and mixtures drawn from the simplex with all sizes of :math:`1 - s_\alpha`.

    Parameters
    ----------
    trial : Trial
    selected : array of int, shape (n,), optional
        The optimal tokens by default.
    samples : int
        Number of mixtures per sequence.
    seed : int

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> theory.condition_e(trial).holds
    True
    """
    selection = trial.optimal if selected is None else np.asarray(selected)
    rows = np.arange(len(selection))
    score = trial.gamma[rows, selection]
    lower = trial.mask & (trial.gamma < score[:, None] - trial.score_error)
    if trial.linear:
        gaps = np.where(lower, score[:, None] - np.where(lower, trial.gamma, 0.0), np.inf)
        c = float(gaps.min())
        return Condition("E", c > 0, f"the head is linear, c = {c:.3g}", c)
    rng = np.random.default_rng(seed)
    worst = np.inf
    for i in rows:
        others = np.flatnonzero(lower[i])
        if len(others):
            share, mixtures = _mixtures(len(others), samples, rng)
            selected_value = trial.values[i, selection[i]]
            points = selected_value + share[:, None] * (mixtures @ (trial.values[i, others] - selected_value))
            predicted = trial.labels[i] * _evaluate(trial, points)
            worst = min(worst, float(((score[i] - predicted) / share).min()))
    holds = False if worst <= 0 else None
    return Condition("E", holds, f"smallest c found {worst:.3g}", worst, "sampled")


def _mixtures(count: int, samples: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return 1 - s_alpha, (m,), and its distribution over `count` tokens, (m, count)."""
    grid = np.geomspace(1e-3, 1.0, 24)
    edges = np.repeat(np.eye(count), len(grid), axis=0)
    weights = rng.dirichlet(np.full(count, 0.5), samples)
    share = np.concatenate([np.tile(grid, count), 10 ** rng.uniform(-3, 0, samples)])
    return share, np.concatenate([edges, weights])


def _evaluate(trial: Trial, points: np.ndarray) -> np.ndarray:
    from attsvm.theory.tokens import predictions

    return predictions(trial.head, points[None])[0]


def check_conditions(
    trial: Trial, loss: str | Callable[..., Any] = "logistic", landscape: Landscape | None = None
) -> dict[str, Condition]:
    """Check A to E for the optimal tokens; D needs a landscape.

    Returns
    -------
    dict
        {"A", "B.1", "B.1 (slack)", "B.2", "C", "E"}, and "D" when a landscape is given.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> for name, condition in theory.check_conditions(trial).items():
    ...     print(name, condition.holds)
    A True
    B.1 False
    B.1 (slack) True
    B.2 False
    C True
    E True
    """
    conditions = [condition_a(trial, loss), *condition_b1(trial), condition_b2(trial), condition_c(trial, loss)]
    if landscape is not None:
        conditions.append(condition_d(landscape))
    conditions.append(condition_e(trial))
    return {condition.name: condition for condition in conditions}


def describe(solution: Solution) -> str:
    """Describe in words what a solution says about feasibility."""
    if np.isfinite(solution.objective):
        return f"an SVM of norm {solution.objective:.4g}, gap {max(solution.gap, 0.0):.1e}"
    return solution.status.value
