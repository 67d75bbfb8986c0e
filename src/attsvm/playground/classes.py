"""The scene of three classes: one data set and three optimisers, each compared with the SVM of its norm.

Classes are tokens and inputs are queries. W (3, 3) thus holds a weight vector for each class, with the intercepts in
the last column. The attention from an input to its class is the probability under softmax regression. The loss is minus
that probability; after the start of training its gradient has the direction of the log-loss gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attsvm.core.correlation import correlation
from attsvm.core.problem import SelectionProblem
from attsvm.core.types import NormName
from attsvm.data.token_data import TokenData
from attsvm.playground.plane import DRAFT_STEPS, PageMemory, Supersession, interruptible, plain
from attsvm.playground.state import CLASS_COUNT, Classes
from attsvm.solution.solution import Solution
from attsvm.solvers.solving import solve
from attsvm.training import train
from attsvm.training.optimisers.registry import OptimizerName
from attsvm.training.run.compiled import W_RULES

# The three optimisers, and the norm whose largest margin each is known or conjectured to reach.
RACES: tuple[tuple[OptimizerName, NormName], ...] = (
    ("normalized_gd", "frobenius"),
    ("sign", "max"),
    ("spectral", "spectral"),
)


def training_data(state: Classes) -> TokenData:
    """Pose classification as attention: the value of a token is one if it is the input's class, otherwise zero."""
    n = len(state.points)
    tokens = np.broadcast_to(np.eye(CLASS_COUNT), (n, CLASS_COUNT, CLASS_COUNT))
    values = (np.arange(CLASS_COUNT) == state.classes[:, None]).astype(float)[..., None]
    return TokenData(tokens, with_intercept(state.points), np.ones(n), values=values)


def with_intercept(points: np.ndarray) -> np.ndarray:
    """Append a column of ones, shape (n, 3)."""
    return np.column_stack([points, np.ones(len(points))])


def classes_picture(
    state: Classes, *, draft: bool = False, memory: PageMemory | None = None, stale: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Train three optimisers and compare each with the SVMs of three norms.

    Parameters
    ----------
    state : Classes
    draft : bool
        True during a drag: training outside the compiled loop stops early.
    memory : PageMemory, optional
        Solutions that a draft starts from.
    stale : callable
        Called a hundred times per training; returns whether a newer state waits.

    Returns
    -------
    dict
        JSON with no NaN.

    Raises
    ------
    Supersession
        If `stale` returned True.
    """
    memory = PageMemory() if memory is None else memory
    problem = SelectionProblem.from_classes(with_intercept(state.points), state.classes, classes=CLASS_COUNT)
    solutions: dict[str, Solution] = {}
    for _, norm in RACES:
        solutions[norm] = solve(problem, norm, warm_start=memory.recall(norm, problem, norm) if draft else None)
    memory.solutions.update(solutions)
    data = training_data(state)
    races = []
    for optimizer, norm in RACES:
        steps = min(state.steps, DRAFT_STEPS) if draft and optimizer not in W_RULES else state.steps
        options = interruptible(draft, stale)
        trace = train(data, [1.0], loss="correlation", optimizer=optimizer, steps=steps, **options)
        if trace.stopped:
            raise Supersession
        races.append(_race(optimizer, norm, np.asarray(trace.W)[-1], problem, solutions))
    feasible = all(np.isfinite(solution.objective) for solution in solutions.values())
    return {
        "scene": "classes",
        "draft": draft,
        "races": races,
        "verdict": _verdict(races) if feasible else _INSEPARABLE,
    }


_INSEPARABLE = {
    "tone": "bad",
    "word": "Infeasible",
    "sentence": "No linear classifier separates the three classes, so no norm has a largest margin: Farkas multipliers "
    "prove it. Drag the stray point back to its class.",
}


def _race(
    optimizer: str, norm: str, W: np.ndarray, problem: SelectionProblem, solutions: dict[str, Solution]
) -> dict[str, Any]:
    own = solutions[norm]
    margin = np.where(problem.rejected, problem.margins(W), np.inf).min()
    shares = {name: margin / one.norm.value(W) * one.objective for name, one in solutions.items()}
    return {
        "optimizer": optimizer,
        "norm": norm,
        "trained": W.tolist(),
        "W": plain(own.W),
        "shares": {name: plain(share) for name, share in shares.items()},
        "correlation": plain(correlation(W, own.W) if np.isfinite(own.objective) else np.nan),
        "status": own.status.name,
        "objective": plain(own.objective),
        "gap": plain(own.gap),
        "support": np.asarray(own.support).any(axis=1).tolist(),
    }


def _verdict(races: list[dict[str, Any]]) -> dict[str, str]:
    own = [race["shares"][race["norm"]] for race in races]
    nearest = [max(race["shares"], key=race["shares"].get) for race in races]
    if min(own) <= 0:
        return {"tone": "unsure", "word": "Under way", "sentence": "Some training does not separate the classes yet."}
    if all(name == race["norm"] for name, race in zip(nearest, races, strict=True)):
        sentence = "The same data, three limits: each optimiser comes nearest to the largest margin of its own norm"
    else:
        sentence = "Training has not told the norms apart yet; more steps, or points further apart, will"
    tone = "good" if min(own) > 0.98 else "unsure"
    return {"tone": tone, "word": "One norm each", "sentence": f"{sentence} ({min(own):.1%} of it or more)."}
