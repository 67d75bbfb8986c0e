"""Training in rounds: a run that has not converged after its steps is continued within a budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.core.correlation import correlation
from attsvm.core.problem import SelectionProblem
from attsvm.core.types import FactorNorm, Parameterization
from attsvm.solution.solution import Solution
from attsvm.solvers.solving import solve
from attsvm.study.convergence import climbing
from attsvm.study.results import ARRIVAL, SELECTING, Run, Settings, Setup
from attsvm.study.watch import Watch
from attsvm.theory.tokens import compare_with_neighbours

if TYPE_CHECKING:
    from attsvm.training import Trace

TRAINING = {"W": "Training W with the exact gradient", "KQ": "Training K and Q with the exact gradient"}
LONGER = {
    "W": "Training W longer: it is still on its way",
    "KQ": "Training K and Q longer: they are still on their way",
}
SOLVING = {"W": "Solving the SVMs of the tokens W realised", "KQ": "Solving the SVMs of the tokens K and Q realised"}

# Number of records in the first round.
RECORDS = 80
# Number of records in each later round, which doubles the steps.
MORE_RECORDS = 8
# Largest gap of an accurate solution: the direction's error is at most sqrt(2 gap), a thousandth.
ACCURATE = 1e-6
# Seconds that each of the two SVMs may take after the study was asked to stop.
AFTER_STOP = 0.75


def record_steps(steps: int) -> list[int]:
    """Choose the steps to record, evenly on a logarithmic axis."""
    return np.unique(np.geomspace(1, steps, RECORDS).round().astype(int)).tolist()


def _more_steps(start: int, until: int) -> list[int]:
    """Choose the records of a round from step `start` to step `until`, relative to `start`."""
    marks = np.geomspace(start, until, MORE_RECORDS + 1)[1:].round().astype(int)
    return np.unique(marks - start).tolist()


def _round(
    setup: Setup,
    settings: Settings,
    parameterization: Parameterization,
    previous: Trace | None,
    steps: int,
    watch: Watch,
) -> Trace:
    """Train to step `steps`, from the start or from the end of the trace `previous`."""
    from attsvm.training import train

    start = 0 if previous is None else int(previous.step[-1])
    options: dict[str, Any] = {}
    if previous is not None and parameterization == "W":
        options["init"] = previous.W[-1]
    elif previous is not None:
        assert previous.K is not None
        assert previous.Q is not None
        # The trainer's rule for K and Q, 0.5 ||(K, Q)|| / sqrt(k), continued in k.
        options |= {"init": (previous.K[-1], previous.Q[-1]), "schedule": lambda k: 1 / np.sqrt(k + start)}
    trace = train(
        setup.train.tokens,
        setup.head.v,
        parameterization=parameterization,
        steps=steps - start,
        lr=settings.lr if parameterization == "W" else None,
        record_every=record_steps(steps) if previous is None else _more_steps(start, steps),
        seed=int(np.random.SeedSequence((settings.seed, 1)).generate_state(1)[0]),
        callback=lambda step, total: watch.inside(step / total),
        **options,
    )
    return trace if previous is None else previous.followed_by(trace)


def _needs_more(trace: Trace, curve: np.ndarray | None) -> bool:
    """Return whether more steps would help: attention still concentrates, or the correlation still rises."""
    least = np.asarray(trace.attention).max(axis=-1).min(axis=-1)  # (records,)
    if least[-1] < SELECTING and climbing(trace.step, least):
        return True
    return curve is not None and curve[-1] < ARRIVAL and climbing(trace.step, curve)


def train_and_solve(setup: Setup, settings: Settings, parameterization: Parameterization, watch: Watch) -> Run:
    """Train, find the realised tokens, solve their SVM in both norms, and compare with it.

    If stopped during training, the training so far is compared.
    """
    own, other = ("frobenius", "nuclear") if parameterization == "W" else ("nuclear", "frobenius")
    trace = _round(setup, settings, parameterization, None, settings.steps, watch)
    solutions: dict[str, Solution] = {}
    while True:
        is_stopped, selected = watch.stopped, np.asarray(trace.selected)
        callback: Callable[[object], bool] | None = None if is_stopped else watch.poll
        time_limit = min(settings.time_limit, AFTER_STOP) if is_stopped else settings.time_limit
        problem = setup.trial.problem(selected)
        if own not in solutions or (solutions[own].problem.reference != selected).any():
            watch.enter(SOLVING[parameterization])
            solutions[own] = _solution(problem, own, time_limit, callback, watch)
        curve = _curve(trace, solutions[own])
        end = int(trace.step[-1])
        if watch.stopped or end >= settings.budget or not _needs_more(trace, curve):
            break
        watch.enter(LONGER[parameterization])
        trace = _round(setup, settings, parameterization, trace, min(2 * end, settings.budget), watch)
    watch.enter(SOLVING[parameterization])
    solutions[other] = _solution(problem, other, time_limit, callback, watch)
    both = {norm: _curve(trace, solutions[norm]) for norm in ("frobenius", "nuclear")}
    curves = {norm: curve for norm, curve in both.items() if curve is not None}
    locality = compare_with_neighbours(setup.trial, solutions[own]) if own in curves else None
    return Run(parameterization, trace, selected, solutions, curves, locality)


def _solution(
    problem: SelectionProblem,
    norm: FactorNorm,
    time_limit: float,
    callback: Callable[[object], bool] | None,
    watch: Watch,
) -> Solution:
    """Solve; a second Ctrl-C discards the SVM and keeps the training."""
    try:
        return solve(problem, norm, time_limit=time_limit, callback=callback)
    except KeyboardInterrupt:
        watch.interrupt()
        return solve(problem, norm, max_iter=1, callback=lambda _: True)


def _curve(trace: Trace, solution: Solution) -> np.ndarray | None:
    if not (solution.objective > 0 and solution.gap <= ACCURATE):
        return None
    return np.asarray(correlation(trace.W, solution.W))
